package deliver_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/retrip-go/retrip/deliver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"
)

func TestTwoWorkersMakeEachDeliveryOnce(t *testing.T) {
	for _, workers := range []struct {
		name  string
		share int // of many: one in so many
		pair  func(*testing.T, place)
	}{
		{"two clients", 1, func(t *testing.T, p place) {
			for range 2 {
				require.NoError(t, p.open(t, deliver.WithAtOnce(1000)).Start(t.Context()))
			}
		}},
		{"two processes", 5, func(t *testing.T, p place) {
			for range 2 {
				p.process(t, task{Do: "work"})
			}
		}},
	} {
		t.Run(workers.name, func(t *testing.T) {
			onEngines(t, func(t *testing.T, p place) {
				c := p.open(t)
				r := receive(t, nil)
				put(t, c, "acme", r.URL)
				events := make([]deliver.Event, many[p.engine]/workers.share)
				for i := range events {
					events[i] = order(fmt.Sprint(i))
				}
				start := time.Now()
				_, err := c.SendMany(t.Context(), events)
				require.NoError(t, err)
				sent := time.Now()
				workers.pair(t, p)
				for tenth := range 10 { // each in its own time
					until(t, "attempts", func() bool { return r.ids() >= len(events)*(tenth+1)/10 })
				}
				until(t, "all deliveries", func() bool { return p.count(t, delivered) == len(events) })
				require.Len(t, r.all(), len(events))
				for _, e := range events {
					require.Equal(t, 1, r.count(e.ID))
				}
				t.Logf("%d events: written down in %.1f s, delivered in %.1f s", len(events), sent.Sub(start).Seconds(), time.Since(sent).Seconds())
			})
		})
	}
}

func TestFiftySendsOfOneIDAreOneDelivery(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		clients := []client{p.open(t), p.open(t)}
		r := receive(t, nil)
		put(t, clients[0], "acme", r.URL)
		var all sync.WaitGroup
		receipts := make([]deliver.Receipt, 50)
		errs := make([]error, len(receipts))
		for i := range receipts {
			all.Go(func() {
				for range 20 { // a slow machine's SQLite may be busy for 5 s
					receipts[i], errs[i] = clients[i%2].Send(t.Context(), order("one"))
					if errs[i] == nil || !strings.Contains(errs[i].Error(), "SQLite could not be written to") {
						return
					}
				}
			})
		}
		all.Wait()
		first := 0
		for i, got := range receipts {
			require.NoError(t, errs[i])
			require.Equal(t, "one", got.EventID)
			require.Len(t, got.Deliveries, 1)
			require.Equal(t, receipts[0].Deliveries[0].ID, got.Deliveries[0].ID)
			if !got.Deliveries[0].Duplicate {
				first++
			}
		}
		require.Equal(t, 1, first)
		require.NoError(t, clients[1].Start(t.Context()))
		until(t, "delivery", func() bool { return state(t, clients[0], "one") == deliver.StateDelivered })

		// Also once it was delivered.
		again, err := clients[0].Send(t.Context(), order("one"))
		require.NoError(t, err)
		require.Equal(t, deliver.Delivery{ID: receipts[0].Deliveries[0].ID, Destination: "acme", Duplicate: true}, again.Deliveries[0])
		require.Equal(t, 1, r.count("one"))
	})
}

func TestAnIDIsOneEvent(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		put(t, c, "acme", "https://acme.example")
		put(t, c, "other", "https://other.example")
		_, err := c.Send(t.Context(), order("one"))
		require.NoError(t, err)
		for _, tt := range []struct {
			name     string
			change   func(*deliver.Event)
			conflict bool
		}{
			{"nothing", func(*deliver.Event) {}, false},
			{"the content type, to what it was by default", func(e *deliver.Event) { e.ContentType = "application/json" }, false},
			{"the content type", func(e *deliver.Event) { e.ContentType = "text/plain" }, true},
			{"the payload", func(e *deliver.Event) { e.Payload = []byte("two") }, true},
			{"the payload, for two destinations", func(e *deliver.Event) { e.To, e.Payload = []string{"other", "acme"}, []byte("two") }, true},
		} {
			e := order("one")
			tt.change(&e)
			_, err := c.Send(t.Context(), e)
			if !tt.conflict {
				require.NoError(t, err, tt.name)
				continue
			}
			var conflict *deliver.ConflictError
			require.ErrorAs(t, err, &conflict, tt.name)
			require.Equal(t, deliver.ConflictError{EventID: "one", Destination: "acme"}, *conflict, tt.name)
		}
		s, err := c.Status(t.Context(), "one")
		require.NoError(t, err)
		require.Len(t, s, 1, "what was refused was refused for all destinations")
	})
}

