package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/retrip-go/retrip"
)

var fleet = scenario{
	name:  "fleet",
	title: "a hundred thousand quiet clients of one host",
	about: `
Each client makes one request a minute, at random. After a minute the host fails all
requests for 10 minutes. What a client may retry with an empty bucket, its reserve, is more than
it asks for, and its breaker sees too little to open soon: what is nothing for one client
is much for the host of all. To be seen: attempts for each request in the outage, in its
first and in its last minutes; beside the reserves' sum. How long each simulation took is
told on standard error.`,
	heeds: append([]string{"clients", "rate"}, clientFlags...),
	crowd: 200_000,
	lasts: 10 * time.Minute,
	run:   runFleet,
}

// An armada is a number of clients, each with a Transport of its own.
type armada struct {
	client  client
	clients int
	rate    float64 // of all clients together
	outage  time.Duration
}

// fleetDown is when the host begins to fail.
const fleetDown = time.Minute

// A drain is the load in the outage.
type drain struct {
	first, last second // halves of the outage
	attempts    int    // in all of the time
	rows        []second
}

// fleetClients are those that are compared.
func fleetClients() []client {
	free, quota, small, both := shipped(), shipped(), shipped(), shipped()
	free.name, free.quota, free.breaker = "no quota", nil, nil
	quota.name, quota.breaker = "retrip's quota", nil
	small.name, small.breaker = "initial 1, reserve 0.01/s", nil
	small.quota = &retrip.Quota{Capacity: 20, Initial: 1, Earn: 0.1, Reserve: 0.01}
	both.name = "and a breaker at 5 in a row"
	breaker := slowBreaker() // who asks once a minute has no use for shorter cool-downs
	breaker.Failures = 5
	both.quota, both.breaker = small.quota, breaker
	return []client{free, quota, small, shipped(), both}
}

func runFleet(l *lab, s settings) report {
	all := s.mine(shipped(), fleetClients())
	var cells []armada
	for _, c := range all {
		clients := cmp.Or(s.clients, 1000)
		cells = append(cells, armada{c, clients, cmp.Or(s.rate, float64(clients)/60), 10 * time.Minute})
	}
	rules, p := fleetTable(l, cells)
	rules.title = fmt.Sprintf("fleet: %d clients, %s requests a second in all", cells[0].clients, number(cells[0].rate))
	r := report{tables: []table{rules}, pictures: []picture{p}}
	if !s.plain() {
		return r
	}
	cells = nil
	for _, clients := range []int{100_000, 10_000, 1_000, 100} { // the longest begins
		cells = append(cells, armada{shipped(), clients, float64(clients) / 60, 2 * time.Minute})
	}
	sizes, _ := fleetTable(l, cells)
	sizes.title = "fleet: what the defaults add up to in the first 2 minutes"
	r.tables = append(r.tables, sizes)
	return r
}

func fleetTable(l *lab, cells []armada) (table, picture) {
	p := picture{name: "fleet", title: "Load of a fleet on a host that fails from 60 s on", x: "seconds", y: "attempts for each request"}
	half := cells[0].outage / 2
	t := table{head: []string{
		"client", "clients", "requests/s", "reserves/s",
		fmt.Sprintf("attempts/s, first %v", half), "load", fmt.Sprintf("attempts/s, last %v", half), "load",
	}}
	results, took := timed(l, cells)
	for i, r := range results {
		c := cells[i]
		p.lines = append(p.lines, rows(c.client.name, r.rows, 0, 30, second.load))
		reserve := "-"
		if c.client.quota != nil {
			reserve = number(c.client.quota.Reserve * float64(c.clients))
		}
		t.add(c.client.name, fmt.Sprint(c.clients), number(c.rate), reserve,
			fmt.Sprintf("%.1f", float64(r.first.sent)/half.Seconds()), times(r.first.load()),
			fmt.Sprintf("%.1f", float64(r.last.sent)/half.Seconds()), times(r.last.load()))
		fmt.Fprintf(l.aside, "fleet: %s, %d clients: %d attempts in %v, %v each\n", c.client.name, c.clients,
			r.attempts, took[i].Round(time.Millisecond), (took[i] / time.Duration(r.attempts)).Round(10*time.Nanosecond))
	}
	return t, p
}

// in lets the host fail for all of the outage.
func (a armada) in(w *world) drain {
	server := base(func(ctx context.Context, _ *rand.Rand) (int, error) {
		now := w.now()
		w.tally.sent(now)
		status := 200
		if now >= fleetDown {
			status = 500
		}
		return status, w.sleep(ctx, 10*time.Millisecond)
	})
	transports := make([]*retrip.Transport, a.clients)
	for i := range transports {
		transports[i] = a.client.transport(server)
	}
	w.arrivals(1, a.rate, fleetDown+a.outage, func(_ int, r *rand.Rand) {
		w.get(transports[r.IntN(a.clients)], a.client, r)
	})
	w.wg.Wait()
	half, end := fleetDown+a.outage/2, fleetDown+a.outage
	return drain{
		first:    w.tally.between(fleetDown, half),
		last:     w.tally.between(half, end),
		attempts: w.tally.total().sent,
		rows:     w.tally.seconds(),
	}
}
