package deliver_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

// A task is what a child process does: the test binary again, so that it can be killed.
type task struct {
	Do     string // a key of tasks
	Engine string
	DSN    string

	Workers int           // 0: 20
	Timeout time.Duration // of attempts; 0: 30 s
	Steps   time.Duration // between attempts; 0: 50 ms
	Prefix  string        // of ids
	Hold    time.Duration // of a lock
}

const taskEnv = "RETRIP_DELIVER_TASK"

// TestMain does a child's task, or runs the tests: more of them at once than there are
// cores, since most of their time they wait.
func TestMain(m *testing.M) {
	text := os.Getenv(taskEnv)
	if text == "" {
		_ = flag.Set("test.parallel", "4") // before the command line is read, which may say otherwise
		os.Exit(m.Run())
	}
	log.SetFlags(0)
	var k task
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		log.Fatal(err)
	}
	if err := tasks[k.Do](k); err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

// tasks return if they fail, or are done.
var tasks = map[string]func(task) error{
	"open":    (task).open,
	"enqueue": (task).enqueue,
	"work":    (task).work,
	"outbox":  (task).outbox,
	"lock":    (task).lock,
}

// say is atomic: what a killed process said, it said to the end of the line.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// live waits for the parent's end: no child outlives it.
func live() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func (k task) client() (client, error) {
	steps := make([]time.Duration, 11)
	for i := range steps {
		steps[i] = max(k.Steps, 50*time.Millisecond)
	}
	opts := []deliver.Option{
		deliver.WithSchedule("", deliver.Steps(steps...)),
		deliver.WithSchedule("once", deliver.Schedule{Attempts: 1}),
		deliver.WithAtOnce(1000),
	}
	if k.Workers > 0 {
		opts = append(opts, deliver.WithWorkers(k.Workers))
	}
	if k.Timeout > 0 {
		opts = append(opts, deliver.WithTimeout(k.Timeout))
	}
	return place{k.Engine, k.DSN}.tryOpen(opts...)
}

// open opens the database when the parent says so.
func (k task) open() error {
	say("ready")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	c, err := k.client()
	if err != nil {
		return err
	}
	say("open")
	return c.Close()
}

// enqueue sends from four goroutines, and says each id that was acknowledged.
func (k task) enqueue() error {
	c, err := k.client()
	if err != nil {
		return err
	}
	for g := range 4 {
		go func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%s-%d-%d", k.Prefix, g, i)
				if _, err := c.Send(context.Background(), deliver.Event{ID: id, To: []string{"acme"}, Payload: []byte(id)}); err != nil {
					log.Fatal(err)
				}
				say("sent %s", id)
			}
		}()
	}
	live()
	return nil
}

func (k task) work() error {
	c, err := k.client()
	if err != nil {
		return err
	}
	if err := c.Start(context.Background()); err != nil {
		return err
	}
	say("working")
	live()
	return nil
}

// outbox stops between the inserts and the commit.
func (k task) outbox() error {
	c, err := k.client()
	if err != nil {
		return err
	}
	return inTx(context.Background(), c, order(k.Prefix), func(exec func(string, ...any) error) error {
		if err := exec(`INSERT INTO orders (id) VALUES ($1)`, k.Prefix); err != nil {
			return err
		}
		say("inserted")
		live()
		return nil
	})
}

// lock holds SQLite's write lock.
func (k task) lock() error {
	go live()
	db, err := sql.Open("sqlite", "file:"+k.DSN+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	say("locked")
	time.Sleep(k.Hold)
	err = tx.Rollback()
	say("unlocked")
	return err
}

// A process is a running task.
type process struct {
	cmd   *exec.Cmd
	stdin io.Writer
	end   func() // kills it and waits

	mu    sync.Mutex
	lines []string
}

// process starts a task on the database; it is killed with the test at the latest.
func (p place) process(t testing.TB, k task) *process {
	t.Helper()
	k.Engine, k.DSN = p.engine, p.dsn
	text, err := json.Marshal(k)
	require.NoError(t, err)
	c := &process{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), taskEnv+"="+string(text))
	faults := new(strings.Builder)
	c.cmd.Stderr = faults
	c.stdin, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.mu.Lock()
			c.lines = append(c.lines, s.Text())
			c.mu.Unlock()
		}
	}()
	c.end = sync.OnceFunc(func() {
		_ = c.cmd.Process.Kill()
		<-read
		_ = c.cmd.Wait()
		if faults.Len() > 0 {
			t.Errorf("%s: %s", k.Do, faults)
		}
	})
	t.Cleanup(c.end)
	return c
}

// said returns what it said so far.
func (c *process) said() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.lines...)
}

// until waits until it has said that line.
func (c *process) until(t testing.TB, line string) {
	t.Helper()
	until(t, line, func() bool { return strings.Contains("\n"+strings.Join(c.said(), "\n")+"\n", "\n"+line+"\n") })
}

// exec runs SQL of the test's own; count returns the number it yields.
func (p place) exec(t testing.TB, query string) { t.Helper(); p.sql(t, query, false) }

func (p place) count(t testing.TB, query string) int { t.Helper(); return p.sql(t, query, true) }

func (p place) sql(t testing.TB, query string, yields bool) (n int) {
	t.Helper()
	ctx := context.Background()
	if p.engine == "sqlite" {
		db, err := sql.Open("sqlite", "file:"+p.dsn+"?_pragma=busy_timeout(30000)")
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		if yields {
			require.NoError(t, db.QueryRowContext(ctx, query).Scan(&n))
			return n
		}
		_, err = db.ExecContext(ctx, query)
		require.NoError(t, err)
		return 0
	}
	conn, err := pgx.Connect(ctx, p.dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(ctx)) }()
	if yields {
		require.NoError(t, conn.QueryRow(ctx, query).Scan(&n))
		return n
	}
	_, err = conn.Exec(ctx, query)
	require.NoError(t, err)
	return 0
}

// anHour makes an hour pass: the lease of a leader that died runs out, and what it had
// under way is given up.
func (p place) anHour(t testing.TB) {
	t.Helper()
	p.exec(t, `DELETE FROM river_leader`)
	for _, column := range []string{"attempted_at", "scheduled_at"} {
		earlier := column + ` - interval '1 hour'`
		if p.engine == "sqlite" {
			earlier = `strftime('%Y-%m-%d %H:%M:%f', ` + column + `, '-1 hour')`
		}
		p.exec(t, `UPDATE river_job SET `+column+` = `+earlier+` WHERE state NOT IN ('cancelled', 'completed', 'discarded')`)
	}
}

// minutesAgo is that time, in SQL.
func (p place) minutesAgo(n int) string {
	if p.engine == "sqlite" {
		return fmt.Sprintf(`strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '-%d minutes')`, n)
	}
	return fmt.Sprintf(`now() - interval '%d minutes'`, n)
}

const delivered = `SELECT count(*) FROM river_job WHERE kind = 'retrip_delivery' AND state = 'completed'`

// ids returns how many different ones came.
func (r *receiver) ids() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}
