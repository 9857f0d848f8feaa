package retrip_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
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

// A diary is a Trace that keeps what it was told.
type diary struct {
	order     []string
	attempted []retrip.Attempt
	pausing   []retrip.PausingInfo
	gaveUp    []retrip.GaveUpInfo
	moved     []retrip.BreakerMovedInfo
}

func (d *diary) trace() *retrip.Trace {
	note := func(s string) { d.order = append(d.order, s) }
	return &retrip.Trace{
		Attempted:    func(i retrip.AttemptedInfo) { note("attempted"); d.attempted = append(d.attempted, i.Attempt) },
		Pausing:      func(i retrip.PausingInfo) { note("pausing"); d.pausing = append(d.pausing, i) },
		GaveUp:       func(i retrip.GaveUpInfo) { note("gave up"); d.gaveUp = append(d.gaveUp, i) },
		BreakerMoved: func(i retrip.BreakerMovedInfo) { note("moved"); d.moved = append(d.moved, i) },
	}
}

// reasons are those of the give-ups.
func (d *diary) reasons() []retrip.Reason {
	var rs []retrip.Reason
	for _, i := range d.gaveUp {
		rs = append(rs, i.Reason)
	}
	return rs
}

// breakAfter is a breaker that opens after some failures in a row, for a minute.
func breakAfter(failures int) retrip.Option {
	return retrip.WithBreaker(&retrip.Breaker{Failures: failures, Successes: 1, Probes: 1, Cooldowns: []time.Duration{time.Minute}})
}

// tokens is a quota that allows n retries.
func tokens(n float64) retrip.Option {
	return retrip.WithRetryQuota(&retrip.Quota{Capacity: n, Initial: n})
}

func TestHooksTellTheCourseOfARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const took = 100 * time.Millisecond
		d, start := &diary{}, time.Now()
		base := play(after(took, answer(503)), after(took, fail(syscall.ECONNRESET)), after(took, answer(502)))
		rt := retrip.New(base, retrip.WithMaxAttempts(3), retrip.WithTrace(d.trace()),
			retrip.WithBackoff(retrip.Exponential(time.Second, time.Minute)))
		req := request(t, http.MethodPut, strings.NewReader("hello"))
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, []string{"attempted", "pausing", "attempted", "pausing", "attempted", "gave up"}, d.order)

		elapsed := []time.Duration{took, time.Second + 2*took, 3*time.Second + 3*took}
		pauses := []time.Duration{time.Second, 2 * time.Second, 0}
		for i, a := range d.attempted {
			require.Equal(t, i+1, a.Number)
			require.Same(t, req, a.Request)
			require.Equal(t, elapsed[i], a.Elapsed)
			require.Zero(t, a.Pause, "not decided yet")
			require.Equal(t, []error{nil, syscall.ECONNRESET, nil}[i], a.Err)
			require.Equal(t, a.Err == nil, a.Response != nil)
		}
		require.Equal(t, 503, d.attempted[0].Response.StatusCode)
		require.Same(t, resp, d.attempted[2].Response)
		for i, p := range d.pausing {
			want := d.attempted[i]
			want.Pause = pauses[i]
			require.Equal(t, want.Number, p.Attempt.Number)
			require.Equal(t, want.Pause, p.Attempt.Pause)
			require.Equal(t, want.Elapsed, p.Attempt.Elapsed)
			require.True(t, want.Response == p.Attempt.Response && want.Err == p.Attempt.Err)
			require.Equal(t, "example.com", p.Host)
			require.Equal(t, 3, p.MaxAttempts)
			require.Equal(t, start.Add(elapsed[i]+pauses[i]), p.Next)
			require.Equal(t, p.Next, base.attempts()[i+1].at)
		}
		end := d.gaveUp[0]
		require.Equal(t, 3, end.Attempt.Number)
		require.Same(t, resp, end.Attempt.Response)
		require.Equal(t, elapsed[2], end.Attempt.Elapsed)
		require.Equal(t, "example.com", end.Host)
		require.Equal(t, 3, end.MaxAttempts)
		require.Equal(t, retrip.ReasonAttempts, end.Reason)
		require.NoError(t, end.Err)
	})
}

func TestNothingIsGivenUpThatEndsInAFinalResponse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		statuses []int
		order    string
	}{
		{"a success", []int{200}, "attempted"},
		{"a client error", []int{404}, "attempted"},
		{"a success on a retry", []int{503, 200}, "attempted pausing attempted"},
		{"a client error on a retry", []int{503, 404}, "attempted pausing attempted"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var steps []step
			for _, s := range tt.statuses {
				steps = append(steps, answer(s))
			}
			d := &diary{}
			rt := retrip.New(play(steps...), retrip.WithBackoff(retrip.Constant(0)), retrip.WithTrace(d.trace()))
			_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
			require.NoError(t, err)
			require.Equal(t, tt.order, strings.Join(d.order, " "))
		})
	}
}

func TestAnAttemptWhoseBaseDoesNotReturnHasAnEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		step  step
		panic any
	}{
		{"panic", panics, "boom"},
		{"the end of the goroutine", func(*http.Request) (*http.Response, error) { runtime.Goexit(); return nil, nil }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &diary{}
				slow := func(req *http.Request) (*http.Response, error) { time.Sleep(time.Second); return tt.step(req) }
				rt := retrip.New(play(answer(503), slow), retrip.WithBackoff(retrip.Constant(time.Minute)), retrip.WithTrace(d.trace()))
				body := track("hello")
				try := start(rt, request(t, http.MethodPut, body))
				time.Sleep(time.Hour)
				require.True(t, try.over.Load())
				require.Equal(t, tt.panic, try.panicked)
				require.Equal(t, []string{"attempted", "pausing", "attempted"}, d.order)
				last := d.attempted[1]
				require.Equal(t, 2, last.Number)
				require.Nil(t, last.Response)
				require.EqualError(t, last.Err, "retrip: the base panicked")
				require.Equal(t, "panic", last.Outcome())
				require.Equal(t, time.Minute+time.Second, last.Elapsed)
				body.requireClosed(t)
			})
		})
	}
}

func TestPausingInfoReadsWell(t *testing.T) {
	t.Parallel()
	tests := []struct {
		status int
		err    error
		pause  time.Duration
		want   string
	}{
		{503, nil, 1200 * time.Millisecond, "attempt 2 of 4, 503, next in 1.2s at 15:04:05.123"},
		{429, nil, 1234567 * time.Microsecond, "attempt 2 of 4, 429, next in 1.23s at 15:04:05.123"},
		{503, nil, 90*time.Second + 400*time.Millisecond, "attempt 2 of 4, 503, next in 1m30s at 15:04:05.123"},
		{503, nil, 12345678, "attempt 2 of 4, 503, next in 12.3ms at 15:04:05.123"},
		{503, nil, 0, "attempt 2 of 4, 503, next in 0s at 15:04:05.123"},
		{0, &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, time.Second,
			"attempt 2 of 4, " + syscall.ECONNRESET.Error() + ", next in 1s at 15:04:05.123"},
		{0, io.ErrUnexpectedEOF, time.Second, "attempt 2 of 4, connection closed before the response, next in 1s at 15:04:05.123"},
		{0, &net.DNSError{IsTemporary: true, Name: "example.com"}, time.Second, "attempt 2 of 4, temporary DNS failure, next in 1s at 15:04:05.123"},
		{0, os.ErrDeadlineExceeded, time.Second, "attempt 2 of 4, timeout, next in 1s at 15:04:05.123"},
		{0, errors.New("what a mock says"), time.Second, "attempt 2 of 4, *errors.errorString, next in 1s at 15:04:05.123"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			t.Parallel()
			i := retrip.PausingInfo{
				Attempt:     retrip.Attempt{Number: 2, Err: tt.err, Pause: tt.pause},
				MaxAttempts: 4,
				Next:        time.Date(2026, 1, 2, 15, 4, 5, 123_000_000, time.UTC),
			}
			if tt.err == nil {
				i.Attempt.Response = &http.Response{StatusCode: tt.status}
			}
			require.Equal(t, tt.want, i.String())
		})
	}
}

// An ending is a way in which a request that should be tried again is not.
type ending struct {
	name   string
	reason retrip.Reason
	number int // of the attempt it ends with
	failed bool
	text   string // of an *Error, after "retrip: PUT example.com: gave up "; empty if there is none
	method string // PUT if empty
	body   func() io.Reader
	base   func() http.RoundTripper // its requests ask for a pause of a second
	opts   []retrip.Option
	req    func(*http.Request) *http.Request // how the caller limits it
	before func(*testing.T, *retrip.Transport)
}

