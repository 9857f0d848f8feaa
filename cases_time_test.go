package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// A caseBody is a response body that, like net/http's, fails when the context of
// its request has ended.
type caseBody struct {
	io.Reader
	ctx context.Context
}

func (b caseBody) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.Reader.Read(p)
}

func (caseBody) Close() error { return nil }

func TestB10TheAttemptTimeoutDoesNotCutTheBody(t *testing.T) {
	t.Parallel()
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			returned := make(chan struct{})
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				chunk := make([]byte, 16<<10)
				for i := range 64 {
					_, _ = w.Write(chunk)
					w.(http.Flusher).Flush()
					if i == 0 {
						select {
						case <-returned:
						case <-r.Context().Done():
						}
					}
				}
			}))
			srv.EnableHTTP2 = proto == "HTTP/2.0"
			srv.StartTLS()
			defer srv.Close()
			rt := retrip.New(srv.Client().Transport, retrip.WithAttemptTimeout(time.Minute))
			resp, err := rt.RoundTrip(caseTo(t, srv.URL))
			require.NoError(t, err)
			require.Equal(t, proto, resp.Proto)
			close(returned)
			require.Len(t, finish(t, resp), 1<<20)
		})
	}
	// The context of the attempt lives as long as the body, and no longer.
	for name, end := range map[string]func(*testing.T, *http.Response){
		"a body read to its end": func(t *testing.T, resp *http.Response) {
			b, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, "hello", string(b))
		},
		"a body closed unread": func(t *testing.T, resp *http.Response) { require.NoError(t, resp.Body.Close()) },
	} {
		caseBubble(t, name, func(t *testing.T) {
			base := play(answer(503), func(req *http.Request) (*http.Response, error) {
				resp, err := answer(200)(req)
				resp.Body = caseBody{strings.NewReader("hello"), req.Context()}
				return resp, err
			})
			resp, err := retrip.New(base, retrip.WithAttemptTimeout(5*time.Second)).RoundTrip(request(t, http.MethodGet, nil))
			require.NoError(t, err)
			first, last := base.attempts()[0].req.Context(), base.attempts()[1].req.Context()
			require.Error(t, first.Err())
			time.Sleep(time.Hour)
			require.NoError(t, last.Err())
			end(t, resp)
			require.Equal(t, context.Canceled, context.Cause(last))
			require.NoError(t, resp.Request.Context().Err())
		})
	}
}

func TestB11ClientTimeoutSpansAllAttempts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		steps  []step
		opts   []retrip.Option
		limit  time.Duration
		hits   int
		took   time.Duration
		status int // 0: the client's timeout
	}{
		{"a hanging attempt is cut off and repeated", []step{hang, answer(200)}, []retrip.Option{retrip.WithAttemptTimeout(50 * time.Millisecond)}, 5 * time.Second, 2, 50 * time.Millisecond, 200},
		{"a hanging attempt without a limit of its own", []step{hang}, nil, 100 * time.Millisecond, 1, 100 * time.Millisecond, 0},
		{"every attempt hangs", []step{hang}, []retrip.Option{retrip.WithAttemptTimeout(40 * time.Millisecond)}, 100 * time.Millisecond, 3, 100 * time.Millisecond, 0},
		{"no pause runs into it", []step{answer(503)}, []retrip.Option{retrip.WithBackoff(retrip.Constant(time.Second))}, 100 * time.Millisecond, 1, 0, 503},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			base := play(tt.steps...)
			client := &http.Client{Transport: retrip.New(base, append([]retrip.Option{caseAtOnce}, tt.opts...)...), Timeout: tt.limit}
			start := time.Now()
			resp, err := client.Do(request(t, http.MethodGet, nil))
			require.Equal(t, tt.took, time.Since(start))
			require.Len(t, base.attempts(), tt.hits)
			if tt.status == 0 {
				caseTimedOut(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.status, resp.StatusCode)
			finish(t, resp)
		})
	}
	t.Run("over a real connection", func(t *testing.T) {
		t.Parallel()
		var hits atomic.Int32
		srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			hits.Add(1)
			<-r.Context().Done()
		}))
		defer srv.Close()
		client := &http.Client{Transport: retrip.New(srv.Client().Transport), Timeout: 100 * time.Millisecond}
		_, err := client.Do(caseTo(t, srv.URL))
		caseTimedOut(t, err)
		require.LessOrEqual(t, hits.Load(), int32(1)) // none if the machine is too busy to connect
	})
}

