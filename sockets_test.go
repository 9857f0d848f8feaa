package retrip_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// These tests are about what only net/http over real connections can show. No
// assertion depends on a time, except that what should come at once comes within
// patience.
const patience = 30 * time.Second

// A wire is a way of HTTP over a connection.
type wire string

const (
	http1  wire = "HTTP/1"
	https1 wire = "HTTP/1 over TLS"
	http2  wire = "HTTP/2"
	h2c    wire = "HTTP/2 without TLS"
)

// A site is a server on loopback that counts its connections.
type site struct {
	*httptest.Server
	base           *http.Transport // trusts the server
	opened, closed atomic.Int32
}

func newSite(t testing.TB, w wire, h http.HandlerFunc) *site {
	s := &site{Server: httptest.NewUnstartedServer(h)}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.opened.Add(1)
		case http.StateClosed:
			s.closed.Add(1)
		}
	}
	var plain *http.Protocols
	switch w {
	case http1:
		s.Start()
	case h2c:
		plain = new(http.Protocols)
		plain.SetUnencryptedHTTP2(true)
		s.Config.Protocols = plain
		s.Start()
	default:
		s.EnableHTTP2 = w == http2
		s.StartTLS()
	}
	t.Cleanup(s.Close)
	s.base = s.Client().Transport.(*http.Transport)
	s.base.Protocols = plain
	return s
}

// hasty are options by which neither pauses nor limits get in the way; more come
// on top.
func hasty(more ...retrip.Option) []retrip.Option {
	return append([]retrip.Option{
		retrip.WithBackoff(retrip.Constant(time.Millisecond)), retrip.WithRetryQuota(nil), retrip.WithBreaker(nil),
	}, more...)
}

func (s *site) client(opts ...retrip.Option) *http.Client {
	return &http.Client{Transport: retrip.New(s.base, hasty(opts...)...)}
}

// to makes a request; body may be nil.
func to(t testing.TB, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	require.NoError(t, err)
	return req
}

// requireOpened counts the connections, but not those of h2c: net/http itself dials
// a second one if a request comes before it has put the first among the idle.
func (s *site) requireOpened(t testing.TB, w wire, conns int32) {
	t.Helper()
	if w != h2c {
		require.Equal(t, conns, s.opened.Load(), "connections")
	}
}

// requireAllClosed calls closeIdle, again since HTTP/2 takes a moment to find that
// its last stream is over, until no connection is left.
func (s *site) requireAllClosed(t testing.TB, closeIdle func()) {
	t.Helper()
	eventually(t, func() bool { closeIdle(); return s.closed.Load() == s.opened.Load() }, "the connections are closed")
}

// do sends a request and reads the answer to its end.
func do(t testing.TB, c *http.Client, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := c.Do(req)
	require.NoError(t, err)
	return resp, finish(t, resp)
}

// unknown hides what net/http and retrip know of a reader: it has no GetBody and no
// length.
func unknown(r io.Reader) io.Reader { return struct{ io.Reader }{r} }

// inTurn answers the nth request as the nth handler does; the last one repeats.
func inTurn(steps ...http.HandlerFunc) http.HandlerFunc {
	var n atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		steps[min(int(n.Add(1)), len(steps))-1](w, r)
	}
}

// say answers with a status and a body.
func say(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// stall sends the headers and a part of the body, and then nothing more until the
// test ends.
func stall(t *testing.T, status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		say(status, "part")(w, r)
		_ = http.NewResponseController(w).Flush()
		<-t.Context().Done()
	}
}

// A hit is a request as a server saw it.
type hit struct {
	method, path, key, body string
	header, trailer         http.Header
	length                  int64
	err                     error // of reading the body
}

// A hitLog keeps the requests that a server saw.
type hitLog struct {
	mu   sync.Mutex
	hits []hit
}

// keep reads the request to its end before it goes on to next.
func (l *hitLog) keep(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		l.mu.Lock()
		l.hits = append(l.hits, hit{
			method: r.Method, path: r.URL.Path, key: r.Header.Get(retrip.KeyHeader), body: string(b),
			header: r.Header.Clone(), trailer: r.Trailer.Clone(), length: r.ContentLength, err: err,
		})
		l.mu.Unlock()
		next(w, r)
	}
}

func (l *hitLog) all() []hit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.hits)
}

// of lists one thing of each hit.
func of[T any](l *hitLog, what func(hit) T) (list []T) {
	for _, h := range l.all() {
		list = append(list, what(h))
	}
	return list
}

// soon waits for something that is due.
func soon[T any](t testing.TB, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		require.FailNow(t, "nothing came")
	}
	return v
}

// eventually waits until something is so that happens elsewhere.
func eventually(t testing.TB, so func() bool, what string) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !so(); <-tick.C {
		require.True(t, time.Now().Before(end), what)
	}
}

// background runs f and returns where its result will come.
func background[T any](f func() T) <-chan T {
	ch := make(chan T, 1)
	go func() { ch <- f() }()
	return ch
}

// listen serves every connection to a loopback port with serve, which closes it.
func listen(t testing.TB, config *tls.Config, serve func(net.Conn)) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if config != nil {
		l = tls.NewListener(l, config)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return l.Addr().String()
}

func TestSocketsStayOpenIfAnErrorCanBeDrained(t *testing.T) {
	t.Parallel()
	type row struct {
		size    int
		chunked bool
		conns   int32
	}
	rows := []row{
		{100, false, 1}, {8 << 10, false, 1}, {60 << 10, false, 1}, {64 << 10, false, 1}, {80 << 10, false, 2},
		{100, true, 1}, {8 << 10, true, 1}, {60 << 10, true, 1}, {80 << 10, true, 2},
	}
	// All at once: the pause leaves a busy machine the time to drain.
	var running []<-chan row
	for _, r := range rows {
		s := newSite(t, http1, inTurn(func(w http.ResponseWriter, _ *http.Request) {
			if !r.chunked {
				w.Header().Set("Content-Length", fmt.Sprint(r.size))
			}
			w.WriteHeader(503)
			if r.chunked {
				_ = http.NewResponseController(w).Flush()
			}
			_, _ = w.Write(make([]byte, r.size))
		}, say(200, "ok")))
		c, req := s.client(retrip.WithBackoff(retrip.Constant(time.Second))), to(t, "GET", s.URL, nil)
		running = append(running, background(func() row {
			resp, err := c.Do(req)
			if err != nil || resp.StatusCode != 200 {
				return row{}
			}
			_ = resp.Body.Close()
			return row{r.size, r.chunked, s.opened.Load()}
		}))
	}
	for i, r := range rows {
		require.Equal(t, r, soon(t, running[i]), "size, chunked, connections")
	}
}