var errEnough = errors.New("enough")

// within limits a request to some time.
func within(d time.Duration) func(*http.Request) *http.Request {
	return func(req *http.Request) *http.Request {
		ctx, cancel := context.WithTimeout(req.Context(), d)
		context.AfterFunc(ctx, cancel)
		return req.WithContext(ctx)
	}
}

// cancelledAt cancels a request after some time.
func cancelledAt(d time.Duration) func(*http.Request) *http.Request {
	return func(req *http.Request) *http.Request {
		ctx, cancel := context.WithCancelCause(req.Context())
		if d <= 0 {
			cancel(errEnough)
		} else {
			time.AfterFunc(d, func() { cancel(errEnough) })
		}
		return req.WithContext(ctx)
	}
}

// channelClosedAt cancels a request in the old way.
func channelClosedAt(d time.Duration) func(*http.Request) *http.Request {
	return func(req *http.Request) *http.Request {
		c := make(chan struct{})
		time.AfterFunc(d, func() { close(c) })
		req.Cancel = c //lint:ignore SA1019 callers still set it
		return req
	}
}

// openBreaker lets a request to the same host fail, once.
func openBreaker(t *testing.T, rt *retrip.Transport) {
	_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(
		retrip.Override(t.Context(), retrip.WithMaxAttempts(1), retrip.WithTrace(nil), retrip.WithLogger(nil))))
	require.True(t, err == nil || err == error(syscall.ECONNRESET), "%v", err)
}

// openBreakerIn does so during the pause of a request under way.
func openBreakerIn(d time.Duration) func(*testing.T, *retrip.Transport) {
	return func(t *testing.T, rt *retrip.Transport) {
		time.AfterFunc(d, func() { openBreaker(t, rt) })
	}
}

// halfOpen opens a breaker and lets its cool-down pass: the next attempt is a probe.
func halfOpen(t *testing.T, rt *retrip.Transport) {
	openBreaker(t, rt)
	time.Sleep(time.Minute)
}

func steps(s ...step) func() http.RoundTripper {
	return func() http.RoundTripper { return play(s...) }
}

func endings() []ending {
	reset := fail(syscall.ECONNRESET)
	rst := syscall.ECONNRESET.Error()
	stream := func(s string) func() io.Reader { return func() io.Reader { return track(s) } }
	// A base that reads that much of a body in each attempt.
	reading := func(sizes ...int64) func() http.RoundTripper {
		return func() http.RoundTripper {
			return numbered(func(n int, req *http.Request) (*http.Response, error) {
				_, _ = io.CopyN(io.Discard, req.Body, sizes[n-1])
				_ = req.Body.Close()
				return nil, syscall.ECONNRESET
			})
		}
	}
	return []ending{
		{name: "cancelled before the start", reason: retrip.ReasonCancelled, number: 0, failed: true, base: steps(reset), req: cancelledAt(0)},
		{name: "cancelled in the first attempt", reason: retrip.ReasonCancelled, number: 1, failed: true, base: steps(hang), req: cancelledAt(time.Second / 2)},
		{name: "cancelled in the pause after a response", reason: retrip.ReasonCancelled, number: 1, failed: true, base: steps(answer(503)), req: cancelledAt(time.Second / 2),
			text: "after 1 of 4 attempts in 500ms (cancelled): 503"},
		{name: "cancelled in the pause after an error", reason: retrip.ReasonCancelled, number: 1, failed: true, base: steps(reset), req: cancelledAt(time.Second / 2),
			text: "after 1 of 4 attempts in 500ms (cancelled): " + rst},
		{name: "cancelled in the second attempt", reason: retrip.ReasonCancelled, number: 2, failed: true, base: steps(reset, hang), req: cancelledAt(1500 * time.Millisecond),
			text: "after 2 of 4 attempts in 1.5s (cancelled): *errors.errorString"},
		{name: "cancelled by Request.Cancel in the pause", reason: retrip.ReasonCancelled, number: 1, failed: true, base: steps(reset), req: channelClosedAt(time.Second / 2),
			text: "after 1 of 4 attempts in 500ms (cancelled): " + rst},
		{name: "the deadline passed before the start", reason: retrip.ReasonDeadline, number: 0, failed: true, base: steps(reset), req: within(0)},
		{name: "the deadline passed in the first attempt", reason: retrip.ReasonDeadline, number: 1, failed: true, base: steps(hang), req: within(time.Second / 2)},
		{name: "the deadline passed in the second attempt", reason: retrip.ReasonDeadline, number: 2, failed: true, base: steps(reset, hang), req: within(1500 * time.Millisecond),
			text: "after 2 of 4 attempts in 1.5s (deadline): timeout"},
		{name: "the pause does not fit the deadline", reason: retrip.ReasonDeadline, number: 1, base: steps(answer(503)), req: within(time.Second)},
		{name: "the second pause does not fit the deadline", reason: retrip.ReasonDeadline, number: 2, failed: true, base: steps(reset), req: within(2 * time.Second),
			text: "after 2 of 4 attempts in 1s (deadline): " + rst},
		{name: "the body failed", reason: retrip.ReasonBody, number: 1, failed: true, base: steps(answer(200)),
			body: func() io.Reader { return &trackedBody{Reader: iotest.ErrReader(errEnough)} }},
		{name: "the body is over the cap", reason: retrip.ReasonBody, number: 1, base: steps(answer(503)), body: stream("hello"), opts: []retrip.Option{retrip.WithMaxBody(4)}},
		{name: "the body went over the cap in the second attempt", reason: retrip.ReasonBody, number: 2, failed: true, base: reading(4, 5), body: stream("hello"), opts: []retrip.Option{retrip.WithMaxBody(4)},
			text: "after 2 of 4 attempts in 1s (body): " + rst},
		{name: "the policy found an error final", reason: retrip.ReasonPolicy, number: 1, failed: true, base: steps(fail(errEnough))},
		{name: "the policy found the second error final", reason: retrip.ReasonPolicy, number: 2, failed: true, base: steps(reset, fail(errEnough)),
			text: "after 2 of 4 attempts in 1s (policy): *errors.errorString"},
		{name: "there is no policy", reason: retrip.ReasonPolicy, number: 1, failed: true, base: steps(reset), opts: []retrip.Option{retrip.WithPolicy(nil)}},
		{name: "a response must not be repeated", reason: retrip.ReasonUnsafe, number: 1, base: steps(answer(500)), method: "LOCK"},
		{name: "an error must not be repeated", reason: retrip.ReasonUnsafe, number: 1, failed: true, base: steps(reset), method: "LOCK"},
		{name: "the second error must not be repeated", reason: retrip.ReasonUnsafe, number: 2, failed: true, base: steps(answer(429), reset), method: "LOCK",
			text: "after 2 of 4 attempts in 1s (unsafe): " + rst},
		{name: "the attempts are used up by responses", reason: retrip.ReasonAttempts, number: 4, base: steps(answer(503))},
		{name: "the attempts are used up by errors", reason: retrip.ReasonAttempts, number: 4, failed: true, base: steps(reset),
			text: "after 4 of 4 attempts in 3s (attempts): " + rst},
		{name: "the only attempt is used up", reason: retrip.ReasonAttempts, number: 1, base: steps(answer(503)), opts: []retrip.Option{retrip.WithMaxAttempts(1)}},
		{name: "the pause does not fit the budget", reason: retrip.ReasonBudget, number: 2, failed: true, base: steps(reset), opts: []retrip.Option{retrip.WithBudget(2 * time.Second)},
			text: "after 2 of 4 attempts in 1s (budget of 2s): " + rst},
		{name: "the first pause does not fit the budget", reason: retrip.ReasonBudget, number: 1, base: steps(answer(503)), opts: []retrip.Option{retrip.WithBudget(time.Second)}},
		{name: "there is no budget", reason: retrip.ReasonBudget, number: 1, base: steps(answer(503)), opts: []retrip.Option{retrip.WithBudget(0)}},
		{name: "the breaker is open", reason: retrip.ReasonBreaker, number: 0, failed: true, base: steps(reset), opts: []retrip.Option{breakAfter(1)}, before: openBreaker},
		{name: "the breaker was opened by the attempt", reason: retrip.ReasonBreaker, number: 1, base: steps(answer(503)), opts: []retrip.Option{breakAfter(1)}},
		{name: "the breaker was opened by the second attempt", reason: retrip.ReasonBreaker, number: 2, failed: true, base: steps(reset), opts: []retrip.Option{breakAfter(2)},
			text: "after 2 of 4 attempts in 1s (breaker): " + rst},
		{name: "the breaker was opened in the pause", reason: retrip.ReasonBreaker, number: 1, failed: true, base: steps(answer(503)), opts: []retrip.Option{breakAfter(2)},
			before: openBreakerIn(time.Second / 2), text: "after 1 of 4 attempts in 1s (breaker open until T+1m0.5s): 503"},
		{name: "the attempt was a probe", reason: retrip.ReasonBreaker, number: 1, base: steps(answer(503)), opts: []retrip.Option{breakAfter(1)}, before: halfOpen},
		{name: "the quota is used up", reason: retrip.ReasonQuota, number: 1, base: steps(answer(503)), opts: []retrip.Option{tokens(0)}},
		{name: "the quota is used up by the first retry", reason: retrip.ReasonQuota, number: 2, failed: true, base: steps(reset), opts: []retrip.Option{tokens(1)},
			text: "after 2 of 4 attempts in 1s (quota): " + rst},
	}
}

