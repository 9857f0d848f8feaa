package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/faults"
)

// A count is what became of a number of requests.
type count struct {
	requests int
	right    int // answers right in every byte
	cut      int // right, as far as they came
	reasons  [retrip.ReasonQuota + 1]int

	attempts  int
	paid      int // retries that drew on the quota
	free      int // the others
	refunds   int // successes that gave a token back
	firstTry  int
	recovered int
	refused   int // by the breaker
	unsent    int // requests that were over before an attempt reached the base
}

func (c *count) add(o count) {
	c.requests += o.requests
	c.right += o.right
	c.cut += o.cut
	for i, n := range o.reasons {
		c.reasons[i] += n
	}
	c.attempts += o.attempts
	c.paid += o.paid
	c.free += o.free
	c.refunds += o.refunds
	c.firstTry += o.firstTry
	c.recovered += o.recovered
	c.refused += o.refused
	c.unsent += o.unsent
}

// accounted is how many requests came to an end that has a name.
func (c *count) accounted() int {
	sum := c.right + c.cut
	for _, n := range c.reasons {
		sum += n
	}
	return sum
}

// allowance is the most paid retries to one host that the quota lets through in a time.
// Each has its token from the bucket or from the reserve. Into the bucket came Initial
// tokens, Earn for each first try that succeeded and one for each refund; what it could
// not hold only makes it less. The reserve has one at once and then Reserve a second.
// What a retry gives back that never reached the base was taken before, and neither is
// counted.
func (c *count) allowance(q retrip.Quota, d time.Duration) float64 {
	return q.Initial + q.Earn*float64(c.firstTry) + float64(c.refunds) + 1 + q.Reserve*d.Seconds()
}

// A trail is what the hooks see of one request. They run on its caller's goroutine, so
// that it needs no lock; one would keep the race detector from seeing the Transport's
// races.
type trail struct {
	count
	gaveUp    int
	reason    retrip.Reason
	misnumber bool // the attempts were not numbered 1, 2, 3

	// Of the retry that was decided.
	isFree    bool
	usedFree  bool
	throttled bool // by the attempt before
}

type trailKey struct{}

func trailOf(r *http.Request) *trail { return r.Context().Value(trailKey{}).(*trail) }

// trace returns the hooks.
func (s *soak) trace() *retrip.Trace {
	return &retrip.Trace{
		Attempted: func(i retrip.AttemptedInfo) {
			if s.inTime() {
				trailOf(i.Attempt.Request).attempted(i.Attempt)
			}
		},
		Pausing: func(i retrip.PausingInfo) {
			if s.inTime() {
				trailOf(i.Attempt.Request).pausing(i.Attempt)
			}
		},
		GaveUp: func(i retrip.GaveUpInfo) {
			if s.inTime() {
				trailOf(i.Attempt.Request).gave(i)
			}
		},
		BreakerMoved: func(i retrip.BreakerMovedInfo) {
			if s.inTime() {
				s.moves[i.Host].moved(i)
				s.debugf("%s: %v -> %v", i.Host, i.From, i.To)
			}
		},
	}
}

// inTime reports whether a hook may be called, and counts those that may not.
func (s *soak) inTime() bool {
	over := s.over.Load()
	if over {
		s.late.Add(1)
	}
	return !over
}

func (t *trail) attempted(a retrip.Attempt) {
	t.attempts++
	t.misnumber = t.misnumber || a.Number != t.attempts
	retry := a.Number > 1
	switch {
	case retry && t.isFree:
		t.free++
	case retry:
		t.paid++
	}
	if a.Err != nil || busy(a.Response.StatusCode) {
		return
	}
	switch {
	case !retry:
		t.firstTry++
	case !t.isFree && !t.throttled:
		t.refunds++
		fallthrough
	default:
		t.recovered++
	}
}

// busy reports whether a status says to come again, of those that servers here have.
func busy(status int) bool { return status >= 500 || status == 429 }

func (t *trail) pausing(a retrip.Attempt) {
	op, ok := errors.AsType[*net.OpError](a.Err)
	t.isFree = ok && op.Op == "dial" && a.Idempotent() && !t.usedFree
	t.usedFree = t.usedFree || t.isFree
	t.throttled = a.Response != nil && (a.Response.StatusCode == 429 || a.Response.StatusCode == 503)
}

func (t *trail) gave(i retrip.GaveUpInfo) {
	t.gaveUp++
	t.reason = i.Reason
	_, refused := errors.AsType[*retrip.OpenError](i.Err)
	switch {
	case refused:
		t.refused++
	case i.Attempt.Number == 0 && (i.Reason == retrip.ReasonCancelled || i.Reason == retrip.ReasonDeadline):
		t.unsent++
	}
}

// judge names the end that a request came to, and returns what the hooks and the
// caller disagree about. ended is why its context is over, nil if it is not.
func (t *trail) judge(out faults.Outcome, ended error) error {
	t.requests = 1
	right := out.Err == nil && out.Status == 200
	switch {
	case t.gaveUp > 1:
		return errors.New("it was given up more than once")
	case t.gaveUp == 1 && out.Status == 200:
		return errors.New("it was given up and succeeded")
	case t.gaveUp == 1:
		t.reasons[t.reason]++
	case right:
		t.right++
	case out.Broken && out.Status == 200:
		t.cut++
	case busy(out.Status) && errors.Is(ended, context.Canceled):
		t.reasons[retrip.ReasonCancelled]++ // the policy wants nothing for a caller who has gone
	case busy(out.Status) && errors.Is(ended, context.DeadlineExceeded):
		t.reasons[retrip.ReasonDeadline]++
	default:
		return errors.New("it neither succeeded nor was it given up")
	}
	told, ok := errors.AsType[*retrip.Error](out.Err)
	switch {
	case t.misnumber:
		return errors.New("its attempts are not numbered in order")
	case out.Status != 0 && out.Attempts != t.attempts || ok && len(told.Attempts) != t.attempts:
		return errors.New("its history tells of another number of attempts than the hooks")
	case !ok || out.Broken:
		return nil
	case told.Reason != t.reason:
		return errors.New("its error has another reason than the hooks")
	case t.reason == retrip.ReasonCancelled && !errors.Is(told, context.Canceled),
		t.reason == retrip.ReasonDeadline && !errors.Is(told, context.DeadlineExceeded):
		return errors.New("its error does not match that of its context")
	}
	return nil
}

// moves follows the breaker of one host. The Transport calls its hook once at a time,
// which the race detector holds it to.
type moves struct {
	state  retrip.State
	opened int
	wrong  int // changes that cannot be, or not after the one before
}

func (m *moves) moved(i retrip.BreakerMovedInfo) {
	legal := map[retrip.State][]retrip.State{
		retrip.Closed:   {retrip.Open},
		retrip.Open:     {retrip.HalfOpen},
		retrip.HalfOpen: {retrip.Open, retrip.Closed},
	}
	known := false
	for _, to := range legal[i.From] {
		known = known || to == i.To
	}
	if i.From != m.state || !known {
		m.wrong++
	}
	if m.state = i.To; i.To == retrip.Open {
		m.opened++
	}
}
