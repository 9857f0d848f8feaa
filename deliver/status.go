package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// A Status is where a delivery is.
type Status struct {
	ID          int64 // of the delivery
	EventID     string
	Destination string
	ReplayOf    int64 // the delivery that this one replays; 0 if it is none
	State       State
	Attempt     int // the last one, or the one under way; 0 before the first
	MaxAttempts int
	Next        time.Time // of the next attempt, if one is planned
	Created     time.Time
	Ended       time.Time // zero until it was delivered, or died
	Attempts    []Attempt // that have ended
	Size        int       // of the payload, in bytes
}

// A State is that of a delivery.
type State string

const (
	StateWaiting   State = "waiting"  // for its first attempt
	StateSending   State = "sending"  // an attempt is under way
	StateRetrying  State = "retrying" // waiting for another attempt
	StateDelivered State = "delivered"
	StateDead      State = "dead"     // a dead letter
	StateReplayed  State = "replayed" // a dead letter that was replayed
)

// String says it in a few words: "attempt 3 of 6, next at 14:03:10".
func (s Status) String() string {
	switch s.State {
	case StateWaiting:
		if s.Next.After(time.Now()) {
			return "waiting, first attempt at " + clock(s.Next)
		}
		return "waiting"
	case StateSending:
		return fmt.Sprintf("attempt %d of %d under way", s.Attempt, s.MaxAttempts)
	case StateRetrying:
		return fmt.Sprintf("attempt %d of %d, next at %s", min(s.Attempt+1, s.MaxAttempts), s.MaxAttempts, clock(s.Next))
	case StateDelivered:
		return fmt.Sprintf("delivered at attempt %d of %d", s.Attempt, s.MaxAttempts)
	}
	return fmt.Sprintf("%s after %d of %d attempts", s.State, s.Attempt, s.MaxAttempts)
}

// clock leaves the date out today.
func clock(t time.Time) string {
	t = t.Local()
	if t.Format(time.DateOnly) == time.Now().Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// LastError is what the last attempt failed with, "" if there is none.
func (s Status) LastError() string {
	if len(s.Attempts) == 0 {
		return ""
	}
	return s.Attempts[len(s.Attempts)-1].String()
}

func newStatus(row *rivertype.JobRow) (Status, delivery) {
	var d delivery
	_ = json.Unmarshal(row.EncodedArgs, &d) // it was made by us
	s := Status{
		ID: row.ID, EventID: d.Event, Destination: d.Destination, ReplayOf: d.Replays,
		Attempt: row.Attempt, MaxAttempts: row.MaxAttempts, Created: row.CreatedAt.Local(), Attempts: attempts(row), Size: len(d.Payload),
	}
	switch row.State {
	case rivertype.JobStateRunning:
		s.State = StateSending
	case rivertype.JobStateCompleted:
		s.State = StateDelivered
	case rivertype.JobStateCancelled, rivertype.JobStateDiscarded:
		s.State = StateDead
	default:
		s.State, s.Next = StateWaiting, row.ScheduledAt.Local()
		if len(row.Errors) > 0 {
			s.State = StateRetrying
		}
	}
	if row.FinalizedAt != nil {
		s.Ended = row.FinalizedAt.Local()
	}
	return s, d
}

// Status returns where the deliveries of an event are, the first sent first; an error
// that matches ErrNotFound if there are none.
func (c *core) Status(ctx context.Context, eventID string) ([]Status, error) {
	rows, err := c.store.list(ctx, river.NewJobListParams().States().First(1000).
		Where("kind = 'retrip_delivery' AND args->>'event' = @event", river.NamedArgs{"event": eventID}))
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("deliver: event %q: %w", eventID, ErrNotFound)
	}
	all := make([]Status, len(rows))
	for i, row := range rows {
		all[i], _ = newStatus(row)
	}
	for i := range all {
		if err := c.markReplayed(ctx, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// markReplayed tells a dead letter that was replayed from one that was not.
func (c *core) markReplayed(ctx context.Context, s *Status) error {
	if s.State != StateDead {
		return nil
	}
	var replay int64
	err := one(ctx, c.store.read(), `SELECT replay FROM retrip_replay WHERE delivery = $1`, []any{s.ID}, &replay)
	if err == nil {
		s.State = StateReplayed
	}
	return ignore(err, ErrNotFound)
}

// isPending chooses deliveries that are not over; see isDead.
const isPending = `kind = 'retrip_delivery' AND state IN ('available', 'retryable', 'running', 'scheduled')`

// Pending returns up to n deliveries that are not over, the next to be sent first.
func (c *core) Pending(ctx context.Context, n int) ([]Status, error) {
	// River asks for NULLS LAST, for which SQLite would sort them all: our query chooses.
	rows, err := c.store.list(ctx, river.NewJobListParams().States().First(n).
		OrderBy(river.JobListOrderByScheduledAt, river.SortOrderAsc).Where(`id IN (`+c.nextIDs(n)+`)`))
	if err != nil {
		return nil, err
	}
	all := make([]Status, len(rows))
	for i, row := range rows {
		all[i], _ = newStatus(row)
	}
	return all, nil
}

// nextIDs is a query for the pending deliveries that are due first.
func (c *core) nextIDs(n int) string {
	return fmt.Sprintf(`SELECT id FROM %s WHERE %s ORDER BY scheduled_at, id LIMIT %d`, c.jobsBy("retrip_pending"), isPending, n)
}

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}
