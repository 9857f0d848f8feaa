// Package storetest is the contract of an idempotent.Store, as a test that any store can
// run.
package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip/idempotent"
)

// every is what holds for every store.
var every = map[string]func(*testing.T, *suite){
	"a new key is claimed once, whoever asks":  claimedOnce,
	"an answer is given back as it was":        answered,
	"an answer is given to many at once":       answeredToMany,
	"an abandoned key is free":                 abandoned,
	"only the owner can do anything":           owners,
	"an answer that has expired is not known":  expired,
	"a claim does not expire while it is held": held,
	"keys do not mix":                          apart,
}

// Claims runs the contract of a store whose claims are records of their own. open
// returns a store with nothing in it, or one in which other keys are.
func Claims(t *testing.T, open func(t *testing.T) idempotent.Store) {
	run(t, open, every)
	run(t, open, map[string]func(*testing.T, *suite){
		"a dead owner's key is lost":                   lost,
		"a dead owner's key is not known once expired": lostExpired,
		"a renewed claim lives on":                     renewed,
		"a lease of nothing ends at once":              givenUp,
		"a lost key can be taken over":                 takenOver,
		"a lost key is taken over once":                takenOverOnce,
		"an answer is not taken over":                  answerStays,
	})
}

func run(t *testing.T, open func(t *testing.T) idempotent.Store, tests map[string]func(*testing.T, *suite)) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newSuite(t, open(t)))
		})
	}
}

type suite struct {
	t     *testing.T
	store idempotent.Store
	key   string
}

func newSuite(t *testing.T, store idempotent.Store) *suite {
	return &suite{t: t, store: store, key: fmt.Sprintf("%s-%s", t.Name(), rand.Text())}
}

func (s *suite) claim(owner string) idempotent.Claim {
	return idempotent.Claim{Owner: owner, Fingerprint: "print", Lease: time.Minute, TTL: time.Hour}
}

func (s *suite) begin(c idempotent.Claim) idempotent.Verdict {
	s.t.Helper()
	v, err := s.ask(s.key, c)
	if err != nil {
		s.t.Fatalf("Begin: %v", err)
	}
	return v
}

// ask is Begin. The claims that tests leave are given up at their end: they may hold a
// transaction.
func (s *suite) ask(key string, c idempotent.Claim) (idempotent.Verdict, error) {
	v, err := s.store.Begin(context.Background(), key, c)
	if err == nil && v.State == idempotent.Claimed {
		s.t.Cleanup(func() { _ = s.store.Abandon(context.Background(), key, c.Owner) })
	}
	return v, err
}

func (s *suite) state(c idempotent.Claim, want idempotent.State) {
	s.t.Helper()
	if v := s.begin(c); v.State != want {
		s.t.Fatalf("the key is %v, not %v", v.State, want)
	}
}

func (s *suite) no(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *suite) notOwner(err error) {
	s.t.Helper()
	if !errors.Is(err, idempotent.ErrNotOwner) {
		s.t.Fatalf("the error is %v, not ErrNotOwner", err)
	}
}

func (s *suite) finish(owner string, r idempotent.Record) error {
	return s.store.Finish(context.Background(), s.key, owner, r, time.Hour)
}

// until waits for a state that time brings.
func (s *suite) until(c idempotent.Claim, want idempotent.State) {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		v := s.begin(c)
		if v.State == want {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("the key stays %v, and does not become %v", v.State, want)
		}
	}
}

func claimedOnce(_ *testing.T, s *suite) { s.once(s.claim, idempotent.Running) }

// once has 50 ask at once: one gets the key, the others see it in the other state.
func (s *suite) once(claim func(owner string) idempotent.Claim, others idempotent.State) {
	s.t.Helper()
	var claimed, other atomic.Int64
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			v, err := s.ask(s.key, claim(fmt.Sprint("owner-", i)))
			switch {
			case err != nil:
				s.t.Errorf("Begin: %v", err)
			case v.State == idempotent.Claimed:
				claimed.Add(1)
			case v.State == others && v.Fingerprint == "print":
				other.Add(1)
			default:
				s.t.Errorf("%+v", v)
			}
		})
	}
	all.Wait()
	if claimed.Load() != 1 || other.Load() != 49 {
		s.t.Fatalf("%d claimed it, %d saw it %v", claimed.Load(), other.Load(), others)
	}
}

