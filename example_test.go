package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/retrip-go/retrip"
)

// flakyServer answers with the given statuses in turn, the last one for ever.
func flakyServer(statuses ...int) *httptest.Server {
	var served atomic.Int64
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n := int(served.Add(1))
		w.WriteHeader(statuses[min(n, len(statuses))-1])
		body, _ := io.ReadAll(req.Body)
		fmt.Fprintf(w, "request %d: %s", n, body)
	}))
}

func Example() {
	server := flakyServer(503, 503, 200)
	defer server.Close()

	client := &http.Client{Transport: retrip.New(nil,
		retrip.WithBackoff(retrip.FullJitter(time.Millisecond, 10*time.Millisecond)))}
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, string(body))
	// Output: 200 request 3:
}

// A POST is repeated because it gets an idempotency key, the same on all attempts;
// its body is sent again.
func ExampleWithIdempotencyKey() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		fmt.Println(req.Header.Get(retrip.KeyHeader), string(body))
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()

	client := &http.Client{Transport: retrip.New(nil,
		retrip.WithMaxAttempts(2), retrip.WithBackoff(retrip.Constant(0)),
		retrip.WithIdempotencyKey(func(*http.Request) string { return "order-17" }))}
	resp, err := client.Post(server.URL, "text/plain", strings.NewReader("one coffee"))
	if err == nil {
		resp.Body.Close()
		fmt.Println(resp.StatusCode)
	}
	// Output:
	// order-17 one coffee
	// order-17 one coffee
	// 503
}

// Without a key a POST that may have been served is sent once: this server has done
// the work, and then failed.
func Example_pitfall() {
	server := flakyServer(500, 200)
	defer server.Close()

	client := &http.Client{Transport: retrip.New(nil,
		retrip.WithBackoff(retrip.Constant(0)),
		retrip.WithIdempotencyKey(nil))} // the server does not honour keys
	resp, err := client.Post(server.URL, "text/plain", strings.NewReader("one coffee"))
	if err == nil {
		resp.Body.Close()
		fmt.Println(resp.StatusCode, "after", max(1, len(retrip.History(resp))), "attempt")
	}
	// Output: 500 after 1 attempt
}

// A policy adds to the default one, or replaces it.
func ExampleWithPolicy() {
	server := flakyServer(412, 200)
	defer server.Close()

	client := &http.Client{Transport: retrip.New(nil,
		retrip.WithBackoff(retrip.Constant(0)),
		retrip.WithPolicy(func(a retrip.Attempt) bool {
			eventual := a.Response != nil && a.Response.StatusCode == http.StatusPreconditionFailed
			return eventual || retrip.DefaultPolicy(a)
		}))}
	resp, err := client.Get(server.URL)
	if err == nil {
		resp.Body.Close()
		fmt.Println(resp.StatusCode)
	}
	// Output: 200
}

func ExampleWithBackoff() {
	for _, b := range []retrip.Backoff{
		retrip.Constant(time.Second),
		retrip.Exponential(time.Second, 5*time.Second),
		retrip.Ladder(5*time.Minute, 30*time.Minute, 3*time.Hour),
	} {
		pauses := make([]time.Duration, 4)
		last := time.Duration(0)
		for i := range pauses {
			last = b(i+1, last)
			pauses[i] = last
		}
		fmt.Println(pauses)
	}
	// Output:
	// [1s 1s 1s 1s]
	// [1s 2s 4s 5s]
	// [5m0s 30m0s 3h0m0s 3h0m0s]
}

// A single request may be made with other settings than the Transport's.
func ExampleOverride() {
	server := flakyServer(503)
	defer server.Close()

	client := &http.Client{Transport: retrip.New(nil, retrip.WithBackoff(retrip.Constant(0)))}
	once := retrip.Override(context.Background(), retrip.WithMaxAttempts(1))
	for _, ctx := range []context.Context{context.Background(), once} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
			fmt.Println(max(1, len(retrip.History(resp))))
		}
	}
	// Output:
	// 4
	// 1
}