func TestSocketsOfAnErrorWithoutEndDoNotHoldTheRetry(t *testing.T) {
	t.Parallel()
	endless := func(t *testing.T, status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			for chunk, err := make([]byte, 1<<10), error(nil); err == nil && t.Context().Err() == nil; {
				_, err = w.Write(chunk)
			}
		}
	}
	for name, body := range map[string]func(*testing.T, int) http.HandlerFunc{"endless": endless, "stalled": stall} {
		for w, conns := range map[wire]int32{http1: 2, https1: 2, http2: 1, h2c: 1} {
			t.Run(fmt.Sprintf("%s over %s", name, w), func(t *testing.T) {
				t.Parallel()
				s := newSite(t, w, inTurn(body(t, 503), say(200, "ok")))
				resp, text := do(t, s.client(), to(t, "GET", s.URL, nil))
				require.Equal(t, 200, resp.StatusCode)
				require.Equal(t, "ok", text)
				s.requireOpened(t, w, conns)
			})
		}
	}
}

func TestSocketsCarryBodiesOverRedirectsAndFailures(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		method, key string
		status      int
		keys        func(k []string) bool
	}{
		{"PUT", "", 307, func(k []string) bool { return k[0]+k[1]+k[2]+k[3] == "" }},
		{"PUT", "", 308, func(k []string) bool { return k[0]+k[1]+k[2]+k[3] == "" }},
		{"POST", "", 307, func(k []string) bool { return k[0] != "" && k[0] == k[1] && k[2] == k[3] && k[1] != k[2] }},
		{"POST", "", 308, func(k []string) bool { return k[0] != "" && k[0] == k[1] && k[2] == k[3] && k[1] != k[2] }},
		{"POST", "mine", 308, func(k []string) bool { return strings.Join(k, " ") == "mine mine mine mine" }},
	} {
		t.Run(fmt.Sprintf("%s %d %s", tc.method, tc.status, tc.key), func(t *testing.T) {
			t.Parallel()
			var seen hitLog
			s := newSite(t, http1, seen.keep(inTurn(say(503, ""), func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "/there", tc.status)
			}, say(503, ""), say(200, "ok"))))
			req := to(t, tc.method, s.URL+"/here", strings.NewReader("hello"))
			if tc.key != "" {
				req.Header.Set(retrip.KeyHeader, tc.key)
			}
			resp, body := do(t, s.client(), req)
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, "ok", body)
			require.Equal(t, []string{"/here", "/here", "/there", "/there"}, of(&seen, func(h hit) string { return h.path }))
			for _, h := range seen.all() {
				require.Equal(t, tc.method, h.method)
				require.Equal(t, "hello", h.body)
				require.EqualValues(t, 5, h.length)
			}
			keys := of(&seen, func(h hit) string { return h.key })
			require.True(t, tc.keys(keys), "%q", keys)
		})
	}
	t.Run("303 becomes a GET", func(t *testing.T) {
		t.Parallel()
		var seen hitLog
		s := newSite(t, http1, seen.keep(inTurn(say(503, ""), func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/there", 303)
		}, say(503, ""), say(200, "ok"))))
		resp, _ := do(t, s.client(), to(t, "POST", s.URL, strings.NewReader("hello")))
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, []string{"POST hello", "POST hello", "GET ", "GET "},
			of(&seen, func(h hit) string { return h.method + " " + h.body }))
	})
	t.Run("without GetBody the redirect is handed back", func(t *testing.T) {
		t.Parallel()
		var seen hitLog
		s := newSite(t, http1, seen.keep(inTurn(say(503, ""), func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/there", 307)
		})))
		resp, _ := do(t, s.client(), to(t, "PUT", s.URL, unknown(strings.NewReader("hello"))))
		require.Equal(t, 307, resp.StatusCode)
		require.Equal(t, []string{"hello", "hello"}, of(&seen, func(h hit) string { return h.body }))
	})
}

func TestSocketsAndClientTimeout(t *testing.T) {
	t.Parallel()
	hold := func(t *testing.T) http.HandlerFunc {
		return func(http.ResponseWriter, *http.Request) { <-t.Context().Done() }
	}
	for name, steps := range map[string]func(*testing.T) []http.HandlerFunc{
		"in the first attempt":  func(t *testing.T) []http.HandlerFunc { return []http.HandlerFunc{hold(t)} },
		"in the second attempt": func(t *testing.T) []http.HandlerFunc { return []http.HandlerFunc{say(503, ""), hold(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			late := 0
			for range 50 {
				s := newSite(t, http1, inTurn(steps(t)...))
				c := s.client()
				c.Timeout = 20 * time.Millisecond
				resp, err := c.Do(to(t, "GET", s.URL, nil))
				if err == nil { // a busy machine took so long that no pause fitted
					require.Equal(t, 503, resp.StatusCode)
					require.NoError(t, resp.Body.Close())
					late++
					continue
				}
				require.ErrorContains(t, err, "Client.Timeout exceeded")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				requireTimeout(t, err)
			}
			require.Less(t, late, 50)
		})
	}
	t.Run("a pause that would outlast it is not begun", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, http1, say(503, "busy"))
		c := s.client(retrip.WithBackoff(retrip.Constant(time.Hour)), retrip.WithBudget(2*time.Hour))
		c.Timeout = time.Minute
		resp, body := do(t, c, to(t, "GET", s.URL, nil))
		require.Equal(t, 503, resp.StatusCode)
		require.Equal(t, "busy", body)
	})
	t.Run("while the body is read", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, http1, inTurn(say(503, ""), stall(t, 200)))
		c := s.client()
		c.Timeout = 300 * time.Millisecond
		resp, err := c.Do(to(t, "GET", s.URL, nil))
		if err == nil { // else a busy machine took that long for the headers
			_, err = io.ReadAll(resp.Body)
			require.NoError(t, resp.Body.Close())
		}
		// Whether net/http names its Timeout here is a race that only a wrapper of the
		// body could decide.
		require.ErrorIs(t, err, context.DeadlineExceeded)
		requireTimeout(t, err)
	})
}

func requireTimeout(t testing.TB, err error) {
	t.Helper()
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout(), "%v", err)
}

