package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

const unending = math.MaxInt64

// every10s pauses for exactly 10 s.
var every10s = retrip.WithBackoff(retrip.Constant(10 * time.Second))

// timed makes the round trip and tells how long it took.
func timed(rt http.RoundTripper, req *http.Request) (*http.Response, time.Duration, error) {
	start := time.Now()
	resp, err := rt.RoundTrip(req)
	return resp, time.Since(start), err
}

// starts returns when the attempts began, in seconds since the first.
func starts(s *script) []float64 {
	at := []float64{0}
	for _, d := range s.pauses() {
		at = append(at, at[len(at)-1]+d.Seconds())
	}
	return at
}

func TestARequestThatSucceedsAtOnceIsTheCallersOwn(t *testing.T) {
	t.Parallel()
	base := play(answer(200))
	req := request(t, http.MethodGet, nil)
	resp, err := retrip.New(base).RoundTrip(req)
	require.NoError(t, err)
	require.Same(t, req, base.attempts()[0].req)
	require.Same(t, req, resp.Request)
	require.Equal(t, "x", finish(t, resp))
}

func TestAttemptsFollowTheBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(503), answer(503), answer(200))
		rt := retrip.New(base, retrip.WithBackoff(retrip.Exponential(time.Second, time.Minute)))
		resp, err := rt.RoundTrip(request(t, http.MethodPut, strings.NewReader("hello")))
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second}, base.pauses())
		for _, saw := range base.attempts() {
			require.Equal(t, "hello", saw.body)
		}
		require.Len(t, retrip.History(resp), 3)
	})
}

func TestTheLimitsOfARequestAreExact(t *testing.T) {
	t.Parallel()
	slow := after(4*time.Second, answer(503))
	backoff := func(d time.Duration) retrip.Option {
		return retrip.WithBackoff(func(int, time.Duration) time.Duration { return d })
	}
	tests := []struct {
		name     string
		opts     []retrip.Option
		deadline time.Duration
		step     step // 503 at once if nil
		starts   []float64
		took     float64
	}{
		{name: "four attempts by default", starts: []float64{0, 10, 20, 30}, took: 30},
		{name: "one attempt", opts: []retrip.Option{retrip.WithMaxAttempts(1)}, starts: []float64{0}},
		{name: "two attempts", opts: []retrip.Option{retrip.WithMaxAttempts(2)}, starts: []float64{0, 10}, took: 10},
		{name: "the last option wins", opts: []retrip.Option{retrip.WithMaxAttempts(1), retrip.WithMaxAttempts(2)}, starts: []float64{0, 10}, took: 10},
		{name: "a pause begins when the attempt ends", step: slow, starts: []float64{0, 14, 28, 42}, took: 46},
		{name: "no pause", opts: []retrip.Option{backoff(0)}, starts: []float64{0, 0, 0, 0}},
		{name: "a negative pause is none", opts: []retrip.Option{backoff(-time.Hour)}, starts: []float64{0, 0, 0, 0}},
		{name: "the default budget is 90 s", opts: []retrip.Option{backoff(30 * time.Second)}, starts: []float64{0, 30, 60}, took: 60},
		{name: "no budget", opts: []retrip.Option{retrip.WithBudget(0)}, starts: []float64{0}},
		{name: "the budget ends when the third attempt would start", opts: []retrip.Option{retrip.WithBudget(20 * time.Second)}, starts: []float64{0, 10}, took: 10},
		{name: "the budget ends just after the third attempt starts", opts: []retrip.Option{retrip.WithBudget(20*time.Second + 1)}, starts: []float64{0, 10, 20}, took: 20},
		{name: "attempts use the budget up", opts: []retrip.Option{retrip.WithBudget(14 * time.Second)}, step: slow, starts: []float64{0}, took: 4},
		{name: "an attempt under way outlasts the budget", opts: []retrip.Option{retrip.WithBudget(15 * time.Second)}, step: slow, starts: []float64{0, 14}, took: 18},
		{name: "endless budget", opts: []retrip.Option{retrip.WithBudget(unending), backoff(1000 * time.Hour)}, starts: []float64{0, 3.6e6, 7.2e6, 10.8e6}, took: 10.8e6},
		{name: "endless budget and pause", opts: []retrip.Option{retrip.WithBudget(unending), backoff(unending)}, starts: []float64{0}},
		{name: "the deadline is when the third attempt would start", deadline: 20 * time.Second, starts: []float64{0, 10}, took: 10},
		{name: "the deadline is just after the third attempt starts", deadline: 20*time.Second + 1, starts: []float64{0, 10, 20}, took: 20},
		{name: "attempts use the deadline up", deadline: 14 * time.Second, step: slow, starts: []float64{0}, took: 4},
		{name: "Retry-After is over the budget", step: answer(503, "Retry-After", "90"), starts: []float64{0}},
		{name: "Retry-After is over the deadline", deadline: time.Minute, step: answer(503, "Retry-After", "60"), starts: []float64{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if tt.step == nil {
					tt.step = answer(503)
				}
				base := play(tt.step)
				req := request(t, http.MethodGet, nil)
				if tt.deadline > 0 {
					ctx, cancel := context.WithTimeout(req.Context(), tt.deadline)
					defer cancel()
					req = req.WithContext(ctx)
				}
				resp, took, err := timed(retrip.New(base, slices.Concat([]retrip.Option{every10s}, tt.opts)...), req)
				require.NoError(t, err)
				require.Equal(t, tt.starts, starts(base))
				require.Equal(t, tt.took, took.Seconds())
				for _, record := range retrip.History(resp) {
					require.GreaterOrEqual(t, record.Pause, time.Duration(0))
				}
				require.Equal(t, 503, resp.StatusCode)
				require.Equal(t, "x", finish(t, resp))
			})
		})
	}
}

func TestAnErrorThatCannotBeRetriedInTimeIsTheBasesOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for _, rt := range []*retrip.Transport{
			retrip.New(play(fail(errReset)), every10s),
			retrip.New(play(fail(errReset)), every10s, retrip.WithBudget(10*time.Second)),
			retrip.New(play(fail(errReset)), every10s, retrip.WithMaxAttempts(1)),
		} {
			_, took, err := timed(rt, request(t, http.MethodGet, nil).WithContext(ctx))
			require.Zero(t, took)
			require.Same(t, errReset, err)
		}
	})
}

