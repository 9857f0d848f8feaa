// Package retrip is an http.RoundTripper that makes a round trip again when that
// is safe and likely to help.
//
//	client := &http.Client{Transport: retrip.New(nil)}
//
// A Transport wraps any base. It repeats requests that failed for a reason that may
// pass, if they may be repeated: idempotent methods, requests with an idempotency
// key (it adds one to POST and PATCH), and those that surely never reached a server.
// It waits as long as the server asks (Retry-After) or a jittered backoff says, stops
// at once when waiting cannot help before the deadline or the budget ends, and keeps
// a retry quota and a circuit breaker for each host.
//
// In all else it is as if it were not there: the caller gets the last response as
// the base gave it, the request is never changed, nothing is read ahead, and a
// request that succeeds at once costs no allocation.
package retrip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// A Transport is an http.RoundTripper that retries. Make one with New and keep it:
// its hosts' breakers and quotas live as long as it does. The zero Transport sends
// each request once, untouched, through http.DefaultTransport.
//
// A Transport is safe for concurrent use.
type Transport struct {
	base     http.RoundTripper
	settings settings
	hosts    *hosts    // nil in the zero Transport
	epoch    time.Time // zero of its clock; none without hosts
	layered  bool      // the base is a Transport too

	// watched are the settings with the hooks of Watch; nil until there are any.
	watched atomic.Pointer[settings]
}

// settings are what can be set for one request. They are not changed after New.
type settings struct {
	maxAttempts    int
	attemptTimeout time.Duration // 0: none
	maxBody        int64
	policy         Policy // nil: never again
	plain          bool   // the policy is DefaultPolicy
	backoff        Backoff
	genKey         func(*http.Request) string // nil: no keys
	keyHeader      string
	budget         time.Duration
	traces         []*Trace
	watchers       []*Trace     // of the Transport; a request's overrides leave them alone
	logger         *slog.Logger // nil: none
}

// config is all that New can be told.
type config struct {
	settings
	quota    *quotaLimits // nil: none
	breaker  *Breaker     // nil: none
	maxHosts int
	hostKey  func(*http.Request) string
}

// An Option sets something of a Transport. If the same is set twice, the last one
// wins.
type Option interface{ apply(*config) }

// A CallOption may also be set for single requests, with Override.
type CallOption interface {
	Option
	applyCall(*settings)
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

type callOption func(*settings)

func (o callOption) apply(c *config)       { o(&c.settings) }
func (o callOption) applyCall(s *settings) { o(s) }

// New returns a Transport over base; nil means what http.DefaultTransport is at
// the time. Without options it makes up to 4 attempts within 90 s, with the
// defaults that each option names.
func New(base http.RoundTripper, opts ...Option) *Transport {
	if base == nil {
		base = http.DefaultTransport
	}
	c := config{
		settings: settings{
			maxAttempts: 4,
			maxBody:     1 << 20,
			policy:      DefaultPolicy,
			plain:       true,
			backoff:     FullJitter(500*time.Millisecond, 30*time.Second),
			genKey:      newKey,
			keyHeader:   KeyHeader,
			budget:      90 * time.Second,
		},
	}
	quota, breaker := DefaultQuota(), DefaultBreaker()
	for _, o := range []Option{WithRetryQuota(&quota), WithBreaker(&breaker), WithHosts(1024, nil)} {
		o.apply(&c)
	}
	for _, o := range opts {
		o.apply(&c)
	}
	epoch := time.Now()
	_, layered := base.(*Transport)
	return &Transport{base: base, settings: c.settings, hosts: newHosts(&c, epoch), epoch: epoch, layered: layered}
}

// WithAttemptTimeout limits each attempt, from its start to its response headers;
// the upload counts, reading the response's body does not. There is none by
// default, nor with zero.
//
// An attempt that is cut off is a failure of the host, and is repeated like any
// other. Its error matches context.DeadlineExceeded, and its Timeout method reports
// true. If it was the caller's own body that did not yield, the request ends. The
// response's body is wrapped to release the attempt's context, except where it can
// be written to (101 Switching Protocols): that context is released with the
// request's.
//
// WithAttemptTimeout panics if d is negative.
func WithAttemptTimeout(d time.Duration) CallOption {
	if d < 0 {
		panic(fmt.Sprintf("retrip: WithAttemptTimeout(%v): the timeout is negative", d))
	}
	return callOption(func(s *settings) { s.attemptTimeout = d })
}

// Register returns a clone of base that sends http and https requests through a
// Transport over base. It is for http.DefaultTransport, which much code takes to be
// an *http.Transport:
//
//	http.DefaultTransport = retrip.Register(http.DefaultTransport.(*http.Transport))
//
// Clones of the result work, but do not retry; nor do https requests that ask for
// an upgrade of the connection, which net/http keeps for HTTP/1 and so to itself.
//
// Register panics if base is nil.
func Register(base *http.Transport, opts ...Option) *http.Transport {
	if base == nil {
		panic("retrip: Register(nil): no transport")
	}
	rt := New(base, opts...)
	clone := base.Clone()
	clone.RegisterProtocol("http", rt)
	clone.RegisterProtocol("https", registered{rt})
	return clone
}

// registered has the shape by which net/http finds out whose idle connections to
// close: a struct with one exported field.
type registered struct{ RT *Transport }

func (r registered) RoundTrip(req *http.Request) (*http.Response, error) { return r.RT.RoundTrip(req) }

// CloseIdleConnections closes those of the base, if it can do so.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.transport().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) transport() http.RoundTripper {
	if t.base == nil {
		return http.DefaultTransport
	}
	return t.base
}

