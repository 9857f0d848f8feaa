package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

var (
	noBreaker = retrip.WithBreaker(nil)
	atOnce    = retrip.WithBackoff(retrip.Constant(0))
	errDial   = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
)

// quota is DefaultQuota without reserve, with what change does to it.
func quota(change func(*retrip.Quota)) retrip.Option {
	q := retrip.DefaultQuota()
	q.Reserve = 0
	if change != nil {
		change(&q)
	}
	return retrip.WithRetryQuota(&q)
}

func tokensOf(t testing.TB, rt *retrip.Transport) float64 {
	t.Helper()
	return statsOf(t, rt, testHost).Tokens
}

// onGaveUp returns hooks that keep how the last request that failed ended.
func onGaveUp(to *retrip.GaveUpInfo) retrip.CallOption {
	return retrip.WithTrace(&retrip.Trace{GaveUp: func(i retrip.GaveUpInfo) { *to = i }})
}

// A calm is net/http's HTTP/2 stream error with the code ENHANCE_YOUR_CALM.
type calm struct{}

func (calm) Error() string { return "stream error" }

func (calm) As(target any) bool {
	v := reflect.ValueOf(target).Elem()
	if v.Kind() != reflect.Struct || v.NumField() != 3 || v.Type().Field(1).Name != "Code" {
		return false
	}
	v.Field(1).SetUint(0xb)
	return true
}

func TestABudgetEndsAtTheStartOfTheLastAttempt(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, tt := range []struct {
		name    string
		budget  time.Duration
		base    step
		backoff retrip.Backoff
		want    []time.Duration // pauses between the starts of the attempts
		reason  retrip.Reason
	}{
		{"none", 0, answer(503), retrip.Constant(0), nil, retrip.ReasonBudget},
		{"for one pause", 2 * s, answer(503), retrip.Constant(s), []time.Duration{s}, retrip.ReasonBudget},
		{"a pause that ends with it does not fit", s, answer(503), retrip.Constant(s), nil, retrip.ReasonBudget},
		{"one that ends just before does", s + 1, answer(503), retrip.Constant(s), []time.Duration{s}, retrip.ReasonBudget},
		{"attempts count", 3 * s, after(s, answer(503)), retrip.Constant(s), []time.Duration{2 * s}, retrip.ReasonBudget},
		{"the last attempt does not", s, after(time.Hour, answer(503)), retrip.Constant(0), nil, retrip.ReasonBudget},
		{"Retry-After is no exception", 60 * s, answer(503, "Retry-After", "60"), retrip.Constant(0), nil, retrip.ReasonBudget},
		{"jitter is trimmed to fit", 60*s + 1, answer(503, "Retry-After", "60"), retrip.Constant(0), []time.Duration{60 * s}, retrip.ReasonBudget},
		{"no limit", math.MaxInt64, after(time.Hour, answer(503)), retrip.Constant(time.Hour), []time.Duration{2 * time.Hour, 2 * time.Hour, 2 * time.Hour}, retrip.ReasonAttempts},
		{"a pause without end", math.MaxInt64, answer(503), retrip.Constant(math.MaxInt64), nil, retrip.ReasonBudget},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var gave retrip.GaveUpInfo
				base := play(tt.base)
				rt := retrip.New(base, noBreaker, retrip.WithBudget(tt.budget), retrip.WithBackoff(tt.backoff), onGaveUp(&gave))
				resp, err := rt.RoundTrip(request(t, http.MethodGet, nil))
				require.NoError(t, err)
				require.Equal(t, "x", finish(t, resp))
				require.Equal(t, tt.want, base.pauses())
				require.Equal(t, tt.reason, gave.Reason)
			})
		})
	}
}

func TestTheDefaultBudgetHasRoomForAPauseOfAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(429, "Retry-After", "60"))
		_, err := get(t, retrip.New(base), testHost)
		require.NoError(t, err)
		require.Len(t, base.attempts(), 2)
		require.GreaterOrEqual(t, base.pauses()[0], time.Minute)
		require.LessOrEqual(t, base.pauses()[0], 65*time.Second)
	})
}

