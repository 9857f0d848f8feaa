package retrip

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// A Breaker says when requests to a host that keeps failing are refused at once,
// and when it is tried again. It has three states for each host: Closed, Open and
// HalfOpen.
//
// A failure is an attempt that ended in an error of the base, an attempt timeout or
// a 5xx that DefaultPolicy retries, or that the caller's deadline cut off after at
// least a second without response headers. Every other response is a success, 4xx
// included. The caller's cancellation, a request that cannot be sent, a failing
// request body and a breaker's refusal below are neither.
//
// The fields are taken literally; start from DefaultBreaker.
type Breaker struct {
	Failures int // failures in a row that open it; 0: no such rule

	// FailureRate opens it when, within Window, at least MinAttempts attempts ended
	// and this share of them failed. 0: no such rule. The window is kept in ten
	// parts, so that it is between nine and ten tenths of Window long.
	FailureRate float64
	Window      time.Duration
	MinAttempts int

	// Cooldowns are how long it stays Open: the first time, then each time that a
	// probe fails; the last repeats. Closing starts them anew.
	Cooldowns []time.Duration

	Probes    int // attempts that may be under way at once in HalfOpen
	Successes int // successes in a row in HalfOpen that close it
}

// DefaultBreaker is the breaker of a Transport without WithBreaker: it opens after
// 20 failures in a row, or when half of at least 20 attempts in 10 s failed, for 5,
// 10, 20 and 30 s, then 1, 2 and 5 min, so that a host that is back within minutes
// is found to be after about as long again; one probe at a time, and two successes
// close it.
func DefaultBreaker() Breaker {
	return Breaker{
		Failures:    20,
		FailureRate: 0.5,
		Window:      10 * time.Second,
		MinAttempts: 20,
		Cooldowns: []time.Duration{
			5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second,
			time.Minute, 2 * time.Minute, 5 * time.Minute,
		},
		Probes:    1,
		Successes: 2,
	}
}

// WithBreaker sets the breaker of each host. The default is DefaultBreaker; nil
// means that no host is ever refused.
//
// WithBreaker panics if a field makes no sense: a negative number, no cool-down or
// one that is not positive, fewer than one probe or success, neither Failures nor
// FailureRate, a FailureRate over 1 or without Window and MinAttempts.
func WithBreaker(b *Breaker) Option {
	if b == nil {
		return option(func(c *config) { c.breaker = nil })
	}
	if fault := b.fault(); fault != "" {
		panic(fmt.Sprintf("retrip: WithBreaker(%+v): %s", *b, fault))
	}
	copied := *b
	copied.Cooldowns = slices.Clone(b.Cooldowns)
	return option(func(c *config) { c.breaker = &copied })
}

func (b *Breaker) fault() string {
	switch {
	case b.Failures < 0:
		return "Failures is negative"
	case !(b.FailureRate >= 0 && b.FailureRate <= 1):
		return "FailureRate is not between 0 and 1"
	case b.Failures == 0 && b.FailureRate == 0:
		return "neither Failures nor FailureRate is set"
	case b.FailureRate > 0 && (b.Window < windowParts || b.MinAttempts < 1):
		return "FailureRate needs Window and MinAttempts"
	case len(b.Cooldowns) == 0 || slices.Min(b.Cooldowns) <= 0:
		return "Cooldowns must be there and positive"
	case b.Probes < 1:
		return "Probes is less than 1"
	case b.Successes < 1:
		return "Successes is less than 1"
	}
	return ""
}

// WithHosts sets how many hosts a Transport remembers, and what it takes for one
// host. Breaker, quota and statistics share the table. The default is 1,024 hosts,
// keyed by URL.Host in lower case, which is also what a nil key means.
//
// When the table is full the host used least recently is forgotten, those whose
// breaker is open last. A forgotten host is taken to be healthy and, should it come
// back, starts with half of the quota's Initial. key must be safe for concurrent
// use and must not change the request; it names the host in errors and statistics,
// so it should hold no secret.
//
// WithHosts panics if max is less than 1.
func WithHosts(max int, key func(*http.Request) string) Option {
	if max < 1 {
		panic(fmt.Sprintf("retrip: WithHosts(%d, …): fewer than one host", max))
	}
	return option(func(c *config) { c.maxHosts, c.hostKey = max, key })
}

