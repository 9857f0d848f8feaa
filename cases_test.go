package retrip_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// The tests named TestB and a number, here and in the files cases_*_test.go, are
// what public reports say went wrong with other retrying clients. Each covers the
// whole kind of its fault.

// caseAtOnce is for what is not about the pauses.
var caseAtOnce = retrip.WithBackoff(retrip.Constant(0))

// caseUnlimited leaves only attempts, budget and deadline to limit the retries.
func caseUnlimited(opts ...retrip.Option) []retrip.Option {
	return append([]retrip.Option{caseAtOnce, retrip.WithBreaker(nil), retrip.WithRetryQuota(nil)}, opts...)
}

// caseBreaker opens after so many failures in a row for 30 s, then for a minute.
// One good probe closes it.
func caseBreaker(failures int) *retrip.Breaker {
	return &retrip.Breaker{
		Failures: failures, Probes: 1, Successes: 1,
		Cooldowns: []time.Duration{30 * time.Second, time.Minute},
	}
}

// caseReason notes why a request was given up.
func caseReason(reason *retrip.Reason) retrip.CallOption {
	return retrip.WithTrace(&retrip.Trace{GaveUp: func(i retrip.GaveUpInfo) { *reason = i.Reason }})
}

// caseStats returns what the Transport knows of the host.
func caseStats(t testing.TB, rt *retrip.Transport, host string) retrip.HostStats {
	t.Helper()
	for name, stats := range rt.Hosts() {
		if name == host {
			return stats
		}
	}
	require.Fail(t, "host is not known", host)
	return retrip.HostStats{}
}

// caseStatus makes a round trip that must end with a response.
func caseStatus(t testing.TB, rt http.RoundTripper, req *http.Request) int {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	finish(t, resp)
	return resp.StatusCode
}

// caseBubble runs f in a bubble of a parallel subtest.
func caseBubble(t *testing.T, name string, f func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, f)
	})
}

// caseTo makes a GET for the URL.
func caseTo(t testing.TB, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	return req
}

var caseReset = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}

// A caseServer counts the connections opened to it, and tells of each that closed.
type caseServer struct {
	*httptest.Server
	opened atomic.Int32
	closed chan struct{}
}

func newCaseServer(t *testing.T, h http.HandlerFunc) *caseServer {
	t.Helper()
	s := &caseServer{Server: httptest.NewUnstartedServer(h), closed: make(chan struct{}, 1000)}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.opened.Add(1)
		case http.StateClosed:
			s.closed <- struct{}{}
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// base is a transport with a pool of its own.
func (s *caseServer) base() *http.Transport { return s.Client().Transport.(*http.Transport) }

// caseListen serves each connection with its number, 1 for the first, and returns
// the URL. Whatever serve still reads or writes when the test ends fails.
func caseListen(t *testing.T, serve func(n int, conn net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for n := 1; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(t.Context(), func() { _ = conn.Close() })
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(n, conn)
			})
		}
	})
	return "http://" + l.Addr().String()
}

func TestB53ConfigurationIsCopiedAndNothingIsFilledInLazily(t *testing.T) {
	t.Parallel()
	t.Run("a hundred goroutines may share a Transport", func(t *testing.T) {
		t.Parallel()
		srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		defer srv.Close()
		for _, rt := range []*retrip.Transport{{}, retrip.New(nil)} {
			var wg sync.WaitGroup
			statuses := make([]int, 100)
			for i := range statuses {
				req := caseTo(t, srv.URL)
				wg.Go(func() {
					if resp, err := rt.RoundTrip(req); err == nil {
						statuses[i] = resp.StatusCode
						_ = resp.Body.Close()
					}
				})
			}
			wg.Wait()
			require.Equal(t, slices.Repeat([]int{200}, 100), statuses)
		}
	})
	caseBubble(t, "what the caller gave is neither changed nor looked at again", func(t *testing.T) {
		breaker, quota := *caseBreaker(2), retrip.Quota{Capacity: 1, Initial: 1}
		ladder := []time.Duration{time.Second, time.Minute}
		calls := []retrip.CallOption{retrip.WithMaxAttempts(2)}
		base := play(answer(503))
		rt := retrip.New(base, retrip.WithBreaker(&breaker), retrip.WithRetryQuota(&quota), retrip.WithBackoff(retrip.Ladder(ladder...)))
		ctx := retrip.Override(t.Context(), calls...)
		require.Equal(t, *caseBreaker(2), breaker)

		breaker.Failures, breaker.Cooldowns[0] = 100, 1
		quota.Capacity, quota.Initial = 0, 0
		ladder[0] = time.Hour
		calls[0] = retrip.WithMaxAttempts(1)
		require.Equal(t, 503, caseStatus(t, rt, request(t, http.MethodGet, nil).WithContext(ctx)))
		require.Equal(t, []time.Duration{time.Second}, base.pauses())
		stats := caseStats(t, rt, "example.com")
		require.Equal(t, retrip.Open, stats.State)
		require.Equal(t, time.Now().Add(30*time.Second), stats.Until)
		require.Zero(t, stats.Tokens)
	})
}

