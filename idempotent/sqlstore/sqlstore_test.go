package sqlstore_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/retrip-go/retrip/idempotent"
	"github.com/retrip-go/retrip/idempotent/sqlstore"
	"github.com/retrip-go/retrip/idempotent/storetest"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

func TestMain(m *testing.M) {
	storetest.Child(child)
	os.Exit(m.Run())
}

// child serves what a spec says: a dialect, a data source, and a kind of handler.
func child(spec string) (http.Handler, error) {
	part := strings.SplitN(spec, " ", 3)
	db, err := sql.Open(drivers[sqlstore.Dialect(part[1])], part[2])
	if err != nil {
		return nil, err
	}
	s, err := sqlstore.New(context.Background(), db, sqlstore.Dialect(part[1]))
	if err != nil {
		return nil, err
	}
	if part[0] == "claims" {
		return storetest.Stalling(s), nil
	}
	return charging(s, part[0])
}

var drivers = map[sqlstore.Dialect]string{sqlstore.SQLite: "sqlite", sqlstore.Postgres: "pgx"}

// A database is one of the test's own, on a server that is everyone's.
type database struct {
	*sql.DB
	dialect sqlstore.Dialect
	source  string
}

func (d database) store(t testing.TB) *sqlstore.Store {
	t.Helper()
	s, err := sqlstore.New(context.Background(), d.DB, d.dialect)
	require.NoError(t, err)
	return s
}

// again opens the same database once more, with other settings.
func (d database) again(t testing.TB, settings string) database {
	t.Helper()
	return open(t, d.dialect, d.source+settings)
}

func open(t testing.TB, dialect sqlstore.Dialect, source string) database {
	t.Helper()
	db, err := sql.Open(drivers[dialect], source)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(20)
	return database{db, dialect, source}
}

func sqlite(t testing.TB) database {
	t.Helper()
	return open(t, sqlstore.SQLite, "file:"+filepath.Join(t.TempDir(), "keys.db")+"?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
}

// postgres gives the test a schema.
func postgres(t testing.TB) database {
	t.Helper()
	source := os.Getenv("RETRIP_TEST_POSTGRES")
	if source == "" {
		require.NotEqual(t, "required", os.Getenv("RETRIP_TEST_SERVICES"), "there is no PostgreSQL")
		t.Skip("SKIPPED: no PostgreSQL; .ci/services starts one, RETRIP_TEST_POSTGRES names it")
	}
	all := open(t, sqlstore.Postgres, source)
	schema := "test_" + strings.ToLower(rand.Text())
	_, err := all.Exec("CREATE SCHEMA " + schema)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := all.Exec("SET LOCAL lock_timeout = '20s'; DROP SCHEMA " + schema + " CASCADE")
		require.NoError(t, err)
	})
	u, err := url.Parse(source)
	require.NoError(t, err)
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return open(t, sqlstore.Postgres, u.String())
}

// each runs a test on both engines.
func each(t *testing.T, test func(*testing.T, database)) {
	t.Parallel()
	for name, make := range map[string]func(testing.TB) database{"sqlite": sqlite, "postgres": postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, make(t))
		})
	}
}

// An operator has the names that storetest asks for.
type operator struct{ *sqlstore.Store }

func (o operator) Lost(ctx context.Context, n int) ([]string, error) {
	all, err := o.Store.Lost(ctx, n)
	var names []string
	for _, l := range all {
		if !l.Since.Before(l.Expires) {
			return nil, fmt.Errorf("%+v", l)
		}
		names = append(names, l.Key)
	}
	return names, err
}

func TestAStoreKeepsTheContract(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		s := db.store(t)
		storetest.Claims(t, func(*testing.T) idempotent.Store { return s })
	})
}

func TestAKilledServersKeyIsRefusedUntilSomeoneDecides(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		s := db.store(t)
		storetest.Crash(t, fmt.Sprintf("claims %s %s", db.dialect, db.source), s, operator{s})
	})
}

func claim(owner string) idempotent.Claim {
	return idempotent.Claim{Owner: owner, Fingerprint: "print", Lease: time.Minute, TTL: time.Hour}
}

func begin(t *testing.T, s idempotent.Store, key string, c idempotent.Claim) idempotent.Verdict {
	t.Helper()
	v, err := s.Begin(t.Context(), key, c)
	require.NoError(t, err)
	return v
}

