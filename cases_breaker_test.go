package retrip_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// caseOpened returns a Transport whose breaker was opened by one failure and may
// be probed now. Its base answers with status 500 once, then plays the steps.
func caseOpened(t *testing.T, b *retrip.Breaker, steps []step, opts ...retrip.Option) (*retrip.Transport, *script) {
	t.Helper()
	base := play(append([]step{answer(500)}, steps...)...)
	rt := retrip.New(base, append([]retrip.Option{retrip.WithBreaker(b)}, opts...)...)
	require.Equal(t, 500, caseStatus(t, rt, request(t, http.MethodGet, nil)))
	require.Equal(t, retrip.Open, caseStats(t, rt, "example.com").State)
	require.Len(t, base.attempts(), 1)
	time.Sleep(30 * time.Second)
	return rt, base
}

// caseRefused fails unless the breaker refuses a request at once.
func caseRefused(t *testing.T, rt *retrip.Transport) {
	t.Helper()
	start := time.Now()
	body := track("hello")
	_, err := rt.RoundTrip(request(t, http.MethodPut, body))
	require.ErrorAs(t, err, new(*retrip.OpenError))
	require.Zero(t, time.Since(start))
	body.requireClosed(t)
}

func TestB34APanicGivesTheProbesSlotBack(t *testing.T) {
	t.Parallel()
	boom := func(*http.Request) (*http.Response, error) { panic("boom") }
	leave := func(*http.Request) (*http.Response, error) { runtime.Goexit(); return nil, nil }
	for _, tt := range []struct {
		name string
		got  any
		step step
		opt  func(trip func()) retrip.Option
	}{
		{"of the base", "boom", boom, nil},
		{"that is an exit of the goroutine", nil, leave, nil},
		{"of the policy", "boom", answer(200), func(trip func()) retrip.Option {
			return retrip.WithPolicy(func(a retrip.Attempt) bool { trip(); return retrip.DefaultPolicy(a) })
		}},
		{"of a hook for attempts", "boom", answer(200), func(trip func()) retrip.Option {
			return retrip.WithTrace(&retrip.Trace{Attempted: func(retrip.AttemptedInfo) { trip() }})
		}},
		{"of a hook for the breaker", "boom", answer(200), func(trip func()) retrip.Option {
			return retrip.WithTrace(&retrip.Trace{BreakerMoved: func(retrip.BreakerMovedInfo) { trip() }})
		}},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			armed := false
			var opts []retrip.Option
			if tt.opt != nil {
				opts = append(opts, tt.opt(func() {
					if armed {
						panic("boom")
					}
				}))
			}
			rt, _ := caseOpened(t, caseBreaker(1), []step{tt.step, answer(200)}, opts...)
			body := track("hello")
			req := request(t, http.MethodPut, body)
			armed = true
			var got any
			var wg sync.WaitGroup
			wg.Go(func() {
				defer func() { got = recover() }()
				_, _ = rt.RoundTrip(req)
			})
			wg.Wait()
			armed = false
			require.Equal(t, tt.got, got)
			body.requireClosed(t)
			require.Equal(t, 200, caseStatus(t, rt, request(t, http.MethodGet, nil)))
			require.Equal(t, retrip.Closed, caseStats(t, rt, "example.com").State)
		})
	}
}

func TestB35EveryEndOfAProbeFreesItsSlot(t *testing.T) {
	t.Parallel()
	local := func() io.Reader { return iotest.ErrReader(errors.New("the source failed")) }
	for _, tt := range []struct {
		name  string
		step  step
		body  func() io.Reader
		state retrip.State
	}{
		{"404", answer(404), nil, retrip.Closed},
		{"400", answer(400), nil, retrip.Closed},
		{"401", answer(401), nil, retrip.Closed},
		{"304", answer(304), nil, retrip.Closed},
		{"429", answer(429), nil, retrip.Closed},
		{"501, which says that it works", answer(501), nil, retrip.Closed},
		{"a cancellation", hang, nil, retrip.HalfOpen},
		{"a body that fails", answer(200), local, retrip.HalfOpen},
		{"a request that cannot be sent", fail(errors.New("net/http: invalid header field name")), nil, retrip.HalfOpen},
		{"a refusal by a breaker below", fail(&retrip.OpenError{Host: "example.com"}), nil, retrip.HalfOpen},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			rt, base := caseOpened(t, caseBreaker(1), []step{tt.step, answer(200)})
			ctx, cancel := context.WithCancel(t.Context())
			defer time.AfterFunc(time.Millisecond, cancel).Stop()
			var body io.Reader
			if tt.body != nil {
				body = tt.body()
			}
			if resp, err := rt.RoundTrip(request(t, http.MethodPut, body).WithContext(ctx)); err == nil {
				finish(t, resp)
			}
			require.Len(t, base.attempts(), 2, "a probe is its request's last attempt")
			require.Equal(t, tt.state, caseStats(t, rt, "example.com").State)
			require.Equal(t, 200, caseStatus(t, rt, request(t, http.MethodGet, nil)))
			require.Equal(t, retrip.Closed, caseStats(t, rt, "example.com").State)
			cancel()
		})
	}
}

func TestB36CallersWhoLeaveDoNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	slow := after(time.Minute, answer(200))
	within := func(d time.Duration) func(context.Context) (context.Context, context.CancelFunc) {
		return func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, d) }
	}
	for _, tt := range []struct {
		name  string
		limit func(context.Context) (context.Context, context.CancelFunc)
		opts  []retrip.Option
		state retrip.State
		hits  int
	}{
		{"cancelled by the caller", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(5*time.Second, cancel)
			return ctx, cancel
		}, nil, retrip.Closed, 20},
		{"cut off by an impatient deadline", within(time.Second - 1), nil, retrip.Closed, 20},
		// Without this a host that hangs would never open it.
		{"cut off by a patient deadline", within(time.Second), nil, retrip.Open, 5},
		{"cut off by the attempt timeout", within(time.Hour), []retrip.Option{retrip.WithAttemptTimeout(5 * time.Millisecond)}, retrip.Open, 5},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			base := play(append(slices.Repeat([]step{slow}, 20), answer(200))...)
			rt := retrip.New(base, append(tt.opts, retrip.WithBreaker(caseBreaker(5)), retrip.WithMaxAttempts(1))...)
			for range 20 {
				ctx, cancel := tt.limit(t.Context())
				_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
				require.Error(t, err)
				cancel()
			}
			require.Equal(t, tt.state, caseStats(t, rt, "example.com").State)
			require.Len(t, base.attempts(), tt.hits)
			if tt.state == retrip.Closed {
				require.Equal(t, 200, caseStatus(t, rt, request(t, http.MethodGet, nil)))
			}
		})
	}
}

func TestB37HalfOpenAdmitsOnlyItsProbes(t *testing.T) {
	t.Parallel()
	for _, probes := range []int{1, 3} {
		caseBubble(t, fmt.Sprint("probes=", probes), func(t *testing.T) {
			breaker := caseBreaker(1)
			breaker.Probes, breaker.Successes = probes, probes
			release := make(chan struct{})
			rt, base := caseOpened(t, breaker, []step{func(req *http.Request) (*http.Response, error) {
				<-release
				return answer(200)(req)
			}})
			var wg sync.WaitGroup
			var good, refused atomic.Int32
			start := time.Now()
			bodies := make([]*trackedBody, 100)
			for i := range bodies {
				bodies[i] = track("hello")
				req := request(t, http.MethodPut, bodies[i])
				wg.Go(func() {
					resp, err := rt.RoundTrip(req)
					if _, open := errors.AsType[*retrip.OpenError](err); open && time.Since(start) == 0 {
						refused.Add(1)
					} else if err == nil && resp.Body.Close() == nil {
						good.Add(1)
					}
				})
			}
			synctest.Wait()
			require.EqualValues(t, 100-probes, refused.Load())
			require.Len(t, base.attempts(), 1+probes)
			time.Sleep(time.Second)
			close(release)
			wg.Wait()
			require.EqualValues(t, probes, good.Load())
			require.Equal(t, retrip.Closed, caseStats(t, rt, "example.com").State)
			require.Equal(t, 200, caseStatus(t, rt, request(t, http.MethodGet, nil)))
			for _, body := range bodies {
				body.requireClosed(t)
			}
		})
	}
}

