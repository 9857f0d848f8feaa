package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/timeout"
	"github.com/gojek/heimdall/v7"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/gojek/heimdall/v7/hystrix"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/retrip-go/retrip"
	"resty.dev/v3"
)

// A config is what every contender is asked for. What one has no option for is left
// out of its offers, and its new ignores it.
type config struct {
	retries        int           // after the first attempt
	base, limit    time.Duration // exponential backoff from base to limit; 0: no pause
	jitter         bool
	attemptTimeout time.Duration // 0: none
	budget         time.Duration // for all attempts and pauses; 0: the contender's own default
	breaker        *breaker      // nil: the contender's default, if it has one
	failing        bool          // more requests fail than a default breaker or quota lets pass; nil breaker then never opens
	key            bool          // add an Idempotency-Key to a POST
	log            io.Writer     // nil: none; else all that the contender logs
}

// A breaker opens after failures in a row.
type breaker struct {
	failures int
	cooldown time.Duration
	hosts    int // that are remembered; 0: the contender's own default
}

// offers are what a contender has an option for. A behaviour that needs another is
// "not offered", which is not a failure.
type offers uint

const (
	offersRetries      offers = 1 << iota
	offersRoundTripper        // it is an http.RoundTripper itself, not a client behind one
	offersPolicy              // it says itself what to retry, and does not leave it to the caller
	offersBreaker
	offersHostBreakers // a breaker for each host
	offersAttemptTimeout
	offersHeaderTimeout // one that ends with the answer's header, not http.Client's, which covers its body
	offersBudget
	offersKey
	offersLog
	offersRetryAfter
)

// A contender is one library in one configuration, behind an http.RoundTripper.
type contender struct {
	name   string
	module string // "" for what comes with Go
	how    string // how it is set up, and what it cannot do
	offers offers
	new    func(base http.RoundTripper, c config) http.RoundTripper
}

func (c contender) has(o offers) bool { return c.offers&o == o }

// roundTrip is a function that is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

const retripOffers = offersRetries | offersRoundTripper | offersPolicy | offersBreaker | offersHostBreakers |
	offersAttemptTimeout | offersHeaderTimeout | offersBudget | offersKey | offersLog | offersRetryAfter

