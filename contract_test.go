package retrip_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// The contract of a RoundTripper is checked in every cell of a grid: each
// configuration with each thing that a base may do, each kind of body and each kind
// of caller. A cell is a bubble, which fails if a goroutine outlives the request.

var (
	errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	errReset   = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	errOdd     = errors.New("nobody knows this error")
	errSource  = errors.New("the caller's reader failed")
	errBoom    = errors.New("boom")
)

type contractConfig struct {
	name      string
	zero      bool // the zero Transport
	opts      []retrip.Option
	overrides []retrip.CallOption
	most      int  // attempts
	untouched bool // the base gets the caller's own request
	timeout   bool // there is an attempt timeout
}

func contractConfigs() []contractConfig {
	small, short := retrip.WithMaxBody(8), retrip.WithAttemptTimeout(time.Second)
	trace := retrip.WithTrace(&retrip.Trace{
		Attempted: func(retrip.AttemptedInfo) {}, Pausing: func(retrip.PausingInfo) {},
		GaveUp: func(retrip.GaveUpInfo) {}, BreakerMoved: func(retrip.BreakerMovedInfo) {},
	})
	logger := retrip.WithLogger(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})))
	return []contractConfig{
		{name: "zero", zero: true, most: 1, untouched: true},
		{name: "default", most: 4},
		{name: "one attempt", opts: []retrip.Option{retrip.WithMaxAttempts(1)}, most: 1, untouched: true},
		{name: "no keys", opts: []retrip.Option{small, retrip.WithIdempotencyKey(nil)}, most: 4},
		{name: "attempt timeout", opts: []retrip.Option{small, short}, most: 4, timeout: true},
		{name: "one attempt with a timeout", opts: []retrip.Option{retrip.WithMaxAttempts(1), short}, most: 1, timeout: true},
		{name: "no breaker and no quota", opts: []retrip.Option{small, retrip.WithBreaker(nil), retrip.WithRetryQuota(nil)}, most: 4},
		{name: "trace and logger", opts: []retrip.Option{small, trace, logger}, most: 4},
		{name: "no recording", opts: []retrip.Option{retrip.WithMaxBody(0)}, most: 4},
		{name: "override", overrides: []retrip.CallOption{small, short, retrip.WithMaxAttempts(2)}, most: 2, timeout: true},
	}
}

// reading is what a base does with a request's body.
type reading int

const (
	first   reading = iota // reads and closes it before it answers
	beside                 // answers while it reads it, and closes it some time later
	never                  // closes it unread
	forgets                // neither, since it panics
)

type contractMove struct {
	reading
	step
}

type contractOutcome struct {
	name  string
	moves []contractMove // the last repeats
	hangs bool
}

// bodyless is a response with nil or NoBody for its body.
func bodyless(status int, body io.ReadCloser) step {
	return func(req *http.Request) (*http.Response, error) {
		resp, err := answer(status)(req)
		resp.Body, resp.ContentLength = body, 0
		return resp, err
	}
}

func explode(*http.Request) (*http.Response, error) { panic(errBoom) }

func both(req *http.Request) (*http.Response, error) {
	resp, _ := answer(503)(req)
	return resp, errReset
}

// hangs ends with the request, however the caller ends it.
func hangs(req *http.Request) (*http.Response, error) {
	select {
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	case <-req.Cancel: //lint:ignore SA1019 net/http heeds it
		return nil, errors.New("net/http: request canceled")
	}
}