func TestSocketsAndExpectContinue(t *testing.T) {
	t.Parallel()
	sent := randomBytes(100_000)
	for _, w := range []wire{http1, http2} {
		for name, body := range map[string]func() io.Reader{
			"with GetBody":    func() io.Reader { return bytes.NewReader(sent) },
			"without GetBody": func() io.Reader { return unknown(bytes.NewReader(sent)) },
		} {
			t.Run(fmt.Sprintf("%s, %s", w, name), func(t *testing.T) {
				t.Parallel()
				var seen hitLog
				s := newSite(t, w, inTurn(say(503, "not now"), seen.keep(say(200, "ok"))))
				s.base.ExpectContinueTimeout = time.Hour
				var waited, continued atomic.Int32
				req := to(t, "POST", s.URL, body())
				req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
					Wait100Continue: func() { waited.Add(1) },
					Got100Continue:  func() { continued.Add(1) },
				}))
				req.Header.Set("Expect", "100-continue")
				resp, text := do(t, s.client(), req)
				require.Equal(t, 200, resp.StatusCode)
				require.Equal(t, "ok", text)
				require.Len(t, seen.all(), 1)
				require.Equal(t, sha256.Sum256(sent), sha256.Sum256([]byte(seen.all()[0].body)))
				require.EqualValues(t, 2, waited.Load())
				require.EqualValues(t, 1, continued.Load())
			})
		}
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// requireEcho talks with a peer that sends back what it gets, ends its own side,
// and sees the peer do so too.
func requireEcho(t testing.TB, r io.Reader, w io.Writer, end func() error) {
	t.Helper()
	for i := range 3 {
		said := fmt.Sprintf("message %d", i)
		_, err := io.WriteString(w, said)
		require.NoError(t, err)
		heard := make([]byte, len(said))
		_, err = io.ReadFull(r, heard)
		require.NoError(t, err)
		require.Equal(t, said, string(heard))
	}
	require.NoError(t, end())
	rest, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Empty(t, rest)
}

func TestSocketsThatAreUpgradedBelongToTheCaller(t *testing.T) {
	t.Parallel()
	upgrade := func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(c, rw)
	}
	requireUpgrade := func(t *testing.T, rt http.RoundTripper, url string) {
		req := to(t, "GET", url, nil)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, 101, resp.StatusCode)
		require.Implements(t, (*io.ReadWriteCloser)(nil), resp.Body)
		require.Implements(t, (*interface{ CloseWrite() error })(nil), resp.Body)
		c := resp.Body.(interface {
			io.ReadWriteCloser
			CloseWrite() error
		})
		requireEcho(t, c, c, c.CloseWrite)
		require.NoError(t, c.Close())
	}
	for name, opts := range map[string][]retrip.Option{
		"by default":              nil,
		"with an attempt timeout": {retrip.WithAttemptTimeout(time.Hour)},
		"by a single attempt":     {retrip.WithMaxAttempts(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steps := []http.HandlerFunc{upgrade}
			if name != "by a single attempt" {
				steps = []http.HandlerFunc{say(503, "not yet"), upgrade}
			}
			t.Run("direct", func(t *testing.T) {
				t.Parallel()
				s := newSite(t, http1, inTurn(steps...))
				requireUpgrade(t, s.client(opts...).Transport, s.URL)
			})
			t.Run("through a reverse proxy", func(t *testing.T) {
				t.Parallel()
				back := newSite(t, http1, inTurn(steps...))
				backURL, err := url.Parse(back.URL)
				require.NoError(t, err)
				proxy := &httputil.ReverseProxy{
					Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(backURL) },
					Transport: back.client(opts...).Transport,
				}
				front := newSite(t, http1, proxy.ServeHTTP)
				requireUpgrade(t, front.base, front.URL)
			})
		})
	}
}

func TestSocketsStreamBothWaysAtOnce(t *testing.T) {
	t.Parallel()
	echo := func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_ = c.EnableFullDuplex() // HTTP/2 always is
		w.WriteHeader(200)
		for buf, n, err := make([]byte, 100), 0, error(nil); err == nil; {
			_ = c.Flush()
			n, err = r.Body.Read(buf)
			_, _ = w.Write(buf[:n])
		}
	}
	for _, tc := range []struct {
		wire     wire
		method   string
		failures int
		opts     []retrip.Option
	}{
		{http1, "POST", 0, nil},
		{http2, "POST", 0, nil},
		{h2c, "POST", 0, nil},
		{http2, "POST", 1, nil},
		{h2c, "POST", 1, nil},
		{http2, "POST", 1, []retrip.Option{retrip.WithAttemptTimeout(time.Hour)}},
		{http2, "POST", 0, []retrip.Option{retrip.WithIdempotencyKey(nil)}},
		{http2, "POST", 0, []retrip.Option{retrip.WithMaxAttempts(1)}},
		{http2, "CONNECT", 0, nil},
		{h2c, "CONNECT", 0, []retrip.Option{retrip.WithAttemptTimeout(time.Hour)}},
	} {
		t.Run(fmt.Sprintf("%s, %s, %d failures, %d options", tc.method, tc.wire, tc.failures, len(tc.opts)), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, tc.wire, inTurn(append(slices.Repeat([]http.HandlerFunc{say(503, "")}, tc.failures), echo)...))
			pr, pw := io.Pipe()
			resp, err := s.client(tc.opts...).Do(to(t, tc.method, s.URL, pr))
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			requireEcho(t, resp.Body, pw, pw.Close)
			require.NoError(t, resp.Body.Close())
			require.Len(t, retrip.History(resp), tc.failures*(tc.failures+1))
		})
	}
}

// A summedBody puts its length into the trailer when it ends, as the caller of
// net/http has to.
type summedBody struct {
	io.Reader
	trailer http.Header
	n       int
}

func (b *summedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.n += n; err == io.EOF {
		b.trailer.Set("X-Sum", fmt.Sprint(b.n))
	}
	return n, err
}

func TestSocketsCarryTrailersBothWays(t *testing.T) {
	t.Parallel()
	for _, w := range []wire{http1, http2, h2c} {
		for failures := range 3 {
			t.Run(fmt.Sprintf("%s after %d failures", w, failures), func(t *testing.T) {
				t.Parallel()
				answer := func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Trailer", "X-Declared")
					say(200, "ok")(w, r)
					w.Header().Set("X-Declared", "one")
					w.Header().Set(http.TrailerPrefix+"X-Surprise", "two")
				}
				var seen hitLog
				s := newSite(t, w, seen.keep(inTurn(append(slices.Repeat([]http.HandlerFunc{say(503, "")}, failures), answer)...)))
				body := &summedBody{Reader: strings.NewReader("hello"), trailer: http.Header{"X-Sum": nil}}
				req := to(t, "POST", s.URL, body)
				req.Trailer = body.trailer
				resp, text := do(t, s.client(), req)
				require.Equal(t, "ok", text)
				require.Equal(t, http.Header{"X-Declared": {"one"}, "X-Surprise": {"two"}}, resp.Trailer)
				require.Len(t, seen.all(), failures+1)
				for _, h := range seen.all() {
					require.Equal(t, "hello", h.body)
					require.Equal(t, http.Header{"X-Sum": {"5"}}, h.trailer)
				}
			})
		}
	}
}

