package idempotent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip/idempotent"
	"github.com/stretchr/testify/require"
)

// quiet keeps the failures that a test makes out of its output.
var quiet = idempotent.Logger(nil)

func post(key, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(body))
	if key != "" {
		r.Header.Set(idempotent.KeyHeader, key)
	}
	return r
}

func serve(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func read(t testing.TB, resp *http.Response) string {
	t.Helper()
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(b)
}

// answers requires a status and a body, which is the answer's own and no replay.
func answers(t testing.TB, resp *http.Response, status int, body string) {
	t.Helper()
	require.Equal(t, body, read(t, resp))
	require.Equal(t, status, resp.StatusCode)
	require.Empty(t, resp.Header[idempotent.ReplayedHeader])
}

// replays requires the same of a replay.
func replays(t testing.TB, resp *http.Response, status int, body string) {
	t.Helper()
	require.Equal(t, body, read(t, resp))
	require.Equal(t, status, resp.StatusCode)
	require.Equal(t, []string{"true"}, resp.Header[idempotent.ReplayedHeader])
}

// refuses requires a problem whose type ends with the fragment.
func refuses(t testing.TB, resp *http.Response, status int, fragment string) {
	t.Helper()
	body := read(t, resp)
	require.Equal(t, status, resp.StatusCode, body)
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	require.Empty(t, resp.Header[idempotent.ReplayedHeader])
	var p struct {
		Type, Title, Detail string
		Status              int
	}
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&p))
	require.Equal(t, "#"+fragment, p.Type)
	require.Equal(t, status, p.Status)
	require.NotEmpty(t, p.Title)
	require.NotEmpty(t, p.Detail)
}

// A counter is a handler that says how often it ran.
type counter struct {
	runs atomic.Int64
	http.Handler
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.runs.Add(1)
	c.Handler.ServeHTTP(w, r)
}

func count(f http.HandlerFunc) *counter { return &counter{Handler: f} }

// status is a handler that answers with one.
func status(code int) *counter {
	return count(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
}

// say is a handler that answers 201 and some text.
func say(text string) *counter {
	return count(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, text)
	})
}

// A store is Memory, but for what a test puts in its way.
type store struct {
	idempotent.Store
	begin                  func(context.Context, string, idempotent.Claim) (idempotent.Verdict, error)
	renew, finish, abandon func(context.Context) error
}

func (s *store) Begin(ctx context.Context, key string, c idempotent.Claim) (idempotent.Verdict, error) {
	if s.begin != nil {
		return s.begin(ctx, key, c)
	}
	return s.Store.Begin(ctx, key, c)
}

func before(ctx context.Context, f func(context.Context) error) error {
	if f == nil {
		return nil
	}
	return f(ctx)
}

func (s *store) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	if err := before(ctx, s.renew); err != nil {
		return err
	}
	return s.Store.Renew(ctx, key, owner, lease)
}

func (s *store) Finish(ctx context.Context, key, owner string, r idempotent.Record, ttl time.Duration) error {
	if err := before(ctx, s.finish); err != nil {
		return err
	}
	return s.Store.Finish(ctx, key, owner, r, ttl)
}

func (s *store) Abandon(ctx context.Context, key, owner string) error {
	if err := before(ctx, s.abandon); err != nil {
		return err
	}
	return s.Store.Abandon(ctx, key, owner)
}

var errStore = errors.New("the store is down")

func fails(context.Context) error { return errStore }

// A page is where a logger writes.
type page struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (p *page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

func (p *page) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

func (p *page) option() idempotent.Option {
	return idempotent.Logger(slog.New(slog.NewTextHandler(p, nil)))
}

// panics calls a handler that does, and returns its panic's value.
func panics(h http.Handler, r *http.Request) (value any) {
	defer func() { value = recover() }()
	h.ServeHTTP(httptest.NewRecorder(), r)
	return nil
}

// start serves h on loopback.
func start(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func send(t testing.TB, s *httptest.Server, key, body string) *http.Response {
	t.Helper()
	resp, err := trySend(t.Context(), s, key, body)
	require.NoError(t, err)
	return resp
}

func trySend(ctx context.Context, s *httptest.Server, key, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/charges", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set(idempotent.KeyHeader, key)
	r.Header.Set("Accept-Encoding", "identity")
	return s.Client().Do(r)
}