// RoundTrip sends the request, again where that is safe and likely to help. The
// last response is returned as the base gave it, its body unread, whatever its
// status. Without one, the error of a single attempt is returned as the base gave
// it, and after several an *Error.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL == nil || req.Header == nil {
		return t.transport().RoundTrip(req) // which has an error for this
	}
	c := call{t: t, s: cmp.Or(t.watched.Load(), &t.settings), req: req, ctx: req.Context()}
	defer c.release()

	c.override()
	if reason := c.prepare(); reason != 0 {
		return c.stop(reason)
	}
	for {
		c.attempt()
		reason := c.judge()
		if reason == 0 {
			reason = c.schedule()
		}
		if reason == 0 {
			reason = c.again()
		}
		if reason != 0 {
			return c.stop(reason)
		}
	}
}

// A call is one RoundTrip.
type call struct {
	t   *Transport
	s   *settings
	req *http.Request // the caller's; never changed
	ctx context.Context

	// Set by prepare.
	start      time.Duration // on the Transport's clock
	scope      *scope        // of the caller's context; nil if it has none
	single     bool          // one attempt, to which nothing is added
	repeatable bool          // the method is idempotent, or there is a key
	header     http.Header   // with the key added; nil if none was
	body       *payload      // nil if the base gets the caller's body as it is
	name       string        // of the host
	host       *host         // nil without a table

	// Of the attempt under way, or the last one.
	n       int // attempts that reached the base
	began   time.Duration
	took    time.Duration
	traced  context.Context // with what Attempting added; nil if no hook did
	ticket  ticket
	refused bool // by the breaker
	sent    *http.Request
	probe   *sendProbe
	timer   *attemptTimer
	inBase  bool
	resp    *http.Response
	err     error
	fault   bool // err is the caller's own body's
	outcome outcome
	refund  bool // a success gives back the token that this attempt cost

	// Of the retry that was decided.
	wanted  bool // the policy wants another attempt
	resting bool // the last attempt is over, the next has not begun
	asked   bool // the server asked for the pause
	pause   time.Duration
	backoff time.Duration // what the Backoff returned last
	fare    fare          // paid for it
	payer   *host         // whose token that was: a host may be forgotten meanwhile
	free    bool          // the free retry was used
	story   *story        // nil until there is one

	finished bool
}

// now is the Transport's clock.
func (c *call) now() time.Duration {
	if c.t.hosts == nil {
		return time.Since(loaded)
	}
	return time.Since(c.t.epoch)
}

// loaded is zero on the clock of a zero Transport, whose times are only subtracted
// from each other.
var loaded = time.Now()

// override finds the settings: the Transport's, then the request's own.
func (c *call) override() {
	c.scope = scopeOf(c.ctx)
	if c.scope == nil || len(c.scope.overrides) == 0 {
		return
	}
	own := *c.s
	for _, o := range c.scope.overrides {
		o.applyCall(&own)
	}
	c.s = &own
}

