package deliver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/rivermigrate"
)

// schema is what lies beside River's tables, in SQL that both engines take. Every
// statement can be run again: River's own migrations may rebuild its table, and with
// it our indexes are gone.
var schema = []string{
	`CREATE TABLE IF NOT EXISTS retrip_destination (
		id            text PRIMARY KEY,
		url           text NOT NULL,
		secrets       text NOT NULL,            -- JSON
		schedule      text NOT NULL,
		timeout       bigint NOT NULL,
		at_once       bigint NOT NULL,
		disabled      text NOT NULL DEFAULT '', -- why
		held_until    bigint NOT NULL DEFAULT 0,
		failures      bigint NOT NULL DEFAULT 0, -- in a row
		trips         bigint NOT NULL DEFAULT 0, -- in a row
		paused_until  bigint NOT NULL DEFAULT 0,
		paused_why    text NOT NULL DEFAULT '',
		tripped_by    text NOT NULL DEFAULT '',  -- which attempt
		probe_until   bigint NOT NULL DEFAULT 0,
		alerted_at    bigint NOT NULL DEFAULT 0,
		created_at    bigint NOT NULL,
		updated_at    bigint NOT NULL
	)`,
	`CREATE TABLE IF NOT EXISTS retrip_minute (
		destination text NOT NULL,
		minute      bigint NOT NULL,
		attempts    bigint NOT NULL,
		failed      bigint NOT NULL,
		first_try   bigint NOT NULL,
		recovered   bigint NOT NULL,
		dead        bigint NOT NULL,
		retries     bigint NOT NULL,
		PRIMARY KEY (destination, minute)
	)`,
	`CREATE TABLE IF NOT EXISTS retrip_replay (
		delivery   bigint PRIMARY KEY,
		replay     bigint NOT NULL,
		created_at bigint NOT NULL
	)`,
	`CREATE INDEX IF NOT EXISTS retrip_minute_of_all ON retrip_minute (minute)`,
	`CREATE INDEX IF NOT EXISTS retrip_event ON river_job ((args->>'event'), id) WHERE kind = 'retrip_delivery'`,
	`CREATE INDEX IF NOT EXISTS retrip_dead ON river_job (finalized_at, id) WHERE ` + isDead,
	`CREATE INDEX IF NOT EXISTS retrip_dead_by_id ON river_job (id, finalized_at) WHERE ` + isDead,
	`CREATE INDEX IF NOT EXISTS retrip_dead_of ON river_job ((args->>'destination'), id, finalized_at) WHERE ` + isDead,
	`CREATE INDEX IF NOT EXISTS retrip_pending ON river_job (scheduled_at, id) WHERE ` + isPending,
}

// jobsBy is the job table, to be gone through by that index of ours. SQLite has to be
// told: without statistics it takes another, and reads every job.
func (c *core) jobsBy(index string) string {
	if c.engine == sqlite {
		return "river_job INDEXED BY " + index
	}
	return "river_job"
}

// migrate brings the database up to date. Several processes may do so at once: the
// first takes a lock, the others find nothing left to do. If there is nothing to do it
// takes no lock: making an index that is there would wait for every open transaction.
func migrate[T any](ctx context.Context, e *engine[T], driver, reading riverdriver.Driver[T]) error {
	if upToDate(ctx, e, reading) == nil {
		return nil
	}
	m, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return err
	}
	tx, end, err := e.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if e.name == postgres {
		// Some of River's migrations need what earlier ones committed, so they run beside
		// the transaction that holds the lock.
		if _, err = e.session(tx).exec(ctx, `SELECT pg_advisory_xact_lock(7302181)`); err == nil {
			_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
		}
	} else {
		//lint:ignore SA1019 It is for PostgreSQL that they must not share a transaction; here it is the lock.
		_, err = m.MigrateTx(ctx, tx, rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		return fmt.Errorf("deliver: migrating the queue: %w", err)
	}
	for _, statement := range schema {
		if _, err := e.session(tx).exec(ctx, statement); err != nil {
			return fmt.Errorf("deliver: migrating: %w", err)
		}
	}
	return e.commit(ctx, tx)
}

// upToDate says whether the database is as migrate leaves it. It only reads.
func upToDate[T any](ctx context.Context, e *engine[T], driver riverdriver.Driver[T]) error {
	m, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return err
	}
	state, err := m.Validate(ctx, nil)
	switch {
	case err != nil:
		return fmt.Errorf("deliver: %w", err)
	case !state.OK:
		return fmt.Errorf("deliver: %w", ErrNotMigrated)
	}
	exists := `SELECT 1 FROM pg_class WHERE oid = to_regclass($1)`
	if e.name == sqlite {
		exists = `SELECT 1 FROM sqlite_master WHERE name = $1`
	}
	for _, statement := range schema {
		name := strings.Fields(statement)[5] // CREATE … IF NOT EXISTS name
		var found int
		err := one(ctx, e.reader, exists, []any{name}, &found)
		if errors.Is(err, ErrNotFound) {
			return fmt.Errorf("deliver: %w: there is no %s", ErrNotMigrated, name)
		}
		if err != nil {
			return fmt.Errorf("deliver: %w", err)
		}
	}
	return nil
}