// An OpenError says that a request, or a retry of one, was refused because the
// breaker of its host is open. The base was not called.
type OpenError struct {
	Host string

	// Until is when the host is tried again: the end of the cool-down or, while
	// other requests probe it, the time at which their slots are taken back at the
	// latest.
	Until time.Time
}

func (e *OpenError) Error() string {
	return fmt.Sprintf("retrip: breaker of %s is open until %s", e.Host, e.Until.Format(clockFormat))
}

// A State is the state of a host's breaker.
type State uint8

// The states of a breaker. Closed lets all attempts pass, Open none, HalfOpen a few
// probes.
const (
	Closed State = iota
	Open
	HalfOpen
)

func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case Open:
		return "open"
	case HalfOpen:
		return "half-open"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// HostStats is what a Transport knows of one host. The counts start when the host
// is first used, or used again after it was forgotten.
type HostStats struct {
	State State
	Until time.Time // the end of the cool-down if State is Open
	Trips int       // times in a row that the breaker opened without closing

	Requests  uint64 // calls of RoundTrip, those excepted whose context had ended before
	Attempts  uint64 // calls of the base that have returned
	Retries   uint64 // those among them that were not a request's first
	FirstTry  uint64 // requests answered at the first attempt
	Recovered uint64 // requests answered at a later one
	Refused   uint64 // attempts refused by the breaker

	Tokens   float64   // in the quota's bucket
	Capacity float64   // of the bucket; 0 without a quota
	Used     time.Time // when an attempt was last asked for
}

// Hosts returns the hosts that the Transport remembers and their state at the time
// of the call, the most recently used first.
func (t *Transport) Hosts() iter.Seq2[string, HostStats] {
	var all []*host
	var stats []HostStats
	if t.hosts != nil {
		all, stats = t.hosts.snapshot()
	}
	return func(yield func(string, HostStats) bool) {
		for i, h := range all {
			if !yield(h.name, stats[i]) {
				return
			}
		}
	}
}

// An outcome is what an attempt says about its host.
type outcome uint8

const (
	neutral    outcome = iota // nothing: cancelled, a local fault, never sent
	answered                  // the request is done with
	deferred                  // an answer that asks to come again: 408, 409 to a retry with its key, 413, 425
	throttled                 // the same, for overload: 429
	failed                    // by the host
	overloaded                // the same, and it says so: 503
)

func (o outcome) failure() bool { return o >= failed }

// refunds reports whether a success on the next attempt gives its token back: not
// if the host had too much to do.
func (o outcome) refunds() bool { return o != throttled && o != overloaded }

// judgeHost says what the attempt tells about the host.
func (c *call) judgeHost() outcome {
	if c.err == nil {
		return c.judgeStatus()
	}
	if c.fault {
		return neutral
	}
	switch c.ended() {
	case 0:
	case ReasonDeadline:
		// Else a host that hangs would never trip a breaker.
		if c.took >= time.Second {
			return failed
		}
		return neutral
	default:
		return neutral
	}
	if se, ok := errors.AsType[streamError](c.err); ok && se.Code == enhanceYourCalm {
		return overloaded
	}
	switch class, _ := classify(c.err); {
	case class == errLocal:
		return neutral
	case class == errUnknown && c.body == nil && readable(c.req.Body):
		return neutral // may be the body's, which nobody watches in a single attempt
	}
	return failed
}

// readable reports whether there is a body that can fail.
func readable(body io.Reader) bool {
	return body != nil && body != http.NoBody && !inMemory(body)
}

func (c *call) judgeStatus() outcome {
	switch status := c.resp.StatusCode; {
	case status < 400:
		return answered
	case status == http.StatusTooManyRequests:
		return throttled
	case status == http.StatusServiceUnavailable:
		return overloaded
	case status == http.StatusGatewayTimeout && onlyIfCached(c.req):
		return answered
	case serverFailed(status):
		return failed
	case DefaultPolicy(c.seen()):
		return deferred
	}
	return answered
}

