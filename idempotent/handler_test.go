package idempotent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip/idempotent"
	"github.com/stretchr/testify/require"
)

func TestRequestsWithoutAKeyRunUnlessOneIsRequired(t *testing.T) {
	t.Parallel()
	charges := say("done")
	h := idempotent.Handler(charges, idempotent.Memory(10))
	answers(t, serve(h, post("", "")), http.StatusCreated, "done")
	answers(t, serve(h, post("", "")), http.StatusCreated, "done")
	h = idempotent.Handler(charges, idempotent.Memory(10), idempotent.Required())
	refuses(t, serve(h, post("", "")), http.StatusBadRequest, "missing")
	require.EqualValues(t, 2, charges.runs.Load())
}

func TestOtherMethodsAreNotLookedAt(t *testing.T) {
	t.Parallel()
	charges := say("done")
	h := idempotent.Handler(charges, idempotent.Memory(10), idempotent.Required())
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete, "post"} {
		for range 2 {
			r := post("k", "")
			r.Method = method
			answers(t, serve(h, r), http.StatusCreated, "done")
		}
	}
	h = idempotent.Handler(charges, idempotent.Memory(10), idempotent.Methods(http.MethodDelete))
	answers(t, serve(h, post("k", "")), http.StatusCreated, "done")
	r := post("k", "")
	r.Method = http.MethodDelete
	serve(h, r)
	replays(t, serve(h, r), http.StatusCreated, "done")
}

func TestARequestWithoutAKeyCostsNoAllocation(t *testing.T) {
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	h := idempotent.Handler(next, idempotent.Memory(10))
	w, r := nowhere{}, post("", "")
	require.Zero(t, testing.AllocsPerRun(100, func() { h.ServeHTTP(w, r) }))
}

// nowhere is a ResponseWriter without a connection.
type nowhere struct{}

func (nowhere) Header() http.Header         { return nil }
func (nowhere) WriteHeader(int)             {}
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

func TestTheKeysNameMayComeInAnyCase(t *testing.T) {
	t.Parallel()
	s := start(t, idempotent.Handler(say("done"), idempotent.Memory(10)))
	answers(t, send(t, s, "k", ""), http.StatusCreated, "done")
	r, err := http.NewRequest(http.MethodPost, s.URL+"/charges", nil)
	require.NoError(t, err)
	r.Header["iDEMPOTENCY-kEY"] = []string{"k"}
	resp, err := s.Client().Do(r)
	require.NoError(t, err)
	replays(t, resp, http.StatusCreated, "done")
}

// TestOfManyAtOnceOneRuns: the others get 409 while it does, and its answer afterwards.
func TestOfManyAtOnceOneRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		charges := count(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Hour)
			_, _ = io.WriteString(w, "done")
		})
		h := idempotent.Handler(charges, idempotent.Memory(10))
		var mu sync.Mutex
		got := make(map[int][]*http.Response)
		for range 50 {
			go func() {
				resp := serve(h, post("k", "body"))
				mu.Lock()
				defer mu.Unlock()
				got[resp.StatusCode] = append(got[resp.StatusCode], resp)
			}()
		}
		synctest.Wait()
		require.Len(t, got[http.StatusConflict], 49)
		for _, resp := range got[http.StatusConflict] {
			require.Equal(t, "1", resp.Header.Get("Retry-After"))
			refuses(t, resp, http.StatusConflict, "running")
		}
		// Another request with the key is told so at once.
		refuses(t, serve(h, post("k", "other")), http.StatusUnprocessableEntity, "reused")
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, got[http.StatusOK], 1)
		answers(t, got[http.StatusOK][0], http.StatusOK, "done")
		replays(t, serve(h, post("k", "body")), http.StatusOK, "done")
		require.EqualValues(t, 1, charges.runs.Load())
	})
}

func TestManyGoroutinesRunEachKeyOnce(t *testing.T) {
	t.Parallel()
	charges := count(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Set-Cookie", "a=1")
		_, _ = io.Copy(w, r.Body)
	})
	s := start(t, idempotent.Handler(charges, idempotent.Memory(100)))
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for i := range 20 {
				key := fmt.Sprint("key-", i)
				resp, err := trySend(t.Context(), s, key, key)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusConflict && string(body) != key {
					t.Errorf("%s, %q, %v", resp.Status, body, err)
				}
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 20, charges.runs.Load())
}