func TestThePauseThatTheServerAsksForGrowsByAJitterThatFits(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		asked    string
		budget   time.Duration
		deadline time.Duration
		low      time.Duration
		high     time.Duration
	}{
		{name: "a tenth", asked: "10", budget: time.Hour, low: 10 * time.Second, high: 11 * time.Second},
		{name: "at most 5 s", asked: "80", budget: time.Hour, low: 80 * time.Second, high: 85 * time.Second},
		{name: "what the budget leaves", asked: "60", budget: 61 * time.Second, low: 60 * time.Second, high: 61*time.Second - 1},
		{name: "what the deadline leaves", asked: "60", budget: time.Hour, deadline: 62 * time.Second, low: 60 * time.Second, high: 62*time.Second - 1},
		{name: "nothing", asked: "60", budget: 60*time.Second + 1, low: 60 * time.Second, high: 60 * time.Second},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			seen := map[time.Duration]bool{}
			for range 50 {
				base := play(answer(503, "Retry-After", tt.asked), answer(200))
				req := request(t, http.MethodGet, nil)
				if tt.deadline > 0 {
					ctx, cancel := context.WithTimeout(req.Context(), tt.deadline)
					defer cancel()
					req = req.WithContext(ctx)
				}
				_, took, err := timed(retrip.New(base, retrip.WithBudget(tt.budget)), req)
				require.NoError(t, err)
				require.GreaterOrEqual(t, took, tt.low, tt.name)
				require.LessOrEqual(t, took, tt.high, tt.name)
				require.Len(t, base.attempts(), 2)
				seen[took] = true
			}
			require.Equal(t, tt.low < tt.high, len(seen) > 1, tt.name)
		})
	}
}

// A canceller is one of the ways in which a caller ends a request.
type canceller struct {
	name string
	set  func(*http.Request) (*http.Request, func())
	want []error // what the error matches
}

var cancellers = []canceller{
	{"context", func(req *http.Request) (*http.Request, func()) {
		ctx, cancel := context.WithCancel(req.Context())
		return req.WithContext(ctx), cancel
	}, []error{context.Canceled}},
	{"context with a cause", func(req *http.Request) (*http.Request, func()) {
		ctx, cancel := context.WithCancelCause(req.Context())
		return req.WithContext(ctx), func() { cancel(errOdd) }
	}, []error{context.Canceled, errOdd}},
	{"Request.Cancel", func(req *http.Request) (*http.Request, func()) {
		over := make(chan struct{})
		req = req.Clone(req.Context())
		req.Cancel = over //lint:ignore SA1019 callers and net/http use it
		return req, sync.OnceFunc(func() { close(over) })
	}, []error{context.Canceled}},
}

func TestCancellationEndsAPauseAtOnce(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		first func(body io.ReadCloser) step
		want  error // the last failure
	}{
		{"after a response", func(io.ReadCloser) step { return answer(503) }, nil},
		{"after an error", func(io.ReadCloser) step { return fail(errReset) }, errReset},
		{"while a response is discarded", func(body io.ReadCloser) step { return bodyless(503, body) }, nil},
	}
	for _, tt := range tests {
		for _, c := range cancellers {
			for _, body := range []string{"", "stream"} {
				t.Run(fmt.Sprintf("%s by %s with body %q", tt.name, c.name, body), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						waste := &waste{size: 1, delay: time.Hour, closed: make(chan struct{})}
						base := play(tt.first(waste))
						source := track(body)
						req := request(t, http.MethodGet, nil)
						if body != "" {
							req.Body = source
						}
						req, cancel := c.set(req)
						defer cancel()
						time.AfterFunc(3*time.Second, cancel)
						resp, took, err := timed(retrip.New(base, every10s), req)
						require.Nil(t, resp)
						require.Equal(t, 3*time.Second, took)
						require.Len(t, base.attempts(), 1)
						failed, ok := errors.AsType[*retrip.Error](err)
						require.True(t, ok)
						require.Equal(t, retrip.ReasonCancelled, failed.Reason)
						require.False(t, failed.Timeout())
						for _, want := range append(c.want, tt.want) {
							if want != nil {
								require.ErrorIs(t, err, want)
							}
						}
						if body != "" {
							source.requireClosed(t)
						}
					})
				})
			}
		}
	}
}

func TestCancellationEndsAnAttemptForGood(t *testing.T) {
	t.Parallel()
	for _, c := range cancellers {
		// Whatever the base makes of it: a reset would be tried again.
		for _, becomes := range []error{nil, errReset} {
			for _, before := range [][]step{nil, {fail(errRefused)}} {
				synctest.Test(t, func(t *testing.T) {
					base := play(append(before, func(req *http.Request) (*http.Response, error) {
						_, err := hangs(req)
						if becomes != nil {
							err = becomes
						}
						return nil, err
					})...)
					req, cancel := c.set(request(t, http.MethodGet, nil))
					defer cancel()
					time.AfterFunc(13*time.Second, cancel)
					_, took, err := timed(retrip.New(base, every10s), req)
					require.Equal(t, 13*time.Second, took, c.name)
					require.Len(t, base.attempts(), len(before)+1)
					failed, many := errors.AsType[*retrip.Error](err)
					require.Equal(t, len(before) > 0, many)
					if !many {
						if becomes != nil {
							require.Equal(t, becomes, err, "the error of a single attempt is as the base gave it")
						}
						return
					}
					require.Equal(t, retrip.ReasonCancelled, failed.Reason)
					for _, want := range append(c.want, errRefused) {
						require.ErrorIs(t, err, want, c.name)
					}
				})
			}
		}
	}
}