// prepare adds the key and makes the body replayable. Zero means that the first
// attempt may start.
func (c *call) prepare() Reason {
	c.start = c.now()
	c.began = c.start
	c.name = c.req.URL.Host
	if t := c.t.hosts; t != nil && t.key != nil {
		c.name = t.key(c.req)
	}
	if c.ctx.Err() != nil {
		c.err = context.Cause(c.ctx)
		return c.ended()
	}
	// A tunnel's body is the tunnel: it cannot be sent twice.
	c.single = c.s.maxAttempts <= 1 || c.s.budget == 0 || c.s.policy == nil ||
		c.req.Method == http.MethodConnect || c.inRetry()
	c.repeatable = idempotentMethod(c.req.Method)
	if !c.single && !c.repeatable {
		if c.err = c.addKey(); c.err != nil {
			return ReasonPolicy
		}
	}
	switch {
	case !c.single:
		limit := c.s.maxBody
		if !c.repeatable {
			limit = 0 // only whether it was read matters
		}
		c.body = newPayload(c.req, limit)
	case c.s.attemptTimeout > 0:
		c.body = newPayload(c.req, 0)
	}
	return 0
}

// inRetry reports whether this request is part of a retry of a Transport above,
// which would multiply with ours.
func (c *call) inRetry() bool {
	return c.scope != nil && c.scope.number != 0 &&
		c.scope.method == c.req.Method && c.scope.host == c.req.URL.Host
}

// attempt calls the base once, if the breaker admits it, and tells the breaker and
// the quota what came of it.
func (c *call) attempt() {
	c.refused, c.fault, c.resting, c.sent, c.resp = false, false, false, nil, nil
	if c.n > 0 {
		c.began = c.now()
	}
	c.err = c.admit()
	c.refused = c.err != nil
	settled := c.refused
	defer func() {
		if !settled { // somebody panics: a probe's slot must not stay taken
			c.settle(neutral)
			c.broken()
		}
	}()
	c.tellMoves(c.ticket.moves)
	if c.refused {
		return
	}
	c.sent, c.err = c.request(c.n + 1)
	if c.err != nil {
		c.fault, c.outcome, c.resting = c.ended() == 0, neutral, true
	} else {
		c.n++
		c.refund = c.fare != unpaid && c.payer == c.host && c.outcome.refunds()
		c.fare = unpaid
		c.inBase = true
		c.resp, c.err = c.t.transport().RoundTrip(c.sent)
		c.inBase = false
		c.returned()
	}
	settled = true
	c.settle(c.outcome)
}

// broken tells the hooks of an attempt that the base did not return from, so that
// what they began with it has an end.
func (c *call) broken() {
	if !c.inBase || !c.s.listens() {
		return
	}
	c.took, c.err, c.outcome = c.now()-c.began, errPanic, neutral
	c.s.attempted(c.attemptedInfo())
}

// errPanic stands for the answer of a base that panicked, or ended its goroutine.
var errPanic = errors.New("retrip: the base panicked")

func (c *call) admit() (err error) {
	if c.t.hosts == nil {
		return nil
	}
	c.host, c.ticket, err = c.t.hosts.admit(c.name, c.n == 0, c.began, c.s)
	c.name = c.host.name
	return err
}

// tellMoves calls the hooks for changes of the breaker, if there are any.
func (c *call) tellMoves(any bool) {
	if any && c.s.listens() {
		c.t.hosts.tell(c.host)
	}
}

// request returns what the base is given: the caller's own request wherever
// nothing has to be added to it.
func (c *call) request(number int) (*http.Request, error) {
	body := c.req.Body
	if c.body != nil {
		var err error
		if body, err = c.body.open(number); err != nil {
			return nil, err
		}
	}
	ctx, own := c.ctx, c.header == nil
	if c.s.listens() {
		c.traced = c.s.attempting(cmp.Or(c.traced, ctx), AttemptingInfo{
			Number: number, Request: c.req, Host: c.name, MaxAttempts: c.s.maxAttempts,
		})
		if c.traced != nil {
			ctx, own = c.traced, false
		}
	}
	if number > 1 || c.t.layered && !c.single || c.scope != nil && c.scope.number != 0 && !c.inRetry() {
		ctx, own = c.mark(ctx, number), false
	}
	c.probe = nil
	if !c.single && !c.repeatable {
		c.probe = &sendProbe{}
		ctx, own = httptrace.WithClientTrace(ctx, c.probe.trace()), false
	}
	if c.body != nil {
		own = own && c.body.log == nil && c.body.reader == nil
	}
	c.timer = nil
	if c.s.attemptTimeout > 0 {
		ctx = c.startTimer(ctx, number)
	} else if own {
		return c.req, nil
	}
	r := c.req.WithContext(ctx)
	if c.header != nil {
		r.Header = c.header
	}
	if c.body != nil {
		r.Body, r.GetBody = body, c.body.getBody()
	}
	return r, nil
}

