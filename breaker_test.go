package retrip_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// testHost is where the requests of request go.
const testHost = "example.com"

var once = retrip.WithMaxAttempts(1)

// brittle is a breaker that opens at the first failure and closes at the first
// success, with what change does to it.
func brittle(change func(*retrip.Breaker)) retrip.Option {
	b := retrip.DefaultBreaker()
	b.Failures, b.FailureRate, b.Successes = 1, 0, 1
	b.Cooldowns = []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute}
	if change != nil {
		change(&b)
	}
	return retrip.WithBreaker(&b)
}

// statsOf returns what the Transport knows of a host.
func statsOf(t testing.TB, rt *retrip.Transport, host string) retrip.HostStats {
	t.Helper()
	for name, stats := range rt.Hosts() {
		if name == host {
			return stats
		}
	}
	require.Fail(t, "the host is not remembered", host)
	return retrip.HostStats{}
}

// hostNames returns the hosts that are remembered, in the order of Hosts.
func hostNames(rt *retrip.Transport) []string {
	var names []string
	for name := range rt.Hosts() {
		names = append(names, name)
	}
	return names
}

// requestTo makes a GET request to a host.
func requestTo(t testing.TB, host string) *http.Request {
	t.Helper()
	req := request(t, http.MethodGet, nil)
	req.URL.Host = host
	return req
}

// get sends a GET request to a host and returns the status, or 0 and the error.
func get(t testing.TB, rt http.RoundTripper, host string) (int, error) {
	t.Helper()
	resp, err := rt.RoundTrip(requestTo(t, host))
	if err != nil {
		return 0, err
	}
	finish(t, resp)
	return resp.StatusCode, nil
}

// requireRefused sends a request to the host, which must be refused until then.
func requireRefused(t testing.TB, rt http.RoundTripper, host string, until time.Time) {
	t.Helper()
	_, err := get(t, rt, host)
	require.Equal(t, &retrip.OpenError{Host: host, Until: until}, err)
}

// byHost is a base that has a step for each host.
func byHost(steps map[string]step) roundTrip {
	return func(req *http.Request) (*http.Response, error) { return steps[req.URL.Host](req) }
}

// A trip is a round trip on a goroutine of its own. The other fields may be read
// when it is over.
type trip struct {
	resp     *http.Response
	err      error
	panicked any
	over     atomic.Bool
}

// start starts a round trip in a bubble, and waits until it can go no further.
func start(rt http.RoundTripper, req *http.Request) *trip {
	tr := &trip{}
	go func() {
		defer func() {
			tr.panicked = recover()
			tr.over.Store(true)
		}()
		tr.resp, tr.err = rt.RoundTrip(req)
	}()
	synctest.Wait()
	return tr
}

// A gate is a base in a bubble whose attempts wait until let through, or until the
// test is over.
type gate struct {
	over    <-chan struct{}
	mu      sync.Mutex
	arrived []chan step
	reqs    []*http.Request
}

func newGate(t *testing.T) *gate { return &gate{over: t.Context().Done()} }

func (g *gate) RoundTrip(req *http.Request) (*http.Response, error) {
	through := make(chan step)
	g.mu.Lock()
	g.arrived, g.reqs = append(g.arrived, through), append(g.reqs, req)
	g.mu.Unlock()
	select {
	case next := <-through:
		return next(req)
	case <-g.over:
		return nil, errUnheardOf
	}
}

func (g *gate) len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.arrived)
}

// last returns the number of the last attempt whose context has the key.
func (g *gate) last(key any) int {
	for i := g.len() - 1; ; i-- {
		if i < 0 || g.reqs[i].Context().Value(key) != nil {
			return i
		}
	}
}

// let ends an attempt, counted from 0, and waits for what comes of it.
func (g *gate) let(i int, s step) {
	g.arrived[i] <- s
	synctest.Wait()
}

func panics(*http.Request) (*http.Response, error) { panic("boom") }

var errUnheardOf = errors.New("odd")

func TestTheBreakerOpensOnFailuresInARow(t *testing.T) {
	t.Parallel()
	local := fail(errors.New(`unsupported protocol scheme "x"`))
	for _, tt := range []struct {
		name  string
		steps []step
		want  retrip.State
	}{
		{"one too few", []step{answer(500), answer(503)}, retrip.Closed},
		{"of any kind", []step{answer(500), fail(io.EOF), answer(503)}, retrip.Open},
		{"a success starts the count anew", []step{answer(500), answer(500), answer(200), answer(500), answer(500)}, retrip.Closed},
		{"so does a refusal of the request", []step{answer(500), answer(500), answer(429), answer(500), answer(500)}, retrip.Closed},
		{"after the success there is a new row", []step{answer(500), answer(200), answer(500), answer(500), answer(500)}, retrip.Open},
		{"what says nothing of the host does not end a row", []step{answer(500), answer(500), local, answer(500)}, retrip.Open},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rt := retrip.New(play(tt.steps...), once, brittle(func(b *retrip.Breaker) { b.Failures = 3 }))
			for range tt.steps {
				_, err := get(t, rt, testHost)
				require.False(t, isOpen(err), "the breaker opened early")
			}
			require.Equal(t, tt.want, statsOf(t, rt, testHost).State)
		})
	}
}

func isOpen(err error) bool {
	_, ok := errors.AsType[*retrip.OpenError](err)
	return ok
}

func TestTheDefaultBreakerOpensAfterTwentyFailuresOrAtHalfOfTwentyAttempts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		successes int
		failures  int
	}{{"in a row", 0, 20}, {"by rate", 10, 10}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			steps := append(slices.Repeat([]step{answer(200)}, tt.successes), answer(500))
			rt := retrip.New(play(steps...), once)
			for i := range tt.successes + tt.failures {
				status, err := get(t, rt, testHost)
				require.NoErrorf(t, err, "attempt %d", i+1)
				require.Equal(t, i < tt.successes, status == 200)
			}
			_, err := get(t, rt, testHost)
			require.True(t, isOpen(err))
		})
	}
}

// noMore is a policy that ends requests after one attempt without making them single.
var noMore = retrip.WithPolicy(func(retrip.Attempt) bool { return false })

// saysOfHost tells what an attempt says of its host by a breaker that opens after two
// failures in a row: one comes before the attempt and one after it.
func saysOfHost(t *testing.T, s step, req *http.Request, opts ...retrip.CallOption) string {
	rt := retrip.New(play(answer(500), s, answer(500)), noMore, brittle(func(b *retrip.Breaker) { b.Failures = 2 }))
	get(t, rt, testHost)
	func() {
		defer func() { _ = recover() }()
		_, _ = rt.RoundTrip(req.WithContext(retrip.Override(req.Context(), opts...)))
	}()
	if statsOf(t, rt, testHost).State == retrip.Open {
		return "a failure"
	}
	get(t, rt, testHost)
	if statsOf(t, rt, testHost).State == retrip.Open {
		return "neither"
	}
	return "a success"
}