func TestAnotherProcessMayLockSQLiteForAWhile(t *testing.T) {
	for _, hold := range []time.Duration{3 * time.Second, 10 * time.Second} {
		t.Run(hold.String(), func(t *testing.T) {
			t.Parallel()
			p := place{"sqlite", t.TempDir() + "/test.db"}
			c := p.open(t)
			r := receive(t, nil)
			put(t, c, "acme", r.URL)
			require.NoError(t, c.Start(t.Context()))
			_, err := c.Send(t.Context(), order("before"))
			require.NoError(t, err)
			until(t, "work", func() bool { return r.count("before") == 1 })

			other := p.process(t, task{Do: "lock", Hold: hold})
			other.until(t, "locked")
			start := time.Now()
			_, err = c.Status(t.Context(), "before")
			require.NoError(t, err, "reading goes on")
			_, err = p.tryOpen() // of an up-to-date database writes nothing
			require.NoError(t, err)
			var acknowledged []string
			for i := range 3 {
				id := fmt.Sprint("meanwhile-", i)
				_, err = c.Send(t.Context(), order(id))
				if err == nil {
					acknowledged = append(acknowledged, id)
					continue
				}
				require.ErrorContains(t, err, "SQLite could not be written to for 5s")
			}
			if hold < 4*time.Second {
				require.NotEmpty(t, acknowledged)
			}
			other.until(t, "unlocked")
			until(t, "the lock's end", func() bool { _, err := c.Send(t.Context(), order("after")); return err == nil })
			for _, id := range append(acknowledged, "before", "after") {
				until(t, id, func() bool { return state(t, c, id) == deliver.StateDelivered })
				require.Equal(t, 1, r.count(id), id)
			}
			t.Logf("%d of 3 sends succeeded; all was delivered %.1f s after the lock was taken", len(acknowledged), time.Since(start).Seconds())
		})
	}
}

// SQLite's first table of jobs came with version 6, PostgreSQL's with 2. What the first
// version of this package would have written there is delivered.
func TestADatabaseOfTheOldestQueueIsMigrated(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		ctx := t.Context()
		if p.engine == "sqlite" {
			db, err := sql.Open("sqlite", "file:"+p.dsn)
			require.NoError(t, err)
			m, err := rivermigrate.New(riversqlite.New(db), nil)
			require.NoError(t, err)
			_, err = m.Migrate(ctx, rivermigrate.DirectionUp, &rivermigrate.MigrateOpts{TargetVersion: 6})
			require.NoError(t, err)
			require.NoError(t, db.Close())
		} else {
			pool, err := pgxpool.New(ctx, p.dsn)
			require.NoError(t, err)
			m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
			require.NoError(t, err)
			_, err = m.Migrate(ctx, rivermigrate.DirectionUp, &rivermigrate.MigrateOpts{TargetVersion: 2})
			require.NoError(t, err)
			pool.Close()
		}
		insert := `INSERT INTO river_job (kind, queue, max_attempts, args) VALUES `
		p.exec(t, insert+`('retrip_delivery', 'default', 3, '{"event": "old", "destination": "acme", "payload": "b2xk"}')`)
		p.exec(t, insert+`('somebody_elses', 'theirs', 3, '{"a": "x"}')`)

		_, err := p.tryOpen(deliver.WithoutMigration())
		require.ErrorIs(t, err, deliver.ErrNotMigrated)
		c := p.open(t)
		r := receive(t, nil)
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Start(ctx))
		_, err = c.Send(ctx, order("new"))
		require.NoError(t, err)
		for _, id := range []string{"old", "new"} {
			until(t, id, func() bool { return state(t, c, id) == deliver.StateDelivered })
		}
		require.Equal(t, 1, r.count("old"))
		for _, got := range r.all() {
			require.Equal(t, got.id, string(got.body))
		}
		require.Equal(t, 1, p.count(t, `SELECT count(*) FROM river_job WHERE kind = 'somebody_elses' AND state = 'available' AND args->>'a' = 'x'`))
		_, err = p.tryOpen(deliver.WithoutMigration())
		require.NoError(t, err)
	})
}