// TestAHandlerSlowerThanItsLeaseRunsOnce also where others may take over at once.
func TestAHandlerSlowerThanItsLeaseRunsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		charges := count(func(http.ResponseWriter, *http.Request) { time.Sleep(time.Hour) })
		slow := &store{Store: idempotent.Memory(10), finish: func(context.Context) error {
			time.Sleep(5 * time.Second) // longer than the lease, too
			return nil
		}}
		h := idempotent.Handler(charges, slow, idempotent.Lease(time.Second), idempotent.TTL(time.Minute), idempotent.TakeOver(0))
		go serve(h, post("k", ""))
		for range 3604 {
			time.Sleep(time.Second)
			refuses(t, serve(h, post("k", "")), http.StatusConflict, "running")
		}
		time.Sleep(2 * time.Second)
		replays(t, serve(h, post("k", "")), http.StatusOK, "")
		require.EqualValues(t, 1, charges.runs.Load())
	})
}

func TestAnAnswerIsForgottenAfterItsTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := idempotent.Handler(say("done"), idempotent.Memory(10))
		answers(t, serve(h, post("k", "1")), http.StatusCreated, "done")
		time.Sleep(24*time.Hour - 1)
		replays(t, serve(h, post("k", "1")), http.StatusCreated, "done")
		time.Sleep(time.Nanosecond)
		answers(t, serve(h, post("k", "2")), http.StatusCreated, "done")
	})
}

func TestTheDefaultScopeIsRouteAndAuthorization(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	charges := count(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("Authorization")) })
	mux.Handle("POST /accounts/{id}/charges", idempotent.Handler(charges, idempotent.Memory(10)))
	of := func(account, authorization string) *http.Request {
		r := post("k", "")
		r.URL.Path = "/accounts/" + account + "/charges"
		r.Header.Set("Authorization", authorization)
		return r
	}
	answers(t, serve(mux, of("1", "alice")), http.StatusOK, "alice")
	answers(t, serve(mux, of("1", "bob")), http.StatusOK, "bob")
	replays(t, serve(mux, of("1", "alice")), http.StatusOK, "alice")
	refuses(t, serve(mux, of("2", "alice")), http.StatusUnprocessableEntity, "reused")
	// A token that was renewed between two attempts is another client: see Scope.
	answers(t, serve(mux, of("1", "alice's next token")), http.StatusOK, "alice's next token")
	require.EqualValues(t, 3, charges.runs.Load())
}

// TestTheStoreLearnsNoSecrets: keys, scopes and bodies are hashed, and do not run into
// each other.
func TestTheStoreLearnsNoSecrets(t *testing.T) {
	t.Parallel()
	names, prints := make(map[string]bool), make(map[string]bool)
	spy := &store{begin: func(_ context.Context, key string, c idempotent.Claim) (idempotent.Verdict, error) {
		require.Regexp(t, `^[0-9a-f]{64}$`, key)
		require.Regexp(t, `^[0-9a-f]{64}$`, c.Fingerprint)
		names[key], prints[c.Fingerprint] = true, true
		return idempotent.Verdict{State: idempotent.Lost}, nil
	}}
	parts := [][2]string{{"ab", "c"}, {"a", "bc"}, {"1:a", "b"}, {"a1", "b"}}
	for _, p := range parts {
		r := post(p[1], "")
		r.URL.Path, r.URL.RawQuery = "/"+p[0], p[1]
		serve(idempotent.Handler(say(""), spy, idempotent.Scope(func(*http.Request) string { return p[0] })), r)
	}
	require.Len(t, names, len(parts))
	require.Len(t, prints, len(parts))
}