func TestWhatAnAttemptSaysOfItsHost(t *testing.T) {
	t.Parallel()
	statuses := map[string][]int{
		"a success": {
			101, 200, 204, 304, 400, 401, 404, 408, 409, 410, 413, 425, 429, 499,
			501, 505, 506, 507, 508, 510, 511,
		},
		"a failure": {500, 502, 503, 504, 520, 599},
	}
	for want, list := range statuses {
		for _, status := range list {
			require.Equal(t, want, saysOfHost(t, answer(status), request(t, http.MethodGet, nil)), "status %d", status)
		}
	}

	deadline := func(d time.Duration) func(*testing.T) *http.Request {
		return func(t *testing.T) *http.Request {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return request(t, http.MethodGet, nil).WithContext(ctx)
		}
	}
	cancelled := func(t *testing.T) *http.Request {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		return request(t, http.MethodGet, nil).WithContext(ctx)
	}
	gone := func(t *testing.T) *http.Request {
		ch := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(ch) })
		req := request(t, http.MethodGet, nil)
		req.Cancel = ch //lint:ignore SA1019 callers and net/http use it
		return req
	}
	untilGone := func(req *http.Request) (*http.Response, error) {
		<-req.Cancel //lint:ignore SA1019 callers and net/http use it
		return nil, errUnheardOf
	}
	failing := func(t *testing.T) *http.Request {
		return request(t, http.MethodPut, iotest.ErrReader(errUnheardOf))
	}
	stuck := func(t *testing.T) *http.Request {
		r, w := io.Pipe()
		t.Cleanup(func() { w.Close() })
		return request(t, http.MethodPut, r)
	}
	onlyIfCached := func(t *testing.T) *http.Request {
		req := request(t, http.MethodGet, nil)
		req.Header.Set("Cache-Control", "no-transform, only-if-cached")
		return req
	}
	timeout := []retrip.CallOption{retrip.WithAttemptTimeout(time.Second)}

	for _, tt := range []struct {
		name string
		want string
		step step
		req  func(*testing.T) *http.Request // nil: a plain GET
		opts []retrip.CallOption
	}{
		{name: "slow success", want: "a success", step: after(time.Hour, answer(200))},
		{name: "504 of a cache that has nothing", want: "a success", step: answer(504), req: onlyIfCached},

		{name: "connection refused", want: "a failure", step: fail(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})},
		{name: "connection closed", want: "a failure", step: fail(io.EOF)},
		{name: "no such host", want: "a failure", step: fail(&net.DNSError{IsNotFound: true})},
		{name: "certificate not trusted", want: "a failure", step: fail(x509.UnknownAuthorityError{})},
		{name: "unknown error", want: "a failure", step: fail(errUnheardOf)},
		{name: "nothing returned", want: "a failure", step: func(*http.Request) (*http.Response, error) { return nil, nil }},
		{name: "attempt timeout", want: "a failure", step: hang, opts: timeout},
		{name: "deadline after a second", want: "a failure", step: hang, req: deadline(time.Second)},
		{name: "503 before the deadline", want: "a failure", step: after(time.Millisecond, answer(503)), req: deadline(time.Second)},

		{name: "deadline before a second", want: "neither", step: hang, req: deadline(time.Second - 1)},
		{name: "cancelled", want: "neither", step: hang, req: cancelled},
		{name: "cancelled by Request.Cancel", want: "neither", step: untilGone, req: gone},
		{name: "cancelled below", want: "neither", step: fail(fmt.Errorf("below: %w", context.Canceled))},
		{name: "refused below", want: "neither", step: fail(fmt.Errorf("below: %w", &retrip.OpenError{}))},
		{name: "cannot be sent", want: "neither", step: fail(errors.New("net/http: invalid header field name"))},
		{name: "body fails", want: "neither", step: answer(200), req: failing},
		{name: "body fails with a single attempt", want: "neither", step: answer(200), req: failing, opts: []retrip.CallOption{once}},
		{name: "body is stuck", want: "neither", step: answer(200), req: stuck, opts: timeout},
		{name: "panic of the base", want: "neither", step: panics},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				req := request(t, http.MethodGet, nil)
				if tt.req != nil {
					req = tt.req(t)
				}
				require.Equal(t, tt.want, saysOfHost(t, tt.step, req, tt.opts...))
			})
		})
	}
}

func TestTheBreakerOpensByTheRateOfItsWindow(t *testing.T) {
	t.Parallel()
	type ends struct {
		at       time.Duration
		outcomes string // + success, - failure, o neither
	}
	const s = time.Second
	for _, tt := range []struct {
		name   string
		events []ends
		want   retrip.State
	}{
		{"too few attempts", []ends{{0, "---"}}, retrip.Closed},
		{"exactly enough, exactly half", []ends{{0, "++--"}}, retrip.Open},
		{"less than half", []ends{{0, "+++--"}}, retrip.Closed},
		{"half of more", []ends{{0, "+++---"}}, retrip.Open},
		{"not in a row", []ends{{0, "-++-"}}, retrip.Open},
		{"neither success nor failure", []ends{{0, "oo--"}}, retrip.Closed},
		{"failures of nine tenths ago", []ends{{0, "--"}, {9*s - 1, "+-"}}, retrip.Open},
		{"failures of a window ago", []ends{{0, "--"}, {10 * s, "+-"}}, retrip.Closed},
		{"successes of a window ago", []ends{{0, "++++"}, {9 * s, "--"}, {10 * s, "--"}}, retrip.Open},
		{"successes of nine tenths ago", []ends{{0, "++++"}, {5 * s, "-"}, {9*s - 1, "--"}}, retrip.Closed},
		{"a window that slides in small steps", []ends{{0, "---"}, {4 * s, "+"}, {8 * s, "+"}, {12 * s, "+--"}}, retrip.Closed},
		{"a long silence", []ends{{0, "---"}, {time.Hour, "-"}}, retrip.Closed},
		{"after a long silence", []ends{{0, "---"}, {time.Hour, "----"}}, retrip.Open},
		{"after a silence of windows", []ends{{0, "+++"}, {20 * s, "-"}, {25 * s, "---"}}, retrip.Open},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				base := newGate(t)
				rt := retrip.New(base, once, brittle(func(b *retrip.Breaker) {
					b.Failures, b.FailureRate, b.Window, b.MinAttempts = 0, 0.5, 10*s, 4
				}))
				began := time.Now()
				for _, e := range tt.events {
					time.Sleep(e.at - time.Since(began))
					for _, o := range e.outcomes {
						tr := start(rt, requestTo(t, testHost))
						require.False(t, tr.over.Load(), "the breaker opened early")
						base.let(base.len()-1, map[rune]step{'+': answer(200), '-': answer(500), 'o': panics}[o])
					}
				}
				require.Equal(t, tt.want, statsOf(t, rt, testHost).State)
			})
		})
	}
}

// 0.55*100 is more than 55 in floating point.
func TestARateIsReachedExactly(t *testing.T) {
	t.Parallel()
	for _, percent := range []int{7, 10, 14, 28, 33, 50, 55, 56, 70, 100} {
		steps := append(slices.Repeat([]step{answer(200)}, 100-percent), answer(500))
		rt := retrip.New(play(steps...), once, brittle(func(b *retrip.Breaker) {
			b.Failures, b.FailureRate, b.Window, b.MinAttempts = 0, float64(percent)/100, time.Hour, 100
		}))
		for range 100 {
			_, err := get(t, rt, testHost)
			require.NoError(t, err)
		}
		require.Equal(t, retrip.Open, statsOf(t, rt, testHost).State, "%d failures of 100", percent)
	}
}

func TestOpeningEmptiesTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(play(answer(500), answer(500), answer(200), answer(500)), once, brittle(func(b *retrip.Breaker) {
			b.Failures, b.FailureRate, b.Window, b.MinAttempts = 0, 0.5, time.Hour, 2
		}))
		get(t, rt, testHost)
		get(t, rt, testHost)
		time.Sleep(30 * time.Second)
		get(t, rt, testHost) // closes it
		get(t, rt, testHost)
		require.Equal(t, retrip.Closed, statsOf(t, rt, testHost).State, "one failure since it closed")
		get(t, rt, testHost)
		require.Equal(t, retrip.Open, statsOf(t, rt, testHost).State)
	})
}