// caseTimedOut fails unless err is what http.Client says of its Timeout.
func caseTimedOut(t *testing.T, err error) {
	t.Helper()
	failed, ok := errors.AsType[*url.Error](err)
	require.True(t, ok)
	require.True(t, failed.Timeout())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "Client.Timeout exceeded")
}

func TestB12NoPauseIsBegunThatCannotEndInTime(t *testing.T) {
	t.Parallel()
	pause := func(d time.Duration) []retrip.Option {
		return []retrip.Option{retrip.WithBackoff(retrip.Constant(d))}
	}
	for _, tt := range []struct {
		name  string
		first step
		opts  []retrip.Option
		hits  int
	}{
		{"the server asks for too long", answer(503, "Retry-After", "30"), nil, 1},
		{"the server asks for all that is left", answer(429, "Retry-After", "1"), nil, 1},
		{"the backoff is too long", answer(503), pause(30 * time.Second), 1},
		{"the backoff takes all that is left", answer(503), pause(time.Second), 1},
		{"the backoff after an error is too long", fail(caseReset), pause(30 * time.Second), 1},
		{"it fits by a nanosecond", answer(503), pause(time.Second - 1), 2},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			var reason retrip.Reason
			base := play(tt.first, answer(200))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			rt := retrip.New(base, append(tt.opts, caseReason(&reason))...)
			start := time.Now()
			resp, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
			require.Len(t, base.attempts(), tt.hits)
			if tt.hits == 2 {
				require.Equal(t, 200, resp.StatusCode)
				return
			}
			require.Zero(t, time.Since(start))
			require.Equal(t, retrip.ReasonDeadline, reason)
			// The outcome of the only attempt, as the base gave it.
			want, wantErr := tt.first(nil)
			require.Equal(t, wantErr, err)
			if want != nil {
				require.Equal(t, want.StatusCode, resp.StatusCode)
				require.Equal(t, "x", finish(t, resp))
			}
		})
	}
}

func TestB13CancellationIsFinal(t *testing.T) {
	t.Parallel()
	errLeft := errors.New("the user left")
	reports := map[string]func(*http.Request) error{
		"as the context has it":  func(req *http.Request) error { return req.Context().Err() },
		"as the cause":           func(req *http.Request) error { return context.Cause(req.Context()) },
		"as a closed connection": func(*http.Request) error { return io.EOF },
		"as a reset connection":  func(*http.Request) error { return caseReset },
	}
	for how, report := range reports {
		for _, byChannel := range []bool{false, true} {
			caseBubble(t, fmt.Sprintf("reported %s, by Request.Cancel %v", how, byChannel), func(t *testing.T) {
				var want error
				var reason retrip.Reason
				gone := make(chan struct{})
				ctx, cancel := context.WithCancelCause(t.Context())
				base := play(func(req *http.Request) (*http.Response, error) {
					select {
					case <-req.Context().Done():
					case <-gone:
					}
					want = report(req)
					if want == nil {
						want = context.Canceled
					}
					return nil, want
				})
				rt := retrip.New(base, retrip.WithMaxAttempts(5), retrip.WithBreaker(caseBreaker(1)), caseReason(&reason))
				req := request(t, http.MethodGet, nil).WithContext(ctx)
				leave := func() { cancel(errLeft) }
				if byChannel {
					req.Cancel = gone //lint:ignore SA1019 callers still use it
					leave = func() { close(gone) }
				}
				time.AfterFunc(20*time.Millisecond, leave)
				start := time.Now()
				_, err := rt.RoundTrip(req)
				require.Equal(t, want, err)
				require.Equal(t, 20*time.Millisecond, time.Since(start))
				require.Equal(t, retrip.ReasonCancelled, reason)
				stats := caseStats(t, rt, "example.com")
				require.EqualValues(t, 1, stats.Attempts)
				require.Equal(t, retrip.Closed, stats.State)
				cancel(nil)
			})
		}
	}
	caseBubble(t, "in a pause", func(t *testing.T) {
		base := play(fail(caseReset))
		rt := retrip.New(base, retrip.WithBackoff(retrip.Constant(time.Minute)), retrip.WithMaxAttempts(5))
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { cancel(errLeft) })
		start := time.Now()
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
		require.Equal(t, 20*time.Millisecond, time.Since(start))
		for _, want := range []error{context.Canceled, errLeft, caseReset} {
			require.ErrorIs(t, err, want)
		}
		require.Len(t, base.attempts(), 1)
	})
}

