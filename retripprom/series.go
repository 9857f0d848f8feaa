package retripprom

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/retrip-go/retrip"
)

// A group is what is exported of the Transports of one name.
type group struct {
	name   string
	limits hostLimits
	pauses *prometheus.HistogramVec

	// The Collector's lock guards the slice, which is replaced and not changed.
	transports []*retrip.Transport

	adding sync.Mutex
	known  atomic.Pointer[map[string]*series] // by label; replaced under adding
}

func newGroup(name string, limits hostLimits, pauses *prometheus.HistogramVec) *group {
	g := &group{name: name, limits: limits, pauses: pauses}
	g.known.Store(&map[string]*series{})
	return g
}

// A series counts what happened with the hosts of one label.
type series struct {
	label string

	attempts  [outcomes]atomic.Uint64
	retries   atomic.Uint64
	firstTry  atomic.Uint64
	recovered atomic.Uint64
	gaveUp    [reasons]atomic.Uint64
	refused   atomic.Uint64
	trips     atomic.Uint64

	// pauses makes the histogram when it is first asked for: it is most of what is
	// exported for a host, and most hosts never see a pause.
	pauses func() prometheus.Observer
}

func newSeries(name, label string, pauses *prometheus.HistogramVec) *series {
	return &series{label: label, pauses: sync.OnceValue(func() prometheus.Observer {
		return pauses.WithLabelValues(name, label)
	})}
}

// reasons is one more than the last retrip.Reason; the ones that a later retrip may
// have are counted at 0.
const reasons = retrip.ReasonQuota + 1

// trace has the hooks that count.
func (g *group) trace() *retrip.Trace {
	return &retrip.Trace{
		Attempted: func(i retrip.AttemptedInfo) { g.of(i.Host).attempted(i) },
		Pausing:   func(i retrip.PausingInfo) { g.of(i.Host).pauses().Observe(i.Attempt.Pause.Seconds()) },
		GaveUp:    func(i retrip.GaveUpInfo) { g.of(i.Host).stopped(i) },
		BreakerMoved: func(i retrip.BreakerMovedInfo) {
			if i.To == retrip.Open {
				g.of(i.Host).trips.Add(1)
			}
		},
	}
}

func (s *series) attempted(i retrip.AttemptedInfo) {
	s.attempts[outcomeOf(i.Attempt)].Add(1)
	if i.Attempt.Number > 1 {
		s.retries.Add(1)
	}
	switch {
	case !i.Answered:
	case i.Attempt.Number == 1:
		s.firstTry.Add(1)
	default:
		s.recovered.Add(1)
	}
}

func (s *series) stopped(i retrip.GaveUpInfo) {
	reason := i.Reason
	if reason >= reasons {
		reason = 0
	}
	s.gaveUp[reason].Add(1)
	if refused(i) {
		s.refused.Add(1)
	}
}

// refused reports whether the request ended because the breaker did not admit an
// attempt. The reason does not tell: it is the same if a pause would end while the
// breaker is open. Nor does the error alone: an attempt that was made may have been
// refused by a Transport below, but then its error is the one on record.
func refused(i retrip.GaveUpInfo) bool {
	open, ok := errors.AsType[*retrip.OpenError](i.Attempt.Err)
	if !ok {
		return false
	}
	if n := len(i.Attempts); n > 0 {
		below, _ := errors.AsType[*retrip.OpenError](i.Attempts[n-1].Err)
		return open != below
	}
	return true
}
