package statusz

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/retrip-go/retrip"
)

const (
	maxHosts    = 1024             // of each Transport, as many as it remembers by default
	maxPauses   = 128              // of each host
	maxFailures = 5                // of each host
	slots       = 60               // of a chart
	slotTime    = 15 * time.Second // 15 minutes in all
)

// What is counted. Each request ends as one of firstTry, recovered, failed and
// cancelled.
const (
	first     = iota // first attempts
	again            // retries
	retried          // requests with a retry
	firstTry         // requests answered at the first attempt
	recovered        // requests answered at a later one
	failed           // requests given up
	cancelled        // requests ended by their caller
	unsent           // requests that ended without an attempt
	kinds
)

// A watched is a Transport and what its hooks have told.
type watched struct {
	name      string
	transport *retrip.Transport
	since     time.Time
	stop      func()

	mu    sync.Mutex
	hosts *simplelru.LRU[string, *host]
}

// A host is what was seen of one.
type host struct {
	total [kinds]uint64
	slot  int64                // the number of the newest, counted from 1970
	ring  [slots][kinds]uint32 // by slot modulo slots
	pause []time.Duration      // the last ones, in no order
	next  int                  // of pause, to be overwritten once it is full
	fails [maxFailures]failure // the last ones, the newest at nfail-1 modulo its length
	nfail int                  // failures so far
}

// A failure holds numbers and words that need no allocation.
type failure struct {
	at          time.Time
	status      int
	kind        string // of the error; "" if there is a status
	number, max int
	pause       time.Duration
	reason      retrip.Reason // 0: another attempt followed
}

func watch(name string, t *retrip.Transport) *watched {
	hosts, err := simplelru.NewLRU[string, *host](maxHosts, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	w := &watched{name: name, transport: t, since: time.Now(), hosts: hosts}
	w.stop = t.Watch(&retrip.Trace{Attempted: w.attempted, Pausing: w.pausing, GaveUp: w.gaveUp})
	return w
}

// hostLocked returns the host, brought up to now.
func (w *watched) hostLocked(name string, now time.Time) *host {
	h, ok := w.hosts.Get(name)
	if !ok {
		h = &host{}
		w.hosts.Add(name, h)
	}
	h.advance(now)
	return h
}

// advance empties the slots that have come since. A clock set back adds to the newest.
func (h *host) advance(now time.Time) {
	n := now.Unix() / int64(slotTime/time.Second)
	h.slot = max(h.slot, n-slots)
	for h.slot < n {
		h.slot++
		h.ring[h.slot%slots] = [kinds]uint32{}
	}
}

func (h *host) add(kind int) {
	h.total[kind]++
	h.ring[h.slot%slots][kind]++
}

func (w *watched) attempted(i retrip.AttemptedInfo) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hostLocked(i.Host, now)
	switch i.Attempt.Number {
	case 1:
		h.add(first)
		if i.Answered {
			h.add(firstTry)
		}
		return
	case 2:
		h.add(retried)
	}
	h.add(again)
	if i.Answered {
		h.add(recovered)
	}
}

func (w *watched) pausing(i retrip.PausingInfo) {
	f := failureOf(i.Attempt, i.MaxAttempts)
	f.pause = i.Attempt.Pause
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hostLocked(i.Host, f.at)
	h.fail(f)
	if len(h.pause) < maxPauses {
		h.pause = append(h.pause, f.pause)
		return
	}
	h.pause[h.next] = f.pause
	h.next = (h.next + 1) % maxPauses
}

func (w *watched) gaveUp(i retrip.GaveUpInfo) {
	f := failureOf(i.Attempt, i.MaxAttempts)
	f.reason = i.Reason
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hostLocked(i.Host, f.at)
	if i.Attempt.Number == 0 {
		h.add(unsent)
	}
	if i.Reason == retrip.ReasonCancelled {
		h.add(cancelled)
		return
	}
	h.add(failed)
	if i.Reason != retrip.ReasonBreaker || i.Attempt.Number > 0 { // those would push out what opened it
		h.fail(f)
	}
}

func (h *host) fail(f failure) {
	h.fails[h.nfail%maxFailures] = f
	h.nfail++
}

func failureOf(a retrip.Attempt, limit int) failure {
	f := failure{at: time.Now(), number: a.Number, max: limit}
	if a.Response != nil {
		f.status = a.Response.StatusCode
	} else {
		f.kind = a.Outcome()
	}
	return f
}
