package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/retrip-go/retrip/idempotent"
)

// A Ledger is what a transactional store is tried with.
type Ledger struct {
	Store idempotent.Store
	Write func(ctx context.Context, entry string) error        // in the transaction of a handler's context
	Count func(ctx context.Context, entry string) (int, error) // of what was written and committed
}

// Transactions runs the contract of a store whose claims are the transactions that
// handlers write in. open is as with Claims.
func Transactions(t *testing.T, open func(t *testing.T) Ledger) {
	run(t, func(t *testing.T) idempotent.Store { return open(t).Store }, every)
	for name, test := range map[string]func(book){
		"a claim carries its transaction":              carries,
		"an answer comes with what was written":        finishes,
		"what was written goes with an abandoned key":  rollsBack,
		"what a client that went away asked for stays": outlives,
		"a claim needs no lease":                       unleased,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := open(t)
			test(book{newSuite(t, l.Store), l})
		})
	}
}

// A book is a ledger with an entry of the key's name.
type book struct {
	*suite
	l Ledger
}

func (b book) claimed(ctx context.Context, owner string, lease time.Duration) idempotent.Verdict {
	b.t.Helper()
	c := b.claim(owner)
	c.Lease = lease
	v, err := b.store.Begin(ctx, b.key, c)
	b.no(err)
	if v.State != idempotent.Claimed || !v.Transactional || v.Context == nil {
		b.t.Fatalf("%+v is no claim with a transaction", v)
	}
	return v
}

func (b book) write(v idempotent.Verdict) {
	b.t.Helper()
	b.no(b.l.Write(v.Context, b.key))
}

func (b book) holds(want int) {
	b.t.Helper()
	n, err := b.l.Count(context.Background(), b.key)
	b.no(err)
	if n != want {
		b.t.Fatalf("the entry is there %d times, not %d", n, want)
	}
}

type of struct{}

func carries(b book) {
	v := b.claimed(context.WithValue(context.Background(), of{}, "the request"), "one", time.Minute)
	if v.Context.Value(of{}) != "the request" {
		b.t.Fatal("the handler's context is not one of the request's")
	}
	b.no(b.store.Abandon(context.Background(), b.key, "one"))
}

func finishes(b book) {
	v := b.claimed(context.Background(), "one", time.Minute)
	b.write(v)
	b.holds(0)
	b.notOwner(b.finish("two", idempotent.Record{Status: 200}))
	b.no(b.finish("one", idempotent.Record{Status: 200}))
	b.holds(1)
	b.state(b.claim("two"), idempotent.Done)
}

func rollsBack(b book) {
	v := b.claimed(context.Background(), "one", time.Minute)
	b.write(v)
	b.notOwner(b.store.Abandon(context.Background(), b.key, "two"))
	b.no(b.store.Abandon(context.Background(), b.key, "one"))
	b.notOwner(b.finish("one", idempotent.Record{Status: 200}))
	b.holds(0)
	b.write(b.claimed(context.Background(), "two", time.Minute))
	b.no(b.finish("two", idempotent.Record{Status: 200}))
	b.holds(1)
}

func outlives(b book) {
	ctx, gone := context.WithCancel(context.Background())
	b.write(b.claimed(ctx, "one", time.Minute))
	gone()
	b.no(b.finish("one", idempotent.Record{Status: 200}))
	b.holds(1)
	b.state(b.claim("two"), idempotent.Done)
}

func unleased(b book) {
	b.write(b.claimed(context.Background(), "one", time.Millisecond))
	time.Sleep(10 * time.Millisecond)
	other := b.claim("two")
	other.TakeOver = time.Nanosecond
	b.state(other, idempotent.Running)
	b.no(b.finish("one", idempotent.Record{Status: 200}))
	b.holds(1)
}