// run makes the request of an ending, with more options, and returns when it began.
func (e ending) run(t *testing.T, opts ...retrip.Option) (start time.Time, resp *http.Response, err error) {
	rt := retrip.New(e.base(), append(append([]retrip.Option{pauseOneSecond}, e.opts...), opts...)...)
	if e.before != nil {
		e.before(t, rt)
	}
	var body io.Reader
	if e.body != nil {
		body = e.body()
	}
	method := e.method
	if method == "" {
		method = http.MethodPut
	}
	req := request(t, method, body)
	if e.req != nil {
		req = e.req(req)
	}
	start = time.Now()
	resp, err = rt.RoundTrip(req)
	return start, resp, err
}

func TestGivingUpTellsTheReason(t *testing.T) {
	t.Parallel()
	for _, e := range endings() {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &diary{}
				_, resp, err := e.run(t, retrip.WithTrace(d.trace()))
				require.Equal(t, e.failed, err != nil, "%v", err)
				require.Equal(t, []retrip.Reason{e.reason}, d.reasons())
				end := d.gaveUp[0]
				require.Equal(t, e.number, end.Attempt.Number)
				require.Len(t, d.attempted, e.number)
				require.True(t, end.Err == err)
				if err == nil {
					require.Same(t, resp, end.Attempt.Response)
					require.Equal(t, "x", finish(t, resp))
				}
				require.NotEqual(t, end.Attempt.Response == nil, end.Attempt.Err == nil, "exactly one is set")
				require.Equal(t, "example.com", end.Host)
				require.Equal(t, "gave up", d.order[len(d.order)-1])
			})
		})
	}
}

func TestAnErrorTellsItsStory(t *testing.T) {
	t.Parallel()
	for _, e := range endings() {
		if !e.failed {
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start, _, err := e.run(t)
				story, ok := err.(*retrip.Error)
				require.Equal(t, e.text != "", ok, "%T", err)
				if !ok {
					return
				}
				method := story.Method
				want := strings.Replace(e.text, "T+1m0.5s", start.Add(60500*time.Millisecond).Format("15:04:05.000"), 1)
				require.Equal(t, "retrip: "+method+" example.com: gave up "+want, err.Error())
				require.Equal(t, e.reason, story.Reason)
				require.Equal(t, "example.com", story.Host)
				require.Equal(t, time.Since(start), story.Elapsed)
				require.Len(t, story.Attempts, e.number)
			})
		})
	}
}

func TestTheErrorOfASingleAttemptIsTheBases(t *testing.T) {
	t.Parallel()
	// One that can't be compared by ==, unless it is the same.
	cause := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	tests := []struct {
		name   string
		method string
		opts   []retrip.Option
	}{
		{"no policy", "GET", []retrip.Option{retrip.WithPolicy(nil)}},
		{"unsafe", "LOCK", nil},
		{"one attempt", "GET", []retrip.Option{retrip.WithMaxAttempts(1)}},
		{"no budget", "GET", []retrip.Option{retrip.WithBudget(0)}},
		{"too small a budget", "GET", []retrip.Option{retrip.WithBudget(1)}},
		{"the breaker opens", "GET", []retrip.Option{breakAfter(1)}},
		{"no quota left", "GET", []retrip.Option{tokens(0)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rt := retrip.New(play(fail(cause)), append(tt.opts, pauseOneSecond)...)
			_, err := rt.RoundTrip(request(t, tt.method, nil))
			require.True(t, err == error(cause), "%v", err)
		})
	}
}

func TestAnErrorLeadsToItsCauses(t *testing.T) {
	t.Parallel()
	last := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	reset := fail(last)
	timeout := &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	tests := []struct {
		name    string
		base    []step
		req     func(*http.Request) *http.Request
		opts    []retrip.Option
		before  func(*testing.T, *retrip.Transport)
		causes  []error
		open    bool
		timeout bool
	}{
		{name: "cancelled in a pause", base: []step{reset}, req: cancelledAt(time.Second / 2), causes: []error{errEnough, context.Canceled, last, syscall.ECONNRESET}},
		{name: "cancelled in an attempt", base: []step{reset, hang}, req: cancelledAt(1500 * time.Millisecond), causes: []error{errEnough, context.Canceled, last}},
		{name: "cancelled by Request.Cancel", base: []step{reset}, req: channelClosedAt(time.Second / 2), causes: []error{context.Canceled, last}},
		{name: "the deadline passed in an attempt", base: []step{reset, hang}, req: within(1500 * time.Millisecond), causes: []error{context.DeadlineExceeded, last}, timeout: true},
		{name: "no time for a pause", base: []step{reset}, req: within(1500 * time.Millisecond), causes: []error{context.DeadlineExceeded, last}, timeout: true},
		{name: "attempts used up", base: []step{reset}, causes: []error{last}},
		{name: "attempts used up by timeouts", base: []step{reset, fail(timeout)}, causes: []error{timeout, os.ErrDeadlineExceeded}, timeout: true},
		{name: "attempt timeouts", base: []step{hang}, opts: []retrip.Option{retrip.WithAttemptTimeout(time.Second)}, causes: []error{context.DeadlineExceeded}, timeout: true},
		{name: "a timeout that another error followed", base: []step{fail(timeout), reset}, causes: []error{last}},
		{name: "the breaker was opened in a pause", base: []step{reset}, opts: []retrip.Option{breakAfter(2)}, before: func(t *testing.T, rt *retrip.Transport) {
			time.AfterFunc(time.Second/2, func() {
				_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
				require.Error(t, err)
			})
		}, causes: []error{last}, open: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := retrip.New(play(tt.base...), append(tt.opts, pauseOneSecond)...)
				req := request(t, http.MethodGet, nil)
				if tt.req != nil {
					req = tt.req(req)
				}
				if tt.before != nil {
					tt.before(t, rt)
				}
				_, err := (&http.Client{Transport: rt}).Do(req)
				ue, ok := err.(*url.Error)
				require.True(t, ok, "%T", err)
				story, ok := errors.AsType[*retrip.Error](err)
				require.True(t, ok)
				for _, cause := range tt.causes {
					require.ErrorIs(t, err, cause)
				}
				open, ok := errors.AsType[*retrip.OpenError](err)
				require.Equal(t, tt.open, ok)
				if ok {
					require.Equal(t, "example.com", open.Host)
				}
				require.Equal(t, tt.timeout, ue.Timeout())
				require.Equal(t, tt.timeout, story.Timeout())
				causes := story.Unwrap()
				clear(causes)
				require.NotContains(t, story.Unwrap(), error(nil), "the caller gets a copy")
			})
		})
	}
}

func TestAnErrorWithoutAStoryIsHarmless(t *testing.T) {
	t.Parallel()
	for r := range retrip.ReasonQuota + 2 {
		err := &retrip.Error{Reason: r}
		require.Contains(t, err.Error(), "retrip: ")
		require.Contains(t, err.Error(), r.String())
		require.Empty(t, err.Unwrap())
		require.False(t, err.Timeout())
		require.NotErrorIs(t, err, context.Canceled)
	}
}