func TestB14TheBodyIsClosedWhereverTheRequestEnds(t *testing.T) {
	t.Parallel()
	cancelled := func(t *testing.T) context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	}
	late := func(t *testing.T) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), -1)
		t.Cleanup(cancel)
		return ctx
	}
	for _, tt := range []struct {
		name string
		ctx  func(*testing.T) context.Context
		opts []retrip.Option
		hits int
		want func(error) bool
	}{
		{"a cancelled context", cancelled, nil, 0, func(err error) bool { return errors.Is(err, context.Canceled) }},
		{"a deadline that passed", late, nil, 0, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		{"a cancelled context, one attempt", cancelled, []retrip.Option{retrip.WithMaxAttempts(1)}, 0, func(err error) bool { return errors.Is(err, context.Canceled) }},
		{"an open breaker", nil, []retrip.Option{retrip.WithBreaker(caseBreaker(1))}, 0, func(err error) bool { _, ok := errors.AsType[*retrip.OpenError](err); return ok }},
		{"an open breaker, one attempt", nil, []retrip.Option{retrip.WithMaxAttempts(1), retrip.WithBreaker(caseBreaker(1))}, 0, func(err error) bool { _, ok := errors.AsType[*retrip.OpenError](err); return ok }},
		{"a key that cannot be sent", nil, []retrip.Option{retrip.WithIdempotencyKey(func(*http.Request) string { return "\n" })}, 0, func(err error) bool { return strings.Contains(err.Error(), "idempotency key") }},
		// Budget and quota limit the retries, not the first attempt.
		{"a budget of nothing", nil, []retrip.Option{retrip.WithBudget(0)}, 1, func(err error) bool { return errors.Is(err, caseReset) }},
		{"an empty quota", nil, []retrip.Option{retrip.WithRetryQuota(&retrip.Quota{})}, 1, func(err error) bool { return errors.Is(err, caseReset) }},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			base := play(fail(caseReset))
			rt := retrip.New(base, tt.opts...)
			if tt.hits == 0 {
				opener := request(t, http.MethodGet, nil)
				_, err := rt.RoundTrip(opener.WithContext(retrip.Override(opener.Context(), retrip.WithMaxAttempts(1))))
				require.ErrorIs(t, err, caseReset)
			}
			before := len(base.attempts())
			for _, own := range []bool{false, true} {
				body := track("hello")
				req := request(t, http.MethodPost, body)
				if own {
					req.GetBody = func() (io.ReadCloser, error) { return track("hello"), nil }
				}
				if tt.ctx != nil {
					req = req.WithContext(tt.ctx(t))
				}
				_, err := rt.RoundTrip(req)
				require.Error(t, err)
				require.True(t, tt.want(err), err)
				body.requireClosed(t)
			}
			require.Len(t, base.attempts(), before+2*tt.hits)
		})
	}
	for name, spoil := range map[string]func(*http.Request){
		"no URL":         func(req *http.Request) { req.URL = nil },
		"no header":      func(req *http.Request) { req.Header = nil },
		"no host":        func(req *http.Request) { req.URL.Host = "" },
		"unknown scheme": func(req *http.Request) { req.URL.Scheme = "gopher" },
		"invalid method": func(req *http.Request) { req.Method = "a b" },
		"invalid header": func(req *http.Request) { req.Header["A\n"] = []string{"b"} },
	} {
		caseBubble(t, name, func(t *testing.T) {
			calls := 0
			net := &http.Transport{}
			rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
				calls++
				return net.RoundTrip(req)
			}), retrip.WithBreaker(caseBreaker(1)))
			for range 2 { // the host is not to blame: its breaker does not open
				body := track("hello")
				req := request(t, http.MethodPut, body)
				spoil(req)
				start := time.Now()
				_, err := rt.RoundTrip(req)
				require.Error(t, err)
				require.Zero(t, time.Since(start))
				body.requireClosed(t)
			}
			require.Equal(t, 2, calls)
		})
	}
}