func TestAClientsTimeoutIsCalledThat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, steps := range [][]step{{hangs}, {answer(503), hangs}} {
			client := http.Client{Transport: retrip.New(play(steps...), retrip.WithBackoff(retrip.Constant(time.Second))), Timeout: 5 * time.Second}
			start := time.Now()
			_, err := client.Get("http://example.com/")
			require.ErrorContains(t, err, "Client.Timeout exceeded while awaiting headers")
			require.Equal(t, 5*time.Second, time.Since(start))
			failed, ok := errors.AsType[*url.Error](err)
			require.True(t, ok && failed.Timeout())
		}
	})
}

// late answers after d whatever becomes of the attempt.
func late(d time.Duration, then step) step {
	return func(req *http.Request) (*http.Response, error) {
		time.Sleep(d)
		return then(req)
	}
}

func TestAnAttemptTimeoutCutsAnAttemptOffForAnother(t *testing.T) {
	t.Parallel()
	cut := func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, context.Canceled // as HTTP/2 has it
	}
	tests := []struct {
		name   string
		steps  []step
		starts []float64
		took   float64
		status int
	}{
		{"an answer in time", []step{late(time.Second-1, answer(200))}, []float64{0}, 1 - 1e-9, 200},
		{"hangs once", []step{hang, answer(200)}, []float64{0, 11}, 11, 200},
		{"hangs once, HTTP/2", []step{cut, answer(200)}, []float64{0, 11}, 11, 200},
		{"an answer too late", []step{late(2*time.Second, answer(200)), answer(404)}, []float64{0, 12}, 12, 404},
		{"an error too late", []step{late(2*time.Second, fail(errOdd)), answer(404)}, []float64{0, 12}, 12, 404},
		{"hangs always", []step{hang}, []float64{0, 11, 22, 33}, 34, 0},
		{"hangs always, HTTP/2", []step{cut}, []float64{0, 11, 22, 33}, 34, 0},
		{"fails, then hangs", []step{answer(503), hang}, []float64{0, 10, 21, 32}, 33, 0},
	}
	for _, tt := range tests {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			t.Run(tt.name+"/"+method, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					base := play(tt.steps...)
					rt := retrip.New(base, every10s, retrip.WithAttemptTimeout(time.Second))
					resp, took, err := timed(rt, request(t, method, strings.NewReader("hello")))
					require.Equal(t, tt.starts, starts(base))
					require.Equal(t, tt.took, took.Seconds())
					for _, saw := range base.attempts() {
						require.Equal(t, "hello", saw.body)
					}
					if tt.status != 0 {
						require.NoError(t, err)
						require.Equal(t, tt.status, resp.StatusCode)
						require.Equal(t, "x", finish(t, resp))
						return
					}
					failed, ok := errors.AsType[*retrip.Error](err)
					require.True(t, ok)
					require.Equal(t, retrip.ReasonAttempts, failed.Reason)
					requireCutOff(t, err)
				})
			})
		}
	}
}

func requireCutOff(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	timeout, ok := err.(interface{ Timeout() bool }) // as url.Error asks it
	require.True(t, ok && timeout.Timeout())
}

func TestASingleAttemptThatIsCutOffIsATimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(play(hang), retrip.WithAttemptTimeout(time.Second), retrip.WithMaxAttempts(1))
		_, took, err := timed(rt, request(t, http.MethodGet, nil))
		require.Equal(t, time.Second, took)
		requireCutOff(t, err)
		require.ErrorContains(t, err, "example.com: no response headers within 1s")
	})
}

func TestTheCallersDeadlineIsNotAnAttemptTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reasons []retrip.Reason
		base := play(hang)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, errReset)
		defer cancel()
		rt := retrip.New(base, retrip.WithAttemptTimeout(10*time.Second), retrip.WithTrace(&retrip.Trace{
			GaveUp: func(i retrip.GaveUpInfo) { reasons = append(reasons, i.Reason) }}))
		_, took, err := timed(rt, request(t, http.MethodGet, nil).WithContext(ctx))
		require.Equal(t, 5*time.Second, took)
		require.Equal(t, errReset, err)
		require.Len(t, base.attempts(), 1)
		require.Equal(t, []retrip.Reason{retrip.ReasonDeadline}, reasons)
	})
}

func TestAResponseThatComesTooLateIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body := track("x")
		rt := retrip.New(play(late(2*time.Second, bodyless(200, body))), retrip.WithAttemptTimeout(time.Second), retrip.WithMaxAttempts(1))
		_, took, err := timed(rt, request(t, http.MethodGet, nil))
		require.Equal(t, 2*time.Second, took)
		requireCutOff(t, err)
		body.requireClosed(t)
	})
}

func TestAnAttemptTimeoutDoesNotCutTheResponsesBody(t *testing.T) {
	t.Parallel()
	ways := map[string]func(*http.Response) error{
		"read":   func(resp *http.Response) error { _, err := io.ReadAll(resp.Body); return err },
		"closed": func(resp *http.Response) error { return resp.Body.Close() },
	}
	for way, end := range ways {
		synctest.Test(t, func(t *testing.T) {
			base := play(answer(503), bodyless(200, &waste{size: 5, delay: time.Hour, closed: make(chan struct{})}))
			rt := retrip.New(base, every10s, retrip.WithAttemptTimeout(time.Second))
			resp, err := rt.RoundTrip(request(t, http.MethodGet, nil))
			require.NoError(t, err)
			sent := base.attempts()[1].req.Context()
			time.Sleep(time.Hour)
			require.NoError(t, sent.Err(), "the attempt lives as long as its body")
			require.NoError(t, end(resp), way)
			require.ErrorIs(t, context.Cause(sent), context.Canceled, way)
			require.NoError(t, resp.Request.Context().Err())
		})
	}
}