func answered(t *testing.T, s *suite) {
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	for i, want := range []idempotent.Record{
		{Status: 201, Header: http.Header{"Set-Cookie": {"a=1; expires=Mon, 21 Oct 2030 07:28:00 GMT", "b=2"}, "X-Empty": {""}}, Body: binary},
		{Status: 204, Header: http.Header{}},
		{Status: 200, Header: http.Header{"X-Latin": {"caf\xe9", "\xff\xfe"}, "X-Utf8": {"caf\u00e9"}, "X-Json": {`"<&>\n`}}, Body: []byte("\n{}\n")},
		{Status: 200, Header: http.Header{}, Body: bytes.Repeat(binary, 1<<12)}, // 1 MiB
		{Status: 200, Header: http.Header{"A": {"b"}}, Body: []byte("x"), Trailer: http.Header{"T": {"1", "2"}}, Added: http.Header{"Set-Cookie": {"a=\xe9", "b"}}},
		{Status: 200, Unstored: true, Header: http.Header{}},
	} {
		s.key = fmt.Sprint(s.key, i)
		s.state(s.claim("one"), idempotent.Claimed)
		s.no(s.finish("one", want))
		v := s.begin(s.claim("two"))
		if v.State != idempotent.Done || v.Fingerprint != "print" {
			t.Fatalf("%+v", v)
		}
		got := v.Record
		if got.Status != want.Status || got.Unstored != want.Unstored || string(got.Body) != string(want.Body) ||
			!same(got.Header, want.Header) || !same(got.Trailer, want.Trailer) || !same(got.Added, want.Added) {
			t.Fatalf("the record is %+v, not %+v", got, want)
		}
		s.state(s.claim("three"), idempotent.Done)
		want.Status++
		s.notOwner(s.finish("one", want)) // it is not a claim any more
	}
}

func same(a, b http.Header) bool { return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b) }

