package retrip_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A roundTrip is a base made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A step is what a scripted base does with one attempt.
type step func(*http.Request) (*http.Response, error)

// A script is a base that plays one step an attempt; the last one repeats. Like
// any base that keeps the contract it reads and closes the request's body first.
type script struct {
	steps []step

	mu   sync.Mutex
	seen []sighting
}

// A sighting is one attempt as the base saw it.
type sighting struct {
	at     time.Time
	req    *http.Request
	header http.Header // a copy
	body   string
	err    error // of reading the body
}

func play(steps ...step) *script { return &script{steps: steps} }

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	saw := sighting{at: time.Now(), req: req, header: req.Header.Clone()}
	if req.Body != nil {
		var b []byte
		b, saw.err = io.ReadAll(req.Body)
		saw.body = string(b)
		_ = req.Body.Close()
	}
	s.mu.Lock()
	s.seen = append(s.seen, saw)
	next := s.steps[min(len(s.seen), len(s.steps))-1]
	s.mu.Unlock()
	if saw.err != nil {
		return nil, saw.err
	}
	return next(req)
}

// attempts returns what the base has seen so far.
func (s *script) attempts() []sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]sighting(nil), s.seen...)
}

// pauses returns the times between the starts of the attempts.
func (s *script) pauses() []time.Duration {
	seen := s.attempts()
	var d []time.Duration
	for i := 1; i < len(seen); i++ {
		d = append(d, seen[i].at.Sub(seen[i-1].at))
	}
	return d
}

// answer is a response with the status, header fields given as name, value, name,
// value, and a body of one byte.
func answer(status int, fields ...string) step {
	return func(req *http.Request) (*http.Response, error) {
		h := http.Header{}
		for i := 0; i < len(fields); i += 2 {
			h.Add(fields[i], fields[i+1])
		}
		return &http.Response{
			StatusCode: status, Status: http.StatusText(status),
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: h, Body: io.NopCloser(strings.NewReader("x")), ContentLength: 1, Request: req,
		}, nil
	}
}

// fail is an attempt that ends in an error.
func fail(err error) step {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

// hang blocks until the attempt's context ends, as net/http would.
func hang(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, context.Cause(req.Context())
}

// after is a step that takes its time, unless the context ends first.
func after(d time.Duration, then step) step {
	return func(req *http.Request) (*http.Response, error) {
		select {
		case <-time.After(d):
			return then(req)
		case <-req.Context().Done():
			return nil, context.Cause(req.Context())
		}
	}
}

// A trackedBody is a request body without GetBody that knows what was done to it.
type trackedBody struct {
	io.Reader
	mu     sync.Mutex
	closes int
	late   bool // read after it was closed
}

func track(s string) *trackedBody { return &trackedBody{Reader: strings.NewReader(s)} }

var errLateRead = errors.New("read of a closed body")

func (b *trackedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.closes > 0 {
		b.late = true
		b.mu.Unlock()
		return 0, errLateRead
	}
	b.mu.Unlock()
	return b.Reader.Read(p)
}

func (b *trackedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closes++
	return nil
}

// requireClosed fails unless the body was closed exactly once and not read later.
func (b *trackedBody) requireClosed(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Equal(t, 1, b.closes, "the body is closed once")
	require.False(t, b.late, "the body is not read after it was closed")
}

// request makes a request for http://example.com/path; body may be nil.
func request(t testing.TB, method string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://example.com/path", body)
	require.NoError(t, err)
	return req
}

// finish reads a response's body to its end and closes it.
func finish(t testing.TB, resp *http.Response) string {
	t.Helper()
	require.NotNil(t, resp)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(b)
}
