package deliver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// A session runs SQL that both engines understand: $1 placeholders, text and bigint
// columns, times in milliseconds.
type session interface {
	exec(ctx context.Context, query string, args ...any) (rows int64, err error)
	query(ctx context.Context, query string, args []any, scan func(scan func(...any) error) error) error
}

// A txn is one transaction, in which jobs can be queued too.
type txn interface {
	session
	insert(ctx context.Context, args river.JobArgs, opts *river.InsertOpts) (*rivertype.JobInsertResult, error)
	insertMany(ctx context.Context, params []river.InsertManyParams) ([]*rivertype.JobInsertResult, error)
}

// A store is an engine without the type of its transactions.
type store interface {
	read() session
	write(ctx context.Context, do func(txn) error) error
	list(ctx context.Context, params *river.JobListParams) ([]*rivertype.JobRow, error)
	get(ctx context.Context, id int64) (*rivertype.JobRow, error)
	remove(ctx context.Context, params *river.JobDeleteManyParams) (int, error)
	stamp(t time.Time) any // as the job table keeps times
}

// An engine is a database with River on it. T is the type of its transactions.
type engine[T any] struct {
	name    string
	work    *river.Client[T] // over the writing handle
	look    *river.Client[T] // over the reading handle
	reader  session
	session func(T) session
	begin   func(context.Context) (tx T, end func(), err error) // end rolls back, unless it was committed
	commit  func(context.Context, T) error
	times   func(time.Time) any
	close   func() error
}

func (e *engine[T]) read() session         { return e.reader }
func (e *engine[T]) stamp(t time.Time) any { return e.times(t) }

type engineTx[T any] struct {
	session
	e  *engine[T]
	tx T
}

func (t engineTx[T]) insert(ctx context.Context, args river.JobArgs, opts *river.InsertOpts) (*rivertype.JobInsertResult, error) {
	return t.e.work.InsertTx(ctx, t.tx, args, opts)
}

func (t engineTx[T]) insertMany(ctx context.Context, params []river.InsertManyParams) ([]*rivertype.JobInsertResult, error) {
	return t.e.work.InsertManyTx(ctx, t.tx, params)
}

func (e *engine[T]) in(tx T) txn { return engineTx[T]{e.session(tx), e, tx} }

func (e *engine[T]) write(ctx context.Context, do func(txn) error) error {
	tx, end, err := e.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := do(e.in(tx)); err != nil {
		return err
	}
	return e.commit(ctx, tx)
}

func (e *engine[T]) list(ctx context.Context, params *river.JobListParams) ([]*rivertype.JobRow, error) {
	res, err := e.look.JobList(ctx, params)
	if err != nil {
		return nil, err
	}
	return res.Jobs, nil
}

func (e *engine[T]) get(ctx context.Context, id int64) (*rivertype.JobRow, error) {
	row, err := e.look.JobGet(ctx, id)
	if errors.Is(err, rivertype.ErrNotFound) {
		return nil, fmt.Errorf("deliver: delivery %d: %w", id, ErrNotFound)
	}
	return row, err
}

func (e *engine[T]) remove(ctx context.Context, params *river.JobDeleteManyParams) (int, error) {
	res, err := e.work.JobDeleteMany(ctx, params)
	if err != nil {
		return 0, err
	}
	return len(res.Jobs), nil
}

// sqlSession is a session over database/sql.
type sqlSession struct {
	db interface {
		ExecContext(context.Context, string, ...any) (sql.Result, error)
		QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	}
}

func (s sqlSession) exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := s.db.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (s sqlSession) query(ctx context.Context, query string, args []any, scan func(func(...any) error) error) error {
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := scan(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// pgSession is a session over pgx.
type pgSession struct {
	db interface {
		Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
		Query(context.Context, string, ...any) (pgx.Rows, error)
	}
}

func (s pgSession) exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := s.db.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (s pgSession) query(ctx context.Context, query string, args []any, scan func(func(...any) error) error) error {
	rows, err := s.db.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// one reads a query's only row; ErrNotFound if there is none.
func one(ctx context.Context, s session, query string, args []any, into ...any) error {
	found := false
	err := s.query(ctx, query, args, func(scan func(...any) error) error {
		found = true
		return scan(into...)
	})
	if err == nil && !found {
		err = ErrNotFound
	}
	return err
}
