package retrip_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// caseWait waits for what must come soon; the limit is only there to fail.
func caseWait[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		require.Fail(t, "it never came")
		panic("not reached")
	}
}

func TestB16RetriesUseOneConnection(t *testing.T) {
	t.Parallel()
	var hits atomic.Int32
	srv := newCaseServer(t, func(w http.ResponseWriter, _ *http.Request) {
		if hits.Add(1)%4 != 0 {
			w.WriteHeader(503)
		}
		_, _ = w.Write(make([]byte, 100))
	})
	rt := retrip.New(srv.base(), caseUnlimited()...)
	for range 50 {
		require.Equal(t, 200, caseStatus(t, rt, caseTo(t, srv.URL)))
	}
	require.EqualValues(t, 200, hits.Load())
	require.LessOrEqual(t, srv.opened.Load(), int32(2)) // two if the machine is very slow
	rt.CloseIdleConnections()
	for range srv.opened.Load() {
		caseWait(t, srv.closed)
	}
}

// A caseMeter counts what is read of a response's body.
type caseMeter struct {
	io.ReadCloser
	n *atomic.Int64
}

func (m caseMeter) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.n.Add(int64(n))
	return n, err
}

// A caseStuck body blocks until it is closed.
type caseStuck struct {
	once   sync.Once
	closed chan struct{}
}

func (b *caseStuck) Read([]byte) (int, error) { <-b.closed; return 0, net.ErrClosed }
func (b *caseStuck) Close() error             { b.once.Do(func() { close(b.closed) }); return nil }

func TestB17DrainingHasLimits(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	for _, tt := range []struct {
		name     string
		size     int
		declared bool
		pause    time.Duration // draining may take as long
		opened   int32
	}{
		{"just under the limit", limit - 1, false, 300 * time.Millisecond, 1},
		{"as long as the limit", limit, true, 300 * time.Millisecond, 1},
		{"declared too long", limit + 1, true, 0, 2},
		{"without end", 1 << 30, false, 0, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var hits atomic.Int32
			srv := newCaseServer(t, func(w http.ResponseWriter, _ *http.Request) {
				if hits.Add(1) > 1 {
					return
				}
				if tt.declared {
					w.Header().Set("Content-Length", fmt.Sprint(tt.size))
				}
				w.WriteHeader(503)
				_, _ = io.Copy(w, io.LimitReader(caseEndless{}, int64(tt.size)))
			})
			var read atomic.Int64
			rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
				resp, err := srv.base().RoundTrip(req)
				if err == nil {
					resp.Body = caseMeter{resp.Body, &read}
				}
				return resp, err
			}), retrip.WithBackoff(retrip.Constant(tt.pause)))
			require.Equal(t, 200, caseStatus(t, rt, caseTo(t, srv.URL)))
			require.Equal(t, tt.opened, srv.opened.Load())
			require.LessOrEqual(t, read.Load(), int64(limit))
		})
	}
	for _, tt := range []struct {
		name         string
		pause, total time.Duration
		change       func(*http.Response)
	}{
		{"a body that blocks, without a pause", 0, 10 * time.Millisecond, func(*http.Response) {}},
		{"a body that blocks, in a short pause", 3 * time.Millisecond, 10 * time.Millisecond, func(*http.Response) {}},
		{"a body that blocks, in a long pause", time.Second, time.Second, func(*http.Response) {}},
		{"a body that is declared too long", 0, 0, func(r *http.Response) { r.ContentLength = limit + 1 }},
		{"a body of HTTP/2", 0, 0, func(r *http.Response) { r.ProtoMajor = 2 }},
		{"no body", 0, 0, func(r *http.Response) { r.Body = http.NoBody }},
		{"nil as the body", 0, 0, func(r *http.Response) { r.Body = nil }},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			stuck := &caseStuck{closed: make(chan struct{})}
			base := play(func(req *http.Request) (*http.Response, error) {
				resp, err := answer(503)(req)
				resp.Body, resp.ContentLength = stuck, -1
				tt.change(resp)
				if resp.Body != stuck {
					_ = stuck.Close()
				}
				return resp, err
			}, answer(200))
			require.Equal(t, 200, caseStatus(t, retrip.New(base, retrip.WithBackoff(retrip.Constant(tt.pause))), request(t, http.MethodGet, nil)))
			require.Equal(t, []time.Duration{tt.total}, base.pauses())
			<-stuck.closed
		})
	}
}

