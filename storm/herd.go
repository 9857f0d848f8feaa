package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

var herd = scenario{
	name:  "herd",
	title: "500 clients fail together; when do they come back?",
	about: `
A server goes away, and 500 clients, each with one request, fail together. It is back
after 4 minutes. Each client goes on until it is answered, with no limit but its
backoff. To be seen: the most requests in one second after the server's return, beside
what they are without jitter, when all are answered, and how many attempts it took.`,
	heeds: []string{"clients", "outage", "backoff", "base", "cap"},
	crowd: 100_000,
	run:   runHerd,
}

// A crowd is a number of clients that fail together.
type crowd struct {
	client  client
	clients int
	outage  time.Duration
}

// A comeback is what a crowd did.
type comeback struct {
	rows     []second
	peak     int           // attempts in the busiest second from the return on
	attempts int           // of all clients
	last     time.Duration // after the return: when all were answered; negative: never
}

// herdClients differ in their pauses.
func herdClients() []client {
	var all []client
	for _, c := range []struct{ name, kind string }{
		{"no jitter", "none"}, {"±20 %", "spread"}, {"equal jitter", "equal"},
		{"full jitter", "full"}, {"decorrelated jitter", "decorrelated"},
	} {
		all = append(all, client{name: c.name, attempts: 10_000, pause: pause{c.kind, time.Second, time.Minute}})
	}
	for _, c := range []struct{ name, kind string }{
		{"Retry-After to the second", "hint"}, {"Retry-After, retrip's spread", "hint+spread"},
	} {
		all = append(all, client{name: c.name, attempts: 10_000, pause: pause{c.kind, time.Minute, time.Minute}})
	}
	return all
}

func runHerd(l *lab, s settings) report {
	all := herdClients()
	all = s.mine(all[3], all)
	var cells []crowd
	for _, c := range all {
		cells = append(cells, crowd{c, cmp.Or(s.clients, 500), cmp.Or(s.outage, 4*time.Minute)})
	}
	results := each(l, cells)
	t := table{
		title: fmt.Sprintf("herd: %d clients fail together, the server is back after %v", cells[0].clients, cells[0].outage),
		head:  []string{"client", "pauses", "peak", "of no jitter's", "all answered after", "attempts of a client"},
		notes: []string{"Peak is the most attempts in one second from the server's return on; the time is from there."},
	}
	p := picture{name: "herd", title: "Attempts of a herd", x: "seconds since it failed", y: "attempts a second"}
	from := int(cells[0].outage/time.Second) / 8 // the first pauses are short, and alike
	for i, r := range results {
		p.lines = append(p.lines, rows(all[i].name, r.rows, from, 1, func(s second) float64 { return float64(s.sent) }))
		t.add(all[i].name, all[i].pause.String(), fmt.Sprintf("%d/s", r.peak), percent(ratio(r.peak, results[0].peak)),
			answeredAfter(r), fmt.Sprintf("%.1f", ratio(r.attempts, cells[i].clients)))
	}
	return report{tables: []table{t}, pictures: []picture{p}}
}

func answeredAfter(r comeback) string {
	if r.last < 0 {
		return "never"
	}
	return seconds(r.last)
}

// in returns how the clients of c came back.
func (c crowd) in(w *world) comeback {
	var result comeback
	server := base(func(context.Context, *rand.Rand) (int, error) {
		now := w.now()
		w.tally.sent(now)
		if now < c.outage {
			return 503, nil
		}
		return 200, nil
	})
	for n := range c.clients {
		t := c.client.transport(server)
		w.at(0, func() { w.get(t, c.client, w.chance(uint64(n))) })
	}
	w.wg.Wait()
	result.last = w.now() - c.outage
	result.rows = w.tally.seconds()
	result.attempts = w.tally.total().sent
	if w.tally.total().good < c.clients {
		result.last = -1 // too many attempts, too early
	}
	for _, row := range result.rows[min(len(result.rows), int(c.outage/time.Second)):] {
		result.peak = max(result.peak, row.sent)
	}
	return result
}
