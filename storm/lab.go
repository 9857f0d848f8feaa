package main

import (
	"runtime"
	"sync"
	"testing"
)

// A lab runs worlds, as many at once as there are cores.
type lab struct {
	t        *testing.T // which synctest asks for
	seed     uint64
	progress *progress // nil: none
}

// A cell is one world of a scenario: a set-up that is run and gives a result.
type cell[R any] interface{ in(*world) R }

// each runs the cells, each in a world of its own. The results are in their order.
func each[C cell[R], R any](l *lab, cells []C) []R {
	l.progress.more(len(cells))
	results := make([]R, len(cells))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(cells)) {
		workers.Go(func() {
			for i := range next {
				enter(l.t, l.seed, func(w *world) { results[i] = cells[i].in(w) })
				l.progress.done()
			}
		})
	}
	for i := range cells {
		next <- i
	}
	close(next)
	workers.Wait()
	return results
}