func TestCooldownsClimbAndStartAnewAfterClosing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(503))
		ladder := []time.Duration{
			5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute,
		}
		require.Equal(t, ladder, retrip.DefaultBreaker().Cooldowns)
		rt := retrip.New(base, once, brittle(func(b *retrip.Breaker) { b.Successes, b.Cooldowns = 2, ladder }))
		trip := func(trips int, cooldown time.Duration) {
			calls := len(base.attempts())
			status, err := get(t, rt, testHost)
			require.NoError(t, err)
			require.Equal(t, 503, status)
			until := time.Now().Add(cooldown)
			for _, pause := range []time.Duration{0, cooldown - 1} {
				time.Sleep(pause)
				requireRefused(t, rt, testHost, until)
				stats := statsOf(t, rt, testHost)
				require.Equal(t, retrip.Open, stats.State)
				require.Equal(t, until, stats.Until)
				require.Equal(t, trips, stats.Trips)
			}
			require.Len(t, base.attempts(), calls+1, "a refusal reached the base")
			time.Sleep(time.Nanosecond)
		}
		for i, cooldown := range append(ladder, 5*time.Minute) {
			trip(i+1, cooldown)
		}
		base.steps = []step{answer(200)}
		get(t, rt, testHost)
		get(t, rt, testHost)
		stats := statsOf(t, rt, testHost)
		require.Equal(t, retrip.Closed, stats.State)
		require.Zero(t, stats.Trips)
		require.True(t, stats.Until.IsZero())
		base.steps = []step{answer(503)}
		trip(1, 5*time.Second)
		require.Equal(t, uint64(18), statsOf(t, rt, testHost).Refused)
	})
}

func TestHalfOpenAdmitsItsProbesAndNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := newGate(t)
		rt := retrip.New(base, once, brittle(func(b *retrip.Breaker) { b.Probes = 3 }))
		start(rt, requestTo(t, testHost))
		base.let(0, answer(500))
		time.Sleep(30 * time.Second)
		until := time.Now().Add(30 * time.Second)

		var wg sync.WaitGroup
		refused := make(chan error, 100)
		bodies := make([]*trackedBody, 100)
		for i := range bodies {
			bodies[i] = track("hello")
			req := request(t, http.MethodPost, bodies[i])
			wg.Go(func() {
				if _, err := rt.RoundTrip(req); err != nil {
					refused <- err
				}
			})
		}
		synctest.Wait()
		require.Equal(t, 1+3, base.len())
		require.Len(t, refused, 97)
		for range 97 {
			require.Equal(t, &retrip.OpenError{Host: testHost, Until: until}, <-refused)
		}
		for i := range 3 {
			_ = base.reqs[1+i].Body.Close()
			base.let(1+i, answer(200))
		}
		wg.Wait()
		for _, body := range bodies {
			body.requireClosed(t)
		}
		require.Equal(t, retrip.Closed, statsOf(t, rt, testHost).State)
		require.Equal(t, uint64(97), statsOf(t, rt, testHost).Refused)
	})
}

func TestSuccessesInARowCloseTheBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(500))
		rt := retrip.New(base, once, brittle(func(b *retrip.Breaker) { b.Successes = 3 }))
		get(t, rt, testHost)
		for _, tt := range []struct {
			after  time.Duration
			status int
			want   retrip.State
			trips  int
		}{
			{30 * time.Second, 200, retrip.HalfOpen, 1},
			{0, 404, retrip.HalfOpen, 1}, // an answer is a success
			{0, 503, retrip.Open, 2},
			{time.Minute, 200, retrip.HalfOpen, 2},
			{time.Hour, 429, retrip.HalfOpen, 2},
			{0, 200, retrip.Closed, 0},
		} {
			time.Sleep(tt.after)
			base.steps = []step{answer(tt.status)}
			status, err := get(t, rt, testHost)
			require.NoError(t, err)
			require.Equal(t, tt.status, status)
			stats := statsOf(t, rt, testHost)
			require.Equal(t, tt.want, stats.State)
			require.Equal(t, tt.trips, stats.Trips)
			require.Equal(t, tt.want == retrip.Open, !stats.Until.IsZero(), "Until is set while Open")
		}
	})
}

func TestAProbeIsOneAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reasons []retrip.Reason
		base := play(answer(503))
		rt := retrip.New(base, brittle(nil), retrip.WithTrace(&retrip.Trace{
			GaveUp: func(i retrip.GaveUpInfo) { reasons = append(reasons, i.Reason) },
		}))
		status, err := get(t, rt, testHost) // opens it
		require.NoError(t, err)
		require.Equal(t, 503, status)
		time.Sleep(30 * time.Second)
		tokens := statsOf(t, rt, testHost).Tokens
		status, err = get(t, rt, testHost)
		require.NoError(t, err)
		require.Equal(t, 503, status)
		require.Equal(t, []time.Duration{30 * time.Second}, base.pauses())
		require.Equal(t, []retrip.Reason{retrip.ReasonBreaker, retrip.ReasonBreaker}, reasons)
		require.Equal(t, tokens, statsOf(t, rt, testHost).Tokens)
	})
}

// A probe whose result says neither success nor failure, or that leaves the
// breaker HalfOpen, has no further attempt either.
func TestAProbeThatIsAnsweredWithAThrottleIsOneAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(500), answer(429, "Retry-After", "1"), answer(200))
		rt := retrip.New(base, brittle(func(b *retrip.Breaker) { b.Successes = 2 }))
		get(t, rt, testHost)
		time.Sleep(30 * time.Second)
		status, err := get(t, rt, testHost)
		require.NoError(t, err)
		require.Equal(t, 429, status)
		require.Equal(t, retrip.HalfOpen, statsOf(t, rt, testHost).State)
	})
}

func TestARetryThatLandsInHalfOpenIsItsRequestsLastAttempt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		second int
		want   retrip.State
		reason retrip.Reason // of giving up; 0: none
	}{{"failure", 502, retrip.Open, retrip.ReasonBreaker}, {"success", 200, retrip.Closed, 0}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var reason retrip.Reason
				base := play(answer(500), answer(tt.second), answer(200))
				rt := retrip.New(base, retrip.WithBackoff(retrip.Constant(time.Second)),
					brittle(func(b *retrip.Breaker) { b.Cooldowns = []time.Duration{time.Second} }),
					retrip.WithTrace(&retrip.Trace{GaveUp: func(i retrip.GaveUpInfo) { reason = i.Reason }}))
				resp, err := rt.RoundTrip(request(t, http.MethodGet, nil))
				require.NoError(t, err)
				require.Equal(t, tt.second, resp.StatusCode)
				require.Equal(t, "x", finish(t, resp))
				require.Equal(t, []time.Duration{time.Second}, base.pauses())
				require.Equal(t, tt.want, statsOf(t, rt, testHost).State)
				require.Equal(t, tt.reason, reason)
			})
		})
	}
}

func TestAProbeThatSaysNothingGivesItsSlotBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		step  step
		trace retrip.Trace
		panic any
	}{
		{name: "cancelled", step: hang},
		{name: "panic of the base", step: panics, panic: "boom"},
		{name: "local fault", step: fail(errors.New("http: no Host in request URL"))},
		{name: "panic of a hook before the attempt", step: answer(200), panic: "hook", trace: retrip.Trace{
			BreakerMoved: func(i retrip.BreakerMovedInfo) {
				if i.To == retrip.HalfOpen {
					panic("hook")
				}
			},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				base := play(answer(500), tt.step)
				rt := retrip.New(base, once, brittle(nil))
				get(t, rt, testHost)
				time.Sleep(30 * time.Second)

				ctx, cancel := context.WithCancel(retrip.Override(t.Context(), retrip.WithTrace(&tt.trace)))
				body := track("hello")
				probe := start(rt, request(t, http.MethodPut, body).WithContext(ctx))
				cancel()
				synctest.Wait()
				require.True(t, probe.over.Load())
				require.Equal(t, tt.panic, probe.panicked)
				require.Nil(t, probe.resp)
				require.NotZero(t, body.closes)
				stats := statsOf(t, rt, testHost)
				require.Equal(t, retrip.HalfOpen, stats.State)
				require.Equal(t, 1, stats.Trips)

				base.steps = []step{answer(200)}
				status, err := get(t, rt, testHost)
				require.NoError(t, err, "the slot is still taken")
				require.Equal(t, 200, status)
				require.Equal(t, retrip.Closed, statsOf(t, rt, testHost).State)
			})
		})
	}
}

