package retrip_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// A readFunc is a reader made of a function.
type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// A meter counts what was read through it.
type meter struct {
	io.Reader
	n int
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	m.n += n
	return n, err
}

// A pipeBody is a request body that is written while it is sent. Closing it ends
// a Read.
type pipeBody struct {
	*io.PipeReader
	closes atomic.Int32
}

func (b *pipeBody) Close() error {
	b.closes.Add(1)
	return b.PipeReader.Close()
}

// pipe returns a body and what writes it. When a test ends, also by a failure, its
// bubble's goroutines get the time to end too.
func pipe(t *testing.T) (*pipeBody, *io.PipeWriter) {
	r, w := io.Pipe()
	t.Cleanup(func() {
		_ = w.Close()
		time.Sleep(time.Minute)
	})
	return &pipeBody{PipeReader: r}, w
}

// numbered is a base that knows the number of the attempt.
func numbered(fn func(n int, req *http.Request) (*http.Response, error)) roundTrip {
	n := 0
	return func(req *http.Request) (*http.Response, error) {
		n++
		return fn(n, req)
	}
}

// readAndClose is what a base does with a body.
func readAndClose(body io.ReadCloser) (string, error) {
	b, err := io.ReadAll(body)
	_ = body.Close()
	return string(b), err
}

// inGoroutine reads a body, and closes it, beside the test.
func inGoroutine(body io.ReadCloser) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := readAndClose(body)
		done <- err
	}()
	return done
}

var pauseOneSecond = retrip.WithBackoff(retrip.Constant(time.Second))

func TestNoBodyStaysNoBody(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]io.ReadCloser{"nil": nil, "http.NoBody": http.NoBody} {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost} {
			t.Run(method+" with "+name, func(t *testing.T) {
				t.Parallel()
				var bodies []io.ReadCloser
				base := roundTrip(func(req *http.Request) (*http.Response, error) {
					bodies = append(bodies, req.Body)
					require.Nil(t, req.GetBody)
					require.Zero(t, req.ContentLength)
					return answer(503)(req)
				})
				req := request(t, method, nil)
				req.Body = body
				_, err := retrip.New(base, retrip.WithBackoff(retrip.Constant(0)), retrip.WithMaxAttempts(2)).RoundTrip(req)
				require.NoError(t, err)
				require.Len(t, bodies, 2)
				require.True(t, bodies[0] == body && bodies[1] == body, "%v", bodies)
			})
		}
	}
}

func TestABodyWithGetBodyIsSentByIt(t *testing.T) {
	t.Parallel()
	own := track("own")
	copies := []*trackedBody{track("copy 1"), track("copy 2")}
	req := request(t, http.MethodPut, own)
	calls := 0
	req.GetBody = func() (io.ReadCloser, error) {
		calls++
		return copies[calls-1], nil
	}
	base := play(answer(503), answer(503), answer(200))
	_, err := retrip.New(base, retrip.WithBackoff(retrip.Constant(0)), retrip.WithMaxBody(0)).RoundTrip(req)
	require.NoError(t, err)
	var bodies []string
	for _, saw := range base.attempts() {
		bodies = append(bodies, saw.body)
		require.NotNil(t, saw.req.GetBody)
	}
	require.Equal(t, []string{"own", "copy 1", "copy 2"}, bodies)
	for _, b := range append(copies, own) {
		b.requireClosed(t)
	}
}

func TestNetHTTPSeesABodyInMemoryAsItIs(t *testing.T) {
	t.Parallel()
	for _, body := range []io.Reader{strings.NewReader("a"), bytes.NewReader([]byte("a")), bytes.NewBufferString("a")} {
		t.Run(fmt.Sprintf("%T", body), func(t *testing.T) {
			t.Parallel()
			var types []string
			base := numbered(func(n int, req *http.Request) (*http.Response, error) {
				types = append(types, fmt.Sprintf("%T", req.Body))
				return answer(503)(req)
			})
			req := request(t, http.MethodPut, body)
			_, err := retrip.New(base, retrip.WithBackoff(retrip.Constant(0)), retrip.WithMaxAttempts(2)).RoundTrip(req)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("%T", req.Body), types[0])
			require.Contains(t, types[1], "io.nopCloser")
		})
	}
}

func TestAStreamIsNeverReadAhead(t *testing.T) {
	t.Parallel()
	source := &meter{Reader: strings.NewReader("0123456789")}
	body := &trackedBody{Reader: source}
	reads := [][]int{{0, 3, 3}, {2, 3, 5, 5}, {5, 8, 10}} // how far to read, and how far the source is then
	want := [][]int{{0, 3, 3}, {3, 3, 5, 5}, {5, 8, 10}}
	base := numbered(func(n int, req *http.Request) (*http.Response, error) {
		at := 0
		for i, upTo := range reads[n-1] {
			got, err := io.ReadAll(io.LimitReader(req.Body, int64(upTo-at)))
			require.NoError(t, err)
			require.Equal(t, "0123456789"[at:upTo], string(got))
			at = upTo
			require.Equal(t, want[n-1][i], source.n, "attempt %d after %d bytes", n, upTo)
		}
		require.NoError(t, req.Body.Close())
		return answer(503)(req)
	})
	_, err := retrip.New(base, retrip.WithBackoff(retrip.Constant(0)), retrip.WithMaxAttempts(3)).RoundTrip(request(t, http.MethodPut, body))
	require.NoError(t, err)
	body.requireClosed(t)
}

