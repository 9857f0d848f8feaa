package retrip_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

func TestB01ARetriedBodyArrivesWhole(t *testing.T) {
	t.Parallel()
	bodies := map[string]func() io.Reader{
		"a bytes.Buffer":            func() io.Reader { return bytes.NewBufferString("hello") },
		"a bytes.Reader":            func() io.Reader { return bytes.NewReader([]byte("hello")) },
		"a strings.Reader":          func() io.Reader { return strings.NewReader("hello") },
		"a reader without GetBody":  func() io.Reader { return track("hello") },
		"a reader of single bytes":  func() io.Reader { return iotest.OneByteReader(strings.NewReader("hello")) },
		"a reader ending with data": func() io.Reader { return iotest.DataErrReader(strings.NewReader("hello")) },
	}
	failures := map[string]step{"503": answer(503), "a reset": fail(caseReset), "a timeout": hang}
	for what, body := range bodies {
		for why, failure := range failures {
			caseBubble(t, what+" after "+why, func(t *testing.T) {
				for _, method := range []string{http.MethodPost, http.MethodPatch, http.MethodPut} {
					base := play(failure, failure, answer(200))
					rt := retrip.New(base, retrip.WithAttemptTimeout(time.Second))
					req := request(t, method, body())
					req.ContentLength = 5
					require.Equal(t, 200, caseStatus(t, rt, req))
					require.Len(t, base.attempts(), 3)
					for _, saw := range base.attempts() {
						require.Equal(t, "hello", saw.body)
						require.EqualValues(t, 5, saw.req.ContentLength)
					}
				}
			})
		}
	}
}

func TestB02NoBodyStaysNoBody(t *testing.T) {
	t.Parallel()
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var seen []string
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, fmt.Sprintf("%s %s %d %v %v", r.Proto, r.Method, r.ContentLength, r.TransferEncoding, r.Header["Content-Length"]))
				if len(seen)%2 == 1 {
					w.WriteHeader(503)
				}
			}))
			srv.EnableHTTP2 = proto == "HTTP/2.0"
			srv.StartTLS()
			defer srv.Close()
			base := roundTrip(func(req *http.Request) (*http.Response, error) {
				if req.Body != nil && req.Body != http.NoBody {
					return nil, errors.New("a look-alike of no body")
				}
				return srv.Client().Transport.RoundTrip(req)
			})
			for _, tt := range []struct {
				method   string
				body     io.Reader
				declared string
			}{
				{http.MethodGet, nil, "[]"},
				{http.MethodGet, http.NoBody, "[]"},
				{http.MethodDelete, http.NoBody, "[]"},
				{http.MethodPost, nil, "[0]"},
				{http.MethodPost, http.NoBody, "[0]"},
				{http.MethodPost, bytes.NewReader(nil), "[0]"},
				{http.MethodPut, strings.NewReader(""), "[0]"},
			} {
				req, err := http.NewRequestWithContext(t.Context(), tt.method, srv.URL, tt.body)
				require.NoError(t, err)
				require.Equal(t, 200, caseStatus(t, retrip.New(base, caseAtOnce, retrip.WithAttemptTimeout(time.Minute)), req))
				want := fmt.Sprintf("%s %s 0 [] %s", proto, tt.method, tt.declared)
				mu.Lock()
				require.Equal(t, []string{want, want}, seen)
				seen = nil
				mu.Unlock()
			}
		})
	}
}

func TestB03AFailedDialClosesOnlyItsOwnBody(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	for read := range int64(4) {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("after %d bytes, own GetBody %v", read, own), func(t *testing.T) {
				t.Parallel()
				body, again := track("abc"), track("abc")
				req := request(t, http.MethodPut, body)
				if own {
					req.GetBody = func() (io.ReadCloser, error) { return again, nil }
				}
				var got []string
				base := roundTrip(func(r *http.Request) (*http.Response, error) {
					limit := int64(3)
					if len(got) == 0 {
						limit = read
					}
					b, err := io.ReadAll(io.LimitReader(r.Body, limit))
					got = append(got, string(b))
					if err = errors.Join(err, r.Body.Close()); err != nil {
						return nil, err
					}
					if len(got) == 1 {
						return nil, dial
					}
					return answer(200)(r)
				})
				require.Equal(t, 200, caseStatus(t, retrip.New(base, caseAtOnce), req))
				require.Equal(t, []string{"abc"[:read], "abc"}, got)
				body.requireClosed(t)
				if own {
					again.requireClosed(t)
				}
			})
		}
	}
}