var contractOutcomes = []contractOutcome{
	{name: "200", moves: []contractMove{{first, answer(200)}}},
	{name: "503 then 200", moves: []contractMove{{first, answer(503)}, {first, answer(200)}}},
	{name: "503 always", moves: []contractMove{{first, answer(503)}}},
	{name: "503 without a body, then 204", moves: []contractMove{{first, bodyless(503, nil)}, {first, bodyless(204, http.NoBody)}}},
	{name: "204 without a body", moves: []contractMove{{first, bodyless(204, nil)}}},
	{name: "refused then 200", moves: []contractMove{{never, fail(errRefused)}, {first, answer(200)}}},
	{name: "reset always", moves: []contractMove{{first, fail(errReset)}}},
	{name: "unknown error", moves: []contractMove{{first, fail(errOdd)}}},
	{name: "neither response nor error", moves: []contractMove{{first, fail(nil)}}},
	{name: "both response and error", moves: []contractMove{{first, both}}},
	{name: "hangs", moves: []contractMove{{first, hangs}}, hangs: true},
	{name: "503 then hangs", moves: []contractMove{{first, answer(503)}, {first, hangs}}, hangs: true},
	{name: "panics", moves: []contractMove{{forgets, explode}}},
	{name: "503 then panics", moves: []contractMove{{first, answer(503)}, {forgets, explode}}},
	{name: "200 before the upload ends", moves: []contractMove{{beside, answer(200)}}},
	{name: "503 before the upload ends, then 200", moves: []contractMove{{beside, answer(503)}, {first, answer(200)}}},
	{name: "reset before the upload ends", moves: []contractMove{{beside, fail(errReset)}}},
}

type contractBody struct {
	name    string
	none    io.ReadCloser // the body itself, if there is nothing to read in it
	text    string
	fails   bool // ends in errSource
	blocks  bool // ends when it is closed
	rewinds bool // has GetBody
	length  int64
}

var contractBodies = []contractBody{
	{name: "no body"},
	{name: "NoBody", none: http.NoBody},
	{name: "GetBody", text: "twelve bytes", length: 12, rewinds: true},
	{name: "GetBody that fails", text: "ab", fails: true, rewinds: true},
	{name: "GetBody that blocks", text: "ab", blocks: true, rewinds: true},
	{name: "stream below the cap", text: "seven b"},
	{name: "stream at the cap", text: "8 bytes."},
	{name: "stream over the cap", text: "twelve bytes"},
	{name: "stream declared over the cap", text: "twelve bytes", length: 12},
	{name: "stream that fails", text: "ab", fails: true},
	{name: "pipe that blocks", text: "ab", blocks: true},
}