func TestSeveralTracesAddUp(t *testing.T) {
	t.Parallel()
	var order []string
	named := func(name string) retrip.CallOption {
		return retrip.WithTrace(&retrip.Trace{
			Attempted: func(retrip.AttemptedInfo) { order = append(order, name+" attempted") },
			Pausing:   func(retrip.PausingInfo) { order = append(order, name+" pausing") },
			GaveUp:    func(retrip.GaveUpInfo) { order = append(order, name+" gave up") },
		})
	}
	idle := retrip.WithTrace(&retrip.Trace{})
	tests := []struct {
		name  string
		opts  []retrip.Option
		call  []retrip.CallOption
		heard []string
	}{
		{"in order", []retrip.Option{named("a"), idle, named("b")}, nil, []string{"a", "b"}},
		{"the request's last", []retrip.Option{named("a")}, []retrip.CallOption{named("b"), named("c")}, []string{"a", "b", "c"}},
		{"nil takes away those before", []retrip.Option{named("a"), retrip.WithTrace(nil), named("b")}, nil, []string{"b"}},
		{"nil for one request", []retrip.Option{named("a")}, []retrip.CallOption{retrip.WithTrace(nil)}, nil},
		{"nil for one request, then its own", []retrip.Option{named("a")}, []retrip.CallOption{retrip.WithTrace(nil), named("b")}, []string{"b"}},
	}
	for _, tt := range tests { // one after the other: they share order
		order = nil
		rt := retrip.New(play(answer(503)), append(tt.opts, retrip.WithMaxAttempts(2), retrip.WithBackoff(retrip.Constant(0)))...)
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(retrip.Override(t.Context(), tt.call...)))
		require.NoError(t, err)
		var want []string
		for _, what := range []string{"attempted", "pausing", "attempted", "gave up"} {
			for _, name := range tt.heard {
				want = append(want, name+" "+what)
			}
		}
		require.Equal(t, want, order, tt.name)
	}
}

func TestTheTracesOfOneRequestAreNotAnothers(t *testing.T) {
	t.Parallel()
	count := func(n *int) retrip.CallOption {
		return retrip.WithTrace(&retrip.Trace{Attempted: func(retrip.AttemptedInfo) { *n++ }})
	}
	var all, one, two int
	var rt *retrip.Transport
	send := func(n *int) {
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(retrip.Override(t.Context(), count(n))))
		require.NoError(t, err)
	}
	during := func(req *http.Request) (*http.Response, error) {
		send(&two)
		return answer(200)(req)
	}
	rt = retrip.New(play(during, answer(200)), count(&all), count(&all), count(&all))
	send(&one)
	require.Equal(t, []int{6, 1, 1}, []int{all, one, two})
}

func TestHooksMayUseTheTransport(t *testing.T) {
	t.Parallel()
	var rt *retrip.Transport
	asked := 0
	ask := func() {
		asked++
		for range rt.Hosts() {
			_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(
				retrip.Override(t.Context(), retrip.WithMaxAttempts(1), retrip.WithTrace(nil))))
			if err != nil {
				_, ok := errors.AsType[*retrip.OpenError](err)
				require.True(t, ok, "%v", err)
			}
		}
	}
	rt = retrip.New(play(answer(503)), retrip.WithBackoff(retrip.Constant(0)), breakAfter(4), retrip.WithTrace(&retrip.Trace{
		Attempted:    func(retrip.AttemptedInfo) { ask() },
		Pausing:      func(retrip.PausingInfo) { ask() },
		GaveUp:       func(retrip.GaveUpInfo) { ask() },
		BreakerMoved: func(retrip.BreakerMovedInfo) { ask() },
	}))
	_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
	require.NoError(t, err)
	// The first attempt and the pause make two failures more, the second attempt is
	// the fourth: moved, attempted, gave up.
	require.Equal(t, 5, asked)
}

func TestAPanicOfAHookPassesThroughAndLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	boom := func() { panic("hook") }
	tests := []struct {
		name  string
		trace *retrip.Trace
		opts  []retrip.Option
	}{
		{"Attempted", &retrip.Trace{Attempted: func(retrip.AttemptedInfo) { boom() }}, nil},
		{"Attempted of a timed attempt", &retrip.Trace{Attempted: func(retrip.AttemptedInfo) { boom() }}, []retrip.Option{retrip.WithAttemptTimeout(time.Hour)}},
		{"Pausing", &retrip.Trace{Pausing: func(retrip.PausingInfo) { boom() }}, nil},
		{"GaveUp", &retrip.Trace{GaveUp: func(retrip.GaveUpInfo) { boom() }}, []retrip.Option{retrip.WithMaxAttempts(1)}},
		{"GaveUp after a retry", &retrip.Trace{GaveUp: func(retrip.GaveUpInfo) { boom() }}, []retrip.Option{retrip.WithMaxAttempts(2)}},
		{"BreakerMoved", &retrip.Trace{BreakerMoved: func(retrip.BreakerMovedInfo) { boom() }}, []retrip.Option{breakAfter(1)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sent, got := track("hello"), []*trackedBody{}
				answering := func(req *http.Request) (*http.Response, error) {
					resp, _ := answer(503)(req)
					got = append(got, track("x"))
					resp.Body = got[len(got)-1]
					return resp, nil
				}
				base := play(answering)
				rt := retrip.New(base, append(tt.opts, pauseOneSecond, retrip.WithTrace(tt.trace))...)
				require.PanicsWithValue(t, "hook", func() { _, _ = rt.RoundTrip(request(t, http.MethodPut, sent)) })
				sent.requireClosed(t)
				for _, body := range got {
					body.requireClosed(t)
				}
				for _, saw := range base.attempts() {
					if tt.name == "Attempted of a timed attempt" {
						require.Error(t, saw.req.Context().Err(), "the attempt's context is released")
					}
				}
				_, stats := onlyHost(t, rt)
				require.InDelta(t, 10-len(base.attempts())+1, stats.Tokens, 0, "a retry that did not come costs nothing")
			})
		})
	}
}

func TestAPanicOfAHookGivesTheProbeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(play(answer(503), answer(200)), breakAfter(1), retrip.WithTrace(&retrip.Trace{
			BreakerMoved: func(i retrip.BreakerMovedInfo) {
				if i.To == retrip.HalfOpen {
					panic("hook")
				}
			},
		}))
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.PanicsWithValue(t, "hook", func() { _, _ = rt.RoundTrip(request(t, http.MethodGet, nil)) })
		resp, err := rt.RoundTrip(request(t, http.MethodGet, nil))
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		_, stats := onlyHost(t, rt)
		require.Equal(t, retrip.Closed, stats.State)
	})
}

// logTo is a logger whose lines have no time of their own, and other times as UTC.
func logTo(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		if a.Value.Kind() == slog.KindTime {
			a.Value = slog.StringValue(a.Value.Time().UTC().Format(time.TimeOnly))
		}
		return a
	}}))
}

func TestLogLines(t *testing.T) {
	t.Parallel()
	rst := fmt.Sprintf("%q", syscall.ECONNRESET.Error())
	once := []retrip.Option{retrip.WithMaxAttempts(1)}
	tests := []struct {
		name  string
		level slog.Level
		base  []step
		opts  []retrip.Option
		lines []string
	}{
		{"nothing for a success", slog.LevelDebug, []step{answer(200)}, nil, nil},
		{"nothing for a final response", slog.LevelDebug, []step{answer(404)}, nil, nil},
		{"a line for each retry", slog.LevelDebug, []step{answer(503), fail(syscall.ECONNRESET), answer(200)}, nil, []string{
			`level=DEBUG msg="retrip: pausing before another attempt" method=PUT host=example.com attempt=1 max_attempts=4 status=503 pause=1s next=00:00:01`,
			`level=DEBUG msg="retrip: pausing before another attempt" method=PUT host=example.com attempt=2 max_attempts=4 error=` + rst + ` pause=1s next=00:00:02`,
		}},
		{"a line for a response given up", slog.LevelDebug, []step{answer(503)}, once, []string{
			`level=WARN msg="retrip: gave up" method=PUT host=example.com attempt=1 max_attempts=1 status=503 reason=attempts elapsed=0s`,
		}},
		{"a line for an error given up", slog.LevelInfo, []step{fail(syscall.ECONNRESET)}, nil, []string{
			`level=WARN msg="retrip: gave up" method=PUT host=example.com attempt=4 max_attempts=4 error=` + rst + ` reason=attempts elapsed=3s`,
		}},
		{"a line for an error of a single attempt", slog.LevelDebug, []step{fail(errEnough)}, nil, []string{
			`level=WARN msg="retrip: gave up" method=PUT host=example.com attempt=1 max_attempts=4 error=*errors.errorString reason=policy elapsed=0s`,
		}},
		{"a line for a breaker's change", slog.LevelInfo, []step{answer(503)}, []retrip.Option{breakAfter(1)}, []string{
			`level=INFO msg="retrip: breaker moved" host=example.com from=closed to=open until=00:01:00 trips=1`,
			`level=WARN msg="retrip: gave up" method=PUT host=example.com attempt=1 max_attempts=4 status=503 reason=breaker elapsed=0s`,
		}},
		{"nothing below the level", slog.LevelError, []step{answer(503)}, []retrip.Option{breakAfter(2)}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				rt := retrip.New(play(tt.base...), append(tt.opts, pauseOneSecond, retrip.WithLogger(logTo(&log, tt.level)))...)
				_, _ = rt.RoundTrip(request(t, http.MethodPut, nil))
				var lines []string
				for line := range strings.Lines(log.String()) {
					lines = append(lines, strings.TrimSuffix(line, "\n"))
				}
				require.Equal(t, tt.lines, lines)
			})
		})
	}
}

func TestTheLinesOfARefusedRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		rt := retrip.New(play(answer(503)), breakAfter(1))
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
		require.NoError(t, err)
		until := time.Now().Add(time.Minute).Format("15:04:05.000")
		req := request(t, http.MethodGet, nil).WithContext(retrip.Override(t.Context(), retrip.WithLogger(logTo(&log, slog.LevelDebug))))
		req.Method = "" // which means GET
		_, err = rt.RoundTrip(req)
		require.EqualError(t, err, "retrip: breaker of example.com is open until "+until)
		require.Equal(t, `level=WARN msg="retrip: gave up" method=GET host=example.com attempt=0 max_attempts=4 error="breaker open until `+until+`" reason=breaker elapsed=0s`+"\n", log.String())
	})
}

func TestNobodyLogsWithoutALogger(t *testing.T) { // not parallel: it replaces slog's default
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(logTo(&log, slog.LevelDebug))
	defer slog.SetDefault(before)
	for _, opts := range [][]retrip.Option{nil, {retrip.WithLogger(nil)}, {retrip.WithLogger(slog.Default()), retrip.WithLogger(nil)}} {
		rt := retrip.New(play(answer(503)), append(opts, retrip.WithBackoff(retrip.Constant(0)), breakAfter(2))...)
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
		require.NoError(t, err)
	}
	require.Empty(t, log.String())
}

// An idHandler takes an id from the context, as handlers for tracing do.
type idHandler struct {
	slog.Handler
	seen *[]any
}

type idKey struct{}

func (h idHandler) Handle(ctx context.Context, r slog.Record) error {
	*h.seen = append(*h.seen, ctx.Value(idKey{}))
	return nil
}

func TestLogLinesCarryTheRequestsContext(t *testing.T) {
	t.Parallel()
	var seen []any
	logger := slog.New(idHandler{logTo(io.Discard, slog.LevelDebug).Handler(), &seen})
	rt := retrip.New(play(answer(503)), retrip.WithLogger(logger), retrip.WithMaxAttempts(2), retrip.WithBackoff(retrip.Constant(0)))
	_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(context.WithValue(t.Context(), idKey{}, 7)))
	require.NoError(t, err)
	require.Equal(t, []any{7, 7}, seen)
}

func TestHistoryTellsHowAResponseCameAbout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		const took = 100 * time.Millisecond
		base := play(after(took, answer(503)), after(2*took, fail(syscall.ECONNRESET)), after(3*took, answer(200)))
		rt := retrip.New(base, retrip.WithBackoff(retrip.Exponential(time.Second, time.Minute)))
		resp, err := rt.RoundTrip(request(t, http.MethodGet, nil))
		require.NoError(t, err)
		want := []retrip.AttemptRecord{
			{Number: 1, Start: start, Duration: took, Status: 503, Pause: time.Second},
			{Number: 2, Start: start.Add(took + time.Second), Duration: 2 * took, Err: syscall.ECONNRESET, Pause: 2 * time.Second},
			{Number: 3, Start: start.Add(3*took + 3*time.Second), Duration: 3 * took, Status: 200},
		}
		require.Equal(t, want, retrip.History(resp))
		clear(retrip.History(resp))
		require.Equal(t, want, retrip.History(resp), "the caller gets a copy")
	})
}

func TestAnErrorHasTheSameHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		rt := retrip.New(play(answer(503), fail(syscall.ECONNRESET)), retrip.WithMaxAttempts(2), pauseOneSecond)
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
		story, ok := errors.AsType[*retrip.Error](err)
		require.True(t, ok)
		require.Equal(t, []retrip.AttemptRecord{
			{Number: 1, Start: start, Status: 503, Pause: time.Second},
			{Number: 2, Start: start.Add(time.Second), Err: syscall.ECONNRESET},
		}, story.Attempts)
	})
}

func TestThereIsNoHistoryOfOneAttempt(t *testing.T) {
	t.Parallel()
	require.Nil(t, retrip.History(nil))
	require.Nil(t, retrip.History(&http.Response{}))
	require.Nil(t, retrip.History(&http.Response{Request: request(t, http.MethodGet, nil)}))
	for _, status := range []int{200, 503} {
		rt := retrip.New(play(answer(status)), retrip.WithMaxAttempts(1))
		resp, err := rt.RoundTrip(request(t, http.MethodGet, nil))
		require.NoError(t, err)
		require.Nil(t, retrip.History(resp))
	}
}

func TestHistoryIsNotInherited(t *testing.T) {
	t.Parallel()
	rt := retrip.New(play(answer(503), answer(200), answer(200), answer(503), answer(200)), retrip.WithBackoff(retrip.Constant(0)))
	first, err := rt.RoundTrip(request(t, http.MethodGet, nil))
	require.NoError(t, err)
	next := request(t, http.MethodGet, nil).WithContext(first.Request.Context())
	second, err := rt.RoundTrip(next)
	require.NoError(t, err)
	require.Nil(t, retrip.History(second), "one attempt")
	require.Same(t, next, second.Request)
	third, err := rt.RoundTrip(next)
	require.NoError(t, err)
	require.Len(t, retrip.History(third), 2, "its own")
	require.Len(t, retrip.History(first), 2, "still there")
}

func TestTheRequestOfAResponse(t *testing.T) {
	t.Parallel()
	foreign := request(t, http.MethodGet, nil)
	foreign.URL.Path = "/redirected"
	leave := func(r *http.Request) func(*http.Request) *http.Request {
		return func(*http.Request) *http.Request { return r }
	}
	own := func(req *http.Request) *http.Request { return req }
	tests := []struct {
		name   string
		method string
		opts   []retrip.Option
		once   bool
		set    func(*http.Request) *http.Request // what the base makes of it
		same   string                            // caller, foreign or nil, by identity
		path   string                            // of a copy
	}{
		{"one attempt has the caller's", "GET", nil, true, own, "caller", ""},
		{"one attempt has the caller's though a copy with a key was sent", "POST", nil, true, own, "caller", ""},
		{"one attempt has the caller's though a copy with a timer was sent", "GET", []retrip.Option{retrip.WithAttemptTimeout(time.Minute)}, true, own, "caller", ""},
		{"one attempt has the caller's though a copy with a trace was sent", "LOCK", nil, true, own, "caller", ""},
		{"one attempt keeps nil", "GET", nil, true, leave(nil), "nil", ""},
		{"one attempt keeps a foreign one", "GET", nil, true, leave(foreign), "foreign", ""},
		{"several have a copy of the caller's", "GET", nil, false, own, "", "/path"},
		{"several have a copy of the caller's though a timer was used", "POST", []retrip.Option{retrip.WithAttemptTimeout(time.Minute)}, false, own, "", "/path"},
		{"several have a copy of the caller's where the base left nil", "GET", nil, false, leave(nil), "", "/path"},
		{"several have a copy of a foreign one", "GET", nil, false, leave(foreign), "", "/redirected"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			respond := func(req *http.Request) (*http.Response, error) {
				resp, err := answer(200)(req)
				resp.Request = tt.set(req)
				return resp, err
			}
			base := play(answer(503), respond)
			if tt.once {
				base = play(respond)
			}
			rt := retrip.New(base, append(tt.opts, retrip.WithBackoff(retrip.Constant(0)))...)
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), idKey{}, 7))
			defer cancel()
			req := request(t, tt.method, nil).WithContext(ctx)
			header := req.Header.Clone()
			resp, err := rt.RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			switch tt.same {
			case "caller":
				require.Same(t, req, resp.Request)
				return
			case "foreign":
				require.Same(t, foreign, resp.Request)
				return
			case "nil":
				require.Nil(t, resp.Request)
				return
			}
			require.NotSame(t, req, resp.Request)
			require.NotSame(t, foreign, resp.Request)
			require.Equal(t, tt.path, resp.Request.URL.Path)
			require.Equal(t, header, resp.Request.Header, "without our key")
			got := resp.Request.Context()
			require.Equal(t, 7, got.Value(idKey{}))
			require.Equal(t, 1, retrip.AttemptNumber(got))
			require.NoError(t, got.Err(), "not the attempt's")
			cancel()
			require.ErrorIs(t, got.Err(), context.Canceled, "the caller's")
			require.Len(t, retrip.History(resp), 2)
		})
	}
}