// mark returns a context that tells a Transport below that its request is one
// attempt of ours.
func (c *call) mark(ctx context.Context, number int) context.Context {
	s := &scope{number: number, method: c.req.Method, host: c.req.URL.Host}
	if c.scope != nil {
		s.overrides = c.scope.overrides
	}
	return context.WithValue(ctx, scopeKey{}, s)
}

// returned makes sense of what the base returned.
func (c *call) returned() {
	now := c.now()
	c.took = now - c.began
	switch {
	case c.resp == nil && c.err == nil:
		c.err = fmt.Errorf("retrip: %T returned neither a response nor an error", c.t.transport())
	case c.resp != nil && c.err != nil:
		closeBody(c.resp)
		c.resp = nil
	}
	if c.timer != nil {
		if err := c.timer.stop(); err != nil {
			closeBody(c.resp)
			c.resp, c.err, c.fault = nil, err, err.blocked
		}
		if c.resp == nil {
			c.timer.cancel(nil)
		}
	}
	if c.err != nil && c.body != nil && !c.fault {
		if err := c.body.fault(); err != nil && c.ended() == 0 {
			c.fault = true
			if !errors.Is(c.err, err) {
				c.err = bodyError{c.err, err}
			}
		}
	}
	c.outcome = c.judgeHost()
}

func closeBody(resp *http.Response) {
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
}

// settle tells the host's breaker and quota.
func (c *call) settle(o outcome) {
	if c.t.hosts == nil {
		return
	}
	number := c.n
	if c.sent == nil {
		number = 0
	}
	c.tellMoves(c.t.hosts.settle(c.host, c.ticket, o, number, c.refund, c.began+c.took, c.s))
}

// ended reports whether the caller cancelled the request or its deadline passed:
// by the context, not by any error, which may be another's.
func (c *call) ended() Reason {
	switch c.ctx.Err() {
	case nil:
	case context.DeadlineExceeded:
		return ReasonDeadline
	default:
		return ReasonCancelled
	}
	if cancelOf(c.req) != nil {
		select {
		case <-cancelOf(c.req):
			return ReasonCancelled
		default:
		}
	}
	return 0
}

// cancelOf returns the channel that http.Client.Timeout still closes.
func cancelOf(req *http.Request) <-chan struct{} {
	return req.Cancel //lint:ignore SA1019 callers and net/http use it
}

// seen is the attempt as a policy and hooks see it.
func (c *call) seen() Attempt {
	return Attempt{
		Number: c.n, Request: c.req, Response: c.resp, Err: c.err,
		Elapsed:   c.began + c.took - c.start,
		keyHeader: c.s.keyHeader, keyed: c.header != nil, unsent: c.err != nil && c.probe.unsent(),
	}
}

// judge asks whether the outcome is worth another attempt, and whether the request
// may be repeated. Zero means yes to both.
func (c *call) judge() Reason {
	c.wanted = false
	if c.refused {
		return ReasonBreaker
	}
	if c.sent == nil { // there was no body to be had
		return cmp.Or(c.ended(), ReasonBody)
	}
	if c.s.listens() && c.s.hearsAttempts() {
		c.s.attempted(c.attemptedInfo())
	}
	if c.outcome == answered && c.s.plain {
		return ReasonPolicy // as DefaultPolicy would say; this is every success
	}
	if c.fault {
		return ReasonBody
	}
	if reason := c.ended(); reason != 0 {
		c.wanted = c.outcome > answered // nobody is asked any more; the hooks hear of a failure
		return reason
	}
	a := c.seen()
	if c.s.policy == nil || !c.s.policy(a) {
		return ReasonPolicy
	}
	c.wanted = true
	if reason := c.ended(); reason != 0 {
		return reason
	}
	if !a.safe() {
		return ReasonUnsafe
	}
	return 0
}

