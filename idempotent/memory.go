package idempotent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Memory returns a Store in this process's memory, for n answers. It is for one
// process, and for tests.
//
// What it promises: work is done once as long as the process lives, the answer is among
// the n used last, and TTL is not over. A key that is being worked is never dropped, nor
// one whose handler panicked, before TTL is over. A restart forgets all; so the key of a
// handler that died with its process runs again. All n answers may be as long as
// MaxAnswer.
//
// Memory panics if n is less than 1.
func Memory(n int) Store {
	if n < 1 {
		panic(fmt.Sprintf("idempotent: Memory(%d): fewer than one answer", n))
	}
	done, _ := simplelru.NewLRU[string, memoryRecord](n, nil)
	return &memory{done: done, claims: make(map[string]memoryClaim)}
}

type memory struct {
	mu     sync.Mutex
	done   *simplelru.LRU[string, memoryRecord]
	claims map[string]memoryClaim // being worked, or lost; never dropped for others
}

type memoryRecord struct {
	Record
	fingerprint string
	expires     time.Time
}

type memoryClaim struct {
	Claim
	leased  time.Time // end of the lease
	expires time.Time
}

func (m *memory) Begin(_ context.Context, key string, c Claim) (Verdict, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.purgeLocked(now)
	if r, ok := m.done.Get(key); ok {
		if now.Before(r.expires) {
			return Verdict{State: Done, Fingerprint: r.fingerprint, Record: r.Record}, nil
		}
		m.done.Remove(key)
	}
	// A claim whose owner lives does not expire, however long its handler takes.
	if have, ok := m.claims[key]; ok && (now.Before(have.expires) || now.Before(have.leased)) {
		switch dead := now.Sub(have.leased); {
		case dead < 0:
			return Verdict{State: Running, Fingerprint: have.Fingerprint}, nil
		case c.TakeOver == 0 || dead < c.TakeOver || have.Fingerprint != c.Fingerprint:
			return Verdict{State: Lost, Fingerprint: have.Fingerprint}, nil
		}
	}
	m.claims[key] = memoryClaim{c, now.Add(c.Lease), now.Add(c.TTL)}
	return Verdict{Fingerprint: c.Fingerprint}, nil
}

// purgeLocked drops some of what has expired: each claim adds one record, so two at a time
// are enough.
func (m *memory) purgeLocked(now time.Time) {
	for range 2 {
		key, r, ok := m.done.GetOldest()
		if !ok || now.Before(r.expires) {
			break
		}
		m.done.Remove(key)
	}
	looked := 0
	for key, c := range m.claims { // in random order
		if !now.Before(c.expires) && !now.Before(c.leased) {
			delete(m.claims, key)
		}
		if looked++; looked == 2 {
			break
		}
	}
}

// ownLocked returns the owner's claim.
func (m *memory) ownLocked(key, owner string) (memoryClaim, error) {
	c, ok := m.claims[key]
	if !ok || c.Owner != owner {
		return c, ErrNotOwner
	}
	return c, nil
}

func (m *memory) Renew(_ context.Context, key, owner string, lease time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.ownLocked(key, owner)
	if err == nil {
		c.leased = time.Now().Add(lease)
		m.claims[key] = c
	}
	return err
}

func (m *memory) Finish(_ context.Context, key, owner string, r Record, ttl time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.ownLocked(key, owner)
	if err == nil {
		delete(m.claims, key)
		m.done.Add(key, memoryRecord{r, c.Fingerprint, time.Now().Add(ttl)})
	}
	return err
}

func (m *memory) Abandon(_ context.Context, key, owner string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.ownLocked(key, owner)
	if err == nil {
		delete(m.claims, key)
	}
	return err
}
