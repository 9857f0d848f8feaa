package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip-go/retrip"
)

// chains returns the first six pauses of one request, many times over.
func chains(n int, backoff func() retrip.Backoff) [6][]float64 {
	var all [6][]float64
	for range n {
		b, last := backoff(), time.Duration(0)
		for i := range all {
			last = b(i+1, last)
			all[i] = append(all[i], last.Seconds())
		}
	}
	return all
}

func TestSeededPausesAreDrawnLikeTheirModels(t *testing.T) {
	t.Parallel()
	base, limit := 100*time.Millisecond, time.Second
	for kind, model := range map[string]retrip.Backoff{
		"none":         retrip.Exponential(base, limit),
		"constant":     retrip.Constant(base),
		"full":         retrip.FullJitter(base, limit),
		"equal":        retrip.EqualJitter(base, limit),
		"decorrelated": retrip.DecorrelatedJitter(base, limit),
		"spread":       retrip.Spread(retrip.Exponential(base, limit), 0.2),
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 0))
			ours := chains(50_000, func() retrip.Backoff { return samplers[kind](pause{kind, base, limit}, r) })
			theirs := chains(50_000, func() retrip.Backoff { return model })
			for i := range ours {
				requireAlike(t, theirs[i], ours[i])
			}
		})
	}
}

// requireAlike compares the ends and the quarters of two samples, to a twelfth of their
// range.
func requireAlike(t *testing.T, want, got []float64) {
	t.Helper()
	slices.Sort(want)
	slices.Sort(got)
	last := len(want) - 1
	near := (want[last]-want[0])/12 + 1e-9
	for _, i := range []int{0, last / 4, last / 2, 3 * last / 4, last} {
		require.InDelta(t, want[i], got[i], near, "the %dth of %d", i, last)
	}
}

func TestASeededHintIsSpreadLikeTheTransportsOwn(t *testing.T) {
	t.Parallel()
	for _, asked := range []time.Duration{10 * time.Second, 80 * time.Second} {
		t.Run(asked.String(), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 0))
			var ours []float64
			for range 5_000 {
				ours = append(ours, hintSpread(pause{"hint+spread", asked, asked}, r)(1, 0).Seconds())
			}
			requireAlike(t, hinted(t, 5_000, asked), ours)
		})
	}
}

// hinted returns when Transports come back that were asked to wait.
func hinted(t *testing.T, n int, asked time.Duration) []float64 {
	var back []float64
	enter(t, seed, func(w *world) {
		var mu sync.Mutex
		rt := retrip.New(hinting{w, asked, func(at time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			back = append(back, at.Seconds())
		}}, retrip.WithRetryQuota(nil), retrip.WithBreaker(nil))
		for range n {
			w.wg.Go(func() {
				req, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://server/", nil)
				_, _ = rt.RoundTrip(req)
			})
		}
		w.wg.Wait()
	})
	require.Len(t, back, n)
	return back
}

// A hinting server asks each request to come back once.
type hinting struct {
	w     *world
	asked time.Duration
	came  func(time.Duration)
}

func (h hinting) RoundTrip(*http.Request) (*http.Response, error) {
	resp := &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody}
	if now := h.w.now(); now > 0 {
		h.came(now)
		resp.StatusCode = 200
	} else {
		resp.Header.Set("Retry-After", strconv.Itoa(int(h.asked.Seconds())))
	}
	return resp, nil
}

func TestPausesOfOneWorldEndAtInstantsOfTheirOwn(t *testing.T) {
	t.Parallel()
	enter(t, seed, func(w *world) {
		ends := map[time.Duration]bool{}
		for range 1_000 {
			ends[w.now()+pause{kind: "constant", base: time.Second}.backoff(w, w.chance(1))(1, 0)] = true
		}
		require.Len(t, ends, 1_000)
		for at := range ends {
			require.Zero(t, at%2)
			require.InDelta(t, time.Second, at, 2_000)
		}
	})
}
