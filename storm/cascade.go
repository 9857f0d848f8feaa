package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"time"
)

var cascade = scenario{
	name:  "cascade",
	title: "services that call services, each of which retries",
	about: `
A request passes some layers of services, each a process of its own whose Transport
makes up to 3 retries; the server at the bottom is down. To be seen: attempts at the
bottom for each request at the top, which grow as (1+3)^layers without a quota ("Site
Reliability Engineering", chapter 22), and how many there are if the Transports are
above each other in one process instead, where the lower one knows that it serves a
retry.`,
	heeds: append([]string{"layers", "rate", "failing"}, clientFlags...),
	lasts: 100 * time.Second,
	run:   runCascade,
}

// A tower is some layers of services over a server.
type tower struct {
	client  client
	layers  int
	between between // of the layers
	rate    float64
	failing float64 // share of attempts
	during  time.Duration
}

// A between is what is between two layers.
type between int

const (
	processes  between = iota // nothing of the request's context gets through
	nothing                   // the Transports are right above each other
	middleware                // or with another RoundTripper between them
)

// towerClients are the services' Transports.
func towerClients() []client {
	free, quota, both := shipped(), shipped(), shipped()
	free.name, free.quota, free.breaker = "no quota", nil, nil
	quota.name, quota.breaker = "retrip's quota", nil
	both.name = "quota and breaker"
	all := []client{free, quota, both}
	for i := range all {
		all[i].pause, all[i].budget = pause{"full", 50 * time.Millisecond, time.Second}, 0
	}
	return all
}

func runCascade(l *lab, s settings) report {
	all := s.mine(towerClients()[2], towerClients())
	most, rate, failing := cmp.Or(s.layers, 4), cmp.Or(s.rate, 10), 1.0
	if s.given["failing"] {
		failing = s.failing
	}
	t := table{
		title: "cascade: attempts at the bottom for each request at the top",
		head:  []string{"layers", "(1+r)^layers"},
		notes: []string{
			fmt.Sprintf("%s requests a second for 100 s; %s of the attempts at the bottom fail. r is the retries of a Transport.", number(rate), percent(failing)),
			fmt.Sprintf("In one process Transports are above each other, of the kind %q: with nothing between, or with middleware.", all[0].name),
		},
	}
	for _, c := range all {
		t.head = append(t.head, c.name)
	}
	t.head = append(t.head, "in one process", "and middleware")
	p := picture{name: "cascade", title: "Attempts at the bottom for each request at the top", x: "layers", y: "attempts", logY: true}
	for _, name := range t.head[2:] {
		p.lines = append(p.lines, line{name: name})
	}
	for layers := 1; layers <= most; layers++ {
		row := []string{fmt.Sprint(layers), number(math.Pow(float64(all[0].attempts), float64(layers)))}
		for i, sum := range each(l, towers(all, tower{layers: layers, rate: rate, failing: failing, during: 100 * time.Second})) {
			p.lines[i].add(float64(layers), sum.load())
			row = append(row, fmt.Sprintf("%.3f", sum.load()))
		}
		t.add(row...)
	}
	return report{tables: []table{t}, pictures: []picture{p}}
}

// towers are like t: one of processes for each of the clients, and two in one process of
// the first of them.
func towers(all []client, t tower) []tower {
	var cells []tower
	for _, c := range all {
		t.client = c
		cells = append(cells, t)
	}
	t.client = all[0]
	for _, t.between = range []between{nothing, middleware} {
		cells = append(cells, t)
	}
	return cells
}

// in returns what all of the time saw: requests at the top, attempts at the bottom.
func (c tower) in(w *world) second {
	server := base(func(ctx context.Context, r *rand.Rand) (int, error) {
		w.tally.sent(w.now())
		status := 200
		if r.Float64() < c.failing {
			status = 500
		}
		return status, w.sleep(ctx, time.Millisecond)
	})
	var top http.RoundTripper = server
	for layer := range c.layers {
		if layer > 0 {
			top = c.over(w, top)
		}
		top = c.client.transport(top)
	}
	w.arrivals(1, c.rate, c.during, func(_ int, r *rand.Rand) { w.get(top, c.client, r) })
	w.wg.Wait()
	return w.tally.total()
}

// over is what a layer's Transport has for its base, above another's Transport.
func (c tower) over(w *world, below http.RoundTripper) http.RoundTripper {
	switch c.between {
	case processes:
		return base(func(_ context.Context, r *rand.Rand) (int, error) {
			if w.ask(below, c.client, r) {
				return http.StatusOK, nil
			}
			return http.StatusBadGateway, nil
		})
	case middleware:
		return struct{ http.RoundTripper }{below}
	}
	return below
}
