package faults_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/faults"
	"github.com/rs/zerolog"
)

// patience is for what comes at once on a machine that is not busy. Nothing waits it
// out unless something is wrong.
const patience = 20 * time.Second

// TestMain finds goroutines that outlive the tests. It is also the main of the
// server that is killed.
func TestMain(m *testing.M) {
	if addr := os.Getenv(childAddr); addr != "" {
		serveUntilKilled(addr, os.Getenv(childLedger))
		return
	}
	zerolog.SetGlobalLevel(zerolog.Disabled) // parts of toxiproxy know no other logger
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // the tests wait more than they compute
	code := m.Run()
	if code == 0 && !eventually(func() bool { return len(goroutines()) <= 1 }) {
		fmt.Printf("goroutines that outlive the tests:\n\n%s\n", strings.Join(goroutines(), "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// goroutines returns the stacks of all goroutines but those that toxiproxy leaves
// behind: a connection that is closed under a toxic with data on its way stops it for
// good.
func goroutines() []string {
	buf := make([]byte, 16<<20)
	all := strings.Split(strings.TrimSpace(string(buf[:runtime.Stack(buf, true)])), "\n\n")
	return slices.DeleteFunc(all, func(stack string) bool { return strings.Contains(stack, "/toxiproxy/") })
}

// eventually waits for ok, and reports whether it came.
func eventually(ok func() bool) bool {
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// each calls f with 0 to n-1, so many at once, and returns what went wrong.
func each(n, atOnce int, f func(i int) error) error {
	var (
		errs = make([]error, n)
		next atomic.Int64
		wg   sync.WaitGroup
	)
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				errs[i] = f(int(i))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// A wire is a way of HTTP over a connection.
type wire string

const (
	http1 wire = "HTTP1"
	h2c   wire = "HTTP2WithoutTLS"
	http2 wire = "HTTP2"
)

func (w wire) protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(w == http1)
	p.SetUnencryptedHTTP2(w == h2c)
	p.SetHTTP2(w == http2)
	return p
}

// serve starts a server that ends with the test, and returns its address.
func serve(t *testing.T, w wire, h http.Handler) string {
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = w.protocols()
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// newBase returns a base whose connections nobody has used before.
func newBase(w wire, roots *x509.CertPool) *http.Transport {
	return &http.Transport{Protocols: w.protocols(), TLSClientConfig: &tls.Config{RootCAs: roots}}
}

// newClient retries soon, and is stopped neither by quota nor by breaker: those have
// tests of their own.
func newClient(base http.RoundTripper, opts ...retrip.Option) *http.Client {
	return &http.Client{Transport: retrip.New(base, append([]retrip.Option{
		retrip.WithBackoff(retrip.FullJitter(time.Millisecond, 8*time.Millisecond)),
		retrip.WithRetryQuota(nil), retrip.WithBreaker(nil),
	}, opts...)...)}
}

// onFirstPause mends what is broken when the first attempt has failed.
func onFirstPause(mend func()) *retrip.Trace {
	var once sync.Once
	return &retrip.Trace{Pausing: func(retrip.PausingInfo) { once.Do(mend) }}
}

// A kind is a way of making a request.
type kind struct {
	name  string
	call  faults.Call // without ID
	opts  []retrip.CallOption
	again bool // it may be repeated whatever became of it
}

// bare is true of a request that must not be repeated if a server may have seen it.
func (k kind) bare() bool { return k.call.Method == http.MethodPost && !k.again }

// kinds are all ways, with bodies and answers of a size: a large answer to GET, small
// ones to the others.
func kinds(body, answer int) []kind {
	sent, small := faults.Pattern("a body", body), min(answer, 100)
	return []kind{
		{"GET", faults.Call{Method: http.MethodGet, Answer: answer}, nil, true},
		{"PUT", faults.Call{Method: http.MethodPut, Body: sent, Answer: small}, nil, true},
		{
			"PUTOfAStreamThatFitsTheLog", faults.Call{Method: http.MethodPut, Body: sent, Stream: true, Answer: small},
			[]retrip.CallOption{retrip.WithMaxBody(int64(body))}, true,
		},
		{
			"PUTOfAStreamTooLongForTheLog", faults.Call{Method: http.MethodPut, Body: sent, Stream: true, Answer: small},
			[]retrip.CallOption{retrip.WithMaxBody(int64(body / 4))}, false,
		},
		{"POSTWithAKey", faults.Call{Method: http.MethodPost, Body: sent, Answer: small}, nil, true},
		{
			"POSTWithoutAKey", faults.Call{Method: http.MethodPost, Body: sent, Answer: small},
			[]retrip.CallOption{retrip.WithIdempotencyKey(nil)}, false,
		},
	}
}

// do makes a call and compares what came of it with the ledger.
func (k kind) do(t *testing.T, client *http.Client, l *faults.Ledger, addr, id string) (faults.Outcome, error) {
	out, c := k.send(t, client, addr, id)
	return out, l.Check(c, out)
}

// send makes a call, with a deadline so that nothing hangs.
func (k kind) send(t *testing.T, client *http.Client, addr, id string) (faults.Outcome, faults.Call) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := k.call
	c.ID = id
	return faults.Do(retrip.Override(ctx, k.opts...), client, addr, c), c
}

// A claim is what must hold of an outcome, and how to say it.
type claim struct {
	holds bool
	what  string
}

// need returns an error that names the claims that do not hold.
func need(what string, out faults.Outcome, e faults.Entry, claims ...claim) error {
	var errs []error
	for _, c := range claims {
		if !c.holds {
			errs = append(errs, fmt.Errorf("%s: not %s: %+v, the server saw %+v", what, c.what, out, e))
		}
	}
	return errors.Join(errs...)
}

// succeeded is true of a whole right answer.
func succeeded(out faults.Outcome) bool { return out.Status == http.StatusOK && out.Err == nil }
