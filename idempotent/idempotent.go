// Package idempotent makes a server do the work of a request once, however often the
// request comes: the receiving side of the Idempotency-Key that package retrip sends.
//
//	mux.Handle("POST /charges", idempotent.Handler(charges, idempotent.Memory(10_000)))
//
// The first request with a key runs. Its answer is stored, and is the answer to all
// others with that key, which do not run. While the first runs, others get 409; with
// the key of another request they get 422.
//
// A handler that panics is a process that died, to the others: nobody knows what it did
// (see TakeOver). So is one that returns without a word, or with 499, after its client has
// gone. A handler that knows that nothing was done says so with a 5xx (see
// DefaultRemember).
//
// It follows draft-ietf-httpapi-idempotency-key-header, which has expired without
// becoming an RFC, and where it is silent what deployed services do.
package idempotent

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// KeyHeader is the request's header field with the key.
const KeyHeader = "Idempotency-Key"

// ReplayedHeader is "true" in an answer that was stored, and in no other to a request
// with a key: a handler that sets it is overruled.
const ReplayedHeader = "Idempotent-Replayed"

// A middleware is what the options set.
type middleware struct {
	store    Store
	required bool
	methods  []string
	ttl      time.Duration
	lease    time.Duration
	takeOver time.Duration // 0: never
	scope    func(*http.Request) string
	maxBody  int64
	maxReply int
	remember func(status int) bool
	failOpen bool
	docs     string
	log      *slog.Logger
}

// An Option sets something of a Handler.
type Option func(*middleware)

// Required refuses requests without a key, with 400. By default they run, unprotected.
func Required() Option { return func(m *middleware) { m.required = true } }

// Methods sets which methods are looked at; the default is POST and PATCH.
//
// Methods panics without one.
func Methods(methods ...string) Option {
	if len(methods) == 0 {
		panic("idempotent: Methods(): none")
	}
	methods = slices.Clone(methods)
	return func(m *middleware) { m.methods = methods }
}

// TTL sets how long an answer is stored; the default is 24 h. It should be published: a
// key that comes later runs again.
//
// TTL panics if d is less than a second.
func TTL(d time.Duration) Option {
	if d < time.Second {
		panic(fmt.Sprintf("idempotent: TTL(%v): less than a second", d))
	}
	return func(m *middleware) { m.ttl = d }
}

// Lease sets after what time without a sign of life a running handler's process is
// taken for dead; the default is 30 s. While the handler runs the lease is renewed,
// three times in its length.
//
// Lease panics if d is less than 100 ms.
func Lease(d time.Duration) Option {
	if d < 100*time.Millisecond {
		panic(fmt.Sprintf("idempotent: Lease(%v): less than 100ms", d))
	}
	return func(m *middleware) { m.lease = d }
}

// TakeOver lets a request run whose key's owner died (see Lease), or panicked, at least
// so long ago. By default it is refused with 409 until the record expires, or until an operator
// removes it: nobody knows whether the work was done. Take over only where doing it
// twice does no harm, or where the handler finds out.
//
// TakeOver panics if after is negative.
func TakeOver(after time.Duration) Option {
	if after < 0 {
		panic(fmt.Sprintf("idempotent: TakeOver(%v): negative", after))
	}
	return func(m *middleware) { m.takeOver = max(after, 1) }
}

// Scope sets what a key belongs to: the same key in another scope is another key, so
// that nobody gets another's answer. The default is the route's pattern, or the path
// without one, and the Authorization field. What scope returns is stored only as a
// hash, with the key.
func Scope(scope func(*http.Request) string) Option {
	if scope == nil {
		panic("idempotent: Scope(nil)")
	}
	return func(m *middleware) { m.scope = scope }
}

// MaxBody limits the bodies of requests with a key, which are read before the handler
// runs; a longer one is refused with 413. The default is 1 MiB.
//
// MaxBody panics if n is negative.
func MaxBody(n int64) Option {
	if n < 0 {
		panic(fmt.Sprintf("idempotent: MaxBody(%d): negative", n))
	}
	return func(m *middleware) { m.maxBody = n }
}

// MaxAnswer limits the bodies of answers that are stored; the default is 1 MiB. Of a
// longer one only that it was given is stored: the next request with its key gets 409
// and does not run. So it is with a connection that the handler took over, and with an
// answer that is not whole: shorter than its Content-Length, or flushed to a client that
// went away, so that the handler may have stopped in the middle.
//
// MaxAnswer panics if n is negative.
func MaxAnswer(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("idempotent: MaxAnswer(%d): negative", n))
	}
	return func(m *middleware) { m.maxReply = n }
}

// Remember sets which answers are stored. The default is DefaultRemember. What is not
// stored can be tried again with the same key.
func Remember(remember func(status int) bool) Option {
	if remember == nil {
		panic("idempotent: Remember(nil)")
	}
	return func(m *middleware) { m.remember = remember }
}