func TestSocketsAndBodilessAnswers(t *testing.T) {
	t.Parallel()
	head := func(status int, length string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", length)
			w.WriteHeader(status)
		}
	}
	for _, tc := range []struct {
		method string
		steps  []http.HandlerFunc
		status int
		length int64
		hits   int
	}{
		{"HEAD", []http.HandlerFunc{head(503, "100000"), head(200, "12345")}, 200, 12345, 2},
		{"HEAD", []http.HandlerFunc{head(404, "12345")}, 404, 12345, 1},
		{"GET", []http.HandlerFunc{say(503, ""), say(204, "")}, 204, 0, 2},
		{"GET", []http.HandlerFunc{say(304, "")}, 304, 0, 1},
	} {
		for _, w := range []wire{http1, http2} {
			t.Run(fmt.Sprintf("%s %d over %s", tc.method, tc.status, w), func(t *testing.T) {
				t.Parallel()
				var seen hitLog
				s := newSite(t, w, seen.keep(inTurn(tc.steps...)))
				resp, body := do(t, s.client(), to(t, tc.method, s.URL, nil))
				require.Equal(t, tc.status, resp.StatusCode)
				require.Empty(t, body)
				if w == http1 { // HTTP/2 has an empty body of its own
					require.Equal(t, http.NoBody, resp.Body)
				}
				if tc.method == "HEAD" {
					require.Equal(t, tc.length, resp.ContentLength)
				}
				require.Len(t, seen.all(), tc.hits)
				s.requireOpened(t, w, 1)
			})
		}
	}
}

func TestSocketsAndGzip(t *testing.T) {
	t.Parallel()
	zipped := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "gzip" {
				panic("net/http did not ask for gzip")
			}
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(status)
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, body)
			_ = z.Close()
		}
	}
	for _, w := range []wire{http1, http2} {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, w, inTurn(zipped(503, "busy"), zipped(200, "hello")))
			resp, body := do(t, s.client(), to(t, "GET", s.URL, nil))
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, "hello", body)
			require.True(t, resp.Uncompressed)
		})
	}
}

// No second attempt once the headers were handed over: the caller has the first
// part already.
func TestSocketsThatAreCutInTheBodyAreNotUsedAgain(t *testing.T) {
	t.Parallel()
	var hits atomic.Int32
	s := newSite(t, http1, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		w.Header().Set("Content-Length", "11")
		say(200, "H")(w, r)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	resp, err := s.client().Do(to(t, "GET", s.URL, nil))
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "H", string(body))
	require.NoError(t, resp.Body.Close())
	require.EqualValues(t, 1, hits.Load())
}

func TestSocketsCallTheHooksOfHttptraceAsTheBareBaseDoes(t *testing.T) {
	t.Parallel()
	for _, w := range []wire{http1, https1, http2, h2c} {
		for name, tc := range map[string]struct {
			method string
			body   func() io.Reader
			opts   []retrip.Option
		}{
			"GET":            {"GET", func() io.Reader { return nil }, nil},
			"keyed POST":     {"POST", func() io.Reader { return strings.NewReader("hello") }, nil},
			"streamed PUT":   {"PUT", func() io.Reader { return unknown(strings.NewReader("hello")) }, nil},
			"unkeyed POST":   {"POST", func() io.Reader { return strings.NewReader("hello") }, []retrip.Option{retrip.WithIdempotencyKey(nil)}},
			"timed attempts": {"GET", func() io.Reader { return nil }, []retrip.Option{retrip.WithAttemptTimeout(time.Hour)}},
		} {
			t.Run(fmt.Sprintf("%s over %s", name, w), func(t *testing.T) {
				t.Parallel()
				hinted := func(next http.HandlerFunc) http.HandlerFunc {
					return func(w http.ResponseWriter, r *http.Request) {
						w.WriteHeader(http.StatusEarlyHints)
						next(w, r)
					}
				}
				// After a 429 an unkeyed POST may be repeated too.
				steps := []http.HandlerFunc{hinted(say(429, "")), hinted(say(200, "ok"))}
				var bare, ours hookCounts
				s := newSite(t, w, inTurn(steps...))
				for range steps {
					do(t, &http.Client{Transport: s.base}, bare.count(to(t, tc.method, s.URL, tc.body())))
				}
				s = newSite(t, w, inTurn(steps...))
				resp, _ := do(t, s.client(tc.opts...), ours.count(to(t, tc.method, s.URL, tc.body())))
				require.Equal(t, 200, resp.StatusCode)
				require.Len(t, retrip.History(resp), 2)
				// net/http may tell of the end of the writing after the answer.
				eventually(t, func() bool { return bare.wroteRequest.Load() == 2 && ours.wroteRequest.Load() == 2 }, "two requests written")
				if w == h2c { // here net/http asks for a connection as often as it sees fit
					ours.getConn.Store(bare.getConn.Load())
				}
				require.Equal(t, bare.all(), ours.all())
			})
		}
	}
}

// hookCounts are how often hooks of httptrace were called.
type hookCounts struct {
	getConn, gotConn, wroteHeaders, wroteRequest, firstByte, hints atomic.Int32
}

func (n *hookCounts) count(req *http.Request) *http.Request {
	return req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn:              func(string) { n.getConn.Add(1) },
		GotConn:              func(httptrace.GotConnInfo) { n.gotConn.Add(1) },
		WroteHeaders:         func() { n.wroteHeaders.Add(1) },
		WroteRequest:         func(httptrace.WroteRequestInfo) { n.wroteRequest.Add(1) },
		GotFirstResponseByte: func() { n.firstByte.Add(1) },
		Got1xxResponse:       func(int, textproto.MIMEHeader) error { n.hints.Add(1); return nil },
	}))
}

func (n *hookCounts) all() (list []int32) {
	for _, c := range []*atomic.Int32{&n.getConn, &n.gotConn, &n.wroteHeaders, &n.wroteRequest, &n.firstByte, &n.hints} {
		list = append(list, c.Load())
	}
	return list
}