func TestB38AHookMayUseTheTransport(t *testing.T) {
	t.Parallel()
	type move struct{ from, to retrip.State }
	for _, panics := range []bool{false, true} {
		caseBubble(t, fmt.Sprintf("panics=%v", panics), func(t *testing.T) {
			var rt *retrip.Transport
			var moves []move
			var seen []retrip.State
			base := play(fail(caseReset), answer(200))
			rt = retrip.New(base, retrip.WithBreaker(caseBreaker(1)), retrip.WithMaxAttempts(1), retrip.WithTrace(&retrip.Trace{
				BreakerMoved: func(i retrip.BreakerMovedInfo) {
					moves = append(moves, move{i.From, i.To})
					seen = append(seen, caseStats(t, rt, i.Host).State)
					if i.To == retrip.Open {
						caseRefused(t, rt)
						if panics {
							panic("hook")
						}
					}
				},
			}))
			first := func() { _, _ = rt.RoundTrip(request(t, http.MethodGet, nil)) }
			if panics {
				require.PanicsWithValue(t, "hook", first)
			} else {
				first()
			}
			require.Equal(t, []move{{retrip.Closed, retrip.Open}}, moves)
			caseRefused(t, rt)
			time.Sleep(30 * time.Second)
			require.Equal(t, 200, caseStatus(t, rt, request(t, http.MethodGet, nil)))
			require.Equal(t, []move{{retrip.Closed, retrip.Open}, {retrip.Open, retrip.HalfOpen}, {retrip.HalfOpen, retrip.Closed}}, moves)
			require.Equal(t, []retrip.State{retrip.Open, retrip.HalfOpen, retrip.Closed}, seen)
		})
	}
}

// A goroutine or a wait that was left behind would end the bubble in a deadlock.
func TestB39TheTableOfHostsIsBounded(t *testing.T) {
	t.Parallel()
	for name, mix := range map[string]func(i int) step{
		"all are well":     func(int) step { return answer(200) },
		"every other":      func(i int) step { return []step{answer(200), answer(500)}[i%2] },
		"every one is bad": func(int) step { return answer(500) },
	} {
		caseBubble(t, name, func(t *testing.T) {
			n := 0
			rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) { return mix(n)(req) }),
				retrip.WithHosts(100, nil), retrip.WithMaxAttempts(1), retrip.WithBreaker(caseBreaker(1)))
			req := request(t, http.MethodGet, nil)
			for n = range 10_000 {
				req.URL.Host = fmt.Sprintf("h%d.example", n)
				_, err := rt.RoundTrip(req)
				require.NoError(t, err)
				if n%499 == 0 || n > 9_990 {
					count := 0
					for range rt.Hosts() {
						count++
					}
					require.Equal(t, min(n+1, 100), count)
				}
			}
		})
	}
}

func TestB40AFailedProbeOpensTheBreakerAgain(t *testing.T) {
	t.Parallel()
	for name, trial := range map[string][]step{
		"the first":  {answer(503)},
		"the second": {answer(200), answer(503)},
		"by a reset": {answer(200), answer(200), fail(caseReset)},
	} {
		caseBubble(t, name, func(t *testing.T) {
			breaker := caseBreaker(1)
			breaker.Successes = 3
			rt, base := caseOpened(t, breaker, append(trial, answer(200)), retrip.WithMaxAttempts(1))
			for range trial {
				if resp, err := rt.RoundTrip(request(t, http.MethodGet, nil)); err == nil {
					finish(t, resp)
				}
			}
			stats := caseStats(t, rt, "example.com")
			require.Equal(t, retrip.Open, stats.State)
			require.Equal(t, time.Now().Add(time.Minute), stats.Until, "for the next of the cool-downs")
			for range 3 {
				caseRefused(t, rt)
			}
			time.Sleep(time.Minute - 1)
			caseRefused(t, rt)
			require.Len(t, base.attempts(), 1+len(trial))
			time.Sleep(time.Nanosecond)
			for range 3 {
				require.NotEqual(t, retrip.Closed, caseStats(t, rt, "example.com").State)
				require.Equal(t, 200, caseStatus(t, rt, request(t, http.MethodGet, nil)))
			}
			require.Equal(t, retrip.Closed, caseStats(t, rt, "example.com").State)
		})
	}
}

