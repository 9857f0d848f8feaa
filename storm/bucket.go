package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/retrip-go/retrip"
)

var bucket = scenario{
	name:  "tokenbucket",
	title: "a token bucket against a breaker on retries",
	about: `
Clients make 10 requests a second each of a server that fails a share of all attempts,
at random, and retry up to 3 times without a pause (M. Brooker, "Fixing retries with
token buckets and circuit breakers", 2022). To be seen: the success and the load of
each rule that limits retries, and how little a rule for each client is worth when
there are many of them.`,
	heeds: append([]string{"clients", "rate", "failing"}, clientFlags...),
	crowd: 10_000,
	run:   runBucket,
}

// A flaky server fails each attempt at random.
type flaky struct {
	client  client
	clients int
	rate    float64 // of all clients together
	failing float64 // the share of attempts
	during  time.Duration
}

// rules are what may limit retries: Brooker's two, which are policies here, and ours.
func rules() []client {
	base := client{attempts: 4, pause: atOnce}
	three, adaptive, tripping, quota, both := base, base, base, base, base
	three.name = "three retries"
	adaptive.name, adaptive.policy = "10 % of requests", func() retrip.Policy { return ofRequests(0.1, 5) }
	tripping.name, tripping.policy = "none over 10 % failures", func() retrip.Policy { return under(0.1) }
	q, b := retrip.DefaultQuota(), retrip.DefaultBreaker()
	quota.name, quota.quota = "retrip's quota", &q
	both.name, both.quota, both.breaker = "quota and breaker", &q, &b
	return []client{once(), three, adaptive, tripping, quota, both}
}

func runBucket(l *lab, s settings) report {
	shares := []float64{0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75}
	if s.given["failing"] {
		shares = []float64{s.failing}
	}
	all := rules()
	all = s.mine(all[len(all)-1], all)
	clients := cmp.Or(s.clients, 50)
	rate := cmp.Or(s.rate, 10*float64(clients))
	failures, pictures := flakyTable(l, all, shares, clients, rate)
	failures.title = fmt.Sprintf("tokenbucket: %d clients, %s requests a second in all; share of attempts that fail", clients, number(rate))
	failures.notes = []string{"Share of requests that succeed (and attempts for each request)."}
	r := report{tables: []table{failures}, pictures: pictures}
	if s.plain() {
		r.tables = append(r.tables, crowdTable(l))
	}
	return r
}

func flakyTable(l *lab, all []client, shares []float64, clients int, rate float64) (table, []picture) {
	var cells []flaky
	for _, c := range all {
		for _, share := range shares {
			cells = append(cells, flaky{c, clients, rate, share, lasting(100_000, rate, 100*time.Second)})
		}
	}
	results := each(l, cells)
	t := table{head: []string{"client"}}
	for _, share := range shares {
		t.head = append(t.head, fmt.Sprintf("%v %%", 100*share))
	}
	success := picture{name: "tokenbucket", title: "Requests that succeed", x: "share of attempts that fail, %", y: "success, %"}
	load := picture{name: "tokenbucket-load", title: "Load", x: "share of attempts that fail, %", y: "attempts for each request"}
	for i := 0; i < len(cells); i += len(shares) {
		row := []string{cells[i].client.name}
		good, sent := line{name: row[0]}, line{name: row[0]}
		for j, sum := range results[i : i+len(shares)] {
			good.add(100*shares[j], 100*sum.success())
			sent.add(100*shares[j], sum.load())
			row = append(row, fmt.Sprintf("%s (%s)", percent(sum.success()), times(sum.load())))
		}
		t.add(row...)
		success.lines, load.lines = append(success.lines, good), append(load.lines, sent)
	}
	return t, []picture{success, load}
}

// in returns what all of the time saw.
func (f flaky) in(w *world) second {
	server := base(func(ctx context.Context, r *rand.Rand) (int, error) {
		w.tally.sent(w.now())
		status := 200
		if r.Float64() < f.failing {
			status = 500
		}
		return status, w.sleep(ctx, time.Duration(r.ExpFloat64()*float64(10*time.Millisecond)))
	})
	transports := make([]*retrip.Transport, f.clients)
	for i := range transports {
		transports[i] = f.client.transport(server)
	}
	w.arrivals(1, f.rate, f.during, func(_ int, r *rand.Rand) {
		w.get(transports[r.IntN(f.clients)], f.client, r)
	})
	w.wg.Wait()
	return w.tally.total()
}

// ofRequests lets retries be a share of requests, which earn whether they succeed or
// not: Brooker's "adaptive" strategy. A retry needs more than the token that it costs.
func ofRequests(share, capacity float64) retrip.Policy {
	var mu sync.Mutex
	tokens := capacity
	return func(a retrip.Attempt) bool {
		mu.Lock()
		defer mu.Unlock()
		if a.Number == 1 {
			tokens = min(capacity, tokens+share)
		}
		if !retrip.DefaultPolicy(a) || tokens <= 1 {
			return false
		}
		tokens--
		return true
	}
}

// under allows retries while no more than a share of all attempts so far have failed:
// Brooker's "breaker", which lets all first attempts pass.
func under(share float64) retrip.Policy {
	var mu sync.Mutex
	attempts, failures := 0, 0
	return func(a retrip.Attempt) bool {
		mu.Lock()
		defer mu.Unlock()
		attempts++
		if !retrip.DefaultPolicy(a) {
			return false
		}
		failures++
		return float64(failures) <= share*float64(attempts)
	}
}

// crowds are quotas that are compared in a crowd of quiet clients.
func crowds() []client {
	base := client{attempts: 3, pause: atOnce}
	var all []client
	for _, q := range []retrip.Quota{
		retrip.DefaultQuota(),
		{Capacity: 20, Initial: 2, Earn: 0.1, Reserve: 0.1},
		{Capacity: 20, Initial: 1, Earn: 0.1, Reserve: 0.01},
		{Capacity: 20, Initial: 0, Earn: 0.1, Reserve: 0.01},
		{Capacity: 20, Initial: 0, Earn: 0.1},
	} {
		c := base
		c.name, c.quota = fmt.Sprintf("initial %v, reserve %v/s", q.Initial, q.Reserve), &q
		all = append(all, c)
	}
	both, b := all[0], retrip.DefaultBreaker()
	both.name, both.breaker = "the first, and the breaker", &b
	return append(all, both)
}

func crowdTable(l *lab) table {
	t, _ := flakyTable(l, crowds(), []float64{0.05, 0.1, 0.2, 0.5}, 1000, 100)
	t.title = "tokenbucket: 1000 clients of 0.1 requests a second each, 2 retries; share of attempts that fail"
	t.notes = []string{
		"What a client has at first, and in reserve, adds up: a quota that is small for one is none for a thousand.",
	}
	return t
}