func TestABodyThatBlocksIsTheCallersFault(t *testing.T) {
	t.Parallel()
	for _, rewinds := range []bool{false, true} {
		for _, attempts := range []int{1, 4} {
			synctest.Test(t, func(t *testing.T) {
				var reasons []retrip.Reason
				breaker := retrip.DefaultBreaker()
				breaker.Failures = 1
				rt := retrip.New(play(answer(200)), retrip.WithAttemptTimeout(time.Second), retrip.WithMaxAttempts(attempts),
					retrip.WithBreaker(&breaker), retrip.WithTrace(&retrip.Trace{
						GaveUp: func(i retrip.GaveUpInfo) { reasons = append(reasons, i.Reason) }}))
				body := contractBody{text: "ab", blocks: true}.open()
				req := request(t, http.MethodPut, nil)
				req.Body = body
				if rewinds {
					req.GetBody = func() (io.ReadCloser, error) { return nil, errOdd }
				}
				_, took, err := timed(rt, req)
				require.Equal(t, time.Second, took)
				requireCutOff(t, err)
				require.ErrorContains(t, err, "the request body did not yield within 1s")
				require.Equal(t, []retrip.Reason{retrip.ReasonBody}, reasons)
				for _, stats := range rt.Hosts() {
					require.Equal(t, retrip.Closed, stats.State, "it is not the host's fault")
				}
				body.requireClosed(t)
			})
		}
	}
}

// A waste is the body of a response that is discarded. It takes its time for each
// Read but ends it when it is closed, unless it is deaf.
type waste struct {
	size   int
	delay  time.Duration
	deaf   bool
	closed chan struct{}
	closes int
	at     time.Time // when it was closed
}

func (w *waste) Read(p []byte) (int, error) {
	if w.delay > 0 {
		closed := w.closed
		if w.deaf {
			closed = nil
		}
		select {
		case <-time.After(w.delay):
		case <-closed:
			return 0, http.ErrBodyReadAfterClose
		}
	}
	n := min(len(p), w.size)
	if w.size -= n; w.size == 0 {
		return n, io.EOF
	}
	return n, nil
}

func (w *waste) Close() error {
	if w.closes++; w.closes == 1 {
		w.at = time.Now()
		close(w.closed)
	}
	return nil
}

func TestAResponseIsDiscardedWithinBounds(t *testing.T) {
	t.Parallel()
	const ms, kb = time.Millisecond, 1 << 10
	tests := []struct {
		name   string
		pause  time.Duration
		body   waste
		length int64
		major  int
		left   int // bytes not read
		closed time.Duration
		next   time.Duration // attempt
	}{
		{name: "64 KiB are read", pause: 1000 * ms, body: waste{size: 64 * kb}, length: -1, next: 1000 * ms},
		{name: "and no more", pause: 1000 * ms, body: waste{size: 65 * kb}, length: -1, left: kb, next: 1000 * ms},
		{name: "a declared 64 KiB are read", pause: 1000 * ms, body: waste{size: 64 * kb}, length: 64 * kb, next: 1000 * ms},
		{name: "a longer one is closed at once", pause: 1000 * ms, body: waste{size: 64*kb + 1}, length: 64*kb + 1, left: 64*kb + 1, next: 1000 * ms},
		{name: "HTTP/2 is closed at once", pause: 1000 * ms, body: waste{size: 1, delay: 300 * ms}, length: 1, major: 2, left: 1, next: 1000 * ms},
		{name: "HTTP/2 without a pause", body: waste{size: 1, delay: 300 * ms}, length: 1, major: 2, left: 1},
		{name: "reading is part of the pause", pause: 1000 * ms, body: waste{size: 1, delay: 300 * ms}, length: -1, closed: 300 * ms, next: 1000 * ms},
		{name: "reading ends with the pause", pause: 1000 * ms, body: waste{size: 1, delay: time.Hour}, length: -1, left: 1, closed: 1000 * ms, next: 1000 * ms},
		{name: "reading may take 10 ms without a pause", body: waste{size: 1, delay: time.Hour}, length: -1, left: 1, closed: 10 * ms, next: 10 * ms},
		{name: "and in a shorter one", pause: 5 * ms, body: waste{size: 1, delay: time.Hour}, length: -1, left: 1, closed: 10 * ms, next: 10 * ms},
		{name: "a short read in no pause", body: waste{size: 1, delay: 4 * ms}, length: -1, closed: 4 * ms, next: 4 * ms},
		{name: "a short read in a short pause", pause: 5 * ms, body: waste{size: 1, delay: 2 * ms}, length: -1, closed: 2 * ms, next: 5 * ms},
		{name: "a read longer than a short pause", pause: 5 * ms, body: waste{size: 1, delay: 7 * ms}, length: -1, closed: 7 * ms, next: 7 * ms},
		{name: "a Close that does not end the Read holds the request", pause: 1000 * ms, body: waste{size: 1, delay: 3000 * ms, deaf: true}, length: -1, closed: 1000 * ms, next: 3000 * ms},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				body := tt.body
				body.closed = make(chan struct{})
				base := play(func(req *http.Request) (*http.Response, error) {
					resp, err := answer(503)(req)
					resp.Body, resp.ContentLength, resp.ProtoMajor = &body, tt.length, max(1, tt.major)
					return resp, err
				}, answer(200))
				start := time.Now()
				_, took, err := timed(retrip.New(base, retrip.WithBackoff(retrip.Constant(tt.pause))), request(t, http.MethodGet, nil))
				require.NoError(t, err)
				require.Equal(t, tt.next, took)
				require.Equal(t, tt.closed, body.at.Sub(start))
				require.Equal(t, 1, body.closes)
				require.Equal(t, tt.left, body.size)
			})
		})
	}
}