func TestAttemptNumberIsKnownBelow(t *testing.T) {
	t.Parallel()
	require.Equal(t, 1, retrip.AttemptNumber(t.Context()))
	require.Equal(t, 1, retrip.AttemptNumber(retrip.Override(t.Context(), retrip.WithMaxAttempts(2))))
	base := play(answer(503), answer(503), answer(200))
	resp, err := retrip.New(base, retrip.WithBackoff(retrip.Constant(0))).RoundTrip(request(t, http.MethodGet, nil))
	require.NoError(t, err)
	for i, saw := range base.attempts() {
		require.Equal(t, i+1, retrip.AttemptNumber(saw.req.Context()))
	}
	require.Equal(t, 1, retrip.AttemptNumber(resp.Request.Context()))
}

func TestReasonsAndStatesHaveNames(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]fmt.Stringer{
		"cancelled": retrip.ReasonCancelled, "deadline": retrip.ReasonDeadline, "body": retrip.ReasonBody,
		"policy": retrip.ReasonPolicy, "unsafe": retrip.ReasonUnsafe, "attempts": retrip.ReasonAttempts,
		"budget": retrip.ReasonBudget, "breaker": retrip.ReasonBreaker, "quota": retrip.ReasonQuota,
		"Reason(0)": retrip.Reason(0), "Reason(10)": retrip.ReasonQuota + 1, "Reason(255)": retrip.Reason(255),
		"closed": retrip.Closed, "open": retrip.Open, "half-open": retrip.HalfOpen,
		"State(3)": retrip.HalfOpen + 1, "State(255)": retrip.State(255),
	} {
		require.Equal(t, want, got.String())
	}
}

// secretURL has a secret in each part that is not the host.
const secretURL = "http://s3cret-user:s3cret-password@example.com/s3cret-path?token=s3cret-query#s3cret-fragment"

// secretErrors are errors of bases that hold secrets in their texts.
func secretErrors() map[string]error {
	plain := errors.New("Get " + secretURL + ": s3cret-reason")
	return map[string]error{
		"errors.New":        plain,
		"url.Error":         &url.Error{Op: "Get", URL: secretURL, Err: plain},
		"url.Error of EOF":  &url.Error{Op: "Get", URL: secretURL, Err: io.EOF},
		"wrapped reset":     fmt.Errorf("%s: %w", secretURL, syscall.ECONNRESET),
		"timeout":           &url.Error{Op: "Get", URL: secretURL, Err: os.ErrDeadlineExceeded},
		"dial":              &net.OpError{Op: "dial", Net: "s3cret-net", Err: plain},
		"proxy":             &net.OpError{Op: "proxyconnect", Err: errors.New("http://s3cret-user:s3cret-password@proxy refused")},
		"DNS":               &net.DNSError{Err: "s3cret-reason", Name: "s3cret-name", Server: "s3cret-server", IsTemporary: true},
		"x509 host":         &url.Error{Op: "Get", URL: secretURL, Err: x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"s3cret-name"}}, Host: "s3cret-host"}},
		"x509 authority":    &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.NotAuthorizedToSign, Detail: "s3cret-detail"}},
		"malformed":         errors.New(`malformed HTTP response "s3cret-line"`),
		"HTTP/2":            errors.New("http2: Transport: cannot retry err [s3cret-reason] after Request.Body was written"),
		"invalid header":    errors.New(`net/http: invalid header field value for "s3cret-name"`),
		"unsupported":       errors.New(`unsupported protocol scheme "s3cret-scheme"`),
		"cancelled below":   fmt.Errorf("s3cret-reason: %w", context.Canceled),
		"OpenError's error": fmt.Errorf("%s: %w", secretURL, &retrip.OpenError{Host: "s3cret-host"}),
	}
}

// A confidant collects all that the library says of a request.
type confidant struct {
	bytes.Buffer
	errors int
}

func (c *confidant) say(a ...any) { fmt.Fprintln(c, a...) }

// hear takes down an error, unless it is the caller's or the base's own.
func (c *confidant) hear(err error) {
	if err != nil && strings.HasPrefix(err.Error(), "retrip: ") {
		c.errors++
		c.say(err)
		for _, verb := range []string{"%s", "%q"} {
			c.say(fmt.Sprintf(verb, err))
		}
	}
	if open, ok := errors.AsType[*retrip.OpenError](err); ok && open.Host != "s3cret-host" {
		c.say(open, open.Host)
	}
}

func (c *confidant) options() []retrip.Option {
	return []retrip.Option{
		retrip.WithLogger(logTo(c, slog.LevelDebug-4)),
		retrip.WithTrace(&retrip.Trace{
			Pausing:      func(i retrip.PausingInfo) { c.say(i, i.Host) },
			GaveUp:       func(i retrip.GaveUpInfo) { c.say(i.Reason, i.Host); c.hear(i.Err) },
			BreakerMoved: func(i retrip.BreakerMovedInfo) { c.say(i.Host, i.From, i.To) },
		}),
	}
}

// secretRequest has a secret wherever one can be.
func secretRequest(t *testing.T, method string) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), method, secretURL, track("s3cret-body"))
	require.NoError(t, err)
	req.Header = http.Header{
		"Authorization": {"Bearer s3cret-token"}, "Cookie": {"id=s3cret-cookie"}, "X-Own": {"s3cret-header"},
		retrip.KeyHeader: {"s3cret-key"},
	}
	req.Trailer = http.Header{"Checksum": {"s3cret-trailer"}}
	return req
}

// secretAnswer is a response with secrets of its own.
func secretAnswer(status int) step {
	return answer(status, "Set-Cookie", "id=s3cret-session", "Location", secretURL, "Retry-After", "s3cret-date")
}

