package main

import (
	"context"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/retrip-go/retrip"
)

// A client says how a Transport is set. The zero value of a field but pause means that
// the Transport has no such thing.
type client struct {
	name     string
	attempts int
	pause    pause
	quota    *retrip.Quota
	breaker  *retrip.Breaker
	timeout  time.Duration        // of an attempt
	budget   time.Duration        // 0: no limit
	policy   func() retrip.Policy // makes one for each Transport; nil: DefaultPolicy
}

// shipped is a Transport without options.
func shipped() client {
	quota, breaker := retrip.DefaultQuota(), retrip.DefaultBreaker()
	return client{
		name: "retrip as shipped", attempts: 4, budget: 90 * time.Second,
		pause: pause{"full", 500 * time.Millisecond, 30 * time.Second},
		quota: &quota, breaker: &breaker,
	}
}

// once is a client that never retries.
func once() client { return client{name: "no retry", attempts: 1, pause: atOnce} }

// atOnce retries without a pause.
var atOnce = pause{kind: "constant"}

func (c client) transport(base http.RoundTripper) *retrip.Transport {
	budget := c.budget
	if budget == 0 {
		budget = math.MaxInt64
	}
	options := []retrip.Option{
		retrip.WithMaxAttempts(c.attempts),
		retrip.WithRetryQuota(c.quota),
		retrip.WithBreaker(c.breaker),
		retrip.WithBudget(budget),
	}
	if c.timeout > 0 {
		options = append(options, retrip.WithAttemptTimeout(c.timeout|1)) // between the world's instants
	}
	if c.policy != nil {
		options = append(options, retrip.WithPolicy(c.policy()))
	}
	return retrip.New(base, options...)
}

// A base is a simulated server, with the way to it: it answers an attempt with a
// status or an error.
type base func(ctx context.Context, r *rand.Rand) (status int, err error)

// RoundTrip asks the server.
func (b base) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	r, _ := ctx.Value(chanceKey{}).(*rand.Rand)
	status, err := b(ctx, r)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: req,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// chanceKey finds a request's source of chance.
type chanceKey struct{}

var somewhere = &url.URL{Scheme: "http", Host: "server", Path: "/"}

// get makes one request through t and reports whether it was answered well. The
// world's tally hears of the request and of a good answer; servers count attempts.
func (w *world) get(t http.RoundTripper, c client, r *rand.Rand) bool {
	w.tally.asked(w.now())
	if !w.ask(t, c, r) {
		return false
	}
	w.tally.good(w.now())
	return true
}

// ask makes one request through t, of which the tally hears nothing.
func (w *world) ask(t http.RoundTripper, c client, r *rand.Rand) bool {
	ctx := context.WithValue(context.Background(), chanceKey{}, r)
	ctx = retrip.Override(ctx, retrip.WithBackoff(c.pause.backoff(w, r)))
	req := (&http.Request{Method: http.MethodGet, URL: somewhere, Header: http.Header{}}).WithContext(ctx)
	resp, err := t.RoundTrip(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode < 400
}
