package deliver_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

// A client is a deliver.Client on either engine.
type client interface {
	Send(context.Context, deliver.Event) (deliver.Receipt, error)
	SendMany(context.Context, []deliver.Event) ([]deliver.Receipt, error)
	Status(context.Context, string) ([]deliver.Status, error)
	Pending(context.Context, int) ([]deliver.Status, error)
	Stats(context.Context, time.Time) ([]deliver.Stats, error)
	Destinations() *deliver.Destinations
	Dead() *deliver.DeadLetters
	Start(context.Context) error
	Stop(context.Context) error
	Close() error
}

// A place is a database that can be opened more than once, by this process and others.
type place struct {
	engine string
	dsn    string
}

// onEngines runs a test on each engine, with a database of its own. PostgreSQL is the
// one that RETRIP_TEST_POSTGRES names; .ci/services starts it.
func onEngines(t *testing.T, test func(t *testing.T, p place)) {
	t.Parallel()
	t.Run("engine=sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, place{"sqlite", filepath.Join(t.TempDir(), "test.db")})
	})
	t.Run("engine=postgres", func(t *testing.T) {
		t.Parallel()
		test(t, place{"postgres", postgresDatabase(t)})
	})
}

// postgresDatabase makes a database that lives as long as the test.
func postgresDatabase(t *testing.T) string {
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

// open opens the database with what tests need; it is closed with the test.
func (p place) open(t testing.TB, opts ...deliver.Option) client {
	t.Helper()
	c, err := p.tryOpen(opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (p place) tryOpen(opts ...deliver.Option) (client, error) {
	opts = append([]deliver.Option{
		deliver.WithAllowedNetworks(netip.MustParsePrefix("127.0.0.0/8")),
		deliver.WithSchedule("", deliver.Steps(50*time.Millisecond, 50*time.Millisecond)),
		deliver.WithLogger(slog.New(slog.DiscardHandler)),
		deliver.WithPolling(p.poll()),
		deliver.WithWorkers(20),
	}, opts...)
	if p.engine == "sqlite" {
		return notNil(deliver.OpenSQLite(p.dsn, opts...))
	}
	return notNil(deliver.OpenPostgres(context.Background(), p.dsn, opts...))
}

// slow says that the engine is SQLite under the race detector: tests then do less of it.
func (p place) slow() bool { return many[p.engine] < 1000 }

// poll leaves a slow engine time for something else.
func (p place) poll() time.Duration {
	if p.slow() {
		return 150 * time.Millisecond
	}
	return 25 * time.Millisecond
}

func notNil[T any](c *deliver.Client[T], err error) (client, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// inTx sends in a transaction of the caller's, which is committed if after returns nil.
func inTx(ctx context.Context, c client, e deliver.Event, after func(exec func(query string, args ...any) error) error) error {
	switch c := c.(type) {
	case *deliver.Client[*sql.Tx]:
		return c.Transaction(ctx, func(tx *sql.Tx) error {
			if _, err := c.SendTx(ctx, tx, e); err != nil {
				return err
			}
			return after(func(q string, args ...any) error { _, err := tx.ExecContext(ctx, q, args...); return err })
		})
	case *deliver.Client[pgx.Tx]:
		return c.Transaction(ctx, func(tx pgx.Tx) error {
			if _, err := c.SendTx(ctx, tx, e); err != nil {
				return err
			}
			return after(func(q string, args ...any) error { _, err := tx.Exec(ctx, q, args...); return err })
		})
	}
	return fmt.Errorf("%T", c)
}

// A receiver is a consumer: it answers as told and writes down what it gets.
type receiver struct {
	*httptest.Server
	answer func(n int, w http.ResponseWriter, r *http.Request) // n counts the calls with one id

	mu    sync.Mutex
	calls []call
	seen  map[string]int
}

type call struct {
	at     time.Time
	id     string
	header http.Header
	body   []byte
}

// receive starts a receiver; a nil answer is 200.
func receive(t testing.TB, answer func(n int, w http.ResponseWriter, r *http.Request)) *receiver {
	r := &receiver{answer: answer, seen: make(map[string]int)}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	id := req.Header.Get("webhook-id")
	r.mu.Lock()
	r.seen[id]++
	n := r.seen[id]
	r.calls = append(r.calls, call{time.Now(), id, req.Header.Clone(), body})
	r.mu.Unlock()
	if r.answer != nil {
		r.answer(n, w, req)
	}
}

// status answers always the same.
func status(code int) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// all returns the calls so far.
func (r *receiver) all() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]call(nil), r.calls...)
}

// count returns how often an id came.
func (r *receiver) count(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[id]
}

// secret makes a Standard Webhooks secret.
func secret() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	return "whsec_" + base64.StdEncoding.EncodeToString(key)
}

// put adds a destination.
func put(t testing.TB, c client, id, url string) {
	t.Helper()
	require.NoError(t, c.Destinations().Put(t.Context(), deliver.Destination{ID: id, URL: url}))
}

// until waits for what must come, as long as a busy machine may take.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, 60*time.Second, 40*time.Millisecond, what) // oftener, and asking SQLite is all that is done
}

// state returns that of an event's only delivery.
func state(t testing.TB, c client, event string) deliver.State {
	t.Helper()
	s, err := c.Status(context.Background(), event)
	require.NoError(t, err)
	require.Len(t, s, 1)
	return s[0].State
}

func TestAnEventIsDeliveredAfterAFailure(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n == 1 {
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = io.WriteString(w, "not now")
			}
		})
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Start(t.Context()))
		receipt, err := c.Send(t.Context(), deliver.Event{To: []string{"acme"}, Payload: []byte("one\x00two")})
		require.NoError(t, err)
		until(t, "delivery", func() bool { return state(t, c, receipt.EventID) == deliver.StateDelivered })

		calls := r.all()
		require.Len(t, calls, 2)
		for _, got := range calls {
			require.Equal(t, receipt.EventID, got.id)
			require.Equal(t, receipt.EventID, got.header.Get("Idempotency-Key"))
			require.Equal(t, "one\x00two", string(got.body))
		}
		s, err := c.Status(t.Context(), receipt.EventID)
		require.NoError(t, err)
		require.Len(t, s[0].Attempts, 2)
		require.Equal(t, 500, s[0].Attempts[0].Status)
		require.Equal(t, "not now", s[0].Attempts[0].Answer)
		require.Equal(t, 200, s[0].Attempts[1].Status)
	})
}