func TestSocketsAreLetGoInEveryPhaseOfACancelledRequest(t *testing.T) {
	t.Parallel()
	type setUp func(t *testing.T, w wire, reached func()) (http.RoundTripper, *http.Request)
	// atServer is a phase in which the server is at h.
	atServer := func(method string, body io.Reader, h func(*testing.T) http.HandlerFunc) setUp {
		return func(t *testing.T, w wire, reached func()) (http.RoundTripper, *http.Request) {
			s := newSite(t, w, func(w http.ResponseWriter, r *http.Request) {
				reached()
				h(t)(w, r)
			})
			return s.client().Transport, to(t, method, s.URL, body)
		}
	}
	// inPause is a phase between two attempts.
	inPause := func(h func(*testing.T) http.HandlerFunc) setUp {
		return func(t *testing.T, w wire, reached func()) (http.RoundTripper, *http.Request) {
			s := newSite(t, w, h(t))
			return s.client(retrip.WithBackoff(retrip.Constant(time.Hour)), retrip.WithBudget(2*time.Hour),
				retrip.WithTrace(&retrip.Trace{Pausing: func(retrip.PausingInfo) { reached() }})).Transport, to(t, "GET", s.URL, nil)
		}
	}
	hold := func(t *testing.T) http.HandlerFunc {
		return func(http.ResponseWriter, *http.Request) { <-t.Context().Done() }
	}
	phases := map[string]setUp{
		"dialling": func(t *testing.T, _ wire, reached func()) (http.RoundTripper, *http.Request) {
			base := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				reached()
				<-ctx.Done()
				return nil, ctx.Err()
			}}
			return retrip.New(base, hasty()...), request(t, "GET", nil)
		},
		"TLS handshake": func(t *testing.T, _ wire, reached func()) (http.RoundTripper, *http.Request) {
			addr := listen(t, nil, func(c net.Conn) {
				_, _ = c.Read(make([]byte, 1))
				reached()
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			})
			return retrip.New(&http.Transport{}, hasty()...), to(t, "GET", "https://"+addr, nil)
		},
		"writing the body":        atServer("PUT", zeros{}, hold),
		"waiting for the headers": atServer("GET", nil, hold),
		"draining an error":       inPause(func(t *testing.T) http.HandlerFunc { return stall(t, 503) }),
		"pausing":                 inPause(func(*testing.T) http.HandlerFunc { return say(503, "") }),
		"reading the body": func(t *testing.T, w wire, _ func()) (http.RoundTripper, *http.Request) {
			s := newSite(t, w, stall(t, 200))
			return s.client().Transport, to(t, "GET", s.URL, nil)
		},
	}
	for name, phase := range phases {
		for _, w := range []wire{http1, http2} {
			for _, legacy := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, by Request.Cancel %v", name, w, legacy), func(t *testing.T) {
					t.Parallel()
					reached := make(chan struct{})
					reach := sync.OnceFunc(func() { close(reached) })
					rt, req := phase(t, w, reach)
					ctx, cancel := context.WithCancel(req.Context())
					defer cancel()
					if legacy {
						gone := make(chan struct{})
						req.Cancel, cancel = gone, sync.OnceFunc(func() { close(gone) }) //lint:ignore SA1019 it is still heeded
					} else {
						req = req.WithContext(ctx)
					}
					ended := background(func() error {
						resp, err := rt.RoundTrip(req)
						if err == nil {
							reach()
							_, err = io.ReadAll(resp.Body)
							_ = resp.Body.Close()
						}
						return err
					})
					soon(t, reached)
					cancel()
					err := soon(t, ended)
					require.Error(t, err)
					if !legacy {
						require.ErrorIs(t, err, context.Canceled)
					}
				})
			}
		}
	}
}

// zeros is a body without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Not in parallel: it counts the goroutines of the whole process.
func TestSocketsLeaveNoGoroutineBehind(t *testing.T) {
	const requests, workers = 1000, 20
	for name, cancelled := range map[string]bool{"cancelled": true, "succeeded": false} {
		before := runtime.NumGoroutine()
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			s := newSite(t, http1, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case !cancelled && n.Add(1)%10 != 0:
					say(200, "ok")(w, r)
				case cancelled && n.Add(1)%2 == 0:
					select {
					case <-r.Context().Done():
					case <-t.Context().Done():
					}
				default:
					say(503, "busy")(w, r)
				}
			})
			pause := time.Millisecond
			if cancelled {
				pause = time.Hour
			}
			opts := []retrip.Option{retrip.WithBackoff(retrip.Constant(pause)), retrip.WithBudget(2 * time.Hour), retrip.WithMaxAttempts(20)}
			clients := []*http.Client{s.client(opts...), s.client(append(opts, retrip.WithAttemptTimeout(time.Hour))...)}
			var ends [2]atomic.Int64 // in a response, in an error
			send := func(i int) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if cancelled {
					defer time.AfterFunc(time.Duration(i%7)*time.Millisecond, cancel).Stop()
				}
				req := to(t, "PUT", s.URL, unknown(strings.NewReader("hello"))).WithContext(ctx)
				if i%3 == 0 {
					req.Body, req.Method = nil, "GET"
				}
				if i%5 == 0 {
					req.Cancel = make(chan struct{}) //lint:ignore SA1019 it costs a goroutine
				}
				resp, err := clients[i%2].Do(req)
				if err != nil {
					ends[1].Add(1)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				ends[0].Add(1)
			}
			var wg sync.WaitGroup
			for worker := range workers {
				wg.Go(func() {
					for i := worker; i < requests; i += workers {
						send(i)
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, requests, ends[0].Load()+ends[1].Load())
			if cancelled {
				// A few may be cancelled with a response in hand, which they keep.
				require.Greater(t, ends[1].Load(), int64(requests/2))
			} else {
				require.Zero(t, ends[1].Load())
			}
		})
		eventually(t, func() bool { return runtime.NumGoroutine() <= before }, "goroutines are left")
	}
}

func TestSocketsClosedOnTheSecondRequestDoNotDoubleAPost(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		opts  []retrip.Option
		posts int
	}{
		{"without a key", []retrip.Option{retrip.WithIdempotencyKey(nil)}, 1},
		{"with a key", nil, 2},
	} {
		for name, body := range map[string]func() io.Reader{
			"with GetBody":    func() io.Reader { return strings.NewReader("hello") },
			"without GetBody": func() io.Reader { return unknown(strings.NewReader("hello")) },
		} {
			t.Run(tc.name+" "+name, func(t *testing.T) {
				t.Parallel()
				var (
					mu    sync.Mutex
					keys  []string
					conns atomic.Int32
				)
				addr := listen(t, nil, func(c net.Conn) {
					defer func() { _ = c.Close() }()
					fatal := conns.Add(1) == 1
					for r, n := bufio.NewReader(c), 1; ; n++ {
						req, err := http.ReadRequest(r)
						if err != nil {
							return
						}
						_, _ = io.Copy(io.Discard, req.Body)
						if req.Method == "POST" {
							mu.Lock()
							keys = append(keys, req.Header.Get(retrip.KeyHeader))
							mu.Unlock()
						}
						if fatal && n == 2 {
							return
						}
						_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
					}
				})
				base := &http.Transport{}
				t.Cleanup(base.CloseIdleConnections)
				c := &http.Client{Transport: retrip.New(base, hasty(tc.opts...)...)}
				do(t, c, to(t, "GET", "http://"+addr, nil))
				resp, err := c.Do(to(t, "POST", "http://"+addr, body()))
				if tc.posts == 1 {
					require.Error(t, err)
				} else {
					require.NoError(t, err)
					require.Equal(t, "ok", finish(t, resp))
				}
				mu.Lock()
				defer mu.Unlock()
				require.Len(t, keys, tc.posts)
				require.Len(t, slices.Compact(keys), 1, "one key")
				require.Equal(t, tc.posts == 1, keys[0] == "")
			})
		}
	}
}