// replayFails is a PUT whose GetBody fails.
func replayFails(t *testing.T) *http.Request {
	req := request(t, http.MethodPut, strings.NewReader("hello"))
	req.GetBody = func() (io.ReadCloser, error) { return nil, errUnheardOf }
	return req
}

func TestAFailingGetBodyIsNotTheHostsFault(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		failures int
		want     retrip.State
	}{{"closed", 2, retrip.Closed}, {"as a probe", 1, retrip.HalfOpen}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := retrip.New(play(answer(500), answer(200)), retrip.WithBackoff(retrip.Constant(time.Second)),
					brittle(func(b *retrip.Breaker) { b.Failures, b.Cooldowns = tt.failures, []time.Duration{time.Second} }))
				_, err := rt.RoundTrip(replayFails(t))
				require.Same(t, errUnheardOf, err)
				stats := statsOf(t, rt, testHost)
				require.Equal(t, tt.want, stats.State)
				require.Equal(t, uint64(1), stats.Attempts)
				status, err := get(t, rt, testHost)
				require.NoError(t, err)
				require.Equal(t, 200, status)
			})
		})
	}
}

func TestALostProbesSlotIsTakenBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		late step
	}{{"success", answer(200)}, {"failure", answer(500)}, {"panic", panics}} {
		t.Run("its late "+tt.name+" is dropped", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				base := newGate(t)
				rt := retrip.New(base, once, brittle(nil))
				start(rt, requestTo(t, testHost))
				base.let(0, answer(500))
				time.Sleep(30 * time.Second)

				lost := start(rt, requestTo(t, testHost))
				taken := time.Now().Add(30 * time.Second)
				time.Sleep(30*time.Second - 1)
				requireRefused(t, rt, testHost, taken)
				time.Sleep(time.Nanosecond)
				next := start(rt, requestTo(t, testHost))
				require.Equal(t, 3, base.len(), "the slot is taken back after the cool-down")
				taken = time.Now().Add(30 * time.Second)

				base.let(1, tt.late)
				require.True(t, lost.over.Load(), "the caller has its result all the same")
				require.Equal(t, retrip.HalfOpen, statsOf(t, rt, testHost).State)
				require.Equal(t, 1, statsOf(t, rt, testHost).Trips)
				requireRefused(t, rt, testHost, taken)

				base.let(2, answer(200))
				require.Equal(t, 200, next.resp.StatusCode)
				require.Equal(t, retrip.Closed, statsOf(t, rt, testHost).State)
			})
		})
	}
}

func TestAResultOfAnEarlierStateIsDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := newGate(t)
		rt := retrip.New(base, once, brittle(func(b *retrip.Breaker) { b.Probes = 2 }))
		state := func() retrip.State { return statsOf(t, rt, testHost).State }
		for range 4 {
			start(rt, requestTo(t, testHost))
		}
		base.let(0, answer(500))
		until := statsOf(t, rt, testHost).Until
		time.Sleep(time.Second)
		base.let(1, answer(500))
		require.Equal(t, until, statsOf(t, rt, testHost).Until, "a late failure does not lengthen the cool-down")
		time.Sleep(30 * time.Second)
		for range 2 {
			start(rt, requestTo(t, testHost)) // 4 and 5, probes
		}
		base.let(2, answer(200))
		require.Equal(t, retrip.HalfOpen, state(), "it was not a probe")
		base.let(4, answer(200))
		require.Equal(t, retrip.Closed, state())
		base.let(5, answer(500))
		base.let(3, answer(500))
		require.Equal(t, retrip.Closed, state())
	})
}

func TestAnOpenBreakerEndsTheRequestBeforeThePause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var gave retrip.GaveUpInfo
		base := play(answer(503))
		rt := retrip.New(base, retrip.WithBackoff(retrip.Constant(time.Second)),
			brittle(func(b *retrip.Breaker) { b.Failures = 5 }),
			retrip.WithTrace(&retrip.Trace{GaveUp: func(i retrip.GaveUpInfo) { gave = i }}))
		get(t, rt, testHost)
		require.Equal(t, retrip.ReasonAttempts, gave.Reason)
		began := time.Now()
		resp, err := rt.RoundTrip(request(t, http.MethodGet, nil))
		require.NoError(t, err)
		require.Zero(t, time.Since(began))
		require.Len(t, base.attempts(), 5)
		require.Equal(t, 503, resp.StatusCode)
		require.Equal(t, "x", finish(t, resp))
		require.Equal(t, retrip.ReasonBreaker, gave.Reason)
		require.Same(t, resp, gave.Attempt.Response)
		require.NoError(t, gave.Err)
		require.Equal(t, 10-3.0, statsOf(t, rt, testHost).Tokens, "a retry that is not made costs nothing")
	})
}

func TestARefusalAfterThePauseTellsTheLastFailure(t *testing.T) {
	t.Parallel()
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	for _, tt := range []struct {
		name   string
		first  step
		status int
		err    error
		text   string
	}{
		{"response", answer(502), 502, nil, "502"},
		{"error", fail(reset), 0, reset, "connection reset by peer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var gave retrip.GaveUpInfo
				base := play(tt.first, answer(500))
				rt := retrip.New(base, retrip.WithBackoff(retrip.Constant(10*time.Second)),
					brittle(func(b *retrip.Breaker) { b.Failures = 2 }))
				body := track("secret")
				ctx := retrip.Override(t.Context(), retrip.WithTrace(&retrip.Trace{GaveUp: func(i retrip.GaveUpInfo) { gave = i }}))
				tr := start(rt, request(t, http.MethodPut, body).WithContext(ctx))
				time.Sleep(4 * time.Second)
				get(t, rt, testHost) // opens it
				until := time.Now().Add(30 * time.Second)
				time.Sleep(6 * time.Second)
				synctest.Wait()
				require.True(t, tr.over.Load())
				require.Nil(t, tr.resp)
				e, ok := tr.err.(*retrip.Error)
				require.True(t, ok, "%T", tr.err)
				require.Equal(t, retrip.ReasonBreaker, e.Reason)
				require.Equal(t, 10*time.Second, e.Elapsed)
				require.Len(t, e.Attempts, 1)
				require.Equal(t, tt.status, e.Attempts[0].Status)
				open, ok := errors.AsType[*retrip.OpenError](tr.err)
				require.True(t, ok)
				require.Equal(t, &retrip.OpenError{Host: testHost, Until: until}, open)
				if tt.err != nil {
					require.ErrorIs(t, tr.err, tt.err)
				}
				require.Equal(t, fmt.Sprintf("retrip: PUT example.com: gave up after 1 of 4 attempts in 10s (breaker open until %s): %s",
					until.Format("15:04:05.000"), tt.text), tr.err.Error())
				require.Equal(t, retrip.ReasonBreaker, gave.Reason)
				require.Same(t, tr.err, gave.Err)
				require.Len(t, base.attempts(), 2)
				body.requireClosed(t)
			})
		})
	}
}