func TestOverrideIsForOneRequest(t *testing.T) {
	t.Parallel()
	pause := func(d time.Duration) retrip.CallOption { return retrip.WithBackoff(retrip.Constant(d)) }
	ctx := context.Background()
	tests := []struct {
		name   string
		ctx    context.Context
		starts []float64
	}{
		{"none", ctx, []float64{0, 10, 20, 30}},
		{"no options", retrip.Override(ctx), []float64{0, 10, 20, 30}},
		{"attempts", retrip.Override(ctx, retrip.WithMaxAttempts(2)), []float64{0, 10}},
		{"two settings", retrip.Override(ctx, retrip.WithMaxAttempts(3), pause(time.Second)), []float64{0, 1, 2}},
		{"stacked", retrip.Override(retrip.Override(ctx, retrip.WithMaxAttempts(3)), pause(time.Second)), []float64{0, 1, 2}},
		{"the inner one wins", retrip.Override(retrip.Override(ctx, retrip.WithMaxAttempts(3)), retrip.WithMaxAttempts(2)), []float64{0, 10}},
		{"budget", retrip.Override(ctx, retrip.WithBudget(0)), []float64{0}},
		{"policy", retrip.Override(ctx, retrip.WithPolicy(nil)), []float64{0}},
	}
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(503))
		rt := retrip.New(base, every10s, retrip.WithBreaker(nil), retrip.WithRetryQuota(nil))
		for _, tt := range tests {
			before := len(base.attempts())
			_, _, err := timed(rt, request(t, http.MethodGet, nil).WithContext(tt.ctx))
			require.NoError(t, err)
			require.Equal(t, tt.starts, starts(&script{seen: base.attempts()[before:]}), tt.name)
		}
	})
}

func TestTracesOfStackedOverridesAddUp(t *testing.T) {
	t.Parallel()
	var calls string
	named := func(name string) retrip.CallOption {
		return retrip.WithTrace(&retrip.Trace{Attempted: func(retrip.AttemptedInfo) { calls += name }})
	}
	rt := retrip.New(play(answer(200)), named("a"))
	outer := t.Context()
	for _, name := range []string{"b", "c", "d"} {
		outer = retrip.Override(outer, named(name))
	}
	for _, tt := range []struct {
		ctx  context.Context
		want string
	}{
		{t.Context(), "a"},
		{outer, "abcd"},
		{retrip.Override(outer, named("e")), "abcde"},
		{retrip.Override(outer, named("f")), "abcdf"},
		{retrip.Override(outer, retrip.WithTrace(nil)), ""},
		{retrip.Override(outer, retrip.WithTrace(nil), named("g")), "g"},
		{outer, "abcd"},
	} {
		calls = ""
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(tt.ctx))
		require.NoError(t, err)
		require.Equal(t, tt.want, calls)
	}
}

func TestAnOverrideReachesTheLayerBelowInEveryAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var numbers []int
		trace := retrip.WithTrace(&retrip.Trace{Attempted: func(i retrip.AttemptedInfo) { numbers = append(numbers, i.Attempt.Number) }})
		rt := retrip.New(retrip.New(play(answer(503))), every10s)
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(retrip.Override(t.Context(), trace)))
		require.NoError(t, err)
		require.Equal(t, []int{1, 1, 1, 2, 1, 3, 1, 4}, numbers, "of the layer below and of the one above")
	})
}

// Not parallel: http.DefaultTransport is a global.
func TestWithoutABaseTheDefaultTransportServes(t *testing.T) {
	base := &idler{RoundTripper: play(answer(503))}
	setDefaultTransport(t, base)
	made := retrip.New(nil)
	override := retrip.Override(t.Context(), retrip.WithMaxAttempts(3), retrip.WithBudget(time.Hour), retrip.WithPolicy(retrip.DefaultPolicy))
	tests := []struct {
		name     string
		rt       *retrip.Transport
		ctx      context.Context
		attempts int
	}{
		{"zero", &retrip.Transport{}, t.Context(), 1},
		{"zero with an override", &retrip.Transport{}, override, 3},
		{"New(nil)", made, retrip.Override(t.Context(), retrip.WithMaxAttempts(2), retrip.WithBackoff(retrip.Constant(0))), 2},
	}
	for _, tt := range tests {
		s := play(answer(503))
		base.RoundTripper = s
		req := request(t, http.MethodPut, strings.NewReader("hello")).WithContext(tt.ctx)
		resp, err := tt.rt.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		require.Len(t, s.attempts(), tt.attempts, tt.name)
		for _, saw := range s.attempts() {
			require.Equal(t, "hello", saw.body)
		}
		before := base.closed
		tt.rt.CloseIdleConnections()
		require.Equal(t, before+1, base.closed, tt.name)
	}
	for range (&retrip.Transport{}).Hosts() {
		require.Fail(t, "the zero Transport knows no host")
	}
	http.DefaultTransport = play(answer(404))
	resp, err := made.RoundTrip(request(t, http.MethodGet, nil).WithContext(retrip.Override(t.Context(), retrip.WithMaxAttempts(1))))
	require.NoError(t, err)
	require.Equal(t, 503, resp.StatusCode, "New takes what http.DefaultTransport is at the time")
}

// An idler counts how often it is told to close its idle connections.
type idler struct {
	http.RoundTripper
	closed int
}

func (i *idler) CloseIdleConnections() { i.closed++ }

func TestCloseIdleConnectionsReachesTheBase(t *testing.T) {
	t.Parallel()
	base := &idler{RoundTripper: play(answer(503))}
	rt := retrip.New(retrip.New(base, retrip.WithBackoff(retrip.Constant(0))), retrip.WithBackoff(retrip.Constant(0)))
	_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
	require.NoError(t, err)
	require.Zero(t, base.closed, "only the caller does that")
	(&http.Client{Transport: rt}).CloseIdleConnections()
	require.Equal(t, 1, base.closed)
	require.NotPanics(t, retrip.New(play(answer(200))).CloseIdleConnections)
}