func TestB04AnErrorOfTheCallersBodyIsTheCallers(t *testing.T) {
	t.Parallel()
	errSource := errors.New("the source failed")
	sources := map[string]func() io.Reader{
		"a pipe closed with an error": func() io.Reader {
			r, w := io.Pipe()
			_ = w.CloseWithError(errSource)
			return r
		},
		"a reader that fails half way": func() io.Reader {
			return io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(errSource))
		},
		"a reader that fails like a network": func() io.Reader {
			return iotest.ErrReader(fmt.Errorf("%w: %w", errSource, caseReset))
		},
	}
	bases := map[string]func(error) error{
		"reported as it is": func(err error) error { return err },
		"wrapped":           func(err error) error { return fmt.Errorf("base: %w", err) },
		"hidden":            func(error) error { return io.ErrUnexpectedEOF },
	}
	for what, source := range sources {
		for how, report := range bases {
			for _, own := range []bool{false, true} {
				caseBubble(t, fmt.Sprintf("%s, %s, own GetBody %v", what, how, own), func(t *testing.T) {
					calls := 0
					rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
						calls++
						_, err := io.ReadAll(req.Body)
						_ = req.Body.Close()
						return nil, report(err)
					}), retrip.WithBreaker(caseBreaker(1)), retrip.WithMaxAttempts(3))
					req := request(t, http.MethodPut, source())
					if own {
						req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(source()), nil }
					}
					start := time.Now()
					_, err := rt.RoundTrip(req)
					require.ErrorIs(t, err, errSource)
					require.Equal(t, 1, calls)
					require.Zero(t, time.Since(start))
					stats := caseStats(t, rt, "example.com")
					require.Equal(t, retrip.Closed, stats.State)
					require.Equal(t, retrip.DefaultQuota().Initial, stats.Tokens)
				})
			}
		}
	}
	caseBubble(t, "GetBody itself", func(t *testing.T) {
		base := play(answer(503))
		rt := retrip.New(base)
		req := request(t, http.MethodPut, strings.NewReader("hello"))
		req.GetBody = func() (io.ReadCloser, error) { return nil, errSource }
		_, err := rt.RoundTrip(req)
		require.Equal(t, errSource, err)
		require.Len(t, base.attempts(), 1)
		require.Equal(t, retrip.DefaultQuota().Initial, caseStats(t, rt, "example.com").Tokens)
	})
	caseBubble(t, "a source that fails on the second attempt", func(t *testing.T) {
		calls := 0
		rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
			defer func() { _ = req.Body.Close() }()
			if calls++; calls == 1 {
				return answer(503)(req) // before the upload ended
			}
			_, err := io.ReadAll(req.Body)
			return nil, err
		}), retrip.WithBreaker(caseBreaker(2)))
		_, err := rt.RoundTrip(request(t, http.MethodPut, sources["a reader that fails half way"]()))
		require.ErrorIs(t, err, errSource)
		require.Equal(t, 2, calls)
		require.Equal(t, retrip.Closed, caseStats(t, rt, "example.com").State)
	})
}

// B05 and B07: what is over the limit is sent once, whole, and handed back with a reason.
func TestB05ABodyThatCannotBeReplayedIsSentOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		method   string
		declared int64
		limit    int64
		hits     int
	}{
		{"a byte too long", http.MethodPut, -1, 4, 1},
		{"declared a byte too long", http.MethodPut, 5, 4, 1},
		{"with a key, a byte too long", http.MethodPost, -1, 4, 1},
		{"nothing may be kept", http.MethodPut, -1, 0, 1},
		{"as long as the limit", http.MethodPut, -1, 5, 2},
		{"declared as long as the limit", http.MethodPut, 5, 5, 2},
		{"with a key, as long as the limit", http.MethodPost, 5, 5, 2},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			var reason retrip.Reason
			base := play(answer(503))
			rt := retrip.New(base, retrip.WithMaxBody(tt.limit), retrip.WithMaxAttempts(2), caseReason(&reason))
			body := track("hello")
			req := request(t, tt.method, body)
			req.ContentLength = tt.declared
			resp, err := rt.RoundTrip(req)
			require.NoError(t, err)
			require.Equal(t, 503, resp.StatusCode)
			require.Equal(t, "x", finish(t, resp))
			require.Len(t, base.attempts(), tt.hits)
			for _, saw := range base.attempts() {
				require.Equal(t, "hello", saw.body)
			}
			require.Equal(t, map[int]retrip.Reason{1: retrip.ReasonBody, 2: retrip.ReasonAttempts}[tt.hits], reason)
			body.requireClosed(t)
		})
	}
}

// caseBytes is n bytes in which every position looks different from its neighbours.
func caseBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16)
	}
	return b
}

