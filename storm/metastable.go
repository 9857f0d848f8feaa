package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/retrip-go/retrip"
)

var metastable = scenario{
	name:  "metastable",
	title: "does a service recover from an outage of ten seconds?",
	about: `
A server works through its queue at 300 requests a second and does not know who has
given up. Clients wait 1 s for an answer and retry at once. After a minute the network
holds all requests for 10 s (net), or the server slows down to 60 a second (cpu). Then
all is well again, but for the queue: with retries it may never be (Bronson et al.,
"Metastable Failures in Distributed Systems", HotOS 2021). To be seen: how long it takes
until 95 % of the requests are answered in time again, and the load until then.`,
	heeds: append([]string{"rate", "capacity", "outage"}, clientFlags...),
	lasts: 5 * time.Minute,
	run:   runMetastable,
}

// A storm is one client process and one server with a queue, and an outage.
type storm struct {
	client   client
	rate     float64
	capacity float64
	before   time.Duration // when the outage begins
	outage   time.Duration
	slow     float64       // capacity in the outage; 0: nothing arrives
	during   time.Duration // how long it is watched after the outage
}

// A recovery is what came of a storm.
type recovery struct {
	after time.Duration // the end of the outage; negative: never
	load  float64       // from the end of the outage to the recovery
	rows  []second
}

func (r recovery) String() string {
	if r.after < 0 {
		return fmt.Sprintf("never (%s)", times(r.load))
	}
	return fmt.Sprintf("%v (%s)", r.after, times(r.load))
}

// stormClients are those that are compared.
func stormClients() []client {
	base := client{attempts: 2, pause: atOnce, timeout: time.Second}
	none, one, three, share, quota, both, slow := base, base, base, base, base, base, base
	none.name, none.attempts = "no retry", 1
	one.name = "1 retry, no quota"
	three.name, three.attempts = "3 retries, no quota", 4
	share.name, share.policy = "1 retry, 10 % of requests", func() retrip.Policy { return ofRequests(0.1, 20) }
	q, b := retrip.DefaultQuota(), retrip.DefaultBreaker()
	quota.name, quota.quota = "1 retry, retrip's quota", &q
	both.name, both.quota, both.breaker = "1 retry, quota and breaker", &q, &b
	slow.name, slow.quota, slow.breaker = "the same, cool-downs from 30 s", &q, slowBreaker()
	return []client{none, one, three, share, quota, both, slow}
}

// slowBreaker is the default one without the cool-downs that are shorter than 30 s.
func slowBreaker() *retrip.Breaker {
	b := retrip.DefaultBreaker()
	b.Cooldowns = slices.DeleteFunc(b.Cooldowns, func(d time.Duration) bool { return d < 30*time.Second })
	return &b
}

func runMetastable(l *lab, s settings) report {
	all := stormClients()
	all = s.mine(all[5], all)
	rates := []float64{280, 240}
	if s.rate > 0 {
		rates = []float64{s.rate}
	}
	outage, capacity := cmp.Or(s.outage, 10*time.Second), cmp.Or(s.capacity, 300)
	head := []string{"client"}
	var columns []storm
	for _, slow := range []float64{0, capacity / 5} {
		for _, rate := range rates {
			if slow > 0 && rate == 280 && s.plain() {
				continue // as bad as the net, and the longest to compute
			}
			columns = append(columns, storm{rate: rate, capacity: capacity, before: time.Minute, outage: outage, slow: slow, during: 4 * time.Minute})
			head = append(head, fmt.Sprintf("%s, %s/s", map[bool]string{true: "net", false: "cpu"}[slow == 0], number(rate)))
		}
	}
	t, results := stormTable(l, all, columns)
	t.title = fmt.Sprintf("metastable: time to recover from %v of trouble, at a server of %s requests a second", outage, number(capacity))
	t.head = head
	t.notes = []string{
		"In brackets attempts for each request until then; never: not within 4 minutes.",
		"A breaker's refusals are not attempts, so that its load is less than 1.",
	}
	r := report{tables: []table{t}, pictures: []picture{stormPicture(all, columns, results)}}
	if s.plain() {
		r.tables = append(r.tables, thresholdTable(l))
	}
	return r
}