func TestTwoLayersDoNotMultiply(t *testing.T) {
	t.Parallel()
	layer := func(base http.RoundTripper) http.RoundTripper {
		return retrip.New(base, every10s, retrip.WithBudget(unending))
	}
	middle := func(base http.RoundTripper) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) { return base.RoundTrip(req.Clone(req.Context())) })
	}
	tests := []struct {
		name    string
		stack   func(http.RoundTripper) http.RoundTripper
		numbers []int // of the attempts, as the base sees them
	}{
		{"one layer", layer, []int{1, 2, 3, 4}},
		{"direct", func(b http.RoundTripper) http.RoundTripper { return layer(layer(b)) }, []int{1, 2, 3, 4}},
		{"three layers", func(b http.RoundTripper) http.RoundTripper { return layer(layer(layer(b))) }, []int{1, 2, 3, 4}},
		{"through another transport", func(b http.RoundTripper) http.RoundTripper { return layer(middle(layer(b))) },
			[]int{1, 2, 3, 4, 2, 3, 4}},
	}
	for _, tt := range tests {
		for _, step := range []step{answer(503), fail(errReset)} {
			synctest.Test(t, func(t *testing.T) {
				base := play(step)
				resp, took, err := timed(tt.stack(base), request(t, http.MethodPost, strings.NewReader("hello")))
				require.Equal(t, resp == nil, err != nil)
				var numbers []int
				for _, saw := range base.attempts() {
					numbers = append(numbers, retrip.AttemptNumber(saw.req.Context()))
					require.Equal(t, "hello", saw.body)
					require.Equal(t, base.attempts()[0].header, saw.header, "all attempts carry one key")
				}
				require.Equal(t, tt.numbers, numbers, tt.name)
				require.Equal(t, time.Duration(len(numbers)-1)*10*time.Second, took, tt.name)
			})
		}
	}
}

func TestARequestForSomethingElseWithinAnAttemptIsRetried(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, method, host string
		attempts           int
	}{
		{"another host", http.MethodGet, "token.example", 2},
		{"another method", http.MethodPut, "example.com", 2},
		{"the same of both", http.MethodGet, "example.com", 1},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			token := play(answer(503), answer(200))
			below := retrip.New(token, every10s)
			var seen []int
			signer := roundTrip(func(req *http.Request) (*http.Response, error) {
				seen = append(seen, retrip.AttemptNumber(req.Context()))
				if len(seen) == 1 {
					return nil, errReset
				}
				fetch, err := http.NewRequestWithContext(req.Context(), tt.method, "http://"+tt.host, nil)
				require.NoError(t, err)
				_, err = below.RoundTrip(fetch)
				require.NoError(t, err)
				return answer(200)(req)
			})
			resp, err := retrip.New(signer, every10s).RoundTrip(request(t, http.MethodGet, nil))
			require.NoError(t, err)
			require.Len(t, retrip.History(resp), 2)
			require.Equal(t, []int{1, 2}, seen)
			require.Len(t, token.attempts(), tt.attempts, tt.name)
			for i, saw := range token.attempts() {
				want := i + 1 // its own
				if tt.attempts == 1 {
					want = 2 // of the attempt that it is part of
				}
				require.Equal(t, want, retrip.AttemptNumber(saw.req.Context()), tt.name)
			}
		})
	}
}

func TestTheNextPageInheritsNothingOfThisOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(503), answer(503), answer(200), answer(200), answer(503), answer(200))
		rt := retrip.New(base, every10s, retrip.WithAttemptTimeout(time.Second))
		type key struct{}
		ctx := context.WithValue(t.Context(), key{}, "the caller's")
		for _, attempts := range []int{3, 1, 2} {
			resp, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
			require.NoError(t, err)
			finish(t, resp)
			history := retrip.History(resp)
			if attempts == 1 {
				require.Nil(t, history)
			} else {
				require.Len(t, history, attempts)
				history[0].Number = 99
				require.Equal(t, 1, retrip.History(resp)[0].Number, "each call makes a new slice")
			}
			ctx = resp.Request.Context()
			require.NoError(t, ctx.Err())
			require.Equal(t, 1, retrip.AttemptNumber(ctx))
			require.Equal(t, "the caller's", ctx.Value(key{}))
		}
	})
}

func TestManyRequestsShareOneTransport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			calls.Add(1)
			if retrip.AttemptNumber(req.Context()) < 3 {
				return after(time.Second, answer(503))(req)
			}
			return after(time.Second, answer(200))(req)
		})
		rt := retrip.New(base, every10s, retrip.WithBreaker(nil), retrip.WithRetryQuota(nil), retrip.WithAttemptTimeout(5*time.Second))
		var all sync.WaitGroup
		for range 50 {
			req := request(t, http.MethodPost, strings.NewReader("hello"))
			all.Go(func() {
				resp, took, err := timed(rt, req)
				if err != nil || resp.StatusCode != 200 || took != 23*time.Second || resp.Body.Close() != nil {
					t.Errorf("got %v, %v in %v", resp, err, took)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 150, calls.Load())
	})
}