func TestB18CloseIdleConnectionsReachesTheBase(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(*http.Transport) http.RoundTripper{
		"wrapped once":  func(base *http.Transport) http.RoundTripper { return retrip.New(base) },
		"wrapped twice": func(base *http.Transport) http.RoundTripper { return retrip.New(retrip.New(base)) },
		"registered":    func(base *http.Transport) http.RoundTripper { return retrip.Register(base) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewTLSServer(http.NotFoundHandler())
			defer srv.Close()
			closed := make(chan struct{}, 1)
			base := srv.Client().Transport.(*http.Transport)
			dial := &net.Dialer{}
			base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial.DialContext(ctx, network, addr)
				return caseConn{conn, closed}, err
			}
			client := &http.Client{Transport: wrap(base)}
			resp, err := client.Do(caseTo(t, srv.URL))
			require.NoError(t, err)
			finish(t, resp)
			require.Empty(t, closed)
			client.CloseIdleConnections()
			caseWait(t, closed)
		})
	}
	t.Run("a base that has no such method", func(t *testing.T) {
		t.Parallel()
		(&http.Client{Transport: retrip.New(play(answer(200)))}).CloseIdleConnections()
	})
}

// A caseConn tells when it is closed.
type caseConn struct {
	net.Conn
	closed chan<- struct{}
}

func (c caseConn) Close() error {
	select {
	case c.closed <- struct{}{}:
	default:
	}
	return c.Conn.Close()
}

func TestB20AFailingHostCostsOthersNothing(t *testing.T) {
	t.Parallel()
	srv := newCaseServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	base := srv.base()
	dial, dials := &net.Dialer{}, 0
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if strings.HasPrefix(addr, "a.example:") {
			dials++
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return dial.DialContext(ctx, network, addr)
	}
	rt := retrip.New(base, caseAtOnce, retrip.WithRetryQuota(nil), retrip.WithBreaker(caseBreaker(30)))
	opened := 0
	for range 20 {
		_, err := rt.RoundTrip(caseTo(t, "http://a.example/"))
		require.Error(t, err)
		if _, ok := errors.AsType[*retrip.OpenError](err); ok {
			opened++
		}
		require.Equal(t, 200, caseStatus(t, rt, caseTo(t, srv.URL)))
	}
	require.EqualValues(t, 1, srv.opened.Load())
	require.Equal(t, 30, dials)
	require.Positive(t, opened)
}

func TestB28AKeepAliveRaceDoesNotRepeatAPost(t *testing.T) {
	t.Parallel()
	for _, keyed := range []bool{false, true} {
		t.Run(fmt.Sprintf("keyed=%v", keyed), func(t *testing.T) {
			t.Parallel()
			posts := make(chan string, 10) // the keys of all that arrived
			addr := caseListen(t, func(n int, conn net.Conn) {
				in := bufio.NewReader(conn)
				for i := 1; ; i++ {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					if req.Method == http.MethodPost {
						posts <- req.Header.Get(retrip.KeyHeader)
					}
					if n == 1 && i == 2 {
						return // as if the connection had just been given up
					}
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			})
			base := &http.Transport{}
			defer base.CloseIdleConnections()
			opts := []retrip.Option{caseAtOnce}
			if !keyed {
				opts = append(opts, retrip.WithIdempotencyKey(nil))
			}
			rt := retrip.New(base, opts...)
			require.Equal(t, 200, caseStatus(t, rt, caseTo(t, addr)))
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, addr, strings.NewReader("hello"))
			require.NoError(t, err)
			resp, err := rt.RoundTrip(req)
			if !keyed {
				require.Error(t, err)
				require.Len(t, posts, 1)
				return
			}
			require.NoError(t, err)
			finish(t, resp)
			require.Len(t, posts, 2)
			key := <-posts
			require.NotEmpty(t, key)
			require.Equal(t, key, <-posts)
		})
	}
}

