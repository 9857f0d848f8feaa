package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"

	"github.com/retrip-go/retrip/deliver"
	"github.com/retrip-go/retrip/deliver/panel"
	"github.com/spf13/cobra"
)

// A store is a deliver.Client on either engine.
type store interface {
	panel.Source
	Status(ctx context.Context, eventID string) ([]deliver.Status, error)
	Send(ctx context.Context, e deliver.Event) (deliver.Receipt, error)
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Close() error
}

var (
	postgres = regexp.MustCompile(`^(postgres|postgresql)://|^[a-z_]+ *=`) // a URL, or host=… dbname=…
	scheme   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+:`)             // of two letters: one is a drive
)

// open opens the database that --db names. None of its errors may repeat the name: it
// may hold a password, also when it is mistyped.
func (a *app) open(ctx context.Context, opts ...deliver.Option) (store, error) {
	opts = append([]deliver.Option{deliver.WithLogger(slog.New(slog.NewTextHandler(a.err, nil)))}, opts...)
	switch {
	case a.db == "":
		return nil, misuse("no database: set --db or RETRIP_DB")
	case postgres.MatchString(a.db):
		return wrap(deliver.OpenPostgres(ctx, a.db, opts...))
	case scheme.MatchString(a.db):
		return nil, misuse("--db is neither a file nor postgres://…; ./ before a file's name makes it one")
	}
	return wrap(deliver.OpenSQLite(a.db, opts...))
}

// wrap keeps a nil pointer from becoming a store.
func wrap[T any](c *deliver.Client[T], err error) (store, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// existing opens a database that must be there and up to date: looking at the wrong one
// must not put tables into it.
func (a *app) existing(ctx context.Context, opts ...deliver.Option) (store, error) {
	if a.db != "" && !postgres.MatchString(a.db) && !scheme.MatchString(a.db) {
		if _, err := os.Stat(a.db); errors.Is(err, os.ErrNotExist) {
			return nil, errors.New("the database file is not there: retrip migrate makes one")
		}
	}
	s, err := a.open(ctx, append(opts, deliver.WithoutMigration())...)
	if errors.Is(err, deliver.ErrNotMigrated) {
		err = errors.New("the database is not up to date, or not one of retrip's: if it is to be, run retrip migrate")
	}
	return s, err
}

// with runs do with the database open.
func (a *app) with(do func(ctx context.Context, s store, args []string) error) func(*cobra.Command, []string) error {
	return a.withOptions(nil, do)
}

// withOptions takes options that are known once the flags are.
func (a *app) withOptions(options func() ([]deliver.Option, error), do func(ctx context.Context, s store, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		var opts []deliver.Option
		if options != nil {
			var err error
			if opts, err = options(); err != nil {
				return err
			}
		}
		s, err := a.existing(cmd.Context(), opts...)
		if err != nil {
			return err
		}
		return errors.Join(do(cmd.Context(), s, args), s.Close())
	}
}

func (a *app) migrate() *cobra.Command {
	return &cobra.Command{
		Use:               "migrate",
		Short:             "Make the database, or bring it up to date",
		Example:           "  retrip --db webhooks.db migrate",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.open(cmd.Context())
			if err != nil {
				return err
			}
			return errors.Join(a.said(map[string]bool{"up_to_date": true}, "the database is up to date"), s.Close())
		},
	}
}