func TestTheHandlerReadsTheWholeRequest(t *testing.T) {
	t.Parallel()
	type ctxKey struct{}
	large := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	for name, test := range map[string]struct {
		request func() *http.Request
		check   func(t *testing.T, r *http.Request)
	}{
		"a large body": {
			func() *http.Request { return post("k", large) },
			func(t *testing.T, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				require.Len(t, b, len(large))
				require.EqualValues(t, len(large), r.ContentLength)
				n, err := r.Body.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
				require.Zero(t, n)
			}},
		"a body of unknown length": {
			func() *http.Request {
				r := httptest.NewRequest(http.MethodPost, "/charges", iotest.OneByteReader(strings.NewReader("chunks")))
				r.Header.Set(idempotent.KeyHeader, "k")
				return r
			},
			func(t *testing.T, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				require.Equal(t, "chunks", string(b))
				require.EqualValues(t, -1, r.ContentLength)
			}},
		"no body": {
			func() *http.Request {
				r := post("k", "")
				r.Body = http.NoBody
				return r
			},
			func(t *testing.T, r *http.Request) { require.Equal(t, http.NoBody, r.Body) }},
		"a form": {
			func() *http.Request {
				r := post("k", "amount=5")
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				return r
			},
			func(t *testing.T, r *http.Request) { require.Equal(t, "5", r.FormValue("amount")) }},
		"a multipart form": {
			func() *http.Request {
				var b bytes.Buffer
				w := multipart.NewWriter(&b)
				_ = w.WriteField("amount", "5")
				_ = w.Close()
				r := post("k", b.String())
				r.Header.Set("Content-Type", w.FormDataContentType())
				return r
			},
			func(t *testing.T, r *http.Request) { require.Equal(t, "5", r.FormValue("amount")) }},
		"values of the context": {
			func() *http.Request {
				r := post("k", "")
				return r.WithContext(context.WithValue(r.Context(), ctxKey{}, "v"))
			},
			func(t *testing.T, r *http.Request) { require.Equal(t, "v", r.Context().Value(ctxKey{})) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				test.check(t, r)
				w.WriteHeader(http.StatusCreated)
			}), idempotent.Memory(10))
			answers(t, serve(h, test.request()), http.StatusCreated, "")
		})
	}
}

// TestAFormThatWasParsedAboveStillTellsRequestsApart: nothing of the body is left then.
func TestAFormThatWasParsedAboveStillTellsRequestsApart(t *testing.T) {
	t.Parallel()
	protected := idempotent.Handler(say("done"), idempotent.Memory(10))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.FormValue("csrf")
		protected.ServeHTTP(w, r)
	})
	form := func(body string) *http.Request {
		r := post("k", body)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return r
	}
	answers(t, serve(h, form("amount=5")), http.StatusCreated, "done")
	replays(t, serve(h, form("amount=5")), http.StatusCreated, "done")
	refuses(t, serve(h, form("amount=6")), http.StatusUnprocessableEntity, "reused")
}

func TestABodyThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	charges := say("done")
	limited := idempotent.Handler(charges, idempotent.Memory(10), idempotent.MaxBody(4))
	answers(t, serve(limited, post("fits", "1234")), http.StatusCreated, "done")
	refuses(t, serve(limited, post("k", "12345")), http.StatusRequestEntityTooLarge, "too-large")
	unknown := post("k", "12345")
	unknown.ContentLength = -1
	refuses(t, serve(limited, unknown), http.StatusRequestEntityTooLarge, "too-large")
	above := http.MaxBytesHandler(idempotent.Handler(charges, idempotent.Memory(10)), 4)
	refuses(t, serve(above, post("k", "12345")), http.StatusRequestEntityTooLarge, "too-large")
	broken := post("k", "")
	broken.Body = io.NopCloser(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	refuses(t, serve(limited, broken), http.StatusBadRequest, "unreadable")
	answers(t, serve(limited, post("k", "1234")), http.StatusCreated, "done") // none of these took the key
	require.EqualValues(t, 2, charges.runs.Load())
}

