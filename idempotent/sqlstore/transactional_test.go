package sqlstore_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/retrip-go/retrip/idempotent"
	"github.com/retrip-go/retrip/idempotent/sqlstore"
	"github.com/retrip-go/retrip/idempotent/storetest"
	"github.com/stretchr/testify/require"
)

// ledger makes the table that handlers charge in.
func ledger(t *testing.T) database {
	t.Helper()
	db := postgres(t)
	_, err := db.Exec("CREATE TABLE ledger (entry text NOT NULL)")
	require.NoError(t, err)
	return db
}

func transactional(t *testing.T, db database) idempotent.Store {
	t.Helper()
	s, err := sqlstore.Transactional(db.store(t))
	require.NoError(t, err)
	return s
}

func charge(ctx context.Context, entry string) error {
	_, err := sqlstore.Tx(ctx).ExecContext(ctx, "INSERT INTO ledger VALUES ($1)", entry)
	return err
}

func (d database) charges(ctx context.Context, entry string) (n int, err error) {
	err = d.QueryRowContext(ctx, "SELECT count(*) FROM ledger WHERE entry = $1", entry).Scan(&n)
	return n, err
}

func (d database) charged(t *testing.T, want int) {
	t.Helper()
	n, err := d.charges(t.Context(), "charge")
	require.NoError(t, err)
	require.Equal(t, want, n)
}

func TestATransactionalStoreKeepsTheContract(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			// Each in tables of its own: in small ones a strict level aborts some of those who
			// only came at the same time.
			storetest.Transactions(t, func(t *testing.T) storetest.Ledger {
				db := ledger(t)
				s := transactional(t, db.again(t, "&default_transaction_isolation="+url.PathEscape(level)))
				return storetest.Ledger{Store: s, Write: charge, Count: db.charges}
			})
		})
	}
}

func TestOnlyPostgreSQLIsTransactional(t *testing.T) {
	t.Parallel()
	_, err := sqlstore.Transactional(sqlite(t).store(t))
	require.ErrorContains(t, err, "needs PostgreSQL")
	require.Nil(t, sqlstore.Tx(t.Context()))
}

// charging is the handler of a child: it stalls before the charge, after it, or not at all.
func charging(s *sqlstore.Store, where string) (http.Handler, error) {
	tx, err := sqlstore.Transactional(s)
	if err != nil {
		return nil, err
	}
	return idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if where == "before" {
			storetest.Stall()
		}
		if err := charge(r.Context(), "charge"); err != nil {
			panic(err)
		}
		if where == "after" {
			storetest.Stall()
		}
		w.WriteHeader(http.StatusCreated)
	}), tx, idempotent.Lease(100*time.Millisecond)), nil
}

// served is a server in this process, over the same database.
func served(t *testing.T, db database, h http.HandlerFunc, opts ...idempotent.Option) string {
	t.Helper()
	srv := httptest.NewServer(idempotent.Handler(h, transactional(t, db), opts...))
	t.Cleanup(srv.Close)
	return srv.URL
}

func charges(w http.ResponseWriter, r *http.Request) {
	if err := charge(r.Context(), "charge"); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func TestAServerKilledInItsTransactionChargesOnce(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"before", "after"} {
		t.Run(where+" the charge", func(t *testing.T) {
			t.Parallel()
			db, key := ledger(t), rand.Text()
			p := storetest.Start(t, where+" postgres "+db.source)
			go storetest.Post(p.URL, key)
			p.Stalled()
			url := served(t, db, charges)
			status, body := storetest.Post(url, key)
			require.Equal(t, http.StatusConflict, status, body)
			require.Contains(t, body, `"#running"`)
			p.Kill()
			storetest.Eventually(t, url, key, http.StatusCreated)
			db.charged(t, 1)
			storetest.Eventually(t, url, key, http.StatusCreated)
			db.charged(t, 1)
		})
	}
}