func TestSocketsThatWereRefusedAreDialledAgainForAPost(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for name, body := range map[string]func() io.Reader{
		"with GetBody":    func() io.Reader { return strings.NewReader("hello") },
		"without GetBody": func() io.Reader { return unknown(strings.NewReader("hello")) },
		"without a body":  func() io.Reader { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen hitLog
			s := newSite(t, http1, seen.keep(say(200, "ok")))
			var dials atomic.Int32
			s.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) <= 2 {
					addr = closed.Addr().String()
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			resp, _ := do(t, s.client(retrip.WithIdempotencyKey(nil)), to(t, "POST", s.URL, body()))
			require.Equal(t, 200, resp.StatusCode)
			require.EqualValues(t, 3, dials.Load())
			require.Len(t, seen.all(), 1)
			require.Empty(t, seen.all()[0].key)
			if name != "without a body" {
				require.Equal(t, "hello", seen.all()[0].body)
			}
			history := retrip.History(resp)
			require.Len(t, history, 3)
			require.Error(t, history[1].Err)
		})
	}
}

// A gatedBody is a long body of zeros that goes on past its first part only once
// the server has some of it, and watches the heap.
type gatedBody struct {
	io.Reader
	first chan struct{} // the server has the first byte
	reads int
	peak  uint64
}

func (b *gatedBody) Read(p []byte) (int, error) {
	if b.reads++; b.reads == 2 {
		select {
		case <-b.first:
		case <-time.After(patience):
			return 0, errors.New("the first part did not reach the server")
		}
	}
	if b.reads%128 == 0 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.peak = max(b.peak, m.HeapAlloc)
	}
	return b.Reader.Read(p)
}

// Not in parallel: it looks at the heap of the whole process.
func TestSocketsStreamALongUpload(t *testing.T) {
	const size = 64 << 20
	for _, method := range []string{"PUT", "POST"} {
		body := &gatedBody{Reader: io.LimitReader(zeros{}, size), first: make(chan struct{})}
		s := newSite(t, http1, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, make([]byte, 1))
			close(body.first)
			n, _ := io.Copy(io.Discard, r.Body)
			say(200, fmt.Sprint(r.ContentLength, " ", n+1))(w, r)
		})
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		_, text := do(t, s.client(), to(t, method, s.URL, body))
		require.Equal(t, fmt.Sprint(-1, " ", size), text)
		require.Greater(t, body.peak, uint64(0))
		require.Less(t, body.peak, m.HeapAlloc+size/4)
	}
}

func TestSocketsOvertakenByAnErrorDoNotSpoilTheUpload(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	sent := randomBytes(size)
	want := sha256.Sum256(sent)
	for w, times := range map[wire]int{http1: 75, h2c: 25} {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			var (
				mu   sync.Mutex
				hits = map[string]int{}
				sums = map[string][32]byte{}
			)
			s := newSite(t, w, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				hits[r.URL.Path]++
				first := hits[r.URL.Path] == 1
				mu.Unlock()
				if first {
					w.WriteHeader(503)
					return
				}
				h := sha256.New()
				if _, err := io.Copy(h, r.Body); err == nil {
					mu.Lock()
					sums[r.URL.Path] = [32]byte(h.Sum(nil))
					mu.Unlock()
				}
			})
			c := s.client(retrip.WithMaxBody(2 * size))
			for i := range times {
				path := fmt.Sprintf("/%d", i)
				req := to(t, "POST", s.URL+path, unknown(bytes.NewReader(sent)))
				if i%2 == 0 {
					req.ContentLength = size
				}
				resp, _ := do(t, c, req)
				require.Equal(t, 200, resp.StatusCode)
				mu.Lock()
				require.Equal(t, 2, hits[path])
				require.Equal(t, want, sums[path])
				mu.Unlock()
			}
		})
	}
}

func TestSocketsThatCannotBeTrustedAreDialledOnce(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*tls.Config){
		"unknown authority": func(c *tls.Config) { c.RootCAs = nil },
		"hostname mismatch": func(c *tls.Config) { c.ServerName = "elsewhere.invalid" },
	} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(name+" "+method, func(t *testing.T) {
				t.Parallel()
				var seen hitLog
				s := newSite(t, https1, seen.keep(say(200, "")))
				spoil(s.base.TLSClientConfig)
				_, err := s.client().Do(to(t, method, s.URL, nil))
				var untrusted *tls.CertificateVerificationError
				require.ErrorAs(t, err, &untrusted)
				s.requireOpened(t, https1, 1)
				require.Empty(t, seen.all())
			})
		}
	}
}

func TestSocketsThatAreIdleAreClosedThroughTheClient(t *testing.T) {
	t.Parallel()
	for _, w := range []wire{http1, https1, http2, h2c} {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, w, say(200, "ok"))
			c := s.client()
			for n := range int32(2) {
				do(t, c, to(t, "GET", s.URL, nil))
				do(t, c, to(t, "GET", s.URL, nil))
				s.requireOpened(t, w, n+1)
				s.requireAllClosed(t, c.CloseIdleConnections)
			}
		})
	}
}

func TestSocketsOfARegisteredTransport(t *testing.T) {
	t.Parallel()
	for _, w := range []wire{http1, https1, http2, h2c} {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			var seen hitLog
			s := newSite(t, w, seen.keep(inTurn(say(503, ""), say(200, "ok"), say(200, "ok"), say(503, "busy"))))
			var global http.RoundTripper = retrip.Register(s.base, hasty()...)
			registered, ok := global.(*http.Transport)
			require.True(t, ok)
			c := &http.Client{Transport: global, Timeout: time.Hour}

			resp, body := do(t, c, to(t, "POST", s.URL, strings.NewReader("hello")))
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, "ok", body)
			require.Equal(t, w == http2 || w == h2c, resp.ProtoMajor == 2)
			require.Len(t, retrip.History(resp), 2)
			require.Equal(t, []string{"hello", "hello"}, of(&seen, func(h hit) string { return h.body }))
			s.requireOpened(t, w, 1)
			s.requireAllClosed(t, registered.CloseIdleConnections)
			resp, _ = do(t, c, to(t, "GET", s.URL, nil))
			require.Equal(t, 200, resp.StatusCode)
			require.Nil(t, retrip.History(resp))

			clone := registered.Clone()
			t.Cleanup(clone.CloseIdleConnections)
			resp, body = do(t, &http.Client{Transport: clone}, to(t, "GET", s.URL, nil))
			require.Equal(t, 503, resp.StatusCode)
			require.Equal(t, "busy", body)
			require.Equal(t, w == http2 || w == h2c, resp.ProtoMajor == 2)
			require.Len(t, seen.all(), 4)
		})
	}
}