func TestB54TheCallersRequestIsNotChanged(t *testing.T) {
	t.Parallel()
	configs := map[string][]retrip.Option{
		"by default":              nil,
		"with an attempt timeout": {retrip.WithAttemptTimeout(time.Minute)},
		"with a key of its own":   {retrip.WithIdempotencyKey(func(*http.Request) string { return "k" }), retrip.WithKeyHeader("X-Key")},
		"without keys":            {retrip.WithIdempotencyKey(nil)},
		"with hooks":              {retrip.WithTrace(&retrip.Trace{Attempted: func(retrip.AttemptedInfo) {}})},
	}
	for name, opts := range configs {
		caseBubble(t, name, func(t *testing.T) {
			rt := retrip.New(play(answer(503), fail(caseReset), answer(200)), opts...)
			req := request(t, http.MethodPost, track("hello"))
			req.GetBody = func() (io.ReadCloser, error) { return track("hello"), nil }
			req.ContentLength, req.Close, req.Host = 5, true, "other.example"
			req.Trailer = http.Header{"X-Sum": nil}
			req.TransferEncoding = []string{"chunked"}
			req.Header.Set("X-Test", "1")
			before, body, u := req.Clone(req.Context()), req.Body, req.URL
			resp, err := rt.RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			require.Same(t, body, req.Body)
			require.Same(t, u, req.URL)
			require.NotNil(t, req.GetBody)
			before.Body, before.GetBody = nil, nil
			after := req.Clone(req.Context())
			after.Body, after.GetBody = nil, nil
			require.Equal(t, before, after)
		})
	}
	caseBubble(t, "when fifty goroutines send it", func(t *testing.T) {
		rt := retrip.New(play(answer(503), answer(200)), caseUnlimited(retrip.WithAttemptTimeout(time.Minute))...)
		req := request(t, http.MethodPost, nil)
		before := req.Clone(req.Context())
		var wg sync.WaitGroup
		var good atomic.Int32
		for range 50 {
			wg.Go(func() {
				if resp, err := rt.RoundTrip(req); err == nil && resp.Body.Close() == nil && resp.StatusCode == 200 {
					good.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 50, good.Load())
		require.Equal(t, before, req)
	})
}

// caseGoroutines counts those of the bubble.
func caseGoroutines(t *testing.T) int {
	t.Helper()
	stacks := make([]byte, 8<<20)
	bubble := regexp.MustCompile(`synctest bubble \d+\]`).Find(stacks[:runtime.Stack(stacks, false)])
	require.NotEmpty(t, bubble)
	n := runtime.Stack(stacks, true)
	require.Less(t, n, len(stacks))
	return bytes.Count(stacks[:n], bubble)
}

func TestB55NothingIsLeftAfterACancelledPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(play(answer(503, "Retry-After", "3600")), caseUnlimited(retrip.WithBudget(2*time.Hour), retrip.WithAttemptTimeout(time.Hour))...)
		before := caseGoroutines(t)
		for range 1000 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(5*time.Millisecond, cancel)
			start := time.Now()
			_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, 5*time.Millisecond, time.Since(start))
		}
		synctest.Wait()
		require.Equal(t, before, caseGoroutines(t))
		require.EqualValues(t, 1000, caseStats(t, rt, "example.com").Attempts)
	})
}