func (c *call) attemptedInfo() AttemptedInfo {
	return AttemptedInfo{
		Attempt: c.seen(), Context: cmp.Or(c.traced, c.ctx), Duration: c.took, Host: c.name, MaxAttempts: c.s.maxAttempts,
		Answered: c.outcome == answered,
	}
}

// again discards the response and waits. Zero means that the next attempt may
// start.
func (c *call) again() Reason {
	if c.body != nil && !c.body.retire() {
		return ReasonBody
	}
	if c.story == nil {
		c.story = &story{}
	}
	c.tell(c.pause)
	if c.s.listens() {
		a := c.seen()
		a.Pause = c.pause
		c.s.pausing(PausingInfo{Attempt: a, Host: c.name, MaxAttempts: c.s.maxAttempts, Next: time.Now().Add(c.pause)})
	}
	c.resting = true
	resp := c.resp
	if !c.s.listens() {
		c.resp = nil // nobody will be told of it: a pause may be long
	}
	reason := c.rest(resp)
	if c.timer != nil {
		c.timer.cancel(nil)
	}
	return reason
}

// A response is drained to drainLimit, so that its connection is used again, but
// not if that takes longer than the pause or, in a shorter one, drainTime.
const (
	drainLimit = 64 << 10
	drainTime  = 10 * time.Millisecond
)

// A lull is the time between two attempts. One timer ends both the draining of the
// response and the pause.
type lull struct {
	reader io.LimitedReader // of the response's body, while it is drained
	over   chan struct{}

	mu   sync.Mutex
	body io.Closer // nil once it is closed, or if there is nothing to drain
}

// closeBody ends a Read of the body that blocks, too.
func (l *lull) closeBody() {
	l.mu.Lock()
	body := l.body
	l.body = nil
	l.mu.Unlock()
	if body != nil {
		_ = body.Close()
	}
}

func (l *lull) end() {
	l.closeBody()
	close(l.over)
}

// rest discards the response and lets the pause pass, unless the caller's request
// ends first.
func (c *call) rest(resp *http.Response) Reason {
	began := c.now()
	l := &lull{over: make(chan struct{})}
	limit := c.pause
	drained := worthDraining(resp)
	if drained {
		l.body, l.reader = resp.Body, io.LimitedReader{R: resp.Body, N: drainLimit}
		limit = max(limit, drainTime)
	} else {
		closeBody(resp)
		if limit == 0 {
			return c.ended()
		}
	}
	timer := time.AfterFunc(limit, l.end)
	defer timer.Stop()
	if drained {
		c.drain(l)
		if left := c.pause - (c.now() - began); limit > c.pause && timer.Stop() {
			if left <= 0 {
				return c.ended()
			}
			timer.Reset(left)
		}
	}
	select {
	case <-l.over:
	case <-c.ctx.Done():
	case <-cancelOf(c.req):
	}
	return c.ended()
}

func (c *call) drain(l *lull) {
	defer l.closeBody()
	if c.ctx.Done() != nil {
		stop := context.AfterFunc(c.ctx, l.closeBody)
		defer stop()
	}
	if cancel := cancelOf(c.req); cancel != nil {
		drained := make(chan struct{})
		defer close(drained)
		go func() {
			select {
			case <-cancel:
				l.closeBody()
			case <-drained:
			}
		}()
	}
	_, _ = io.Copy(io.Discard, &l.reader)
	l.reader.R = nil // a pause may be long, and a connection hangs on it
}

// worthDraining reports whether reading the body may save a connection. One of
// HTTP/2 is not lost by closing a stream.
func worthDraining(resp *http.Response) bool {
	return resp != nil && resp.Body != nil && resp.Body != http.NoBody &&
		resp.ProtoMajor < 2 && resp.ContentLength <= drainLimit
}