func stormTable(l *lab, all []client, columns []storm) (table, []recovery) {
	var cells []storm
	for _, c := range all {
		for _, column := range columns {
			column.client = c
			cells = append(cells, column)
		}
	}
	results := each(l, cells)
	var t table
	for i, c := range all {
		row := []string{c.name}
		for _, r := range results[i*len(columns) : (i+1)*len(columns)] {
			row = append(row, r.String())
		}
		t.add(row...)
	}
	return t, results
}

// stormPicture shows the first of the columns.
func stormPicture(all []client, columns []storm, results []recovery) picture {
	p := picture{
		name:  "metastable",
		title: fmt.Sprintf("Answers in time, of %s requests a second", number(columns[0].rate)),
		x:     "seconds; the trouble begins at 60", y: "answers a second",
	}
	for i, c := range all {
		p.lines = append(p.lines, rows(c.name, results[i*len(columns)].rows, 0, 5, func(s second) float64 { return float64(s.good) / 5 }))
	}
	return p
}

// thresholdTable shows from which rate on one retry keeps the server down.
func thresholdTable(l *lab) table {
	all := stormClients()
	var columns []storm
	head := []string{"client"}
	for _, rate := range []float64{130, 140, 150} {
		columns = append(columns, storm{rate: rate, capacity: 300, before: time.Minute, outage: 10 * time.Second, during: 4 * time.Minute})
		head = append(head, number(rate)+"/s")
	}
	t, _ := stormTable(l, []client{all[1], all[4]}, columns)
	t.title = "metastable: from which rate on a retry keeps a server of 300 requests a second down (net)"
	t.head = head
	t.notes = []string{"Half of the capacity is the bound: each request comes twice as long as none is answered in time."}
	return t
}

// in lets the outage happen, and watches until some time after the recovery.
func (s storm) in(w *world) recovery {
	q := &queue{rate: s.capacity, slow: s.slow, from: s.before, to: s.before + s.outage}
	t := s.client.transport(base(func(ctx context.Context, _ *rand.Rand) (int, error) {
		now := w.now()
		w.tally.sent(now)
		return 200, w.sleepUntil(ctx, w.reserve(q.ready(now)))
	}))
	end := q.to + s.during
	w.arrivals(1, s.rate, end, func(_ int, r *rand.Rand) { w.get(t, s.client, r) })
	result := recovery{after: -1}
	for at := q.to + time.Second; at <= end && result.after < 0; at += time.Second {
		time.Sleep(at + 1 - w.now()) // between the instants at which something happens
		last := w.tally.between(at-5*time.Second, at)
		// Five seconds in which chance has fewer clients ask are not trouble.
		if float64(last.good) >= 0.95*min(5*s.rate, float64(last.asked)) {
			result.after = at - q.to
		}
	}
	result.load = w.tally.between(q.to, w.now()).load()
	time.Sleep(20 * time.Second) // for the picture
	w.stop()
	w.wg.Wait()
	result.rows = w.tally.seconds()
	return result
}

// A queue is a server that answers one request after the other, in the order in which
// they came.
type queue struct {
	rate, slow float64       // requests a second, outside and in its trouble; slow 0: it hears none
	from, to   time.Duration // of the trouble

	mu   sync.Mutex
	free time.Duration // when all that it has is done
}

// ready returns when a request that comes now is answered.
func (q *queue) ready(now time.Duration) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	start := max(now, q.free)
	rate := q.rate
	if q.slow > 0 && start >= q.from && start < q.to {
		rate = q.slow
	}
	if q.slow == 0 && now >= q.from && now < q.to {
		start = max(start, q.to)
	}
	q.free = start + time.Duration(float64(time.Second)/rate)
	return q.free
}
