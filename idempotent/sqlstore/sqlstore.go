// Package sqlstore keeps idempotency keys in a database, through database/sql: SQLite or
// PostgreSQL. The driver is the caller's to import.
//
// New keeps a claim while a handler runs, and its answer after that. What it promises:
// work is done once, over restarts of the server and of the database, until TTL is
// over. If the server dies in the middle of a handler nobody knows whether the work was
// done; the key is then refused (see idempotent.TakeOver, and Store.Lost). That needs a
// database that does not lose what it has committed: synchronous_commit=on, and no
// failover to a replica that is behind; or SQLite's synchronous=FULL. Nothing is
// evicted. Time is the database's, so that the servers' clocks may differ.
//
// Transactional, on PostgreSQL, puts the record and what the handler writes into one
// transaction: if the server dies neither is there, and the next request runs.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/retrip-go/retrip/idempotent"
)

// A Dialect is a database's.
type Dialect string

const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
)

// A Store is an idempotent.Store. It is safe for concurrent use.
type Store struct {
	db      *sql.DB
	dialect Dialect
	now     string // the database's clock, in milliseconds
	skip    string // what makes a SELECT leave out rows that others work on
}

// New returns a store over db, and makes its table, retrip_idempotency, if it is not
// there. SQLite must be a file, and be opened so that it waits for other writers, and
// does not lose what it has committed; with modernc.org/sqlite:
//
//	file:keys.db?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)
//
// These are carried out in their order, and the others need the first.
//
// Records that have expired stay in the table until Purge is called.
//
// A handler that keeps SQLite's write lock, or the last of db's connections, for longer than
// its lease keeps the lease from being renewed, and is taken for dead meanwhile.
func New(ctx context.Context, db *sql.DB, d Dialect) (*Store, error) {
	s := &Store{db: db, dialect: d}
	blob := "blob"
	switch d {
	case SQLite:
		s.now = "CAST((julianday('now') - 2440587.5) * 86400000 AS integer)"
	case Postgres:
		blob = "bytea"
		// In a SELECT of its own, since an index is of no use to a function that is volatile.
		s.now = "(SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"
		s.skip = "FOR UPDATE SKIP LOCKED"
	default:
		return nil, fmt.Errorf("sqlstore: no dialect %q", d)
	}
	if err := s.create(ctx, blob); err != nil {
		return nil, fmt.Errorf("sqlstore: making the table: %w", err)
	}
	return s, nil
}

