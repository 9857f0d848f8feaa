package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestMain makes the test's binary the command when a test starts it as a child.
func TestMain(m *testing.M) {
	if os.Getenv("RETRIP_TEST_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// A tool is the command on a database of its own.
type tool struct {
	testing.TB
	db string
}

// A result is what a command did.
type result struct {
	code     int
	out, err string
}

// onEngines runs a test on each engine. PostgreSQL is the one that RETRIP_TEST_POSTGRES
// names; .ci/services starts it.
func onEngines(t *testing.T, test func(t *testing.T, r tool)) {
	t.Parallel()
	t.Run("engine=sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, tool{t, filepath.Join(t.TempDir(), "test.db")}.migrated())
	})
	t.Run("engine=postgres", func(t *testing.T) {
		t.Parallel()
		test(t, tool{t, database(t)}.migrated())
	})
}

// onSQLite is for what no engine makes a difference to.
func onSQLite(t *testing.T) tool {
	t.Parallel()
	return tool{t, filepath.Join(t.TempDir(), "test.db")}.migrated()
}

func (r tool) migrated() tool {
	require.Zero(r, r.run("", "migrate").code)
	return r
}

// database makes one that lives as long as the test.
func database(t testing.TB) string {
	t.Helper()
	server := os.Getenv("RETRIP_TEST_POSTGRES")
	if server == "" {
		require.NotEqual(t, "required", os.Getenv("RETRIP_TEST_SERVICES"), "there is no PostgreSQL")
		t.Skip("SKIPPED: no PostgreSQL; .ci/services starts one, RETRIP_TEST_POSTGRES names it")
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, server)
	require.NoError(t, err)
	name := "t" + strings.ToLower(rand.Text())
	_, err = conn.Exec(ctx, "CREATE DATABASE "+name)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
		require.NoError(t, conn.Close(ctx))
	})
	return strings.Replace(server, "/postgres?", "/"+name+"?", 1)
}

// run runs the command in this process.
func (r tool) run(in string, args ...string) result {
	r.Helper()
	var out, err bytes.Buffer
	code := run(r.Context(), append([]string{"--db", r.db}, args...), strings.NewReader(in), &out, &err)
	return result{code, out.String(), err.String()}
}

// ok runs the command, which must succeed, and returns its output.
func (r tool) ok(args ...string) string {
	r.Helper()
	got := r.run("", args...)
	require.Zero(r, got.code, "%v: %s", args, got.err)
	return got.out
}

// number is that of an event's dead letter.
func (r tool) number(event string) string {
	r.Helper()
	all := objects(r, r.ok("dlq", "ls", "--event", event, "--json", "--replayed"))
	require.NotEmpty(r, all, event)
	return fmt.Sprint(all[0]["delivery"])
}

// lines are the fields of an output's lines; a table's head is left out.
func lines(out string) [][]string {
	var all [][]string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 0 {
			all = append(all, f)
		}
	}
	return all[min(1, len(all)):]
}

// objects are the lines of JSON.
func objects(t testing.TB, out string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(out) {
		var o map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &o), line)
		all = append(all, o)
	}
	return all
}

// letters are lines for import: n dead letters to acme, with what the edit changes.
func letters(t testing.TB, n int, edit func(i int, l map[string]any)) string {
	t.Helper()
	var b strings.Builder
	for i := 1; i <= n; i++ {
		at := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
		l := map[string]any{
			"event": fmt.Sprintf("e%d", i), "destination": "acme", "payload": []byte(fmt.Sprintf(`{"n":%d}`, i)), "max_attempts": 2, "reason": "exhausted",
			"created": at, "died": at.Add(time.Minute),
			"attempts": []map[string]any{
				{"number": 1, "at": at, "status": 503, "duration": 12_000_000, "answer": "not now"},
				{"number": 2, "at": at.Add(time.Minute), "error": "timed out", "duration": 30_000_000_000},
			},
		}
		if edit != nil {
			edit(i, l)
		}
		require.NoError(t, json.NewEncoder(&b).Encode(l))
	}
	return b.String()
}

// secretFile writes a Standard Webhooks secret into a file.
func secretFile(t testing.TB) (secret, file string) {
	t.Helper()
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	secret = "whsec_" + base64.StdEncoding.EncodeToString(key)
	file = filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	return secret, file
}

// A child is the command as a process of its own.
type child struct {
	*exec.Cmd
	lines chan string // of its standard error
}

func (r tool) child(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "RETRIP_TEST_MAIN=1", "RETRIP_DB="+r.db)
	return cmd
}

// serve starts serve for a destination on loopback and waits until it delivers.
func (r tool) serve(args ...string) (c child, panel string) {
	r.Helper()
	c = child{r.child(append([]string{"serve", "--listen", "127.0.0.1:0", "--allow-network", "127.0.0.0/8", "--schedule", "100ms,100ms"}, args...)...), make(chan string, 1000)}
	pipe, err := c.StderrPipe()
	require.NoError(r, err)
	require.NoError(r, c.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(c.lines)
		for s := bufio.NewScanner(pipe); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	r.Cleanup(func() {
		_ = c.Process.Kill()
		<-read
		_ = c.Wait()
	})
	panel = strings.TrimPrefix(c.await(r, "the panel is at "), "the panel is at ")
	c.await(r, "delivering")
	return c, panel
}

// await waits for a line that begins so.
func (c child) await(t testing.TB, prefix string) string {
	t.Helper()
	var seen []string
	limit := time.After(60 * time.Second)
	for {
		select {
		case line, ok := <-c.lines:
			require.True(t, ok, "it ended without saying %q, but %q", prefix, seen)
			if strings.HasPrefix(line, prefix) {
				return line
			}
			seen = append(seen, line)
		case <-limit:
			require.Fail(t, "nothing came", "%q, only %q", prefix, seen)
		}
	}
}

// exit waits for the end and returns the status.
func (c child) exit(t testing.TB) int {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		for range c.lines { // a full channel would keep it alive
		}
		_ = c.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(60 * time.Second):
		require.Fail(t, "it does not end")
	}
	return c.ProcessState.ExitCode()
}

// until waits for what must come, as long as a busy machine may take.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, 60*time.Second, 20*time.Millisecond, what)
}

// A receiver counts what it gets by id.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	seen map[string]int
}

func receive(t testing.TB, answer http.HandlerFunc) *receiver {
	r := &receiver{seen: make(map[string]int)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		r.mu.Lock()
		r.seen[req.Header.Get("webhook-id")]++
		r.mu.Unlock()
		if answer != nil {
			answer(w, req)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) count(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[id]
}