// TestAPanicIsNotRepeated: what was done before it nobody knows. It goes on to net/http as
// it came.
func TestAPanicIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, value := range []any{http.ErrAbortHandler, "a bug"} {
		for _, written := range []string{"", "some"} {
			synctest.Test(t, func(t *testing.T) {
				first := true
				charges := count(func(w http.ResponseWriter, _ *http.Request) {
					if first {
						first = false
						_, _ = io.WriteString(w, written)
						panic(value)
					}
					_, _ = io.WriteString(w, "done")
				})
				memory := idempotent.Memory(10)
				h := idempotent.Handler(charges, memory)
				require.Equal(t, value, panics(h, post("k", "")))
				refuses(t, serve(h, post("k", "")), http.StatusConflict, "unknown-outcome")
				refuses(t, serve(h, post("k", "other")), http.StatusUnprocessableEntity, "reused")
				again := idempotent.Handler(charges, memory, idempotent.TakeOver(time.Hour))
				time.Sleep(time.Hour - 1)
				refuses(t, serve(again, post("k", "")), http.StatusConflict, "unknown-outcome")
				time.Sleep(time.Nanosecond)
				answers(t, serve(again, post("k", "")), http.StatusOK, "done")
				replays(t, serve(h, post("k", "")), http.StatusOK, "done")
				require.EqualValues(t, 2, charges.runs.Load())
			})
		}
	}
}

func TestALostKeyIsFreeWhenItExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := idempotent.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a bug") }), idempotent.Memory(10))
		require.NotNil(t, panics(h, post("k", "")))
		time.Sleep(24*time.Hour - 1)
		require.Nil(t, panics(h, post("k", "")))
		time.Sleep(time.Nanosecond)
		require.NotNil(t, panics(h, post("k", "")))
	})
}

func TestAHandlerThatEndsItsGoroutineIsNotRepeated(t *testing.T) {
	t.Parallel()
	h := idempotent.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runtime.Goexit() }), idempotent.Memory(10))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		serve(h, post("k", ""))
	}()
	<-ended
	refuses(t, serve(h, post("k", "")), http.StatusConflict, "unknown-outcome")
}

// TestAnAnswerIsStoredAlthoughItsClientHasGone, and its request's context has ended with
// it, as net/http has it.
func TestAnAnswerIsStoredAlthoughItsClientHasGone(t *testing.T) {
	t.Parallel()
	running, ended := make(chan struct{}), make(chan struct{})
	protected := idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(running)
		<-r.Context().Done()
		_, _ = io.WriteString(w, "done")
	}), &store{Store: idempotent.Memory(10), finish: context.Context.Err})
	var first atomic.Bool
	s := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if first.CompareAndSwap(false, true) {
			defer close(ended)
		}
		protected.ServeHTTP(w, r)
	}))
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-running
		leave()
	}()
	_, err := trySend(ctx, s, "k", "body")
	require.ErrorIs(t, err, context.Canceled)
	<-ended
	replays(t, send(t, s, "k", "body"), http.StatusOK, "done")
}

// TestSilenceAfterTheClientHasGoneIsNoAnswer: net/http would make it an empty 200.
func TestSilenceAfterTheClientHasGoneIsNoAnswer(t *testing.T) {
	t.Parallel()
	silent := count(func(http.ResponseWriter, *http.Request) {})
	h := idempotent.Handler(silent, idempotent.Memory(10))
	ctx, leave := context.WithCancel(t.Context())
	leave()
	serve(h, post("gone", "").WithContext(ctx))
	refuses(t, serve(h, post("gone", "")), http.StatusConflict, "unknown-outcome")
	answers(t, serve(h, post("here", "")), http.StatusOK, "")
	replays(t, serve(h, post("here", "")), http.StatusOK, "")
	require.EqualValues(t, 2, silent.runs.Load())
	resigned := idempotent.Handler(status(499), idempotent.Memory(10))
	serve(resigned, post("gone", "").WithContext(ctx))
	refuses(t, serve(resigned, post("gone", "")), http.StatusConflict, "unknown-outcome")
	answers(t, serve(resigned, post("here", "")), 499, "")
	replays(t, serve(resigned, post("here", "")), 499, "")
}

// TestATimeoutAboveDoesNotLoseTheAnswer: what came too late is the next request's.
func TestATimeoutAboveDoesNotLoseTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		charges := count(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Minute)
			_, _ = io.WriteString(w, "done")
		})
		h := http.TimeoutHandler(idempotent.Handler(charges, idempotent.Memory(10)), time.Second, "too slow")
		answers(t, serve(h, post("k", "")), http.StatusServiceUnavailable, "too slow")
		refuses(t, serve(h, post("k", "")), http.StatusConflict, "running")
		time.Sleep(time.Minute)
		replays(t, serve(h, post("k", "")), http.StatusOK, "done")
	})
}

