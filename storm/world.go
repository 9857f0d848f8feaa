package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A world is one bubble of virtual time, in which a scenario lets clients and a server
// meet.
//
// It is the same world each time: whatever waits in it waits for an instant of its own,
// so that nothing happens at the same time as anything else, and each request draws from
// its own source of chance. Instants are even nanoseconds. The limits of attempts, which
// the Transport keeps, are odd numbers of nanoseconds and so end between them.
type world struct {
	seed  uint64
	began time.Time
	tally tally
	wg    sync.WaitGroup

	mu    sync.Mutex
	taken map[time.Duration]struct{} // instants to come, and some that have passed
	limit int                        // of taken, before those that have passed are dropped

	stopped atomic.Bool
}

// enter runs f in a new world and waits for everything that f started.
func enter(t *testing.T, seed uint64, f func(*world)) {
	synctest.Test(t, func(*testing.T) {
		w := &world{seed: seed, began: time.Now(), taken: map[time.Duration]struct{}{}, limit: 1 << 12}
		f(w)
		w.wg.Wait()
	})
}

// now is the time since the world began.
func (w *world) now() time.Duration { return time.Since(w.began) }

// chance returns a source of chance: the same for the same stream.
func (w *world) chance(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, stream)) }

// reserve returns the first instant from at on that nobody else has.
func (w *world) reserve(at time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	at += at & 1
	for ; ; at += 2 {
		if _, taken := w.taken[at]; !taken {
			break
		}
	}
	w.taken[at] = struct{}{}
	if len(w.taken) > w.limit {
		w.forgetLocked()
	}
	return at
}

func (w *world) forgetLocked() {
	now := w.now()
	for at := range w.taken {
		if at < now {
			delete(w.taken, at)
		}
	}
	w.limit = max(1<<12, 2*len(w.taken))
}

// sleep waits for about d, or until the context ends.
func (w *world) sleep(ctx context.Context, d time.Duration) error {
	return w.sleepUntil(ctx, w.reserve(w.now()+d))
}

// sleepUntil waits for an instant that was reserved.
func (w *world) sleepUntil(ctx context.Context, at time.Duration) error {
	if ctx.Done() == nil {
		time.Sleep(at - w.now())
		return nil
	}
	timer := time.NewTimer(at - w.now())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// at calls f at about the given time, in a goroutine of its own.
func (w *world) at(at time.Duration, f func()) {
	at = w.reserve(at)
	w.wg.Go(func() {
		time.Sleep(at - w.now())
		f()
	})
}

// arrivals calls f at random times, rate times a second on average, from now on to the
// end: a Poisson stream, which does not wait for answers. n counts from 1 and r is the
// source of chance for what f does.
func (w *world) arrivals(stream uint64, rate float64, end time.Duration, f func(n int, r *rand.Rand)) {
	gaps := w.chance(stream << 32)
	var next func(n int)
	next = func(n int) {
		at := w.now() + time.Duration(gaps.ExpFloat64()/rate*float64(time.Second))
		if at >= end {
			return
		}
		w.at(at, func() {
			if w.stopped.Load() {
				return
			}
			next(n + 1) // first, so that the draws of gaps have an order
			f(n, w.chance(stream<<32+uint64(n)))
		})
	}
	next(1)
}

// stop ends the streams before their time.
func (w *world) stop() { w.stopped.Store(true) }

// lasting returns how long a stream takes for n requests at the given rate, in whole
// seconds and at most as long as most.
func lasting(n int, rate float64, most time.Duration) time.Duration {
	return min(most, time.Duration(float64(n)/rate)*time.Second)
}
