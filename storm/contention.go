package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/retrip-go/retrip"
)

var contention = scenario{
	name:  "contention",
	title: "clients that must each write one row under optimistic concurrency",
	about: `
All clients begin at once: read the row, then write it if nobody else has in the
meantime; who lost the race backs off and reads again. Each hop of the network takes
about 10 ms (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog,
2015). To be seen: the number of writes and the time until all are done, as a mean of
some runs.`,
	heeds: []string{"clients", "backoff", "base", "cap"},
	crowd: 500,
	run:   runContention,
}

// A race is one run of contention.
type race struct {
	client  client
	clients int
	stream  uint64 // tells the runs from each other
}

// A finish is what a race came to, or the mean of some.
type finish struct {
	writes float64
	took   time.Duration
}

// racers differ in their pauses. The model's first retry waits for twice its base of
// 5 ms, but with decorrelated jitter.
func racers() []client {
	var all []client
	for _, c := range []struct {
		name, kind string
		base       time.Duration
	}{
		{"no backoff", "constant", 0},
		{"exponential", "none", 10 * time.Millisecond},
		{"equal jitter", "equal", 10 * time.Millisecond},
		{"full jitter", "full", 10 * time.Millisecond},
		{"decorrelated jitter", "decorrelated", 5 * time.Millisecond},
	} {
		all = append(all, client{name: c.name, attempts: math.MaxInt, pause: pause{c.kind, c.base, 2 * time.Second}, policy: lost})
	}
	return all
}

// lost retries a write that came too late.
func lost() retrip.Policy {
	return func(a retrip.Attempt) bool {
		return a.Response != nil && a.Response.StatusCode == http.StatusPreconditionFailed
	}
}

func runContention(l *lab, s settings) report {
	all := s.mine(racers()[3], racers())
	sizes := []int{1, 10, 20, 50, 100, 150, 190}
	if s.clients > 0 {
		sizes = []int{s.clients}
	}
	writes := table{
		title: "contention: writes until each client has written once",
		head:  []string{"clients"},
	}
	took := table{
		title: "contention: time until each client has written once",
		head:  []string{"clients"},
		notes: []string{"Means of 10 runs, of 100 with 100 clients."},
	}
	lines := picture{name: "contention", title: "Writes until all have written", x: "clients", y: "writes"}
	times := picture{name: "contention-time", title: "Time until all have written", x: "clients", y: "seconds", logY: true}
	for _, c := range all {
		writes.head = append(writes.head, c.name)
		took.head = append(took.head, c.name)
		lines.lines = append(lines.lines, line{name: c.name})
		times.lines = append(times.lines, line{name: c.name})
	}
	for _, size := range sizes {
		w, d := []string{fmt.Sprint(size)}, []string{fmt.Sprint(size)}
		for i, mean := range races(l, all, size, runsOf(size)) {
			lines.lines[i].add(float64(size), mean.writes)
			times.lines[i].add(float64(size), mean.took.Seconds())
			w = append(w, fmt.Sprintf("%.1f", mean.writes))
			d = append(d, fmt.Sprintf("%d ms", mean.took.Milliseconds()))
		}
		writes.add(w...)
		took.add(d...)
	}
	return report{tables: []table{writes, took}, pictures: []picture{lines, times}}
}

func runsOf(clients int) int {
	if clients == 100 {
		return 100
	}
	return 10
}

// races returns the means of some runs for each of the clients.
func races(l *lab, all []client, clients, runs int) []finish {
	var cells []race
	for _, c := range all {
		for i := range runs {
			cells = append(cells, race{c, clients, uint64(i)})
		}
	}
	means := make([]finish, len(all))
	for i, r := range each(l, cells) {
		means[i/runs].writes += r.writes / float64(runs)
		means[i/runs].took += r.took / time.Duration(runs)
	}
	return means
}

// in runs until all clients have written.
func (c race) in(w *world) finish {
	var mu sync.Mutex
	version, writes := 0, 0
	hop := func(ctx context.Context, r *rand.Rand) {
		_ = w.sleep(ctx, time.Duration(math.Abs(10+2*r.NormFloat64())*float64(time.Millisecond)))
	}
	server := base(func(ctx context.Context, r *rand.Rand) (int, error) {
		hop(ctx, r)
		mu.Lock()
		read := version
		mu.Unlock()
		hop(ctx, r)
		hop(ctx, r)
		status := http.StatusPreconditionFailed
		mu.Lock()
		writes++
		if read == version {
			version++
			status = http.StatusOK
		}
		mu.Unlock()
		hop(ctx, r)
		return status, nil
	})
	t := c.client.transport(server)
	for n := range c.clients {
		w.at(0, func() { w.get(t, c.client, w.chance(c.stream<<32+uint64(n))) })
	}
	w.wg.Wait()
	return finish{float64(writes), w.now()}
}
