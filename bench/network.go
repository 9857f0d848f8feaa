package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// loopback sends requests to a real server, so many at once.
func loopback(workers int, method string) measure {
	what := map[string]string{http.MethodGet: "GETs", http.MethodPost: "POSTs of 1 KiB"}[method]
	return measure{
		name: fmt.Sprintf("%s over loopback, %d at once", what, workers),
		doc:  "Client and server share the machine; the connections are there before. More a second is better.",
		run: func(b *bench) (table, error) {
			t := table{head: []string{"", "a second", "times bare", "p50", "p99", "p99, times bare", "allocations, server's too"}}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(w, "hello")
			}))
			defer server.Close()
			rate, p50, p99, allocs := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
			clients := make(map[string]http.RoundTripper)
			for _, c := range contenders {
				base := &http.Transport{MaxIdleConnsPerHost: workers}
				defer base.CloseIdleConnections()
				clients[c.name] = c.new(base, noFailures)
				if _, err := load(clients[c.name], server.URL, method, workers, b.slice/4); err != nil {
					return t, fmt.Errorf("loopback: %s: %w", c.name, err)
				}
			}
			for round := range b.rounds {
				for i := range contenders {
					c := contenders[(i+round)%len(contenders)]
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					all, err := load(clients[c.name], server.URL, method, workers, 2*b.slice)
					if err != nil {
						return t, fmt.Errorf("loopback: %s: %w", c.name, err)
					}
					runtime.ReadMemStats(&after)
					allocs[c.name] = append(allocs[c.name], float64(after.Mallocs-before.Mallocs)/float64(len(all)))
					rate[c.name] = append(rate[c.name], float64(len(all))/(2*b.slice).Seconds())
					p50[c.name] = append(p50[c.name], median(all))
					p99[c.name] = append(p99[c.name], quantile(all, 0.99))
				}
			}
			for _, c := range contenders {
				t.rows = append(t.rows, []string{
					c.name, fmt.Sprintf("%.0f", median(rate[c.name])), times(ratios(rate[c.name], rate["bare"])),
					nanoseconds(median(p50[c.name])), nanoseconds(median(p99[c.name])), times(ratios(p99[c.name], p99["bare"])),
					fmt.Sprintf("%.0f", median(allocs[c.name])),
				})
			}
			return t, nil
		},
	}
}

// load sends requests for some time, and returns how long each took, in ns.
func load(rt http.RoundTripper, url, method string, workers int, d time.Duration) ([]float64, error) {
	took := make([][]float64, workers)
	errs := make([]error, workers)
	var all sync.WaitGroup
	end := time.Now().Add(d)
	for i := range workers {
		all.Go(func() {
			for now := time.Now(); now.Before(end); {
				var body io.Reader
				if method == http.MethodPost {
					body = bytes.NewReader(kibibyte)
				}
				if errs[i] = once(rt, newRequest(method, url, body)); errs[i] != nil {
					return
				}
				next := time.Now()
				took[i] = append(took[i], float64(next.Sub(now)))
				now = next
			}
		})
	}
	all.Wait()
	var flat []float64
	for i := range took {
		flat = append(flat, took[i]...)
		if errs[i] != nil {
			return nil, errs[i]
		}
	}
	return flat, nil
}

// connections counts what is dialled when every other answer is a failure.
var connections = measure{
	name: "Connections, every other answer a 503 of 4 KiB",
	doc:  "200 GETs over loopback by one worker and by 16, the fewest of some tries. One for each worker is enough.",
	run: func(b *bench) (table, error) {
		t := table{head: []string{"", "1 worker", "16 workers", "attempts"}}
		for _, c := range contenders {
			one, _, err := fewestDialled(c, 1)
			if err != nil {
				return t, fmt.Errorf("connections: %s: %w", c.name, err)
			}
			many, attempts, err := fewestDialled(c, 16)
			if err != nil {
				return t, fmt.Errorf("connections: %s: %w", c.name, err)
			}
			t.rows = append(t.rows, []string{c.name, fmt.Sprint(one), fmt.Sprint(many), fmt.Sprint(attempts)})
			if c.name == "retrip" {
				b.claims = append(b.claims, atMost("connections of one worker among failures", float64(one), 1),
					atMost("connections of 16 workers among failures", float64(many), 16))
			}
		}
		return t, nil
	},
}

// fewestDialled tries again while there are more connections than workers: net/http
// dials one too many when a connection comes back at the wrong moment, bare included,
// and more of them on a busy machine. Who leaves bodies unread has too many each time.
func fewestDialled(c contender, workers int) (conns, attempts int, err error) {
	for try := range 10 {
		n, calls, err := dialledFor(c, workers, 200)
		if err != nil {
			return 0, 0, err
		}
		if try == 0 || n < conns {
			conns, attempts = n, calls
		}
		if conns <= workers || conns > 200 { // or one for each failure
			break
		}
	}
	return conns, attempts, nil
}