func TestWithoutItsStoreAHandlerRefusesUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	down := &store{
		Store:   idempotent.Memory(10),
		abandon: fails,
		begin: func(context.Context, string, idempotent.Claim) (idempotent.Verdict, error) {
			return idempotent.Verdict{}, errStore
		},
	}
	charges := count(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	var log page
	resp := serve(idempotent.Handler(charges, down, log.option()), post("k", "body"))
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	refuses(t, resp, http.StatusServiceUnavailable, "store-failed")
	require.Zero(t, charges.runs.Load())
	require.Contains(t, log.String(), errStore.Error())
	open := idempotent.Handler(charges, down, quiet, idempotent.FailOpen())
	answers(t, serve(open, post("k", "body")), http.StatusOK, "body")
	answers(t, serve(open, post("k", "body")), http.StatusOK, "body")

	gone, leave := context.WithCancel(t.Context())
	leave()
	serve(open, post("k", "body").WithContext(gone)) // it is the client that failed
	require.EqualValues(t, 2, charges.runs.Load())
}

// TestAClaimWhoseAnswerWasLostOnTheWayBlocksNoOne: the store made it, and could not say so.
func TestAClaimWhoseAnswerWasLostOnTheWayBlocksNoOne(t *testing.T) {
	t.Parallel()
	memory := idempotent.Memory(10)
	cut := true
	blink := &store{Store: memory, begin: func(ctx context.Context, key string, c idempotent.Claim) (idempotent.Verdict, error) {
		v, err := memory.Begin(ctx, key, c)
		if cut {
			cut = false
			return idempotent.Verdict{}, errStore
		}
		return v, err
	}}
	h := idempotent.Handler(say("done"), blink, quiet)
	refuses(t, serve(h, post("k", "")), http.StatusServiceUnavailable, "store-failed")
	answers(t, serve(h, post("k", "")), http.StatusCreated, "done")
}

// TestAnAnswerThatCannotBeStoredStillGoesOut, and the key is lost: the work was done.
func TestAnAnswerThatCannotBeStoredStillGoesOut(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{"finish": http.StatusCreated, "abandon": http.StatusInternalServerError} {
		synctest.Test(t, func(t *testing.T) {
			var log page
			h := idempotent.Handler(status(code), &store{Store: idempotent.Memory(10), finish: fails, abandon: fails}, log.option())
			answers(t, serve(h, post("k", "")), code, "")
			require.Contains(t, log.String(), errStore.Error(), name)
			refuses(t, serve(h, post("k", "")), http.StatusConflict, "running")
			time.Sleep(30 * time.Second)
			refuses(t, serve(h, post("k", "")), http.StatusConflict, "unknown-outcome")
		})
	}
}

func TestAStoreThatHangsHoldsAnAnswerUpFor10Seconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		h := idempotent.Handler(say("done"), &store{Store: idempotent.Memory(10), finish: hangs, renew: hangs}, quiet, idempotent.Lease(time.Second))
		begin := time.Now()
		answers(t, serve(h, post("k", "")), http.StatusCreated, "done")
		require.Equal(t, 10*time.Second, time.Since(begin))
	})
}

// TestALeaseThatIsNotRenewedIsLostAndThenFinished: a store that is away for longer than a
// lease makes others wait for an operator, or for the handler after all.
func TestALeaseThatIsNotRenewedIsLostAndThenFinished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		charges := count(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Minute)
			_, _ = io.WriteString(w, "done")
		})
		var log page
		h := idempotent.Handler(charges, &store{Store: idempotent.Memory(10), renew: fails}, log.option())
		go serve(h, post("k", ""))
		synctest.Wait()
		refuses(t, serve(h, post("k", "")), http.StatusConflict, "running")
		time.Sleep(30 * time.Second)
		refuses(t, serve(h, post("k", "")), http.StatusConflict, "unknown-outcome")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		replays(t, serve(h, post("k", "")), http.StatusOK, "done")
		require.EqualValues(t, 1, charges.runs.Load())
		require.Contains(t, log.String(), "a lease could not be renewed")
	})
}