func TestHowMuchOfABodyIsKept(t *testing.T) {
	t.Parallel()
	const all = 1 << 20
	tests := []struct {
		name     string
		method   string
		keep     int64
		size     int
		declared int64
		read     int // by the first attempt
		status   int // of the first attempt
		again    bool
		getBody  bool
	}{
		{"a body below the cap is sent again", "PUT", 100, 99, 0, all, 503, true, true},
		{"a body at the cap is sent again", "PUT", 100, 100, 0, all, 503, true, true},
		{"a body over the cap is sent once", "PUT", 100, 101, 0, all, 503, false, true},
		{"a body over the cap is sent again if what was read is within it", "PUT", 100, 1000, 0, 100, 503, true, true},
		{"a body over the cap is sent once if what was read is not within it", "PUT", 100, 1000, 0, 101, 503, false, true},
		{"a declared length at the cap is kept", "PUT", 100, 100, 100, all, 503, true, true},
		{"a declared length over the cap is not kept", "PUT", 100, 101, 101, 1, 503, false, false},
		{"a declared length over the cap is sent again if no byte was read", "PUT", 100, 101, 101, 0, 503, true, false},
		{"an unknown length is kept", "PUT", 100, 50, -1, all, 503, true, true},
		{"a cap of zero keeps nothing", "PUT", 0, 1, 0, 1, 503, false, false},
		{"a cap of zero sends again what was not read", "PUT", 0, 1, 0, 0, 503, true, false},
		{"a cap of zero sends an empty stream again", "PUT", 0, 0, 0, all, 503, true, false},
		{"a body over several chunks is kept", "PUT", 1 << 20, 100_000, 0, all, 503, true, true},
		{"a POST with a key is kept", "POST", 100, 100, 0, all, 503, true, true},
		{"a request that may not be repeated is not kept", "LOCK", 100, 10, 0, 1, 429, false, false},
		{"a request that may not be repeated is sent again if nothing was done nor read", "LOCK", 100, 10, 0, 0, 429, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			full := strings.Repeat("0123456789abcdef", tt.size/16+1)[:tt.size]
			body := track(full)
			req := request(t, tt.method, body)
			req.ContentLength = tt.declared
			var second string
			attempts := 0
			base := numbered(func(n int, req *http.Request) (*http.Response, error) {
				attempts = n
				require.Equal(t, tt.declared, req.ContentLength)
				require.Equal(t, tt.getBody, req.GetBody != nil)
				if n == 1 {
					_, err := io.CopyN(io.Discard, req.Body, int64(tt.read))
					require.True(t, err == nil || err == io.EOF, "%v", err)
					require.NoError(t, req.Body.Close())
					return answer(tt.status)(req)
				}
				var err error
				second, err = readAndClose(req.Body)
				require.NoError(t, err)
				return answer(200)(req)
			})
			d := &diary{}
			rt := retrip.New(base, retrip.WithBackoff(retrip.Constant(0)), retrip.WithMaxBody(tt.keep), retrip.WithTrace(d.trace()))
			resp, err := rt.RoundTrip(req)
			require.NoError(t, err)
			body.requireClosed(t)
			if tt.again {
				require.Equal(t, 2, attempts)
				require.Equal(t, 200, resp.StatusCode)
				require.Equal(t, full, second)
				return
			}
			require.Equal(t, 1, attempts)
			require.Equal(t, tt.status, resp.StatusCode)
			require.Equal(t, "x", finish(t, resp))
			require.Equal(t, []retrip.Reason{retrip.ReasonBody}, d.reasons())
		})
	}
}

func TestWithMaxBodyPanicsOnANegativeLimit(t *testing.T) {
	t.Parallel()
	require.PanicsWithValue(t, "retrip: WithMaxBody(-1): the limit is negative", func() { retrip.WithMaxBody(-1) })
}

func TestAnErrorOfTheCallersReader(t *testing.T) {
	t.Parallel()
	failing := func(err error) io.ReadCloser {
		return &trackedBody{Reader: io.MultiReader(strings.NewReader("some"), iotest.ErrReader(err))}
	}
	bodies := map[string]func(t *testing.T, err error) (*http.Request, int){
		"of a stream": func(t *testing.T, err error) (*http.Request, int) {
			return request(t, http.MethodPut, failing(err)), 1
		},
		"of a stream that is not kept": func(t *testing.T, err error) (*http.Request, int) {
			req := request(t, http.MethodPut, failing(err))
			req.ContentLength = 1 << 30
			return req, 1
		},
		"of a body with GetBody": func(t *testing.T, err error) (*http.Request, int) {
			req := request(t, http.MethodPut, failing(err))
			req.GetBody = func() (io.ReadCloser, error) { return track("copy"), nil }
			return req, 1
		},
		"of what GetBody gave": func(t *testing.T, err error) (*http.Request, int) {
			req := request(t, http.MethodPut, track("own"))
			req.GetBody = func() (io.ReadCloser, error) { return failing(err), nil }
			return req, 2
		},
	}
	errSource := errors.New("disk on fire")
	returns := map[string]func(error) error{
		"as it is":              func(err error) error { return err },
		"wrapped":               func(err error) error { return fmt.Errorf("transport broken: %w", err) },
		"as one of the network": func(error) error { return syscall.EPIPE },
	}
	for where, make := range bodies {
		for how, base := range returns {
			for _, cause := range []error{errSource, io.ErrUnexpectedEOF, syscall.ECONNRESET, context.DeadlineExceeded} {
				t.Run(fmt.Sprintf("%s, returned %s: %v", where, how, cause), func(t *testing.T) {
					t.Parallel()
					req, attempts := make(t, cause)
					var returned error
					d := &diary{}
					rt := retrip.New(numbered(func(n int, req *http.Request) (*http.Response, error) {
						if _, err := readAndClose(req.Body); err != nil {
							returned = base(err)
							return nil, returned
						}
						return answer(503)(req)
					}), retrip.WithBackoff(retrip.Constant(0)), retrip.WithTrace(d.trace()), breakAfter(2))
					resp, err := rt.RoundTrip(req)
					require.Nil(t, resp)
					require.ErrorIs(t, err, cause)
					require.ErrorIs(t, err, returned)
					if how != "as one of the network" {
						require.True(t, err == returned, "%v", err)
					}
					require.Len(t, d.attempted, attempts)
					require.Equal(t, []retrip.Reason{retrip.ReasonBody}, d.reasons())
					name, stats := onlyHost(t, rt)
					require.Equal(t, "example.com", name)
					require.Equal(t, retrip.Closed, stats.State)
					require.EqualValues(t, attempts, stats.Attempts)
					require.Zero(t, stats.FirstTry+stats.Recovered)
					require.InDelta(t, 11-attempts, stats.Tokens, 0, "the reader's attempt neither earns nor gives back")
				})
			}
		}
	}
}