func TestProcessesMayOpenAFreshDatabaseAtOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		children := make([]*process, 4)
		for i := range children {
			children[i] = p.process(t, task{Do: "open"})
		}
		for _, c := range children {
			c.until(t, "ready")
		}
		for _, c := range children {
			_, err := c.stdin.Write([]byte{'\n'})
			require.NoError(t, err)
		}
		for _, c := range children {
			c.until(t, "open")
		}
		put(t, p.open(t), "acme", "https://acme.example")
	})
}

// A caller's transaction that has written to the queue keeps nobody from starting.
func TestAnUpToDateDatabaseOpensBesideATransaction(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		put(t, c, "acme", "https://acme.example")
		err := inTx(t.Context(), c, order("one"), func(func(string, ...any) error) error {
			opened := make(chan error, 1)
			go func() {
				other, err := p.tryOpen()
				if err == nil {
					err = other.Close()
				}
				opened <- err
			}()
			select {
			case err := <-opened:
				return err
			case <-time.After(30 * time.Second):
				return fmt.Errorf("it waits for the transaction")
			}
		})
		require.NoError(t, err)
		require.Equal(t, deliver.StateWaiting, state(t, c, "one"))
	})
}

// held is a receiver that answers when it is told to.
func held(t *testing.T) (r *receiver, answer func()) {
	gate := make(chan struct{})
	r = receive(t, func(_ int, _ http.ResponseWriter, req *http.Request) {
		select {
		case <-gate:
		case <-req.Context().Done():
		}
	})
	answer = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(answer)
	return r, answer
}

func TestStopWaitsForAttemptsUnderWay(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		r, answer := held(t)
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Start(t.Context()))
		_, err := c.Send(t.Context(), order("one"))
		require.NoError(t, err)
		until(t, "the attempt", func() bool { return r.count("one") == 1 })
		stopped := make(chan error, 1)
		go func() { stopped <- c.Stop(context.Background()) }()
		select {
		case err := <-stopped:
			require.Fail(t, "it did not wait", "%v", err)
		case <-time.After(200 * time.Millisecond):
		}
		answer()
		require.NoError(t, <-stopped)
		require.Equal(t, deliver.StateDelivered, state(t, c, "one"))
		_, err = c.Send(t.Context(), order("later")) // is written down, and not worked
		require.NoError(t, err)
		time.Sleep(200 * time.Millisecond)
		require.Equal(t, deliver.StateWaiting, state(t, c, "later"))
		require.Zero(t, r.count("later"))

		require.NoError(t, c.Stop(t.Context()), "again")
		require.NoError(t, c.Start(t.Context()), "anew")
		until(t, "delivery", func() bool { return state(t, c, "later") == deliver.StateDelivered })
	})
}