// contenders are measured beside each other, in this order.
var contenders = []contender{
	{
		name:   "bare",
		how:    "The base transport alone: one attempt, no retries.",
		offers: offersRoundTripper,
		new:    func(base http.RoundTripper, _ config) http.RoundTripper { return base },
	},
	{
		name:   "retrip",
		module: "github.com/retrip-go/retrip",
		how: "`retrip.New(base)` with the pauses and attempts asked for: breaker, quota, budget and idempotency keys are on by " +
			"default. Where so much fails that a default would end the retries, quota and breaker stay on with limits out of reach.",
		offers: retripOffers,
		new: func(base http.RoundTripper, c config) http.RoundTripper {
			return retrip.New(base, retripOptions(c)...)
		},
	},
	{
		name:   "retrip, all on",
		module: "github.com/retrip-go/retrip",
		how:    "The same, and what is off by default: a time limit for each attempt, a trace, a logger.",
		offers: retripOffers,
		new: func(base http.RoundTripper, c config) http.RoundTripper {
			log := slog.DiscardHandler
			if c.log != nil {
				log = slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelDebug})
			}
			opts := []retrip.Option{
				retrip.WithAttemptTimeout(time.Minute),
				retrip.WithTrace(&retrip.Trace{
					Attempted: func(retrip.AttemptedInfo) {}, Pausing: func(retrip.PausingInfo) {}, GaveUp: func(retrip.GaveUpInfo) {},
				}),
				retrip.WithLogger(slog.New(log)),
			}
			return retrip.New(base, append(opts, retripOptions(c)...)...)
		},
	},
	{
		name:   "go-retryablehttp",
		module: "github.com/hashicorp/go-retryablehttp",
		how: "`StandardClient().Transport`, its own CheckRetry and Backoff, no logger; with PassthroughErrorHandler, since its default keeps " +
			"the last response from the caller, and an inner client that leaves redirects alone. It has no breaker, no budget, no keys.",
		offers: offersRetries | offersRoundTripper | offersPolicy | offersAttemptTimeout | offersLog | offersRetryAfter,
		new: func(base http.RoundTripper, c config) http.RoundTripper {
			client := retryablehttp.NewClient()
			client.Logger = nil
			if c.log != nil {
				client.Logger = printer{c.log}
			}
			client.HTTPClient = &http.Client{Transport: base, Timeout: c.attemptTimeout, CheckRedirect: stay}
			client.RetryMax, client.RetryWaitMin, client.RetryWaitMax = c.retries, c.base, c.limit
			client.ErrorHandler = retryablehttp.PassthroughErrorHandler
			return client.StandardClient().Transport
		},
	},
	{
		name:   "rehttp",
		module: "github.com/PuerkitoBio/rehttp",
		how: "`NewTransport` with ExpJitterDelay. What to retry is the caller's to write; here the statuses 429, 500, 502, 503, 504 and " +
			"errors, of idempotent methods. It has no Retry-After, no breaker, no budget, no keys.",
		offers: offersRetries | offersRoundTripper | offersAttemptTimeout | offersHeaderTimeout,
		new:    newRehttp,
	},
	{
		name:   "failsafe-go",
		module: "github.com/failsafe-go/failsafe-go",
		how: "`failsafehttp.NewRoundTripper` with its NewRetryPolicyBuilder, WithBackoff and ReturnLastFailure; a Timeout policy " +
			"inside where an attempt has a limit. It has no keys.",
		offers: offersRetries | offersRoundTripper | offersPolicy | offersAttemptTimeout | offersHeaderTimeout | offersBudget | offersRetryAfter,
		new: func(base http.RoundTripper, c config) http.RoundTripper {
			return failsafehttp.NewRoundTripper(base, failsafePolicies(c, nil)...)
		},
	},
	{
		name:   "failsafe-go + breaker",
		module: "github.com/failsafe-go/failsafe-go",
		how: "The same with one circuitbreaker inside the retries (a failure is an error other than a cancellation, or a 5xx) and AbortOnErrors(ErrOpen). The " +
			"breaker is one for all hosts.",
		offers: offersRetries | offersRoundTripper | offersPolicy | offersBreaker | offersAttemptTimeout | offersHeaderTimeout | offersBudget | offersRetryAfter,
		new: func(base http.RoundTripper, c config) http.RoundTripper {
			b := c.breaker
			if b == nil {
				b = &idle
			}
			return failsafehttp.NewRoundTripper(base, failsafePolicies(c, b)...)
		},
	},
	{
		name:   "heimdall",
		module: "github.com/gojek/heimdall/v7",
		how: "`httpclient.Client.Do` behind a function, pauses in whole milliseconds; `hystrix.Client` where a breaker is asked for: one for " +
			"all hosts, opened by a percentage of failures. It retries every method on any 5xx, and has no Retry-After, no budget, no keys.",
		offers: offersRetries | offersPolicy | offersBreaker | offersAttemptTimeout,
		new:    newHeimdall,
	},
	{
		name:   "resty",
		module: "resty.dev/v3",
		how: "A v3 client behind a function that makes the request anew as a resty request, body not parsed, with its three stock retry " +
			"conditions. Its breaker is one for all hosts. It logs " +
			"nothing of a retry but in a dump of everything for debugging. It has no budget and no keys.",
		offers: offersRetries | offersPolicy | offersBreaker | offersAttemptTimeout | offersRetryAfter,
		new:    newResty,
	},
}

// idle is a breaker that is on and does not open.
var idle = breaker{failures: 1 << 20, cooldown: 10 * time.Second}

