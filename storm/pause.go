package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/retrip-go/retrip"
)

// A pause names one of retrip's backoffs.
type pause struct {
	kind        string
	base, limit time.Duration
}

// A sampler makes one of the backoffs with its chance taken from r: retrip's own draw from a
// source that cannot be seeded. Their formulas are the same, which a test holds them to.
type sampler func(p pause, r *rand.Rand) retrip.Backoff

var samplers = map[string]sampler{
	"none":         func(p pause, _ *rand.Rand) retrip.Backoff { return retrip.Exponential(p.base, p.limit) },
	"constant":     func(p pause, _ *rand.Rand) retrip.Backoff { return retrip.Constant(p.base) },
	"full":         fullJitter,
	"equal":        equalJitter,
	"decorrelated": decorrelatedJitter,
	"spread":       spread,
	"hint":         func(p pause, _ *rand.Rand) retrip.Backoff { return retrip.Constant(p.base) },
	"hint+spread":  hintSpread,
}

// kinds are the names that -backoff takes.
func kinds() string {
	all := slices.Collect(func(yield func(string) bool) {
		for kind := range samplers {
			if !yield(kind) {
				return
			}
		}
	})
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (p pause) String() string {
	switch p.kind {
	case "constant", "hint", "hint+spread":
		return fmt.Sprintf("%s %v", p.kind, p.base)
	}
	return fmt.Sprintf("%s %v to %v", p.kind, p.base, p.limit)
}

// backoff returns the pauses of one request in w.
func (p pause) backoff(w *world, r *rand.Rand) retrip.Backoff {
	drawn := samplers[p.kind](p, r)
	last := time.Duration(0) // as it was drawn
	return func(retry int, _ time.Duration) time.Duration {
		last = drawn(retry, last)
		now := w.now()
		return w.reserve(now+last) - now
	}
}

func fullJitter(p pause, r *rand.Rand) retrip.Backoff {
	ceiling := retrip.Exponential(p.base, p.limit)
	return func(retry int, last time.Duration) time.Duration {
		return within(r, 0, ceiling(retry, last))
	}
}

func equalJitter(p pause, r *rand.Rand) retrip.Backoff {
	ceiling := retrip.Exponential(p.base, p.limit)
	return func(retry int, last time.Duration) time.Duration {
		d := ceiling(retry, last)
		return within(r, d-d/2, d)
	}
}

func decorrelatedJitter(p pause, r *rand.Rand) retrip.Backoff {
	return func(_ int, last time.Duration) time.Duration {
		return min(p.limit, within(r, p.base, 3*max(p.base, last)))
	}
}

// spread is retrip.Spread by 20 % of retrip.Exponential.
func spread(p pause, r *rand.Rand) retrip.Backoff {
	plain := retrip.Exponential(p.base, p.limit)
	return func(retry int, last time.Duration) time.Duration {
		return time.Duration(float64(plain(retry, last)) * (0.8 + 0.4*r.Float64()))
	}
}

// hintSpread is what a Transport makes of "Retry-After: base".
func hintSpread(p pause, r *rand.Rand) retrip.Backoff {
	return func(int, time.Duration) time.Duration {
		return p.base + within(r, 0, min(p.base/10, 5*time.Second))
	}
}

func within(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

// checked returns p, or why it makes no sense.
func (p pause) checked() (pause, error) {
	if _, ok := samplers[p.kind]; !ok {
		return p, fmt.Errorf("-backoff %s: there is no such; there are %s", p.kind, kinds())
	}
	if p.base < 0 {
		return p, fmt.Errorf("-base %v: negative", p.base)
	}
	p.limit = cmp.Or(p.limit, p.base)
	if p.limit < p.base {
		return p, fmt.Errorf("-cap %v is less than -base %v", p.limit, p.base)
	}
	return p, nil
}