// caseSaysNothing fails if a word occurs in anything that the library says about
// requests to a URL with secrets in each of its parts.
func caseSaysNothing(t *testing.T, words ...string) {
	const secrets = "http://user:s3cret@example.com/p?api_key=QQQ&x=1#frag"
	leaky := fmt.Errorf("get %q: %w", secrets, caseReset)
	cases := map[string]struct {
		steps []step
		opts  []retrip.Option
		want  string // what is said, so that silence is no success
	}{
		"a success on the second attempt": {steps: []step{answer(503), answer(200)}, want: "attempt 1 of 2, 503"},
		"a status to the end":             {steps: []step{answer(503)}, want: "reason=attempts"},
		"an error to the end":             {steps: []step{fail(leaky)}, want: "gave up after 2 of 2 attempts"},
		"an error of no known kind":       {steps: []step{answer(503), fail(errors.New(secrets)), answer(503), fail(errors.New(secrets))}, want: "reason=policy"},
		"an attempt timeout":              {steps: []step{hang}, opts: []retrip.Option{retrip.WithAttemptTimeout(time.Second)}, want: "no response headers within 1s"},
		"an open breaker":                 {steps: []step{fail(leaky)}, opts: []retrip.Option{retrip.WithBreaker(caseBreaker(2))}, want: "breaker of example.com is open"},
		"a key that cannot be sent":       {steps: []step{answer(503)}, opts: []retrip.Option{retrip.WithIdempotencyKey(func(*http.Request) string { return "K3Y\n" })}, want: "idempotency key has byte"},
		"a budget that is too short":      {steps: []step{fail(leaky)}, opts: []retrip.Option{retrip.WithMaxAttempts(3), retrip.WithBudget(5), caseAtOnce, retrip.WithPolicy(func(retrip.Attempt) bool { time.Sleep(3 * time.Nanosecond); return true })}, want: "(budget of 5ns)"},
	}
	for name, tt := range cases {
		caseBubble(t, name, func(t *testing.T) {
			var said bytes.Buffer
			say := func(v any) { fmt.Fprintln(&said, v) }
			log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
			opts := []retrip.Option{retrip.WithMaxAttempts(2), retrip.WithLogger(log), retrip.WithTrace(&retrip.Trace{
				Pausing:      func(i retrip.PausingInfo) { say(i); say(i.Host) },
				GaveUp:       func(i retrip.GaveUpInfo) { say(i.Reason); say(i.Host) },
				BreakerMoved: func(i retrip.BreakerMovedInfo) { say(i) },
			})}
			rt := retrip.New(play(tt.steps...), append(opts, tt.opts...)...)
			for range 2 {
				req := request(t, http.MethodPost, track("b0dy"))
				req.URL, _ = url.Parse(secrets)
				req.Header.Set("Authorization", "Bearer t0ken")
				if resp, err := rt.RoundTrip(req); err == nil {
					finish(t, resp)
				} else {
					say(err)
				}
			}
			for host, stats := range rt.Hosts() {
				fmt.Fprintf(&said, "%s %+v\n", host, stats)
			}
			require.Contains(t, said.String(), tt.want)
			for _, word := range words {
				require.NotContains(t, said.String(), word)
			}
		})
	}
}

func TestB62PasswordsAreNeverTold(t *testing.T) {
	t.Parallel()
	caseSaysNothing(t, "s3cret", "user:", "t0ken", "K3Y")
}

func TestB63QueriesPathsAndBodiesAreNeverTold(t *testing.T) {
	t.Parallel()
	caseSaysNothing(t, "QQQ", "api_key", "x=1", "frag", "/p", "b0dy")
}