// TestARenewalThatHangsLeavesTimeForAnother: its lease does not end for it.
func TestARenewalThatHangsLeavesTimeForAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var renewals atomic.Int64
		hangs := func(ctx context.Context) error {
			if renewals.Add(1)%2 == 0 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		charges := count(func(http.ResponseWriter, *http.Request) { time.Sleep(10 * time.Minute) })
		h := idempotent.Handler(charges, &store{Store: idempotent.Memory(10), renew: hangs}, quiet, idempotent.TakeOver(0))
		go serve(h, post("k", ""))
		for range 599 {
			time.Sleep(time.Second)
			refuses(t, serve(h, post("k", "")), http.StatusConflict, "running")
		}
		time.Sleep(2 * time.Second)
		replays(t, serve(h, post("k", "")), http.StatusOK, "")
		require.EqualValues(t, 1, charges.runs.Load())
	})
}

func TestTakeOverWithoutDelayRunsALostKeyAtOnce(t *testing.T) {
	t.Parallel()
	first := true
	h := idempotent.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if first {
			first = false
			panic("a bug")
		}
	}), idempotent.Memory(10), idempotent.TakeOver(0))
	require.NotNil(t, panics(h, post("k", "")))
	require.Eventually(t, func() bool { return serve(h, post("k", "")).StatusCode == http.StatusOK }, 10*time.Second, time.Millisecond)
}

// TestAnOwnerThatWasTakenOverDoesNotOverwrite, and asks for no more leases.
func TestAnOwnerThatWasTakenOverDoesNotOverwrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var renewals, runs atomic.Int64
		var back atomic.Bool
		cut := &store{Store: idempotent.Memory(10), renew: func(context.Context) error {
			if renewals.Add(1); back.Load() {
				return nil
			}
			return errStore
		}}
		var log page
		h := idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			n := runs.Add(1)
			if n == 1 {
				time.Sleep(time.Hour)
			}
			_, _ = fmt.Fprint(w, "run ", n)
		}), cut, log.option(), idempotent.TakeOver(time.Second))
		first := make(chan *http.Response, 1)
		go func() { first <- serve(h, post("k", "")) }()
		time.Sleep(31 * time.Second)
		answers(t, serve(h, post("k", "")), http.StatusOK, "run 2")
		back.Store(true)
		time.Sleep(time.Hour)
		answers(t, <-first, http.StatusOK, "run 1")
		replays(t, serve(h, post("k", "")), http.StatusOK, "run 2")
		require.EqualValues(t, 4, renewals.Load()) // at 10, 20 and 30 s in vain; the one at 40 s was told
		require.Contains(t, log.String(), idempotent.ErrNotOwner.Error())
	})
}

// transactional is a store whose claims are transactions; their end is noted.
type transactional struct {
	store
	ends []string
	err  error
}

func (s *transactional) Begin(ctx context.Context, key string, c idempotent.Claim) (idempotent.Verdict, error) {
	v, err := s.Store.Begin(ctx, key, c)
	v.Transactional, v.Context = true, context.WithValue(ctx, txKey{}, "tx")
	return v, err
}

type txKey struct{}

func (s *transactional) Finish(ctx context.Context, key, owner string, r idempotent.Record, ttl time.Duration) error {
	s.ends = append(s.ends, "commit")
	return errors.Join(s.err, s.Store.Finish(ctx, key, owner, r, ttl))
}

func (s *transactional) Abandon(ctx context.Context, key, owner string) error {
	s.ends = append(s.ends, "rollback")
	return s.Store.Abandon(ctx, key, owner)
}