// The database has been told to commit, and the server dies before it hears of it: the
// commit waits in a deferred trigger meanwhile.
func TestAServerKilledInItsCommitChargesOnce(t *testing.T) {
	t.Parallel()
	db, key := ledger(t), rand.Text()
	gate := time.Now().UnixNano()
	for _, q := range []string{
		fmt.Sprintf(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(%d); RETURN NULL; END'`, gate),
		`CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`,
	} {
		_, err := db.Exec(q)
		require.NoError(t, err)
	}
	closed, err := db.Begin()
	require.NoError(t, err)
	defer func() { _ = closed.Rollback() }()
	_, err = closed.Exec("SELECT pg_advisory_xact_lock($1)", gate)
	require.NoError(t, err)

	p := storetest.Start(t, "commit postgres "+db.source)
	go storetest.Post(p.URL, key)
	require.Eventually(t, func() bool {
		var waiting int
		err := db.QueryRow(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND (classid::bigint << 32) | objid::bigint = $1`, gate).Scan(&waiting)
		return err == nil && waiting == 1
	}, 30*time.Second, 20*time.Millisecond)
	p.Kill()
	url := served(t, db, func(http.ResponseWriter, *http.Request) { t.Error("it ran again") })
	status, body := storetest.Post(url, key)
	require.Equal(t, http.StatusConflict, status, body)
	db.charged(t, 0)

	require.NoError(t, closed.Rollback())
	storetest.Eventually(t, url, key, http.StatusCreated)
	db.charged(t, 1)
}

// What PostgreSQL aborts for the sake of others the handler did not do, also if it does
// not look at its errors.
func TestAnAbortedTransactionIsNotAnswered(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]string{
		"an error that the handler passes over": "SELECT 1 / 0",
		"a deadlock":                            "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$",
		"a serialization failure":               "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$",
		"a connection that is gone":             "SELECT pg_terminate_backend(pg_backend_pid())",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := ledger(t)
			first := true
			var log strings.Builder
			url := served(t, db, func(w http.ResponseWriter, r *http.Request) {
				charges(w, r)
				if first {
					first = false
					if _, err := sqlstore.Tx(r.Context()).Exec(fail); err == nil {
						t.Error("it did not fail")
					}
				}
			}, idempotent.Logger(slog.New(slog.NewTextHandler(&log, nil))))
			status, body := storetest.Post(url, "key")
			require.Equal(t, http.StatusServiceUnavailable, status, body)
			require.Contains(t, body, "#store-failed")
			require.Contains(t, log.String(), "sqlstore: the handler's transaction was not committed: ")
			db.charged(t, 0)
			for range 2 {
				storetest.Eventually(t, url, "key", http.StatusCreated) // the backend may take a moment to end
				db.charged(t, 1)
			}
		})
	}
}

// Two handlers that read what the other writes: PostgreSQL lets one of them commit.
func TestARealSerializationFailureIsRepeated(t *testing.T) {
	t.Parallel()
	db := ledger(t)
	strict := db.again(t, "&default_transaction_isolation=serializable")
	strict.store(t)
	var read sync.WaitGroup
	read.Add(2)
	var once sync.Map
	url := served(t, strict, func(w http.ResponseWriter, r *http.Request) {
		var n int
		if err := sqlstore.Tx(r.Context()).QueryRow("SELECT count(*) FROM ledger").Scan(&n); err != nil {
			panic(err)
		}
		if _, again := once.LoadOrStore(r.Header.Get(idempotent.KeyHeader), true); !again {
			read.Done()
			read.Wait()
		}
		charges(w, r)
	}, idempotent.Logger(slog.New(slog.DiscardHandler)))
	statuses := make(chan int)
	for _, key := range []string{"a", "b"} {
		go func() { status, _ := storetest.Post(url, key); statuses <- status }()
	}
	first, second := <-statuses, <-statuses
	require.NotEqual(t, first, second)
	require.Contains(t, []int{first, second}, http.StatusCreated)
	db.charged(t, 1)
	for _, key := range []string{"a", "b"} {
		storetest.Eventually(t, url, key, http.StatusCreated)
	}
	db.charged(t, 2)
}

func TestAHandlerThatEndsItsTransactionIsToldSoAndNeverRunsTwice(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end         func(*sql.Tx) error
		charged     int // after the first request
		then, later int // the second one's status, and how often the work is done at the end
	}{
		"by Commit":   {(*sql.Tx).Commit, 1, http.StatusConflict, 1},
		"by Rollback": {(*sql.Tx).Rollback, 0, http.StatusCreated, 1},
		"by ROLLBACK": {func(tx *sql.Tx) error { _, err := tx.Exec("ROLLBACK"); return err }, 0, http.StatusCreated, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := ledger(t)
			first := true
			var log strings.Builder
			url := served(t, db, func(w http.ResponseWriter, r *http.Request) {
				charges(w, r)
				if first {
					first = false
					if err := test.end(sqlstore.Tx(r.Context())); err != nil {
						t.Error(err)
					}
				}
			}, idempotent.Logger(slog.New(slog.NewTextHandler(&log, nil))))
			status, body := storetest.Post(url, "key")
			require.Equal(t, http.StatusServiceUnavailable, status, body)
			require.Contains(t, log.String(), "the handler committed or rolled back the transaction of Tx itself")
			db.charged(t, test.charged)
			status, body = storetest.Post(url, "key")
			require.Equal(t, test.then, status, body)
			if status == http.StatusConflict {
				require.Contains(t, body, "#unknown-outcome")
			}
			db.charged(t, test.later)
		})
	}
}

// The answers that are not remembered, and panics, undo what was written.
func TestWhatIsNotRememberedWasNotDone(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(http.ResponseWriter){
		"500":             func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"a panic":         func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"a lost deadline": func(w http.ResponseWriter) { w.WriteHeader(http.StatusRequestTimeout) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := ledger(t)
			first := true
			url := served(t, db, func(w http.ResponseWriter, r *http.Request) {
				if err := charge(r.Context(), "charge"); err != nil {
					panic(err)
				}
				if first {
					first = false
					fail(w)
				}
			})
			status, _ := storetest.Post(url, "key")
			require.NotEqual(t, http.StatusOK, status)
			db.charged(t, 0)
			storetest.Eventually(t, url, "key", http.StatusOK)
			db.charged(t, 1)
		})
	}
}

// Every connection is a handler's: duplicates hear 409 at once, others wait for a while,
// and the handlers end.
func TestAPoolThatIsUsedUpRefusesAndDoesNotHang(t *testing.T) {
	t.Parallel()
	db := ledger(t)
	small := db.again(t, "")
	s, err := sqlstore.Transactional(small.store(t))
	require.NoError(t, err)
	small.SetMaxOpenConns(2)
	arrived, leave := make(chan bool, 2), make(chan bool)
	srv := httptest.NewServer(idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- true
		<-leave
		charges(w, r)
	}), s, idempotent.Logger(slog.New(slog.DiscardHandler))))
	t.Cleanup(srv.Close)
	release := sync.OnceFunc(func() { close(leave) })
	t.Cleanup(release)
	statuses := make(chan int, 2)
	for _, key := range []string{"a", "b"} {
		go func() { status, _ := storetest.Post(srv.URL, key); statuses <- status }()
	}
	<-arrived
	<-arrived

	for range 20 {
		status, body := storetest.Post(srv.URL, "a")
		require.Equal(t, http.StatusConflict, status, body)
	}
	status, body := other(t, srv.URL, "a")
	require.Equal(t, http.StatusUnprocessableEntity, status, body)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client is gone")
	time.AfterFunc(50*time.Millisecond, func() { cancel(gone) })
	_, err = s.Begin(ctx, "c", claim("gone"))
	require.ErrorIs(t, err, gone)
	start := time.Now()
	status, body = storetest.Post(srv.URL, "c")
	require.Equal(t, http.StatusServiceUnavailable, status, body)
	require.GreaterOrEqual(t, time.Since(start), 5*time.Second)

	release()
	require.Equal(t, http.StatusCreated, <-statuses)
	require.Equal(t, http.StatusCreated, <-statuses)
	db.charged(t, 2)
	require.Zero(t, small.Stats().InUse)
}

// other posts another request with the key.
func other(t *testing.T, url, key string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("another"))
	require.NoError(t, err)
	req.Header.Set(idempotent.KeyHeader, key)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

// 50 requests at once through a pool that is smaller: one charge, and no connection stays.
func TestManyAtOnceOnFewConnectionsChargeOnce(t *testing.T) {
	t.Parallel()
	db := ledger(t)
	small := db.again(t, "")
	url := served(t, small, charges)
	small.SetMaxOpenConns(3)
	statuses := make(chan int)
	for range 50 {
		go func() { status, _ := storetest.Post(url, "key"); statuses <- status }()
	}
	for range 50 {
		require.Contains(t, []int{http.StatusCreated, http.StatusConflict}, <-statuses)
	}
	storetest.Eventually(t, url, "key", http.StatusCreated)
	db.charged(t, 1)
	require.Zero(t, small.Stats().InUse)
}

// A server that still keeps claims, and one that is transactional already, see the same keys.
func TestATransactionDoesNotRunWhatAClaimHolds(t *testing.T) {
	t.Parallel()
	db := ledger(t)
	claims, tx := db.store(t), transactional(t, db)
	short := claim("one")
	short.Lease = -time.Second
	begin(t, claims, "running", claim("one"))
	begin(t, claims, "lost", short)
	require.Equal(t, idempotent.Running, begin(t, tx, "running", claim("two")).State)
	require.Equal(t, idempotent.Lost, begin(t, tx, "lost", claim("two")).State)
	over := claim("three")
	over.TakeOver = time.Nanosecond
	require.Equal(t, idempotent.Claimed, begin(t, tx, "lost", over).State)
	require.NoError(t, tx.Abandon(t.Context(), "lost", "three"))
	require.Equal(t, idempotent.Lost, begin(t, claims, "lost", claim("two")).State) // as it was
}

// Two services in one database, each with its own table: their keys have nothing to do
// with each other.
func TestTransactionsOfAnotherSchemaAreOfOtherKeys(t *testing.T) {
	t.Parallel()
	for range 2 {
		s := transactional(t, ledger(t))
		require.Equal(t, idempotent.Claimed, begin(t, s, "key of both schemas", claim("one")).State)
		t.Cleanup(func() { require.NoError(t, s.Abandon(context.Background(), "key of both schemas", "one")) })
	}
}

// What blocks the claim itself does not hold a request, and its connection, for ever.
func TestAClaimThatTheDatabaseBlocksIsGivenUp(t *testing.T) {
	t.Parallel()
	db := ledger(t)
	own := db.again(t, "")
	tx := transactional(t, own)
	locked, err := db.Begin()
	require.NoError(t, err)
	defer func() { _ = locked.Rollback() }()
	_, err = locked.Exec("LOCK TABLE retrip_idempotency IN EXCLUSIVE MODE") // it can be read
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = tx.Begin(ctx, "key", claim("one"))
	require.ErrorContains(t, err, "was not ready within 5s")
	require.NoError(t, locked.Rollback())
	require.Equal(t, idempotent.Claimed, begin(t, tx, "key", claim("two")).State)
	require.NoError(t, tx.Abandon(t.Context(), "key", "two"))
	require.Zero(t, own.Stats().InUse)
}

// An answer whose commit hangs is not waited for longer than its context.
func TestFinishEndsWithItsContext(t *testing.T) {
	t.Parallel()
	db := ledger(t)
	tx := transactional(t, db)
	v := begin(t, tx, "key", claim("one"))
	_, err := sqlstore.Tx(v.Context).Exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait();
		INSERT INTO ledger VALUES ('charge')`)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	require.ErrorContains(t, tx.Finish(ctx, "key", "one", idempotent.Record{Status: 201}, time.Hour), "was not committed")
	require.Less(t, time.Since(start), 30*time.Second)
}
