package deliver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/riverqueue/river/riverdriver/riversqlite"
	_ "modernc.org/sqlite" // the driver
)

// sqliteBusy is how long a statement waits for another process that writes, and a
// transaction of ours for one of the caller's.
const sqliteBusy = 5 * time.Second

// OpenSQLite opens the database in the file at path, which is made and migrated as
// needed. It needs nothing installed, survives a crash of the process and of the
// machine (WAL, synchronous=FULL), is readable by its owner alone, and serves any number of processes on one machine.
//
// SQLite has one writer at a time, so a transaction of the caller's (Transaction) must end
// before anything else is written: a Send inside of one fails with a clear error
// after 5 s; that is what SendTx is for.
func OpenSQLite(path string, opts ...Option) (*Client[*sql.Tx], error) {
	if path == "" || strings.Contains(path, ":memory:") {
		return nil, fmt.Errorf("deliver: OpenSQLite(%q): a file is needed: what is only in memory is not durable", path)
	}
	// The file holds secrets. SQLite gives its companions, -wal and -shm, the same mode.
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		_ = f.Close() // what is wrong with it SQLite says better
	}
	ctx := context.Background()
	db, err := sql.Open("sqlite", sqliteURI(path, "rwc", "immediate"))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	reader, err := sql.Open("sqlite", sqliteURI(path, "ro", "deferred"))
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	reader.SetMaxOpenConns(4)
	e := &engine[*sql.Tx]{
		name:    sqlite,
		reader:  sqlSession{reader},
		session: func(tx *sql.Tx) session { return sqlSession{tx} },
		begin: func(ctx context.Context) (*sql.Tx, func(), error) {
			// The pool would wait as long as ctx does, for ever if it is the caller who holds
			// the only connection. A transaction ends with its context, so the time limit is
			// a cancellation that is called off.
			ctx, cancel := context.WithCancelCause(ctx)
			timer := time.AfterFunc(sqliteBusy, func() { cancel(errSQLiteBusy) })
			tx, err := db.BeginTx(ctx, nil)
			if !timer.Stop() { // too late even if it began: the cancellation takes it along
				if err == nil {
					_ = tx.Rollback()
				}
				err = errSQLiteBusy
			}
			if err != nil {
				cancel(nil)
				return nil, nil, err
			}
			return tx, func() { _ = tx.Rollback(); cancel(nil) }, nil
		},
		commit: func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		times:  func(t time.Time) any { return t.UTC().Round(time.Millisecond).Format("2006-01-02 15:04:05.000") },
		close:  func() error { return errors.Join(reader.Close(), db.Close()) },
	}
	return open(ctx, e, riversqlite.New(db), riversqlite.New(reader), opts)
}

var errSQLiteBusy = fmt.Errorf("deliver: SQLite could not be written to for %v: a transaction of this process or another is open; inside a transaction use SendTx", sqliteBusy)

func sqliteURI(path, mode, lock string) string {
	q := url.Values{"mode": {mode}, "_txlock": {lock}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", sqliteBusy.Milliseconds()), "synchronous(FULL)", "foreign_keys(1)",
	}}
	if mode != "ro" {
		q["_pragma"] = append(q["_pragma"], "journal_mode(WAL)")
	}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}