// The breaker counts attempts, not requests.
func TestB41FailuresAreCountedByTheAttempt(t *testing.T) {
	t.Parallel()
	caseBubble(t, "a request that opens it stops at once, with its response", func(t *testing.T) {
		var reason retrip.Reason
		base := play(answer(503))
		rt := retrip.New(base, caseAtOnce, retrip.WithBreaker(caseBreaker(5)), caseReason(&reason))
		require.Equal(t, 503, caseStatus(t, rt, request(t, http.MethodGet, nil)))
		require.Len(t, base.attempts(), 4)
		require.Equal(t, retrip.ReasonAttempts, reason)
		require.Equal(t, 503, caseStatus(t, rt, request(t, http.MethodGet, nil)))
		require.Len(t, base.attempts(), 5)
		require.Equal(t, retrip.ReasonBreaker, reason)
		caseRefused(t, rt)
	})
	caseBubble(t, "a request that it opens under stops after its pause, with an error", func(t *testing.T) {
		base := play(answer(503))
		rt := retrip.New(base, retrip.WithBackoff(retrip.Constant(10*time.Second)), retrip.WithBreaker(caseBreaker(2)))
		once := retrip.Override(t.Context(), retrip.WithMaxAttempts(1))
		time.AfterFunc(5*time.Second, func() { _, _ = rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(once)) })
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
		failed, ok := errors.AsType[*retrip.Error](err)
		require.True(t, ok)
		require.Equal(t, retrip.ReasonBreaker, failed.Reason)
		require.ErrorAs(t, err, new(*retrip.OpenError))
		require.Len(t, failed.Attempts, 1)
		require.Equal(t, 503, failed.Attempts[0].Status)
		require.Equal(t, 10*time.Second, failed.Elapsed)
		require.Len(t, base.attempts(), 2)
	})
}

func TestB42ABadHostDoesNotSlowTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
			if req.URL.Host == "a.example" {
				return hang(req)
			}
			return answer(200)(req)
		}), retrip.WithAttemptTimeout(10*time.Second))
		var wg sync.WaitGroup
		for range 200 {
			req := caseTo(t, "http://a.example/")
			wg.Go(func() { _, _ = rt.RoundTrip(req) })
		}
		quick := func() {
			for range 20 {
				start := time.Now()
				require.Equal(t, 200, caseStatus(t, rt, caseTo(t, "http://b.example/")))
				require.Zero(t, time.Since(start))
			}
		}
		quick()
		wg.Wait()
		quick()
		require.Equal(t, retrip.Open, caseStats(t, rt, "a.example").State)
		b := caseStats(t, rt, "b.example")
		require.Equal(t, retrip.Closed, b.State)
		require.EqualValues(t, 14, b.Tokens, "10 at first and a tenth for each of 40")
	})
}

func TestB43TokensComeBack(t *testing.T) {
	t.Parallel()
	hits := func(t *testing.T, rt *retrip.Transport, base *script) int {
		before := len(base.attempts())
		_ = caseStatus(t, rt, request(t, http.MethodGet, nil))
		return len(base.attempts()) - before
	}
	caseBubble(t, "with successes, up to the capacity", func(t *testing.T) {
		var steps []step
		steps = append(steps, slices.Repeat([]step{answer(503)}, 5)...)
		steps = append(steps, slices.Repeat([]step{answer(200)}, 10)...)
		base := play(append(steps, answer(503), answer(200))...)
		rt := retrip.New(base, caseUnlimited(retrip.WithMaxAttempts(2), retrip.WithRetryQuota(&retrip.Quota{Capacity: 2, Initial: 2, Earn: 0.5}))...)
		require.Equal(t, []int{2, 2, 1}, []int{hits(t, rt, base), hits(t, rt, base), hits(t, rt, base)})
		for n := range 10 {
			require.Equal(t, 1, hits(t, rt, base))
			require.Equal(t, min(2, 0.5*float64(n+1)), caseStats(t, rt, "example.com").Tokens)
		}
		require.Equal(t, 2, hits(t, rt, base))
		require.EqualValues(t, 1, caseStats(t, rt, "example.com").Recovered)
		require.EqualValues(t, 1, caseStats(t, rt, "example.com").Tokens)
	})
	caseBubble(t, "with time, one by one", func(t *testing.T) {
		base := play(answer(503))
		rt := retrip.New(base, caseUnlimited(retrip.WithMaxAttempts(4), retrip.WithRetryQuota(&retrip.Quota{Reserve: 0.1}))...)
		require.Equal(t, []int{2, 1}, []int{hits(t, rt, base), hits(t, rt, base)})
		time.Sleep(10*time.Second - 1)
		require.Equal(t, 1, hits(t, rt, base))
		time.Sleep(time.Hour)
		require.Equal(t, []int{2, 1}, []int{hits(t, rt, base), hits(t, rt, base)})
	})
}

