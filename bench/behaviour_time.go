package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

func contextOf(req *http.Request) (context.Context, context.CancelFunc) {
	return context.WithCancel(req.Context())
}

// waits is a row about the pause after a 503 with that Retry-After.
func waits(name, right string, value func() string, ok func(gap time.Duration, attempts int) bool) behaviour {
	return behaviour{
		group: "Retry-After", name: name, rule: "RFC 9110 10.2.3, 5.6.7", right: right, needs: retrying | offersRetryAfter,
		ask: func(p *probe) (string, bool) {
			base := play(reply(503, "", "Retry-After", value()), reply(200, ""))
			_ = outcome(p.wrap(base).RoundTrip(get(somewhere)))
			gap := base.gap()
			return fmt.Sprintf("%s, pause %v", base.n(), gap.Round(10*time.Millisecond)), ok(gap, len(base.attempts()))
		},
	}
}

// never is a row about a Retry-After that is longer than the caller will wait.
func never(name, value string) behaviour {
	return behaviour{
		group: "Retry-After", name: name, rule: "not before RFC 9110 10.2.3 allows, nor in vain: x/time/rate.Limiter.Wait", right: "the 503, at once", needs: retrying | offersRetryAfter,
		ask: func(p *probe) (string, bool) {
			base := play(reply(503, "busy", "Retry-After", value), reply(200, ""))
			req := get(somewhere)
			ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
			defer cancel()
			start := time.Now()
			got := outcome(p.wrap(base).RoundTrip(req.WithContext(ctx)))
			took := time.Since(start)
			return fmt.Sprintf("%s, %s after %v", base.n(), got, took.Round(10*time.Millisecond)),
				len(base.attempts()) == 1 && got == "503 with 4 bytes" && took < time.Second
		},
	}
}

func later(layout string) func() string {
	return func() string { return time.Now().Add(3 * time.Second).UTC().Format(layout) }
}

func fixed(s string) func() string { return func() string { return s } }

func atLeastASecond(gap time.Duration, attempts int) bool { return attempts == 2 && gap >= time.Second }
func atOnce(gap time.Duration, attempts int) bool         { return attempts == 2 && gap < time.Second }

var behavioursOfRetryAfter = []behaviour{
	waits("seconds are heeded", "at least 1 s", fixed("1"), atLeastASecond),
	waits("a date is heeded", "until then", later(http.TimeFormat), atLeastASecond),
	waits("a date in RFC 850's form is heeded", "until then", later("Monday, 02-Jan-06 15:04:05 GMT"), atLeastASecond),
	waits("a date in asctime's form is heeded", "until then", later(time.ANSIC), atLeastASecond),
	waits("a date that has passed asks for no wait", "own pause", fixed("Sun, 06 Nov 1994 08:49:37 GMT"), atOnce),
	waits("zero asks for no wait", "own pause", fixed("0"), atOnce),
	waits("a negative number is no number of seconds", "own pause", fixed("-5"), atOnce),
	waits("a list is not one value", "own pause", fixed("120, 60"), atOnce),
	waits("words are not a value", "own pause", fixed("soon"), atOnce),
	never("longer than the deadline: nobody waits for nothing", "60"),
	never("as many seconds as overflow a Duration", "9223372037"),
	never("400 digits", strings.Repeat("9", 400)),
	{
		group: "Retry-After", name: "on a 200 it means nothing", rule: "RFC 9110 10.2.3", right: "1 attempt", needs: retrying,
		ask: func(p *probe) (string, bool) {
			base := play(reply(200, "", "Retry-After", "30"))
			start := time.Now()
			_ = outcome(p.wrap(base).RoundTrip(get(somewhere)))
			return base.n(), len(base.attempts()) == 1 && time.Since(start) < 5*time.Second
		},
	},
}

// long asks for pauses of ten seconds.
func long(c *config) { c.base, c.limit = 10*time.Second, 11*time.Second }

