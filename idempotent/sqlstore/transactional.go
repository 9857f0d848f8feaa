package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/retrip-go/retrip/idempotent"
)

// transactional is a Store whose claims are transactions.
type transactional struct {
	*Store
	mu   sync.Mutex
	open map[string]claimTx // by key; of this process
}

// A claimTx is a handler's transaction, and the claim that it is.
type claimTx struct {
	*sql.Tx
	cancel             context.CancelFunc // ends it, with its connection
	owner, fingerprint string
}

// Transactional returns a store whose claims are transactions that handlers write in:
// see Tx. What a handler writes there and its answer are committed together, or not at
// all; until then the client hears nothing. An answer that is not remembered (see
// idempotent.Remember) undoes what its handler wrote, and so does a panic.
//
// A request whose key is being worked anywhere gets 409, or, if its server died, runs,
// since nothing of the first is there. That is as soon as the database notices: at once
// if a process dies, but a host that falls silent holds its keys for
// idle_in_transaction_session_timeout or tcp_keepalives_idle.
//
// Each handler that runs holds a connection of db. One that is not to be had within 5 s
// makes the answer 503, so let db have more of them than handlers run at once, or let
// these use no other than Tx. The isolation is the database's default. If it aborts the
// transaction (serialization, deadlock, an error that the handler passed over) the answer
// is 503, and nothing was done.
//
// Only PostgreSQL can do it: SQLite has one writer.
func Transactional(s *Store) (idempotent.Store, error) {
	if s.dialect != Postgres {
		return nil, fmt.Errorf("sqlstore: Transactional needs PostgreSQL, not %s", s.dialect)
	}
	return &transactional{Store: s, open: make(map[string]claimTx)}, nil
}

type txKey struct{}

// Tx returns the transaction of a handler's request; nil if there is none, as in a request
// without a key, or whose method is not looked at, or under FailOpen: see
// idempotent.Required.
//
// It must not be committed or rolled back by the handler, whose answer is then replaced
// with 503, and the reason logged: after a rollback the next request runs, after a commit
// the outcome of the first is taken for unknown, as if its server had died.
func Tx(ctx context.Context) *sql.Tx {
	tx, _ := ctx.Value(txKey{}).(*sql.Tx)
	return tx
}

// patience is how long a claim may wait for a connection and for the database.
const patience = 5 * time.Second

func (t *transactional) Begin(ctx context.Context, key string, c idempotent.Claim) (idempotent.Verdict, error) {
	// The database would say the same, but at the price of a connection: when all are
	// with handlers, their duplicates need no more of them.
	t.mu.Lock()
	have, running := t.open[key]
	t.mu.Unlock()
	if running {
		return idempotent.Verdict{State: idempotent.Running, Fingerprint: have.fingerprint}, nil
	}
	// The claim is seen by others only if the handler commits it by itself. Nobody knows
	// then what more it did.
	c.Lease = 0
	limit, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the database or a connection to it was not ready within %v", patience))
	defer cancel()
	return repeat(func() (idempotent.Verdict, error) {
		// Those who come for an answer would be in each other's way at the lock.
		if v, err := t.look(limit, t.db, key); err == nil && v.State != idempotent.Lost {
			return v, nil
		} else if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return v, reason(limit, err)
		}
		v, err := t.begin(ctx, limit, key, c)
		return v, reason(limit, err)
	})
}

// reason is why the context ended, rather than what that made of the step under way.
func reason(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// begin opens a transaction that ends with limit until it is the handler's, whose ctx it
// carries on. It does not end with ctx: what a client that went away asked for is done.
func (t *transactional) begin(ctx, limit context.Context, key string, c idempotent.Claim) (v idempotent.Verdict, err error) {
	txCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(limit, cancel)
	defer func() {
		if err != nil || v.State != idempotent.Claimed {
			stop()
			cancel()
		}
	}()
	tx, err := t.db.BeginTx(txCtx, nil)
	if err != nil {
		return v, err
	}
	defer func() {
		if err != nil || v.State != idempotent.Claimed {
			_ = tx.Rollback()
		}
	}()
	// The lock ends with the transaction, and with its connection. It is of the key in this
	// table: another schema's may have the same.
	var free bool
	if err := tx.QueryRowContext(txCtx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 'retrip_idempotency'::regclass::oid::bigint))`, key).Scan(&free); err != nil {
		return v, err
	}
	if !free {
		// What the other's request was cannot be seen.
		return idempotent.Verdict{State: idempotent.Running, Fingerprint: c.Fingerprint}, nil
	}
	v, err = t.claim(txCtx, tx, key, c)
	if err != nil || v.State != idempotent.Claimed {
		return v, err
	}
	if !stop() {
		return idempotent.Verdict{}, context.Cause(limit)
	}
	v.Context, v.Transactional = context.WithValue(ctx, txKey{}, tx), true
	t.mu.Lock()
	t.open[key] = claimTx{tx, cancel, c.Owner, c.Fingerprint}
	t.mu.Unlock()
	return v, nil
}

// own returns the owner's transaction.
func (t *transactional) own(key, owner string) (claimTx, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tx, ok := t.open[key]; ok && tx.owner == owner {
		return tx, nil
	}
	return claimTx{}, idempotent.ErrNotOwner
}

// end rolls back what was not committed, and forgets the transaction.
func (t *transactional) end(key string, tx claimTx) error {
	err := tx.Rollback()
	tx.cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[key].owner == tx.owner { // else another has claimed the key by now
		delete(t.open, key)
	}
	return err
}

// Renew has nothing to do: a transaction lives as long as its connection.
func (t *transactional) Renew(_ context.Context, key, owner string, _ time.Duration) error {
	_, err := t.own(key, owner)
	return err
}

func (t *transactional) Finish(ctx context.Context, key, owner string, r idempotent.Record, ttl time.Duration) error {
	tx, err := t.own(key, owner)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, tx.cancel)() // Commit and Rollback take no context
	defer func() { _ = t.end(key, tx) }()
	answer, err := r.MarshalBinary()
	if err != nil {
		return err
	}
	n, err := touched(tx.ExecContext(ctx, t.finish()+` WHERE key = $1 AND owner = $2 AND answer IS NULL`, key, owner, answer, ttl.Milliseconds()))
	switch {
	case errors.Is(err, sql.ErrTxDone) || err == nil && n == 0:
		return errEnded
	case err == nil:
		err = tx.Commit()
	}
	if err != nil {
		return fmt.Errorf("sqlstore: the handler's transaction was not committed: %w", err)
	}
	return nil
}

var errEnded = errors.New("sqlstore: the handler committed or rolled back the transaction of Tx itself, so its answer cannot be stored with it")

func (t *transactional) Abandon(ctx context.Context, key, owner string) error {
	tx, err := t.own(key, owner)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, tx.cancel)()
	if err := t.end(key, tx); err != nil {
		return fmt.Errorf("sqlstore: %w", err)
	}
	return nil
}
