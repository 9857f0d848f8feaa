package retrip

import (
	"fmt"
	"math"
	"time"
)

// WithBudget limits the wall-clock time of one RoundTrip, from its start to the
// start of its last attempt: pauses and all attempts but the last count. The
// default is 90 s, so that a "Retry-After: 60" can be honoured; a caller without a
// deadline may wait that long. Zero allows no retry, and then nothing is added to
// the request. For no limit use math.MaxInt64.
//
// A pause that does not fit is neither begun nor shortened: the response, or the
// error, is handed back at once. An attempt that is under way when the budget ends
// goes on; see WithAttemptTimeout.
//
// WithBudget panics if d is negative.
func WithBudget(d time.Duration) CallOption {
	if d < 0 {
		panic(fmt.Sprintf("retrip: WithBudget(%v): the budget is negative", d))
	}
	return callOption(func(s *settings) { s.budget = d })
}

// schedule decides the pause, and asks everything that limits retries whether it
// fits; what costs something comes last. Zero means that the retry is on.
func (c *call) schedule() Reason {
	switch {
	case c.n >= c.s.maxAttempts:
		return ReasonAttempts
	case c.s.budget == 0:
		return ReasonBudget
	case c.single: // a tunnel, or a retry of a Transport above
		return ReasonAttempts
	case c.body != nil && !c.body.replayable():
		return ReasonBody
	}
	c.decidePause()
	now := c.now()
	room := c.s.budget - (now - c.start)
	if c.pause >= room {
		return ReasonBudget
	}
	if deadline, ok := c.ctx.Deadline(); ok {
		left := time.Until(deadline)
		if c.pause >= left {
			return ReasonDeadline
		}
		room = min(room, left)
	}
	if c.asked {
		c.pause += min(between(0, jitter(c.pause)), room-c.pause-1)
	}
	return c.afford(now)
}

// afford asks the host's breaker and quota.
func (c *call) afford(now time.Duration) Reason {
	if c.t.hosts == nil {
		return 0
	}
	if c.ticket.probe() || c.t.hosts.refuses(c.host, now+c.pause) {
		return ReasonBreaker
	}
	// Nothing was sent: the host's load does not grow by it.
	if !c.free && c.repeatable && c.err != nil && dialFailed(c.err) {
		c.free = true
		return 0
	}
	var ok bool
	if c.fare, ok = c.t.hosts.pay(c.host, now); !ok {
		return ReasonQuota
	}
	c.payer = c.host
	return 0
}

// decidePause sets the pause that the server asked for or, if it asked for none,
// the backoff's.
func (c *call) decidePause() {
	c.pause, c.asked = c.seen().RetryAfter()
	if c.asked = c.asked && c.pause > 0; c.asked {
		return
	}
	c.pause = 0
	if c.s.backoff != nil {
		c.pause = max(0, c.s.backoff(c.n, c.backoff))
	}
	c.backoff = c.pause
}

// A Quota is how much the retries to one host may add to its load, whoever asks
// for them: a bucket of tokens that each retry draws on, so that a host in trouble
// is not brought down by those who help it with retries.
//
// Tokens are earned by successes, never by requests sent: a quota that grows with
// the traffic does not let an overloaded host recover ("Metastable Failures in
// the Wild", OSDI 2022). A request that succeeds at once earns Earn. One that
// succeeds on a retry gets its last token back, unless it was throttled (429, 503)
// before. A retry that never reached the base costs nothing; one after a failed
// dial of an idempotent request is free, once a request.
//
// The fields are taken literally; start from DefaultQuota.
type Quota struct {
	Capacity float64 // the most tokens the bucket holds
	Initial  float64 // what it holds at first, at most Capacity
	Earn     float64 // tokens for a request that succeeds at once

	// Reserve is how many retries a second may be made when the bucket is empty,
	// one at a time, so that a quiet client can retry at all. A fleet of N clients
	// adds up to N times as many.
	Reserve float64
}

// DefaultQuota is the quota of a Transport without WithRetryQuota: 20 tokens, 10 at
// first, 0.1 for a success, and a retry every 10 s in reserve. In the long run it
// adds a tenth to the load of a host that fails for good.
func DefaultQuota() Quota { return Quota{Capacity: 20, Initial: 10, Earn: 0.1, Reserve: 0.1} }

// WithRetryQuota sets the quota of each host. The default is DefaultQuota; nil
// means that retries are not limited in this way. A request that is stopped by
// the quota hands back its response or error unchanged, with ReasonQuota for the
// Trace.
//
// WithRetryQuota panics if a field is negative, not a number or over a million, or
// if Initial is over Capacity.
func WithRetryQuota(q *Quota) Option {
	if q == nil {
		return option(func(c *config) { c.quota = nil })
	}
	const most = 1e6
	for _, v := range []float64{q.Capacity, q.Initial, q.Earn, q.Reserve} {
		if !(v >= 0 && v <= most) {
			panic(fmt.Sprintf("retrip: WithRetryQuota(%+v): want fields between 0 and %g", *q, most))
		}
	}
	if q.Initial > q.Capacity {
		panic(fmt.Sprintf("retrip: WithRetryQuota(%+v): Initial is over Capacity", *q))
	}
	limits := &quotaLimits{capacity: tokens(q.Capacity), initial: tokens(q.Initial), earn: tokens(q.Earn)}
	if q.Reserve > 0 {
		limits.every = time.Duration(min(math.Ceil(float64(time.Second)/q.Reserve), math.MaxInt64/2))
	}
	return option(func(c *config) { c.quota = limits })
}

// A token is counted in millionths, since ten times 0.1 in floating point is less
// than one.
const token = 1_000_000

func tokens(n float64) int64 { return int64(math.Round(n * token)) }

type quotaLimits struct {
	capacity, initial, earn int64
	every                   time.Duration // between two retries on the reserve; 0: none
}

// A quota is the state of one host's Quota. The table's lock guards it.
type quota struct {
	level int64
	next  time.Duration // when the reserve has a token, on the Transport's clock
}

// A fare says where the token of a retry came from, so that it can go back there.
type fare uint8

const (
	unpaid fare = iota // free, or no quota
	fromBucket
	fromReserve
)

func (q *quota) take(l *quotaLimits, now time.Duration) (fare, bool) {
	switch {
	case q.level >= token:
		q.level -= token
		return fromBucket, true
	case l.every > 0 && now >= q.next:
		q.next = now + l.every
		return fromReserve, true
	}
	return unpaid, false
}

// giveBack undoes a take.
func (q *quota) giveBack(l *quotaLimits, f fare, now time.Duration) {
	switch f {
	case fromBucket:
		q.level = min(q.level+token, l.capacity)
	case fromReserve:
		q.next = min(q.next, now)
	}
}

// earn pays for a success.
func (q *quota) earn(l *quotaLimits, n int64) { q.level = min(q.level+n, l.capacity) }