// onlyHost returns what the Transport knows of its only host.
func onlyHost(t *testing.T, rt *retrip.Transport) (name string, stats retrip.HostStats) {
	t.Helper()
	n := 0
	for name, stats = range rt.Hosts() {
		n++
	}
	require.Equal(t, 1, n)
	return name, stats
}

func TestAResponseIsHandedBackThoughTheCallersReaderFailed(t *testing.T) {
	t.Parallel()
	body := &trackedBody{Reader: iotest.ErrReader(errors.New("disk on fire"))}
	d := &diary{}
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		_, err := readAndClose(req.Body)
		require.Error(t, err)
		return answer(503)(req)
	})
	resp, err := retrip.New(base, retrip.WithTrace(d.trace())).RoundTrip(request(t, http.MethodPut, body))
	require.NoError(t, err)
	require.Equal(t, "x", finish(t, resp))
	require.Equal(t, []retrip.Reason{retrip.ReasonBody}, d.reasons())
	body.requireClosed(t)
}

func TestGetBodyFailsAtTheReplay(t *testing.T) {
	t.Parallel()
	own, errGet := track("own"), errors.New("no more copies")
	req := request(t, http.MethodPut, own)
	req.GetBody = func() (io.ReadCloser, error) { return nil, errGet }
	base, d := play(answer(503)), &diary{}
	rt := retrip.New(base, retrip.WithBackoff(retrip.Constant(0)), retrip.WithTrace(d.trace()))
	resp, err := rt.RoundTrip(req)
	require.Nil(t, resp)
	require.True(t, err == errGet, "%v", err)
	require.Len(t, base.attempts(), 1)
	require.Len(t, d.attempted, 1)
	require.Equal(t, []retrip.Reason{retrip.ReasonBody}, d.reasons())
	own.requireClosed(t)
	_, stats := onlyHost(t, rt)
	require.InDelta(t, 10, stats.Tokens, 0, "a retry that never reached the base costs nothing")
	require.EqualValues(t, 1, stats.Attempts, "calls of the base")
}

// HTTP/2 closes a body under its Read when the stream ends. What the Read then
// returns is no failure of the caller's.
func TestABodyThatTheBaseClosesUnderItsReadIsNoFault(t *testing.T) {
	t.Parallel()
	for _, withGetBody := range []bool{true, false} {
		t.Run(fmt.Sprintf("GetBody=%v", withGetBody), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				body, w := pipe(t)
				req := request(t, http.MethodPut, body)
				if withGetBody {
					req.GetBody = func() (io.ReadCloser, error) { return track("copy"), nil }
				}
				base := numbered(func(n int, req *http.Request) (*http.Response, error) {
					if n == 1 {
						done := inGoroutine(req.Body)
						synctest.Wait()
						require.NoError(t, req.Body.Close())
						if withGetBody {
							require.ErrorIs(t, <-done, io.ErrClosedPipe)
						}
						return nil, syscall.ECONNRESET
					}
					_, err := readAndClose(req.Body)
					require.NoError(t, err)
					return answer(200)(req)
				})
				time.AfterFunc(2*time.Second, func() { _ = w.Close() })
				resp, err := retrip.New(base, pauseOneSecond).RoundTrip(req)
				require.NoError(t, err)
				require.Equal(t, 200, resp.StatusCode)
			})
		})
	}
}

func TestAStaleReaderNeitherStealsNorRaces(t *testing.T) {
	t.Parallel()
	// The first attempt goes stale in the first second, which a hook takes, or in the
	// pause of another second; then the next one starts.
	when := map[string]time.Duration{"hook": 500 * time.Millisecond, "pause": 1500 * time.Millisecond, "next attempt": 2500 * time.Millisecond}
	tests := []struct {
		name   string
		keep   int64
		before string // what the first attempt reads before it blocks
	}{
		{"within the cap", 100, ""},
		{"within the cap, after some bytes", 100, "12"},
		{"past the cap, after some bytes", 4, "12"},
		{"past the cap with its first bytes", 2, ""},
		{"with nothing kept", 0, ""},
	}
	for _, tt := range tests {
		for during, at := range when {
			t.Run(tt.name+", during the "+during, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					r, w := pipe(t)
					body := &trackedBody{Reader: r}
					var stale bytes.Buffer
					done := make(chan error, 1)
					base := numbered(func(n int, req *http.Request) (*http.Response, error) {
						if n == 1 {
							go func() {
								_, err := stale.ReadFrom(req.Body)
								done <- err
							}()
							synctest.Wait()
							return answer(503)(req)
						}
						got, err := readAndClose(req.Body)
						require.NoError(t, err)
						require.Equal(t, tt.before+"abcdef", got)
						return answer(200)(req)
					})
					go func() {
						_, _ = io.WriteString(w, tt.before)
						time.Sleep(at)
						_, _ = io.WriteString(w, "abc")
						time.Sleep(10 * time.Second)
						_, _ = io.WriteString(w, "def")
						_ = w.Close()
					}()
					hook := &retrip.Trace{Pausing: func(retrip.PausingInfo) { time.Sleep(time.Second) }}
					rt := retrip.New(base, pauseOneSecond, retrip.WithMaxBody(tt.keep), retrip.WithTrace(hook))
					resp, err := rt.RoundTrip(request(t, http.MethodPut, body))
					require.NoError(t, err)
					require.Equal(t, 200, resp.StatusCode)
					require.Error(t, <-done)
					require.True(t, strings.HasPrefix(tt.before+"abc", stale.String()), stale.String())
					body.requireClosed(t)
				})
			})
		}
	}
}

