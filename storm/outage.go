package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

var outage = scenario{
	name:  "breaker",
	title: "a host that is down for an hour",
	about: `
A process makes 10 requests a second of a host that answers 503 for an hour. To be
seen: how many attempts reach it meanwhile, and how long after its return it is found
out that it is back: the price of a breaker that waits longer each time.`,
	heeds: append([]string{"rate", "outage"}, clientFlags...),
	lasts: time.Hour,
	run:   runOutage,
}

// A downtime is one process and one host that is down for a while.
type downtime struct {
	client client
	rate   float64
	outage time.Duration
}

// downFrom is when the host goes down.
const downFrom = 10 * time.Second

// An upturn is what came of it.
type upturn struct {
	reached int           // attempts while the host was down
	asked   int           // requests in that time
	back    time.Duration // from the host's return to the first good answer
	rows    []second
}

// downClients are those that are compared.
func downClients() []client {
	none, free, quota, breaker := shipped(), shipped(), shipped(), shipped()
	none.name, none.attempts, none.quota, none.breaker = "no retry", 1, nil, nil
	free.name, free.quota, free.breaker = "3 retries, no quota", nil, nil
	quota.name, quota.breaker = "retrip's quota", nil
	breaker.name, breaker.quota = "retrip's breaker", nil
	return []client{none, free, quota, breaker, shipped()}
}

func runOutage(l *lab, s settings) report {
	all := s.mine(shipped(), downClients())
	rate, down := cmp.Or(s.rate, 10), cmp.Or(s.outage, time.Hour)
	var cells []downtime
	for _, c := range all {
		cells = append(cells, downtime{c, rate, down})
	}
	t, p := downTable(l, cells)
	t.title = fmt.Sprintf("breaker: a host is down for %v, %s requests a second", down, number(rate))
	r := report{tables: []table{t}, pictures: []picture{p}}
	if !s.plain() {
		return r
	}
	cells = nil
	for _, down := range []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute, 20 * time.Minute, time.Hour} {
		c := shipped()
		c.name = fmt.Sprintf("as shipped, down for %v", down)
		cells = append(cells, downtime{c, rate, down})
	}
	t, _ = downTable(l, cells)
	t.title = "breaker: the ladder of cool-downs: 5, 10, 20 and 30 s, then 1, 2 and 5 min"
	r.tables = append(r.tables, t)
	return r
}

func downTable(l *lab, cells []downtime) (table, picture) {
	p := picture{name: "breaker", title: "Attempts that reach a host that is down", x: "minutes", y: "attempts so far", logY: true}
	t := table{head: []string{"client", "requests meanwhile", "attempts that reach it", "back after"}}
	for i, r := range each(l, cells) {
		t.add(cells[i].client.name, fmt.Sprint(r.asked), fmt.Sprint(r.reached), seconds(r.back))
		p.lines = append(p.lines, reachedSoFar(cells[i], r))
	}
	return t, p
}

func reachedSoFar(d downtime, r upturn) line {
	l := line{name: d.client.name}
	sum := 0
	for i, row := range r.rows[downFrom/time.Second : (downFrom+d.outage)/time.Second] {
		if sum += row.sent; sum > 0 && i%10 == 0 {
			l.add(float64(i+1)/60, float64(sum))
		}
	}
	return l
}

// in lets the host be well, down, and well again until requests reach it.
func (d downtime) in(w *world) upturn {
	to := downFrom + d.outage
	var back atomic.Int64 // when it was first reached after its return
	t := d.client.transport(base(func(ctx context.Context, _ *rand.Rand) (int, error) {
		now := w.now()
		w.tally.sent(now)
		status := 200
		switch {
		case now >= downFrom && now < to:
			status = 503
		case now >= to:
			back.CompareAndSwap(0, int64(now))
			w.stop()
		}
		return status, w.sleep(ctx, time.Millisecond)
	}))
	w.arrivals(1, d.rate, to+time.Hour, func(_ int, r *rand.Rand) { w.get(t, d.client, r) })
	w.wg.Wait()
	sum := w.tally.between(downFrom, to)
	return upturn{reached: sum.sent, asked: sum.asked, back: time.Duration(back.Load()) - to, rows: w.tally.seconds()}
}