func TestWhatRequestsEarnAndRetriesCost(t *testing.T) {
	t.Parallel()
	put := func(t *testing.T) *http.Request { return request(t, http.MethodPut, strings.NewReader("hello")) }
	post := func(t *testing.T) *http.Request { return request(t, http.MethodPost, strings.NewReader("hello")) }
	bare := func(t *testing.T) *http.Request {
		req := post(t)
		return req.WithContext(retrip.Override(req.Context(), retrip.WithIdempotencyKey(nil)))
	}
	// As an http.Transport that gets no connection.
	unsent := func(req *http.Request) (*http.Response, error) {
		if trace := httptrace.ContextClientTrace(req.Context()); trace != nil {
			trace.GetConn(testHost)
		}
		return nil, errDial
	}
	reset := fail(&net.OpError{Op: "read", Err: syscall.ECONNRESET})
	dial := fail(errDial)
	full := func(q *retrip.Quota) { q.Initial = q.Capacity }

	for _, tt := range []struct {
		name   string
		quota  func(*retrip.Quota)            // 10 of 20 tokens, 0.1 earned
		req    func(*testing.T) *http.Request // nil: a plain GET
		steps  []step                         // the last one repeats
		calls  int                            // 0: one
		want   float64                        // tokens
		served int                            // attempts
	}{
		{name: "a success at once earns", steps: []step{answer(200)}, want: 10.1, served: 1},
		{name: "ten earn exactly one", steps: []step{answer(200)}, calls: 10, want: 11, served: 10},
		{name: "a 404 is a success", steps: []step{answer(404)}, want: 10.1, served: 1},
		{name: "Earn is what a success earns", quota: func(q *retrip.Quota) { q.Earn = 0.7 }, steps: []step{answer(200)}, calls: 3, want: 12.1, served: 3},
		{name: "nothing is earned over Capacity", quota: func(q *retrip.Quota) { q.Initial = 19.95 }, steps: []step{answer(200)}, calls: 9, want: 20, served: 9},
		{name: "a 501 is an answer", steps: []step{answer(501)}, want: 10.1, served: 1},
		{name: "an error earns nothing", steps: []step{fail(errUnheardOf)}, want: 10, served: 1},
		{name: "each retry costs one", steps: []step{answer(500)}, want: 7, served: 4},
		{name: "until there are none", steps: []step{answer(503)}, calls: 4, want: 0, served: 14},
		{name: "part of a token is none", quota: func(q *retrip.Quota) { q.Initial = 1.9 }, steps: []step{answer(503)}, want: 0.9, served: 2},

		{name: "success after 500 gives one back", steps: []step{answer(500), answer(200)}, want: 10, served: 2},
		{name: "success after 502 gives one back", steps: []step{answer(502), answer(200)}, want: 10, served: 2},
		{name: "success after 504 gives one back", steps: []step{answer(504), answer(200)}, want: 10, served: 2},
		{name: "success after 408 gives one back", steps: []step{answer(408), answer(200)}, want: 10, served: 2},
		{name: "success after 425 gives one back", steps: []step{answer(425), answer(200)}, want: 10, served: 2},
		{name: "success after a reset gives one back", steps: []step{reset, answer(200)}, want: 10, served: 2},
		{name: "a 404 after a reset gives one back", steps: []step{reset, answer(404)}, want: 10, served: 2},
		{name: "success after 413 gives one back", steps: []step{answer(413, "Retry-After", "1"), answer(200)}, want: 10, served: 2},
		{name: "a 413 that is final is a success", steps: []step{answer(413)}, want: 10.1, served: 1},
		{name: "success after 429 gives none", steps: []step{answer(429), answer(200)}, want: 9, served: 2},
		{name: "success after 503 gives none", steps: []step{answer(503), answer(200)}, want: 9, served: 2},
		{name: "success after ENHANCE_YOUR_CALM gives none", steps: []step{fail(calm{}), answer(200)}, want: 9, served: 2},
		{name: "the last token only", steps: []step{answer(500), answer(500), answer(500), answer(200)}, want: 8, served: 4},
		{name: "by what the last retry was for", steps: []step{answer(503), answer(500), answer(200)}, want: 9, served: 3},
		{name: "whatever came before", steps: []step{answer(500), answer(503), answer(200)}, want: 8, served: 3},
		{name: "no token over Capacity", quota: full, steps: []step{answer(500), answer(200)}, want: 20, served: 2},
		{name: "once a request", steps: []step{answer(500), answer(409), answer(200)}, req: post, want: 9, served: 3},
		{name: "success on the reserve fills the bucket", quota: func(q *retrip.Quota) { q.Initial, q.Reserve = 0.5, 1 }, steps: []step{answer(500), answer(200)}, want: 1.5, served: 2},

		{name: "free after a failed dial", steps: []step{dial, answer(200)}, want: 10, served: 2},
		{name: "free with a body", steps: []step{dial, answer(200)}, req: put, want: 10, served: 2},
		{name: "free with a key", steps: []step{dial, answer(200)}, req: post, want: 10, served: 2},
		{name: "not if only the dial made it safe", steps: []step{unsent, answer(500)}, req: bare, want: 9, served: 2},
		{name: "free once", steps: []step{dial}, want: 8, served: 4},
		{name: "free once, not in a row", steps: []step{dial, answer(500), dial, answer(500)}, want: 8, served: 4},
		{name: "free later on", steps: []step{answer(503), dial, answer(200)}, want: 9, served: 3},
		{name: "free for each request", steps: []step{dial, answer(501), dial, answer(501)}, calls: 2, want: 10, served: 4},
		{name: "free without tokens", quota: func(q *retrip.Quota) { q.Initial = 0 }, steps: []step{dial}, want: 0, served: 2},
		{name: "a free retry mints no token", quota: func(q *retrip.Quota) { q.Initial = 0 }, steps: []step{dial, answer(200)}, want: 0, served: 2},
		{name: "one paid after it gives back its own", steps: []step{dial, dial, answer(200)}, want: 10, served: 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				base := play(tt.steps...)
				rt := retrip.New(base, noBreaker, atOnce, quota(tt.quota))
				for range max(1, tt.calls) {
					req := request(t, http.MethodGet, nil)
					if tt.req != nil {
						req = tt.req(t)
					}
					if resp, err := rt.RoundTrip(req); err == nil {
						finish(t, resp)
					}
				}
				require.Equal(t, tt.want, tokensOf(t, rt))
				require.Len(t, base.attempts(), tt.served)
			})
		})
	}
}