// TestATransactionsAnswerGoesOutWhenItIsCommitted or else nothing of it, but what was set
// above the handler.
func TestATransactionsAnswerGoesOutWhenItIsCommitted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		next     http.HandlerFunc
		err      error
		status   int
		fragment string // of a refusal
		end      string
	}{
		"committed":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }, nil, 201, "", "commit"},
		"not committed":     {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }, errStore, 503, "store-failed", "commit"},
		"rolled back":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, nil, 500, "", "rollback"},
		"too long to store": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "long") }, nil, 500, "not-whole", "rollback"},
		"too long to hold": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(429)
			_, _ = io.WriteString(w, "on")
			_, _ = io.WriteString(w, "ly half")
		}, nil, 500, "not-whole", "rollback"},
		"shorter than said": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "1") }, nil, 500, "not-whole", "rollback"},
		"panicked":          {func(http.ResponseWriter, *http.Request) { panic("a bug") }, nil, 0, "", "rollback"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &transactional{store: store{Store: idempotent.Memory(10)}, err: test.err}
			w := httptest.NewRecorder()
			w.Header().Set("X-Above", "kept")
			h := idempotent.Handler(http.HandlerFunc(func(held http.ResponseWriter, r *http.Request) {
				require.Equal(t, "tx", r.Context().Value(txKey{}))
				held.Header().Set("Content-Encoding", "gzip")
				held.Header().Set("X-Above", "changed")
				defer func() {
					require.NoError(t, http.NewResponseController(held).Flush())
					_, _, err := http.NewResponseController(held).Hijack()
					require.ErrorIs(t, err, http.ErrNotSupported)
					require.False(t, w.Flushed)
					require.Zero(t, w.Body.Len())
				}()
				test.next(held, r)
			}), s, quiet, idempotent.MaxAnswer(3))
			func() {
				defer func() { require.Equal(t, test.status == 0, recover() != nil) }()
				h.ServeHTTP(w, post("k", ""))
			}()
			require.Equal(t, []string{test.end}, s.ends)
			resp := w.Result()
			if test.fragment != "" {
				require.Equal(t, "kept", resp.Header.Get("X-Above"))
				require.Empty(t, resp.Header.Get("Content-Encoding"))
				refuses(t, resp, test.status, test.fragment)
			} else if test.status != 0 {
				require.Equal(t, test.status, resp.StatusCode)
				require.Equal(t, "gzip", resp.Header.Get("Content-Encoding"))
			}
		})
	}
}

func TestATransactionOfAClientThatHasGoneInSilenceIsRolledBack(t *testing.T) {
	t.Parallel()
	s := &transactional{store: store{Store: idempotent.Memory(10)}}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	serve(idempotent.Handler(count(func(http.ResponseWriter, *http.Request) {}), s), post("k", "").WithContext(ctx))
	require.Equal(t, []string{"rollback"}, s.ends)
}

func TestAPanicOfRememberLeavesNoTransactionOpen(t *testing.T) {
	t.Parallel()
	s := &transactional{store: store{Store: idempotent.Memory(10)}}
	h := idempotent.Handler(say("done"), s, idempotent.Remember(func(int) bool { panic("a bug") }))
	require.Equal(t, "a bug", panics(h, post("k", "")))
	require.Equal(t, []string{"rollback"}, s.ends)
}

func TestDocsNamesThePageOfAProblem(t *testing.T) {
	t.Parallel()
	h := idempotent.Handler(say(""), idempotent.Memory(10), idempotent.Required(), idempotent.Docs("https://api.example/keys"))
	require.JSONEq(t, `{"type": "https://api.example/keys#missing", "title": "Idempotency-Key is missing", "status": 400,
		"detail": "This operation needs an Idempotency-Key header field."}`, read(t, serve(h, post("", ""))))
}

func TestOptionsPanicOnWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	for want, call := range map[string]func(){
		"idempotent: Methods(): none":                          func() { idempotent.Methods() },
		"idempotent: TTL(1ms): less than a second":             func() { idempotent.TTL(time.Millisecond) },
		"idempotent: Lease(1ms): less than 100ms":              func() { idempotent.Lease(time.Millisecond) },
		"idempotent: TakeOver(-1ns): negative":                 func() { idempotent.TakeOver(-1) },
		"idempotent: Scope(nil)":                               func() { idempotent.Scope(nil) },
		"idempotent: MaxBody(-1): negative":                    func() { idempotent.MaxBody(-1) },
		"idempotent: MaxAnswer(-1): negative":                  func() { idempotent.MaxAnswer(-1) },
		"idempotent: Remember(nil)":                            func() { idempotent.Remember(nil) },
		"idempotent: Handler: the handler or the store is nil": func() { idempotent.Handler(nil, idempotent.Memory(1)) },
	} {
		require.PanicsWithValue(t, want, call)
	}
}
