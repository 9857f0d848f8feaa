package deliver_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

const orders = `CREATE TABLE orders (id text PRIMARY KEY)`

// order is the event of an order that the caller writes down beside it.
func order(id string) deliver.Event {
	return deliver.Event{ID: id, To: []string{"acme"}, Payload: []byte(id)}
}

// ordered says whether the order's row is there.
func (p place) ordered(t *testing.T, id string) bool {
	return p.count(t, `SELECT count(*) FROM orders WHERE id = '`+id+`'`) == 1
}

func TestTheOutboxSendsExactlyWhatIsCommitted(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		r := receive(t, nil)
		put(t, c, "acme", r.URL)
		p.exec(t, orders)
		require.NoError(t, c.Start(t.Context()))

		undone := errors.New("undone")
		for _, end := range []struct {
			id  string
			err error
		}{{"rolled-back", undone}, {"committed", nil}} {
			err := inTx(t.Context(), c, order(end.id), func(exec func(string, ...any) error) error {
				if err := exec(`INSERT INTO orders (id) VALUES ($1)`, end.id); err != nil {
					return err
				}
				// Nobody sees either before the commit.
				_, err := c.Status(t.Context(), end.id)
				require.ErrorIs(t, err, deliver.ErrNotFound)
				require.False(t, p.ordered(t, end.id))
				return end.err
			})
			require.ErrorIs(t, err, end.err)
		}

		until(t, "delivery", func() bool { return state(t, c, "committed") == deliver.StateDelivered })
		require.True(t, p.ordered(t, "committed"))
		_, err := c.Status(t.Context(), "rolled-back")
		require.ErrorIs(t, err, deliver.ErrNotFound)
		require.False(t, p.ordered(t, "rolled-back"))
		require.Zero(t, r.count("rolled-back"))
		require.Equal(t, 1, r.count("committed"))
	})
}

func TestAProcessKilledBeforeTheCommitSendsNothing(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		r := receive(t, nil)
		put(t, c, "acme", r.URL)
		p.exec(t, orders)
		child := p.process(t, task{Do: "outbox", Prefix: "lost"})
		child.until(t, "inserted")
		child.end()

		// What comes after it works: the database kept no lock, and no trace.
		require.NoError(t, c.Start(t.Context()))
		until(t, "the lock's end", func() bool { _, err := c.Send(t.Context(), order("next")); return err == nil })
		until(t, "delivery", func() bool { return state(t, c, "next") == deliver.StateDelivered })
		_, err := c.Status(t.Context(), "lost")
		require.ErrorIs(t, err, deliver.ErrNotFound)
		require.False(t, p.ordered(t, "lost"))
		require.Zero(t, r.count("lost"))
	})
}

func TestAConflictInTheOutboxCanBeRolledBackWhole(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		put(t, c, "acme", "https://acme.example")
		put(t, c, "other", "https://other.example")
		_, err := c.Send(t.Context(), order("one"))
		require.NoError(t, err)
		again := order("one")
		again.To, again.Payload = []string{"other", "acme"}, []byte("two")
		err = inTx(t.Context(), c, again, func(func(string, ...any) error) error { return nil })
		require.EqualError(t, err, "deliver: event one was sent to acme before with another payload")
		s, err := c.Status(t.Context(), "one")
		require.NoError(t, err)
		require.Len(t, s, 1, "the other destination got nothing")
	})
}

// On SQLite the caller's transaction has the only connection that writes.
func TestASendInsideATransactionOfTheCallersFailsInsteadOfHanging(t *testing.T) {
	t.Parallel()
	c, err := deliver.OpenSQLite(filepath.Join(t.TempDir(), "test.db"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	put(t, c, "acme", "https://acme.example")
	err = c.Transaction(t.Context(), func(tx *sql.Tx) error {
		start := time.Now()
		_, err := c.Send(t.Context(), order("outside"))
		require.ErrorContains(t, err, "inside a transaction use SendTx")
		require.Less(t, time.Since(start), 20*time.Second)
		_, err = c.SendTx(t.Context(), tx, order("inside"))
		return err
	})
	require.NoError(t, err)
	require.Equal(t, deliver.StateWaiting, state(t, c, "inside"))
	_, err = c.Status(t.Context(), "outside")
	require.ErrorIs(t, err, deliver.ErrNotFound)
	_, err = c.Send(t.Context(), order("afterwards"))
	require.NoError(t, err)
}

// PostgreSQL has other connections: there a Send inside of one is a transaction of its own.
func TestASendBesideATransactionOfTheCallersIsItsOwnOnPostgres(t *testing.T) {
	t.Parallel()
	c, err := deliver.OpenPostgres(t.Context(), postgresDatabase(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	put(t, c, "acme", "https://acme.example")
	undone := errors.New("undone")
	err = c.Transaction(t.Context(), func(pgx.Tx) error {
		_, err := c.Send(context.Background(), order("outside"))
		require.NoError(t, err)
		return undone
	})
	require.ErrorIs(t, err, undone)
	require.Equal(t, deliver.StateWaiting, state(t, c, "outside"))
}
