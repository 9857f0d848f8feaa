package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// serve starts a server for the length of a row, and a base for it.
func (p *probe) serve(h http.HandlerFunc) (*httptest.Server, *http.Transport) {
	server := httptest.NewServer(h)
	p.later(server.Close)
	base := &http.Transport{}
	p.later(base.CloseIdleConnections)
	return server, base
}

var behavioursOfLeaks = []behaviour{
	{
		group: "Leaks", name: "no goroutine is left", rule: ruleRoundTripper, right: "0", needs: retrying, alone: true,
		ask: func(p *probe) (string, bool) {
			rt := p.wrap(play(reply(503, "busy")))
			for range 20 {
				_ = outcome(rt.RoundTrip(get(somewhere)))
			}
			before := runtime.NumGoroutine()
			for range 200 {
				_ = outcome(rt.RoundTrip(put(track("hello"))))
			}
			left := 0
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if left = runtime.NumGoroutine() - before; left <= 0 {
					break
				}
			}
			return fmt.Sprintf("%d after 200 requests", max(left, 0)), left <= 0
		},
	},
	{
		group: "Leaks", name: "a connection is used again after a failure", rule: "net/http.Response.Body", right: "1 connection for 20 requests", needs: retrying,
		ask: func(p *probe) (string, bool) {
			conns, attempts, err := dialledFor(p.contender, 1, 20)
			return fmt.Sprintf("%d for %d attempts, %v", conns, attempts, err), err == nil && conns == 1
		},
	},
	{
		group: "Leaks", name: "a huge failure is not read to its end", rule: "https://github.com/golang/go/issues/22090", right: "under 8 MiB of 1 GiB", needs: retrying,
		ask: func(p *probe) (string, bool) {
			var n, sent atomic.Int64
			server, base := p.serve(func(w http.ResponseWriter, _ *http.Request) {
				if n.Add(1) > 1 {
					return
				}
				w.Header().Set("Content-Length", fmt.Sprint(1<<30))
				w.WriteHeader(503)
				chunk := make([]byte, 64<<10)
				for range (1 << 30) / len(chunk) {
					m, err := w.Write(chunk)
					sent.Add(int64(m))
					if err != nil {
						return
					}
				}
			})
			got := outcome(p.wrap(base).RoundTrip(get(server.URL)))
			return size(float64(sent.Load())) + ", " + got, sent.Load() < 8<<20 && strings.HasPrefix(got, "200")
		},
	},
}

