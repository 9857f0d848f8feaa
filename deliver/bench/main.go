// Bench measures package deliver on SQLite and, where RETRIP_TEST_POSTGRES names a
// server, on PostgreSQL, side by side in one run, and prints Markdown. From the root
// of the repository: make bench-deliver.
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/retrip-go/retrip/deliver"
	"github.com/retrip-go/retrip/deliver/panel"
)

// A client is a deliver.Client on either engine.
type client interface {
	Send(context.Context, deliver.Event) (deliver.Receipt, error)
	SendMany(context.Context, []deliver.Event) ([]deliver.Receipt, error)
	Destinations() *deliver.Destinations
	Dead() *deliver.DeadLetters
	Start(context.Context) error
	Close() error
	panel.Source
}

// An engine is a database to measure.
type engine struct {
	name string
	dsn  func(name string) (string, error) // of a new database
}

// childDSN makes this program a worker that only waits to be killed.
const (
	childDSN = "RETRIP_BENCH_DSN"
	childURL = "RETRIP_BENCH_IDLE"
)

func main() {
	if dsn := os.Getenv(childDSN); dsn != "" {
		work(dsn)
		return
	}
	quick := flag.Bool("quick", false, "a tenth of the deliveries")
	only := flag.String("only", "", "rows whose name has this in it; all by default")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "bench: what is %q?\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := run(context.Background(), os.Stdout, *quick, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func open(dsn string, opts ...deliver.Option) (client, error) {
	opts = append([]deliver.Option{
		deliver.WithAllowedNetworks(netip.MustParsePrefix("127.0.0.0/8")),
		deliver.WithLogger(slog.New(slog.DiscardHandler)),
		deliver.WithAtOnce(100),
	}, opts...)
	if strings.HasPrefix(dsn, "postgres") {
		c, err := deliver.OpenPostgres(context.Background(), dsn, opts...)
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	c, err := deliver.OpenSQLite(dsn, opts...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func run(ctx context.Context, w io.Writer, quick bool, only string) error {
	dir, err := os.MkdirTemp("", "deliver-bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	engines := []engine{{"SQLite", func(name string) (string, error) { return filepath.Join(dir, name+".db"), nil }}}
	if server := os.Getenv("RETRIP_TEST_POSTGRES"); server != "" {
		engines = append(engines, engine{"PostgreSQL", func(name string) (string, error) {
			conn, err := pgx.Connect(ctx, server)
			if err != nil {
				return "", err
			}
			defer func() { _ = conn.Close(ctx) }()
			name = "bench_" + name + strings.ToLower(rand.Text()[:8])
			_, err = conn.Exec(ctx, "CREATE DATABASE "+name)
			return strings.Replace(server, "/postgres?", "/"+name+"?", 1), err
		}})
	}
	scale := 1
	if quick {
		scale = 10
	}
	measures := []measure{
		{"Events written down a second, 1 producer", func(e engine) (string, error) { return enqueue(ctx, e, 1, 2000/scale) }},
		{"Events written down a second, 8 producers", func(e engine) (string, error) { return enqueue(ctx, e, 8, 4000/scale) }},
		{"Events written down a second, 100 in a transaction", func(e engine) (string, error) { return batch(ctx, e, 10000/scale) }},
		{"Deliveries a second, 100 workers", func(e engine) (string, error) { return throughput(ctx, e, 10000/scale) }},
		{"How late a retry is, p50 and p99", func(e engine) (string, error) { return lateness(ctx, e, 300/scale) }},
		{"After kill -9: until the first delivery of the next process, and of what was in flight", func(e engine) (string, error) { return recovery(ctx, e) }},
		{"Panel with 100,000 dead letters: first page, list", func(e engine) (string, error) { return pages(ctx, e, 100000/scale) }},
		{"CPU of an idle process", func(e engine) (string, error) { return idle(ctx, e, time.Duration(20/scale+2)*time.Second) }},
	}
	fmt.Fprintf(w, "# Deliveries, measured\n\nBy `make bench-deliver` on %d cores, %s, %s/%s, on %s; sender, receiver and database share the machine. "+
		"Payloads have 1 KiB; each commit reaches the disk, if the server's fsync is on.\n\n| |", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, time.Now().UTC().Format("2 January 2006"))
	for _, e := range engines {
		fmt.Fprintf(w, " %s |", e.name)
	}
	fmt.Fprintf(w, "\n| --- |%s\n", strings.Repeat(" ---: |", len(engines)))
	for _, m := range measures {
		if !strings.Contains(m.name, only) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s\n", m.name)
		fmt.Fprintf(w, "| %s |", m.name)
		for _, e := range engines {
			got, err := m.take(e)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", m.name, e.name, err)
			}
			fmt.Fprintf(w, " %s |", got)
		}
		fmt.Fprintln(w)
	}
	return nil
}

type measure struct {
	name string
	take func(engine) (string, error)
}

var payload = []byte(strings.Repeat("0123456789abcdef", 64))

func event() deliver.Event { return deliver.Event{To: []string{"acme"}, Payload: payload} }

// fresh opens a new database with one destination.
func fresh(ctx context.Context, e engine, name, url string, opts ...deliver.Option) (client, string, error) {
	dsn, err := e.dsn(name)
	if err != nil {
		return nil, "", err
	}
	c, err := open(dsn, opts...)
	if err != nil {
		return nil, "", err
	}
	return c, dsn, c.Destinations().Put(ctx, deliver.Destination{ID: "acme", URL: url})
}

func perSecond(n int, d time.Duration) string { return fmt.Sprintf("%.0f", float64(n)/d.Seconds()) }

func enqueue(ctx context.Context, e engine, producers, n int) (string, error) {
	c, _, err := fresh(ctx, e, fmt.Sprint("enqueue", producers), "http://127.0.0.1:9/")
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	start := time.Now()
	for range producers {
		all.Go(func() {
			for range n / producers {
				if _, err := c.Send(ctx, event()); err != nil {
					failed.Store(&err)
					return
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return "", *err
	}
	return perSecond(n, time.Since(start)), nil
}

func batch(ctx context.Context, e engine, n int) (string, error) {
	c, _, err := fresh(ctx, e, "batch", "http://127.0.0.1:9/")
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	start := time.Now()
	if err := fill(ctx, c, n); err != nil {
		return "", err
	}
	return perSecond(n, time.Since(start)), nil
}

// fill sends n events, a hundred at a time.
func fill(ctx context.Context, c client, n int) error {
	for at := 0; at < n; at += 100 {
		events := make([]deliver.Event, min(100, n-at))
		for i := range events {
			events[i] = event()
		}
		if _, err := c.SendMany(ctx, events); err != nil {
			return err
		}
	}
	return nil
}

// throughput works what is there already.
func throughput(ctx context.Context, e engine, n int) (string, error) {
	var got atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got.Add(1)
	}))
	defer server.Close()
	c, _, err := fresh(ctx, e, "throughput", server.URL)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := fill(ctx, c, n); err != nil {
		return "", err
	}
	start := time.Now()
	if err := c.Start(ctx); err != nil {
		return "", err
	}
	if err := until(2*time.Minute, func() bool { return got.Load() >= int64(n) }); err != nil {
		return "", err
	}
	return perSecond(n, time.Since(start)), nil
}

func until(limit time.Duration, done func() bool) error {
	for end := time.Now().Add(limit); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("not within %v", limit)
		}
	}
	return nil
}

// lateness has each delivery fail once.
func lateness(ctx context.Context, e engine, n int) (string, error) {
	const pause = 3 * time.Second
	var mu sync.Mutex
	first, late := make(map[string]time.Time), []time.Duration(nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("webhook-id")
		mu.Lock()
		defer mu.Unlock()
		if at, again := first[id]; again {
			late = append(late, time.Since(at)-pause)
			return
		}
		first[id] = time.Now()
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer server.Close()
	c, _, err := fresh(ctx, e, "lateness", server.URL, deliver.WithSchedule("", deliver.Steps(pause)), deliver.WithBreaker(deliver.Breaker{Failures: 1 << 20, Pauses: []time.Duration{time.Minute}}))
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := fill(ctx, c, n); err != nil {
		return "", err
	}
	if err := c.Start(ctx); err != nil {
		return "", err
	}
	if err := until(time.Minute, func() bool { mu.Lock(); defer mu.Unlock(); return len(late) == n }); err != nil {
		return "", err
	}
	slices.Sort(late)
	return fmt.Sprintf("%v, %v", late[n/2].Round(time.Millisecond), late[n*99/100].Round(time.Millisecond)), nil
}

// rescue is how long a delivery of a dead process waits in this measure; the default is
// 90 s.
const rescue = 3 * time.Second

// work is a process that is there to be killed, or to idle.
func work(dsn string) {
	opts := []deliver.Option{deliver.WithTimeout(2 * time.Second), deliver.WithRescue(rescue)}
	if os.Getenv(childURL) != "" {
		opts = nil
	}
	c, err := open(dsn, opts...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := c.Start(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

func child(dsn string, env ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), childDSN+"="+dsn), env...)
	cmd.Stderr = os.Stderr
	return cmd, cmd.Start()
}

func recovery(ctx context.Context, e engine) (string, error) {
	var killed atomic.Bool
	var mu sync.Mutex
	held, seen := make(map[string]bool), make(map[string]int)
	var next, back time.Time
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client has gone
		id := r.Header.Get("webhook-id")
		mu.Lock()
		seen[id]++
		if killed.Load() {
			if next.IsZero() {
				next = time.Now()
			}
			if held[id] && back.IsZero() {
				back = time.Now()
			}
			mu.Unlock()
			return
		}
		held[id] = true
		mu.Unlock()
		<-r.Context().Done() // in flight until the process dies
	}))
	defer server.Close()
	c, dsn, err := fresh(ctx, e, "recovery", server.URL)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := fill(ctx, c, 400); err != nil {
		return "", err
	}
	first, err := child(dsn)
	if err != nil {
		return "", err
	}
	err = until(time.Minute, func() bool { mu.Lock(); defer mu.Unlock(); return len(held) >= 50 })
	_ = first.Process.Kill()
	_ = first.Wait()
	if err != nil {
		return "", err
	}
	killed.Store(true)
	start := time.Now()
	second, err := child(dsn)
	if err != nil {
		return "", err
	}
	defer func() { _ = second.Process.Kill(); _ = second.Wait() }()
	if err := until(2*time.Minute, func() bool { mu.Lock(); defer mu.Unlock(); return !back.IsZero() }); err != nil {
		return "", err
	}
	mu.Lock()
	defer mu.Unlock()
	return fmt.Sprintf("%v, %v (WithRescue(%v))", next.Sub(start).Round(10*time.Millisecond), back.Sub(start).Round(10*time.Millisecond), rescue), nil
}