func TestB15ADeadlineDoesNotHideWhatFailedBefore(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		step     step
		opts     []retrip.Option
		attempts int
		took     time.Duration
	}{
		{"no time is left for a pause", fail(io.EOF), nil, 6, 250 * time.Millisecond},
		{"the last attempt is cut off", after(40*time.Millisecond, fail(io.EOF)), nil, 4, 300 * time.Millisecond},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			rt := retrip.New(play(tt.step), caseUnlimited(retrip.WithMaxAttempts(20), retrip.WithBackoff(retrip.Constant(50*time.Millisecond)))...)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			start := time.Now()
			_, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
			require.Equal(t, tt.took, time.Since(start))
			require.ErrorIs(t, err, io.EOF)
			failed, ok := errors.AsType[*retrip.Error](err)
			require.True(t, ok)
			require.Len(t, failed.Attempts, tt.attempts)
			require.Equal(t, retrip.ReasonDeadline, failed.Reason)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.True(t, failed.Timeout())
		})
	}
}

// caseAsked plays a 503 with the fields, then success, and returns the pause between.
func caseAsked(t *testing.T, opts []retrip.Option, fields ...string) time.Duration {
	t.Helper()
	base := play(answer(503, fields...), answer(200))
	require.Equal(t, 200, caseStatus(t, retrip.New(base, opts...), request(t, http.MethodGet, nil)))
	require.Len(t, base.attempts(), 2)
	return base.pauses()[0]
}

func TestB21RetryAfterMayBeADate(t *testing.T) {
	t.Parallel()
	forms := map[string]string{
		"IMF-fixdate": http.TimeFormat,
		"RFC 850":     "Monday, 02-Jan-06 15:04:05 GMT",
		"asctime":     time.ANSIC,
	}
	for name, form := range forms {
		for _, skew := range []time.Duration{0, -24 * time.Hour, 24 * time.Hour} {
			caseBubble(t, fmt.Sprint(name, ", server's clock ", skew), func(t *testing.T) {
				opts := []retrip.Option{retrip.WithBackoff(retrip.Constant(time.Millisecond))}
				there := time.Now().UTC().Add(skew)
				asked := []string{"Retry-After", there.Add(7 * time.Second).Format(form), "Date", there.Format(http.TimeFormat)}
				pause := caseAsked(t, opts, asked...)
				require.GreaterOrEqual(t, pause, 7*time.Second)
				require.LessOrEqual(t, pause, 7700*time.Millisecond)
				if skew == 0 { // without Date, the clock here counts
					here := time.Now().UTC().Add(7 * time.Second).Format(form)
					pause = caseAsked(t, opts, "Retry-After", here)
					require.GreaterOrEqual(t, pause, 6*time.Second)
					require.LessOrEqual(t, pause, 7700*time.Millisecond)
				}
			})
		}
	}
}

func TestB22RetryAfterOverflow(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"9223372036", "9223372037", "18446744073", "18446744074", "9223372036854775807", "9223372036854775808",
		"18446744073709551616", "18446744073709551617", strings.Repeat("9", 30), strings.Repeat("1", 1000),
		"Fri, 31 Dec 9999 23:59:59 GMT", "Fri Dec 31 23:59:59 9999",
	} {
		for _, budget := range []time.Duration{10 * time.Second, math.MaxInt64} {
			caseBubble(t, fmt.Sprintf("%.40s within %v", value, budget), func(t *testing.T) {
				resp, _ := answer(429, "Retry-After", value)(nil)
				asked, ok := retrip.Attempt{Response: resp}.RetryAfter()
				require.True(t, ok)
				require.Greater(t, asked, 200*365*24*time.Hour)

				base := play(answer(429, "Retry-After", value))
				rt := retrip.New(base, caseUnlimited(retrip.WithBudget(budget), retrip.WithMaxAttempts(3))...)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				defer time.AfterFunc(24*time.Hour, cancel).Stop()
				start := time.Now()
				resp, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
				require.Len(t, base.attempts(), 1)
				if budget > asked { // centuries, but the caller wants it so
					require.ErrorIs(t, err, context.Canceled)
					require.Equal(t, 24*time.Hour, time.Since(start))
					return
				}
				require.NoError(t, err)
				require.Equal(t, 429, resp.StatusCode)
				require.Zero(t, time.Since(start))
			})
		}
	}
}

func TestB23ADateInThePastAsksForNothing(t *testing.T) {
	t.Parallel()
	for _, ago := range []time.Duration{0, time.Second, 5 * time.Second, 30 * 365 * 24 * time.Hour, 290 * 365 * 24 * time.Hour} {
		for _, dated := range []bool{false, true} {
			caseBubble(t, fmt.Sprintf("%v ago, with Date %v", ago, dated), func(t *testing.T) {
				now := time.Now().UTC()
				fields := []string{"Retry-After", now.Add(-ago).Format(http.TimeFormat)}
				if dated {
					fields = append(fields, "Date", now.Format(http.TimeFormat))
				}
				pause := caseAsked(t, []retrip.Option{retrip.WithBackoff(retrip.Constant(100 * time.Millisecond))}, fields...)
				require.Equal(t, 100*time.Millisecond, pause)
			})
		}
	}
}