// The schedule has one attempt: if the one that is cut off counted, its delivery would be
// dead.
func TestAnAttemptThatAStopCutsOffDoesNotCount(t *testing.T) {
	for _, tt := range []struct {
		name string
		cut  func(c client, cancelStart func()) error
		err  error
	}{
		{"Stop with an expired context", func(c client, _ func()) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return c.Stop(ctx)
		}, context.Canceled},
		{"the end of Start's context", func(c client, cancelStart func()) error {
			cancelStart()
			return c.Stop(context.Background())
		}, nil},
		{"Close", func(c client, _ func()) error { return c.Close() }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onEngines(t, func(t *testing.T, p place) {
				once := deliver.WithSchedule("", deliver.Schedule{Attempts: 1})
				c, look := p.open(t, once), p.open(t, once)
				r, answer := held(t)
				put(t, c, "acme", r.URL)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				require.NoError(t, c.Start(ctx))
				_, err := c.Send(t.Context(), order("one"))
				require.NoError(t, err)
				until(t, "the attempt", func() bool { return r.count("one") == 1 })
				require.ErrorIs(t, tt.cut(c, cancel), tt.err)

				s, err := look.Status(t.Context(), "one")
				require.NoError(t, err)
				require.Equal(t, deliver.StateWaiting, s[0].State, s[0].String())
				require.Empty(t, s[0].Attempts)
				d, err := look.Destinations().Get(t.Context(), "acme")
				require.NoError(t, err)
				require.Zero(t, d.Failures, "it was not the destination's fault")
				answer()
				require.NoError(t, look.Start(t.Context()))
				until(t, "delivery", func() bool { return state(t, look, "one") == deliver.StateDelivered })
				require.Equal(t, 2, r.count("one"))
			})
		})
	}
}

func TestStartAndCloseInAnyOrder(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithLogger(nil))
		put(t, c, "acme", "https://acme.example")
		require.NoError(t, c.Stop(t.Context()), "before it was started")
		require.NoError(t, c.Start(t.Context()))
		require.EqualError(t, c.Start(t.Context()), "deliver: started already")
		require.NoError(t, c.Close())
		require.NoError(t, c.Close(), "again")
		_, err := c.Send(t.Context(), order("one"))
		require.Error(t, err)
		require.Error(t, c.Start(t.Context()))
		_, err = p.open(t).Status(t.Context(), "one")
		require.ErrorIs(t, err, deliver.ErrNotFound, "what was not acknowledged is not there")
	})
}

// A pause that is over when the queue hears of it would be one of the queue's own: 1, 16
// and 81 s.
func TestAPauseOfNothingIsNone(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithSchedule("", deliver.Schedule{Attempts: 4, Pause: func(int) time.Duration { return 0 }}))
		r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n < 4 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Start(t.Context()))
		_, err := c.Send(t.Context(), order("one"))
		require.NoError(t, err)
		until(t, "delivery", func() bool { return state(t, c, "one") == deliver.StateDelivered })
		require.Equal(t, 4, r.count("one"))
	})
}

// syncBuffer is a bytes.Buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestLogsHoldNoSecrets(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		var logs syncBuffer
		key := secret()
		if p.engine == "postgres" {
			p.dsn = strings.Replace(p.dsn, "://postgres", "://postgres:HIDDENpassword", 1)
			p.dsn = strings.Replace(p.dsn, "://postgres:HIDDENpassword:", "://postgres:HIDDENpassword", 1)
		}
		c := p.open(t, deliver.WithLogger(slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}))),
			deliver.WithTimeout(time.Second), deliver.WithBreaker(deliver.Breaker{Failures: 4, Pauses: []time.Duration{time.Hour}}),
			deliver.WithSchedule("", deliver.Steps(50*time.Millisecond)),
			deliver.WithAlert(deliver.Alert{Dead: 1, Per: time.Hour, Again: time.Hour}))
		r := receive(t, func(_ int, w http.ResponseWriter, req *http.Request) {
			switch req.URL.Path {
			case "/HIDDENpath/refuses":
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, "HIDDENanswer")
			case "/HIDDENpath/fails":
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = io.WriteString(w, "HIDDENanswer")
			case "/HIDDENpath/aborts":
				panic(http.ErrAbortHandler)
			case "/HIDDENpath/redirects":
				http.Redirect(w, req, "/HIDDENpath/elsewhere", http.StatusFound)
			case "/HIDDENpath/hangs":
				<-req.Context().Done()
			}
		})
		ends := []string{"takes", "refuses", "fails", "aborts", "redirects", "hangs", "unreachable"}
		for _, id := range ends {
			base := r.URL
			if id == "unreachable" {
				base = "http://127.0.0.1:1"
			}
			require.NoError(t, c.Destinations().Put(t.Context(), deliver.Destination{
				ID: id, URL: base + "/HIDDENpath/" + id + "?token=HIDDENquery", Secrets: []string{key},
			}))
		}
		require.NoError(t, c.Start(t.Context()))
		_, err := c.Send(t.Context(), deliver.Event{ID: "one", To: ends, Payload: []byte("HIDDENpayload")})
		require.NoError(t, err)
		_, err = c.Send(t.Context(), deliver.Event{ID: "two", To: ends[1:], Payload: []byte("HIDDENpayload")})
		require.NoError(t, err)
		for _, id := range []string{"one", "two"} {
			until(t, "the ends", func() bool {
				all, err := c.Status(t.Context(), id)
				require.NoError(t, err)
				for _, s := range all {
					if s.Ended.IsZero() {
						return false
					}
				}
				return true
			})
		}
		until(t, "a notice", func() bool { return strings.Contains(logs.String(), "new dead letters") })
		require.NoError(t, c.Stop(t.Context()))
		require.NoError(t, c.Close())
		_, _ = c.Send(t.Context(), deliver.Event{ID: "three", To: ends, Payload: []byte("HIDDENpayload")})

		text := logs.String()
		require.Contains(t, text, "breaker_opened", "the logger is in use")
		require.NotContains(t, text, "HIDDEN")
		require.NotContains(t, text, strings.TrimPrefix(key, "whsec_"))
		require.NotContains(t, text, "SElEREVOcGF5bG9hZA", "the payload in base64")
	})
}