func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	type outcome struct {
		name   string
		method string
		base   []step
		opts   []retrip.Option
		req    func(*http.Request) *http.Request
		times  int  // requests made, the last one counts; 0: 1
		error  bool // it ends in an error of this package
	}
	plain := fail(secretErrors()["errors.New"])
	reset := fail(secretErrors()["wrapped reset"])
	always := retrip.WithPolicy(func(retrip.Attempt) bool { return true })
	outcomes := []outcome{
		{name: "attempts", method: "PUT", base: []step{reset}, error: true},
		{name: "attempts, by responses", method: "PUT", base: []step{secretAnswer(503)}},
		{name: "policy", method: "PUT", base: []step{secretAnswer(503), plain}, error: true},
		{name: "unsafe", method: "LOCK", base: []step{secretAnswer(429), reset}, req: func(req *http.Request) *http.Request {
			req.Header.Del(retrip.KeyHeader)
			req.Body, req.GetBody = http.NoBody, nil
			return req
		}, error: true},
		{name: "budget", method: "PUT", base: []step{reset}, opts: []retrip.Option{retrip.WithBudget(2 * time.Second)}, error: true},
		{name: "quota", method: "PUT", base: []step{reset}, opts: []retrip.Option{tokens(1)}, error: true},
		{name: "breaker", method: "PUT", base: []step{reset}, opts: []retrip.Option{breakAfter(2)}, error: true},
		{name: "breaker open", method: "PUT", base: []step{reset}, opts: []retrip.Option{breakAfter(1)}, times: 2, error: true},
		{name: "deadline", method: "PUT", base: []step{reset}, req: within(1500 * time.Millisecond), error: true},
		{name: "cancelled", method: "PUT", base: []step{reset}, req: func(req *http.Request) *http.Request {
			ctx, cancel := context.WithCancelCause(req.Context())
			time.AfterFunc(time.Second/2, func() { cancel(errors.New("s3cret-cause")) })
			return req.WithContext(ctx)
		}, error: true},
		{name: "cancelled by Request.Cancel", method: "PUT", base: []step{reset}, req: channelClosedAt(time.Second / 2), error: true},
		{name: "attempt timeout", method: "PUT", base: []step{hang}, opts: []retrip.Option{retrip.WithAttemptTimeout(time.Second)}, error: true},
		{name: "attempt timeout, once", method: "PUT", base: []step{hang}, opts: []retrip.Option{retrip.WithAttemptTimeout(time.Second), retrip.WithMaxAttempts(1)}, error: true},
		{name: "body over the cap", method: "PUT", base: []step{secretAnswer(503)}, opts: []retrip.Option{retrip.WithMaxBody(4)}},
		{name: "body over the cap, asked for again", method: "PUT", base: []step{func(req *http.Request) (*http.Response, error) {
			_, err := req.GetBody()
			return nil, err
		}}, opts: []retrip.Option{retrip.WithMaxBody(4)}, error: true},
		{name: "an invalid key", method: "POST", base: []step{secretAnswer(200)}, req: func(req *http.Request) *http.Request {
			req.Header.Del(retrip.KeyHeader)
			return req
		}, opts: []retrip.Option{retrip.WithIdempotencyKey(func(*http.Request) string { return "s3cret-key\n" })}, error: true},
		{name: "neither response nor error", method: "PUT", base: []step{func(*http.Request) (*http.Response, error) { return nil, nil }}, error: true},
	}
	for name, err := range secretErrors() {
		outcomes = append(outcomes, outcome{name: "an error of the base, " + name, method: "PUT", base: []step{fail(err)}, opts: []retrip.Option{always}, error: true},
			outcome{name: "an error of the base after a response, " + name, method: "POST", base: []step{secretAnswer(503), fail(err)}, error: true})
	}
	for _, o := range outcomes {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &confidant{}
				rt := retrip.New(play(o.base...), append(append(c.options(), pauseOneSecond), o.opts...)...)
				for range max(1, o.times) {
					c.errors = 0
					req := secretRequest(t, o.method)
					if o.req != nil {
						req = o.req(req)
					}
					_, err := rt.RoundTrip(req)
					c.hear(err)
				}
				for name := range rt.Hosts() {
					c.say(name)
					require.Equal(t, "example.com", name)
				}
				require.Equal(t, o.error, c.errors > 0, c.String())
				require.NotEmpty(t, c.String())
				require.NotContains(t, c.String(), "s3cret")
			})
		})
	}
}

func TestAFailureThatComesAfterTheCallerCancelledIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]retrip.Policy{
		"default policy": retrip.DefaultPolicy,
		"own policy":     func(retrip.Attempt) bool { panic("the policy is asked although the caller has cancelled") },
	} {
		for status, told := range map[int]int{500: 1, 429: 1, 200: 0, 404: 0} {
			ctx, cancel := context.WithCancel(t.Context())
			var gaveUp []retrip.GaveUpInfo
			base := roundTrip(func(req *http.Request) (*http.Response, error) {
				cancel()
				return answer(status)(req)
			})
			rt := retrip.New(base, retrip.WithPolicy(policy), retrip.WithTrace(&retrip.Trace{
				GaveUp: func(info retrip.GaveUpInfo) { gaveUp = append(gaveUp, info) },
			}))
			resp, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
			require.NoError(t, err, name)
			require.Equal(t, status, resp.StatusCode)
			finish(t, resp)
			require.Len(t, gaveUp, told, "%s, status %d", name, status)
			for _, info := range gaveUp {
				require.Equal(t, retrip.ReasonCancelled, info.Reason)
				require.NoError(t, info.Err)
			}
		}
	}
}

type note struct{} // the key of a value that Attempting puts into contexts

// noting is a Trace that adds a letter to what the context says.
func noting(letter string, told *[]retrip.AttemptingInfo) *retrip.Trace {
	return &retrip.Trace{Attempting: func(ctx context.Context, i retrip.AttemptingInfo) context.Context {
		*told = append(*told, i)
		before, _ := ctx.Value(note{}).(string)
		return context.WithValue(ctx, note{}, before+letter)
	}}
}

func TestAttemptingMakesTheContextOfEachAttempt(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]retrip.Option{
		"":                      nil,
		" with a limit":         {retrip.WithAttemptTimeout(time.Hour)},
		" through another":      {},
		" with a key not ours":  {retrip.WithIdempotencyKey(nil)},
		" and a single attempt": {retrip.WithMaxAttempts(1)},
	} {
		t.Run("Attempting"+name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var told, below []retrip.AttemptingInfo
				var contexts []string
				tr := retrip.WithTrace(&retrip.Trace{Attempted: func(i retrip.AttemptedInfo) {
					contexts = append(contexts, i.Context.Value(note{}).(string))
				}})
				base := play(answer(503), answer(200))
				var under http.RoundTripper = base
				if name == " through another" {
					under = retrip.New(base, retrip.WithTrace(noting("c", &below)))
				}
				req := request(t, http.MethodPut, nil)
				opts := append(opts, retrip.WithTrace(noting("a", &told)), retrip.WithTrace(noting("b", &told)), tr)
				resp, err := retrip.New(under, opts...).RoundTrip(req)
				require.NoError(t, err)

				want, seen := []string{"ab", "abab"}, []string{}
				if name == " and a single attempt" {
					want = want[:1]
				}
				require.Equal(t, want, contexts)
				for i, info := range told {
					most := 4
					if len(want) == 1 {
						most = 1
					}
					require.Equal(t, retrip.AttemptingInfo{Number: i/2 + 1, Request: req, Host: "example.com", MaxAttempts: most}, info)
				}
				for _, a := range base.attempts() {
					v, _ := a.req.Context().Value(note{}).(string)
					seen = append(seen, v)
				}
				if name == " through another" {
					want = []string{"abc", "ababc"}
				}
				require.Equal(t, want, seen)
				require.Nil(t, resp.Request.Context().Value(note{}), "it is the attempt's, not the caller's")
				require.Nil(t, req.Context().Value(note{}))
			})
		})
	}
}

func TestAttemptingIsNotCalledForWhatNeverReachesTheBase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []retrip.AttemptingInfo
		tr := retrip.WithTrace(noting("a", &told))
		req := request(t, http.MethodPut, strings.NewReader("hello"))
		req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
		req.Body = io.NopCloser(req.Body)
		rt := retrip.New(play(answer(503)), tr, breakAfter(1), retrip.WithMaxBody(0))
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err, "the response of the only attempt")
		require.Equal(t, 503, resp.StatusCode)
		require.Len(t, told, 1, "not for a body that cannot be had again")
		_, err = rt.RoundTrip(request(t, http.MethodGet, nil))
		_, ok := errors.AsType[*retrip.OpenError](err)
		require.True(t, ok)
		require.Len(t, told, 1, "nor for what the breaker refuses")
	})
}

func TestAttemptingMustReturnAContext(t *testing.T) {
	t.Parallel()
	body := track("hello")
	rt := retrip.New(play(answer(200)), retrip.WithTrace(&retrip.Trace{
		Attempting: func(context.Context, retrip.AttemptingInfo) context.Context { return nil },
	}))
	require.PanicsWithValue(t, "retrip: Trace.Attempting returned no context", func() {
		_, _ = rt.RoundTrip(request(t, http.MethodPut, body))
	})
	body.requireClosed(t)
}

func TestAttemptedTellsTheAttemptsOwnTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []retrip.AttemptedInfo
		rt := retrip.New(play(after(time.Second, answer(503)), after(2*time.Second, answer(200))),
			retrip.WithBackoff(retrip.Exponential(time.Minute, time.Minute)),
			retrip.WithTrace(&retrip.Trace{Attempted: func(i retrip.AttemptedInfo) { told = append(told, i) }}))
		req := request(t, http.MethodGet, nil)
		req.URL.Host = "EXAMPLE.com"
		_, err := rt.RoundTrip(req)
		require.NoError(t, err)
		require.Len(t, told, 2)
		for i, info := range told {
			require.Equal(t, time.Duration(i+1)*time.Second, info.Duration)
			require.Equal(t, "example.com", info.Host)
			require.Equal(t, 4, info.MaxAttempts)
			require.Equal(t, req.Context(), info.Context)
		}
	})
}