func TestARefusalNamesTheHostAndTheTimeAndNothingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(500))
		rt := retrip.New(base, brittle(nil))
		get(t, rt, testHost)
		until := time.Now().Add(30 * time.Second)
		body := track("secret")
		req := request(t, http.MethodPost, body)
		req.URL.User = url.UserPassword("secret", "secret")
		req.URL.Path, req.URL.RawQuery = "/secret", "secret"
		req.URL.Host = "EXAMPLE.com"
		resp, err := rt.RoundTrip(req)
		require.Nil(t, resp)
		require.Equal(t, &retrip.OpenError{Host: testHost, Until: until}, err)
		require.EqualError(t, err, "retrip: breaker of example.com is open until "+until.Format("15:04:05.000"))
		body.requireClosed(t)
		require.Len(t, base.attempts(), 1)
	})
}

func TestEachHostHasItsOwnBreaker(t *testing.T) {
	t.Parallel()
	firstLabel := func(req *http.Request) string {
		name, _, _ := strings.Cut(req.URL.Host, ".")
		return name
	}
	for _, tt := range []struct {
		name   string
		sick   string
		other  string
		key    func(*http.Request) string
		shared bool
	}{
		{"two hosts", "a.example", "b.example", nil, false},
		{"two ports", "a.example:81", "a.example:82", nil, false},
		{"with and without port", "a.example", "a.example:80", nil, false},
		{"case", "a.example", "A.Example", nil, true},
		{"case the other way", "A.EXAMPLE", "a.example", nil, true},
		{"one key", "a.example", "a.test", firstLabel, true},
		{"two keys", "a.example", "b.example", firstLabel, false},
		{"keys have case", "a.example", "A.example", firstLabel, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rt := retrip.New(byHost(map[string]step{tt.sick: answer(500), tt.other: answer(200)}),
				once, brittle(nil), retrip.WithHosts(10, tt.key))
			get(t, rt, tt.sick)
			_, err := get(t, rt, tt.other)
			require.Equal(t, tt.shared, isOpen(err))
			require.Len(t, hostNames(rt), map[bool]int{true: 1, false: 2}[tt.shared])
			_, err = get(t, rt, tt.sick)
			require.True(t, isOpen(err))
		})
	}
}

func TestWithoutABreakerNoHostIsRefused(t *testing.T) {
	t.Parallel()
	rt := retrip.New(play(fail(errUnheardOf)), retrip.WithBreaker(nil))
	for range 100 {
		_, err := get(t, rt, testHost)
		require.Same(t, errUnheardOf, err)
	}
	stats := statsOf(t, rt, testHost)
	require.Equal(t, retrip.Closed, stats.State)
	require.Equal(t, uint64(100), stats.Attempts)
}

func TestABreakerIsCopiedWhenItIsSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := retrip.DefaultBreaker()
		b.Failures = 1
		rt := retrip.New(play(answer(500)), once, retrip.WithBreaker(&b))
		b.Failures, b.Cooldowns[0] = 100, time.Hour
		get(t, rt, testHost)
		requireRefused(t, rt, testHost, time.Now().Add(5*time.Second))
	})
}

func TestHooksHearOfEachChangeOnceAndInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var first, second []retrip.BreakerMovedInfo
		hear := func(to *[]retrip.BreakerMovedInfo) retrip.Option {
			return retrip.WithTrace(&retrip.Trace{BreakerMoved: func(i retrip.BreakerMovedInfo) { *to = append(*to, i) }})
		}
		base := play(answer(500), answer(500), answer(200))
		rt := retrip.New(base, once, brittle(nil), hear(&first), hear(&second))
		began := time.Now()
		get(t, rt, testHost)
		get(t, rt, testHost) // refused: no change
		time.Sleep(30 * time.Second)
		get(t, rt, testHost)
		time.Sleep(time.Minute)
		get(t, rt, testHost)
		get(t, rt, testHost)
		want := []retrip.BreakerMovedInfo{
			{Host: testHost, From: retrip.Closed, To: retrip.Open, Until: began.Add(30 * time.Second), Trips: 1},
			{Host: testHost, From: retrip.Open, To: retrip.HalfOpen},
			{Host: testHost, From: retrip.HalfOpen, To: retrip.Open, Until: began.Add(90 * time.Second), Trips: 2},
			{Host: testHost, From: retrip.Open, To: retrip.HalfOpen},
			{Host: testHost, From: retrip.HalfOpen, To: retrip.Closed},
		}
		require.Equal(t, want, first)
		require.Equal(t, want, second)
	})
}

func TestOnlyTheRequestThatMovedTheBreakerTellsItsHooks(t *testing.T) {
	t.Parallel()
	moved := 0
	hook := retrip.WithTrace(&retrip.Trace{BreakerMoved: func(retrip.BreakerMovedInfo) { moved++ }})
	rt := retrip.New(play(answer(500)), once, brittle(nil))
	send := func(host string, opts ...retrip.CallOption) {
		req := requestTo(t, host)
		_, _ = rt.RoundTrip(req.WithContext(retrip.Override(req.Context(), opts...)))
	}
	send("a.example")
	send("a.example", hook)
	require.Zero(t, moved, "it opened without the hook")
	send("b.example", hook)
	require.Equal(t, 1, moved)
}

// Case B38.
func TestAHookMayUseTheTransport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var heard []string
		var rt *retrip.Transport
		base := play(answer(500), answer(200))
		rt = retrip.New(base, once, brittle(func(b *retrip.Breaker) { b.Cooldowns = []time.Duration{time.Second} }),
			retrip.WithTrace(&retrip.Trace{BreakerMoved: func(i retrip.BreakerMovedInfo) {
				heard = append(heard, fmt.Sprintf("%v to %v, now %v", i.From, i.To, statsOf(t, rt, i.Host).State))
				if i.To == retrip.Open {
					_, err := get(t, rt, i.Host)
					require.True(t, isOpen(err))
					time.Sleep(time.Second)
					get(t, rt, i.Host) // a probe that closes it, told when this hook returns
					require.Len(t, heard, 1)
				}
			}}))
		get(t, rt, testHost)
		require.Equal(t, []string{
			"closed to open, now open", "open to half-open, now closed", "half-open to closed, now closed",
		}, heard)
	})
}

func TestAPanicInAHookDoesNotPoisonTheBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var heard []retrip.State
		bodies := 0
		base := play(func(req *http.Request) (*http.Response, error) {
			resp, _ := answer(500)(req)
			resp.Body = closeFunc{resp.Body, func() { bodies++ }}
			return resp, nil
		}, answer(200))
		rt := retrip.New(base, once, brittle(nil), retrip.WithTrace(&retrip.Trace{BreakerMoved: func(i retrip.BreakerMovedInfo) {
			heard = append(heard, i.To)
			if i.To == retrip.Open {
				panic("hook")
			}
		}}))
		require.PanicsWithValue(t, "hook", func() { get(t, rt, testHost) })
		require.Equal(t, 1, bodies, "the response that the caller does not get is closed")
		requireRefused(t, rt, testHost, time.Now().Add(30*time.Second))
		time.Sleep(30 * time.Second)
		status, err := get(t, rt, testHost)
		require.NoError(t, err)
		require.Equal(t, 200, status)
		require.Equal(t, []retrip.State{retrip.Open, retrip.HalfOpen, retrip.Closed}, heard)
	})
}

type closeFunc struct {
	io.Reader
	close func()
}

func (c closeFunc) Close() error { c.close(); return nil }