func TestB06ARefusalBeforeTheUploadLosesNoByte(t *testing.T) {
	t.Parallel()
	content := caseBytes(1 << 20)
	for name, body := range map[string]func() io.Reader{
		"with GetBody":    func() io.Reader { return bytes.NewReader(content) },
		"without GetBody": func() io.Reader { return io.NopCloser(io.MultiReader(bytes.NewReader(content))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var hits atomic.Int32
			got := make(chan []byte, 10)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if hits.Add(1) == 1 {
					w.WriteHeader(503)
					return
				}
				b, _ := io.ReadAll(r.Body)
				got <- b
			}))
			defer srv.Close()
			base := srv.Client().Transport.(*http.Transport)
			base.ExpectContinueTimeout = time.Minute // so that only the server decides
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, srv.URL, body())
			require.NoError(t, err)
			req.ContentLength = int64(len(content))
			req.Header.Set("Expect", "100-continue")
			require.Equal(t, 200, caseStatus(t, retrip.New(base, caseAtOnce), req))
			require.EqualValues(t, 2, hits.Load())
			require.True(t, bytes.Equal(content, <-got))
		})
	}
}

// A caseEndless reader has no end.
type caseEndless struct{}

func (caseEndless) Read(p []byte) (int, error) { return len(p), nil }

// Not parallel: it measures what the process allocates.
func TestB07AnUploadIsNotKeptInMemory(t *testing.T) {
	const size = 256 << 20
	for name, declared := range map[string]int64{"of unknown length": -1, "of a declared length": size} {
		t.Run(name, func(t *testing.T) {
			hits, sent := 0, int64(0)
			rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
				hits++
				n, err := io.Copy(io.Discard, req.Body)
				sent += n
				if err = errors.Join(err, req.Body.Close()); err != nil {
					return nil, err
				}
				return answer(503)(req)
			}), caseAtOnce)
			req := request(t, http.MethodPut, io.LimitReader(caseEndless{}, size))
			req.ContentLength = declared
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.Equal(t, 503, caseStatus(t, rt, req))
			runtime.ReadMemStats(&after)
			require.Equal(t, 1, hits)
			require.EqualValues(t, size, sent)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
		})
	}
}

func TestB08RedirectsKeepMethodAndBody(t *testing.T) {
	t.Parallel()
	for _, status := range []int{307, 308} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch} {
			// Each hop is a round trip of its own with its own key, unless the caller set one.
			for _, key := range []string{"", "mine"} {
				t.Run(fmt.Sprintf("%d %s key=%s", status, method, key), func(t *testing.T) {
					t.Parallel()
					type hit struct{ path, method, body, key string }
					hits := make(chan hit, 10)
					var count atomic.Int32
					srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						b, _ := io.ReadAll(r.Body)
						hits <- hit{r.URL.Path, r.Method, string(b), r.Header.Get(retrip.KeyHeader)}
						switch count.Add(1) {
						case 1:
							http.Redirect(w, r, "/b", status)
						case 2:
							w.WriteHeader(503)
						}
					}))
					defer srv.Close()
					client := &http.Client{Transport: retrip.New(srv.Client().Transport, caseAtOnce)}
					req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+"/a", strings.NewReader("hello"))
					require.NoError(t, err)
					if key != "" {
						req.Header.Set(retrip.KeyHeader, key)
					}
					resp, err := client.Do(req)
					require.NoError(t, err)
					finish(t, resp)
					require.Equal(t, 200, resp.StatusCode)
					require.Len(t, hits, 3)
					a, b1, b2 := <-hits, <-hits, <-hits
					require.Equal(t, hit{"/a", method, "hello", a.key}, a)
					require.Equal(t, hit{"/b", method, "hello", b1.key}, b1)
					require.Equal(t, b1, b2, "attempts of one hop are the same, key and all")
					switch {
					case key != "":
						require.Equal(t, []string{key, key}, []string{a.key, b1.key})
					case method == http.MethodPut:
						require.Equal(t, []string{"", ""}, []string{a.key, b1.key})
					default:
						require.NotEqual(t, a.key, b1.key)
					}
				})
			}
		}
	}
}

func TestB09ABodyWithoutGetBodyIsReplayed(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodPut, http.MethodPost, "QUERY"} {
		for _, length := range []int64{5, -1, 0} { // 0 with a body is unknown, too
			caseBubble(t, fmt.Sprint(method, " of length ", length), func(t *testing.T) {
				base := play(answer(503), answer(200))
				req := request(t, method, nil)
				body := track("hello")
				req.Body, req.GetBody, req.ContentLength = body, nil, length
				require.Equal(t, 200, caseStatus(t, retrip.New(base), req))
				require.Len(t, base.attempts(), 2)
				for _, saw := range base.attempts() {
					require.Equal(t, "hello", saw.body)
					require.Equal(t, length, saw.req.ContentLength)
				}
				body.requireClosed(t)
			})
		}
	}
}