func answeredToMany(t *testing.T, s *suite) {
	s.state(s.claim("one"), idempotent.Claimed)
	s.no(s.finish("one", idempotent.Record{Status: 201, Header: http.Header{"A": {"b"}}, Body: []byte("answer")}))
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			v, err := s.ask(s.key, s.claim(fmt.Sprint("owner-", i)))
			if err != nil || v.State != idempotent.Done || string(v.Record.Body) != "answer" {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
	all.Wait()
}

func abandoned(_ *testing.T, s *suite) {
	s.state(s.claim("one"), idempotent.Claimed)
	s.no(s.store.Abandon(context.Background(), s.key, "one"))
	s.state(s.claim("two"), idempotent.Claimed)
}

func owners(_ *testing.T, s *suite) {
	ctx := context.Background()
	s.state(s.claim("one"), idempotent.Claimed)
	s.notOwner(s.store.Renew(ctx, s.key, "two", time.Minute))
	s.notOwner(s.finish("two", idempotent.Record{Status: 200}))
	s.notOwner(s.store.Abandon(ctx, s.key, "two"))
	s.state(s.claim("two"), idempotent.Running)
	s.no(s.finish("one", idempotent.Record{Status: 200}))
	s.notOwner(s.store.Renew(ctx, s.key, "one", time.Minute))
	s.notOwner(s.store.Abandon(ctx, s.key, "one"))
	s.state(s.claim("two"), idempotent.Done)
}

func lost(t *testing.T, s *suite) {
	c := s.claim("one")
	c.Lease = 20 * time.Millisecond
	s.state(c, idempotent.Claimed)
	s.until(s.claim("two"), idempotent.Lost)
	if v := s.begin(s.claim("two")); v.State != idempotent.Lost || v.Fingerprint != "print" {
		t.Fatalf("%+v", v)
	}
	s.no(s.finish("one", idempotent.Record{Status: 200})) // it was only slow
	s.state(s.claim("two"), idempotent.Done)
}

func renewed(_ *testing.T, s *suite) {
	c := s.claim("one")
	c.Lease = 20 * time.Millisecond
	s.state(c, idempotent.Claimed)
	s.until(s.claim("two"), idempotent.Lost)
	s.no(s.store.Renew(context.Background(), s.key, "one", time.Minute))
	s.state(s.claim("two"), idempotent.Running)
}

// givenUp is what the handler's panic makes of a claim.
func givenUp(_ *testing.T, s *suite) {
	ctx := context.Background()
	s.state(s.claim("one"), idempotent.Claimed)
	s.notOwner(s.store.Renew(ctx, s.key, "two", 0))
	s.state(s.claim("two"), idempotent.Running)
	s.no(s.store.Renew(ctx, s.key, "one", 0))
	s.state(s.claim("two"), idempotent.Lost)
	other := s.claim("two")
	other.TakeOver = time.Nanosecond
	s.until(other, idempotent.Claimed)
}

func takenOver(_ *testing.T, s *suite) {
	c := s.claim("one")
	c.Lease = 20 * time.Millisecond
	s.state(c, idempotent.Claimed)
	other := s.claim("two")
	s.until(other, idempotent.Lost)
	other.TakeOver, other.Fingerprint = time.Nanosecond, "another request's"
	s.state(other, idempotent.Lost)
	other = s.claim("two")
	other.TakeOver = time.Hour
	s.state(other, idempotent.Lost)
	other.TakeOver = 10 * time.Millisecond
	s.until(other, idempotent.Claimed)
	s.notOwner(s.finish("one", idempotent.Record{Status: 200}))
	s.no(s.finish("two", idempotent.Record{Status: 200}))
}

// takenOverOnce has all come when the owner is dead: the first is alive then.
func takenOverOnce(_ *testing.T, s *suite) {
	c := s.claim("dead")
	c.Lease = 20 * time.Millisecond
	s.state(c, idempotent.Claimed)
	s.until(s.claim("two"), idempotent.Lost)
	s.once(func(owner string) idempotent.Claim {
		c := s.claim(owner)
		c.TakeOver = time.Nanosecond
		return c
	}, idempotent.Running)
}

// answerStays has an answer whose owner's lease has ended long since: it is not lost.
func answerStays(_ *testing.T, s *suite) {
	c := s.claim("one")
	c.Lease = 20 * time.Millisecond
	s.state(c, idempotent.Claimed)
	s.until(s.claim("two"), idempotent.Lost)
	s.no(s.finish("one", idempotent.Record{Status: 200}))
	other := s.claim("two")
	other.TakeOver = time.Nanosecond
	s.state(other, idempotent.Done)
}

func expired(_ *testing.T, s *suite) {
	s.state(s.claim("one"), idempotent.Claimed)
	s.no(s.store.Finish(context.Background(), s.key, "one", idempotent.Record{Status: 200}, 30*time.Millisecond))
	other := s.claim("two")
	other.Fingerprint = "another request's"
	s.until(other, idempotent.Claimed)
	s.no(s.finish("two", idempotent.Record{Status: 201}))
	s.state(s.claim("three"), idempotent.Done)
}

// held has a handler that takes longer than answers are kept.
func held(_ *testing.T, s *suite) {
	c := s.claim("one")
	c.TTL = 20 * time.Millisecond
	s.state(c, idempotent.Claimed)
	time.Sleep(3 * c.TTL)
	s.state(s.claim("two"), idempotent.Running)
	s.no(s.store.Renew(context.Background(), s.key, "one", time.Minute))
	time.Sleep(3 * c.TTL)
	s.state(s.claim("two"), idempotent.Running)
	s.no(s.finish("one", idempotent.Record{Status: 200}))
	s.state(s.claim("two"), idempotent.Done)
}

func lostExpired(_ *testing.T, s *suite) {
	c := s.claim("one")
	c.TTL, c.Lease = 30*time.Millisecond, 10*time.Millisecond
	s.state(c, idempotent.Claimed)
	s.until(s.claim("two"), idempotent.Claimed)
	s.notOwner(s.finish("one", idempotent.Record{Status: 200}))
}

func apart(_ *testing.T, s *suite) {
	s.state(s.claim("one"), idempotent.Claimed)
	first := s.key
	s.key += "-other"
	s.state(s.claim("two"), idempotent.Claimed)
	s.no(s.finish("two", idempotent.Record{Status: 200}))
	s.key = first
	s.state(s.claim("three"), idempotent.Running)
}