func TestAThrottleThatIsNotRepeatedEarnsNothing(t *testing.T) {
	t.Parallel()
	for _, status := range []int{408, 425, 429, 500, 503} {
		rt := retrip.New(play(answer(status)), once, noBreaker)
		_, err := get(t, rt, testHost)
		require.NoError(t, err)
		require.Equal(t, 10.0, tokensOf(t, rt), "status %d", status)
	}
}

func TestATokenIsTakenBeforeThePause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rt *retrip.Transport
		var before, during []float64
		rt = retrip.New(play(answer(500), answer(500), answer(200)), noBreaker, retrip.WithBackoff(retrip.Constant(time.Second)),
			retrip.WithTrace(&retrip.Trace{
				Attempted: func(retrip.AttemptedInfo) { before = append(before, tokensOf(t, rt)) },
				Pausing:   func(retrip.PausingInfo) { during = append(during, tokensOf(t, rt)) },
			}))
		_, err := get(t, rt, testHost)
		require.NoError(t, err)
		require.Equal(t, []float64{10, 9, 9}, before[:3])
		require.Equal(t, []float64{9, 8}, during)
	})
}

func TestTheReserveIsPacedAndNotSaved(t *testing.T) {
	t.Parallel()
	const s = time.Second
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(503))
		q := retrip.Quota{Capacity: 2, Reserve: 0.1}
		rt := retrip.New(base, noBreaker, atOnce, retrip.WithRetryQuota(&q))
		began := time.Now()
		for _, tt := range []struct {
			at      time.Duration
			retries int
		}{
			{0, 1}, {0, 0}, {10*s - 1, 0}, {10 * s, 1}, {15 * s, 0}, {20*s - 1, 0}, {25 * s, 1}, {35*s - 1, 0}, {35 * s, 1},
			{time.Hour, 1}, {time.Hour, 0}, {time.Hour + 10*s, 1},
		} {
			time.Sleep(tt.at - time.Since(began))
			had := len(base.attempts())
			get(t, rt, testHost)
			require.Equal(t, tt.retries, len(base.attempts())-had-1, "retries at %v", tt.at)
			require.Zero(t, tokensOf(t, rt))
		}
	})
}

func TestTheReserveIsForAnEmptyBucket(t *testing.T) {
	t.Parallel()
	base := play(answer(503))
	rt := retrip.New(base, noBreaker, atOnce, quota(func(q *retrip.Quota) { q.Initial, q.Reserve = 1.5, 0.001 }))
	get(t, rt, testHost)
	require.Len(t, base.attempts(), 3, "on a token, then on the reserve")
	require.Equal(t, 0.5, tokensOf(t, rt))
}