func TestB44AQuotaIsAHostsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reason retrip.Reason
		b := play(answer(503), answer(200))
		rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
			if strings.EqualFold(req.URL.Host, "a.example") {
				return answer(503)(req)
			}
			return b.RoundTrip(req)
		}), caseUnlimited(retrip.WithRetryQuota(&retrip.Quota{Capacity: 3, Initial: 3}), caseReason(&reason))...)
		require.Equal(t, 503, caseStatus(t, rt, caseTo(t, "http://a.example/")))
		require.Equal(t, retrip.ReasonAttempts, reason)
		require.Equal(t, 503, caseStatus(t, rt, caseTo(t, "http://A.EXAMPLE/")))
		require.Equal(t, retrip.ReasonQuota, reason)
		require.Equal(t, 200, caseStatus(t, rt, caseTo(t, "http://b.example/")))
		require.EqualValues(t, 2, caseStats(t, rt, "b.example").Tokens)
	})
}

// caseEnds are the ways in which a request ends with a response that was worth
// another attempt.
var caseEnds = []struct {
	name   string
	step   step
	opts   []retrip.Option
	method string
	limit  time.Duration // of the context
	reason retrip.Reason
	hits   int
}{
	{"attempts", answer(429), []retrip.Option{retrip.WithMaxAttempts(3)}, "GET", 0, retrip.ReasonAttempts, 3},
	{"budget", answer(429, "Retry-After", "1800"), []retrip.Option{retrip.WithBudget(900 * time.Second)}, "GET", 0, retrip.ReasonBudget, 1},
	{"deadline", answer(503, "Retry-After", "30"), nil, "GET", 10 * time.Second, retrip.ReasonDeadline, 1},
	{"quota", answer(503), []retrip.Option{retrip.WithRetryQuota(&retrip.Quota{})}, "GET", 0, retrip.ReasonQuota, 1},
	{"quota, drained", answer(500), []retrip.Option{retrip.WithRetryQuota(&retrip.Quota{Capacity: 2, Initial: 2})}, "GET", 0, retrip.ReasonQuota, 3},
	{"breaker", answer(503), []retrip.Option{retrip.WithBreaker(caseBreaker(2))}, "GET", 0, retrip.ReasonBreaker, 2},
	{"unsafe", answer(503), []retrip.Option{retrip.WithIdempotencyKey(nil)}, "POST", 0, retrip.ReasonUnsafe, 1},
	{"body", answer(503), []retrip.Option{retrip.WithMaxBody(4)}, "PUT", 0, retrip.ReasonBody, 1},
}

func TestB19TheLastResponseIsHandedBackOpen(t *testing.T) {
	t.Parallel()
	for _, tt := range caseEnds {
		for _, timeout := range []time.Duration{0, time.Minute} {
			caseBubble(t, fmt.Sprintf("%s, attempt timeout %v", tt.name, timeout), func(t *testing.T) {
				var bodies []*trackedBody
				base := play(func(req *http.Request) (*http.Response, error) {
					resp, err := tt.step(req)
					body := track("why")
					bodies = append(bodies, body)
					resp.Body, resp.ContentLength = body, 3
					resp.Header.Set("X-Attempt", fmt.Sprint(len(bodies)))
					return resp, err
				})
				ctx := t.Context()
				if tt.limit > 0 {
					limited, cancel := context.WithTimeout(ctx, tt.limit)
					defer cancel()
					ctx = limited
				}
				rt := retrip.New(base, append([]retrip.Option{retrip.WithBackoff(retrip.Constant(time.Second)), retrip.WithAttemptTimeout(timeout)}, tt.opts...)...)
				resp, err := rt.RoundTrip(request(t, tt.method, track("hello")).WithContext(ctx))
				require.NoError(t, err)
				want, _ := tt.step(nil)
				want.Header.Set("X-Attempt", fmt.Sprint(tt.hits))
				require.Equal(t, want.StatusCode, resp.StatusCode)
				require.Equal(t, want.Header, resp.Header)
				require.Len(t, bodies, tt.hits)
				last := bodies[tt.hits-1]
				for _, body := range bodies[:tt.hits-1] {
					body.requireClosed(t)
				}
				require.Zero(t, last.closes)
				require.Equal(t, "why", finish(t, resp))
				last.requireClosed(t)
			})
		}
	}
}