func TestWithWrongArgumentsOptionsPanicAndNameThem(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	quota := func(set func(*retrip.Quota)) func() any {
		q := retrip.DefaultQuota()
		set(&q)
		return func() any { return retrip.WithRetryQuota(&q) }
	}
	breaker := func(set func(*retrip.Breaker)) func() any {
		b := retrip.DefaultBreaker()
		set(&b)
		return func() any { return retrip.WithBreaker(&b) }
	}
	tests := map[string]func() any{
		"WithMaxAttempts(0)":                     func() any { return retrip.WithMaxAttempts(0) },
		"WithMaxAttempts(-1)":                    func() any { return retrip.WithMaxAttempts(-1) },
		"WithAttemptTimeout(-1ns)":               func() any { return retrip.WithAttemptTimeout(-1) },
		"WithMaxBody(-1)":                        func() any { return retrip.WithMaxBody(-1) },
		"WithBackoff(nil)":                       func() any { return retrip.WithBackoff(nil) },
		"WithBudget(-1ns)":                       func() any { return retrip.WithBudget(-1) },
		"WithHosts(0":                            func() any { return retrip.WithHosts(0, nil) },
		"WithHosts(-5":                           func() any { return retrip.WithHosts(-5, nil) },
		`WithKeyHeader("")`:                      func() any { return retrip.WithKeyHeader("") },
		`WithKeyHeader("two words")`:             func() any { return retrip.WithKeyHeader("two words") },
		`WithKeyHeader("Key:")`:                  func() any { return retrip.WithKeyHeader("Key:") },
		`WithKeyHeader("a\nb")`:                  func() any { return retrip.WithKeyHeader("a\nb") },
		`WithKeyHeader("schlüssel")`:             func() any { return retrip.WithKeyHeader("schlüssel") },
		"Constant(-1ns)":                         func() any { return retrip.Constant(-1) },
		"Exponential(-1s, 1s)":                   func() any { return retrip.Exponential(-time.Second, time.Second) },
		"Exponential(2s, 1s)":                    func() any { return retrip.Exponential(2*time.Second, time.Second) },
		"FullJitter(-1s, 1s)":                    func() any { return retrip.FullJitter(-time.Second, time.Second) },
		"FullJitter(2s, 1s)":                     func() any { return retrip.FullJitter(2*time.Second, time.Second) },
		"EqualJitter(-1s, 1s)":                   func() any { return retrip.EqualJitter(-time.Second, time.Second) },
		"EqualJitter(2s, 1s)":                    func() any { return retrip.EqualJitter(2*time.Second, time.Second) },
		"DecorrelatedJitter(-1s, 1s)":            func() any { return retrip.DecorrelatedJitter(-time.Second, time.Second) },
		"DecorrelatedJitter(2s, 1s)":             func() any { return retrip.DecorrelatedJitter(2*time.Second, time.Second) },
		"Ladder()":                               func() any { return retrip.Ladder() },
		"Ladder([1s -1ns])":                      func() any { return retrip.Ladder(time.Second, -1) },
		"Spread(nil":                             func() any { return retrip.Spread(nil, 0.5) },
		"Spread(…, -0.1)":                        func() any { return retrip.Spread(retrip.Constant(0), -0.1) },
		"Spread(…, 1.1)":                         func() any { return retrip.Spread(retrip.Constant(0), 1.1) },
		"Spread(…, NaN)":                         func() any { return retrip.Spread(retrip.Constant(0), nan) },
		"WithRetryQuota({Capacity:-1 ":           quota(func(q *retrip.Quota) { q.Capacity = -1 }),
		"WithRetryQuota({Capacity:1 ":            quota(func(q *retrip.Quota) { q.Capacity = 1 }), // Initial is 10
		"WithRetryQuota({Capacity:1e+07 ":        quota(func(q *retrip.Quota) { q.Capacity = 1e7 }),
		"Initial:-1 ":                            quota(func(q *retrip.Quota) { q.Initial = -1 }),
		"Earn:NaN ":                              quota(func(q *retrip.Quota) { q.Earn = nan }),
		"Reserve:-0.1}":                          quota(func(q *retrip.Quota) { q.Reserve = -0.1 }),
		"Reserve:+Inf}":                          quota(func(q *retrip.Quota) { q.Reserve = math.Inf(1) }),
		"WithBreaker({Failures:-1 ":              breaker(func(b *retrip.Breaker) { b.Failures = -1 }),
		"WithBreaker({Failures:0 FailureRate:0 ": breaker(func(b *retrip.Breaker) { b.Failures, b.FailureRate = 0, 0 }),
		"FailureRate:-0.1 ":                      breaker(func(b *retrip.Breaker) { b.FailureRate = -0.1 }),
		"FailureRate:1.1 ":                       breaker(func(b *retrip.Breaker) { b.FailureRate = 1.1 }),
		"FailureRate:NaN ":                       breaker(func(b *retrip.Breaker) { b.FailureRate = nan }),
		"Window:0s ":                             breaker(func(b *retrip.Breaker) { b.Window = 0 }),
		"Window:-1s ":                            breaker(func(b *retrip.Breaker) { b.Window = -time.Second }),
		"MinAttempts:0 ":                         breaker(func(b *retrip.Breaker) { b.MinAttempts = 0 }),
		"Cooldowns:[] ":                          breaker(func(b *retrip.Breaker) { b.Cooldowns = nil }),
		"Cooldowns:[1s 0s] ":                     breaker(func(b *retrip.Breaker) { b.Cooldowns = []time.Duration{time.Second, 0} }),
		"Probes:0 ":                              breaker(func(b *retrip.Breaker) { b.Probes = 0 }),
		"Successes:0}":                           breaker(func(b *retrip.Breaker) { b.Successes = 0 }),
		"Register(nil)":                          func() any { return retrip.Register(nil) },
	}
	for want, make := range tests {
		text := panicText(make)
		require.True(t, strings.HasPrefix(text, "retrip: "), "%s: %q", want, text)
		require.Contains(t, text, want)
		switch {
		case strings.Contains(text, "Capacity:"):
			require.Contains(t, text, "retrip: WithRetryQuota({")
		case strings.Contains(text, "Cooldowns:"):
			require.Contains(t, text, "retrip: WithBreaker({")
		}
	}
}

// panicText returns what f panics with, empty if it does not.
func panicText(f func() any) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprint(p)
		}
	}()
	f()
	return ""
}