// windowParts is how many parts the window of the failure rate has. Ten of them
// are a host's largest field; a finer window would not trip better.
const windowParts = 10

type windowPart struct{ ended, failed uint32 }

// A host is what a Transport knows of one host. The table's lock guards it.
type host struct {
	name string
	used time.Duration // on the Transport's clock
	turn uint64        // of its last use: orders the hosts of both lists
	quota

	state     State
	trips     int32
	row       int32         // failures in a row while Closed, successes while HalfOpen
	era       uint32        // counts changes of state: results of an earlier one are dropped
	until     time.Duration // end of the cool-down
	slots     []slot        // probes under way
	serial    uint32        // of the last probe
	part      int64         // number of the window's newest part
	window    [windowParts]windowPart
	requests  uint64
	attempts  uint64
	retries   uint64
	firstTry  uint64
	recovered uint64
	refused   uint64

	moves *moves // changes of state to be told; nil when nobody listens
}

// A slot is one probe's.
type slot struct {
	serial uint32
	since  time.Duration
}

// A ticket admits one attempt, and ties its result to the state it was admitted in.
type ticket struct {
	era    uint32
	serial uint32 // 0: not a probe
	moves  bool   // changes of the host's state are waiting to be told
}

func (t ticket) probe() bool { return t.serial != 0 }

// moves are a host's changes of state on their way to the hooks: queued in order,
// delivered without the lock by whichever request finds nobody delivering.
type moves struct {
	queue      []move
	delivering bool
}

type move struct {
	hooks *settings
	info  BreakerMovedInfo
}

// hosts is the table of a Transport's hosts.
//
// One lock guards the two lists and all that is in them; it is held for arithmetic
// only. A host is in open while its breaker is Open, else in healthy, so that
// the first to be forgotten is found at once.
type hosts struct {
	key     func(*http.Request) string // nil: URL.Host in lower case
	max     int
	breaker *Breaker     // nil: none
	limits  *quotaLimits // nil: none
	epoch   time.Time    // zero of the Transport's clock

	mu      sync.Mutex
	healthy *simplelru.LRU[string, *host]
	open    *simplelru.LRU[string, *host]
	turn    uint64 // counts uses
	forgot  bool   // a host was forgotten: any new one may be it
}

func newHosts(c *config, epoch time.Time) *hosts {
	h := &hosts{key: c.hostKey, max: c.maxHosts, breaker: c.breaker, limits: c.quota, epoch: epoch}
	// One more than max: making room is ours, the lists never drop anybody.
	h.healthy, _ = simplelru.NewLRU[string, *host](h.max+1, nil)
	h.open, _ = simplelru.NewLRU[string, *host](h.max+1, nil)
	return h
}

// admit asks whether an attempt may be made. On refusal it returns an *OpenError.
func (t *hosts) admit(name string, first bool, now time.Duration, hooks *settings) (*host, ticket, error) {
	t.mu.Lock()
	// The keys are in lower case, and so are nearly all names.
	h, ok := t.healthy.Get(name)
	if !ok {
		h = t.getLocked(t.fold(name), now)
	}
	t.turn++
	h.used, h.turn = now, t.turn
	if first {
		h.requests++
	}
	if h.state == Closed {
		k := ticket{era: h.era, moves: h.moves != nil}
		t.mu.Unlock()
		return h, k, nil
	}
	defer t.mu.Unlock()
	k, err := t.admitProbeLocked(h, now, hooks)
	k.moves = h.moves != nil
	return h, k, err
}

func (t *hosts) fold(name string) string {
	if t.key != nil {
		return name
	}
	return strings.ToLower(name)
}

func (t *hosts) getLocked(name string, now time.Duration) *host {
	if h, ok := t.healthy.Get(name); ok {
		return h
	}
	if h, ok := t.open.Get(name); ok {
		return h
	}
	if t.healthy.Len()+t.open.Len() >= t.max {
		t.forgetLocked(now)
	}
	// The name may be a part of a long URL, which it would keep alive.
	h := &host{name: strings.Clone(name)}
	if t.limits != nil {
		h.level = t.limits.initial
		if t.forgot {
			h.level /= 2
		}
	}
	t.healthy.Add(h.name, h)
	return h
}