func TestAStaleReaderThatStartsAReadGetsNothing(t *testing.T) {
	t.Parallel()
	body := track("hello")
	var stale io.Reader
	base := numbered(func(n int, req *http.Request) (*http.Response, error) {
		if n == 1 {
			stale = req.Body
			return answer(503)(req)
		}
		got, err := io.ReadAll(stale)
		require.Error(t, err)
		require.Empty(t, got)
		full, err := readAndClose(req.Body)
		require.NoError(t, err)
		require.Equal(t, "hello", full)
		return answer(200)(req)
	})
	_, err := retrip.New(base, retrip.WithBackoff(retrip.Constant(0))).RoundTrip(request(t, http.MethodPut, body))
	require.NoError(t, err)
	body.requireClosed(t)
}

func TestCloseNeverWaitsForARead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body, _ := pipe(t)
		var done <-chan error
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			done = inGoroutine(req.Body)
			synctest.Wait()
			require.NoError(t, req.Body.Close())
			require.Zero(t, body.closes.Load(), "another attempt may need the source")
			return answer(200)(req)
		})
		start := time.Now()
		_, err := retrip.New(base).RoundTrip(request(t, http.MethodPut, body))
		require.NoError(t, err)
		require.Error(t, <-done)
		require.Zero(t, time.Since(start))
		require.EqualValues(t, 1, body.closes.Load())
	})
}

func TestCloseWakesAReaderThatWaitsForAnothersFetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w := pipe(t)
		body := &trackedBody{Reader: r}
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			second, err := req.GetBody()
			require.NoError(t, err)
			fetching := inGoroutine(req.Body)
			synctest.Wait()
			waiting := inGoroutine(second)
			synctest.Wait()
			require.NoError(t, second.Close())
			require.Error(t, <-waiting)
			require.Empty(t, fetching)
			_ = w.Close()
			require.NoError(t, <-fetching)
			return answer(200)(req)
		})
		_, err := retrip.New(base).RoundTrip(request(t, http.MethodPut, body))
		require.NoError(t, err)
		body.requireClosed(t)
	})
}

func TestTheSourceIsClosedOnceAfterTheLastReader(t *testing.T) {
	t.Parallel()
	body := track("hello")
	var open []io.Closer
	base := numbered(func(n int, req *http.Request) (*http.Response, error) {
		if n == 1 {
			require.NoError(t, req.Body.Close())
			return answer(503)(req)
		}
		second, err := req.GetBody()
		require.NoError(t, err)
		open = []io.Closer{req.Body, second}
		return answer(200)(req)
	})
	_, err := retrip.New(base, retrip.WithBackoff(retrip.Constant(0))).RoundTrip(request(t, http.MethodPut, body))
	require.NoError(t, err)
	require.Zero(t, body.closes)
	require.NoError(t, open[1].Close())
	require.NoError(t, open[1].Close(), "twice")
	require.Zero(t, body.closes)
	require.NoError(t, open[0].Close())
	body.requireClosed(t)
}

func TestTheSourceIsNotClosedUnderAReadThatTheBaseLeftBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body, w := pipe(t)
		var done <-chan error
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			done = inGoroutine(req.Body)
			synctest.Wait()
			return nil, errEnough
		})
		_, err := retrip.New(base).RoundTrip(request(t, http.MethodPut, body))
		require.True(t, err == errEnough, "%v", err)
		require.Zero(t, body.closes.Load())
		_, err = io.WriteString(w, "abc")
		require.NoError(t, err)
		require.Error(t, <-done, "stale")
		require.EqualValues(t, 1, body.closes.Load())
	})
}

func TestAnUploadGoesOnAfterTheResponse(t *testing.T) {
	t.Parallel()
	for _, keep := range []int64{1 << 20, 4, 0} {
		t.Run(fmt.Sprintf("keep=%d", keep), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				body, w := pipe(t)
				var got bytes.Buffer
				done := make(chan error, 1)
				base := numbered(func(n int, req *http.Request) (*http.Response, error) {
					if n == 1 {
						require.NoError(t, req.Body.Close())
						return answer(503)(req)
					}
					go func() {
						_, err := got.ReadFrom(req.Body)
						_ = req.Body.Close()
						done <- err
					}()
					synctest.Wait()
					return answer(200)(req)
				})
				_, err := retrip.New(base, pauseOneSecond, retrip.WithMaxBody(keep)).RoundTrip(request(t, http.MethodPut, body))
				require.NoError(t, err)
				for range 3 {
					_, err = io.WriteString(w, "abc")
					require.NoError(t, err)
				}
				require.Zero(t, body.closes.Load())
				require.NoError(t, w.Close())
				require.NoError(t, <-done)
				require.Equal(t, "abcabcabc", got.String())
				require.EqualValues(t, 1, body.closes.Load())
			})
		})
	}
}