func TestWithExtremeArgumentsOptionsWork(t *testing.T) {
	t.Parallel()
	rate := retrip.Breaker{FailureRate: 1, Window: 10, MinAttempts: 1, Cooldowns: []time.Duration{1}, Probes: 1, Successes: 1}
	row := retrip.Breaker{Failures: 1, Cooldowns: []time.Duration{unending}, Probes: math.MaxInt, Successes: math.MaxInt}
	tests := map[string]retrip.Option{
		"one attempt":          retrip.WithMaxAttempts(1),
		"any attempts":         retrip.WithMaxAttempts(math.MaxInt),
		"no attempt timeout":   retrip.WithAttemptTimeout(0),
		"long attempt timeout": retrip.WithAttemptTimeout(unending),
		"no body kept":         retrip.WithMaxBody(0),
		"any body kept":        retrip.WithMaxBody(math.MaxInt64),
		"no budget":            retrip.WithBudget(0),
		"any budget":           retrip.WithBudget(unending),
		"no policy":            retrip.WithPolicy(nil),
		"no keys":              retrip.WithIdempotencyKey(nil),
		"no trace":             retrip.WithTrace(nil),
		"no hooks":             retrip.WithTrace(&retrip.Trace{}),
		"no logger":            retrip.WithLogger(nil),
		"no quota":             retrip.WithRetryQuota(nil),
		"an empty quota":       retrip.WithRetryQuota(&retrip.Quota{}),
		"a full quota":         retrip.WithRetryQuota(&retrip.Quota{Capacity: 1e6, Initial: 1e6, Earn: 1e6, Reserve: 1e6}),
		"a slow reserve":       retrip.WithRetryQuota(&retrip.Quota{Reserve: math.SmallestNonzeroFloat64}),
		"no breaker":           retrip.WithBreaker(nil),
		"a rate breaker":       retrip.WithBreaker(&rate),
		"a row breaker":        retrip.WithBreaker(&row),
		"one host":             retrip.WithHosts(1, nil),
		"a short key header":   retrip.WithKeyHeader("x"),
		"no pause":             retrip.WithBackoff(retrip.Constant(0)),
		"a long pause":         retrip.WithBackoff(retrip.Constant(unending)),
		"Exponential of zero":  retrip.WithBackoff(retrip.Exponential(0, 0)),
		"Exponential":          retrip.WithBackoff(retrip.Exponential(unending, unending)),
		"FullJitter of zero":   retrip.WithBackoff(retrip.FullJitter(0, 0)),
		"FullJitter":           retrip.WithBackoff(retrip.FullJitter(unending, unending)),
		"EqualJitter of zero":  retrip.WithBackoff(retrip.EqualJitter(0, 0)),
		"EqualJitter":          retrip.WithBackoff(retrip.EqualJitter(unending, unending)),
		"Decorrelated of zero": retrip.WithBackoff(retrip.DecorrelatedJitter(0, 0)),
		"DecorrelatedJitter":   retrip.WithBackoff(retrip.DecorrelatedJitter(unending, unending)),
		"Ladder of zero":       retrip.WithBackoff(retrip.Ladder(0)),
		"Spread of nothing":    retrip.WithBackoff(retrip.Spread(retrip.Constant(time.Second), 0)),
		"Spread of all":        retrip.WithBackoff(retrip.Spread(retrip.Constant(unending), 1)),
	}
	for name, opt := range tests {
		synctest.Test(t, func(t *testing.T) {
			for _, end := range []int{200, 503} {
				base := play(answer(503), answer(end))
				rt := retrip.New(base, retrip.WithMaxAttempts(4), opt)
				resp, err := rt.RoundTrip(request(t, http.MethodPost, io.NopCloser(strings.NewReader("hello"))))
				require.NoError(t, err, name)
				require.Contains(t, []int{200, 503}, resp.StatusCode)
				require.Equal(t, "x", finish(t, resp), name)
			}
		})
	}
}

func TestTheCallersValuesAreNeitherChangedNorWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pauses := []time.Duration{3 * time.Second, time.Second}
		ladder := retrip.Ladder(pauses...)
		require.Equal(t, []time.Duration{3 * time.Second, time.Second}, pauses)
		pauses[0], pauses[1] = time.Hour, time.Hour
		require.Equal(t, 3*time.Second, ladder(1, 0))
		require.Equal(t, time.Second, ladder(2, 0))

		quota := retrip.Quota{Capacity: 5, Initial: 3}
		breaker := retrip.Breaker{Failures: 1, Cooldowns: []time.Duration{9 * time.Second, time.Second}, Probes: 1, Successes: 1}
		opts := []retrip.Option{retrip.WithRetryQuota(&quota), retrip.WithBreaker(&breaker)}
		rt := retrip.New(play(answer(500)), opts...)
		require.Equal(t, retrip.Quota{Capacity: 5, Initial: 3}, quota)
		require.Equal(t, retrip.Breaker{Failures: 1, Cooldowns: []time.Duration{9 * time.Second, time.Second}, Probes: 1, Successes: 1}, breaker)
		quota.Initial, breaker.Failures, breaker.Cooldowns[0] = 1, 100, time.Hour

		for _, rt := range []*retrip.Transport{rt, retrip.New(play(answer(500)), opts...)} {
			start := time.Now()
			_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
			require.NoError(t, err)
			hosts := 0
			for _, stats := range rt.Hosts() {
				hosts++
				require.Equal(t, retrip.Open, stats.State)
				require.Equal(t, 9*time.Second, stats.Until.Sub(start))
				require.Equal(t, 3.0, stats.Tokens)
			}
			require.Equal(t, 1, hosts)
		}
	})
}

func TestWhatNetHTTPRefusesGetsItsErrorAndIsNotRetried(t *testing.T) {
	t.Parallel()
	bad := map[string]func(*http.Request){
		"nil URL":              func(r *http.Request) { r.URL = nil },
		"nil Header":           func(r *http.Request) { r.Header = nil },
		"nil URL and Header":   func(r *http.Request) { r.URL, r.Header = nil, nil },
		"unknown scheme":       func(r *http.Request) { r.URL.Scheme = "gopher" },
		"no scheme":            func(r *http.Request) { r.URL.Scheme = "" },
		"no host":              func(r *http.Request) { r.URL.Host = "" },
		"invalid method":       func(r *http.Request) { r.Method = "P U T" },
		"invalid field name":   func(r *http.Request) { r.Header["a b"] = []string{"c"} },
		"invalid field value":  func(r *http.Request) { r.Header["A"] = []string{"b\nc"} },
		"invalid trailer name": func(r *http.Request) { r.Trailer = http.Header{"a b": nil} },
	}
	for name, spoil := range bad {
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			t.Run(name+"/"+method, func(t *testing.T) {
				t.Parallel()
				calls := 0
				bare := &http.Transport{}
				base := roundTrip(func(req *http.Request) (*http.Response, error) {
					calls++
					return bare.RoundTrip(req)
				})
				send := func(rt http.RoundTripper) error {
					body := track("hello")
					req := request(t, method, body)
					spoil(req)
					resp, err := rt.RoundTrip(req)
					require.Nil(t, resp)
					body.requireClosed(t)
					return err
				}
				want := send(bare)
				require.Error(t, want)
				breaker := retrip.DefaultBreaker()
				breaker.Failures = 1
				rt := retrip.New(base, retrip.WithBreaker(&breaker))
				require.Equal(t, want, send(rt))
				require.Equal(t, 1, calls)
				for _, stats := range rt.Hosts() {
					require.Equal(t, retrip.Closed, stats.State, "it is not the host's fault")
				}
			})
		}
	}
}
