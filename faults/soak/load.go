package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/faults"
)

const (
	attemptTimeout = 500 * time.Millisecond
	maxBody        = 64 << 10 // so that a body over it need not be large
	patient        = 30 * time.Second
	thinking       = 200 * time.Millisecond // at most, between two requests of a caller
)

// noise is what bodies are cut from, each at another place.
var noise = faults.Pattern("noise", 1<<20)

func cut(random *rand.Rand, least, most int) []byte {
	n := least + random.IntN(most-least)
	from := random.IntN(len(noise) - n)
	return noise[from : from+n]
}

// A kind is a way of making a request.
type kind struct {
	name string
	call func(*rand.Rand) faults.Call // without ID and Answer
	opts []retrip.CallOption
}

var kinds = []kind{
	{"GET", func(*rand.Rand) faults.Call { return faults.Call{Method: http.MethodGet} }, nil},
	{"PUT with GetBody", func(r *rand.Rand) faults.Call {
		return faults.Call{Method: http.MethodPut, Body: cut(r, 1, 2*maxBody)}
	}, nil},
	{"PUT of a stream that is kept", func(r *rand.Rand) faults.Call {
		return faults.Call{Method: http.MethodPut, Body: cut(r, 1, maxBody), Stream: true}
	}, nil},
	{"PUT of a stream too long", func(r *rand.Rand) faults.Call {
		return faults.Call{Method: http.MethodPut, Body: cut(r, maxBody+1, 3*maxBody), Stream: true}
	}, nil},
	{"PUT of a slow pipe", func(r *rand.Rand) faults.Call {
		return faults.Call{Method: http.MethodPut, Body: cut(r, 1, maxBody/2), Stream: true, Through: slowly(r)}
	}, nil},
	{"POST with a key of retrip's", func(r *rand.Rand) faults.Call {
		return faults.Call{Method: http.MethodPost, Body: cut(r, 1, maxBody/4)}
	}, nil},
	{"POST with a key of the caller's", func(r *rand.Rand) faults.Call {
		return faults.Call{Method: http.MethodPost, Body: cut(r, 1, maxBody/4), Key: true}
	}, nil},
	{"POST of a slow pipe", func(r *rand.Rand) faults.Call {
		return faults.Call{Method: http.MethodPost, Body: cut(r, 1, maxBody/4), Stream: true, Through: slowly(r)}
	}, nil},
	{"POST without a key", func(r *rand.Rand) faults.Call {
		return faults.Call{Method: http.MethodPost, Body: cut(r, 1, maxBody/4)}
	}, []retrip.CallOption{retrip.WithIdempotencyKey(nil)}},
	{"POST of a stream without a key", func(r *rand.Rand) faults.Call {
		return faults.Call{Method: http.MethodPost, Body: cut(r, 1, maxBody/4), Stream: true}
	}, []retrip.CallOption{retrip.WithIdempotencyKey(nil)}},
}

// A slowPipe is a pipe whose other end is written to now and then. Its writer goes
// away when it is closed, and only then: a body that somebody forgot to close is a
// goroutine that is left.
type slowPipe struct {
	*io.PipeReader
	close context.CancelFunc
}

func (p slowPipe) Close() error {
	p.close()
	return p.PipeReader.Close()
}

// slowly returns what makes a stream slow. One of twenty comes to a stop.
func slowly(random *rand.Rand) func(io.Reader) io.Reader {
	stuck := random.IntN(20) == 0
	nap := time.Duration(random.Int64N(int64(20 * time.Millisecond)))
	return func(src io.Reader) io.Reader {
		closed, cancel := context.WithCancel(context.Background())
		r, w := io.Pipe()
		go func() {
			for {
				if _, err := io.CopyN(w, src, maxBody/8); err != nil {
					_ = w.CloseWithError(err)
					break
				}
				if stuck {
					break
				}
				sleep(closed, nap)
			}
			<-closed.Done()
		}()
		return slowPipe{r, cancel}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// mood returns the context of a call: most callers wait as long as it takes, some
// cancel it at some time, some have a short deadline.
func mood(random *rand.Rand) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	soon := time.Duration(random.Int64N(int64(attemptTimeout)))
	switch random.IntN(6) {
	case 0:
		timer := time.AfterFunc(soon, cancel)
		return ctx, func() { timer.Stop(); cancel() }
	case 1:
		cancel()
		return context.WithTimeout(context.Background(), soon)
	}
	return ctx, cancel
}

// A worker is a caller that makes one request after the other. What it counts is its
// own until the end.
type worker struct {
	soak    *soak
	number  int
	random  *rand.Rand
	started atomic.Int64

	byWeather, byKind, byHost map[string]*count
	pending                   []deed
}

// A deed is a call that is over for its caller. A server may still be at work on an
// attempt that was given up.
type deed struct {
	site *site
	call faults.Call
	out  faults.Outcome
	over time.Time
}

func (w *worker) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		w.request(fmt.Sprintf("%d-%d", w.number, n))
		w.check(time.Now().Add(-w.soak.grace))
		sleep(ctx, time.Duration(w.random.Int64N(int64(thinking))))
	}
}

func (w *worker) request(id string) {
	var (
		s    = w.soak.sites[w.random.IntN(len(w.soak.sites))]
		k    = kinds[w.random.IntN(len(kinds))]
		call = k.call(w.random)
		t    = &trail{}
	)
	call.ID, call.Answer = id, w.random.IntN(8<<10)
	if w.random.IntN(50) == 0 {
		call.Answer *= 50
	}
	ctx, cancel := mood(w.random)
	defer cancel()
	ctx = context.WithValue(ctx, trailKey{}, t)
	if k.opts != nil {
		ctx = retrip.Override(ctx, k.opts...)
	}
	weather := s.spell.Load().name
	w.started.Add(1)
	out := faults.Do(ctx, w.soak.client, s.url, call)
	if err := t.judge(out, ctx.Err()); err != nil {
		w.soak.complainOfACall(fmt.Errorf("%s %s: %w: %+v", k.name, id, err, out))
	}
	if t.gaveUp > 0 && t.reason == retrip.ReasonPolicy {
		w.soak.debugf("%s %s at %s (%s): final: %v", k.name, id, s.name, weather, out.Err)
	}
	for key, rows := range map[string]map[string]*count{weather: w.byWeather, k.name: w.byKind, s.name: w.byHost} {
		if rows[key] == nil {
			rows[key] = &count{}
		}
		rows[key].add(t.count)
	}
	w.pending = append(w.pending, deed{s, call, out, time.Now()})
}

// check compares the calls that were over at a time with the ledgers, which can then
// forget them.
func (w *worker) check(at time.Time) {
	for len(w.pending) > 0 && !w.pending[0].over.After(at) {
		d := w.pending[0]
		if err := d.site.Check(d.call, d.out); err != nil {
			w.soak.complainOfACall(err)
		}
		d.site.Forget(d.call.ID)
		w.pending[0] = deed{}
		w.pending = w.pending[1:]
	}
}
