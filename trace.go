package retrip

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"time"
)

// A Trace is a set of hooks into the course of requests. Any of them may be nil.
// They are called on the goroutine of the RoundTrip, which waits for them, with no
// lock held; several requests may call them at once. They must not read or close
// a response's body. A hook that panics ends its request: everything the request
// held is given back and the panic passes through.
type Trace struct {
	// Attempting is called before each attempt that will reach the base. The context
	// that it returns is the attempt's, for the base and what is below it. It must be
	// that which it is given, or one derived from it: that is the
	// request's for the first attempt, and the previous attempt's after it. With
	// several Traces each gets what the one before returned.
	Attempting func(context.Context, AttemptingInfo) context.Context

	// Attempted is called after each attempt that reached the base. If the base
	// panicked it is the last hook of its request: the Err says so, and the panic
	// passes through.
	Attempted func(AttemptedInfo)

	// Pausing is called when another attempt was decided, before the pause.
	Pausing func(PausingInfo)

	// GaveUp is called when a RoundTrip ends with an error, or with a response that
	// the policy found worth another attempt.
	GaveUp func(GaveUpInfo)

	// BreakerMoved is called when the breaker of a host changes its state, once for
	// each change and in order, on a request to that host that has this Trace.
	BreakerMoved func(BreakerMovedInfo)
}

// AttemptingInfo says which attempt comes next.
type AttemptingInfo struct {
	Number      int           // 1 is the first
	Request     *http.Request // the caller's own
	Host        string        // the key of the table of hosts
	MaxAttempts int           // how many there may be
}

// AttemptedInfo says what came of an attempt.
type AttemptedInfo struct {
	Attempt     Attempt
	Context     context.Context // the request's, with what Attempting added
	Duration    time.Duration   // until the response headers, or the error
	Host        string
	MaxAttempts int

	// Answered reports that the host is done with the request, which HostStats counts in
	// FirstTry or Recovered. Another policy than DefaultPolicy may want more all the same.
	Answered bool
}

// PausingInfo says which attempt failed and when the next one follows.
type PausingInfo struct {
	Attempt     Attempt   // the one that failed, with the Pause that follows it
	Host        string    // the key of the table of hosts
	MaxAttempts int       // how many there may be
	Next        time.Time // when the next one starts
}

// String tells the state of a retry as a user would want to see it: "attempt 2 of
// 4, 503, next in 1.2s at 15:04:05.123".
func (i PausingInfo) String() string {
	return fmt.Sprintf("attempt %d of %d, %s, next in %v at %s", i.Attempt.Number, i.MaxAttempts,
		phrase(status(i.Attempt.Response), i.Attempt.Err), round(i.Attempt.Pause), i.Next.Format(clockFormat))
}

const clockFormat = "15:04:05.000"

// round leaves of a duration what a reader takes in.
func round(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d
}

// GaveUpInfo says how a RoundTrip ended without success.
type GaveUpInfo struct {
	Attempt     Attempt // the last one; its Number is 0 if none reached the base
	Host        string
	MaxAttempts int
	Reason      Reason
	Err         error           // what RoundTrip returns; nil if it returns Attempt.Response
	Attempts    []AttemptRecord // all of them, Attempt included; empty if none reached the base
	Key         string          // the idempotency key that was sent, the caller's or ours; "" if none
}

// BreakerMovedInfo is a change of state of a host's breaker.
type BreakerMovedInfo struct {
	Host     string
	From, To State
	Until    time.Time // the end of the cool-down if To is Open
	Trips    int       // times in a row that it opened, if To is Open
}

// WithTrace adds hooks; several add up, in order. nil takes away those added
// before.
func WithTrace(tr *Trace) CallOption {
	return callOption(func(s *settings) {
		if tr == nil {
			s.traces = nil
			return
		}
		s.traces = append(slices.Clip(s.traces), tr)
	})
}

// Watch adds hooks to a Transport that is in use, for those who look at one that
// others made. They are called after those of WithTrace, which Override can take
// away; these it cannot. Requests under way when Watch is called, or stop, keep the
// hooks that they have.
//
// Watch panics if tr is nil. stop may be called more than once.
func (t *Transport) Watch(tr *Trace) (stop func()) {
	if tr == nil {
		panic("retrip: Watch(nil): no hooks")
	}
	own := *tr // so that the same Trace may be added twice, and each be stopped
	t.rewatch(func(all []*Trace) []*Trace { return append(slices.Clip(all), &own) })
	return func() {
		t.rewatch(func(all []*Trace) []*Trace {
			return slices.DeleteFunc(slices.Clone(all), func(tr *Trace) bool { return tr == &own })
		})
	}
}

