package deliver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

// OpenPostgres opens the PostgreSQL database that dsn names, in the form that pgx
// reads, and migrates it as needed. Any number of processes on any number of machines
// may share it. Without pool_max_conns in dsn there are up to 10 connections; with it at
// least 2 are needed.
func OpenPostgres(ctx context.Context, dsn string, opts ...Option) (*Client[pgx.Tx], error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("deliver: OpenPostgres: the connection string cannot be read") // err repeats it, password and all
	}
	if own, err := pgconn.ParseConfig(dsn); err != nil || own.RuntimeParams["pool_max_conns"] == "" {
		config.MaxConns = 10
	}
	if config.MaxConns < 2 {
		return nil, errors.New("deliver: OpenPostgres: pool_max_conns must be at least 2: one connection listens")
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	e := &engine[pgx.Tx]{
		name:    postgres,
		reader:  pgSession{pool},
		session: func(tx pgx.Tx) session { return pgSession{tx} },
		begin: func(ctx context.Context) (pgx.Tx, func(), error) {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return nil, nil, err
			}
			return tx, func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
				defer cancel()
				_ = tx.Rollback(ctx)
			}, nil
		},
		commit: func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		times:  func(t time.Time) any { return t.UTC() },
		close:  func() error { pool.Close(); return nil },
	}
	return open(ctx, e, riverpgxv5.New(pool), riverpgxv5.New(pool), opts)
}