func (s *Store) create(ctx context.Context, blob string) error {
	// A role that may not create tables can use one that is there.
	if _, err := s.db.ExecContext(ctx, `SELECT 1 FROM retrip_idempotency WHERE 1 = 0`); err == nil {
		return nil
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	statements := []string{
		`CREATE TABLE IF NOT EXISTS retrip_idempotency (
			key         text PRIMARY KEY,
			owner       text NOT NULL,
			fingerprint text NOT NULL,
			leased      bigint NOT NULL, -- end of the lease
			expires     bigint NOT NULL,
			answer      ` + blob + ` -- NULL while it runs
		)`,
		`CREATE INDEX IF NOT EXISTS retrip_idempotency_expires ON retrip_idempotency (expires)`,
		`CREATE INDEX IF NOT EXISTS retrip_idempotency_running ON retrip_idempotency (leased) WHERE answer IS NULL`,
	}
	if s.dialect == Postgres {
		// Servers that start together would fail on IF NOT EXISTS, which looks before it locks.
		statements = append([]string{`SELECT pg_advisory_xact_lock(7302181)`}, statements...)
	}
	for _, q := range statements {
		if _, err := tx.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// querier is a database or a transaction of it.
type querier interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

// gone says of a row that it is as good as not there. A claim whose owner lives stays,
// however long its handler takes.
func (s *Store) gone(row string) string {
	return fmt.Sprintf("%[1]sexpires <= %[2]s AND (%[1]sanswer IS NOT NULL OR %[1]sleased <= %[2]s)", row, s.now)
}

// grace is how much longer than its client a claim may take.
const grace = 10 * time.Second

// Begin claims the key in one statement: of all that come at once one gets it. It does
// not end with ctx, but a while later: a statement that is cut off in its commit may
// still be committed when Abandon has found nothing, and the key would be lost for TTL.
func (s *Store) Begin(ctx context.Context, key string, c idempotent.Claim) (idempotent.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return idempotent.Verdict{}, err
	}
	ctx, stop := outlive(ctx, grace)
	defer stop()
	return repeat(func() (idempotent.Verdict, error) { return s.claim(ctx, s.db, key, c) })
}

// outlive returns a context that ends so long after ctx, or with stop.
func outlive(ctx context.Context, d time.Duration) (longer context.Context, stop func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	alone := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(d):
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() { alone(); cancel() }
}

// repeat does again what came to nothing because of others: a key that went between two
// statements, or, of SQLSTATE 40001 and 40P01, a victim of PostgreSQL's for the sake of
// serializability, if that is the database's default, or of a deadlock.
func repeat[T any](do func() (T, error)) (v T, err error) {
	for range 20 {
		v, err = do()
		var state interface{ SQLState() string }
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case errors.As(err, &state) && (state.SQLState() == "40001" || state.SQLState() == "40P01"):
		case err == nil || errors.Is(err, idempotent.ErrNotOwner):
			return v, err
		default:
			return v, fmt.Errorf("sqlstore: %w", err)
		}
	}
	return v, fmt.Errorf("sqlstore: others were faster 20 times: %w", err)
}

func (s *Store) claim(ctx context.Context, q querier, key string, c idempotent.Claim) (v idempotent.Verdict, err error) {
	takeOver := int64(-1)
	if c.TakeOver > 0 {
		takeOver = c.TakeOver.Milliseconds()
	}
	n, err := touched(q.ExecContext(ctx, `
		INSERT INTO retrip_idempotency AS r (key, owner, fingerprint, leased, expires)
		VALUES ($1, $2, $3, `+s.now+` + $4, `+s.now+` + $5)
		ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, fingerprint = excluded.fingerprint,
			leased = excluded.leased, expires = excluded.expires, answer = NULL
		WHERE `+s.gone("r.")+` OR CAST($6 AS bigint) >= 0 AND r.answer IS NULL
			AND r.fingerprint = excluded.fingerprint AND r.leased + CAST($6 AS bigint) <= `+s.now,
		key, c.Owner, c.Fingerprint, c.Lease.Milliseconds(), c.TTL.Milliseconds(), takeOver))
	if err != nil || n > 0 {
		return idempotent.Verdict{Fingerprint: c.Fingerprint}, err
	}
	return s.look(ctx, q, key)
}

// look tells what is known of a key.
func (s *Store) look(ctx context.Context, q querier, key string) (v idempotent.Verdict, err error) {
	var leased, now int64
	var answer []byte
	err = q.QueryRowContext(ctx, `SELECT fingerprint, leased, answer, `+s.now+` FROM retrip_idempotency WHERE key = $1 AND NOT (`+s.gone("")+`)`, key).
		Scan(&v.Fingerprint, &leased, &answer, &now)
	switch {
	case err != nil:
	case answer != nil:
		v.State, err = idempotent.Done, v.Record.UnmarshalBinary(answer)
	case leased > now:
		v.State = idempotent.Running
	default:
		v.State = idempotent.Lost
	}
	return v, err
}

func touched(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// owned runs a statement on the owner's claim, which must be there.
func (s *Store) owned(ctx context.Context, query string, args ...any) error {
	_, err := repeat(func() (int64, error) {
		n, err := touched(s.db.ExecContext(ctx, query+` WHERE key = $1 AND owner = $2 AND answer IS NULL`, args...))
		if err == nil && n == 0 {
			err = idempotent.ErrNotOwner
		}
		return n, err
	})
	return err
}

// Renew says that the owner is alive.
func (s *Store) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	return s.owned(ctx, `UPDATE retrip_idempotency SET leased = `+s.now+` + $3`, key, owner, lease.Milliseconds())
}

// Finish stores the answer.
func (s *Store) Finish(ctx context.Context, key, owner string, r idempotent.Record, ttl time.Duration) error {
	answer, err := r.MarshalBinary()
	if err != nil {
		return err
	}
	return s.owned(ctx, s.finish(), key, owner, answer, ttl.Milliseconds())
}

func (s *Store) finish() string {
	return `UPDATE retrip_idempotency SET answer = $3, expires = ` + s.now + ` + $4`
}

// Abandon forgets the key.
func (s *Store) Abandon(ctx context.Context, key, owner string) error {
	return s.owned(ctx, `DELETE FROM retrip_idempotency`, key, owner)
}

// Purge deletes up to n records that have expired, and returns how many. Call it now and
// then, and again while it returns n: small batches keep nobody waiting, and what others
// work on it leaves to the next.
//
// Purge panics if n is less than 1.
func (s *Store) Purge(ctx context.Context, n int) (int, error) {
	if n < 1 {
		panic(fmt.Sprintf("sqlstore: Purge(%d): fewer than one record", n))
	}
	deleted, err := repeat(func() (int64, error) { return touched(s.db.ExecContext(ctx, s.purge(), n)) })
	return int(deleted), err
}

// purge has the condition twice, since a key may be claimed again after it was selected.
func (s *Store) purge() string {
	return `DELETE FROM retrip_idempotency WHERE ` + s.gone("") + ` AND key IN
		(SELECT key FROM retrip_idempotency WHERE ` + s.gone("") + ` ORDER BY expires LIMIT $1 ` + s.skip + `)`
}

// Lost is a key whose owner died.
type Lost struct {
	Key     string // as the store has it: a hash
	Since   time.Time
	Expires time.Time
}

// Lost returns up to n keys whose owner died, for an operator who finds out what became
// of the work, and then calls Forget. The oldest come first.
func (s *Store) Lost(ctx context.Context, n int) ([]Lost, error) {
	rows, err := s.db.QueryContext(ctx, s.lost(), n)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var all []Lost
	for rows.Next() {
		var l Lost
		var since, expires int64
		if err := rows.Scan(&l.Key, &since, &expires); err != nil {
			return nil, fmt.Errorf("sqlstore: %w", err)
		}
		l.Since, l.Expires = time.UnixMilli(since), time.UnixMilli(expires)
		all = append(all, l)
	}
	return all, rows.Err()
}

func (s *Store) lost() string {
	return `SELECT key, leased, expires FROM retrip_idempotency
		WHERE answer IS NULL AND leased <= ` + s.now + ` AND expires > ` + s.now + ` ORDER BY leased LIMIT $1`
}

// Forget removes a key whose owner died, so that the next request with it runs. It
// reports whether there was one.
func (s *Store) Forget(ctx context.Context, key string) (bool, error) {
	n, err := repeat(func() (int64, error) {
		return touched(s.db.ExecContext(ctx, `DELETE FROM retrip_idempotency WHERE key = $1 AND answer IS NULL AND leased <= `+s.now, key))
	})
	return n > 0, err
}