func TestB76SettingsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	nan, breaker, quota := math.NaN(), retrip.DefaultBreaker, retrip.DefaultQuota
	with := func(change func(*retrip.Breaker)) *retrip.Breaker { b := breaker(); change(&b); return &b }
	owing := func(change func(*retrip.Quota)) *retrip.Quota { q := quota(); change(&q); return &q }
	// They panic where they are made, which names the culprit better than an error of New could.
	bad := map[string]func(){
		"WithMaxAttempts(0)":               func() { retrip.WithMaxAttempts(0) },
		"WithMaxAttempts(-1)":              func() { retrip.WithMaxAttempts(-1) },
		"WithAttemptTimeout(-1ns)":         func() { retrip.WithAttemptTimeout(-1) },
		"WithBudget(-1ns)":                 func() { retrip.WithBudget(-1) },
		"WithMaxBody(-1)":                  func() { retrip.WithMaxBody(-1) },
		"WithBackoff(nil)":                 func() { retrip.WithBackoff(nil) },
		"Constant(-1ns)":                   func() { retrip.Constant(-1) },
		"Exponential(2s, 1s)":              func() { retrip.Exponential(2*time.Second, time.Second) },
		"FullJitter(-1ns, 1s)":             func() { retrip.FullJitter(-1, time.Second) },
		"EqualJitter(2ns, 1ns)":            func() { retrip.EqualJitter(2, 1) },
		"DecorrelatedJitter(-2ns, -1ns)":   func() { retrip.DecorrelatedJitter(-2, -1) },
		"Ladder()":                         func() { retrip.Ladder() },
		"Ladder([1ns -1ns])":               func() { retrip.Ladder(1, -1) },
		"Spread(…, -0.1)":                  func() { retrip.Spread(retrip.Constant(1), -0.1) },
		"Spread(…, 1.1)":                   func() { retrip.Spread(retrip.Constant(1), 1.1) },
		"Spread(…, NaN)":                   func() { retrip.Spread(retrip.Constant(1), nan) },
		"Spread(nil, …)":                   func() { retrip.Spread(nil, 0.1) },
		"WithHosts(0, …)":                  func() { retrip.WithHosts(0, nil) },
		`WithKeyHeader("")`:                func() { retrip.WithKeyHeader("") },
		`WithKeyHeader("a b")`:             func() { retrip.WithKeyHeader("a b") },
		"Failures is negative":             func() { retrip.WithBreaker(with(func(b *retrip.Breaker) { b.Failures = -1 })) },
		"FailureRate is not between":       func() { retrip.WithBreaker(with(func(b *retrip.Breaker) { b.FailureRate = nan })) },
		"FailureRate needs Window":         func() { retrip.WithBreaker(with(func(b *retrip.Breaker) { b.Window = 0 })) },
		"Cooldowns must be":                func() { retrip.WithBreaker(with(func(b *retrip.Breaker) { b.Cooldowns = nil })) },
		"Probes is less than 1":            func() { retrip.WithBreaker(with(func(b *retrip.Breaker) { b.Probes = 0 })) },
		"Successes is less than 1":         func() { retrip.WithBreaker(with(func(b *retrip.Breaker) { b.Successes = 0 })) },
		"WithBreaker({Failures:0":          func() { retrip.WithBreaker(&retrip.Breaker{}) },
		"want fields between":              func() { retrip.WithRetryQuota(owing(func(q *retrip.Quota) { q.Earn = -1 })) },
		"WithRetryQuota({Capacity:NaN":     func() { retrip.WithRetryQuota(owing(func(q *retrip.Quota) { q.Capacity = nan })) },
		"WithRetryQuota({Capacity:20 Init": func() { retrip.WithRetryQuota(owing(func(q *retrip.Quota) { q.Initial = 21 })) },
		"Register(nil)":                    func() { retrip.Register(nil) },
	}
	for want, f := range bad {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			defer func() {
				text, _ := recover().(string)
				require.Contains(t, text, want)
				require.Regexp(t, "^retrip: ", text)
			}()
			f()
		})
	}
	caseBubble(t, "settings that are missing mean a finite default", func(t *testing.T) {
		base := play(answer(503))
		require.Equal(t, 503, caseStatus(t, retrip.New(base), request(t, http.MethodGet, nil)))
		require.Len(t, base.attempts(), 4)
	})
}