func TestARetryThatNeverReachesTheBaseGivesItsTokenBack(t *testing.T) {
	t.Parallel()
	type maker func(*testing.T, *retrip.Transport) *http.Request
	plain := func(t *testing.T, _ *retrip.Transport) *http.Request { return request(t, http.MethodGet, nil) }
	cancelled := func(t *testing.T, _ *retrip.Transport) *http.Request {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		return request(t, http.MethodPut, track("hello")).WithContext(ctx)
	}
	gone := func(t *testing.T, rt *retrip.Transport) *http.Request {
		ch := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(ch) })
		req := plain(t, rt)
		req.Cancel = ch //lint:ignore SA1019 callers and net/http use it
		return req
	}
	opened := func(t *testing.T, rt *retrip.Transport) *http.Request {
		time.AfterFunc(time.Second, func() { get(t, rt, testHost) })
		return plain(t, rt)
	}
	noReplay := func(t *testing.T, _ *retrip.Transport) *http.Request { return replayFails(t) }
	hooked := func(tr *retrip.Trace) maker {
		return func(t *testing.T, _ *retrip.Transport) *http.Request {
			req := request(t, http.MethodGet, nil)
			return req.WithContext(retrip.Override(req.Context(), retrip.WithTrace(tr)))
		}
	}
	badClose := func(req *http.Request) (*http.Response, error) {
		resp, err := answer(500)(req)
		resp.Body = closeFunc{resp.Body, func() { panic("boom") }}
		return resp, err
	}

	for _, tt := range []struct {
		name    string
		first   step // the first attempt; the second one fails
		req     maker
		backoff retrip.Backoff        // nil: a minute
		breaker func(*retrip.Breaker) // nil: none
		panic   any
	}{
		{name: "cancelled in the pause", first: answer(500), req: cancelled},
		{name: "cancelled in the pause after an error", first: fail(io.EOF), req: cancelled},
		{name: "cancelled by Request.Cancel", first: answer(500), req: gone},
		{name: "body not to be had again", first: answer(500), req: noReplay},
		{name: "refused after the pause", first: answer(500), req: opened,
			breaker: func(b *retrip.Breaker) { b.Failures, b.Cooldowns = 2, []time.Duration{time.Hour} }},
		{name: "panic while pausing", first: answer(500), panic: "boom",
			req: hooked(&retrip.Trace{Pausing: func(retrip.PausingInfo) { panic("boom") }})},
		{name: "panic after the first attempt", first: answer(500), panic: "boom",
			req: hooked(&retrip.Trace{Attempted: func(retrip.AttemptedInfo) { panic("boom") }})},
		{name: "panic before the second attempt", first: answer(500), panic: "boom",
			req: hooked(&retrip.Trace{BreakerMoved: func(i retrip.BreakerMovedInfo) {
				if i.To == retrip.HalfOpen {
					panic("boom")
				}
			}}),
			breaker: func(b *retrip.Breaker) { b.Cooldowns = []time.Duration{time.Minute} }},
		{name: "panic of the backoff", first: answer(500), panic: "boom", req: plain,
			backoff: func(int, time.Duration) time.Duration { panic("boom") }},
		{name: "panic of the response's body", first: badClose, panic: "boom", req: plain},
	} {
		for _, reserve := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reserve %v", tt.name, reserve), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					q := retrip.Quota{Capacity: 5, Initial: 5, Reserve: 0.0001}
					if reserve {
						q.Initial = 0
					}
					opts := []retrip.Option{noBreaker, retrip.WithRetryQuota(&q), retrip.WithBackoff(retrip.Constant(time.Minute))}
					if tt.backoff != nil {
						opts = append(opts, retrip.WithBackoff(tt.backoff))
					}
					if tt.breaker != nil {
						opts = append(opts, brittle(tt.breaker))
					}
					base := play(tt.first, answer(500))
					rt := retrip.New(base, opts...)
					tr := start(rt, tt.req(t, rt))
					time.Sleep(time.Minute)
					synctest.Wait()
					require.True(t, tr.over.Load())
					require.Equal(t, tt.panic, tr.panicked)
					require.Nil(t, tr.resp)
					require.Equal(t, q.Initial, tokensOf(t, rt))
					if !reserve || tt.breaker != nil {
						return
					}
					for _, retries := range []int{1, 0} { // the reserve's is there again, once
						had := len(base.attempts())
						req := request(t, http.MethodGet, nil)
						_, err := rt.RoundTrip(req.WithContext(retrip.Override(req.Context(), atOnce)))
						require.NoError(t, err)
						require.Equal(t, retries, len(base.attempts())-had-1)
					}
				})
			})
		}
	}
}