var behavioursOfProtocol = []behaviour{
	{
		group: "Protocol", name: "a redirect is handed back", rule: ruleRoundTripper, right: "302",
		ask: func(p *probe) (string, bool) {
			base := play(reply(302, "", "Location", "/elsewhere"))
			got := outcome(p.wrap(base).RoundTrip(get(somewhere)))
			return base.n() + ", " + got, strings.HasPrefix(got, "302") && len(base.attempts()) == 1
		},
	},
	{
		group: "Protocol", name: "http.Client follows a 307 with the body", rule: "RFC 9110 15.4.8; https://github.com/projectdiscovery/retryablehttp-go/issues/493", right: "hello at the end", needs: offersRoundTripper,
		ask: func(p *probe) (string, bool) {
			var got string
			server, base := p.serve(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/a" {
					w.Header().Set("Location", "/b")
					w.WriteHeader(http.StatusTemporaryRedirect)
					return
				}
				b, _ := io.ReadAll(r.Body)
				got = string(b)
			})
			resp, err := (&http.Client{Transport: p.wrap(base)}).Post(server.URL+"/a", "text/plain", strings.NewReader("hello"))
			return fmt.Sprintf("%s, %q", outcome(resp, err), got), got == "hello" && err == nil
		},
	},
	{
		group: "Protocol", name: "an upgraded connection can be written to", rule: "net/http.Response.Body", right: "an io.ReadWriteCloser",
		ask: func(p *probe) (string, bool) {
			server, base := p.serve(func(w http.ResponseWriter, _ *http.Request) {
				conn, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				defer func() { _ = conn.Close() }()
				_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				_ = rw.Flush()
				line, _ := rw.ReadString('\n')
				_, _ = rw.WriteString(line)
				_ = rw.Flush()
			})
			req := get(server.URL)
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "echo")
			resp, err := p.wrap(base).RoundTrip(req)
			if err != nil {
				return err.Error(), false
			}
			defer func() { _ = resp.Body.Close() }()
			rw, ok := resp.Body.(io.ReadWriter)
			if !ok {
				return fmt.Sprintf("%d, a %T", resp.StatusCode, resp.Body), false
			}
			_, _ = io.WriteString(rw, "ping\n")
			b := make([]byte, 5)
			_, err = io.ReadFull(rw, b)
			return fmt.Sprintf("%d, %q", resp.StatusCode, b), err == nil && string(b) == "ping\n"
		},
	},
	{
		group: "Protocol", name: "informational responses reach the caller's hooks", rule: "net/http/httptrace", right: "103 seen",
		ask: func(p *probe) (string, bool) {
			server, base := p.serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(200) })
			var seen atomic.Int64
			req := get(server.URL)
			req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { seen.Store(int64(code)); return nil },
			}))
			got := outcome(p.wrap(base).RoundTrip(req))
			return fmt.Sprintf("%d seen, %s", seen.Load(), got), seen.Load() == 103
		},
	},
	{
		group: "Protocol", name: "HTTP/2 below is used", rule: "net/http.Transport.ForceAttemptHTTP2", right: "HTTP/2.0",
		ask: func(p *probe) (string, bool) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			server.EnableHTTP2 = true
			server.StartTLS()
			p.later(server.Close)
			base := server.Client().Transport.(*http.Transport)
			resp, err := p.wrap(base).RoundTrip(get(server.URL))
			if err != nil {
				return err.Error(), false
			}
			_ = resp.Body.Close()
			return resp.Proto, resp.ProtoMajor == 2
		},
	},
	{
		group: "Protocol", name: "trailers arrive", rule: "RFC 9110 6.5", right: "the trailer's value",
		ask: func(p *probe) (string, bool) {
			server, base := p.serve(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "Sum")
				_, _ = io.WriteString(w, "hello")
				w.Header().Set("Sum", "5")
			})
			resp, err := p.wrap(base).RoundTrip(get(server.URL))
			if err != nil {
				return err.Error(), false
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			return fmt.Sprintf("%q", resp.Trailer.Get("Sum")), resp.Trailer.Get("Sum") == "5"
		},
	},
	{
		group: "Protocol", name: "a certificate that is not trusted is final", rule: "RFC 9110 4.3.4", right: "1 attempt, matches the tls error", needs: retrying | offersPolicy,
		ask: func(p *probe) (string, bool) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.StartTLS()
			p.later(server.Close)
			var dials atomic.Int64
			base := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials.Add(1)
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}}
			p.later(base.CloseIdleConnections)
			_, err := p.wrap(base).RoundTrip(get(server.URL))
			var untrusted *tls.CertificateVerificationError
			return fmt.Sprintf("%s, %v", attemptCount(int(dials.Load())), err), dials.Load() == 1 && errors.As(err, &untrusted)
		},
	},
	{
		group: "Protocol", name: "an answer cut in its body is an error to who reads it", rule: "RFC 9112 8", right: "200, then io.ErrUnexpectedEOF",
		ask: func(p *probe) (string, bool) {
			server, base := p.serve(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "10")
				_, _ = io.WriteString(w, "hello")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
			resp, err := p.wrap(base).RoundTrip(get(server.URL))
			if err != nil {
				return err.Error(), false
			}
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			return fmt.Sprintf("%d, then %v", resp.StatusCode, err), errors.Is(err, io.ErrUnexpectedEOF)
		},
	},
}

// trip opens a breaker after five failures in a row, for some time.
func trip(cooldown time.Duration) func(*config) {
	return func(c *config) { c.retries, c.breaker = 0, &breaker{failures: 5, cooldown: cooldown, hosts: 100} }
}

// send sends n GETs to a host.
func send(rt http.RoundTripper, url string, n int) (last error) {
	for range n {
		resp, err := rt.RoundTrip(get(url))
		if last = err; err == nil {
			_ = outcome(resp, nil)
		}
	}
	return last
}