func retripOptions(c config) []retrip.Option {
	backoff := retrip.Exponential(c.base, c.limit)
	switch {
	case c.base == 0:
		backoff = retrip.Constant(0)
	case c.jitter:
		backoff = retrip.FullJitter(c.base, c.limit)
	}
	opts := []retrip.Option{
		retrip.WithMaxAttempts(c.retries + 1),
		retrip.WithBackoff(backoff),
	}
	if c.failing {
		opts = append(opts, retrip.WithRetryQuota(&retrip.Quota{Capacity: 1e6, Initial: 1e6, Reserve: 1e6}))
	}
	if c.attemptTimeout > 0 {
		opts = append(opts, retrip.WithAttemptTimeout(c.attemptTimeout))
	}
	if c.budget > 0 {
		opts = append(opts, retrip.WithBudget(c.budget))
	}
	b := c.breaker
	if b == nil && c.failing {
		b = &idle
	}
	if b != nil {
		opts = append(opts, retrip.WithBreaker(&retrip.Breaker{
			Failures: b.failures, Cooldowns: []time.Duration{b.cooldown}, Probes: 1, Successes: 1,
		}))
	}
	if b != nil && b.hosts > 0 {
		opts = append(opts, retrip.WithHosts(b.hosts, nil))
	}
	if !c.key {
		opts = append(opts, retrip.WithIdempotencyKey(nil))
	}
	if c.log != nil {
		opts = append(opts, retrip.WithLogger(slog.New(slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	}
	return opts
}

// A printer is the logger of go-retryablehttp and of resty.
type printer struct{ w io.Writer }

func (p printer) Printf(format string, args ...any) { _, _ = fmt.Fprintf(p.w, format+"\n", args...) }
func (p printer) Errorf(format string, args ...any) { p.Printf(format, args...) }
func (p printer) Warnf(format string, args ...any)  { p.Printf(format, args...) }
func (p printer) Debugf(format string, args ...any) { p.Printf(format, args...) }

func newRehttp(base http.RoundTripper, c config) http.RoundTripper {
	failed := rehttp.RetryIsErr(func(err error) bool {
		switch {
		case err == nil, errors.Is(err, context.Canceled):
			return false
		case errors.Is(err, context.DeadlineExceeded):
			return c.attemptTimeout > 0 // whose it is only the Transport knows, and it asks
		}
		return true
	})
	retry := rehttp.RetryAll(
		rehttp.RetryMaxRetries(c.retries),
		rehttp.RetryHTTPMethods("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"),
		rehttp.RetryAny(rehttp.RetryStatuses(429, 500, 502, 503, 504), failed),
	)
	delay := rehttp.ConstDelay(0)
	switch {
	case c.base > 0 && c.jitter:
		delay = rehttp.ExpJitterDelay(c.base, c.limit)
	case c.base > 0:
		delay = rehttp.ExpJitterDelayWithRand(c.base, c.limit, func(n int64) int64 { return n })
	}
	t := rehttp.NewTransport(base, retry, delay)
	t.PerAttemptTimeout = c.attemptTimeout
	return t
}

func failsafePolicies(c config, b *breaker) []failsafe.Policy[*http.Response] {
	retry := failsafehttp.NewRetryPolicyBuilder().
		WithMaxRetries(c.retries).
		ReturnLastFailure().
		AbortOnErrors(circuitbreaker.ErrOpen)
	if c.base > 0 {
		retry = retry.WithBackoff(c.base, max(c.limit, c.base+1))
		if c.jitter {
			retry = retry.WithJitterFactor(0.25)
		}
	}
	if c.budget > 0 {
		retry = retry.WithMaxDuration(c.budget)
	}
	policies := []failsafe.Policy[*http.Response]{retry.Build()}
	if b != nil {
		policies = append(policies, circuitbreaker.NewBuilder[*http.Response]().
			HandleIf(func(resp *http.Response, err error) bool {
				return err != nil && !errors.Is(err, context.Canceled) || resp != nil && resp.StatusCode >= 500
			}).
			WithFailureThreshold(uint(b.failures)).
			WithSuccessThreshold(1).
			WithDelay(b.cooldown).
			Build())
	}
	if c.attemptTimeout > 0 {
		policies = append(policies, timeout.New[*http.Response](c.attemptTimeout))
	}
	return policies
}

// stay makes a client hand a redirect back, as a transport does.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

var commands atomic.Int64 // hystrix keeps its breakers in a global map by name

func newHeimdall(base http.RoundTripper, c config) http.RoundTripper {
	client := &http.Client{Transport: base, CheckRedirect: stay, Timeout: c.attemptTimeout}
	retrier := heimdall.NewNoRetrier()
	if c.base > 0 {
		var jitter time.Duration
		if c.jitter {
			jitter = c.base
		}
		retrier = heimdall.NewRetrier(heimdall.NewExponentialBackoff(c.base, c.limit, 2, jitter))
	}
	if c.breaker == nil {
		h := httpclient.NewClient(httpclient.WithHTTPClient(client), httpclient.WithRetryCount(c.retries), httpclient.WithRetrier(retrier))
		return roundTrip(h.Do)
	}
	h := hystrix.NewClient(
		hystrix.WithHTTPClient(client),
		hystrix.WithRetryCount(c.retries),
		hystrix.WithRetrier(retrier),
		hystrix.WithCommandName(fmt.Sprintf("bench-%d", commands.Add(1))),
		hystrix.WithHystrixTimeout(time.Minute),
		hystrix.WithMaxConcurrentRequests(1<<20),
		hystrix.WithRequestVolumeThreshold(c.breaker.failures),
		hystrix.WithErrorPercentThreshold(100),
		hystrix.WithSleepWindow(int(c.breaker.cooldown.Milliseconds())),
	)
	return roundTrip(h.Do)
}

// A seeker gives resty the io.ReadSeeker that it needs to send a body again. It is
// what its users have who pass a bytes.Reader.
type seeker struct {
	io.ReadCloser
	again func() (io.ReadCloser, error)
}

func (s *seeker) Seek(offset int64, whence int) (int64, error) {
	if offset != 0 || whence != io.SeekStart {
		return 0, errors.ErrUnsupported
	}
	body, err := s.again()
	if err == nil {
		s.ReadCloser = body
	}
	return 0, err
}

func newResty(base http.RoundTripper, c config) http.RoundTripper {
	client := resty.NewWithClient(&http.Client{Transport: base, CheckRedirect: stay})
	client.SetRetryCount(c.retries).SetRetryWaitTime(c.base).SetRetryMaxWaitTime(c.limit).SetResponseDoNotParse(true).
		AddRetryConditions(resty.RetryConditionStatusTooManyRequests, resty.RetryConditionStatus5XX, resty.RetryConditionStatusZero)
	client.SetLogger(printer{io.Discard})
	if c.attemptTimeout > 0 {
		client.SetTimeout(c.attemptTimeout)
	}
	if b := c.breaker; b != nil {
		client.SetCircuitBreaker(resty.NewCircuitBreakerCount(uint64(b.failures), 1, b.cooldown))
	}
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		r := client.R().SetContext(req.Context())
		for name, values := range req.Header {
			r.Header[name] = values
		}
		if req.Host != "" {
			r.Header.Set("Host", req.Host)
		}
		switch {
		case req.Body == nil || req.Body == http.NoBody:
		case req.GetBody != nil:
			r.SetBody(&seeker{req.Body, req.GetBody}).SetContentLength(req.ContentLength)
		default:
			r.SetBody(io.Reader(req.Body)).SetContentLength(max(req.ContentLength, 0))
		}
		resp, err := r.Execute(req.Method, req.URL.String())
		switch {
		case resp == nil || resp.RawResponse == nil:
			if err == nil {
				err = errors.New("resty: neither a response nor an error")
			}
			return nil, err
		case err != nil: // resty hands out both; a RoundTripper may not
			_ = resp.RawResponse.Body.Close()
			return nil, err
		}
		if resp.Body != nil {
			resp.RawResponse.Body = resp.Body
		}
		return resp.RawResponse, nil
	})
}