// DefaultRemember stores the answers that will not be others the next time: 2xx, 3xx,
// and 4xx but for 401, 403, 408, 409, 425 and 429. It does not store 5xx: a handler that
// answers with one says that the work was not done, and may be tried again. A handler
// that passes on the answers of others should have 502 and 504 remembered, since they
// leave that open.
func DefaultRemember(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 200 && status < 500
}

// FailOpen lets requests run unprotected when the store cannot be asked. By default
// they are refused with 503.
func FailOpen() Option { return func(m *middleware) { m.failOpen = true } }

// Docs sets the page that the problem types of refusals point to, such as
// https://api.example.com/docs/idempotency; their fragment is appended. By default a
// type is only the fragment.
func Docs(url string) Option { return func(m *middleware) { m.docs = url } }

// Logger sets where failures of the store are logged; the default is what slog.Default
// is when Handler is called, and nil is nowhere.
func Logger(l *slog.Logger) Option {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return func(m *middleware) { m.log = l }
}

// Handler returns a handler that runs next once for each key.
//
// What next sees is the request as it came, its body read; its context ends when the
// client goes away, as ever. What it answers goes out as it is. It is held back until it
// is stored, or until next flushes it or it is longer than MaxAnswer. 1xx responses and
// what http.ResponseController does are passed on; the writer is no http.Pusher.
//
// Fields that were in the header before next ran are not stored, and of those that it
// adds to only what it adds: they are of the one request, such as its id. Fields of the connection and Date are not either.
func Handler(next http.Handler, store Store, opts ...Option) http.Handler {
	if next == nil || store == nil {
		panic("idempotent: Handler: the handler or the store is nil")
	}
	m := &middleware{
		store:    store,
		methods:  []string{http.MethodPost, http.MethodPatch},
		ttl:      24 * time.Hour,
		lease:    30 * time.Second,
		scope:    routeAndAuthorization,
		maxBody:  1 << 20,
		maxReply: 1 << 20,
		remember: DefaultRemember,
		log:      slog.Default(),
	}
	for _, o := range opts {
		o(m)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

// Middleware returns Handler in the form that routers take.
func Middleware(store Store, opts ...Option) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler { return Handler(next, store, opts...) }
}

func routeAndAuthorization(r *http.Request) string {
	route := r.Pattern
	if route == "" {
		route = r.URL.Path
	}
	return strconv.Quote(route) + strconv.Quote(r.Header.Get("Authorization"))
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !slices.Contains(m.methods, r.Method) {
		next.ServeHTTP(w, r)
		return
	}
	values := r.Header.Values(KeyHeader)
	if len(values) == 0 {
		if m.required {
			m.refuse(w, http.StatusBadRequest, missing, 0)
			return
		}
		next.ServeHTTP(w, r)
		return
	}
	key, ok := parseKey(values)
	if !ok {
		m.refuse(w, http.StatusBadRequest, malformed, 0)
		return
	}
	body, err := readBody(w, r, m.maxBody)
	if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
		m.refuse(w, http.StatusRequestEntityTooLarge, tooLarge, 0)
		return
	} else if err != nil {
		m.refuse(w, http.StatusBadRequest, unreadable, 0)
		return
	}
	r = withBody(r, body)
	m.protect(w, r, next, m.name(r, key), fingerprint(r, body))
}

// name is what the key is called in the store: it tells nothing, and the parts cannot
// be shifted into each other.
func (m *middleware) name(r *http.Request, key string) string {
	return digest([]byte(m.scope(r)), []byte(key))
}

// fingerprint is the same for the same request. The path is as it was sent: %2F and a
// slash are not the same. A form that was parsed above has used up the body.
func fingerprint(r *http.Request, body []byte) string {
	return digest([]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), body, []byte(r.PostForm.Encode()))
}