// rewatch replaces the settings that new requests get.
func (t *Transport) rewatch(change func([]*Trace) []*Trace) {
	for {
		old := t.watched.Load()
		next := t.settings
		if old != nil {
			next = *old
		}
		next.watchers = change(next.watchers)
		if t.watched.CompareAndSwap(old, &next) {
			return
		}
	}
}

// WithLogger logs each retry at level Debug and each request that was given up at
// level Warn; changes of a breaker are logged at Info. The attributes are method,
// host, attempt, max_attempts, status or error, pause, reason. Nothing is logged
// without it, or with nil. A log line names no path, query, header or body, and of
// errors only their kind.
func WithLogger(l *slog.Logger) CallOption {
	return callOption(func(s *settings) { s.logger = l })
}

// listens reports whether anybody wants to know of a breaker's changes.
func (s *settings) listens() bool {
	return s.logger != nil || len(s.traces) > 0 || len(s.watchers) > 0
}

// hooks are the Traces to call, in order.
func (s *settings) hooks() iter.Seq[*Trace] {
	return func(yield func(*Trace) bool) {
		for _, tr := range s.traces {
			if !yield(tr) {
				return
			}
		}
		for _, tr := range s.watchers {
			if !yield(tr) {
				return
			}
		}
	}
}

// attempting returns the context of an attempt, which follows one with ctx; nil if no
// hook makes one.
func (s *settings) attempting(ctx context.Context, i AttemptingInfo) (made context.Context) {
	for tr := range s.hooks() {
		if tr.Attempting == nil {
			continue
		}
		if made = tr.Attempting(ctx, i); made == nil {
			panic("retrip: Trace.Attempting returned no context")
		}
		ctx = made
	}
	return made
}

// hearsAttempts reports whether anybody is told of attempts, also of those that
// succeed.
func (s *settings) hearsAttempts() bool {
	for tr := range s.hooks() {
		if tr.Attempted != nil {
			return true
		}
	}
	return false
}

func (s *settings) attempted(i AttemptedInfo) {
	for tr := range s.hooks() {
		if tr.Attempted != nil {
			tr.Attempted(i)
		}
	}
}

func (s *settings) pausing(i PausingInfo) {
	if s.logger != nil {
		s.log(slog.LevelDebug, "retrip: pausing before another attempt", i.Host, i.Attempt, i.MaxAttempts,
			slog.Duration("pause", i.Attempt.Pause), slog.Time("next", i.Next))
	}
	for tr := range s.hooks() {
		if tr.Pausing != nil {
			tr.Pausing(i)
		}
	}
}

func (s *settings) gaveUp(i GaveUpInfo) {
	if s.logger != nil {
		s.log(slog.LevelWarn, "retrip: gave up", i.Host, i.Attempt, i.MaxAttempts,
			slog.String("reason", i.Reason.String()), slog.Duration("elapsed", i.Attempt.Elapsed))
	}
	for tr := range s.hooks() {
		if tr.GaveUp != nil {
			tr.GaveUp(i)
		}
	}
}

func (s *settings) breakerMoved(i BreakerMovedInfo) {
	if s.logger != nil {
		attrs := []slog.Attr{slog.String("host", i.Host), slog.String("from", i.From.String()), slog.String("to", i.To.String())}
		if i.To == Open {
			attrs = append(attrs, slog.Time("until", i.Until), slog.Int("trips", i.Trips))
		}
		s.logger.LogAttrs(context.Background(), slog.LevelInfo, "retrip: breaker moved", attrs...)
	}
	for tr := range s.hooks() {
		if tr.BreakerMoved != nil {
			tr.BreakerMoved(i)
		}
	}
}

// log writes a line about an attempt, with the request's context for handlers that
// take trace ids from it.
func (s *settings) log(level slog.Level, msg, host string, a Attempt, maxAttempts int, more ...slog.Attr) {
	ctx := a.Request.Context()
	if !s.logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("method", method(a.Request)), slog.String("host", host),
		slog.Int("attempt", a.Number), slog.Int("max_attempts", maxAttempts),
	}
	if a.Response != nil {
		attrs = append(attrs, slog.Int("status", a.Response.StatusCode))
	}
	if a.Err != nil {
		attrs = append(attrs, slog.String("error", phrase(0, a.Err)))
	}
	attrs = append(attrs, more...)
	s.logger.LogAttrs(ctx, level, msg, attrs...)
}

