package deliver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// An Event is what happened, for those who want to know.
type Event struct {
	// ID identifies the event: it goes out as webhook-id and Idempotency-Key with
	// every attempt and replay. The same id sent again to the same destination is one
	// delivery. Empty: a new UUID. It must be printable ASCII, without a full stop or a
	// space, and no longer than 255 bytes.
	ID string

	To          []string // the ids of its destinations, at least one
	Payload     []byte   // sent as it is, byte for byte
	ContentType string   // of the payload; empty: application/json
}

// Envelope returns an event whose payload is JSON that carries the id as well as data,
// as Standard Webhooks recommends: {"id": …, "type": …, "timestamp": …, "data": …}.
func Envelope(kind string, data any, to ...string) (Event, error) {
	id := uuid.NewString()
	payload, err := json.Marshal(struct {
		ID        string    `json:"id"`
		Type      string    `json:"type"`
		Timestamp time.Time `json:"timestamp"`
		Data      any       `json:"data"`
	}{id, kind, time.Now().UTC(), data})
	if err != nil {
		return Event{}, fmt.Errorf("deliver: Envelope: %w", err)
	}
	return Event{ID: id, To: to, Payload: payload}, nil
}

// A Receipt says what Send wrote down.
type Receipt struct {
	EventID    string
	Deliveries []Delivery // in the order of Event.To
}

// A Delivery is one event on its way to one destination.
type Delivery struct {
	ID          int64
	Destination string
	Duplicate   bool // it was there already
}

// A ConflictError says that an event id was sent before with something else in it.
type ConflictError struct{ EventID, Destination string }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("deliver: event %s was sent to %s before with another payload", e.EventID, e.Destination)
}

// delivery is the job. What is unique is what makes it one delivery.
type delivery struct {
	Event       string  `json:"event" river:"unique"`
	Destination string  `json:"destination" river:"unique"`
	Replays     int64   `json:"replays,omitempty" river:"unique"` // the delivery that this is a replay of
	Forced      string  `json:"forced,omitempty" river:"unique"`  // tells forced replays apart
	Payload     []byte  `json:"payload"`                          // base64: the engines rewrite JSON
	ContentType string  `json:"content_type,omitempty"`
	Parked      *parked `json:"parked,omitempty"`

	// Planned is when a replay at a rate is to be sent first: its age counts from then.
	Planned time.Time `json:"planned,omitzero"`

	next time.Time // when this run asks for the next attempt; zero: by the schedule
}

// age is how long it has been due.
func (d delivery) age(created, now time.Time) time.Duration {
	if d.Planned.After(created) {
		created = d.Planned
	}
	return now.Sub(created)
}

func (delivery) Kind() string { return deliveryKind }

const (
	deliveryKind = "retrip_delivery"
	jsonType     = "application/json" // of a payload that does not say
)

// states are all there are: a delivery is unique for as long as it is kept.
var states = []rivertype.JobState{
	rivertype.JobStateAvailable, rivertype.JobStateCancelled, rivertype.JobStateCompleted, rivertype.JobStateDiscarded,
	rivertype.JobStatePending, rivertype.JobStateRetryable, rivertype.JobStateRunning, rivertype.JobStateScheduled,
}

func insertOpts(attempts int, at time.Time) *river.InsertOpts {
	return &river.InsertOpts{
		MaxAttempts: attempts, ScheduledAt: at,
		UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: states},
	}
}

// Send writes the event down for all its destinations, or for none. When it returns
// without an error the event is on disk, and will be delivered or become a dead
// letter, whatever happens to this process.
//
// It fails if a destination is not known, or if the id was sent before with another
// payload (*ConflictError).
func (c *Client[T]) Send(ctx context.Context, e Event) (Receipt, error) {
	var r Receipt
	err := c.store.write(ctx, func(tx txn) (err error) {
		r, err = c.send(ctx, tx, e)
		return err
	})
	if err != nil {
		return Receipt{}, err
	}
	return r, nil
}

// SendTx writes the event down in the caller's own transaction, so that it is sent
// exactly if what it tells of happened (a transactional outbox). After an error the
// transaction is to be rolled back: it may hold a part of the event's deliveries.
func (c *Client[T]) SendTx(ctx context.Context, tx T, e Event) (Receipt, error) {
	return c.send(ctx, c.engine.in(tx), e)
}

