package main

import (
	"sync"
	"time"
)

// A tally counts what happens in each second of a world.
type tally struct {
	mu   sync.Mutex
	rows []second
}

// A second is what happened in one: requests that clients began, attempts that reached
// the server, and requests that were answered well.
type second struct{ asked, sent, good int }

func (t *tally) asked(at time.Duration) { t.count(at, second{asked: 1}) }
func (t *tally) sent(at time.Duration)  { t.count(at, second{sent: 1}) }
func (t *tally) good(at time.Duration)  { t.count(at, second{good: 1}) }

func (t *tally) count(at time.Duration, c second) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := int(at / time.Second)
	for len(t.rows) <= i {
		t.rows = append(t.rows, second{})
	}
	t.rows[i] = t.rows[i].plus(c)
}

func (s second) plus(o second) second {
	return second{s.asked + o.asked, s.sent + o.sent, s.good + o.good}
}

// load is how many attempts there were for each request.
func (s second) load() float64 { return ratio(s.sent, s.asked) }

// success is the share of the requests that were answered well.
func (s second) success() float64 { return ratio(s.good, s.asked) }

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// between sums the seconds from one on, up to another.
func (t *tally) between(from, to time.Duration) second {
	t.mu.Lock()
	defer t.mu.Unlock()
	var sum second
	for i := int(from / time.Second); i < min(int(to/time.Second), len(t.rows)); i++ {
		sum = sum.plus(t.rows[i])
	}
	return sum
}

// total sums all seconds.
func (t *tally) total() second { return t.between(0, 1<<62) }

// seconds returns what was counted so far.
func (t *tally) seconds() []second {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]second(nil), t.rows...)
}