func TestABaseMayCallGetBodyItself(t *testing.T) {
	t.Parallel()
	full := strings.Repeat("0123456789", 100)
	// net/http sends again by itself when a kept connection is dead.
	resend := func(req *http.Request) (string, error) {
		_, _ = io.CopyN(io.Discard, req.Body, 10)
		_ = req.Body.Close()
		again, err := req.GetBody()
		if err != nil {
			return "", err
		}
		return readAndClose(again)
	}
	// A signer hashes a copy before the body is sent. It reads with a large buffer,
	// as io.Copy does.
	sign := func(req *http.Request) (string, error) {
		signed, err := req.GetBody()
		if err != nil {
			return "", err
		}
		for b := make([]byte, 32<<10); err == nil; {
			_, err = signed.Read(b)
		}
		_ = signed.Close()
		return readAndClose(req.Body)
	}
	// A base may open copies before it reads any.
	ahead := func(req *http.Request) (string, error) {
		var got []string
		var copies []io.ReadCloser
		for range 2 {
			c, err := req.GetBody()
			if err != nil {
				return "", err
			}
			copies = append(copies, c)
		}
		for _, c := range append(copies, req.Body) {
			b, err := readAndClose(c)
			if err != nil {
				return "", err
			}
			got = append(got, b)
		}
		require.Equal(t, got[0], got[1])
		return got[2], nil
	}
	tests := []struct {
		name string
		keep int64
		send func(*http.Request) (string, error)
		fits bool
	}{
		{"net/http's resend", 1000, resend, true},
		{"net/http's resend of what was read, the rest over the cap", 10, resend, true},
		{"net/http's resend over the cap", 9, resend, false},
		{"copies opened ahead", 1000, ahead, true},
		{"a signer", 1000, sign, true},
		{"a signer over the cap", 999, sign, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			body := track(full)
			var got []string
			base := numbered(func(n int, req *http.Request) (*http.Response, error) {
				b, err := tt.send(req)
				if err != nil {
					return nil, err
				}
				got = append(got, b)
				return answer(503)(req)
			})
			rt := retrip.New(base, retrip.WithBackoff(retrip.Constant(0)), retrip.WithMaxAttempts(2), retrip.WithMaxBody(tt.keep))
			_, err := rt.RoundTrip(request(t, http.MethodPut, body))
			body.requireClosed(t)
			for _, b := range got {
				require.Equal(t, full, b, "a body must not be cut short")
			}
			if !tt.fits {
				require.ErrorContains(t, err, fmt.Sprintf("longer than the %d bytes kept", tt.keep))
				return
			}
			require.NoError(t, err)
			require.NotEmpty(t, got)
		})
	}
}

func TestTheEndOfTheRequestEndsItsReaders(t *testing.T) {
	t.Parallel()
	errEnough := errors.New("enough")
	ends := map[string]func(*http.Request) (*http.Request, func(), error){
		"the context's": func(req *http.Request) (*http.Request, func(), error) {
			ctx, cancel := context.WithCancelCause(req.Context())
			return req.WithContext(ctx), func() { cancel(errEnough) }, errEnough
		},
		"Request.Cancel's": func(req *http.Request) (*http.Request, func(), error) {
			c := make(chan struct{})
			req.Cancel = c //lint:ignore SA1019 callers still set it
			return req, func() { close(c) }, context.Canceled
		},
	}
	for name, end := range ends {
		for _, attempt := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, attempt %d", name, attempt), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					body, _ := pipe(t)
					req, cancel, cause := end(request(t, http.MethodPut, body))
					base := numbered(func(n int, req *http.Request) (*http.Response, error) {
						if n < attempt {
							_ = req.Body.Close()
							return answer(503)(req)
						}
						second, err := req.GetBody()
						require.NoError(t, err)
						fetching, waiting := inGoroutine(req.Body), inGoroutine(second)
						synctest.Wait()
						require.Empty(t, fetching)
						require.Empty(t, waiting)
						cancel()
						require.ErrorIs(t, <-waiting, cause)
						err = <-fetching
						require.ErrorIs(t, err, cause)
						_, err = req.GetBody()
						require.ErrorIs(t, err, cause)
						return nil, err
					})
					d := &diary{}
					rt := retrip.New(base, pauseOneSecond, retrip.WithTrace(d.trace()))
					_, err := rt.RoundTrip(req)
					require.ErrorIs(t, err, cause)
					require.Equal(t, []retrip.Reason{retrip.ReasonCancelled}, d.reasons())
					require.EqualValues(t, 1, body.closes.Load())
					_, stats := onlyHost(t, rt)
					require.Equal(t, retrip.Closed, stats.State)
				})
			})
		}
	}
}

func TestABodyThatDoesNotYieldInTimeIsNoFaultOfTheHost(t *testing.T) {
	t.Parallel()
	for _, withGetBody := range []bool{true, false} {
		for _, most := range []int{1, 4} {
			t.Run(fmt.Sprintf("GetBody=%v, %d attempts", withGetBody, most), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					body, _ := pipe(t)
					req := request(t, http.MethodPut, body)
					if withGetBody {
						req.GetBody = func() (io.ReadCloser, error) { return track("copy"), nil }
					}
					d := &diary{}
					rt := retrip.New(play(answer(200)), retrip.WithAttemptTimeout(time.Second), retrip.WithMaxAttempts(most), breakAfter(1), retrip.WithTrace(d.trace()))
					start := time.Now()
					_, err := rt.RoundTrip(req)
					require.EqualError(t, err, "retrip: attempt 1 to example.com: the request body did not yield within 1s")
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.Equal(t, time.Second, time.Since(start))
					require.Equal(t, []retrip.Reason{retrip.ReasonBody}, d.reasons())
					require.NotZero(t, body.closes.Load())
					_, stats := onlyHost(t, rt)
					require.Equal(t, retrip.Closed, stats.State)
				})
			})
		}
	}
}

func TestTheEndOfTheContextClosesABodyThatIsStillBeingSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body, _ := pipe(t)
		ctx, cancel := context.WithCancel(t.Context())
		var done <-chan error
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			done = inGoroutine(req.Body)
			return answer(200)(req)
		})
		_, err := retrip.New(base).RoundTrip(request(t, http.MethodPut, body).WithContext(ctx))
		require.NoError(t, err)
		synctest.Wait()
		require.Zero(t, body.closes.Load())
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		synctest.Wait()
		require.EqualValues(t, 1, body.closes.Load())
	})
}

