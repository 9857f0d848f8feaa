package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

var shedding = scenario{
	name:  "shedding",
	title: "a server that turns away what is too much for it",
	about: `
A server serves 300 requests a second and answers the rest with 503, or 429, at once.
One process asks it for more. Whatever the client does, the same share is served, so
that attempts beyond one for each request are pure waste: the load says how many.`,
	heeds: append([]string{"rate", "capacity"}, clientFlags...),
	run:   runShedding,
}

// A shed is one client process and one server that sheds load.
type shed struct {
	client   client
	status   int     // of a refusal
	rate     float64 // of requests
	capacity float64
	during   time.Duration
}

// shedClients are those that are compared: the first three with the pauses of the model
// that the quota was designed in.
func shedClients() []client {
	free, quota := shipped(), shipped()
	free.pause = pause{"full", 50 * time.Millisecond, 30 * time.Second}
	quota.pause = free.pause
	free.name, free.quota, free.breaker = "no quota", nil, nil
	quota.name, quota.breaker = "retrip's quota", nil
	return []client{free, quota, shipped()}
}

func runShedding(l *lab, s settings) report {
	rates := []float64{315, 330, 400, 600, 3000}
	if s.rate > 0 {
		rates = []float64{s.rate}
	}
	capacity := cmp.Or(s.capacity, 300)
	var cells []shed
	for _, c := range s.mine(shipped(), shedClients()) {
		for _, status := range []int{503, 429} {
			for _, rate := range rates {
				cells = append(cells, shed{c, status, rate, capacity, lasting(40_000, rate, 120*time.Second)})
			}
		}
	}
	results := each(l, cells)
	t := table{
		title: fmt.Sprintf("shedding: load on a server that serves %s requests a second", number(capacity)),
		head:  []string{"client", "answer"},
		notes: []string{"Load is attempts for each request; success, in brackets, is at most capacity / rate."},
	}
	for _, rate := range rates {
		t.head = append(t.head, number(rate)+"/s")
	}
	p := picture{
		name: "shedding", title: fmt.Sprintf("Load on a server that serves %s requests a second", number(capacity)),
		x: "requests a second", y: "attempts for each request", logX: true,
	}
	for i := 0; i < len(cells); i += len(rates) {
		row := []string{cells[i].client.name, fmt.Sprint(cells[i].status)}
		load := line{name: row[0] + ", " + row[1]}
		for j, sum := range results[i : i+len(rates)] {
			load.add(rates[j], sum.load())
			row = append(row, fmt.Sprintf("%s (%s)", times(sum.load()), percent(sum.success())))
		}
		t.add(row...)
		p.lines = append(p.lines, load)
	}
	return report{tables: []table{t}, pictures: []picture{p}}
}

// in returns what the second half of the time saw.
func (s shed) in(w *world) second {
	server := &shedder{rate: s.capacity, burst: s.capacity / 10, tokens: s.capacity / 10}
	t := s.client.transport(base(func(ctx context.Context, _ *rand.Rand) (int, error) {
		now := w.now()
		w.tally.sent(now)
		status := 200
		if !server.takes(now) {
			status = s.status
		}
		return status, w.sleep(ctx, time.Millisecond)
	}))
	w.arrivals(1, s.rate, s.during, func(_ int, r *rand.Rand) { w.get(t, s.client, r) })
	w.wg.Wait()
	return w.tally.between(s.during/2, s.during)
}

// A shedder serves rate requests a second, and a burst of them at once.
type shedder struct {
	rate, burst float64

	mu     sync.Mutex
	tokens float64
	last   time.Duration
}

func (s *shedder) takes(now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens = min(s.burst, s.tokens+(now-s.last).Seconds()*s.rate)
	s.last = now
	if s.tokens < 1 {
		return false
	}
	s.tokens--
	return true
}