func TestKeysOutliveARestart(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		s := db.store(t)
		require.Equal(t, idempotent.Claimed, begin(t, s, "done", claim("one")).State)
		require.NoError(t, s.Finish(t.Context(), "done", "one", idempotent.Record{Status: 201, Body: []byte("x")}, time.Hour))
		require.Equal(t, idempotent.Claimed, begin(t, s, "running", claim("one")).State)
		db.SetMaxIdleConns(0) // and so no connection stays

		s = db.again(t, "").store(t)
		v := begin(t, s, "done", claim("two"))
		require.Equal(t, idempotent.Done, v.State)
		require.Equal(t, "x", string(v.Record.Body))
		require.Equal(t, idempotent.Running, begin(t, s, "running", claim("two")).State)
		require.NoError(t, s.Finish(t.Context(), "running", "one", idempotent.Record{Status: 201}, time.Hour))
	})
}

func TestServersThatStartTogetherAllMakeTheTable(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		failed := make(chan error)
		for range 10 {
			go func() {
				_, err := sqlstore.New(context.Background(), db.DB, db.dialect)
				failed <- err
			}()
		}
		for range 10 {
			require.NoError(t, <-failed)
		}
		_, err := sqlstore.New(t.Context(), db.DB, "oracle")
		require.ErrorContains(t, err, `no dialect "oracle"`)
	})
}

// The role of a service need not be allowed to make tables.
func TestARoleThatMayNotCreateUsesTheTableThatIsThere(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	role := "role_" + strings.ToLower(rand.Text())
	u, err := url.Parse(db.source)
	require.NoError(t, err)
	schema := u.Query().Get("search_path")
	u.User = url.User(role)
	exec := func(q string) {
		t.Helper()
		_, err := db.Exec(q)
		require.NoError(t, err)
	}
	exec("CREATE ROLE " + role + " LOGIN")
	t.Cleanup(func() { exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	exec("GRANT USAGE ON SCHEMA " + schema + " TO " + role)
	served := open(t, sqlstore.Postgres, u.String())
	_, err = sqlstore.New(t.Context(), served.DB, sqlstore.Postgres)
	require.ErrorContains(t, err, "sqlstore: making the table: ")
	db.store(t)
	exec("GRANT SELECT, INSERT, UPDATE, DELETE ON retrip_idempotency TO " + role)
	s := served.store(t)
	require.Equal(t, idempotent.Claimed, begin(t, s, "key", claim("one")).State)
	n, err := s.Purge(t.Context(), 1)
	require.NoError(t, err)
	require.Zero(t, n)
}

// A server whose clock is wrong is no reason for a second run: no time of Go's is in
// what the store writes.
func TestTheDatabasesClockCounts(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		s := db.store(t)
		var now int64
		clock := "SELECT CAST(unixepoch('subsec') * 1000 AS integer)"
		if db.dialect == sqlstore.Postgres {
			clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
		}
		var leased, expires, after int64
		require.NoError(t, db.QueryRow(clock).Scan(&now))
		begin(t, s, "key", claim("one"))
		require.NoError(t, db.QueryRow("SELECT leased, expires FROM retrip_idempotency").Scan(&leased, &expires))
		require.NoError(t, db.QueryRow(clock).Scan(&after))
		const rounding = 1
		require.GreaterOrEqual(t, leased, now+time.Minute.Milliseconds()-rounding)
		require.LessOrEqual(t, leased, after+time.Minute.Milliseconds()+rounding)
		require.GreaterOrEqual(t, expires, now+time.Hour.Milliseconds()-rounding)
		require.LessOrEqual(t, expires, after+time.Hour.Milliseconds()+rounding)

		_, err := db.Exec("UPDATE retrip_idempotency SET leased = $1", now-1)
		require.NoError(t, err)
		require.Equal(t, idempotent.Lost, begin(t, s, "key", claim("two")).State)
		_, err = db.Exec("UPDATE retrip_idempotency SET expires = $1", now-1)
		require.NoError(t, err)
		require.Equal(t, idempotent.Claimed, begin(t, s, "key", claim("two")).State)
	})
}

func TestPurgeTakesWhatHasExpiredInBatchesAndNothingElse(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		s := db.store(t)
		for i := range 25 {
			key := fmt.Sprint("old-", i)
			begin(t, s, key, claim("one"))
			require.NoError(t, s.Finish(t.Context(), key, "one", idempotent.Record{Status: 200}, -time.Second))
		}
		begin(t, s, "fresh", claim("one"))
		require.NoError(t, s.Finish(t.Context(), "fresh", "one", idempotent.Record{Status: 200}, time.Hour))
		slow, dead := claim("one"), claim("one")
		slow.TTL, dead.TTL, dead.Lease = -time.Second, -time.Second, -time.Second
		begin(t, s, "alive for longer than its TTL", slow)
		begin(t, s, "dead and expired", dead)

		for _, want := range []int{10, 10, 6, 0} {
			n, err := s.Purge(t.Context(), 10)
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
		require.Equal(t, idempotent.Done, begin(t, s, "fresh", claim("two")).State)
		require.Equal(t, idempotent.Running, begin(t, s, "alive for longer than its TTL", claim("two")).State)
		require.PanicsWithValue(t, "sqlstore: Purge(0): fewer than one record", func() { _, _ = s.Purge(t.Context(), 0) })
	})
}