func method(req *http.Request) string {
	if req.Method == "" {
		return http.MethodGet
	}
	return req.Method
}

func status(resp *http.Response) int {
	if resp == nil {
		return 0
	}
	return resp.StatusCode
}

// phrase names an outcome without repeating an error's text.
func phrase(status int, err error) string {
	if err == nil {
		return fmt.Sprint(status)
	}
	if open, ok := errors.AsType[*OpenError](err); ok {
		return "breaker open until " + open.Until.Format(clockFormat)
	}
	_, p := classify(err)
	return p
}

// A Reason says why there was no further attempt.
type Reason uint8

// The reasons, in the order in which they are looked at.
const (
	ReasonCancelled Reason = iota + 1 // the caller cancelled the request
	ReasonDeadline                    // the caller's deadline passed, or the pause would not have ended before it
	ReasonBody                        // the request's body failed, or cannot be sent again
	ReasonPolicy                      // the policy found the outcome final
	ReasonUnsafe                      // the request must not be repeated
	ReasonAttempts                    // the attempts were used up
	ReasonBudget                      // the pause does not fit the budget
	ReasonBreaker                     // the host's breaker is open, or the attempt was a probe
	ReasonQuota                       // the host's retry quota was used up
)

func (r Reason) String() string {
	switch r {
	case ReasonCancelled:
		return "cancelled"
	case ReasonDeadline:
		return "deadline"
	case ReasonBody:
		return "body"
	case ReasonPolicy:
		return "policy"
	case ReasonUnsafe:
		return "unsafe"
	case ReasonAttempts:
		return "attempts"
	case ReasonBudget:
		return "budget"
	case ReasonBreaker:
		return "breaker"
	case ReasonQuota:
		return "quota"
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// An AttemptRecord is one attempt in the story of a request.
type AttemptRecord struct {
	Number   int           // 1 is the first
	Start    time.Time     //
	Duration time.Duration // until the response headers, or the error
	Status   int           // 0 if there was no response
	Err      error         // as the base gave it; its text may hold what the base put into it
	Pause    time.Duration // the wait decided after it; 0 after the last
}

// An Error is what RoundTrip returns when more than one attempt, or a pause after
// the first, ended without a response. (The error of a single attempt is returned
// as the base gave it.)
//
// errors.Is and errors.As reach the cause of the context if it ended,
// context.DeadlineExceeded also if a pause did not fit the deadline, an *OpenError if
// the breaker refused the next attempt, and the last failure. The text
// of an Error names the method and the host and what kinds of failure there were,
// but repeats no error of the base, whose text may hold a URL.
type Error struct {
	Method   string
	Host     string
	Attempts []AttemptRecord
	Elapsed  time.Duration // from the start of RoundTrip
	Reason   Reason

	max    int
	budget time.Duration
	causes []error
}

func (e *Error) Error() string {
	limit := ""
	switch e.Reason {
	case ReasonBudget:
		limit = fmt.Sprintf(" of %v", e.budget)
	case ReasonBreaker:
		if open, ok := errors.AsType[*OpenError](e); ok {
			limit = " open until " + open.Until.Format(clockFormat)
		}
	}
	var last AttemptRecord
	if n := len(e.Attempts); n > 0 {
		last = e.Attempts[n-1]
	}
	return fmt.Sprintf("retrip: %s %s: gave up after %d of %d attempts in %v (%v%s): %s",
		e.Method, e.Host, len(e.Attempts), e.max, round(e.Elapsed), e.Reason, limit, phrase(last.Status, last.Err))
}

// fail returns the error of a call that has no response to hand back.
func (c *call) fail(reason Reason) error {
	if c.story == nil || c.fault {
		return c.err
	}
	e := &Error{
		Method: method(c.req), Host: c.name, Attempts: c.story.records,
		Elapsed: c.now() - c.start, Reason: reason, max: c.s.maxAttempts, budget: c.s.budget,
	}
	last, ended := len(e.Attempts)-1, c.ended() != 0
	switch {
	case c.ctx.Err() != nil:
		e.add(context.Cause(c.ctx))
		e.add(c.ctx.Err())
	case ended:
		e.add(errCancelled)
	case reason == ReasonDeadline: // the pause would not have ended before it
		e.add(context.DeadlineExceeded)
	}
	if ended && c.err != nil && last > 0 && !c.resting {
		last-- // cut off by the end of the request: the failure is the one before
	}
	e.add(c.err)
	e.add(e.Attempts[last].Err)
	return e
}

func (e *Error) add(err error) {
	if err == nil || slices.ContainsFunc(e.causes, func(have error) bool { return errors.Is(have, err) }) {
		return
	}
	e.causes = append(e.causes, err)
}

// Unwrap returns the errors behind e, the first of them the nearest.
func (e *Error) Unwrap() []error { return slices.Clone(e.causes) }

// Timeout reports whether the nearest cause is a timeout, as net.Error has it.
func (e *Error) Timeout() bool { return len(e.causes) > 0 && timedOut(e.causes[0]) }

// attemptTimeoutError ends an attempt that WithAttemptTimeout cut off.
type attemptTimeoutError struct {
	host    string
	number  int
	limit   time.Duration
	blocked bool // the caller's own body did not yield
}

func (e *attemptTimeoutError) Error() string {
	return fmt.Sprintf("retrip: attempt %d to %s: %s", e.number, e.host, e.phrase())
}

func (e *attemptTimeoutError) phrase() string {
	if e.blocked {
		return fmt.Sprintf("the request body did not yield within %v", e.limit)
	}
	return fmt.Sprintf("no response headers within %v", e.limit)
}

func (e *attemptTimeoutError) Timeout() bool   { return true }
func (e *attemptTimeoutError) Temporary() bool { return true }

func (e *attemptTimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// errCancelled stands for a closed Request.Cancel.
var errCancelled = fmt.Errorf("retrip: request cancelled by Request.Cancel: %w", context.Canceled)

// A story is what is kept of a request from its first retry on.
type story struct {
	records []AttemptRecord

	// The request that carries the story to History. A request made from its
	// context is another, whose response has a story of its own or none.
	request *http.Request
}

// tell adds the last attempt to the story.
func (c *call) tell(pause time.Duration) {
	c.story.records = append(c.story.records, c.record(pause))
}

func (c *call) record(pause time.Duration) AttemptRecord {
	return AttemptRecord{
		Number: c.n, Start: time.Now().Add(c.began - c.now()), Duration: c.took,
		Status: status(c.resp), Err: c.err, Pause: pause,
	}
}

// records returns the attempts that reached the base, the last one included.
func (c *call) records() []AttemptRecord {
	if c.story != nil {
		return slices.Clone(c.story.records)
	}
	if c.n == 0 {
		return nil
	}
	return []AttemptRecord{c.record(0)}
}

type storyKey struct{}

// History returns the attempts that led to a response of a Transport, the last one
// included; nil if there was only one. It must be the response as the Transport
// returned it, or at least with its Request.
func History(resp *http.Response) []AttemptRecord {
	if resp == nil || resp.Request == nil {
		return nil
	}
	st, _ := resp.Request.Context().Value(storyKey{}).(*story)
	if st == nil || st.request != resp.Request {
		return nil
	}
	return slices.Clone(st.records)
}

// A scope is what a context tells a Transport: the caller's overrides, and which
// attempt of another Transport it is part of.
type scope struct {
	overrides []CallOption

	// number is that of the attempt; 0 outside of one. method and host are its
	// request's: one for something else, such as a token that the attempt needs,
	// is no part of the attempt's retries.
	number       int
	method, host string
}

type scopeKey struct{}

func scopeOf(ctx context.Context) *scope {
	s, _ := ctx.Value(scopeKey{}).(*scope)
	return s
}

// AttemptNumber returns the number of the attempt that a context belongs to, for
// transports below, such as signers and tracers: 1 for the first, or without a
// Transport above.
func AttemptNumber(ctx context.Context) int {
	if s := scopeOf(ctx); s != nil && s.number > 1 {
		return s.number
	}
	return 1
}

// Override returns a context whose requests are made with other settings than the
// Transport's. Overrides of a context that has some already come on top. All
// Transports that see the context heed them.
func Override(ctx context.Context, opts ...CallOption) context.Context {
	s := scope{}
	if outer := scopeOf(ctx); outer != nil {
		s = *outer
	}
	s.overrides = slices.Concat(s.overrides, opts)
	return context.WithValue(ctx, scopeKey{}, &s)
}