func dialledFor(c contender, workers, requests int) (conns, attempts int, err error) {
	var n atomic.Int64
	filler := bytes.Repeat([]byte{'x'}, 4<<10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1)%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write(filler)
		}
	}))
	defer server.Close()
	var count atomic.Int64
	base := &http.Transport{MaxIdleConnsPerHost: workers, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		count.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	defer base.CloseIdleConnections()
	rt := c.new(base, config{retries: 20, base: time.Millisecond, limit: 2 * time.Millisecond, failing: true})
	err = spread(workers, func(int) func(int) error {
		return func(n int) error {
			for range n {
				for {
					err := once(rt, newRequest(http.MethodGet, server.URL, nil))
					if err == nil {
						break
					}
					if c.has(offersRetries) {
						return err
					}
				}
			}
			return nil
		}
	})(requests)
	return int(count.Load()), int(n.Load()), err
}

// waiting weighs requests that pause, beside goroutines that just sleep.
var waiting = measure{
	name: "A request that waits",
	doc: "Memory and goroutines of each of many requests in a pause after a first 503, over a goroutine's own that sleeps after the " +
		"same call (bare).",
	run: func(b *bench) (table, error) {
		t := table{head: []string{"", "bytes", "times bare", "goroutines"}}
		bytesOf, goroutines := map[string][]float64{}, map[string][]float64{}
		for range b.weighings {
			for _, c := range contenders {
				weight, n, err := weigh(c, b.waiting, 2*time.Second)
				for pause := 4 * time.Second; errors.Is(err, errLate) && pause <= 16*time.Second; pause *= 2 {
					weight, n, err = weigh(c, b.waiting, pause)
				}
				if err != nil {
					return t, fmt.Errorf("waiting: %s: %w", c.name, err)
				}
				bytesOf[c.name] = append(bytesOf[c.name], weight)
				goroutines[c.name] = append(goroutines[c.name], n)
			}
		}
		for _, c := range contenders {
			t.rows = append(t.rows, []string{c.name, size(median(bytesOf[c.name])), times(ratios(bytesOf[c.name], bytesOf["bare"])), fmt.Sprintf("%.2f", median(goroutines[c.name]))})
		}
		b.claims = append(b.claims, atMost("goroutines that a waiting request adds", median(goroutines["retrip"])-median(goroutines["bare"]), 0.1),
			// The least: a stack is doubled by chance, never halved.
			atMost("bytes of a waiting request, times bare", quantile(ratios(bytesOf["retrip"], bytesOf["bare"]), 0), 1.25))
		return t, nil
	},
}

// errLate says that pauses may have ended before all requests were in theirs.
var errLate = errors.New("the pause was too short for a machine this busy")

// weigh has n requests pause; peers that cannot be cancelled have it waited out.
func weigh(c contender, n int, pause time.Duration) (weight, goroutines float64, err error) {
	var called atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The base is net/http's over loopback: what a call of it leaves of a stack is part of
	// all. Two at a time, so that two connections serve.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer server.Close()
	real := &http.Transport{}
	defer real.CloseIdleConnections()
	few := make(chan struct{}, 2)
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		few <- struct{}{}
		defer func() { <-few; called.Add(1) }()
		return real.RoundTrip(req)
	})
	for range 2 {
		_ = once(base, newRequest(http.MethodGet, server.URL, nil)) // the connections are there before
	}
	called.Store(0)
	rt := c.new(base, config{retries: 1, base: pause, limit: pause + 1, failing: true})
	requests := make([]*http.Request, n)
	for i := range requests {
		if requests[i], err = http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil); err != nil {
			return 0, 0, err
		}
	}
	before, goBefore := inUse()
	var all sync.WaitGroup
	end := time.Now().Add(pause * 3 / 4)
	for _, req := range requests {
		all.Go(func() {
			resp, err := rt.RoundTrip(req)
			if err == nil {
				_ = resp.Body.Close()
			}
			if !c.has(offersRetries) {
				timer := time.NewTimer(pause)
				defer timer.Stop()
				select {
				case <-timer.C:
				case <-ctx.Done():
				}
			}
		})
	}
	for called.Load() < int64(n) && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // they are on their way to their pause
	after, goAfter := inUse()
	late := time.Now().After(end)
	cancel()
	all.Wait()
	runtime.KeepAlive(requests)
	if late {
		return 0, 0, errLate
	}
	return float64(after-min(before, after)) / float64(n), float64(goAfter-goBefore) / float64(n), nil
}

func inUse() (uint64, int) {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse, runtime.NumGoroutine()
}

// hostMemory weighs what is kept of a host.
var hostMemory = measure{
	name: "Memory of a host",
	doc:  "Live heap after one GET to each of 10,000 hosts, for each host.",
	run: func(b *bench) (table, error) {
		t := table{head: []string{"", "bytes a host"}}
		for _, c := range contenders {
			if why := needsBreaker(c); why != "" {
				t.notes = append(t.notes, c.name+": "+why)
				continue
			}
			rt := c.new(stub, hostsConfig)
			hostRequests() // are there before
			before, _ := inUse()
			if err := visit(rt); err != nil {
				return t, fmt.Errorf("hosts: %s: %w", c.name, err)
			}
			after, _ := inUse()
			runtime.KeepAlive(rt)
			each := float64(after-min(before, after)) / manyHosts
			note := size(each)
			if c.has(offersBreaker) && !c.has(offersHostBreakers) {
				note += " (one breaker for all hosts)"
			}
			t.rows = append(t.rows, []string{c.name, note})
			if c.name == "retrip" {
				b.claims = append(b.claims, atMost("bytes of a host", each, 600))
			}
		}
		return t, nil
	},
}
