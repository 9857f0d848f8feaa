package idempotent_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/retrip-go/retrip/idempotent"
	"github.com/stretchr/testify/require"
)

// TestAHandlerSeesTheWriterOfNetHTTP: what it does gives the same answer, and the same
// results, as without the middleware.
func TestAHandlerSeesTheWriterOfNetHTTP(t *testing.T) {
	t.Parallel()
	write := func(w http.ResponseWriter, p string) string {
		n, err := io.WriteString(w, p)
		return fmt.Sprint(n, " ", err, "; ")
	}
	for name, act := range map[string]func(w http.ResponseWriter) string{
		"nothing":               func(http.ResponseWriter) string { return "" },
		"writes":                func(w http.ResponseWriter) string { return write(w, "a") + write(w, "") + write(w, "b") },
		"nothing, written":      func(w http.ResponseWriter) string { return write(w, "") },
		"no body allowed":       func(w http.ResponseWriter) string { w.WriteHeader(204); return write(w, "") + write(w, "a") },
		"not modified":          func(w http.ResponseWriter) string { w.WriteHeader(304); return write(w, "a") },
		"flush first":           func(w http.ResponseWriter) string { w.(http.Flusher).Flush(); return write(w, "<html>") },
		"flush between":         func(w http.ResponseWriter) string { return write(w, "<") + flush(w) + write(w, "html>") },
		"long writes":           func(w http.ResponseWriter) string { return write(w, strings.Repeat("a", 10_000)) },
		"a fitting length":      func(w http.ResponseWriter) string { w.Header().Set("Content-Length", "2"); return write(w, "ab") },
		"a length that is none": func(w http.ResponseWriter) string { w.Header().Set("Content-Length", "two"); return write(w, "ab") },
		"more than the length": func(w http.ResponseWriter) string {
			w.Header().Set("Content-Length", "1")
			return write(w, "a") + write(w, "bc") + write(w, "")
		},
		"no type":     func(w http.ResponseWriter) string { w.Header()["Content-Type"] = nil; return write(w, "<html>") },
		"coded":       func(w http.ResponseWriter) string { w.Header().Set("Content-Encoding", "x"); return write(w, "<html>") },
		"own type":    func(w http.ResponseWriter) string { w.Header().Set("Content-Type", "a/b"); return write(w, "<html>") },
		"status late": func(w http.ResponseWriter) string { s := write(w, "a"); w.WriteHeader(500); return s },
		"copied": func(w http.ResponseWriter) string {
			n, err := io.Copy(w, io.LimitReader(strings.NewReader(strings.Repeat("abc", 50_000)), 100_000))
			return fmt.Sprint(n, err)
		},
		"invalid status": func(w http.ResponseWriter) (s string) {
			defer func() { s = fmt.Sprint(recover() != nil) }()
			w.WriteHeader(99)
			return ""
		},
		"trailers": func(w http.ResponseWriter) string {
			w.Header().Set("Trailer", "X-Sum, X-Unset")
			s := write(w, "a")
			w.Header().Set("X-Sum", "1")
			w.Header().Set("X-Undeclared", "2")
			return s
		},
		"trailers of a stream": func(w http.ResponseWriter) string {
			w.Header().Set("Trailer", "X-Sum")
			s := write(w, "a") + flush(w)
			w.Header().Add("X-Sum", "1")
			w.Header().Add("X-Sum", "2")
			return s
		},
		"trailers undeclared": func(w http.ResponseWriter) string {
			s := write(w, "a") + flush(w)
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			results := make(chan string, 1)
			next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { results <- act(w) })
			bare, guarded := start(t, next), start(t, idempotent.Handler(next, idempotent.Memory(10)))
			want := send(t, bare, "k", "")
			wantBody, wantResult := read(t, want), <-results
			for replayed := range 2 {
				got := send(t, guarded, "k", "")
				require.Equal(t, wantBody, read(t, got))
				require.Equal(t, want.StatusCode, got.StatusCode)
				require.Equal(t, want.Header["Content-Type"], got.Header["Content-Type"])
				require.Equal(t, want.Header["Content-Encoding"], got.Header["Content-Encoding"])
				require.Equal(t, set(want.Trailer), set(got.Trailer))
				require.Empty(t, got.Header["X-Sum"])
				if replayed == 0 {
					require.Equal(t, wantResult, <-results)
				}
			}
			require.Empty(t, results)
		})
	}
}