// The context may also end when the pause is over and before the next attempt has
// its body: here in a hook of the breaker, which that attempt probes.
func TestARequestCancelledJustBeforeItsBodyIsOpenedIsCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := retrip.DefaultBreaker()
		b.Failures, b.Cooldowns = 1, []time.Duration{time.Second}
		d := &diary{}
		tr := &retrip.Trace{BreakerMoved: func(i retrip.BreakerMovedInfo) {
			if i.To == retrip.HalfOpen {
				cancel()
				synctest.Wait()
			}
		}}
		body, base := track("hello"), play(fail(syscall.ECONNRESET))
		rt := retrip.New(base, pauseOneSecond, retrip.WithBreaker(&b), retrip.WithTrace(tr), retrip.WithTrace(d.trace()))
		_, err := rt.RoundTrip(request(t, http.MethodPut, body).WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, syscall.ECONNRESET, "the last failure")
		require.Equal(t, []retrip.Reason{retrip.ReasonCancelled}, d.reasons())
		require.Len(t, base.attempts(), 1)
		body.requireClosed(t)
	})
}

func TestARequestCancelledWhileItIsPreparedLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			body := track("hello")
			req := request(t, http.MethodPost, body).WithContext(ctx)
			req.Cancel = make(chan struct{}) //lint:ignore SA1019 callers still set it
			base := roundTrip(func(req *http.Request) (*http.Response, error) {
				_ = req.Body.Close()
				return hang(req)
			})
			rt := retrip.New(base, retrip.WithIdempotencyKey(func(*http.Request) string {
				cancel()
				return "key"
			}))
			_, err := rt.RoundTrip(req)
			require.ErrorIs(t, err, context.Canceled)
			synctest.Wait()
			body.requireClosed(t)
		}
	})
}

func TestLengthCodingAndTrailerAreAsTheCallerGaveThem(t *testing.T) {
	t.Parallel()
	body := track("hello")
	req := request(t, http.MethodPut, body)
	req.ContentLength = 5
	req.TransferEncoding = []string{"chunked"}
	req.Trailer = http.Header{"Checksum": nil}
	base := play(answer(503), answer(200))
	body.Reader = io.MultiReader(body.Reader, readFunc(func([]byte) (int, error) {
		req.Trailer.Set("Checksum", "5d41402a") // as late as a caller may
		return 0, io.EOF
	}))
	_, err := retrip.New(base, retrip.WithBackoff(retrip.Constant(0))).RoundTrip(req)
	require.NoError(t, err)
	for _, saw := range base.attempts() {
		require.EqualValues(t, 5, saw.req.ContentLength)
		require.Equal(t, []string{"chunked"}, saw.req.TransferEncoding)
		require.Equal(t, http.Header{"Checksum": {"5d41402a"}}, saw.req.Trailer)
	}
	require.True(t, req.Body == io.ReadCloser(body))
	require.Nil(t, req.GetBody)
}

// zeroReads returns (0, nil) before each read.
func zeroReads(r io.Reader) io.Reader {
	idle := false
	return readFunc(func(p []byte) (int, error) {
		if idle = !idle; idle {
			return 0, nil
		}
		return r.Read(p)
	})
}

func TestOddReaders(t *testing.T) {
	t.Parallel()
	full := strings.Repeat("0123456789", 200)
	errSource := errors.New("disk on fire")
	tests := []struct {
		name   string
		source func() io.Reader
		err    error
	}{
		{"one byte at a time", func() io.Reader { return iotest.OneByteReader(strings.NewReader(full)) }, nil},
		{"half of what is asked for", func() io.Reader { return iotest.HalfReader(strings.NewReader(full)) }, nil},
		{"the last bytes with io.EOF", func() io.Reader { return iotest.DataErrReader(strings.NewReader(full)) }, nil},
		{"reads of nothing", func() io.Reader { return zeroReads(iotest.OneByteReader(strings.NewReader(full))) }, nil},
		{"an io.WriterTo", func() io.Reader { return bytes.NewBufferString(full) }, nil},
		{"the last bytes with an error", func() io.Reader {
			return iotest.DataErrReader(io.MultiReader(strings.NewReader(full), iotest.ErrReader(errSource)))
		}, errSource},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			body := &trackedBody{Reader: tt.source()}
			attempts := 0
			base := numbered(func(n int, req *http.Request) (*http.Response, error) {
				attempts = n
				if n == 1 {
					_, err := io.CopyN(io.Discard, req.Body, 700)
					require.NoError(t, err)
					return nil, syscall.ECONNRESET
				}
				zero, err := req.Body.Read(nil)
				require.Zero(t, zero)
				require.NoError(t, err)
				got, err := readAndClose(req.Body)
				require.Equal(t, full, got)
				if err != nil {
					return nil, err
				}
				return answer(503)(req)
			})
			rt := retrip.New(base, retrip.WithBackoff(retrip.Constant(0)), retrip.WithMaxAttempts(3))
			_, err := rt.RoundTrip(request(t, http.MethodPut, body))
			if tt.err == nil {
				require.NoError(t, err)
				require.Equal(t, 3, attempts)
			} else {
				require.True(t, err == tt.err, "%v", err)
				require.Equal(t, 2, attempts)
			}
			body.requireClosed(t)
		})
	}
}

func TestAPanicOfTheCallersReaderPassesThrough(t *testing.T) {
	t.Parallel()
	body := &trackedBody{Reader: readFunc(func([]byte) (int, error) { panic("reader") })}
	rt := retrip.New(play(answer(200)))
	require.PanicsWithValue(t, "reader", func() { _, _ = rt.RoundTrip(request(t, http.MethodPut, body)) })
	body.requireClosed(t)
}