// A sourceBody is a caller's body that may block until it is closed.
type sourceBody struct {
	trackedBody
	once   sync.Once
	closed chan struct{}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func (k contractBody) open() *sourceBody {
	b := &sourceBody{closed: make(chan struct{})}
	b.Reader = strings.NewReader(k.text)
	switch {
	case k.fails:
		b.Reader = io.MultiReader(b.Reader, iotest.ErrReader(errSource))
	case k.blocks:
		b.Reader = io.MultiReader(b.Reader, readerFunc(func([]byte) (int, error) {
			<-b.closed
			return 0, io.ErrClosedPipe
		}))
	}
	return b
}

func (b *sourceBody) Close() error {
	err := b.trackedBody.Close() // first, so that it counts when the Read ends
	b.once.Do(func() { close(b.closed) })
	return err
}

type contractCaller struct {
	name, method string
	context      bool // has a context that can end
	cancel       bool // has a Request.Cancel
}

var contractCallers = []contractCaller{
	{name: "GET", method: http.MethodGet},
	{name: "GET with Cancel", method: http.MethodGet, cancel: true},
	{name: "PUT with a context", method: http.MethodPut, context: true},
	{name: "POST with a context", method: http.MethodPost, context: true},
	{name: "POST with Cancel", method: http.MethodPost, cancel: true},
}

// A foreignContext is not one of package context: whoever derives a context from it
// or waits for its end, and forgets about that, leaves a goroutine behind.
type foreignContext struct {
	context.Context
	done chan struct{}
}

func (c foreignContext) Done() <-chan struct{} { return c.done }

func (c foreignContext) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// A contractBase keeps its side of the contract: it closes each body once, also
// under a Read that blocks when the request ends.
type contractBase struct {
	moves []contractMove
	busy  sync.WaitGroup // with bodies, after RoundTrip returned

	mu       sync.Mutex
	calls    []*contractCall
	panicked bool
}

type contractCall struct {
	req      *http.Request
	read     string
	readErr  error // nil if the body was read to its end
	resp     *http.Response
	respBody io.ReadCloser
}

func (b *contractBase) RoundTrip(req *http.Request) (*http.Response, error) {
	call := &contractCall{req: req, readErr: io.ErrNoProgress}
	b.mu.Lock()
	b.calls = append(b.calls, call)
	move := b.moves[min(len(b.calls), len(b.moves))-1]
	b.panicked = move.reading == forgets
	b.mu.Unlock()

	switch {
	case req.Body == nil || move.reading == forgets:
	case move.reading == never:
		_ = req.Body.Close()
	case move.reading == first:
		if call.upload(); call.readErr != nil {
			return nil, call.readErr
		}
	case move.reading == beside:
		b.busy.Go(call.upload)
	}
	resp, err := move.step(req)
	if resp != nil {
		if resp.Body != nil && resp.Body != http.NoBody {
			resp.Body = &trackedBody{Reader: resp.Body}
		}
		call.resp, call.respBody = resp, resp.Body
	}
	return resp, err
}

func (c *contractCall) upload() {
	closeBody := sync.OnceFunc(func() { _ = c.req.Body.Close() })
	over := make(chan struct{})
	go func() {
		select {
		case <-c.req.Context().Done():
		case <-c.req.Cancel: //lint:ignore SA1019 net/http heeds it
		case <-over:
			return
		}
		select {
		case <-time.After(1): // when a Read either blocks or is over: a late one would be ours
			closeBody()
		case <-over:
		}
	}()
	read, err := io.ReadAll(c.req.Body)
	c.read, c.readErr = string(read), err
	close(over)
	closeBody()
}

type contractCell struct {
	contractConfig
	contractOutcome
	body   contractBody
	caller contractCaller
}

// endless reports whether only the caller can end the request, or its upload.
func (c contractCell) endless() bool { return c.contractOutcome.hangs || c.body.blocks }

func TestTheContractHoldsInEveryCell(t *testing.T) {
	// Not parallel: the base of the zero Transport is a global of net/http.
	for _, config := range contractConfigs() {
		t.Run(config.name, func(t *testing.T) {
			if !config.zero {
				t.Parallel()
			}
			for _, outcome := range contractOutcomes {
				for _, body := range contractBodies {
					for _, caller := range contractCallers {
						c := contractCell{config, outcome, body, caller}
						if c.endless() && !caller.context && !caller.cancel {
							continue
						}
						t.Run(strings.Join([]string{outcome.name, body.name, caller.name}, "/"), func(t *testing.T) {
							synctest.Test(t, c.run)
						})
					}
				}
			}
		})
	}
}

func (c contractCell) run(t *testing.T) {
	base := &contractBase{moves: c.moves}
	rt := &retrip.Transport{}
	if c.zero {
		setDefaultTransport(t, base)
	} else {
		rt = retrip.New(base, c.opts...)
	}
	req, end, bodies := c.request()
	before := photograph(req)
	if c.endless() {
		timer := time.AfterFunc(time.Minute, end)
		defer timer.Stop()
	}
	resp, panicked, err := try(rt, req)

	before.requireUnchanged(t, req)
	if !c.uploadsBeside() {
		requireAllClosed(t, bodies())
	}
	if base.panicked {
		require.Equal(t, errBoom, panicked)
	} else {
		require.Nil(t, panicked)
		require.Equal(t, resp == nil, err != nil, "there is an error exactly if there is no response")
		c.requireSourceError(t, base.calls, err)
	}
	c.requireResponse(t, base.calls, req, resp)

	if c.endless() {
		synctest.Wait() // so that it does not close the body just before a Read
		end()
	}
	base.busy.Wait()
	c.requireRequests(t, base.calls, req)
	requireAllClosed(t, bodies())
	before.requireUnchanged(t, req)
}

func (c contractCell) uploadsBeside() bool { return c.moves[0].reading == beside }

// request makes the caller's request, what ends it, and what tells of its bodies.
func (c contractCell) request() (req *http.Request, end func(), bodies func() []*sourceBody) {
	done := make(chan struct{})
	end = sync.OnceFunc(func() { close(done) })
	req = &http.Request{
		Method: c.caller.method, URL: &url.URL{Scheme: "http", Host: "Example.com", Path: "/path", RawQuery: "q=1"},
		Header: http.Header{"X-Many": {"1", "2"}}, Trailer: http.Header{"X-Sum": nil}, Host: "virtual.example",
		Body: c.body.none, ContentLength: c.body.length,
	}
	if c.caller.cancel {
		req.Cancel = done //lint:ignore SA1019 callers and net/http use it
	}
	ctx := context.Background()
	if c.caller.context {
		ctx = foreignContext{ctx, done}
	}
	if c.overrides != nil {
		ctx = retrip.Override(ctx, c.overrides...)
	}
	req = req.WithContext(ctx)

	var mu sync.Mutex
	var all []*sourceBody
	open := func() (io.ReadCloser, error) {
		b := c.body.open()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, b)
		return b, nil
	}
	if c.body.text != "" {
		req.Body, _ = open()
	}
	if c.body.rewinds {
		req.GetBody = open
	}
	return req, end, func() []*sourceBody {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

func try(rt http.RoundTripper, req *http.Request) (resp *http.Response, panicked any, err error) {
	defer func() { panicked = recover() }()
	resp, err = rt.RoundTrip(req)
	return
}

// setDefaultTransport sets http.DefaultTransport for a test that is not parallel.
func setDefaultTransport(t *testing.T, base http.RoundTripper) {
	was := http.DefaultTransport
	http.DefaultTransport = base
	t.Cleanup(func() { http.DefaultTransport = was })
}

func requireAllClosed(t *testing.T, bodies []*sourceBody) {
	t.Helper()
	for _, b := range bodies {
		b.requireClosed(t)
	}
}

// requireSourceError fails if an error of the caller's reader does not come back as it
// is and at once.
func (c contractCell) requireSourceError(t *testing.T, calls []*contractCall, err error) {
	t.Helper()
	if c.uploadsBeside() {
		return
	}
	for i, call := range calls {
		if errors.Is(call.readErr, errSource) {
			require.Equal(t, errSource, err)
			require.Len(t, calls, i+1, "a failing reader is not asked again")
		}
	}
}

// requireResponse looks at all responses: the last is handed back as it is, the
// others were closed.
func (c contractCell) requireResponse(t *testing.T, calls []*contractCall, req *http.Request, resp *http.Response) {
	t.Helper()
	last := len(calls) - 1
	require.Less(t, last, c.most)
	for i, call := range calls {
		if b, ok := call.respBody.(*trackedBody); ok && (i < last || resp == nil) {
			b.requireClosed(t)
		}
	}
	if resp == nil {
		return
	}
	call := calls[last]
	require.Same(t, call.resp, resp)
	if last == 0 {
		require.Same(t, req, resp.Request)
		require.Nil(t, retrip.History(resp))
	} else {
		require.Empty(t, differing(req, resp.Request))
		require.NoError(t, resp.Request.Context().Err())
		require.Equal(t, 1, retrip.AttemptNumber(resp.Request.Context()))
		require.Len(t, retrip.History(resp), len(calls))
	}
	b, ok := call.respBody.(*trackedBody)
	if !ok {
		require.Equal(t, call.respBody, resp.Body, "no body and NoBody stay that")
		return
	}
	if !c.timeout {
		require.Same(t, b, resp.Body)
	}
	require.Equal(t, "x", finish(t, resp))
	b.requireClosed(t)
}

// requireRequests looks at what the base was given.
func (c contractCell) requireRequests(t *testing.T, calls []*contractCall, req *http.Request) {
	t.Helper()
	for _, call := range calls {
		if c.untouched {
			require.Same(t, req, call.req)
		}
		require.Subset(t, []string{"Header", "Body", "GetBody"}, differing(req, call.req))
		if req.Body == nil || req.Body == http.NoBody {
			require.Equal(t, req.Body, call.req.Body)
		}
		if call.readErr == nil {
			require.Equal(t, c.body.text, call.read)
		}
		if c.timeout {
			require.Error(t, call.req.Context().Err(), "the attempt's context was released")
		}
	}
}

// A photo shows whether a request was changed.
type photo struct {
	ctx             context.Context
	req             http.Request
	url             url.URL
	header, trailer http.Header
}

func photograph(req *http.Request) photo {
	return photo{req.Context(), *req, *req.URL, req.Header.Clone(), req.Trailer.Clone()}
}

func (p *photo) requireUnchanged(t *testing.T, req *http.Request) {
	t.Helper()
	require.Empty(t, differing(&p.req, req))
	require.True(t, p.ctx == req.Context())
	require.Equal(t, p.url, *req.URL)
	require.Equal(t, p.header, req.Header)
	require.Equal(t, p.trailer, req.Trailer)
}

// differing names the fields that are not identical.
func differing(a, b *http.Request) (names []string) {
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range x.NumField() {
		if field := x.Type().Field(i); field.IsExported() && !identical(x.Field(i), y.Field(i)) {
			names = append(names, field.Name)
		}
	}
	return names
}

func identical(x, y reflect.Value) bool {
	switch x.Kind() {
	case reflect.Map, reflect.Func, reflect.Slice:
		return x.UnsafePointer() == y.UnsafePointer()
	}
	return x.Interface() == y.Interface()
}

func TestTheBodyIsClosedOnPathsThatDoNotReachTheBase(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancelCause(context.Background())
	cancel(errBoom)
	breaker := retrip.DefaultBreaker()
	breaker.Failures = 1
	tests := []struct {
		name string
		ctx  context.Context
		opts []retrip.Option
		open bool // the breaker is
		want string
	}{
		{name: "the context has ended", ctx: ended, want: "boom"},
		{name: "the key cannot be sent", opts: []retrip.Option{
			retrip.WithIdempotencyKey(func(*http.Request) string { return "two\r\nlines" })}, want: "idempotency key"},
		{name: "the breaker is open", opts: []retrip.Option{retrip.WithBreaker(&breaker)}, open: true, want: "breaker"},
	}
	for _, tt := range tests {
		for _, body := range contractBodies {
			t.Run(tt.name+"/"+body.name, func(t *testing.T) {
				t.Parallel()
				base := play(fail(errOdd))
				rt := retrip.New(base, tt.opts...)
				if tt.open {
					_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
					require.ErrorIs(t, err, errOdd)
				}
				sent := len(base.attempts())
				c := contractCell{body: body, caller: contractCaller{method: http.MethodPost}}
				req, _, bodies := c.request()
				req.URL.Host = "example.com"
				if tt.ctx != nil {
					req = req.WithContext(tt.ctx)
				}
				resp, err := rt.RoundTrip(req)
				require.Nil(t, resp)
				require.ErrorContains(t, err, tt.want)
				require.Len(t, base.attempts(), sent)
				requireAllClosed(t, bodies())
			})
		}
	}
}

// An upgraded is the body of a 101 response: a connection.
type upgraded struct {
	io.ReadWriteCloser
}

func (upgraded) CloseWrite() error { return nil }

func TestResponseBodiesKeepTheirIdentity(t *testing.T) {
	t.Parallel()
	bodies := []struct {
		name   string
		body   io.ReadCloser
		status int
		wraps  bool // by an attempt timeout
	}{
		{"nil", nil, 204, false},
		{"NoBody", http.NoBody, 204, false},
		{"plain", &trackedBody{Reader: strings.NewReader("x")}, 200, true},
		{"upgraded", upgraded{}, 101, false},
	}
	for _, b := range bodies {
		for _, timeout := range []time.Duration{0, time.Second} {
			for _, steps := range [][]step{{bodyless(b.status, b.body)}, {answer(503), bodyless(b.status, b.body)}} {
				synctest.Test(t, func(t *testing.T) {
					base := play(steps...)
					resp, err := retrip.New(base, retrip.WithAttemptTimeout(timeout)).RoundTrip(request(t, http.MethodGet, nil))
					require.NoError(t, err)
					require.Equal(t, b.status, resp.StatusCode)
					if timeout > 0 && b.wraps {
						require.NoError(t, resp.Body.Close())
					} else {
						require.True(t, b.body == resp.Body, "%s after %d attempts", b.name, len(steps))
					}
					last := base.attempts()[len(steps)-1].req.Context()
					time.Sleep(time.Hour)
					require.NotErrorIs(t, context.Cause(last), context.DeadlineExceeded, "no timer is left")
				})
			}
		}
	}
}

// A bomb is a handler that panics.
type bomb struct{ slog.Handler }

func (bomb) Handle(context.Context, slog.Record) error { panic(errBoom) }

func TestAPanicOfUserCodePassesThroughAfterAllWasGivenBack(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		opts    []retrip.Option
		getBody func() (io.ReadCloser, error)
		reads   io.Reader // the body of the response
		spent   float64   // tokens for retries that reached the base
	}{
		{name: "policy", opts: []retrip.Option{retrip.WithPolicy(func(retrip.Attempt) bool { panic(errBoom) })}},
		{name: "backoff", opts: []retrip.Option{retrip.WithBackoff(func(int, time.Duration) time.Duration { panic(errBoom) })}},
		{name: "later backoff", opts: []retrip.Option{retrip.WithBackoff(func(retry int, _ time.Duration) time.Duration {
			if retry == 2 {
				panic(errBoom)
			}
			return time.Second
		})}, spent: 1},
		{name: "key", opts: []retrip.Option{retrip.WithIdempotencyKey(func(*http.Request) string { panic(errBoom) })}},
		{name: "host key", opts: []retrip.Option{retrip.WithHosts(1, func(*http.Request) string { panic(errBoom) })}},
		{name: "logger", opts: []retrip.Option{retrip.WithLogger(slog.New(bomb{slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})}))}},
		{name: "GetBody", getBody: func() (io.ReadCloser, error) { panic(errBoom) }},
		{name: "response body", reads: readerFunc(func([]byte) (int, error) { panic(errBoom) })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var answers []*trackedBody
				base := play(func(req *http.Request) (*http.Response, error) {
					resp, err := answer(503)(req)
					body := &trackedBody{Reader: resp.Body}
					if tt.reads != nil {
						body.Reader = tt.reads
					}
					answers = append(answers, body)
					resp.Body = body
					return resp, err
				})
				rt := retrip.New(base, append([]retrip.Option{retrip.WithAttemptTimeout(time.Minute)}, tt.opts...)...)
				body := track("hello")
				req := request(t, http.MethodPost, body)
				req.GetBody = tt.getBody
				req = req.WithContext(foreignContext{Context: context.Background()})
				_, panicked, _ := try(rt, req)
				require.Equal(t, errBoom, panicked)
				body.requireClosed(t)
				for _, b := range answers {
					b.requireClosed(t)
				}
				for _, stats := range rt.Hosts() {
					require.Equal(t, 10-tt.spent, stats.Tokens)
				}
				for _, saw := range base.attempts() {
					require.Error(t, saw.req.Context().Err(), "the attempt's context was released")
				}
			})
		})
	}
}