func TestAnErrorOfOpeningHoldsNoPassword(t *testing.T) {
	t.Parallel()
	for name, dsn := range map[string]string{
		"not a port":          "postgres://somebody:HIDDEN@127.0.0.1:port/db",
		"not a URL":           "postgres://somebody:HIDDEN@[::1/db",
		"an unknown setting":  "postgres://somebody:HIDDEN@127.0.0.1:1/db?sslmode=HIDDEN",
		"nobody there":        "postgres://somebody:HIDDEN@127.0.0.1:1/db",
		"nobody there, words": "host=127.0.0.1 port=1 user=somebody password=HIDDEN",
		"a bad word":          "host=127.0.0.1 password=HIDDEN port",
		"an unused host name": "postgres://somebody:HIDDEN@nowhere.invalid/db",
		"one connection":      "postgres://somebody:HIDDEN@127.0.0.1:1/db?pool_max_conns=1",
		"a bad pool":          "postgres://somebody:HIDDEN@127.0.0.1:1/db?pool_max_conns=HIDDEN",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := deliver.OpenPostgres(ctx, dsn)
		cancel()
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "HIDDEN", name)
	}
}

func TestTheNumberOfConnectionsIsTheConnectionStrings(t *testing.T) {
	t.Parallel()
	dsn := postgresDatabase(t)
	c, err := deliver.OpenPostgres(t.Context(), dsn+"&pool_max_conns=2&application_name=two")
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	put(t, c, "acme", "https://acme.example")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			_ = c.Transaction(t.Context(), func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `SELECT pg_sleep(0.2)`)
				return err
			})
		})
	}
	p := place{"postgres", dsn}
	busy := 0
	for start := time.Now(); time.Since(start) < 300*time.Millisecond; {
		busy = max(busy, p.count(t, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'two'`))
	}
	all.Wait()
	require.Positive(t, busy)
	require.LessOrEqual(t, busy, 2)
}

func TestSQLiteIsAFile(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", ":memory:", "file::memory:?cache=shared"} {
		_, err := deliver.OpenSQLite(path)
		require.ErrorContains(t, err, "a file is needed", path)
	}
	_, err := deliver.OpenSQLite(t.TempDir() + "/not/there/test.db")
	require.Error(t, err)
	odd := place{"sqlite", t.TempDir() + "/a b?c#d%20é.db"}
	put(t, odd.open(t), "acme", "https://acme.example")
	c, err := deliver.OpenSQLite(odd.dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, err = c.Destinations().Get(t.Context(), "acme")
	require.NoError(t, err)
	require.FileExists(t, odd.dsn)
}