// SendMany writes all the events down in one transaction, which is much faster than
// one for each.
func (c *Client[T]) SendMany(ctx context.Context, events []Event) ([]Receipt, error) {
	receipts := make([]Receipt, len(events))
	err := c.store.write(ctx, func(tx txn) (err error) {
		receipts, err = c.sendMany(ctx, tx, events)
		return err
	})
	if err != nil {
		return nil, err
	}
	return receipts, nil
}

// Transaction runs do in a transaction, for SendTx beside the caller's own statements.
// It is committed if do returns nil. On SQLite nothing else is written until it ends.
func (c *Client[T]) Transaction(ctx context.Context, do func(tx T) error) error {
	tx, end, err := c.engine.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := do(tx); err != nil {
		return err
	}
	return c.engine.commit(ctx, tx)
}

func (c *core) send(ctx context.Context, tx txn, e Event) (Receipt, error) {
	receipts, err := c.sendMany(ctx, tx, []Event{e})
	if err != nil {
		return Receipt{}, err
	}
	return receipts[0], nil
}

func (c *core) sendMany(ctx context.Context, tx txn, events []Event) ([]Receipt, error) {
	var params []river.InsertManyParams
	receipts := make([]Receipt, len(events))
	attempts := make(map[string]int) // of destinations
	seen := make(map[[2]string]bool)
	for i, e := range events {
		if err := e.check(c.config.maxBody); err != nil {
			return nil, err
		}
		if e.ID == "" {
			e.ID = uuid.NewString()
		}
		receipts[i].EventID = e.ID
		for _, to := range e.To {
			if key := [2]string{e.ID, to}; seen[key] {
				return nil, fmt.Errorf("deliver: event %s is to be sent to %s twice at once", e.ID, to)
			} else {
				seen[key] = true
			}
			if attempts[to] == 0 {
				d, err := destination(ctx, tx, to)
				if err != nil {
					return nil, err
				}
				attempts[to] = c.schedule(d.Schedule).Attempts
			}
			params = append(params, river.InsertManyParams{
				Args:       delivery{Event: e.ID, Destination: to, Payload: e.Payload, ContentType: e.ContentType},
				InsertOpts: insertOpts(attempts[to], time.Time{}),
			})
		}
	}
	rows, err := tx.insertMany(ctx, params)
	if err != nil {
		return nil, fmt.Errorf("deliver: %w", err)
	}
	for i, e := range events {
		for _, to := range e.To {
			row := rows[0]
			rows = rows[1:]
			if row.UniqueSkippedAsDuplicate {
				if err := same(row.Job, e); err != nil {
					return nil, err
				}
			}
			receipts[i].Deliveries = append(receipts[i].Deliveries, Delivery{row.Job.ID, to, row.UniqueSkippedAsDuplicate})
		}
	}
	return receipts, nil
}

func same(row *rivertype.JobRow, e Event) error {
	var d delivery
	if err := json.Unmarshal(row.EncodedArgs, &d); err != nil {
		return err
	}
	if !bytes.Equal(d.Payload, e.Payload) || cmp.Or(d.ContentType, jsonType) != cmp.Or(e.ContentType, jsonType) {
		return &ConflictError{d.Event, d.Destination}
	}
	return nil
}

func (e Event) check(limit int) error {
	switch {
	case len(e.To) == 0:
		return errors.New("deliver: the event has no destination")
	case len(e.Payload) > limit:
		return fmt.Errorf("deliver: the payload has %d bytes, %d are allowed", len(e.Payload), limit)
	case len(e.ID) > 255:
		return fmt.Errorf("deliver: the event's id has %d bytes, 255 are allowed", len(e.ID))
	}
	for i := range len(e.ID) {
		if b := e.ID[i]; b <= ' ' || b > '~' || b == '.' {
			return fmt.Errorf("deliver: the event's id has byte %#02x at position %d: printable ASCII without space and full stop is allowed", b, i)
		}
	}
	if strings.ContainsFunc(e.ContentType, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return errors.New("deliver: the content type is not a header value")
	}
	return nil
}

// schedule returns the one of that name, or the default's if this process does not
// know it.
func (c *core) schedule(name string) Schedule {
	if s, ok := c.config.schedules[name]; ok {
		return s
	}
	return c.config.schedules[""]
}

// knows reports whether this process was told of the schedule; another may be.
func (c *core) knows(schedule string) bool {
	_, ok := c.config.schedules[schedule]
	return ok
}