// Not parallel: the heap is everybody's. What other tests left behind may be freed
// meanwhile, so a measurement that is too low is made again.
func TestAStreamCostsNoMoreThanTheCap(t *testing.T) {
	const limit, slack = 1 << 20, 64 << 10
	for _, step := range []int{1000, 32 << 10, 300_000} {
		t.Run(fmt.Sprintf("read=%d", step), func(t *testing.T) {
			full, past := streamed(t, step, limit)
			for range 5 {
				if full > limit/2 {
					break
				}
				full, past = streamed(t, step, limit)
			}
			require.Greater(t, full, int64(limit/2), "the log is there to be measured")
			require.LessOrEqual(t, full, int64(limit+slack))
			require.LessOrEqual(t, past, int64(slack), "past the cap the log is dropped")
		})
	}
}

// streamed sends 64 MiB in steps, and returns by how much the heap had grown just
// before the limit, and at most beyond it.
func streamed(t *testing.T, step, limit int) (full, past int64) {
	const size = 64 << 20
	left := size
	body := &trackedBody{Reader: readFunc(func(p []byte) (int, error) {
		n := min(left, len(p))
		if left -= n; n == 0 {
			return 0, io.EOF
		}
		return n, nil
	})}
	buf := make([]byte, step)
	req := request(t, http.MethodPut, body)
	var before uint64
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		sent, measured := 0, 0
		for {
			n, err := req.Body.Read(buf)
			sent += n
			if within := sent <= limit; within && sent+step > limit || !within && sent-measured >= 8<<20 {
				extra := int64(liveHeap() - before)
				if measured = sent; within {
					full = max(full, extra)
				} else {
					past = max(past, extra)
				}
			}
			if err != nil {
				require.Equal(t, size, sent)
				require.Equal(t, io.EOF, err)
				_ = req.Body.Close()
				return answer(503)(req)
			}
		}
	})
	rt := retrip.New(base)
	before = liveHeap()
	_, err := rt.RoundTrip(req)
	require.NoError(t, err)
	body.requireClosed(t)
	runtime.KeepAlive(rt)
	runtime.KeepAlive(req)
	runtime.KeepAlive(buf)
	return full, past
}

// Not parallel: it counts what the process allocates.
func TestAShortBodyCostsLittle(t *testing.T) {
	const runs, most = 100, 4 << 10
	base := play(answer(200))
	rt := retrip.New(base)
	reqs := make([]*http.Request, runs)
	for i := range reqs {
		reqs[i] = request(t, http.MethodPut, track("hello"))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, req := range reqs {
		_, err := rt.RoundTrip(req)
		require.NoError(t, err)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, (after.TotalAlloc-before.TotalAlloc)/runs, uint64(most))
}

// A modelSource is the caller's body in the model test: it yields in pieces of any
// size, at any time, and knows when it is misused.
type modelSource struct {
	data []byte
	err  error // after the data

	mu      sync.Mutex
	rng     *rand.Rand
	off     int
	closes  int
	reading bool
	late    int // reads that began after Close
	misuse  string
}

func (s *modelSource) Read(p []byte) (int, error) {
	s.mu.Lock()
	if s.reading {
		s.misuse = "two reads at a time"
	}
	if s.closes > 0 {
		s.late++
	}
	s.reading = true
	off, nap := s.off, nap(s.rng)
	n := min(len(p), len(s.data)-off, s.rng.IntN(40))
	var err error
	if off+n == len(s.data) && (n == 0 || s.rng.IntN(2) == 0) {
		err = s.err
	}
	s.mu.Unlock()
	time.Sleep(nap)
	copy(p[:n], s.data[off:])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off += n
	s.reading = false
	return n, err
}

func (s *modelSource) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closes++
	return nil
}

// nap is a time so short that many naps end together.
func nap(rng *rand.Rand) time.Duration { return time.Duration(max(0, rng.IntN(6)-2)) }

// A modelReader is one reader of one attempt, and what it got.
type modelReader struct {
	attempt int
	crowded bool // its attempt has other readers
	fatal   bool // its attempt waits for it, and nobody closes it before
	got     bytes.Buffer
	err     error // nil if it was closed before it came to an end
}

func (r *modelReader) read(body io.ReadCloser, rng *rand.Rand) {
	defer body.Close()
	quit := 1 << 20
	if !r.fatal && rng.IntN(3) == 0 {
		quit = rng.IntN(200)
	}
	for r.got.Len() < quit {
		time.Sleep(nap(rng))
		p := make([]byte, rng.IntN(70))
		n, err := body.Read(p)
		r.got.Write(p[:n])
		if err != nil {
			r.err = err
			return
		}
	}
}

// A modelRun is one request of the model test.
type modelRun struct {
	rng      *rand.Rand
	source   *modelSource
	limit    int64
	most     int // attempts
	attempts int
	abrupt   bool  // a body was closed under a Read, or the request cancelled
	last     error // what the base returned last; nil for a response
	status   int
	readers  []*modelReader
	running  sync.WaitGroup
}

// RoundTrip plays a base: some readers at a time, that may or may not be waited
// for, and any outcome.
func (m *modelRun) RoundTrip(req *http.Request) (*http.Response, error) {
	m.attempts++
	bodies := []io.ReadCloser{req.Body}
	for req.GetBody != nil && m.rng.IntN(3) == 0 {
		if b, err := req.GetBody(); err == nil {
			bodies = append(bodies, b)
		}
	}
	wait := m.rng.IntN(2) == 0
	var mine sync.WaitGroup
	first := len(m.readers)
	for _, body := range bodies {
		r := &modelReader{attempt: m.attempts, crowded: len(bodies) > 1, fatal: wait}
		m.readers = append(m.readers, r)
		rng := rand.New(rand.NewPCG(m.rng.Uint64(), 0))
		mine.Add(1)
		m.running.Go(func() {
			defer mine.Done()
			r.read(body, rng)
		})
		if !wait && m.rng.IntN(3) == 0 {
			m.abrupt = true
			time.AfterFunc(nap(m.rng)*5, func() { _ = body.Close() })
		}
	}
	m.status, m.last = 0, nil
	if wait {
		mine.Wait()
		if err := m.readers[first].err; err != io.EOF {
			m.last = err
			return nil, err
		}
	} else {
		time.Sleep(nap(m.rng) * 4)
	}
	switch m.rng.IntN(4) {
	case 0:
		m.last = syscall.ECONNRESET
		return nil, m.last
	case 1:
		m.status = 200
	default:
		m.status = 503
	}
	return answer(m.status)(req)
}