func TestConcurrentRequestsMoveEachBreakerStepByStep(t *testing.T) {
	t.Parallel()
	const workers, requests = 8, 300
	hosts := []string{"a.example", "b.example"}
	var mu sync.Mutex
	heard := map[string][]retrip.BreakerMovedInfo{}
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		runtime.Gosched()
		return answer(200 + 300*rand.IntN(2))(req)
	})
	rt := retrip.New(base, retrip.WithMaxAttempts(2), retrip.WithBackoff(retrip.Constant(0)),
		brittle(func(b *retrip.Breaker) { b.Failures, b.Probes, b.Cooldowns = 2, 2, []time.Duration{1} }),
		retrip.WithTrace(&retrip.Trace{BreakerMoved: func(i retrip.BreakerMovedInfo) {
			mu.Lock()
			defer mu.Unlock()
			heard[i.Host] = append(heard[i.Host], i)
		}}))
	var wg sync.WaitGroup
	for w := range workers {
		reqs := []*http.Request{requestTo(t, hosts[w%2]), requestTo(t, hosts[1-w%2])}
		wg.Go(func() {
			for i := range requests {
				if resp, err := rt.RoundTrip(reqs[i%2]); err == nil {
					_ = resp.Body.Close()
				}
			}
		})
	}
	wg.Wait()
	for _, host := range hosts {
		stats := statsOf(t, rt, host)
		require.Equal(t, uint64(workers*requests/2), stats.Requests)
		require.NotEmpty(t, heard[host])
		state, trips := retrip.Closed, 0
		for _, i := range heard[host] {
			require.Equal(t, state, i.From, "a change was lost or out of order")
			switch i.To {
			case retrip.Open:
				trips++
				require.Equal(t, trips, i.Trips)
				require.False(t, i.Until.IsZero())
			case retrip.HalfOpen:
				require.Equal(t, retrip.Open, i.From)
			case retrip.Closed:
				require.Equal(t, retrip.HalfOpen, i.From)
				trips = 0
			}
			state = i.To
		}
		require.Equal(t, stats.State, state)
		require.Equal(t, stats.Trips, trips)
	}
}

// tick sends a request to each host, one a nanosecond.
func tick(t testing.TB, rt http.RoundTripper, hosts ...string) {
	t.Helper()
	for _, host := range hosts {
		time.Sleep(time.Nanosecond)
		_, _ = get(t, rt, host)
	}
}

// sick is a base that fails for the hosts whose name begins with "sick".
var sick = roundTrip(func(req *http.Request) (*http.Response, error) {
	if strings.HasPrefix(req.URL.Host, "sick") {
		return answer(500)(req)
	}
	return answer(200)(req)
})

// Case B39.
func TestTheTableOfHostsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(sick, once, brittle(nil), retrip.WithHosts(100, nil))
		var last []string
		for i := range 10_000 {
			host := fmt.Sprintf("h%d", i)
			if i%3 == 0 {
				host = "sick" + host
			}
			tick(t, rt, host)
			if i%97 == 0 {
				require.LessOrEqual(t, len(hostNames(rt)), 100)
			}
			last = append(last, host)
		}
		require.Len(t, hostNames(rt), 100)
		require.Equal(t, last[len(last)-1], hostNames(rt)[0])
	})
}

func TestWhichHostIsForgotten(t *testing.T) {
	t.Parallel()
	wait := func(d time.Duration) func(*testing.T, *retrip.Transport) {
		return func(*testing.T, *retrip.Transport) { time.Sleep(d) }
	}
	use := func(hosts ...string) func(*testing.T, *retrip.Transport) {
		return func(t *testing.T, rt *retrip.Transport) { tick(t, rt, hosts...) }
	}
	type acts []func(*testing.T, *retrip.Transport)
	for _, tt := range []struct {
		name string
		acts acts // before the host "new" is used, with room for three
		want []string
	}{
		{"the least recently used", acts{use("a", "b", "c")}, []string{"new", "c", "b"}},
		{"use counts, not age", acts{use("a", "b", "c", "a")}, []string{"new", "a", "c"}},
		{"healthy ones before one that is open", acts{use("sick", "a", "b")}, []string{"new", "b", "sick"}},
		{"the only healthy one", acts{use("sick1", "sick2", "a")}, []string{"new", "sick2", "sick1"}},
		{"of open ones the least recently used", acts{use("sick1", "sick2", "sick3", "sick1")}, []string{"new", "sick1", "sick3"}},
		{"an open one past its cool-down like a healthy one", acts{use("sick", "a", "b"), wait(30 * time.Second)}, []string{"new", "b", "a"}},
		{"from the very end of its cool-down", acts{use("sick", "a", "b"), wait(30*time.Second - 3)}, []string{"new", "b", "a"}},
		{"an open one just before the end of its cool-down not", acts{use("sick", "a", "b"), wait(30*time.Second - 4)}, []string{"new", "b", "sick"}},
		{"the older of a healthy one and one past its cool-down", acts{use("a", "sick", "b"), wait(30 * time.Second)}, []string{"new", "b", "sick"}},
		{"of open ones the one past its cool-down", acts{
			use("sick1"), wait(30 * time.Second), use("sick1", "sick2", "sick3"), wait(30 * time.Second), use("sick3"),
		}, []string{"new", "sick3", "sick1"}},
		{"one past its cool-down, though another is open longer", acts{
			use("sick1"), wait(30 * time.Second), use("sick1", "sick2"), wait(30 * time.Second), use("a"),
		}, []string{"new", "a", "sick1"}},
		{"half-open is not open", acts{
			func(t *testing.T, rt *retrip.Transport) {
				tick(t, rt, "sick")
				time.Sleep(30 * time.Second)
				req := requestTo(t, "sick")
				ctx := retrip.Override(req.Context(), retrip.WithTrace(&retrip.Trace{
					BreakerMoved: func(retrip.BreakerMovedInfo) { panic("so the probe gives its slot back") },
				}))
				require.Panics(t, func() { _, _ = rt.RoundTrip(req.WithContext(ctx)) })
			},
			use("a", "b"),
		}, []string{"new", "b", "a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := retrip.New(sick, once, brittle(nil), retrip.WithHosts(3, nil))
				for _, act := range tt.acts {
					act(t, rt)
				}
				tick(t, rt, "new")
				require.Equal(t, tt.want, hostNames(rt))
			})
		})
	}
}

func TestAForgottenHostStartsHealthyWithHalfOfInitial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(sick, once, brittle(nil), retrip.WithHosts(1, nil))
		tick(t, rt, "sick")
		require.Equal(t, 10.0, statsOf(t, rt, "sick").Tokens)
		tick(t, rt, "a", "sick")
		stats := statsOf(t, rt, "sick")
		require.Equal(t, 5.0, stats.Tokens)
		require.Equal(t, uint64(1), stats.Requests)
		require.Equal(t, uint64(1), stats.Attempts)
		require.Equal(t, 1, stats.Trips, "it was closed and opened anew")
		require.Equal(t, time.Now().Add(30*time.Second), stats.Until)
	})
}

func TestAResultForAForgottenHostDoesNotDisturbItsSuccessor(t *testing.T) {
	t.Parallel()
	for _, probe := range []bool{false, true} {
		for _, late := range []int{200, 500} {
			t.Run(fmt.Sprintf("%d, probe %v", late, probe), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					base := newGate(t)
					rt := retrip.New(base, once, brittle(nil), retrip.WithHosts(1, nil))
					send := func(host string, s step) {
						start(rt, requestTo(t, host))
						base.let(base.len()-1, s)
					}
					if probe {
						send("a", answer(500))
						time.Sleep(30 * time.Second)
					}
					old := start(rt, requestTo(t, "a"))
					oldIndex := base.len() - 1
					send("b", answer(200)) // a is forgotten
					send("a", answer(404))
					want := statsOf(t, rt, "a")
					require.Equal(t, uint64(1), want.Requests)

					base.let(oldIndex, answer(late))
					require.Equal(t, late, old.resp.StatusCode)
					require.Equal(t, want, statsOf(t, rt, "a"))
					send("a", answer(500))
					require.Equal(t, retrip.Open, statsOf(t, rt, "a").State)
					require.Equal(t, []string{"a"}, hostNames(rt))
				})
			})
		}
	}
}

func TestHostsAreListedByTheirLastUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(sick, once, brittle(nil))
		require.Empty(t, hostNames(rt))
		tick(t, rt, "a", "sick", "b", "c", "a", "sick")
		require.Equal(t, []string{"sick", "a", "c", "b"}, hostNames(rt))
		require.Equal(t, time.Now(), statsOf(t, rt, "sick").Used, "a refused attempt was asked for, too")
		require.Equal(t, time.Now().Add(-1), statsOf(t, rt, "a").Used)
	})
}

// Clocks may stand still for milliseconds.
func TestHostsUsedAtOneInstantAreListedByTheirLastUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(sick, once)
		for _, host := range []string{"a", "b", "c", "a"} {
			get(t, rt, host)
		}
		require.Equal(t, []string{"a", "c", "b"}, hostNames(rt))
	})
}

func TestHostsIsASnapshot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(sick, once, retrip.WithHosts(2, nil))
		tick(t, rt, "a", "b")
		hosts := rt.Hosts()
		before := maps.Collect(hosts)
		seen := 0
		for host, stats := range hosts {
			tick(t, rt, "a", "c", "d") // no lock is held
			require.Equal(t, before[host], stats)
			seen++
		}
		require.Equal(t, 2, seen)
		require.Equal(t, before, maps.Collect(hosts))
		for host := range hosts {
			require.Equal(t, "b", host)
			break
		}
		require.Equal(t, []string{"d", "c"}, hostNames(rt))
	})
}

func TestTheZeroTransportKnowsNoHosts(t *testing.T) {
	t.Parallel()
	require.Empty(t, hostNames(&retrip.Transport{}))
}

func TestHostStatsCountRequestsAndAttempts(t *testing.T) {
	t.Parallel()
	type counts struct{ requests, attempts, retries, firstTry, recovered, refused uint64 }
	keyed := func(t *testing.T) *http.Request { return request(t, http.MethodPost, strings.NewReader("hello")) }
	for _, tt := range []struct {
		name     string
		steps    []step
		requests int
		req      func(*testing.T) *http.Request // nil: a plain GET
		want     counts
	}{
		{"at once", []step{answer(200)}, 2, nil, counts{2, 2, 0, 2, 0, 0}},
		{"an answer is what the host has to say", []step{answer(404)}, 1, nil, counts{1, 1, 0, 1, 0, 0}},
		{"at the third attempt", []step{answer(503), fail(io.EOF), answer(200)}, 1, nil, counts{1, 3, 2, 0, 1, 0}},
		{"never", []step{answer(500)}, 1, nil, counts{1, 4, 3, 0, 0, 0}},
		{"refused", []step{answer(500)}, 4, nil, counts{4, 6, 4, 0, 0, 2}},
		{"first try asked to come again", []step{answer(413, "Retry-After", "1"), answer(200)}, 1, nil, counts{1, 2, 1, 0, 1, 0}},
		{"retry met its own first attempt", []step{answer(503), answer(409), answer(200)}, 1, keyed, counts{1, 3, 2, 0, 1, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := retrip.New(play(tt.steps...), brittle(func(b *retrip.Breaker) { b.Failures = 6 }))
				for range tt.requests {
					req := request(t, http.MethodGet, nil)
					if tt.req != nil {
						req = tt.req(t)
					}
					if resp, err := rt.RoundTrip(req); err == nil {
						finish(t, resp)
					}
				}
				s := statsOf(t, rt, testHost)
				require.Equal(t, tt.want, counts{s.Requests, s.Attempts, s.Retries, s.FirstTry, s.Recovered, s.Refused})
				require.Equal(t, 20.0, s.Capacity)
			})
		})
	}
}

// Not parallel: it measures the heap.
func TestAHostCostsAtMost512Bytes(t *testing.T) {
	const hosts = 10_000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, tt := range []struct {
		name   string
		prefix string // of the hosts
		long   int    // how much of it
		key    func(*http.Request) string
	}{
		{"healthy", "host", 0, nil},
		{"open", "sick", 0, nil},
		{"long URLs", "host", 4 << 10, nil},
		{"long URLs in upper case", "HOST", 4 << 10, nil},
		{"long URLs with a key", "host", 4 << 10, func(req *http.Request) string { return req.URL.Host }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := requestTo(t, testHost)
			before := heap()
			rt := retrip.New(sick, once, brittle(nil), retrip.WithHosts(hosts, tt.key))
			path := "/" + strings.Repeat("x", tt.long)
			for i := range hosts {
				host := fmt.Sprintf("%s-%05d.example.com:8080", tt.prefix, i)
				whole := "http://" + host + path
				req.URL = &url.URL{Scheme: "http", Host: whole[7 : 7+len(host)], Path: whole[7+len(host):]}
				resp, err := rt.RoundTrip(req)
				require.NoError(t, err)
				_ = resp.Body.Close()
			}
			req.URL = nil
			grown := heap() - before
			require.Len(t, hostNames(rt), hosts)
			require.LessOrEqual(t, int(grown)/hosts, 512, "bytes a host")
		})
	}
}

func TestBreakerOptionsRefuseWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*retrip.Breaker){
		"negative Failures":           func(b *retrip.Breaker) { b.Failures = -1 },
		"negative FailureRate":        func(b *retrip.Breaker) { b.FailureRate = -0.1 },
		"FailureRate over 1":          func(b *retrip.Breaker) { b.FailureRate = 1.1 },
		"FailureRate not a number":    func(b *retrip.Breaker) { b.FailureRate = math.NaN() },
		"no rule":                     func(b *retrip.Breaker) { b.Failures, b.FailureRate = 0, 0 },
		"FailureRate without Window":  func(b *retrip.Breaker) { b.Window = 0 },
		"FailureRate, no MinAttempts": func(b *retrip.Breaker) { b.MinAttempts = 0 },
		"no cool-down":                func(b *retrip.Breaker) { b.Cooldowns = nil },
		"cool-down of nothing":        func(b *retrip.Breaker) { b.Cooldowns = []time.Duration{time.Second, 0} },
		"no probe":                    func(b *retrip.Breaker) { b.Probes = 0 },
		"no success":                  func(b *retrip.Breaker) { b.Successes = 0 },
	} {
		b := retrip.DefaultBreaker()
		change(&b)
		requirePanicNames(t, "WithBreaker", name, func() { retrip.WithBreaker(&b) })
	}
	requirePanicNames(t, "WithHosts", "no host", func() { retrip.WithHosts(0, nil) })
	b := retrip.DefaultBreaker()
	b.FailureRate, b.Window, b.MinAttempts = 0, 0, 0
	require.NotPanics(t, func() { retrip.WithBreaker(&b) }, "without a rate it needs no window")
}

// requirePanicNames fails unless f panics with a text that names the option.
func requirePanicNames(t *testing.T, option, name string, f func()) {
	t.Helper()
	defer func() { require.Contains(t, recover(), "retrip: "+option+"(", name) }()
	f()
}

func TestStatesHaveNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "closed open half-open State(9)", fmt.Sprint(retrip.Closed, " ", retrip.Open, " ", retrip.HalfOpen, " ", retrip.State(9)))
}

// A breakerModel is one host's breaker as the documentation tells it, in the
// plainest code.
type breakerModel struct {
	retrip.Breaker
	state  retrip.State
	until  time.Time
	trips  int
	row    int // failures while Closed, successes while HalfOpen
	window []modelEnd
	probes []*modelTicket
	moves  []retrip.BreakerMovedInfo
	lost   int // probes whose slots were taken back
}

type modelEnd struct {
	at      time.Time
	failure bool
}

type modelTicket struct {
	since   time.Time
	changes int // of state, before it was admitted
}

func (m *breakerModel) cooldown() time.Duration { return m.Cooldowns[min(m.trips, len(m.Cooldowns))-1] }