func flush(w http.ResponseWriter) string {
	return fmt.Sprint(http.NewResponseController(w).Flush(), "; ")
}

// set leaves out trailers that were announced and did not come.
func set(trailer http.Header) http.Header {
	h := make(http.Header)
	for name, v := range trailer {
		if len(v) > 0 {
			h[name] = v
		}
	}
	return h
}

// TestAnAnswerIsHeldUntilItIsStoredOrFlushed: nobody hears of what could not be said again.
func TestAnAnswerIsHeldUntilItIsStoredOrFlushed(t *testing.T) {
	t.Parallel()
	var w *httptest.ResponseRecorder
	held := func(context.Context) error {
		require.Zero(t, w.Body.Len())
		return nil
	}
	h := idempotent.Handler(say("done"), &store{Store: idempotent.Memory(10), finish: held})
	w = httptest.NewRecorder()
	h.ServeHTTP(w, post("k", ""))
	require.Equal(t, "done", w.Body.String())

	gate := make(chan struct{})
	s := start(t, idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first,")
		_ = http.NewResponseController(w).Flush()
		<-gate
		_, _ = io.WriteString(w, "second")
	}), idempotent.Memory(10)))
	resp := send(t, s, "k", "")
	b := make([]byte, len("first,"))
	_, err := io.ReadFull(resp.Body, b)
	require.NoError(t, err)
	require.Equal(t, "first,", string(b))
	refuses(t, send(t, s, "k", ""), http.StatusConflict, "running")
	close(gate)
	answers(t, resp, http.StatusOK, "second")
	replays(t, send(t, s, "k", ""), http.StatusOK, "first,second")
}

func TestAnAnswerThatIsTooLongIsGivenOnce(t *testing.T) {
	t.Parallel()
	for _, flushed := range []bool{false, true} {
		charges := count(func(w http.ResponseWriter, r *http.Request) {
			for range 5 {
				_, _ = io.WriteString(w, "ab")
				if flushed {
					flush(w)
				}
			}
		})
		memory := idempotent.Memory(10)
		s := start(t, idempotent.Handler(charges, memory, idempotent.MaxAnswer(9)))
		answers(t, send(t, s, "k", ""), http.StatusOK, "ababababab")
		refuses(t, send(t, s, "k", ""), http.StatusConflict, "not-stored")
		refuses(t, send(t, s, "k", "other"), http.StatusUnprocessableEntity, "reused")
		require.EqualValues(t, 1, charges.runs.Load())
		fits := start(t, idempotent.Handler(charges, memory, idempotent.MaxAnswer(10), idempotent.Scope(func(*http.Request) string { return "" })))
		answers(t, send(t, fits, "k", ""), http.StatusOK, "ababababab")
		replays(t, send(t, fits, "k", ""), http.StatusOK, "ababababab")
	}
}

func TestALongFailureCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	charges := count(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "a long story", http.StatusInternalServerError)
	})
	h := idempotent.Handler(charges, idempotent.Memory(10), idempotent.MaxAnswer(1))
	answers(t, serve(h, post("k", "")), http.StatusInternalServerError, "a long story\n")
	answers(t, serve(h, post("k", "")), http.StatusInternalServerError, "a long story\n")
	require.EqualValues(t, 2, charges.runs.Load())
}

// TestAnAnswerShorterThanItSaidIsNotReplayed: the replay would look whole.
func TestAnAnswerShorterThanItSaidIsNotReplayed(t *testing.T) {
	t.Parallel()
	s := start(t, idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "half")
	}), idempotent.Memory(10)))
	resp := send(t, s, "k", "")
	_, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t, resp.Body.Close())
	refuses(t, send(t, s, "k", ""), http.StatusConflict, "not-stored")
}

