package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestServeDeliversShowsThePanelAndStopsWhenAttemptsHaveEnded(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		called, release := make(chan struct{}, 1), make(chan struct{})
		to := receive(t, func(http.ResponseWriter, *http.Request) {
			called <- struct{}{}
			<-release
		})
		r.ok("dest", "put", "acme", to.URL)
		c, panel := r.serve()
		require.Equal(t, "slow\n", r.run("x", "send", "--to", "acme", "--id", "slow").out)
		<-called

		resp, err := http.Get(panel)
		require.NoError(t, err)
		page, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Contains(t, string(page), "acme")

		require.NoError(t, c.Process.Signal(syscall.SIGTERM))
		c.await(t, "stopping: waiting for the attempts under way")
		require.Equal(t, "sending", objects(t, r.ok("status", "slow", "--json"))[0]["state"])
		close(release)
		c.await(t, "stopped")
		require.Zero(t, c.exit(t))
		require.Equal(t, "delivered", objects(t, r.ok("status", "slow", "--json"))[0]["state"])
		require.Equal(t, 1, to.count("slow"))
	})
}

func TestServeTellsPrometheus(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		to := receive(t, nil)
		r.ok("dest", "put", "acme", to.URL)
		_, panel := r.serve()
		require.Equal(t, "one\n", r.run("x", "send", "--to", "acme", "--id", "one").out)
		until(t, "delivery", func() bool { return to.count("one") == 1 })
		get := func(path string) string {
			resp, err := http.Get(strings.TrimSuffix(panel, "/") + path)
			require.NoError(t, err)
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusOK, resp.StatusCode)
			return string(text)
		}
		host := strings.TrimPrefix(to.URL, "http://")
		want := fmt.Sprintf(`retrip_attempts_total{host=%q,outcome="2xx",transport="deliver"} 1`, host)
		until(t, "count", func() bool { return strings.Contains(get("/metrics"), want) })
		require.Contains(t, get("/metrics"), "go_goroutines ")
		require.Contains(t, get("/debug/retrip"), host)
	})
}

func TestTwoServingProcessesShareADatabase(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		to := receive(t, nil)
		r.ok("dest", "put", "acme", to.URL)
		first, _ := r.serve("--workers", "4")
		second, _ := r.serve("--workers", "4")
		const events = 20
		for i := range events {
			require.Zero(t, r.run("x", "send", "--to", "acme", "--id", fmt.Sprint(i)).code)
		}
		for i := range events {
			until(t, "delivery", func() bool {
				return objects(t, r.ok("status", fmt.Sprint(i), "--json"))[0]["state"] == "delivered"
			})
			require.Equal(t, 1, to.count(fmt.Sprint(i)))
		}
		for _, c := range []child{first, second} {
			require.NoError(t, c.Process.Signal(syscall.SIGINT))
		}
		require.Zero(t, first.exit(t))
		require.Zero(t, second.exit(t))
	})
}

func TestADeadLetterOfServeIsReplayedByTheCommand(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		mended := make(chan struct{})
		to := receive(t, func(w http.ResponseWriter, _ *http.Request) {
			select {
			case <-mended:
			default:
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = io.WriteString(w, "\x1b[31mbroken")
			}
		})
		r.ok("dest", "put", "acme", to.URL)
		r.serve()
		r.run("x", "send", "--to", "acme", "--id", "one", "--schedule", "100ms,100ms")
		until(t, "death", func() bool { return len(lines(r.ok("dlq", "ls"))) == 1 })
		row := lines(r.ok("dlq", "ls"))[0]
		require.Equal(t, []string{"one", "acme"}, row[1:3])
		require.Equal(t, []string{"exhausted", "3", "of", "3", "500", "Internal", "Server", "Error"}, row[5:])
		require.Contains(t, r.ok("dlq", "show", row[0]), `"\x1b[31mbroken"`)
		require.Len(t, objects(t, r.ok("status", "one", "--json"))[0]["attempts"], 3)
		require.Contains(t, r.ok("status", "one"), "OUTCOME")

		close(mended)
		require.Zero(t, r.run("", "dlq", "replay", row[0]).code)
		until(t, "delivery", func() bool {
			all := objects(t, r.ok("status", "one", "--json"))
			return all[0]["state"] == "replayed" && all[1]["state"] == "delivered"
		})
		require.Equal(t, 4, to.count("one"))
	})
}