func TestARetryThatReachesTheBaseKeepsItsToken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		step step
	}{
		{"panic", panics}, {"cancelled", hang}, {"local fault", fail(errors.New("net/http: invalid method"))}, {"unknown error", fail(errUnheardOf)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := retrip.New(play(answer(500), tt.step), noBreaker, atOnce)
				ctx, cancel := context.WithCancel(t.Context())
				tr := start(rt, request(t, http.MethodGet, nil).WithContext(ctx))
				cancel()
				synctest.Wait()
				require.True(t, tr.over.Load())
				require.Nil(t, tr.resp)
				require.Equal(t, 9.0, tokensOf(t, rt))
			})
		})
	}
}

func TestARetryThatCannotHappenCostsNothing(t *testing.T) {
	t.Parallel()
	minute := retrip.WithBackoff(retrip.Constant(time.Minute))
	short := func(t *testing.T) *http.Request {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		t.Cleanup(cancel)
		return request(t, http.MethodGet, nil).WithContext(ctx)
	}
	bare := func(t *testing.T) *http.Request { return request(t, http.MethodPost, nil) }
	long := func(t *testing.T) *http.Request { return request(t, http.MethodPut, track("longer than kept")) }
	for _, tt := range []struct {
		name string
		want retrip.Reason
		req  func(*testing.T) *http.Request // nil: a plain GET
		opts []retrip.Option
	}{
		{"attempts", retrip.ReasonAttempts, nil, []retrip.Option{once}},
		{"budget", retrip.ReasonBudget, nil, []retrip.Option{minute, retrip.WithBudget(time.Minute)}},
		{"deadline", retrip.ReasonDeadline, short, []retrip.Option{minute}},
		{"breaker", retrip.ReasonBreaker, nil, []retrip.Option{brittle(nil)}},
		{"unsafe", retrip.ReasonUnsafe, bare, []retrip.Option{retrip.WithIdempotencyKey(nil)}},
		{"body", retrip.ReasonBody, long, []retrip.Option{retrip.WithMaxBody(4)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var gave retrip.GaveUpInfo
				base := play(answer(500))
				rt := retrip.New(base, append(tt.opts, onGaveUp(&gave))...)
				req := request(t, http.MethodGet, nil)
				if tt.req != nil {
					req = tt.req(t)
				}
				began := time.Now()
				resp, err := rt.RoundTrip(req)
				require.NoError(t, err)
				require.Equal(t, "x", finish(t, resp))
				require.Zero(t, time.Since(began))
				require.Equal(t, tt.want, gave.Reason)
				require.Equal(t, 10.0, tokensOf(t, rt))
				require.Len(t, base.attempts(), 1)
			})
		})
	}
}

// Case B48.
func TestAnEmptyQuotaHandsTheOutcomeBackUnchanged(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		step step
		err  error
	}{{"response", answer(503, "Retry-After", "1"), nil}, {"error", fail(io.EOF), io.EOF}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var gave retrip.GaveUpInfo
				var want *http.Response
				base := play(func(req *http.Request) (*http.Response, error) {
					resp, err := tt.step(req)
					want = resp
					return resp, err
				})
				rt := retrip.New(base, noBreaker, retrip.WithRetryQuota(&retrip.Quota{}), onGaveUp(&gave))
				req := request(t, http.MethodGet, nil)
				began := time.Now()
				resp, err := rt.RoundTrip(req)
				require.Equal(t, tt.err, err)
				require.Same(t, want, resp)
				require.Zero(t, time.Since(began))
				require.Equal(t, retrip.ReasonQuota, gave.Reason)
				require.Equal(t, tt.err, gave.Err)
				require.Same(t, want, gave.Attempt.Response)
				require.Equal(t, 1, gave.Attempt.Number)
				require.Len(t, base.attempts(), 1)
				if resp != nil {
					require.Same(t, req, resp.Request)
					require.Equal(t, "x", finish(t, resp))
				}
			})
		})
	}
}

func TestWithoutAQuotaRetriesAreNotLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(503))
		rt := retrip.New(base, noBreaker, atOnce, retrip.WithRetryQuota(nil))
		for range 100 {
			get(t, rt, testHost)
		}
		require.Len(t, base.attempts(), 400)
		require.Zero(t, tokensOf(t, rt))
	})
}