// TestAStreamToAClientThatWentAwayIsNotReplayed: its handler may have stopped in the middle.
func TestAStreamToAClientThatWentAwayIsNotReplayed(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 2)
	protected := idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first,")
		flush(w)
		<-r.Context().Done()
	}), idempotent.Memory(10))
	s := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protected.ServeHTTP(w, r)
		ended <- struct{}{}
	}))
	resp := send(t, s, "k", "")
	require.NoError(t, resp.Body.Close())
	<-ended
	refuses(t, send(t, s, "k", ""), http.StatusConflict, "not-stored")
}

// A brokenWriter loses what is written from its nth write on; so long the client is there.
type brokenWriter struct {
	*httptest.ResponseRecorder
	n int
}

func (w *brokenWriter) fail() error {
	if w.n--; w.n < 0 {
		return io.ErrClosedPipe
	}
	return nil
}

func (w *brokenWriter) Write(p []byte) (int, error) { return len(p), w.fail() }
func (w *brokenWriter) FlushError() error           { return w.fail() }

// TestAStreamThatBreaksIsNotReplayed: its handler may have seen that, and stopped.
func TestAStreamThatBreaksIsNotReplayed(t *testing.T) {
	t.Parallel()
	for n := range 6 {
		h := idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range 2 { // the first is written by Flush
				_, _ = io.WriteString(w, "some,")
				flush(w)
			}
			_, _ = io.WriteString(w, "last")
		}), idempotent.Memory(10))
		h.ServeHTTP(&brokenWriter{httptest.NewRecorder(), n}, post("k", ""))
		if n < 5 {
			refuses(t, serve(h, post("k", "")), http.StatusConflict, "not-stored")
		} else {
			replays(t, serve(h, post("k", "")), http.StatusOK, "some,some,last")
		}
	}
}

func TestAConnectionThatIsTakenOverIsNotReplayed(t *testing.T) {
	t.Parallel()
	for _, header := range []bool{false, true} {
		ended := make(chan struct{}, 2)
		protected := idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if header {
				w.WriteHeader(http.StatusOK)
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			_, err = w.Write([]byte("x"))
			if err != http.ErrHijacked { //nolint:errorlint // as net/http gives it
				t.Error(err)
			}
			w.WriteHeader(http.StatusTeapot)
			if !header {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw")
			}
		}), idempotent.Memory(10))
		s := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			protected.ServeHTTP(w, r)
			ended <- struct{}{}
		}))
		resp := send(t, s, "k", "")
		body, _ := io.ReadAll(resp.Body) // without a length of its own it ends with the connection
		require.NoError(t, resp.Body.Close())
		require.Equal(t, map[bool]string{false: "raw", true: ""}[header], string(body))
		<-ended // the client knew before the store
		refuses(t, send(t, s, "k", ""), http.StatusConflict, "not-stored")
	}
}

func TestInformationalResponsesPassAndAreNotStored(t *testing.T) {
	t.Parallel()
	s := start(t, idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.Header().Set(idempotent.ReplayedHeader, "true")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		_, _ = io.WriteString(w, "done")
	}), idempotent.Memory(10)))
	hints := func() (got []string) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			got = append(got, fmt.Sprint(code, h))
			return nil
		}})
		resp, err := trySend(ctx, s, "k", "")
		require.NoError(t, err)
		require.Equal(t, "done", read(t, resp))
		require.Empty(t, resp.Header.Get("Link"))
		return got
	}
	require.Equal(t, []string{"103 map[Link:[</style.css>]]"}, hints())
	require.Empty(t, hints())
}

func TestAResponseControllerReachesTheConnection(t *testing.T) {
	t.Parallel()
	s := start(t, idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		for _, err := range []error{c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{}), c.EnableFullDuplex(), c.Flush()} {
			if err != nil {
				t.Error(err)
			}
		}
	}), idempotent.Memory(10)))
	answers(t, send(t, s, "k", ""), http.StatusOK, "")
	replays(t, send(t, s, "k", ""), http.StatusOK, "")
}