func TestB52AnAttemptDoesNotRaceWithTheOneBefore(t *testing.T) {
	t.Parallel()
	content := caseBytes(1 << 20)
	for name, body := range map[string]func() io.Reader{
		"with GetBody":    func() io.Reader { return bytes.NewReader(content) },
		"without GetBody": func() io.Reader { return io.MultiReader(bytes.NewReader(content)) },
		"in small pieces": func() io.Reader { return io.MultiReader(iotest.HalfReader(bytes.NewReader(content))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var refuse atomic.Bool
			got := make(chan []byte, 10)
			addr := caseListen(t, func(_ int, conn net.Conn) {
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				if refuse.Swap(false) {
					// The upload goes on while the answer is on its way.
					_, _ = io.WriteString(conn, "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
					_, _ = io.CopyN(io.Discard, conn, 100_000)
					return
				}
				b, _ := io.ReadAll(req.Body)
				got <- b
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			})
			rt := retrip.New(&http.Transport{}, caseUnlimited(retrip.WithMaxBody(2<<20))...)
			for range 8 {
				refuse.Store(true)
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, addr, body())
				require.NoError(t, err)
				req.ContentLength = int64(len(content))
				require.Equal(t, 200, caseStatus(t, rt, req))
				require.True(t, bytes.Equal(content, caseWait(t, got)))
			}
			require.Empty(t, got)
		})
	}
}

// HTTP/2 frames (RFC 9113 section 6).
const (
	caseData     = 0x0
	caseHeaders  = 0x1
	caseRST      = 0x3
	caseSettings = 0x4
	caseGoAway   = 0x7

	caseEndStream  = 0x1
	caseEndHeaders = 0x4
)

func caseFrame(kind, flags byte, stream uint32, payload ...byte) []byte {
	f := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	f = binary.BigEndian.AppendUint32(append(f, flags), stream)
	return append(f, payload...)
}

// caseHTTP2 speaks enough HTTP/2 to answer each request, when it has ended, with
// frames of one's own.
func caseHTTP2(conn net.Conn, reply func(stream uint32, body []byte) []byte) {
	in := bufio.NewReader(conn)
	if _, err := io.CopyN(io.Discard, in, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	_, _ = conn.Write(caseFrame(caseSettings, 0, 0))
	var body []byte
	for {
		var head [9]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[:4])>>8)
		if _, err := io.ReadFull(in, payload); err != nil {
			return
		}
		kind, flags := head[3], head[4]
		if kind == caseData {
			body = append(body, payload...)
		}
		if (kind == caseData || kind == caseHeaders) && flags&caseEndStream != 0 {
			_, _ = conn.Write(reply(binary.BigEndian.Uint32(head[5:]), body))
			body = nil
		}
	}
}

// caseHTTP2Base is a transport that speaks HTTP/2 without TLS.
func caseHTTP2Base(t *testing.T) *http.Transport {
	t.Helper()
	base := &http.Transport{Protocols: new(http.Protocols)}
	base.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(base.CloseIdleConnections)
	return base
}

func TestB56AGoAwayAfterTheBodyIsSurvived(t *testing.T) {
	t.Parallel()
	got := make(chan string, 10)
	addr := caseListen(t, func(n int, conn net.Conn) {
		caseHTTP2(conn, func(stream uint32, body []byte) []byte {
			if n == 1 {
				return caseFrame(caseGoAway, 0, 0, make([]byte, 8)...) // no stream was processed
			}
			got <- string(body)
			return caseFrame(caseHeaders, caseEndHeaders|caseEndStream, stream, 0x88) // :status 200
		})
	})
	base, calls := caseHTTP2Base(t), 0
	rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
		calls++
		for range 2 {
			body, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			b, err := io.ReadAll(body)
			if err = errors.Join(err, body.Close()); err != nil || string(b) != "hello" {
				return nil, fmt.Errorf("GetBody gave %q, %w", b, err)
			}
		}
		return base.RoundTrip(req)
	}), caseAtOnce)
	closed := make(chan struct{}, 10)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, addr, caseUpload{strings.NewReader("hello"), closed})
	require.NoError(t, err)
	require.Equal(t, 200, caseStatus(t, rt, req))
	require.Equal(t, "hello", caseWait(t, got))
	require.Empty(t, got)
	require.Equal(t, 1, calls)
	caseWait(t, closed) // net/http never closes one of those that GetBody gave it
}

// A caseUpload is a request body that tells when it is closed.
type caseUpload struct {
	io.Reader
	closed chan<- struct{}
}

func (u caseUpload) Close() error { u.closed <- struct{}{}; return nil }