func TestSocketsSendFiles(t *testing.T) {
	t.Parallel()
	sent := randomBytes(300_000)
	for _, tc := range []struct {
		name    string
		maxBody int64
		hits    int
	}{
		{"that fit the log again", 1 << 20, 2},
		{"that do not fit it once", 1 << 10, 1},
	} {
		for _, w := range []wire{http1, http2} {
			t.Run(fmt.Sprintf("%s over %s", tc.name, w), func(t *testing.T) {
				t.Parallel()
				var seen hitLog
				s := newSite(t, w, seen.keep(inTurn(say(503, "busy"), say(200, "ok"))))
				name := filepath.Join(t.TempDir(), "file")
				require.NoError(t, os.WriteFile(name, sent, 0o600))
				f, err := os.Open(name)
				require.NoError(t, err)
				req := to(t, "PUT", s.URL, f)
				req.ContentLength = int64(len(sent))
				resp, _ := do(t, s.client(retrip.WithMaxBody(tc.maxBody)), req)
				require.Equal(t, map[int]int{1: 503, 2: 200}[tc.hits], resp.StatusCode)
				require.Len(t, seen.all(), tc.hits)
				for _, h := range seen.all() {
					require.Equal(t, sha256.Sum256(sent), sha256.Sum256([]byte(h.body)))
					require.EqualValues(t, len(sent), h.length)
				}
				eventually(t, func() bool { return errors.Is(f.Close(), os.ErrClosed) }, "the file is closed")
			})
		}
	}
}

func TestSocketsDoNotHoldARequestWhoseBodyStalls(t *testing.T) {
	t.Parallel()
	var (
		unkeyed = []retrip.Option{retrip.WithIdempotencyKey(nil)}
		single  = []retrip.Option{retrip.WithMaxAttempts(1)}
		timer   = retrip.WithAttemptTimeout(500 * time.Millisecond)
	)
	for _, tc := range []struct {
		wire   wire
		method string
		opts   []retrip.Option
		timed  bool
	}{
		{http1, "PUT", nil, false}, {http2, "PUT", nil, false}, {h2c, "PUT", nil, false},
		{http1, "POST", nil, false}, {http2, "POST", nil, false},
		{http1, "POST", unkeyed, false}, {http2, "POST", unkeyed, false},
		{http1, "PUT", nil, true}, {http2, "PUT", nil, true},
		{http1, "POST", unkeyed, true}, {http2, "POST", unkeyed, true},
		{http1, "PUT", single, true}, {http2, "PUT", single, true},
	} {
		t.Run(fmt.Sprintf("%s over %s, %d options, attempt timeout %v", tc.method, tc.wire, len(tc.opts), tc.timed), func(t *testing.T) {
			t.Parallel()
			var hits atomic.Int32
			arrived := make(chan struct{}, 1)
			s := newSite(t, tc.wire, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == "GET" {
					return
				}
				hits.Add(1)
				_, _ = io.ReadFull(r.Body, make([]byte, 5))
				arrived <- struct{}{}
				_, _ = io.Copy(io.Discard, r.Body)
			})
			do(t, &http.Client{Transport: s.base}, to(t, "GET", s.URL, nil)) // the connection is there
			opts := tc.opts
			if tc.timed {
				opts = append(slices.Clone(opts), timer)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pr, pw := io.Pipe()
			req := to(t, tc.method, s.URL, pr).WithContext(ctx)
			ended := background(func() error {
				_, err := s.client(opts...).Transport.RoundTrip(req)
				return err
			})
			_, err := io.WriteString(pw, "hello")
			require.NoError(t, err)
			soon(t, arrived)
			if tc.timed {
				err = soon(t, ended)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				requireTimeout(t, err)
			} else {
				cancel()
				require.ErrorIs(t, soon(t, ended), context.Canceled)
			}
			require.Error(t, soon(t, background(func() error { _, err := io.WriteString(pw, "more"); return err })))
			require.EqualValues(t, 1, hits.Load())
		})
	}
}

// Frames of HTTP/2 (RFC 9113 section 6).
const (
	frameData     = 0x0
	frameHeaders  = 0x1
	frameReset    = 0x3
	frameSettings = 0x4
	framePing     = 0x6
	frameGoAway   = 0x7

	flagAck, flagEndStream, flagEndHeaders = 0x1, 0x1, 0x4
)

func frame(kind, flags byte, stream uint32, payload ...byte) []byte {
	size := len(payload)
	head := []byte{byte(size >> 16), byte(size >> 8), byte(size), kind, flags}
	return append(binary.BigEndian.AppendUint32(head, stream), payload...)
}

func words(w ...uint32) (b []byte) {
	for _, v := range w {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

// A retort is how a framePeer answers a request that it has read to its end, and
// whether it then hangs up.
type retort func(stream uint32) (frames []byte, hangUp bool)

func accept(stream uint32) ([]byte, bool) {
	const status200 = 0x88 // an index of HPACK's static table
	return frame(frameHeaders, flagEndHeaders|flagEndStream, stream, status200), false
}

func refuse(stream uint32) ([]byte, bool) {
	const refusedStream = 0x7
	return frame(frameReset, 0, stream, words(refusedStream)...), false
}

// goAwayBelow says that the stream was not processed.
func goAwayBelow(stream uint32) ([]byte, bool) {
	return frame(frameGoAway, 0, 0, words(stream-1, 0)...), false
}

// goAwayAt says that the stream may have been processed.
func goAwayAt(stream uint32) ([]byte, bool) {
	return frame(frameGoAway, 0, 0, words(stream, 0)...), true
}

// A framePeer is a server that speaks as much HTTP/2 as it takes to refuse
// requests in all ways: it answers the nth of them with its nth retort.
type framePeer struct {
	mu      sync.Mutex
	retorts []retort
	bodies  []string
}

func (p *framePeer) answer(stream uint32, body []byte) ([]byte, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bodies = append(p.bodies, string(body))
	return p.retorts[min(len(p.bodies), len(p.retorts))-1](stream)
}

func (p *framePeer) received() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.bodies)
}