var behavioursOfTime = []behaviour{
	{
		group: "Deadlines", name: "a cancellation ends a pause", rule: "context", right: "at once, matches context.Canceled", needs: retrying,
		ask: func(p *probe) (string, bool) {
			req := get(somewhere)
			ctx, cancel := contextOf(req)
			base := play(func(req *http.Request) (*http.Response, error) {
				time.AfterFunc(50*time.Millisecond, cancel)
				return reply(503, "")(req)
			})
			start := time.Now()
			resp, err := p.wrap(base, long).RoundTrip(req.WithContext(ctx))
			took := time.Since(start)
			return fmt.Sprintf("%s after %v", outcome(resp, err), took.Round(10*time.Millisecond)), took < 3*time.Second && errors.Is(err, context.Canceled)
		},
	},
	{
		group: "Deadlines", name: "a pause that cannot end in time is not begun", rule: "x/time/rate.Limiter.Wait", right: "at once", needs: retrying,
		ask: func(p *probe) (string, bool) {
			req := get(somewhere)
			ctx, cancel := context.WithTimeout(req.Context(), 3*time.Second)
			defer cancel()
			start := time.Now()
			got := outcome(p.wrap(play(reply(503, "busy")), long).RoundTrip(req.WithContext(ctx)))
			took := time.Since(start)
			return fmt.Sprintf("%s after %v", got, took.Round(10*time.Millisecond)), took < 2*time.Second
		},
	},
	{
		group: "Deadlines", name: "a cancelled attempt is the last", rule: "context", right: "1 attempt, matches context.Canceled", needs: retrying,
		ask: func(p *probe) (string, bool) {
			req := get(somewhere)
			ctx, cancel := contextOf(req)
			base := play(func(req *http.Request) (*http.Response, error) { cancel(); return hang(req) })
			resp, err := p.wrap(base).RoundTrip(req.WithContext(ctx))
			return base.n() + ", " + outcome(resp, err), len(base.attempts()) == 1 && errors.Is(err, context.Canceled)
		},
	},
	{
		group: "Deadlines", name: "the deadline passes in an attempt", rule: "context", right: "1 attempt, matches DeadlineExceeded", needs: retrying,
		ask: func(p *probe) (string, bool) {
			req := get(somewhere)
			ctx, cancel := context.WithTimeout(req.Context(), 100*time.Millisecond)
			defer cancel()
			base := play(hang)
			resp, err := p.wrap(base).RoundTrip(req.WithContext(ctx))
			return base.n() + ", " + outcome(resp, err), len(base.attempts()) == 1 && errors.Is(err, context.DeadlineExceeded)
		},
	},
	{
		group: "Deadlines", name: "http.Client.Timeout covers all attempts", rule: "net/http.Client.Timeout", right: "over after 200 ms, Timeout() is true", needs: retrying,
		ask: func(p *probe) (string, bool) {
			client := &http.Client{Transport: p.wrap(play(hang), func(c *config) { c.retries = 20 }), Timeout: 200 * time.Millisecond}
			start := time.Now()
			resp, err := client.Get(somewhere)
			took := time.Since(start)
			var timeout interface{ Timeout() bool }
			return fmt.Sprintf("%s after %v", outcome(resp, err), took.Round(10*time.Millisecond)),
				took < 3*time.Second && errors.As(err, &timeout) && timeout.Timeout()
		},
	},
	{
		group: "Deadlines", name: "an attempt's time limit leaves time for another", rule: "option", right: "2 attempts, 200", needs: retrying | offersAttemptTimeout,
		ask: func(p *probe) (string, bool) {
			base := play(hang, reply(200, "fine"))
			got := outcome(p.wrap(base, func(c *config) { c.attemptTimeout = 100 * time.Millisecond }).RoundTrip(get(somewhere)))
			return base.n() + ", " + got, len(base.attempts()) == 2 && got == "200 with 4 bytes"
		},
	},
	{
		group: "Deadlines", name: "an attempt's time limit lets a good answer be read", rule: "https://github.com/Azure/azure-sdk-for-go/issues/17780", right: "200 with 3 bytes", needs: retrying | offersHeaderTimeout,
		ask: func(p *probe) (string, bool) {
			base := play(func(req *http.Request) (*http.Response, error) {
				resp := answer(req, 200)
				r, w := io.Pipe()
				resp.Body, resp.ContentLength = r, -1
				go func() {
					for range 3 {
						select {
						case <-time.After(150 * time.Millisecond):
						case <-req.Context().Done(): // as net/http ends a body
							_ = w.CloseWithError(req.Context().Err())
							return
						}
						_, _ = w.Write([]byte{'x'})
					}
					_ = w.Close()
				}()
				return resp, nil
			})
			got := outcome(p.wrap(base, func(c *config) { c.attemptTimeout = 200 * time.Millisecond }).RoundTrip(get(somewhere)))
			return got, got == "200 with 3 bytes"
		},
	},
	{
		group: "Deadlines", name: "a budget ends the retries", rule: "option", right: "the 503 within it", needs: retrying | offersBudget,
		ask: func(p *probe) (string, bool) {
			base := play(reply(503, "busy"))
			start := time.Now()
			got := outcome(p.wrap(base, func(c *config) {
				c.retries, c.base, c.limit, c.budget = 1000, 50*time.Millisecond, 60*time.Millisecond, 300*time.Millisecond
			}).RoundTrip(get(somewhere)))
			took := time.Since(start)
			return fmt.Sprintf("%s, %s after %v", base.n(), got, took.Round(10*time.Millisecond)),
				len(base.attempts()) < 20 && took < 3*time.Second && got == "503 with 4 bytes"
		},
	},
}