func TestB24AServerCannotHoldTheCallerForAnHour(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]retrip.Option{
		"by default":    nil,
		"with a budget": {retrip.WithBudget(30 * time.Second)},
	} {
		for _, status := range []int{429, 503} {
			caseBubble(t, fmt.Sprint(name, ", ", status), func(t *testing.T) {
				base := play(answer(status, "Retry-After", "3600"))
				start := time.Now()
				resp, err := retrip.New(base, opts...).RoundTrip(request(t, http.MethodGet, nil))
				require.NoError(t, err)
				require.Equal(t, status, resp.StatusCode)
				require.Equal(t, "3600", resp.Header.Get("Retry-After"))
				require.Zero(t, time.Since(start))
				require.Len(t, base.attempts(), 1)
			})
		}
	}
}

func TestB25WithoutAValidRetryAfterTheBackoffDecides(t *testing.T) {
	t.Parallel()
	for _, values := range [][]string{
		nil, {"0"}, {"000"}, {""}, {"-1"}, {"+5"}, {"1.5"}, {"5s"}, {"0x10"}, {"١"}, {"5, 7"}, {"soon"}, {"2000-01-01T00:01:00Z"},
		{"5", "7"}, // two lines are no single value, so invalid
	} {
		for _, status := range []int{429, 503} {
			caseBubble(t, fmt.Sprintf("%d %q", status, values), func(t *testing.T) {
				fields := make([]string, 0, 4)
				for _, v := range values {
					fields = append(fields, "Retry-After", v)
				}
				base := play(answer(status, fields...))
				rt := retrip.New(base, retrip.WithMaxAttempts(5), retrip.WithBackoff(retrip.Exponential(100*time.Millisecond, time.Second)))
				require.Equal(t, status, caseStatus(t, rt, request(t, http.MethodGet, nil)))
				const ms = time.Millisecond
				require.Equal(t, []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms}, base.pauses())
			})
		}
	}
}

func TestB45TheBudgetBoundsEveryStart(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, tt := range []struct {
		name    string
		backoff retrip.Backoff
		each    time.Duration // what an attempt takes
		starts  []time.Duration
		took    time.Duration
	}{
		{"attempts that take no time", retrip.Exponential(s, 5*s), 0, []time.Duration{0, s, 3 * s, 7 * s, 12 * s}, 12 * s},
		{"attempts that take some", retrip.Exponential(s, 5*s), 2 * s, []time.Duration{0, 3 * s, 7 * s, 13 * s}, 15 * s},
		{"a pause that ends with the budget", retrip.Constant(5 * s), 0, []time.Duration{0, 5 * s, 10 * s}, 10 * s},
		{"a pause that ends just before", retrip.Constant(5*s - 1), 0, []time.Duration{0, 5*s - 1, 10*s - 2, 15*s - 3}, 15*s - 3},
		// It bounds the start of the last attempt, not its end: an attempt is not cut off.
		{"an attempt under way at the end", retrip.Constant(s), 10 * s, []time.Duration{0, 11 * s}, 21 * s},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			var reason retrip.Reason
			base := play(after(tt.each, answer(503)))
			rt := retrip.New(base, caseUnlimited(retrip.WithBudget(15*s), retrip.WithMaxAttempts(math.MaxInt),
				retrip.WithBackoff(tt.backoff), caseReason(&reason))...)
			start := time.Now()
			require.Equal(t, 503, caseStatus(t, rt, request(t, http.MethodGet, nil)))
			require.Equal(t, tt.took, time.Since(start))
			require.Equal(t, retrip.ReasonBudget, reason)
			var starts []time.Duration
			for _, saw := range base.attempts() {
				starts = append(starts, saw.at.Sub(start))
			}
			require.Equal(t, tt.starts, starts)
		})
	}
}

// caseBackoffs are all kinds between base and limit.
func caseBackoffs(base, limit time.Duration) map[string]retrip.Backoff {
	return map[string]retrip.Backoff{
		"Constant":           retrip.Constant(limit),
		"Exponential":        retrip.Exponential(base, limit),
		"FullJitter":         retrip.FullJitter(base, limit),
		"EqualJitter":        retrip.EqualJitter(base, limit),
		"DecorrelatedJitter": retrip.DecorrelatedJitter(base, limit),
		"Ladder":             retrip.Ladder(base, limit),
	}
}