// forgetLocked makes room for one host. One that is open but could be probed counts
// as healthy.
func (t *hosts) forgetLocked(now time.Duration) {
	t.forgot = true
	_, victim, _ := t.healthy.GetOldest()
	for _, h := range t.open.Values() {
		if h.until <= now {
			if victim == nil || h.turn < victim.turn {
				victim = h
			}
			break
		}
	}
	if victim == nil {
		_, victim, _ = t.open.GetOldest()
	}
	if !t.healthy.Remove(victim.name) {
		t.open.Remove(victim.name)
	}
}

func (t *hosts) admitProbeLocked(h *host, now time.Duration, hooks *settings) (ticket, error) {
	if h.state == Open {
		if now < h.until {
			h.refused++
			return ticket{}, &OpenError{Host: h.name, Until: t.epoch.Add(h.until)}
		}
		t.moveLocked(h, HalfOpen, now, hooks)
	}
	// A probe that never came back must not block the host for ever.
	lost := now - t.cooldown(h)
	h.slots = slices.DeleteFunc(h.slots, func(s slot) bool { return s.since <= lost })
	if len(h.slots) >= t.breaker.Probes {
		h.refused++
		return ticket{}, &OpenError{Host: h.name, Until: t.epoch.Add(h.slots[0].since + t.cooldown(h))}
	}
	h.serial++
	h.slots = append(h.slots, slot{h.serial, now})
	return ticket{era: h.era, serial: h.serial}, nil
}

// cooldown is the one that h is in, or was in last.
func (t *hosts) cooldown(h *host) time.Duration {
	return t.breaker.Cooldowns[min(max(int(h.trips), 1), len(t.breaker.Cooldowns))-1]
}

// refuses reports whether the breaker will still refuse at a time to come.
func (t *hosts) refuses(h *host, at time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return h.state == Open && at < h.until
}

// settle takes an attempt's result. number is the attempt's, or 0 if it never
// reached the base; refund says that a success gives its token back. It reports
// whether changes of the host's state are waiting to be told.
func (t *hosts) settle(h *host, k ticket, o outcome, number int, refund bool, now time.Duration, hooks *settings) (moves bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if number > 0 {
		h.attempts++
	}
	if number > 1 {
		h.retries++
	}
	if o == answered {
		t.creditLocked(h, number == 1, refund)
	}
	if t.breaker != nil && k.era == h.era && (k.probe() || o != neutral) {
		t.judgeLocked(h, k, o, now, hooks)
	}
	return h.moves != nil
}

func (t *hosts) judgeLocked(h *host, k ticket, o outcome, now time.Duration, hooks *settings) {
	if k.probe() {
		t.settleProbeLocked(h, k, o, now, hooks)
		return
	}
	t.countLocked(h, o.failure(), now)
	if !o.failure() {
		h.row = 0
		return
	}
	h.row++
	if t.tripsLocked(h) {
		t.moveLocked(h, Open, now, hooks)
	}
}

// creditLocked counts a success, and earns its tokens.
func (t *hosts) creditLocked(h *host, first, refund bool) {
	earned := int64(0)
	switch {
	case first:
		h.firstTry++
		if t.limits != nil {
			earned = t.limits.earn
		}
	case refund:
		earned = token
		fallthrough
	default:
		h.recovered++
	}
	if t.limits != nil {
		h.earn(t.limits, earned)
	}
}

func (t *hosts) settleProbeLocked(h *host, k ticket, o outcome, now time.Duration, hooks *settings) {
	i := slices.IndexFunc(h.slots, func(s slot) bool { return s.serial == k.serial })
	if i < 0 {
		return // its slot was taken back: the result comes too late
	}
	h.slots = slices.Delete(h.slots, i, i+1)
	switch {
	case o == neutral:
	case o.failure():
		t.moveLocked(h, Open, now, hooks)
	default:
		if h.row++; int(h.row) >= t.breaker.Successes {
			t.moveLocked(h, Closed, now, hooks)
		}
	}
}