// A pause that does not fit the budget is not begun: the response comes back at
// once.
func ExampleWithBudget() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()

	client := &http.Client{Transport: retrip.New(nil,
		retrip.WithBudget(30*time.Second),
		retrip.WithTrace(&retrip.Trace{GaveUp: func(i retrip.GaveUpInfo) { fmt.Println("reason:", i.Reason) }}))}
	resp, err := client.Get(server.URL)
	if err == nil {
		resp.Body.Close()
		fmt.Println(resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	// Output:
	// reason: budget
	// 503 3600
}

// A breaker refuses what has no chance; the error says until when.
func ExampleWithBreaker() {
	server := flakyServer(503)
	defer server.Close()

	breaker := retrip.DefaultBreaker()
	breaker.Failures = 3
	breaker.Cooldowns = []time.Duration{30 * time.Second, time.Minute, 5 * time.Minute}
	client := &http.Client{Transport: retrip.New(nil,
		retrip.WithMaxAttempts(1), retrip.WithBreaker(&breaker))}
	for range 4 {
		resp, err := client.Get(server.URL)
		if open, ok := errors.AsType[*retrip.OpenError](err); ok {
			fmt.Println("open for", time.Until(open.Until).Round(10*time.Second))
		} else if err == nil {
			resp.Body.Close()
			fmt.Println(resp.StatusCode)
		}
	}
	// Output:
	// 503
	// 503
	// 503
	// open for 30s
}

// A quota bounds what the retries to one host add to its load.
func ExampleWithRetryQuota() {
	server := flakyServer(503)
	defer server.Close()

	rt := retrip.New(nil, retrip.WithBackoff(retrip.Constant(0)), retrip.WithBreaker(nil),
		retrip.WithRetryQuota(&retrip.Quota{Capacity: 2, Initial: 2}))
	client := &http.Client{Transport: rt}
	for range 3 {
		resp, err := client.Get(server.URL)
		if err == nil {
			resp.Body.Close()
			fmt.Println(max(1, len(retrip.History(resp))))
		}
	}
	for _, stats := range rt.Hosts() {
		fmt.Println(stats.Requests, "requests,", stats.Attempts, "attempts")
	}
	// Output:
	// 3
	// 1
	// 1
	// 3 requests, 5 attempts
}

func ExampleWithTrace() {
	server := flakyServer(503, 200)
	defer server.Close()

	client := &http.Client{Transport: retrip.New(nil,
		retrip.WithBackoff(retrip.Constant(0)),
		retrip.WithTrace(&retrip.Trace{Pausing: func(i retrip.PausingInfo) {
			text, _, _ := strings.Cut(i.String(), " at ")
			fmt.Println(text)
		}}))}
	resp, err := client.Get(server.URL)
	if err == nil {
		resp.Body.Close()
	}
	// Output: attempt 1 of 4, 503, next in 0s
}

func ExampleWithLogger() {
	server := flakyServer(503)
	defer server.Close()

	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr { // what differs from run to run
			switch a.Key {
			case slog.TimeKey, "host", "elapsed":
				return slog.Attr{}
			}
			return a
		},
	}))
	client := &http.Client{Transport: retrip.New(nil,
		retrip.WithMaxAttempts(2), retrip.WithBackoff(retrip.Constant(0)), retrip.WithLogger(log))}
	resp, err := client.Get(server.URL)
	if err == nil {
		resp.Body.Close()
	}
	// Output:
	// level=WARN msg="retrip: gave up" method=GET attempt=2 max_attempts=2 status=503 reason=attempts
}

// A request that was repeated tells how its response came about.
func ExampleHistory() {
	server := flakyServer(503, 429, 200)
	defer server.Close()

	client := &http.Client{Transport: retrip.New(nil, retrip.WithBackoff(retrip.Constant(0)))}
	resp, err := client.Get(server.URL)
	if err == nil {
		resp.Body.Close()
		for _, a := range retrip.History(resp) {
			fmt.Println(a.Number, a.Status)
		}
	}
	// Output:
	// 1 503
	// 2 429
	// 3 200
}