func TestB57ABaseThatRetriesWithoutEndIsBounded(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(int, net.Conn){
		"every connection is closed": func(_ int, conn net.Conn) {
			_, _ = io.CopyN(io.Discard, conn, 24) // the preface
		},
		"every stream is refused": func(_ int, conn net.Conn) {
			caseHTTP2(conn, func(stream uint32, _ []byte) []byte {
				return caseFrame(caseRST, 0, stream, 0, 0, 0, 7)
			})
		},
		"nothing is answered": func(_ int, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rt := retrip.New(caseHTTP2Base(t), caseAtOnce, retrip.WithAttemptTimeout(200*time.Millisecond), retrip.WithMaxAttempts(3))
			_, err := rt.RoundTrip(caseTo(t, caseListen(t, serve)))
			failed, ok := errors.AsType[*retrip.Error](err)
			require.True(t, ok, err)
			require.Len(t, failed.Attempts, 3)
			require.Equal(t, retrip.ReasonAttempts, failed.Reason)
			if name != "every connection is closed" {
				require.ErrorIs(t, err, context.DeadlineExceeded, "the attempt timeout ended what the base does by itself")
			}
		})
	}
}

func TestB58AnUpgradedConnectionStaysWritable(t *testing.T) {
	t.Parallel()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, in)
	}))
	defer backend.Close()
	target, err := url.Parse(backend.URL)
	require.NoError(t, err)
	for name, opts := range map[string][]retrip.Option{
		"by default":              nil,
		"with an attempt timeout": {retrip.WithAttemptTimeout(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			rt := retrip.New(backend.Client().Transport, opts...)
			req := caseTo(t, backend.URL)
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "echo")
			resp, err := rt.RoundTrip(req)
			require.NoError(t, err)
			require.Equal(t, 101, resp.StatusCode)
			direct, ok := resp.Body.(io.ReadWriteCloser)
			require.True(t, ok)

			front := httptest.NewServer(&httputil.ReverseProxy{
				Transport: rt, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
			})
			defer front.Close()
			conn, err := net.Dial("tcp", front.Listener.Addr().String())
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			require.NoError(t, req.Write(conn))
			proxied := bufio.NewReader(conn)
			resp, err = http.ReadResponse(proxied, req)
			require.NoError(t, err)
			require.Equal(t, 101, resp.StatusCode)

			for _, end := range []struct {
				io.Reader
				io.Writer
			}{{direct, direct}, {proxied, conn}} {
				for _, word := range []string{"ping", "pong"} {
					_, err := io.WriteString(end, word)
					require.NoError(t, err)
					b := make([]byte, 4)
					_, err = io.ReadFull(end, b)
					require.NoError(t, err)
					require.Equal(t, word, string(b))
				}
			}
			require.NoError(t, direct.Close())
		})
	}
	caseBubble(t, "no timeout applies to it", func(t *testing.T) {
		type stream struct {
			caseBody
			io.Writer
		}
		var given io.ReadCloser
		base := play(func(req *http.Request) (*http.Response, error) {
			resp, err := answer(101)(req)
			given = stream{caseBody{strings.NewReader("hello"), req.Context()}, io.Discard}
			resp.Body = given
			return resp, err
		})
		resp, err := retrip.New(base, retrip.WithAttemptTimeout(time.Second), retrip.WithBudget(time.Minute)).RoundTrip(request(t, http.MethodGet, nil))
		require.NoError(t, err)
		require.Equal(t, given, resp.Body)
		time.Sleep(time.Hour)
		require.Equal(t, "hello", finish(t, resp))
	})
}

func TestB59AnAnswerMayOvertakeTheUpload(t *testing.T) {
	t.Parallel()
	content := make([]byte, 64<<20)
	for name, body := range map[string]func() io.Reader{
		"with GetBody":    func() io.Reader { return bytes.NewReader(content) },
		"without GetBody": func() io.Reader { return io.MultiReader(bytes.NewReader(content)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var hits atomic.Int32
			addr := caseListen(t, func(_ int, conn net.Conn) {
				in := bufio.NewReader(conn)
				if _, err := http.ReadRequest(in); err != nil {
					return
				}
				hits.Add(1)
				_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 5\r\n\r\nlarge")
				// Read on, or the reset of the connection may overtake the answer.
				_, _ = io.Copy(io.Discard, in)
			})
			rt := retrip.New(&http.Transport{}, caseAtOnce, retrip.WithMaxAttempts(3), retrip.WithBreaker(caseBreaker(1)))
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, addr, body())
			require.NoError(t, err)
			req.ContentLength = int64(len(content))
			resp, err := rt.RoundTrip(req)
			require.NoError(t, err)
			require.Equal(t, 413, resp.StatusCode)
			require.Equal(t, "large", finish(t, resp))
			require.EqualValues(t, 1, hits.Load())
			require.Equal(t, retrip.Closed, caseStats(t, rt, req.URL.Host).State)
		})
	}
	caseBubble(t, "if it is lost the attempts are limited", func(t *testing.T) {
		base := play(fail(&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}))
		_, err := retrip.New(base, retrip.WithMaxAttempts(3)).RoundTrip(request(t, http.MethodPut, track("hello")))
		require.ErrorIs(t, err, syscall.EPIPE)
		require.Len(t, base.attempts(), 3)
	})
}