// stop ends the call with the response in hand, or an error with its story.
func (c *call) stop(reason Reason) (*http.Response, error) {
	if c.story != nil && !c.resting && !c.refused {
		c.tell(0)
	}
	if c.host == nil && c.t.hosts != nil {
		c.name = c.t.hosts.fold(c.name)
	}
	resp := c.resp
	if c.resting {
		resp = nil // it was discarded
	}
	var err error
	if resp == nil {
		err = c.fail(reason)
		c.awaitCancel()
	}
	if c.s.listens() && (err != nil || c.wanted) {
		c.s.gaveUp(GaveUpInfo{
			Attempt: c.seen(), Host: c.name, MaxAttempts: c.s.maxAttempts, Reason: reason, Err: err,
			Attempts: c.records(), Key: c.key(),
		})
	}
	if resp != nil {
		c.handBack()
	}
	c.finished = true
	return resp, err
}

// awaitCancel lets http.Client notice that its Timeout has passed. It sets both a
// deadline and Request.Cancel for any RoundTripper that is not net/http's, in no
// certain order, and names its Timeout in the error only after the second.
func (c *call) awaitCancel() {
	if cancelOf(c.req) == nil || c.ctx.Err() != context.DeadlineExceeded {
		return
	}
	timer := time.NewTimer(cancelTime)
	defer timer.Stop()
	select {
	case <-cancelOf(c.req):
	case <-timer.C:
	}
}

// cancelTime is much longer than it takes, for a busy machine; a caller who sets
// a deadline and a Cancel that is never closed waits it out.
const cancelTime = 250 * time.Millisecond

// handBack makes the response the caller's: its Request, and its Body if the
// attempt's context ends with it.
func (c *call) handBack() {
	resp := c.resp
	req := resp.Request
	if req == c.sent {
		req = c.req
		resp.Request = req
	}
	if c.story != nil {
		if req == nil {
			req = c.req
		}
		// With the caller's context, not the attempt's: the next page's request may
		// be made from it.
		resp.Request = req.WithContext(context.WithValue(c.ctx, storyKey{}, c.story))
		c.story.request = resp.Request
	}
	if c.timer == nil {
		return
	}
	if resp.Body == nil || resp.Body == http.NoBody {
		c.timer.cancel(nil)
	} else if _, upgraded := resp.Body.(io.Writer); !upgraded {
		c.timer.ReadCloser = resp.Body
		resp.Body = c.timer
	}
}

// release gives back what the call holds when it ends, also by a panic.
func (c *call) release() {
	if !c.finished {
		if !c.resting {
			closeBody(c.resp)
		}
		if c.timer != nil {
			c.timer.stop()
			c.timer.cancel(nil)
		}
	}
	if c.fare != unpaid { // the retry never reached the base
		c.t.hosts.refund(c.payer, c.fare, c.now())
	}
	switch {
	case c.body != nil && c.body.log != nil:
		c.body.end(c.finished && c.resp != nil && !c.resting)
	case c.inBase && c.sent.Body != nil:
		_ = c.sent.Body.Close()
	case c.n == 0 && c.req.Body != nil:
		_ = c.req.Body.Close()
	}
}

// An attemptTimer is the limit of one attempt. It becomes the body of the response
// to release the context when that is closed or read to its end.
type attemptTimer struct {
	io.ReadCloser
	timer  *time.Timer
	cancel context.CancelCauseFunc
	body   *payload
	err    attemptTimeoutError

	mu    sync.Mutex
	fired bool
	over  bool
}

func (c *call) startTimer(ctx context.Context, number int) context.Context {
	t := &attemptTimer{body: c.body, err: attemptTimeoutError{host: c.name, number: number, limit: c.s.attemptTimeout}}
	ctx, t.cancel = context.WithCancelCause(ctx)
	t.timer = time.AfterFunc(c.s.attemptTimeout, t.fire)
	c.timer = t
	return ctx
}

func (t *attemptTimer) fire() {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	t.fired = true
	t.err.blocked = t.body != nil && t.body.reading()
	t.cancel(&t.err)
	t.mu.Unlock()
	if t.err.blocked {
		t.body.interrupt() // else net/http would wait for the Read to end
	}
}

// stop ends the attempt's time. It returns an error if it was over: the timer
// decides, not what the base made of the cancellation.
func (t *attemptTimer) stop() *attemptTimeoutError {
	stopped := t.timer.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	if stopped && !t.fired {
		return nil
	}
	return &t.err
}

func (t *attemptTimer) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err != nil {
		t.cancel(nil)
	}
	return n, err
}

func (t *attemptTimer) Close() error {
	err := t.ReadCloser.Close()
	t.cancel(nil)
	return err
}
