package idempotent

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// A Store remembers keys. Its methods are safe for concurrent use; each is one step that
// no other comes between.
type Store interface {
	// Begin claims the key, or tells what is known of it. A key whose record has
	// expired is not known.
	Begin(ctx context.Context, key string, c Claim) (Verdict, error)

	// Renew says that the owner is alive, for another lease, which ends at once if it is
	// 0. It returns ErrNotOwner if the key is not the owner's any more.
	Renew(ctx context.Context, key, owner string, lease time.Duration) error

	// Finish stores the answer, for ttl from now. ErrNotOwner as with Renew, but a store
	// may take the same answer from its owner again.
	Finish(ctx context.Context, key, owner string, r Record, ttl time.Duration) error

	// Abandon forgets the key, so that the next request with it runs. ErrNotOwner as
	// with Renew, but a store may find no fault with a key that is free.
	Abandon(ctx context.Context, key, owner string) error
}

// ErrNotOwner is returned to a request whose claim expired and was taken over.
var ErrNotOwner = errors.New("idempotent: the key is not this request's any more")

// A Claim is what a request asks for.
type Claim struct {
	Owner       string // names this request, and no other
	Fingerprint string
	Lease       time.Duration // until the owner is taken for dead
	TTL         time.Duration // until the claim is forgotten, if it comes to nothing
	TakeOver    time.Duration // since the owner's death, to claim its key; 0: never
}

// A State is that of a key.
type State uint8

const (
	Claimed State = iota // by this request: it runs
	Running              // claimed by another that is alive
	Lost                 // claimed by another that died: the work may have been done
	Done                 // there is an answer
)

func (s State) String() string {
	switch s {
	case Claimed:
		return "claimed"
	case Running:
		return "running"
	case Lost:
		return "lost"
	case Done:
		return "done"
	}
	return "unknown"
}

// A Verdict is what a Store says of a key.
type Verdict struct {
	State       State
	Fingerprint string // of the request that claimed it
	Record      Record // if State is Done

	// Context, if it is not nil, is the handler's: it carries the transaction that the
	// claim is part of.
	Context context.Context

	// Transactional says that what the handler does counts only when Finish returns
	// nil. Its answer is held back until then; one that is too long to be stored is
	// replaced, and undone.
	Transactional bool
}

// A Record is a stored answer.
type Record struct {
	Status   int
	Header   http.Header
	Body     []byte
	Trailer  http.Header
	Added    http.Header // values that follow those of the replay's own, set above the handler
	Unstored bool        // there was an answer, but it was too long, or was no HTTP response
}