func (p *framePeer) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	if _, err := r.Discard(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
		return
	}
	_, _ = c.Write(frame(frameSettings, 0, 0))
	bodies := map[uint32][]byte{}
	for {
		head := make([]byte, 9)
		if _, err := io.ReadFull(r, head); err != nil {
			return
		}
		kind, flags, stream := head[3], head[4], binary.BigEndian.Uint32(head[5:])
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(r, payload); err != nil {
			return
		}
		switch kind {
		case frameSettings:
			if flags&flagAck == 0 {
				_, _ = c.Write(frame(frameSettings, flagAck, 0))
			}
		case framePing:
			if flags&flagAck == 0 {
				_, _ = c.Write(frame(framePing, flagAck, 0, payload...))
			}
		case frameData, frameHeaders:
			if kind == frameData {
				bodies[stream] = append(bodies[stream], payload...)
			}
			if flags&flagEndStream != 0 {
				b, hangUp := p.answer(stream, bodies[stream])
				_, _ = c.Write(b)
				if hangUp {
					return
				}
			}
		}
	}
}

// newFramePeer returns a peer, its address and a base that trusts it.
func newFramePeer(t *testing.T, w wire, retorts ...retort) (*framePeer, string, *http.Transport) {
	s := newSite(t, w, nil) // for its certificate
	p := &framePeer{retorts: retorts}
	if w == h2c {
		return p, "http://" + listen(t, nil, p.serve), s.base
	}
	config := &tls.Config{Certificates: s.TLS.Certificates, NextProtos: []string{"h2"}}
	return p, "https://" + listen(t, config, p.serve), s.base
}

func TestSocketsOfHTTP2ThatAreRefusedOrGoAway(t *testing.T) {
	t.Parallel()
	withGetBody := func() io.Reader { return strings.NewReader("hello") }
	withoutGetBody := func() io.Reader { return unknown(strings.NewReader("hello")) }
	for _, tc := range []struct {
		name   string
		method string
		keys   bool
		body   func() io.Reader
		first  retort
		hits   int
	}{
		// It was not processed: net/http repeats it by itself, if it can have the body.
		{"refused POST with a key", "POST", true, withGetBody, refuse, 2},
		{"refused POST with a key without GetBody", "POST", true, withoutGetBody, refuse, 2},
		{"refused POST without a key", "POST", false, withGetBody, refuse, 2},
		{"refused POST without a key and GetBody", "POST", false, withoutGetBody, refuse, 1},
		{"GOAWAY below a POST with a key", "POST", true, withGetBody, goAwayBelow, 2},
		{"GOAWAY below a POST with a key without GetBody", "POST", true, withoutGetBody, goAwayBelow, 2},
		{"GOAWAY below a POST without a key", "POST", false, withGetBody, goAwayBelow, 2},
		{"GOAWAY below a POST without a key and GetBody", "POST", false, withoutGetBody, goAwayBelow, 1},
		// It may have been processed.
		{"GOAWAY at a PUT", "PUT", true, withoutGetBody, goAwayAt, 2},
		{"GOAWAY at a POST with a key", "POST", true, withGetBody, goAwayAt, 2},
		{"GOAWAY at a POST with a key without GetBody", "POST", true, withoutGetBody, goAwayAt, 2},
		{"GOAWAY at a POST without a key", "POST", false, withGetBody, goAwayAt, 1},
		{"GOAWAY at a POST without a key and GetBody", "POST", false, withoutGetBody, goAwayAt, 1},
	} {
		for _, w := range []wire{http2, h2c} {
			t.Run(fmt.Sprintf("%s, %s", tc.name, w), func(t *testing.T) {
				t.Parallel()
				peer, url, base := newFramePeer(t, w, tc.first, accept)
				opts := hasty()
				if !tc.keys {
					opts = hasty(retrip.WithIdempotencyKey(nil))
				}
				resp, err := retrip.New(base, opts...).RoundTrip(to(t, tc.method, url, tc.body()))
				require.Equal(t, slices.Repeat([]string{"hello"}, tc.hits), peer.received())
				if tc.hits == 1 {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				require.Equal(t, 200, resp.StatusCode)
				require.Empty(t, finish(t, resp))
				require.Len(t, retrip.History(resp), map[bool]int{true: 2}[strings.HasPrefix(tc.name, "GOAWAY at")])
			})
		}
	}
}

// A ClientConn leaves the refusals of its streams to those who use it.
func TestSocketsThatRefuseAStreamAreAskedAgainForAnUnkeyedPost(t *testing.T) {
	t.Parallel()
	for _, w := range []wire{http2, h2c} {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			peer, url, base := newFramePeer(t, w, refuse, refuse, accept)
			scheme, addr, _ := strings.Cut(url, "://")
			conn, err := base.NewClientConn(t.Context(), scheme, addr)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			rt := retrip.New(conn, hasty(retrip.WithIdempotencyKey(nil))...)
			resp, err := rt.RoundTrip(to(t, "POST", url, strings.NewReader("hello")))
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			require.Empty(t, finish(t, resp))
			require.Equal(t, []string{"hello", "hello", "hello"}, peer.received())
			require.Len(t, retrip.History(resp), 3)
		})
	}
}

// Shutdown sends GOAWAY while a request is under way; the next one goes elsewhere.
func TestSocketsOutliveARollingRestart(t *testing.T) {
	t.Parallel()
	for _, w := range []wire{http1, http2, h2c} {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			var seen hitLog
			arrived, leave := make(chan struct{}), make(chan struct{})
			old := newSite(t, w, seen.keep(func(w http.ResponseWriter, r *http.Request) {
				close(arrived)
				<-leave
				say(200, "old")(w, r)
			}))
			fresh := newSite(t, w, seen.keep(say(200, "fresh")))
			var dials atomic.Int32
			old.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) > 1 {
					addr = fresh.Listener.Addr().String()
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			c := old.client()
			post := func() string {
				resp, err := c.Do(to(t, "POST", old.URL, strings.NewReader("hello")))
				if err != nil {
					return err.Error()
				}
				b, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				return string(b)
			}
			first := background(post)
			soon(t, arrived)
			down := background(func() error { return old.Config.Shutdown(t.Context()) })
			eventually(t, func() bool {
				c, err := net.Dial("tcp", old.Listener.Addr().String())
				if err == nil {
					_ = c.Close()
				}
				return err != nil
			}, "the old server is shutting down")
			close(leave)
			require.Equal(t, "old", soon(t, first))
			require.NoError(t, soon(t, down))
			require.Equal(t, "fresh", post())
			require.Equal(t, []string{"hello", "hello"}, of(&seen, func(h hit) string { return h.body }))
		})
	}
}