func TestB46AnEarlyEndSaysWhy(t *testing.T) {
	t.Parallel()
	for _, tt := range caseEnds {
		caseBubble(t, tt.name, func(t *testing.T) {
			var heard []retrip.GaveUpInfo
			var said bytes.Buffer
			opts := append([]retrip.Option{retrip.WithBackoff(retrip.Constant(time.Second)), retrip.WithLogger(slog.New(slog.NewTextHandler(&said, nil))),
				retrip.WithTrace(&retrip.Trace{GaveUp: func(i retrip.GaveUpInfo) { heard = append(heard, i) }})}, tt.opts...)
			ctx := t.Context()
			if tt.limit > 0 {
				limited, cancel := context.WithTimeout(ctx, tt.limit)
				defer cancel()
				ctx = limited
			}
			resp, err := retrip.New(play(tt.step), opts...).RoundTrip(request(t, tt.method, track("hello")).WithContext(ctx))
			require.NoError(t, err)
			require.Len(t, heard, 1)
			require.Equal(t, tt.reason, heard[0].Reason)
			require.Equal(t, tt.hits, heard[0].Attempt.Number)
			require.Same(t, resp, heard[0].Attempt.Response)
			require.NoError(t, heard[0].Err)
			require.Equal(t, 1, strings.Count(said.String(), "reason="+tt.reason.String()))
			finish(t, resp)
		})
	}
	caseBubble(t, "an answer that was not worth more is no giving up", func(t *testing.T) {
		var reason retrip.Reason
		require.Equal(t, 404, caseStatus(t, retrip.New(play(answer(404)), caseReason(&reason)), request(t, http.MethodGet, nil)))
		require.Zero(t, reason)
	})
}

func TestB47LayersDoNotMultiply(t *testing.T) {
	t.Parallel()
	direct := func(inner *retrip.Transport) http.RoundTripper { return inner }
	apart := func(inner *retrip.Transport) http.RoundTripper { return roundTrip(inner.RoundTrip) }
	for _, tt := range []struct {
		name         string
		between      func(*retrip.Transport) http.RoundTripper
		outer, inner int // attempts
	}{
		{"one on the other", direct, 3, 3},
		// The first attempt cannot be told from a request of its own.
		{"with a transport between", apart, 3, 5},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			base := play(answer(503))
			inner := retrip.New(base, caseUnlimited(retrip.WithMaxAttempts(3))...)
			outer := retrip.New(tt.between(inner), caseUnlimited(retrip.WithMaxAttempts(3))...)
			require.Equal(t, 503, caseStatus(t, outer, request(t, http.MethodPost, track("hello"))))
			seen := base.attempts()
			require.Len(t, seen, tt.inner)
			for _, saw := range seen {
				require.Equal(t, "hello", saw.body)
				require.Equal(t, seen[0].header, saw.header)
			}
			require.EqualValues(t, tt.outer, caseStats(t, outer, "example.com").Attempts)
			require.EqualValues(t, tt.inner, caseStats(t, inner, "example.com").Attempts)
		})
	}
	caseBubble(t, "another request made for an attempt has retries of its own", func(t *testing.T) {
		tokens := play(answer(503), answer(200))
		side := retrip.New(tokens, caseUnlimited()...)
		base := play(answer(503), func(req *http.Request) (*http.Response, error) {
			fetch := caseTo(t, "http://tokens.example/").WithContext(req.Context())
			require.Equal(t, 200, caseStatus(t, side, fetch))
			return answer(200)(req)
		})
		require.Equal(t, 200, caseStatus(t, retrip.New(base, caseUnlimited()...), request(t, http.MethodGet, nil)))
		require.Len(t, tokens.attempts(), 2)
	})
}

func TestB48AnEmptyQuotaIsNotAFailureOfTheHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reason retrip.Reason
		base := play(answer(503, "X-From", "the host"))
		rt := retrip.New(base, caseUnlimited(retrip.WithRetryQuota(&retrip.Quota{Capacity: 3, Initial: 3}), caseReason(&reason))...)
		require.Equal(t, 503, caseStatus(t, rt, request(t, http.MethodGet, nil)))
		require.Equal(t, retrip.ReasonAttempts, reason)

		req := request(t, http.MethodGet, nil)
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		want, _ := answer(503, "X-From", "the host")(req)
		require.Equal(t, want, resp)
		require.Equal(t, "x", finish(t, resp))
		require.Equal(t, retrip.ReasonQuota, reason)
		require.Nil(t, retrip.History(resp))

		// With an error it is the same.
		failing := retrip.New(play(fail(caseReset)), caseUnlimited(retrip.WithRetryQuota(&retrip.Quota{}), caseReason(&reason))...)
		_, err = failing.RoundTrip(req)
		require.Equal(t, error(caseReset), err)
		require.Equal(t, retrip.ReasonQuota, reason)
	})
}