var behavioursOfBreaker = []behaviour{
	{
		group: "Breaker", name: "opens after failures in a row", rule: "M. Nygard, Release It!", right: "5 attempts for 10 requests, then errors", needs: offersBreaker,
		ask: func(p *probe) (string, bool) {
			base := play(reply(500, ""))
			err := send(p.wrap(base, trip(time.Minute)), somewhere, 10)
			return fmt.Sprintf("%s, %v", base.n(), err), len(base.attempts()) == 5 && err != nil
		},
	},
	{
		group: "Breaker", name: "errors of the connection count", rule: "M. Nygard, Release It!", right: "5 attempts for 10 requests", needs: offersBreaker,
		ask: func(p *probe) (string, bool) {
			base := play(fail(errRefused))
			err := send(p.wrap(base, trip(time.Minute)), somewhere, 10)
			return fmt.Sprintf("%s, %v", base.n(), err), len(base.attempts()) == 5 && err != nil
		},
	},
	{
		group: "Breaker", name: "one host's failures do not close the way to another", rule: "one breaker for each host", right: "200 from the other", needs: offersBreaker | offersHostBreakers,
		ask: func(p *probe) (string, bool) {
			base := play(func(req *http.Request) (*http.Response, error) {
				if req.URL.Host == "good.example.com" {
					return answer(req, 200), nil
				}
				return answer(req, 500), nil
			})
			rt := p.wrap(base, trip(time.Minute))
			_ = send(rt, "http://bad.example.com/", 10)
			got := outcome(rt.RoundTrip(get("http://good.example.com/")))
			return got, strings.HasPrefix(got, "200")
		},
	},
	{
		group: "Breaker", name: "closes after a success", rule: "M. Nygard, Release It!", right: "all of 5 pass", needs: offersBreaker,
		ask: func(p *probe) (string, bool) {
			base := play(reply(500, ""), reply(500, ""), reply(500, ""), reply(500, ""), reply(500, ""), reply(200, ""))
			rt := p.wrap(base, trip(100*time.Millisecond))
			_ = send(rt, somewhere, 6)
			time.Sleep(300 * time.Millisecond)
			err := send(rt, somewhere, 5)
			return fmt.Sprintf("%s, %v", base.n(), err), len(base.attempts()) == 10 && err == nil
		},
	},
	{
		group: "Breaker", name: "lets one through to see, not all", rule: "M. Nygard, Release It!", right: "1 attempt of 10 at once", needs: offersBreaker,
		ask: func(p *probe) (string, bool) {
			var probing atomic.Bool
			var probes atomic.Int64
			release := make(chan struct{})
			base := play(func(req *http.Request) (*http.Response, error) {
				if probing.Load() {
					probes.Add(1)
					<-release
					return answer(req, 200), nil
				}
				return answer(req, 500), nil
			})
			rt := p.wrap(base, trip(100*time.Millisecond))
			_ = send(rt, somewhere, 6)
			time.Sleep(300 * time.Millisecond)
			probing.Store(true)
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() { _ = send(rt, somewhere, 1) })
			}
			time.Sleep(300 * time.Millisecond)
			n := probes.Load()
			close(release)
			all.Wait()
			return attemptCount(int(n)), n == 1
		},
	},
	{
		group: "Breaker", name: "404 is no failure", rule: "RFC 9110 15.5", right: "20 attempts for 20 requests", needs: offersBreaker,
		ask: func(p *probe) (string, bool) {
			base := play(reply(404, ""))
			err := send(p.wrap(base, trip(time.Minute)), somewhere, 20)
			return fmt.Sprintf("%s, %v", base.n(), err), len(base.attempts()) == 20 && err == nil
		},
	},
	{
		group: "Breaker", name: "callers who cancel are no failure", rule: "https://github.com/sony/gobreaker/issues/85", right: "the next request passes", needs: offersBreaker,
		ask: func(p *probe) (string, bool) {
			var impatient atomic.Bool
			impatient.Store(true)
			base := play(func(req *http.Request) (*http.Response, error) {
				if impatient.Load() {
					return hang(req)
				}
				return answer(req, 200), nil
			})
			rt := p.wrap(base, trip(time.Minute))
			for range 10 {
				req := get(somewhere)
				ctx, cancel := contextOf(req)
				time.AfterFunc(5*time.Millisecond, cancel)
				_, _ = rt.RoundTrip(req.WithContext(ctx))
			}
			impatient.Store(false)
			got := outcome(rt.RoundTrip(get(somewhere)))
			return got, strings.HasPrefix(got, "200")
		},
	},
}

// A syncBuffer is a log that several may write to.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// secretive is a request with a secret in every part.
func secretive() *http.Request {
	req := newRequest(http.MethodPut, "http://user:s3cret@example.com/s3cret?token=s3cret", strings.NewReader("s3cret"))
	req.Header.Set("Authorization", "Bearer s3cret")
	return req
}