// countLocked adds a result to the window of the failure rate.
func (t *hosts) countLocked(h *host, failure bool, now time.Duration) {
	if t.breaker.FailureRate == 0 {
		return
	}
	part := int64(now / (t.breaker.Window / windowParts))
	if part-h.part >= windowParts {
		h.window = [windowParts]windowPart{}
		h.part = part
	}
	for h.part < part {
		h.part++
		h.window[h.part%windowParts] = windowPart{}
	}
	p := &h.window[part%windowParts]
	p.ended++
	if failure {
		p.failed++
	}
}

func (t *hosts) tripsLocked(h *host) bool {
	b := t.breaker
	if b.Failures > 0 && int(h.row) >= b.Failures {
		return true
	}
	if b.FailureRate == 0 {
		return false
	}
	ended, failed := 0, 0
	for _, p := range h.window {
		ended += int(p.ended)
		failed += int(p.failed)
	}
	return ended >= b.MinAttempts && float64(failed)/float64(ended) >= b.FailureRate
}

// moveLocked changes the state and keeps the lists in step with it.
func (t *hosts) moveLocked(h *host, to State, now time.Duration, hooks *settings) {
	info := BreakerMovedInfo{Host: h.name, From: h.state, To: to}
	wasOpen := h.state == Open
	h.state = to
	h.era++
	h.row = 0
	h.slots = nil
	switch to {
	case Open:
		h.trips++
		h.until = now + t.cooldown(h)
		h.window = [windowParts]windowPart{}
		info.Until, info.Trips = t.epoch.Add(h.until), int(h.trips)
		relist(h, t.healthy, t.open)
	case Closed:
		h.trips = 0
	}
	if wasOpen {
		relist(h, t.open, t.healthy)
	}
	if hooks.listens() {
		if h.moves == nil {
			h.moves = &moves{}
		}
		h.moves.queue = append(h.moves.queue, move{hooks, info})
	}
}

// relist moves a host from one list to the other, unless it was forgotten: then
// the name may by now stand for another.
func relist(h *host, from, to *simplelru.LRU[string, *host]) {
	if listed, ok := from.Peek(h.name); ok && listed == h {
		from.Remove(h.name)
		to.Add(h.name, h)
	}
}

// tell delivers the changes of state that are waiting, with no lock held.
func (t *hosts) tell(h *host) {
	for {
		t.mu.Lock()
		m := h.moves
		if m == nil || m.delivering {
			t.mu.Unlock()
			return
		}
		if len(m.queue) == 0 {
			h.moves = nil
			t.mu.Unlock()
			return
		}
		next := m.queue[0]
		m.queue = m.queue[1:]
		m.delivering = true
		t.mu.Unlock()
		t.deliver(m, next)
	}
}

func (t *hosts) deliver(m *moves, next move) {
	defer func() { // also if a hook panics
		t.mu.Lock()
		m.delivering = false
		t.mu.Unlock()
	}()
	next.hooks.breakerMoved(next.info)
}

// pay takes the token for a retry. It reports whether there was one.
func (t *hosts) pay(h *host, now time.Duration) (fare, bool) {
	if t.limits == nil {
		return unpaid, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return h.take(t.limits, now)
}

func (t *hosts) refund(h *host, f fare, now time.Duration) {
	if f == unpaid {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	h.giveBack(t.limits, f, now)
}

func (t *hosts) snapshot() ([]*host, []HostStats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Concat(t.healthy.Values(), t.open.Values())
	slices.SortFunc(all, func(a, b *host) int { return cmp.Compare(b.turn, a.turn) })
	stats := make([]HostStats, len(all))
	for i, h := range all {
		stats[i] = HostStats{
			State: h.state, Trips: int(h.trips),
			Requests: h.requests, Attempts: h.attempts, Retries: h.retries, FirstTry: h.firstTry, Recovered: h.recovered, Refused: h.refused,
			Tokens: float64(h.level) / token, Used: t.epoch.Add(h.used),
		}
		if t.limits != nil {
			stats[i].Capacity = float64(t.limits.capacity) / token
		}
		if h.state == Open {
			stats[i].Until = t.epoch.Add(h.until)
		}
	}
	return all, stats
}