// Case B44.
func TestEachHostHasItsOwnQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		attempts := map[string]int{}
		rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
			attempts[req.URL.Host]++
			return answer(503)(req)
		}), noBreaker, atOnce, quota(nil))
		for range 20 {
			get(t, rt, "a.example")
		}
		require.Equal(t, 20+10, attempts["a.example"])
		get(t, rt, "b.example")
		require.Equal(t, 4, attempts["b.example"])
		require.Equal(t, 7.0, statsOf(t, rt, "b.example").Tokens)
	})
}

// Case B43.
func TestAQuotaRecoversAfterSuccesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(503))
		rt := retrip.New(base, noBreaker, atOnce, quota(nil))
		for range 10 {
			get(t, rt, testHost)
		}
		require.Zero(t, tokensOf(t, rt))
		base.steps = []step{answer(200)}
		for range 250 {
			get(t, rt, testHost)
		}
		require.Equal(t, 20.0, tokensOf(t, rt), "full, and not over")
		had := len(base.attempts())
		base.steps = append(slices.Repeat([]step{answer(503)}, had+1), answer(200))
		status, err := get(t, rt, testHost)
		require.NoError(t, err)
		require.Equal(t, 200, status)
		require.Len(t, base.attempts(), had+2)
		require.Equal(t, 19.0, tokensOf(t, rt))
	})
}

func TestATokenOfAForgottenHostDoesNotGoToItsSuccessor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		req  func(*testing.T) *http.Request
		err  error
	}{
		{"given back", replayFails, errUnheardOf},
		{"for a success", func(t *testing.T) *http.Request { return request(t, http.MethodGet, nil) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := retrip.New(play(answer(500), answer(200)), noBreaker, retrip.WithHosts(1, nil),
					retrip.WithBackoff(retrip.Constant(time.Minute)))
				tr := start(rt, tt.req(t))
				time.Sleep(time.Second)
				get(t, rt, "b.example") // the other one is forgotten
				time.Sleep(time.Minute)
				synctest.Wait()
				require.True(t, tr.over.Load())
				require.Equal(t, tt.err, tr.err)
				require.Equal(t, 5.0, tokensOf(t, rt), "half of Initial")
			})
		})
	}
}

func TestAQuotaIsCopiedWhenItIsSet(t *testing.T) {
	t.Parallel()
	q := retrip.Quota{Capacity: 3, Initial: 2}
	rt := retrip.New(play(answer(200)), retrip.WithRetryQuota(&q))
	q.Initial = 3
	_, err := get(t, rt, testHost)
	require.NoError(t, err)
	require.Equal(t, 2.0, tokensOf(t, rt))
}

func TestBudgetOptionsRefuseWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	requirePanicNames(t, "WithBudget", "negative", func() { retrip.WithBudget(-1) })
	for name, q := range map[string]retrip.Quota{
		"negative Capacity":     {Capacity: -1},
		"negative Initial":      {Initial: -1},
		"negative Earn":         {Earn: -0.1},
		"negative Reserve":      {Reserve: -0.1},
		"Earn not a number":     {Earn: math.NaN()},
		"infinite Reserve":      {Reserve: math.Inf(1)},
		"over a million":        {Capacity: 1_000_001},
		"Initial over Capacity": {Capacity: 1, Initial: 2},
	} {
		requirePanicNames(t, "WithRetryQuota", name, func() { retrip.WithRetryQuota(&q) })
	}
	for _, q := range []retrip.Quota{{}, {Capacity: 1e6, Initial: 1e6, Earn: 1e6, Reserve: 1e6}, {Reserve: math.SmallestNonzeroFloat64}} {
		require.NotPanics(t, func() { retrip.WithRetryQuota(&q) })
	}
}

// With retries at once and one token a retry, back on success, the quota must come
// out at the figures of its design: for many clients of 1,000 requests at 10 a
// second, each attempt failing with probability f.
func TestTheQuotaKeepsItsFiguresOfSuccessAndLoad(t *testing.T) {
	t.Parallel()
	const clients, requests = 20, 1000
	for _, tt := range []struct{ f, success, load float64 }{
		{0.05, 1, 1.052}, {0.1, 0.9999, 1.111}, {0.2, 0.9983, 1.250}, {0.5, 0.5681, 1.139},
	} {
		t.Run(fmt.Sprintf("f=%v", tt.f), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, 2))
				attempts, successes := 0, 0
				bad, good := &http.Response{StatusCode: 500}, &http.Response{StatusCode: 200}
				base := roundTrip(func(*http.Request) (*http.Response, error) {
					attempts++
					resp := *good
					if r.Float64() < tt.f {
						resp = *bad
					}
					return &resp, nil
				})
				req := request(t, http.MethodGet, nil)
				for range clients {
					rt := retrip.New(base, noBreaker, atOnce)
					for range requests {
						time.Sleep(100 * time.Millisecond)
						resp, err := rt.RoundTrip(req)
						require.NoError(t, err)
						if resp.StatusCode == 200 {
							successes++
						}
					}
				}
				const n = clients * requests
				require.InDelta(t, tt.success, float64(successes)/n, 0.02)
				require.InDelta(t, tt.load, float64(attempts)/n, 0.02)
			})
		})
	}
}