func (m *breakerModel) move(to retrip.State) {
	info := retrip.BreakerMovedInfo{Host: testHost, From: m.state, To: to}
	m.state, m.row, m.window, m.probes = to, 0, nil, nil
	switch to {
	case retrip.Open:
		m.trips++
		m.until = time.Now().Add(m.cooldown())
		info.Until, info.Trips = m.until, m.trips
	case retrip.Closed:
		m.trips = 0
	}
	m.moves = append(m.moves, info)
}

// admit returns a ticket, or the time until which the attempt is refused.
func (m *breakerModel) admit() (*modelTicket, time.Time) {
	now := time.Now()
	if m.state == retrip.Open {
		if now.Before(m.until) {
			return nil, m.until
		}
		m.move(retrip.HalfOpen)
	}
	k := &modelTicket{since: now, changes: len(m.moves)}
	if m.state == retrip.HalfOpen {
		if len(m.probes) > 0 && now.Sub(m.probes[0].since) >= m.cooldown() {
			m.probes, m.lost = m.probes[1:], m.lost+1
			return m.admit()
		}
		if len(m.probes) == m.Probes {
			return nil, m.probes[0].since.Add(m.cooldown())
		}
		m.probes = append(m.probes, k)
	}
	return k, time.Time{}
}

// end takes the result of an attempt: '+', '-', or 'o' for neither.
func (m *breakerModel) end(k *modelTicket, result byte) {
	if k.changes != len(m.moves) {
		return
	}
	if m.state == retrip.HalfOpen {
		i := slices.Index(m.probes, k)
		if i < 0 {
			return
		}
		m.probes = slices.Delete(m.probes, i, i+1)
	}
	switch {
	case result == 'o':
	case m.state == retrip.HalfOpen && result == '-':
		m.move(retrip.Open)
	case m.state == retrip.HalfOpen:
		if m.row++; m.row == m.Successes {
			m.move(retrip.Closed)
		}
	default:
		m.window = append(m.window, modelEnd{time.Now(), result == '-'})
		m.row++
		if result == '+' {
			m.row = 0
		} else if m.row == m.Failures || m.FailureRate > 0 && m.tooMany() {
			m.move(retrip.Open)
		}
	}
}

func (m *breakerModel) tooMany() bool {
	ended, failed := 0, 0
	for _, e := range m.window {
		if time.Since(e.at) < m.Window {
			ended++
			if e.failure {
				failed++
			}
		}
	}
	return ended >= m.MinAttempts && float64(failed)/float64(ended) >= m.FailureRate
}

// pick returns one of the choices at random.
func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

func randomBreaker(r *rand.Rand) retrip.Breaker {
	const s = time.Second
	b := retrip.Breaker{
		Failures: r.IntN(4), FailureRate: pick(r, 0, 0.4, 0.5, 1), Window: 10 * s, MinAttempts: 1 + r.IntN(5),
		Cooldowns: pick(r, []time.Duration{2 * s}, []time.Duration{5 * s, 3 * s}, []time.Duration{s, 4 * s, 20 * s}),
		Probes:    1 + r.IntN(3), Successes: 1 + r.IntN(3),
	}
	if b.Failures == 0 && b.FailureRate == 0 {
		b.Failures = 1
	}
	return b
}

// An actor drives a Transport and a breakerModel with the same random events.
type actor struct {
	*rand.Rand
	model *breakerModel
	base  *gate
	rt    *retrip.Transport
	heard []retrip.BreakerMovedInfo
	log   []string
	going []underway
}

type underway struct {
	*trip
	index  int // in the gate
	cancel context.CancelFunc
	ticket *modelTicket
}

// begin starts a request, and reports whether the Transport and the model agree
// on admitting it.
func (a *actor) begin(t *testing.T) bool {
	a.log = append(a.log, "begin")
	req := requestTo(t, testHost)
	ctx, cancel := context.WithCancel(req.Context())
	admitted := a.base.len()
	tr := start(a.rt, req.WithContext(ctx))
	k, until := a.model.admit()
	if k == nil {
		cancel()
		var open *retrip.OpenError
		return tr.over.Load() && errors.As(tr.err, &open) && *open == retrip.OpenError{Host: testHost, Until: until}
	}
	a.going = append(a.going, underway{tr, admitted, cancel, k})
	return !tr.over.Load() && a.base.len() == admitted+1
}

// end ends a random attempt.
func (a *actor) end() bool {
	i := a.IntN(len(a.going))
	u := a.going[i]
	a.going = slices.Delete(a.going, i, i+1)
	result := pick(a.Rand, []byte("++++-----oo")...)
	a.log = append(a.log, fmt.Sprintf("attempt %d ends %c", u.index, result))
	defer u.cancel()
	cancelled := func(req *http.Request) (*http.Response, error) {
		u.cancel()
		return nil, req.Context().Err()
	}
	a.base.let(u.index, map[byte]func() step{
		'+': func() step { return pick(a.Rand, answer(200), answer(404), answer(429), answer(501)) },
		'-': func() step { return pick(a.Rand, answer(500), answer(503), fail(io.EOF), fail(errUnheardOf)) },
		'o': func() step { return pick(a.Rand, cancelled, panics, fail(errors.New("net/http: invalid method"))) },
	}[result]())
	a.model.end(u.ticket, result)
	return u.over.Load()
}

// wait lets time pass: whole seconds, so that it does not matter where the parts of
// the window begin, or to just before the end of a cool-down.
func (a *actor) wait() {
	d := time.Duration(pick(a.Rand, 1, 1, 2, 3, 9, 10, 25)) * time.Second
	if left := time.Until(a.model.until); left > 1 && a.IntN(2) == 0 {
		if d = left; a.model.FailureRate == 0 && a.IntN(2) == 0 {
			d--
		}
	}
	a.log = append(a.log, "wait "+d.String())
	time.Sleep(d)
}

func TestTheBreakerAgreesWithItsModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	moves, lost, refused := map[string]int{}, 0, uint64(0)
	synctest.Test(t, func(t *testing.T) {
		for run := range uint64(1500) {
			a := &actor{Rand: rand.New(rand.NewPCG(seed, run)), base: newGate(t)}
			a.model = &breakerModel{Breaker: randomBreaker(a.Rand)}
			a.rt = retrip.New(a.base, once, retrip.WithBreaker(&a.model.Breaker), retrip.WithTrace(&retrip.Trace{
				BreakerMoved: func(i retrip.BreakerMovedInfo) { a.heard = append(a.heard, i) },
			}))
			var stats retrip.HostStats
			for event := 0; event < 60 || len(a.going) > 0; event++ {
				agreed := true
				switch n := a.IntN(10); {
				case event == 0 || event < 60 && n < 5 && len(a.going) < 6:
					agreed = a.begin(t)
				case n < 9 && len(a.going) > 0:
					agreed = a.end()
				default:
					a.wait()
				}
				stats = statsOf(t, a.rt, testHost)
				agreed = agreed && stats.State == a.model.state && stats.Trips == a.model.trips &&
					(stats.State != retrip.Open || stats.Until.Equal(a.model.until)) && slices.Equal(a.heard, a.model.moves)
				if !agreed {
					require.Fail(t, "the breaker and its model disagree", "seed %d, run %d, breaker %+v\n%s\ngot  %+v, heard %v\nwant %+v",
						seed, run, a.model.Breaker, strings.Join(a.log, "\n"), stats, a.heard, a.model)
				}
			}
			for _, m := range a.heard {
				moves[fmt.Sprint(m.From, " to ", m.To)]++
			}
			lost, refused = lost+a.model.lost, refused+stats.Refused
		}
	})
	require.Len(t, moves, 4, "every change was seen")
	require.Positive(t, lost)
	require.Positive(t, refused)
}