// TestFieldsOfOneRequestOrConnectionAreNotReplayed: what is set above the handler is the
// replay's own.
func TestFieldsOfOneRequestOrConnectionAreNotReplayed(t *testing.T) {
	t.Parallel()
	protected := idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for name, v := range map[string]string{
			"Connection": "X-Hop, keep-alive", "X-Hop": "1", "Keep-Alive": "1", "Upgrade": "1", "Date": "yesterday",
			"X-Kept": "1", "Cache-Control": "private", "X-Changed": "by the handler",
		} {
			w.Header().Set(name, v)
		}
		w.Header().Add("Vary", "Accept")
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
	}), idempotent.Memory(10))
	n := 0
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		w.Header().Set("X-Request-Id", fmt.Sprint(n))
		w.Header().Set("X-Changed", "above")
		w.Header().Set("Vary", "Origin")
		w.Header().Set("Set-Cookie", fmt.Sprint("session=", n))
		protected.ServeHTTP(w, r)
	})
	require.Equal(t, "1", serve(h, post("k", "")).Header.Get("X-Request-Id"))
	require.Equal(t, http.Header{
		"X-Request-Id": {"2"}, "Set-Cookie": {"session=2", "a=1", "b=2"}, "X-Kept": {"1"}, "Vary": {"Origin", "Accept"}, "Cache-Control": {"private"}, "X-Changed": {"by the handler"},
		idempotent.ReplayedHeader: {"true"},
	}, serve(h, post("k", "")).Header)
}

func TestAHEADKeepsItsLength(t *testing.T) {
	t.Parallel()
	s := start(t, idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
	}), idempotent.Memory(10), idempotent.Methods(http.MethodHead)))
	for _, replayed := range []string{"", "true"} {
		r, err := http.NewRequest(http.MethodHead, s.URL, nil)
		require.NoError(t, err)
		r.Header.Set(idempotent.KeyHeader, "k")
		resp, err := s.Client().Do(r)
		require.NoError(t, err)
		require.Empty(t, read(t, resp))
		require.EqualValues(t, 10, resp.ContentLength)
		require.Equal(t, replayed, resp.Header.Get(idempotent.ReplayedHeader))
	}
}

func TestHTTP2WorksAsHTTP1Does(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.Copy(w, r.Body)
		flush(w)
		w.Header().Set("X-Sum", r.Proto)
	}), idempotent.Memory(10)))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	for _, check := range []func(testing.TB, *http.Response, int, string){answers, replays} {
		resp := send(t, s, "k", "body")
		check(t, resp, http.StatusOK, "body")
		require.Equal(t, http.Header{"X-Sum": {"HTTP/2.0"}}, resp.Trailer)
	}
}

// TestARefusalDoesNotAskForTheBody of a client that waits for 100 Continue, but the
// handler's does; and request trailers reach it.
func TestARefusalDoesNotAskForTheBody(t *testing.T) {
	t.Parallel()
	s := start(t, idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
		_, _ = io.WriteString(w, r.Trailer.Get("X-Sum"))
	}), idempotent.Memory(10), idempotent.MaxBody(100)))
	exchange := func(field, framing, body string) (string, string) {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		_, err = fmt.Fprintf(conn, "POST /charges HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\n%s: %s\r\n%s\r\n\r\n",
			idempotent.KeyHeader, field, framing)
		require.NoError(t, err)
		in := bufio.NewReader(conn)
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		_, err = io.WriteString(conn, body)
		require.NoError(t, err)
		rest, _ := io.ReadAll(in) // a refusal may reset the connection
		return line, string(rest)
	}
	line, _ := exchange(`"`, "Content-Length: 4", "")
	require.Equal(t, "HTTP/1.1 400 Bad Request\r\n", line)
	line, _ = exchange("k", "Content-Length: 101", "")
	require.Equal(t, "HTTP/1.1 413 Request Entity Too Large\r\n", line)
	line, rest := exchange("k", "Transfer-Encoding: chunked\r\nTrailer: X-Sum", "4\r\nbody\r\n0\r\nX-Sum: 7\r\n\r\n")
	require.Equal(t, "HTTP/1.1 100 Continue\r\n", line)
	require.Contains(t, rest, "200 OK")
	require.Contains(t, rest, "body7")
}