func TestB77ABackoffChoosesThePauseNotTheLimits(t *testing.T) {
	t.Parallel()
	constant := func(d time.Duration) retrip.Backoff { return func(int, time.Duration) time.Duration { return d } }
	cases := map[string]struct {
		backoff retrip.Backoff
		opts    []retrip.Option
		pauses  []time.Duration
		reason  retrip.Reason
	}{
		"always a millisecond":       {constant(time.Millisecond), nil, slices.Repeat([]time.Duration{time.Millisecond}, 3), retrip.ReasonAttempts},
		"negative":                   {constant(-1), nil, []time.Duration{0, 0, 0}, retrip.ReasonAttempts},
		"the most negative":          {constant(math.MinInt64), nil, []time.Duration{0, 0, 0}, retrip.ReasonAttempts},
		"the largest":                {constant(math.MaxInt64), nil, nil, retrip.ReasonBudget},
		"the largest, no budget":     {constant(math.MaxInt64), []retrip.Option{retrip.WithBudget(math.MaxInt64)}, nil, retrip.ReasonBudget},
		"a millisecond, long budget": {constant(time.Millisecond), []retrip.Option{retrip.WithMaxAttempts(math.MaxInt), retrip.WithBudget(3 * time.Millisecond)}, slices.Repeat([]time.Duration{time.Millisecond}, 2), retrip.ReasonBudget},
	}
	for name, tt := range cases {
		caseBubble(t, name, func(t *testing.T) {
			var reason retrip.Reason
			base := play(answer(503))
			rt := retrip.New(base, caseUnlimited(append(tt.opts, retrip.WithBackoff(tt.backoff), caseReason(&reason))...)...)
			require.Equal(t, 503, caseStatus(t, rt, request(t, http.MethodGet, nil)))
			require.Equal(t, tt.pauses, base.pauses())
			require.Equal(t, tt.reason, reason)
		})
	}
	caseBubble(t, "one that panics leaves nothing taken", func(t *testing.T) {
		bad := true
		rt := retrip.New(play(answer(503), answer(503), answer(200)), retrip.WithBreaker(caseBreaker(2)),
			retrip.WithRetryQuota(&retrip.Quota{Capacity: 1, Initial: 1}),
			retrip.WithBackoff(func(int, time.Duration) time.Duration {
				if bad {
					panic("backoff")
				}
				return time.Second
			}))
		body := track("hello")
		require.PanicsWithValue(t, "backoff", func() { _, _ = rt.RoundTrip(request(t, http.MethodPut, body)) })
		body.requireClosed(t)
		require.EqualValues(t, 1, caseStats(t, rt, "example.com").Tokens)
		bad = false
		require.Equal(t, 503, caseStatus(t, rt, request(t, http.MethodGet, nil)), "the breaker opened")
		time.Sleep(30 * time.Second)
		require.Equal(t, 200, caseStatus(t, rt, request(t, http.MethodGet, nil)), "the probe's slot is free")
	})
}

func TestB78ZeroIsNotUnset(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		opt    retrip.CallOption
		pauses []time.Duration
	}{
		"one attempt":           {retrip.WithMaxAttempts(1), nil},
		"no budget":             {retrip.WithBudget(0), nil},
		"no policy":             {retrip.WithPolicy(nil), nil},
		"no pause":              {retrip.WithBackoff(retrip.Constant(0)), []time.Duration{0, 0, 0}},
		"no pause at first":     {retrip.WithBackoff(retrip.Ladder(0, time.Second)), []time.Duration{0, time.Second, time.Second}},
		"what it is by default": {retrip.WithTrace(nil), slices.Repeat([]time.Duration{time.Minute}, 3)},
	}
	for name, tt := range cases {
		caseBubble(t, name, func(t *testing.T) {
			defaults := []retrip.Option{retrip.WithBackoff(retrip.Constant(time.Minute)), retrip.WithBudget(time.Hour)}
			once, call := play(answer(503)), play(answer(503))
			require.Equal(t, 503, caseStatus(t, retrip.New(once, append(defaults, tt.opt)...), request(t, http.MethodPost, nil)))
			req := request(t, http.MethodPost, nil)
			req = req.WithContext(retrip.Override(req.Context(), tt.opt))
			require.Equal(t, 503, caseStatus(t, retrip.New(call, defaults...), req))
			for _, base := range []*script{once, call} {
				require.Equal(t, tt.pauses, base.pauses())
				_, keyed := base.attempts()[0].header[retrip.KeyHeader]
				require.Equal(t, tt.pauses != nil, keyed, "a request that is sent once needs no key")
			}
		})
	}
}