func TestServeGivesAnAttemptTheTimeItIsTold(t *testing.T) {
	r := onSQLite(t)
	to := receive(t, func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	r.ok("dest", "put", "acme", to.URL)
	r.serve("--timeout", "1s")
	r.run("x", "send", "--to", "acme", "--id", "late")
	var first map[string]any
	until(t, "an attempt", func() bool {
		attempts := objects(t, r.ok("status", "late", "--json"))[0]["attempts"].([]any)
		if len(attempts) > 0 {
			first = attempts[0].(map[string]any)
		}
		return first != nil
	})
	require.NotEmpty(t, first["error"])
	require.Less(t, first["ms"], 20_000.0) // by default 30,000
}

func TestServeKeepsDeadLettersAsLongAsItIsTold(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		require.Zero(t, r.run(letters(t, 3, nil), "dlq", "import").code)
		time.Sleep(1100 * time.Millisecond) // their age
		r.serve("--keep-dead", "1s")        // by default 30 days
		until(t, "the purge", func() bool { return len(lines(r.ok("dlq", "ls"))) == 0 })
	})
}

func TestAPanelOnLoopbackServesNoOtherName(t *testing.T) {
	r := onSQLite(t).migrated()
	_, panel := r.serve()
	for host, want := range map[string]int{
		"":                 http.StatusOK,
		"localhost:1":      http.StatusOK,
		"[::1]":            http.StatusOK,
		"attacker.example": http.StatusMisdirectedRequest,
		"127.0.0.1.nip.io": http.StatusMisdirectedRequest,
		"192.0.2.1:80":     http.StatusMisdirectedRequest,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, panel, nil)
		require.NoError(t, err)
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, resp.StatusCode, host)
	}
}

func TestASecondSignalEndsServeAtOnce(t *testing.T) {
	r := onSQLite(t)
	called, release := make(chan struct{}, 1), make(chan struct{})
	to := receive(t, func(http.ResponseWriter, *http.Request) {
		called <- struct{}{}
		<-release
	})
	defer close(release)
	r.ok("dest", "put", "acme", to.URL)
	c, _ := r.serve()
	r.run("x", "send", "--to", "acme")
	<-called
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	c.await(t, "stopping")
	start := time.Now()
	until(t, "its end", func() bool {
		return c.Process.Signal(syscall.SIGTERM) != nil || len(c.lines) > 0 || time.Since(start) > time.Second
	})
	require.Equal(t, -1, c.exit(t), "by the signal")
}

func TestServeCutsOffWhatOutlastsTheGrace(t *testing.T) {
	r := onSQLite(t)
	called, release := make(chan struct{}, 1), make(chan struct{})
	to := receive(t, func(http.ResponseWriter, *http.Request) {
		called <- struct{}{}
		<-release
	})
	defer close(release)
	r.ok("dest", "put", "acme", to.URL)
	c, _ := r.serve("--grace", "200ms")
	r.run("x", "send", "--to", "acme", "--id", "one")
	<-called
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	line := c.await(t, "retrip: ")
	require.True(t, strings.HasPrefix(line, "retrip: attempts under way were cut off, and will be made again"), line)
	require.Equal(t, exitFailed, c.exit(t))
	state := objects(t, r.ok("status", "one", "--json"))[0]
	require.NotContains(t, []any{"delivered", "dead"}, state["state"])
}

// The replay waits at the third dead letter, which another replay has claimed and not yet
// committed.
func TestAnInterruptedReplayListsWhatItDid(t *testing.T) {
	t.Parallel()
	r := tool{t, database(t)}.migrated()
	require.Zero(t, r.run(letters(t, 5, nil), "dlq", "import").code)
	all := objects(t, r.ok("dlq", "ls", "--json"))
	require.Len(t, all, 5)
	third := all[2]["delivery"]
	conn, err := pgx.Connect(t.Context(), r.db)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `INSERT INTO retrip_replay (delivery, replay, created_at) VALUES ($1, 1, 0)`, third)
	require.NoError(t, err)

	cmd := r.child("dlq", "replay", "--all", "--json")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	require.NoError(t, cmd.Start())
	until(t, "the second replay", func() bool { return len(objects(t, r.ok("dlq", "ls", "--json"))) == 3 })
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, exitFailed, exit.ExitCode())
	require.Equal(t, "retrip: interrupted: what is listed was replayed, the rest was not\n", said.String())
	require.NoError(t, tx.Rollback(t.Context()))

	var listed []any
	for _, o := range objects(t, out.String()) {
		listed = append(listed, o["dead_letter"])
	}
	require.Equal(t, []any{all[4]["delivery"], all[3]["delivery"]}, listed)
	require.Equal(t, all[:3], objects(t, r.ok("dlq", "ls", "--json")))
}