func digest(parts ...[]byte) string {
	h := sha256.New()
	var length []byte
	for _, p := range parts {
		length = append(strconv.AppendInt(length[:0], int64(len(p)), 10), ':')
		h.Write(length)
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	return io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
}

func withBody(r *http.Request, body []byte) *http.Request {
	r = r.WithContext(r.Context())
	if body != nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return r
}

// protect runs next if the key is new, and answers for it if not.
func (m *middleware) protect(w http.ResponseWriter, r *http.Request, next http.Handler, key, print string) {
	c := claim{m, key, rand.Text(), context.WithoutCancel(r.Context())}
	v, err := m.store.Begin(r.Context(), key, Claim{Owner: c.owner, Fingerprint: print, Lease: m.lease, TTL: m.ttl, TakeOver: m.takeOver})
	gone := r.Context().Err() != nil
	switch {
	case err != nil && m.failOpen && !gone:
		m.log.WarnContext(r.Context(), "idempotent: the store failed; a request runs unprotected", "err", err)
		next.ServeHTTP(w, r)
	case err != nil:
		if !gone {
			m.log.ErrorContext(r.Context(), "idempotent: the store failed; a request is refused", "err", err)
		}
		m.refuse(w, http.StatusServiceUnavailable, storeFailed, 1)
		_ = http.NewResponseController(w).Flush()
		// The claim may have been made all the same, and nothing will come of it.
		_ = c.do(func(ctx context.Context) error { return m.store.Abandon(ctx, key, c.owner) })
	case v.State != Claimed && v.Fingerprint != print:
		m.refuse(w, http.StatusUnprocessableEntity, reused, 0)
	case v.State == Running:
		m.refuse(w, http.StatusConflict, running, 1)
	case v.State == Lost:
		m.refuse(w, http.StatusConflict, lost, 0)
	case v.State == Done && v.Record.Unstored:
		m.refuse(w, http.StatusConflict, unstored, 0)
	case v.State == Done:
		replay(w, v.Record)
	default:
		c.run(w, r, next, v)
	}
}

// A claim is what a request holds on its key.
type claim struct {
	*middleware
	key, owner string
	ctx        context.Context // the store's; it does not end when the client goes
}

// run calls the handler, and stores what it answers.
func (c claim) run(w http.ResponseWriter, r *http.Request, next http.Handler, v Verdict) {
	if v.Context != nil {
		r = r.WithContext(v.Context)
	}
	rec := newRecorder(w, r, c.maxReply, v.Transactional)
	answered := false
	defer func() {
		if !answered { // but panicked, ended its goroutine, or did as if nobody were there
			c.lose(rec)
		}
	}()
	defer c.keepAlive()()
	next.ServeHTTP(rec, r)
	if gone := r.Context().Err() != nil; !gone || !rec.resigned() {
		c.conclude(rec, gone)
		answered = true
	}
}

func (c claim) conclude(rec *recorder, gone bool) {
	record, whole := rec.record(gone)
	switch {
	case rec.hold && !whole: // what there is of it may not be sent either
		c.abandon()
		rec.reset()
		c.refuse(rec.ResponseWriter, http.StatusInternalServerError, notWhole, 0)
		return
	case !rec.hijacked && !c.remember(record.Status):
		c.abandon()
	default:
		err := c.do(func(ctx context.Context) error { return c.store.Finish(ctx, c.key, c.owner, record, c.ttl) })
		c.note("an answer could not be stored", err)
		if err != nil && rec.hold {
			rec.reset()
			c.refuse(rec.ResponseWriter, http.StatusServiceUnavailable, storeFailed, 1)
			return
		}
	}
	rec.release()
}

// abandon frees the key: nothing was done.
func (c claim) abandon() {
	c.note("a key could not be freed", c.do(func(ctx context.Context) error { return c.store.Abandon(ctx, c.key, c.owner) }))
}

// lose gives the claim up, without saying that nothing was done, as the end of the
// process would. Of a transaction nothing is left.
func (c claim) lose(rec *recorder) {
	if rec.hold {
		c.abandon()
		return
	}
	c.note("a lease could not be ended", c.do(func(ctx context.Context) error { return c.store.Renew(ctx, c.key, c.owner, 0) }))
}

// storeTime is how long a step of the store may take after the handler.
const storeTime = 10 * time.Second

func (c claim) do(step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(c.ctx, storeTime)
	defer cancel()
	return step(ctx)
}

func (c claim) note(what string, err error) {
	if err != nil {
		c.log.ErrorContext(c.ctx, "idempotent: "+what, "err", err)
	}
}

// keepAlive renews the lease until it is stopped. It goes on while the answer is stored,
// which may take longer than a short lease.
func (c claim) keepAlive() (stop func()) {
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan struct{})
	timer := time.AfterFunc(c.lease/3, func() {
		defer close(done)
		// The time that a step hangs is part of the pause after it, or one that does would
		// leave no time for another within the lease.
		next := time.NewTicker(c.lease / 3)
		defer next.Stop()
		for ctx.Err() == nil && c.renew(ctx) {
			select {
			case <-next.C:
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-done
		}
	}
}

// renew reports whether it makes sense to go on. A claim that is gone was finished, or
// taken over, of which Finish tells.
func (c claim) renew(ctx context.Context) bool {
	step, cancel := context.WithTimeout(ctx, c.lease/3)
	defer cancel()
	err := c.store.Renew(step, c.key, c.owner, c.lease)
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrNotOwner) {
		c.log.WarnContext(ctx, "idempotent: a lease could not be renewed", "err", err)
	}
	return !errors.Is(err, ErrNotOwner)
}