// Keys that have expired are claimed again while Purge is at them: none may lose the
// claim that it just got.
func TestPurgeTakesNoClaimWhileTrafficFlows(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		s := db.store(t)
		ctx, stop := context.WithCancel(t.Context())
		purged := make(chan error)
		go func() {
			for ctx.Err() == nil {
				if _, err := s.Purge(context.Background(), 3); err != nil {
					purged <- err
					return
				}
			}
			purged <- nil
		}()
		worked := make(chan error)
		for w := range 8 {
			go func() {
				for i := range 40 {
					key, owner := fmt.Sprintf("%d-%d", w, i%3), fmt.Sprint("owner-", i)
					v, err := s.Begin(context.Background(), key, claim(owner))
					if err == nil && v.State == idempotent.Claimed {
						err = s.Finish(context.Background(), key, owner, idempotent.Record{Status: 200}, 0)
					}
					if err != nil {
						worked <- fmt.Errorf("%s: %w", key, err)
						return
					}
				}
				worked <- nil
			}()
		}
		for range 8 {
			require.NoError(t, <-worked)
		}
		stop()
		require.NoError(t, <-purged)
	})
}

// The row that Purge selected is being claimed by another, whose transaction ends later.
func TestPurgeNeitherWaitsForAClaimNorTakesIt(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	s := db.store(t)
	begin(t, s, "key", claim("one"))
	require.NoError(t, s.Finish(t.Context(), "key", "one", idempotent.Record{Status: 200}, -time.Second))
	tx, err := db.Begin()
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.Exec("UPDATE retrip_idempotency SET expires = expires + 3600000, leased = leased + 3600000, answer = NULL")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	n, err := s.Purge(ctx, 10)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, tx.Commit())
	require.Equal(t, idempotent.Running, begin(t, s, "key", claim("two")).State)
}

func TestABusySQLiteIsAnErrorAndThenAsGoodAsBefore(t *testing.T) {
	t.Parallel()
	db := sqlite(t)
	s := db.store(t)
	hasty := open(t, sqlstore.SQLite, strings.Replace(db.source, "20000", "10", 1)).store(t)
	writer, err := db.Begin()
	require.NoError(t, err)
	defer func() { _ = writer.Rollback() }()
	_, err = writer.Exec("DELETE FROM retrip_idempotency") // holds the only lock there is
	require.NoError(t, err)
	_, err = hasty.Begin(t.Context(), "key", claim("one"))
	require.ErrorContains(t, err, "sqlstore: ")
	require.ErrorContains(t, err, "SQLITE_BUSY")

	waited := make(chan error)
	go func() {
		_, err := s.Begin(context.Background(), "key", claim("two"))
		waited <- err
	}()
	require.NoError(t, writer.Rollback())
	require.NoError(t, <-waited)
	require.Equal(t, idempotent.Running, begin(t, hasty, "key", claim("three")).State)
}