// pages loads the panel.
func pages(ctx context.Context, e engine, n int) (string, error) {
	c, _, err := fresh(ctx, e, "pages", "http://127.0.0.1:9/")
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	r, w := io.Pipe()
	go func() {
		for i := range n {
			_, err := fmt.Fprintf(w, `{"event":"e%d","destination":"acme","payload":"aGVsbG8=","max_attempts":3,"attempts":[{"number":1,"at":"2026-12-01T00:00:00Z","status":503}],"reason":"exhausted","created":"2026-11-30T00:00:00Z","died":%q}`+"\n",
				i, time.Now().Add(-time.Duration(n-i)*time.Second).Format(time.RFC3339))
			if err != nil {
				return
			}
		}
		_ = w.Close()
	}()
	if _, err := c.Dead().Import(ctx, r); err != nil {
		return "", err
	}
	h := panel.Handler(c)
	var p50 []string
	for _, path := range []string{"/", "/dead"} {
		var took []time.Duration
		for range 21 {
			rec := httptest.NewRecorder()
			start := time.Now()
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
			took = append(took, time.Since(start))
			if rec.Code != http.StatusOK {
				return "", fmt.Errorf("%s answers %d", path, rec.Code)
			}
		}
		slices.Sort(took)
		p50 = append(p50, took[len(took)/2].Round(100*time.Microsecond).String())
	}
	return strings.Join(p50, ", "), nil
}

// idle is the processor time of a process with nothing to do.
func idle(ctx context.Context, e engine, d time.Duration) (string, error) {
	c, dsn, err := fresh(ctx, e, "idle", "http://127.0.0.1:9/")
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	cmd, err := child(dsn, childURL+"=1")
	if err != nil {
		return "", err
	}
	time.Sleep(d)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return "not measured", nil
	}
	used := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	return fmt.Sprintf("%.1f %% of a core", 100*used.Seconds()/d.Seconds()), nil
}
