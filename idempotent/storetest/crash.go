package storetest

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/retrip-go/retrip/idempotent"
)

const childEnv = "RETRIP_STORETEST_CHILD"

// Child makes a test binary that Start started the server of its spec; it does not
// return then. It is called first thing in TestMain.
func Child(serve func(spec string) (http.Handler, error)) {
	spec, ok := os.LookupEnv(childEnv)
	if !ok {
		return
	}
	h, err := serve(spec)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	time.AfterFunc(2*time.Minute, func() { os.Exit(1) }) // if nobody kills it
	fmt.Printf("http://%v\n", l.Addr())
	fmt.Println(http.Serve(l, h))
	os.Exit(1)
}

// Stall tells the parent that the handler has come so far, and goes no further.
func Stall() {
	fmt.Println(stalled)
	time.Sleep(2 * time.Minute)
}

const stalled = "stalled"

// A Process is a server that can be killed.
type Process struct {
	URL string

	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// Start starts this test binary again, as the server of spec.
func Start(t *testing.T, spec string) *Process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{t: t, cmd: exec.Command(exe)}
	p.cmd.Env = append(os.Environ(), childEnv+"="+spec)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	p.lines = bufio.NewScanner(out)
	p.URL = p.line("http://")
	return p
}

func (p *Process) line(prefix string) string {
	p.t.Helper()
	if !p.lines.Scan() || !strings.HasPrefix(p.lines.Text(), prefix) {
		p.t.Fatalf("the child says %q, not %q (%v)", p.lines.Text(), prefix, p.lines.Err())
	}
	return p.lines.Text()
}

// Stalled waits until a handler calls Stall.
func (p *Process) Stalled() { p.t.Helper(); p.line(stalled) }

// Kill kills the process (SIGKILL), and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// client keeps a connection for each of bench's clients.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// Post sends a request with a key, and returns its answer's status and body; 0 if none came.
func Post(url, key string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set(idempotent.KeyHeader, key)
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

// Eventually posts until the answer has the status, for at most half a minute, and
// returns its body.
func Eventually(t *testing.T, url, key string, want int) string {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		status, body := Post(url, key)
		if status == want {
			return body
		}
		if time.Now().After(end) {
			t.Fatalf("the answer stays %d, and does not become %d: %s", status, want, body)
		}
	}
}

// An Operator is who decides what becomes of lost keys. Lost returns their names.
type Operator interface {
	Lost(ctx context.Context, n int) ([]string, error)
	Forget(ctx context.Context, key string) (bool, error)
}

// Stalling is the handler of a child for Crash: it never ends.
func Stalling(s idempotent.Store) http.Handler {
	return idempotent.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { Stall() }), s, idempotent.Lease(lease))
}

const lease = 200 * time.Millisecond

// Crash kills servers of spec, each in the middle of Stalling, and asks a living one for
// the same keys. store is that of spec, with nothing in it.
func Crash(t *testing.T, spec string, store idempotent.Store, operator Operator) {
	var runs int
	charge := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { runs++; w.WriteHeader(http.StatusCreated) })
	serve := func(opts ...idempotent.Option) string {
		srv := httptest.NewServer(idempotent.Handler(charge, store, append(opts, idempotent.Lease(lease))...))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	refusing, takingOver, patient := serve(), serve(idempotent.TakeOver(0)), serve(idempotent.TakeOver(time.Hour))
	killed := func() (key string) {
		t.Helper()
		p, key := Start(t, spec), rand.Text()
		go Post(p.URL, key)
		p.Stalled()
		time.Sleep(2 * lease) // alive for longer than its first lease
		refused(t, refusing, key, "running")
		p.Kill()
		return key
	}
	dead := func(key string) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if typ := problem(t, refusing, key); typ != "#running" || time.Now().After(end) {
				break
			}
		}
		refused(t, refusing, key, "unknown-outcome")
		refused(t, patient, key, "unknown-outcome")
	}
	ran := func(url, key string) {
		t.Helper()
		before := runs
		for range 2 {
			if status, body := Post(url, key); status != http.StatusCreated {
				t.Fatalf("%d %s", status, body)
			}
		}
		if runs != before+1 {
			t.Fatalf("it ran %d times", runs-before)
		}
	}

	taken, left := killed(), killed()
	dead(taken)
	dead(left)
	ctx := context.Background()
	names, err := operator.Lost(ctx, 1)
	if err != nil || len(names) != 1 {
		t.Fatalf("the one lost key that was asked for is %q, %v", names, err)
	}
	ran(takingOver, taken)

	names, err = operator.Lost(ctx, 10)
	if err != nil || len(names) != 1 {
		t.Fatalf("the lost keys are %q, %v", names, err)
	}
	forgets := func(want bool) {
		t.Helper()
		if was, err := operator.Forget(ctx, names[0]); err != nil || was != want {
			t.Fatalf("Forget returned %v, %v", was, err)
		}
	}
	forgets(true)
	forgets(false)
	v, err := store.Begin(ctx, names[0], idempotent.Claim{Owner: "alive", Lease: time.Minute, TTL: time.Hour})
	if err != nil || v.State != idempotent.Claimed {
		t.Fatalf("%+v, %v", v, err)
	}
	forgets(false) // nor one that is being worked
	if err := store.Abandon(ctx, names[0], "alive"); err != nil {
		t.Fatal(err)
	}
	ran(refusing, left)
	time.Sleep(2 * lease)
	forgets(false) // nor an answer, whose lease has ended too
	if names, err = operator.Lost(ctx, 10); err != nil || len(names) != 0 {
		t.Fatalf("the lost keys are %q, %v", names, err)
	}
}

// problem returns the type of the problem that a request is refused with.
func problem(t *testing.T, url, key string) string {
	t.Helper()
	status, body := Post(url, key)
	var p struct{ Type string }
	if err := json.Unmarshal([]byte(body), &p); err != nil || status != http.StatusConflict {
		t.Fatalf("%d %s: %v", status, body, err)
	}
	return p.Type
}

func refused(t *testing.T, url, key, why string) {
	t.Helper()
	if typ := problem(t, url, key); typ != "#"+why {
		t.Fatalf("it is refused as %s, not #%s", typ, why)
	}
}