func TestAnsweredIsWhatHostStatsCount(t *testing.T) {
	t.Parallel()
	all := func(retrip.Attempt) bool { return true }
	late := func(req *http.Request) (*http.Response, error) { time.Sleep(2 * time.Second); return answer(503)(req) } // heeds no context
	for _, tt := range []struct {
		name   string
		steps  []step
		opts   []retrip.Option
		cancel time.Duration // 0: never
		want   []bool
	}{
		{"success", []step{answer(200)}, nil, 0, []bool{true}},
		{"an answer that is final", []step{answer(404)}, nil, 0, []bool{true}},
		{"success at last", []step{answer(503), answer(200)}, nil, 0, []bool{false, true}},
		{"failures", []step{answer(503), fail(syscall.ECONNRESET), answer(429)}, []retrip.Option{retrip.WithMaxAttempts(3)}, 0, []bool{false, false, false}},
		{"a failure that nobody repeats", []step{answer(500)}, []retrip.Option{retrip.WithPolicy(nil)}, 0, []bool{false}},
		{"a policy that wants more", []step{answer(200), answer(404)}, []retrip.Option{retrip.WithPolicy(all), retrip.WithMaxAttempts(2)}, 0, []bool{true, true}},
		{"a failure after the request's end", []step{late}, nil, time.Second, []bool{false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var told []bool
				base := play(tt.steps...)
				rt := retrip.New(base, append([]retrip.Option{retrip.WithBackoff(retrip.Constant(0))}, tt.opts...)...)
				rt.Watch(&retrip.Trace{Attempted: func(i retrip.AttemptedInfo) { told = append(told, i.Answered) }})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				_, _ = rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
				require.Equal(t, tt.want, told)
				for _, stats := range rt.Hosts() {
					first, later := uint64(0), uint64(0)
					for i, yes := range told {
						switch {
						case yes && i == 0:
							first++
						case yes:
							later++
						}
					}
					require.Equal(t, []uint64{first, later}, []uint64{stats.FirstTry, stats.Recovered})
				}
			})
		})
	}
}

func TestGivingUpTellsTheStoryAndTheKey(t *testing.T) {
	t.Parallel()
	const theirs = "the-callers-own"
	boom := errors.New("boom")
	for _, tt := range []struct {
		name     string
		method   string
		key      string // header field of the caller's key
		steps    []step
		opts     []retrip.Option
		statuses []int
	}{
		{"several answers", http.MethodPost, "", []step{answer(503)}, nil, []int{503, 503, 503, 503}},
		{"an error after an answer", http.MethodPost, "Idempotency-Key", []step{answer(503), fail(boom)}, nil, []int{503, 0}},
		{"one error", http.MethodGet, "", []step{fail(boom)}, nil, []int{0}},
		{"one answer", http.MethodPut, "idempotency-key", []step{answer(503)}, []retrip.Option{retrip.WithMaxAttempts(1)}, []int{503}},
		{"net/http's field", http.MethodPost, "X-Idempotency-Key", []step{answer(503)}, []retrip.Option{retrip.WithMaxAttempts(1)}, []int{503}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &diary{}
				base := play(tt.steps...)
				req := request(t, tt.method, nil)
				if tt.key != "" {
					req.Header[tt.key] = []string{theirs}
				}
				rt := retrip.New(base, append(tt.opts, retrip.WithTrace(d.trace()),
					retrip.WithBackoff(retrip.Exponential(time.Second, time.Second)))...)
				_, _ = rt.RoundTrip(req)
				require.Len(t, d.gaveUp, 1)
				end, seen := d.gaveUp[0], base.attempts()
				require.Len(t, end.Attempts, len(tt.statuses))
				for i, r := range end.Attempts {
					want := retrip.AttemptRecord{Number: i + 1, Start: seen[i].at, Status: tt.statuses[i]}
					if tt.statuses[i] == 0 {
						want.Err = boom
					}
					if i < len(tt.statuses)-1 {
						want.Pause = time.Second
					}
					require.Equal(t, want, r)
				}
				want := theirs
				if tt.key == "" {
					want = seen[0].header.Get(retrip.KeyHeader)
				}
				require.Equal(t, want, end.Key)
				require.Equal(t, tt.method == http.MethodGet, want == "")
			})
		})
	}
}

func TestNothingIsToldOfAttemptsThatWereNotMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		rt := retrip.New(play(answer(503)), breakAfter(1), retrip.WithTrace(d.trace()))
		_, _ = rt.RoundTrip(request(t, http.MethodGet, nil))
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
		require.Error(t, err)
		require.Len(t, d.gaveUp, 2)
		require.Empty(t, d.gaveUp[1].Attempts)
		require.Equal(t, "breaker open", d.gaveUp[1].Attempt.Outcome())
	})
}

func TestWatchingATransportInUse(t *testing.T) {
	t.Parallel()
	d, own := &diary{}, &diary{}
	rt := retrip.New(play(answer(200)), retrip.WithTrace(own.trace()))
	get := func(ctx context.Context) {
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
		require.NoError(t, err)
	}
	get(t.Context())
	tr := d.trace()
	stop := rt.Watch(tr)
	stopSecond := rt.Watch(tr)
	get(t.Context())
	require.Len(t, d.attempted, 2, "twice, as it was added twice")
	stopSecond()
	get(retrip.Override(t.Context(), retrip.WithTrace(nil)))
	require.Len(t, d.attempted, 3, "an override does not take it away")
	stop()
	stop()
	get(t.Context())
	require.Len(t, d.attempted, 3)
	require.Len(t, own.attempted, 3, "all but that of the override")
	require.PanicsWithValue(t, "retrip: Watch(nil): no hooks", func() { rt.Watch(nil) })
}

func TestWatchingTheZeroTransport(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	d, rt := &diary{}, &retrip.Transport{}
	defer rt.Watch(d.trace())()
	req := request(t, http.MethodGet, nil)
	req.URL.Host = strings.TrimPrefix(srv.URL, "http://")
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	_ = finish(t, resp)
	require.Len(t, d.attempted, 1)
}

func TestManyMayWatchAtOnce(t *testing.T) {
	t.Parallel()
	rt := retrip.New(play(answer(200)))
	var heard atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				stop := rt.Watch(&retrip.Trace{Attempted: func(retrip.AttemptedInfo) { heard.Add(1) }})
				_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
				stop()
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.GreaterOrEqual(t, heard.Load(), int64(400))
	before := heard.Load()
	_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
	require.NoError(t, err)
	require.Equal(t, before, heard.Load(), "nobody is left")
}

// Not parallel: all goroutines' allocations count.
func TestWatchingCostsASuccessNoAllocation(t *testing.T) {
	resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}
	base := roundTrip(func(*http.Request) (*http.Response, error) { return resp, nil })
	for name, tr := range map[string]*retrip.Trace{
		"not told of it": {Pausing: func(retrip.PausingInfo) {}, GaveUp: func(retrip.GaveUpInfo) {}},
		"told of it":     {Attempted: func(retrip.AttemptedInfo) {}},
	} {
		rt := retrip.New(base)
		stop := rt.Watch(tr)
		req := request(t, http.MethodGet, nil)
		require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = rt.RoundTrip(req) }), name)
		stop()
	}
}

func TestOutcomesAreFewAndHoldNoSecret(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const secret = "s3cret"
		rt := retrip.New(play(hang), retrip.WithAttemptTimeout(time.Second), retrip.WithMaxAttempts(1))
		_, timeout := rt.RoundTrip(request(t, http.MethodGet, nil))
		for _, tt := range []struct {
			want string
			a    retrip.Attempt
		}{
			{"", retrip.Attempt{}},
			{"503", retrip.Attempt{Response: &http.Response{StatusCode: 503, Status: secret}}},
			{"attempt timeout", retrip.Attempt{Err: fmt.Errorf("%s: %w", secret, timeout)}},
			{"breaker open", retrip.Attempt{Err: fmt.Errorf("%s: %w", secret, &retrip.OpenError{Host: secret, Until: time.Now()})}},
			{"connection refused", retrip.Attempt{Err: &url.Error{URL: secret, Err: syscall.ECONNREFUSED}}},
			{"*errors.errorString", retrip.Attempt{Err: errors.New(secret)}},
		} {
			require.Equal(t, tt.want, tt.a.Outcome())
		}
	})
}
