package main

import (
	"io"
	"runtime"
	"sync"
	"testing"
	"time"
)

// A lab runs worlds, as many at once as there are cores. It is safe for concurrent use.
type lab struct {
	t        *testing.T // which synctest asks for
	seed     uint64
	progress *progress // nil: none
	aside    io.Writer // for what is not the same each time
	cores    chan struct{}
}

func newLab(t *testing.T, seed uint64, p *progress, aside io.Writer) *lab {
	return &lab{t, seed, p, aside, make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// A cell is one world of a scenario: a set-up that is run and gives a result.
type cell[R any] interface{ in(*world) R }

// each runs the cells, each in a world of its own. The results are in their order.
func each[C cell[R], R any](l *lab, cells []C) []R {
	results, _ := timed(l, cells)
	return results
}

// timed is each, and tells how long each of the cells took outside of its world.
func timed[C cell[R], R any](l *lab, cells []C) ([]R, []time.Duration) {
	l.progress.more(len(cells))
	results, took := make([]R, len(cells)), make([]time.Duration, len(cells))
	var worlds sync.WaitGroup
	for i, c := range cells {
		l.cores <- struct{}{} // here, so that worlds begin in order
		worlds.Go(func() {
			defer func() { <-l.cores }()
			began := time.Now()
			enter(l.t, l.seed, func(w *world) { results[i] = c.in(w) })
			took[i] = time.Since(began)
			l.progress.done()
		})
	}
	worlds.Wait()
	return results, took
}