// A quotaModel is one host's quota as the documentation tells it, in thousandths of
// a token.
type quotaModel struct {
	capacity, level, earn int
	every                 time.Duration // between two retries on the reserve; 0: none
	reserve               time.Time     // when it has a token
}

func (m *quotaModel) add(n int) { m.level = min(m.capacity, m.level+n) }

// pay returns what undoes the payment, or nil if there is no token.
func (m *quotaModel) pay() (back func()) {
	switch {
	case m.level >= 1000:
		m.level -= 1000
		return func() { m.add(1000) }
	case m.every > 0 && !time.Now().Before(m.reserve):
		m.reserve = time.Now().Add(m.every)
		return func() {
			if now := time.Now(); now.Before(m.reserve) {
				m.reserve = now
			}
		}
	}
	return nil
}

// A customer is one request of the model test, and what the model says of it.
type customer struct {
	*trip
	gave   atomic.Uint32 // the reason
	cancel context.CancelFunc
	broken bool // its GetBody fails
	pause  time.Duration

	number  int    // of the attempt under way, or the last one
	back    func() // undoes the last payment; nil: the retry was free, or none
	refunds bool   // the failure that the last retry is for was transient
	free    bool   // the free retry was used
	until   time.Time
	over    bool
	reason  retrip.Reason // why it was given up; 0: it was not
}

func (c *customer) end(reason retrip.Reason) { c.over, c.reason = true, reason }

// pausing reports whether a retry was decided that has not begun.
func (c *customer) pausing() bool { return !c.over && !c.until.IsZero() }

// answered tells the model what became of an attempt.
func (c *customer) answered(m *quotaModel, kind string) {
	switch kind {
	case "success":
		switch {
		case c.number == 1:
			m.add(m.earn)
		case c.back != nil && c.refunds:
			m.add(1000)
		}
		c.end(0)
		return
	case "final":
		c.end(retrip.ReasonPolicy)
		return
	case "panic":
		c.end(0)
		return
	}
	c.back, c.refunds = nil, kind != "throttle"
	switch {
	case c.number == 3:
		c.end(retrip.ReasonAttempts)
		return
	case kind == "dial" && !c.free:
		c.free = true
	default:
		if c.back = m.pay(); c.back == nil {
			c.end(retrip.ReasonQuota)
			return
		}
	}
	c.until = time.Now().Add(c.pause)
}

// retried tells the model that the pause is over.
func (c *customer) retried() {
	c.until = time.Time{}
	if c.broken {
		c.giveUp(retrip.ReasonBody)
	} else {
		c.number++
	}
}

// giveUp ends a request whose retry does not reach the base.
func (c *customer) giveUp(reason retrip.Reason) {
	if c.back != nil {
		c.back()
	}
	c.end(reason)
}

// A market drives a Transport and a quotaModel with the same random events.
type market struct {
	*rand.Rand
	model *quotaModel
	base  *gate
	rt    *retrip.Transport
	log   []string
	all   []*customer
}

func (m *market) begin(t *testing.T) {
	c := &customer{number: 1, broken: m.IntN(6) == 0, pause: time.Duration(m.IntN(4)) * time.Second}
	m.log = append(m.log, fmt.Sprintf("request %d begins, pause %v, broken %v", len(m.all), c.pause, c.broken))
	req := request(t, http.MethodPut, strings.NewReader("hello"))
	if c.broken {
		req = replayFails(t)
	}
	ctx := retrip.Override(req.Context(), retrip.WithBackoff(retrip.Constant(c.pause)), retrip.WithTrace(&retrip.Trace{
		GaveUp: func(i retrip.GaveUpInfo) { c.gave.Store(uint32(i.Reason)) },
	}))
	ctx, c.cancel = context.WithCancel(context.WithValue(ctx, c, true))
	c.trip = start(m.rt, req.WithContext(ctx))
	m.all = append(m.all, c)
}