var errModelSource = errors.New("source failed")

// run makes the request, and returns what is wrong with it.
func (m *modelRun) run(t *testing.T) string {
	m.source = &modelSource{data: make([]byte, m.rng.IntN(200)), err: io.EOF, rng: rand.New(rand.NewPCG(m.rng.Uint64(), 0))}
	for i := range m.source.data {
		m.source.data[i] = byte(i)
	}
	if m.rng.IntN(6) == 0 {
		m.source.err = errModelSource
	}
	m.limit = []int64{0, 10, 50, 150, 1 << 20}[m.rng.IntN(5)]
	m.most = 2 + m.rng.IntN(3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req := request(t, http.MethodPut, m.source).WithContext(ctx)
	cancelled := m.rng.IntN(8) == 0
	if cancelled {
		m.abrupt = true
		time.AfterFunc(time.Duration(m.rng.IntN(40)), cancel)
	}
	rt := retrip.New(m, retrip.WithMaxBody(m.limit), retrip.WithMaxAttempts(m.most), retrip.WithRetryQuota(nil),
		retrip.WithPolicy(func(a retrip.Attempt) bool { return a.Err != nil || a.Response.StatusCode == 503 }),
		retrip.WithTrace(&retrip.Trace{Pausing: func(retrip.PausingInfo) { time.Sleep(nap(m.rng)) }}),
		retrip.WithBackoff(retrip.Constant(nap(m.rng))))
	resp, err := rt.RoundTrip(req)
	m.running.Wait()
	synctest.Wait()
	return m.wrong(resp, err, cancelled)
}

// wrong holds what happened against the rules.
func (m *modelRun) wrong(resp *http.Response, err error, cancelled bool) string {
	s := m.source
	over := int64(s.off) > m.limit
	switch {
	case s.misuse != "":
		return s.misuse
	case s.late > 1, s.late == 1 && !m.abrupt: // one may have been about to begin
		return "read after Close"
	case s.closes != 1:
		return fmt.Sprintf("the source was closed %d times", s.closes)
	case (resp == nil) == (err == nil):
		return "neither or both of response and error"
	case err != nil && !(m.last != nil && errors.Is(err, m.last)) && !errors.Is(err, errModelSource) && !cancelled:
		return fmt.Sprintf("an error of nobody's: %v", err)
	case m.status != 200 && m.attempts < m.most && !over && !cancelled && !(s.err != io.EOF && s.off == len(s.data)):
		return fmt.Sprintf("gave up after attempt %d with only %d bytes read", m.attempts, s.off)
	}
	for i, r := range m.readers {
		complete := r.got.Len() == len(s.data)
		switch {
		case !bytes.HasPrefix(s.data, r.got.Bytes()):
			return fmt.Sprintf("reader %d of attempt %d got other bytes: %v", i, r.attempt, r.got.Bytes())
		case r.err == nil:
		case r.err == io.EOF && (!complete || s.err != io.EOF):
			return fmt.Sprintf("reader %d of attempt %d was told of an end after %d of %d bytes", i, r.attempt, r.got.Len(), len(s.data))
		case r.err == errModelSource && !complete:
			return fmt.Sprintf("reader %d of attempt %d got the source's error after %d of %d bytes", i, r.attempt, r.got.Len(), len(s.data))
		case r.fatal && r.err != io.EOF && r.err != errModelSource && !cancelled && !(r.crowded && over):
			return fmt.Sprintf("reader %d of attempt %d failed: %v", i, r.attempt, r.err)
		}
	}
	return ""
}

func TestTheLogAgainstAModel(t *testing.T) {
	t.Parallel()
	start := rand.Uint64()
	synctest.Test(t, func(t *testing.T) {
		for seed := start; seed < start+3000; seed++ {
			m := &modelRun{rng: rand.New(rand.NewPCG(seed, 0))}
			if fault := m.run(t); fault != "" {
				t.Fatalf("seed %d: keep %d of %d bytes, %d of %d attempts: %s", seed, m.limit, len(m.source.data), m.attempts, m.most, fault)
			}
		}
	})
}

// HTTP/2 does so at times when the connection fails under an upload.
func TestABodyThatTheBaseReadsAfterItClosedItIsTheConnectionsFault(t *testing.T) {
	t.Parallel()
	var got []string
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		if len(got) == 0 {
			got = append(got, "closed")
			_ = req.Body.Close()
			_, err := req.Body.Read(make([]byte, 1))
			return nil, fmt.Errorf("write: %w", err)
		}
		b, err := io.ReadAll(req.Body)
		got = append(got, string(b))
		_ = req.Body.Close()
		require.NoError(t, err)
		return answer(200)(req)
	})
	for name, body := range map[string]io.Reader{
		"without GetBody": track("hello"),
		"with GetBody":    nil,
	} {
		got = nil
		req := request(t, http.MethodPut, body)
		if body == nil {
			req.Body = track("hello")
			req.GetBody = func() (io.ReadCloser, error) { return track("hello"), nil }
			req.ContentLength = 5
		}
		resp, err := retrip.New(base, retries()...).RoundTrip(req)
		require.NoError(t, err, name)
		finish(t, resp)
		require.Equal(t, []string{"closed", "hello"}, got, name)
	}
}