func TestB60ABodyThatBreaksIsNotResumed(t *testing.T) {
	t.Parallel()
	for _, broken := range []error{io.ErrUnexpectedEOF, caseReset, context.DeadlineExceeded} {
		for name, opts := range map[string][]retrip.Option{
			"by default":              nil,
			"with an attempt timeout": {retrip.WithAttemptTimeout(time.Second)},
		} {
			caseBubble(t, fmt.Sprintf("%v, %s", broken, name), func(t *testing.T) {
				base := play(answer(503), func(req *http.Request) (*http.Response, error) {
					resp, err := answer(200)(req)
					resp.Body = io.NopCloser(io.MultiReader(strings.NewReader("H"), iotest.ErrReader(broken)))
					resp.ContentLength = int64(len("Hello World"))
					return resp, err
				}, answer(200))
				resp, err := retrip.New(base, opts...).RoundTrip(request(t, http.MethodGet, nil))
				require.NoError(t, err)
				require.Len(t, base.attempts(), 2)
				b, err := io.ReadAll(resp.Body)
				require.Equal(t, "H", string(b))
				require.Equal(t, broken, err)
				require.NoError(t, resp.Body.Close())
				require.Len(t, base.attempts(), 2)
			})
		}
	}
}

func TestB61AnswersWithoutABodyAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	ok := "HTTP/1.1 200 OK\r\nContent-Length: 42\r\n\r\n"
	for _, tt := range []struct {
		name, method, answer string
		again                int // a status that is worth it, beside the usual
	}{
		{"HEAD with a length", http.MethodHead, "HTTP/1.1 503 Busy\r\nContent-Length: 1000000\r\n\r\n", 0},
		{"HEAD with a short length", http.MethodHead, "HTTP/1.1 503 Busy\r\nContent-Length: 10\r\n\r\n", 0},
		{"HEAD in chunks", http.MethodHead, "HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n", 0},
		{"304 with a length", http.MethodHead, "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", 304},
		{"304 to a GET", http.MethodGet, "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", 304},
		{"204 to a GET", http.MethodGet, "HTTP/1.1 204 No Content\r\nContent-Length: 10\r\n\r\n", 204},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var hits, conns, keys atomic.Int32
			addr := caseListen(t, func(_ int, conn net.Conn) {
				conns.Add(1)
				in := bufio.NewReader(conn)
				for {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					if req.Header.Get(retrip.KeyHeader) != "" {
						keys.Add(1)
					}
					if hits.Add(1) < 3 {
						_, _ = io.WriteString(conn, tt.answer)
					} else if _, _ = io.WriteString(conn, ok); req.Method != http.MethodHead {
						_, _ = conn.Write(make([]byte, 42))
					}
				}
			})
			base := &http.Transport{}
			defer base.CloseIdleConnections()
			rt := retrip.New(base, caseAtOnce, retrip.WithMaxAttempts(3), retrip.WithAttemptTimeout(time.Minute), retrip.WithPolicy(func(a retrip.Attempt) bool {
				return a.Response != nil && a.Response.StatusCode == tt.again || retrip.DefaultPolicy(a)
			}))
			req := caseTo(t, addr)
			req.Method = tt.method
			resp, err := rt.RoundTrip(req)
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			require.EqualValues(t, 42, resp.ContentLength)
			b := finish(t, resp)
			if tt.method == http.MethodHead {
				require.Empty(t, b)
			}
			require.Equal(t, []int32{3, 1, 0}, []int32{hits.Load(), conns.Load(), keys.Load()})
		})
	}
}