var behavioursOfSecrets = []behaviour{
	{
		group: "Secrets", name: "the error of several attempts holds none", rule: "RFC 9110 17.9, 17.16; http.Client adds the URL to its own", right: "none", needs: retrying | offersRoundTripper,
		ask: func(p *probe) (string, bool) {
			_, err := p.wrap(play(fail(errRefused))).RoundTrip(secretive())
			return fmt.Sprint(err), err != nil && !strings.Contains(err.Error(), "s3cret")
		},
	},
	{
		group: "Secrets", name: "the log holds none", rule: "RFC 9110 17.9, 17.16", right: "none, and something is logged", needs: retrying | offersLog,
		ask: func(p *probe) (string, bool) {
			var lines syncBuffer
			_ = outcome(p.wrap(play(reply(503, "s3cret"), fail(errRefused), reply(200, "s3cret")), func(c *config) { c.log = &lines }).RoundTrip(secretive()))
			return lines.String(), lines.String() != "" && !strings.Contains(lines.String(), "s3cret")
		},
	},
}

// The races are looked for in a child, built with the race detector, so that a peer's
// does not end this program.

var behavioursOfRaces = []behaviour{
	race("a base that reads on after it has answered", "late"),
	race("many requests through one client", "many"),
	race("a caller who cancels at any time", "cancel"),
}

// notMeasured begins what is said of a row that cannot be asked here.
const notMeasured = "not measured: "

// raceEnv names the scene that a child plays, and the contender.
const raceEnv = "RETRIP_BENCH_RACE"

func race(name, scene string) behaviour {
	return behaviour{
		group: "Races", name: name, rule: "the Go memory model", right: "none found", needs: retrying,
		ask: func(p *probe) (string, bool) {
			program, err := raceProgram()
			if err != nil {
				return notMeasured + err.Error(), false
			}
			ctx, cancel := context.WithTimeout(context.Background(), behaviourTime-time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, program)
			cmd.Env = append(os.Environ(), raceEnv+"="+scene+" "+p.name, "GORACE=halt_on_error=1")
			out, err := cmd.CombinedOutput()
			if strings.Contains(string(out), "WARNING: DATA RACE") {
				return "a data race", false
			}
			if err != nil {
				return fmt.Sprintf("%v: %s", err, out), false
			}
			return "none found", true
		},
	}
}

// raceProgram builds this program with the race detector, once.
var raceProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "retrip-bench")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "bench")
	out, err := exec.Command("go", "build", "-race", "-o", program, ".").CombinedOutput()
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", fmt.Errorf("it cannot be built with the race detector here: %s", shorten(string(out), 100))
	}
	return program, nil
})

// playRace is the child's main.
func playRace(scene, name string) int {
	for _, c := range contenders {
		if c.name == name {
			p := &probe{contender: c}
			defer p.end()
			scenes[scene](p)
			return 0
		}
	}
	return 2
}

var scenes = map[string]func(*probe){
	"late": func(p *probe) {
		var all sync.WaitGroup
		defer all.Wait()
		n := 0
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			n++
			body := req.Body
			if n%2 == 1 { // as net/http does when the answer overtakes the upload
				all.Go(func() { _, _ = io.Copy(io.Discard, body); _ = body.Close() })
				return answer(req, 503), nil
			}
			_, _ = io.Copy(io.Discard, body)
			_ = body.Close()
			return answer(req, 200), nil
		})
		rt := p.wrap(base)
		for range 200 {
			_ = outcome(rt.RoundTrip(put(onlyReader{&pattern{size: 256 << 10}})))
			n = 0
		}
	},
	"many": func(p *probe) {
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			if req.Body != nil {
				_, _ = io.Copy(io.Discard, req.Body)
				_ = req.Body.Close()
			}
			if time.Now().UnixNano()%3 == 0 {
				return answer(req, 503), nil
			}
			return answer(req, 200), nil
		})
		rt := p.wrap(base)
		_ = spread(16, func(int) func(int) error {
			return func(n int) error {
				for range n {
					_ = outcome(rt.RoundTrip(newRequest(http.MethodPut, somewhere, bytes.NewReader(kibibyte))))
				}
				return nil
			}
		})(2000)
	},
	"cancel": func(p *probe) {
		server, base := p.serve(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.CopyN(io.Discard, r.Body, 1000)
			w.WriteHeader(503)
		})
		rt := p.wrap(base)
		_ = spread(8, func(worker int) func(int) error {
			return func(n int) error {
				for i := range n {
					req := newRequest(http.MethodPut, server.URL, bytes.NewReader(bytes.Repeat(kibibyte, 64)))
					ctx, cancel := contextOf(req)
					time.AfterFunc(time.Duration(i*100+worker)*time.Microsecond%(3*time.Millisecond), cancel)
					_ = outcome(rt.RoundTrip(req.WithContext(ctx)))
					cancel()
				}
				return nil
			}
		})(400)
	},
}