// A client leaves while the database is slow to commit its claim: the claim is made, and
// known to be, so that its handler runs. It would be nobody's, and lost, if the statement
// ended with the client and were committed after that.
func TestAClaimDoesNotEndInTheMiddleBecauseItsClientLeft(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	s := db.store(t)
	_, err := db.Exec(`CREATE SEQUENCE came;
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
		DECLARE over timestamptz := clock_timestamp() + interval '500 ms';
		BEGIN
			PERFORM nextval('came'); -- others see it at once
			WHILE clock_timestamp() < over LOOP -- as a disk, it cannot be told to stop
				BEGIN PERFORM pg_sleep(0.02); EXCEPTION WHEN query_canceled THEN NULL; END;
			END LOOP;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON retrip_idempotency DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
	require.NoError(t, err)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		defer leave()
		for came := false; !came && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			if err := db.QueryRowContext(ctx, "SELECT is_called FROM came").Scan(&came); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	v, err := s.Begin(ctx, "key", claim("one"))
	require.NoError(t, err)
	require.Equal(t, idempotent.Claimed, v.State)
	require.NoError(t, s.Abandon(t.Context(), "key", "one"))
	require.Equal(t, idempotent.Claimed, begin(t, s, "key", claim("two")).State)
	<-ctx.Done()
	_, err = s.Begin(ctx, "other", claim("one"))
	require.ErrorIs(t, err, context.Canceled)
}

// A database that is full takes no new keys, and goes on when it has room again.
func TestAFullSQLiteRefusesRatherThanForgets(t *testing.T) {
	t.Parallel()
	db := sqlite(t)
	db.SetMaxOpenConns(1) // the setting is a connection's
	s := db.store(t)
	require.Equal(t, idempotent.Claimed, begin(t, s, "first", claim("one")).State)
	var pages int
	require.NoError(t, db.QueryRow("PRAGMA page_count").Scan(&pages))
	_, err := db.Exec(fmt.Sprint("PRAGMA max_page_count = ", pages))
	require.NoError(t, err)
	n := 0
	for err == nil && n < 10_000 {
		_, err = s.Begin(t.Context(), fmt.Sprint("key-", n), claim("one"))
		n++
	}
	require.ErrorContains(t, err, "sqlstore: database or disk is full")
	_, err = db.Exec("PRAGMA max_page_count = 1000000")
	require.NoError(t, err)
	require.Equal(t, idempotent.Running, begin(t, s, "first", claim("two")).State)
	require.Equal(t, idempotent.Claimed, begin(t, s, fmt.Sprint("key-", n-1), claim("one")).State)
}

// A strict default makes PostgreSQL abort what could not have happened one after the other.
func TestAStoreKeepsTheContractWhateverTheIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			s := postgres(t).again(t, "&default_transaction_isolation="+url.PathEscape(level)).store(t)
			storetest.Claims(t, func(*testing.T) idempotent.Store { return s })
		})
	}
}

func TestManyConnectionsClaimAKeyOnce(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		db.SetMaxOpenConns(64)
		s := db.store(t)
		const keys = 10
		var claimed [keys]int
		won := make(chan int)
		for i := range 32 * keys {
			go func() {
				v, err := s.Begin(context.Background(), fmt.Sprint("key-", i%keys), claim(fmt.Sprint("owner-", i)))
				switch {
				case err != nil:
					t.Error(err)
					won <- -1
				case v.State == idempotent.Claimed:
					won <- i % keys
				default:
					won <- -1
				}
			}()
		}
		for range 32 * keys {
			if key := <-won; key >= 0 {
				claimed[key]++
			}
		}
		require.Equal(t, [keys]int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, claimed)
	})
}

// With much in the table, what runs often uses an index.
func TestEveryStatementFindsItsRowsByAnIndex(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		s := db.store(t)
		fill := `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
			INSERT INTO retrip_idempotency SELECT 'key-' || i, 'owner', 'print', 0, 9999999999999 + i, '{}' FROM n`
		_, err := db.Exec(fill)
		require.NoError(t, err)
		_, err = db.Exec("ANALYZE")
		require.NoError(t, err)
		n, err := s.Purge(t.Context(), 10)
		require.NoError(t, err)
		require.Zero(t, n)
		for what, q := range s.Statements() {
			plan := explain(t, db, q)
			require.NotContains(t, plan, "Seq Scan", "%s: %s", what, plan)
			require.NotRegexp(t, `(?m)^SCAN (r|retrip_idempotency)$`, plan, "%s: %s", what, plan)
			require.Regexp(t, `Index Cond|SEARCH retrip_idempotency USING .*INDEX`, plan, "%s: %s", what, plan)
		}
	})
}

func explain(t *testing.T, db database, query string) string {
	t.Helper()
	how := "EXPLAIN QUERY PLAN "
	if db.dialect == sqlstore.Postgres {
		how = "EXPLAIN "
	}
	rows, err := db.Query(how + query)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	columns, err := rows.Columns()
	require.NoError(t, err)
	var plan strings.Builder
	for rows.Next() {
		cells := make([]any, len(columns))
		for i := range cells {
			cells[i] = new(any)
		}
		require.NoError(t, rows.Scan(cells...))
		_, _ = fmt.Fprintln(&plan, *cells[len(cells)-1].(*any))
	}
	require.NoError(t, rows.Err())
	return plan.String()
}

func stores(b *testing.B) map[string]idempotent.Store {
	b.Helper()
	pg := postgres(b)
	pg.SetMaxOpenConns(64)
	pg.SetMaxIdleConns(64)
	claims := pg.store(b)
	tx, err := sqlstore.Transactional(claims)
	require.NoError(b, err)
	return map[string]idempotent.Store{"sqlite": sqlite(b).store(b), "postgres": claims, "postgres-tx": tx}
}

func BenchmarkFirst(b *testing.B)  { storetest.First(b, stores(b)) }
func BenchmarkReplay(b *testing.B) { storetest.Replay(b, stores(b)) }