func TestB49NoBackoffOverflows(t *testing.T) {
	t.Parallel()
	retries := []int{math.MinInt, -1}
	for retry := range 201 {
		retries = append(retries, retry)
	}
	retries = append(retries, math.MaxInt32, math.MaxInt-1, math.MaxInt)
	for _, limits := range [][2]time.Duration{
		{100 * time.Millisecond, time.Hour}, {1, math.MaxInt64}, {math.MaxInt64 / 3, math.MaxInt64}, {math.MaxInt64, math.MaxInt64},
	} {
		for name, backoff := range caseBackoffs(limits[0], limits[1]) {
			t.Run(fmt.Sprint(name, limits), func(t *testing.T) {
				t.Parallel()
				last := time.Duration(0)
				for _, retry := range retries {
					d := backoff(retry, last)
					require.GreaterOrEqual(t, d, time.Duration(0))
					require.LessOrEqual(t, d, limits[1])
					wide := retrip.Spread(backoff, 1)(retry, last)
					require.GreaterOrEqual(t, wide, time.Duration(0))
					if slices.Contains([]string{"Constant", "Exponential", "Ladder"}, name) {
						require.Positive(t, d)
						require.GreaterOrEqual(t, d, last)
					}
					last = d
				}
			})
		}
	}
	require.Equal(t, time.Hour, retrip.Exponential(100*time.Millisecond, time.Hour)(38, 0)) // 100 ms << 37 is negative
}

func TestB50JitterOfNothingDoesNotPanic(t *testing.T) {
	t.Parallel()
	for _, limits := range [][2]time.Duration{{0, 0}, {0, 1}, {0, time.Hour}, {1, 1}, {1, 2}, {time.Second, time.Second}} {
		for name, backoff := range caseBackoffs(limits[0], limits[1]) {
			caseBubble(t, fmt.Sprint(name, limits), func(t *testing.T) {
				for _, b := range []retrip.Backoff{backoff, retrip.Spread(backoff, 0), retrip.Spread(backoff, 1)} {
					for retry := range 70 {
						d := b(retry, limits[0])
						require.GreaterOrEqual(t, d, time.Duration(0))
						require.LessOrEqual(t, d, 2*limits[1])
					}
				}
				require.LessOrEqual(t, caseAsked(t, []retrip.Option{retrip.WithBackoff(backoff), retrip.WithBudget(math.MaxInt64)}), limits[1])
			})
		}
	}
}

func TestB51JitterStaysAtTheLimit(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, tt := range []struct {
		name      string
		backoff   retrip.Backoff
		low, high time.Duration
		mean      [2]time.Duration
		distinct  int
	}{
		{"FullJitter", retrip.FullJitter(s, 10*s), 0, 10 * s, [2]time.Duration{4 * s, 6 * s}, 500},
		{"EqualJitter", retrip.EqualJitter(s, 10*s), 5 * s, 10 * s, [2]time.Duration{7 * s, 8 * s}, 500},
		// Two thirds of its range are over the limit once it got there.
		{"DecorrelatedJitter", retrip.DecorrelatedJitter(s, 10*s), s, 10 * s, [2]time.Duration{7 * s, 10 * s}, 200},
		{"Spread", retrip.Spread(retrip.Exponential(s, 10*s), 0.2), 8 * s, 12 * s, [2]time.Duration{9800 * time.Millisecond, 10200 * time.Millisecond}, 500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			seen, sum := map[time.Duration]bool{}, time.Duration(0)
			for range 1000 {
				d := tt.backoff(50, 10*s)
				require.GreaterOrEqual(t, d, tt.low)
				require.LessOrEqual(t, d, tt.high)
				seen[d] = true
				sum += d
			}
			require.GreaterOrEqual(t, len(seen), tt.distinct)
			require.Greater(t, sum/1000, tt.mean[0])
			require.Less(t, sum/1000, tt.mean[1])
		})
	}
	caseBubble(t, "a crowd that the server told the same", func(t *testing.T) {
		seen := map[time.Duration]bool{}
		for range 200 {
			d := caseAsked(t, nil, "Retry-After", "60")
			require.GreaterOrEqual(t, d, 60*s)
			require.LessOrEqual(t, d, 65*s)
			seen[d] = true
		}
		require.Greater(t, len(seen), 150)
	})
}