// end ends the attempt under way of a request.
func (m *market) end(i int) {
	c := m.all[i]
	kind := pick(m.Rand, "success", "success", "failure", "failure", "throttle", "dial", "final", "panic")
	m.log = append(m.log, fmt.Sprintf("request %d: attempt %d ends in %s", i, c.number, kind))
	m.base.let(m.base.last(c), map[string]func() step{
		"success":  func() step { return pick(m.Rand, answer(200), answer(404), answer(501)) },
		"failure":  func() step { return pick(m.Rand, answer(500), answer(504), fail(io.EOF)) },
		"throttle": func() step { return pick(m.Rand, answer(429), answer(503), fail(calm{})) },
		"dial":     func() step { return fail(errDial) },
		"final":    func() step { return fail(errUnheardOf) },
		"panic":    func() step { return panics },
	}[kind]())
	if c.answered(m.model, kind); c.pausing() && c.pause == 0 {
		c.retried()
	}
}

// cancel cancels a request in its pause.
func (m *market) cancel(i int) {
	m.log = append(m.log, fmt.Sprintf("request %d is cancelled in its pause", i))
	m.all[i].cancel()
	synctest.Wait()
	m.all[i].giveUp(retrip.ReasonCancelled)
}

// wait lets a second pass, in which the pauses of some requests end.
func (m *market) wait() {
	m.log = append(m.log, "a second passes")
	time.Sleep(time.Second)
	synctest.Wait()
	for _, c := range m.all {
		if c.pausing() && !time.Now().Before(c.until) {
			c.retried()
		}
	}
}

// check reports the first difference between the Transport and the model.
func (m *market) check(t *testing.T) string {
	if got, want := tokensOf(t, m.rt), float64(m.model.level)/1000; got != want {
		return fmt.Sprintf("%v tokens, want %v", got, want)
	}
	running := 0
	for i, c := range m.all {
		over, reason := c.trip.over.Load(), retrip.Reason(c.gave.Load())
		if over != c.over || reason != c.reason {
			return fmt.Sprintf("request %d: over %v, reason %v; want %v, %v", i, over, reason, c.over, c.reason)
		}
		running += c.number
	}
	if got := m.base.len(); got != running {
		return fmt.Sprintf("%d attempts, want %d", got, running)
	}
	return ""
}

func TestTheQuotaAgreesWithItsModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	reasons := map[retrip.Reason]int{}
	synctest.Test(t, func(t *testing.T) {
		for run := range uint64(500) {
			m := &market{Rand: rand.New(rand.NewPCG(seed, run)), base: newGate(t)}
			q := retrip.Quota{
				Capacity: pick(m.Rand, 1, 2.5, 4), Initial: pick(m.Rand, 0, 0.5, 1), Earn: pick(m.Rand, 0, 0.1, 0.7), Reserve: pick(m.Rand, 0, 0.2, 0.5),
			}
			m.model = &quotaModel{capacity: int(q.Capacity * 1000), level: int(q.Initial * 1000), earn: int(math.Round(q.Earn * 1000))}
			if q.Reserve > 0 {
				m.model.every = map[float64]time.Duration{0.2: 5 * time.Second, 0.5: 2 * time.Second}[q.Reserve]
			}
			m.rt = retrip.New(m.base, noBreaker, retrip.WithRetryQuota(&q), retrip.WithMaxAttempts(3))
			for event := 0; ; event++ {
				var inBase, inPause []int
				for i, c := range m.all {
					switch {
					case c.pausing():
						inPause = append(inPause, i)
					case !c.over:
						inBase = append(inBase, i)
					}
				}
				if event >= 50 && len(inBase)+len(inPause) == 0 {
					break
				}
				switch n := m.IntN(10); {
				case event == 0 || event < 50 && n < 4:
					m.begin(t)
				case n < 8 && len(inBase) > 0:
					m.end(pick(m.Rand, inBase...))
				case n == 8 && len(inPause) > 0:
					m.cancel(pick(m.Rand, inPause...))
				default:
					m.wait()
				}
				if fault := m.check(t); fault != "" {
					require.Fail(t, "the quota and its model disagree", "seed %d, run %d, quota %+v\n%s\n%s",
						seed, run, q, strings.Join(m.log, "\n"), fault)
				}
			}
			for _, c := range m.all {
				c.cancel()
				reasons[c.reason]++
			}
		}
	})
	for _, reason := range []retrip.Reason{0, retrip.ReasonAttempts, retrip.ReasonQuota, retrip.ReasonCancelled, retrip.ReasonBody} {
		require.Positive(t, reasons[reason], "%v", reason)
	}
}
