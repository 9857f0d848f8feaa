package deliver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// A Breaker says when a destination that keeps failing is left alone. It is kept in the
// database: all processes share it.
type Breaker struct {
	Failures int // in a row, of whatever deliveries; at least 1

	// Pauses are how long nothing is sent: the first time, and then each time that the
	// one delivery that is tried after a pause fails; the last repeats. A success
	// starts them anew.
	Pauses []time.Duration
}

// DefaultBreaker pauses a destination after 20 failures in a row, for 10 min, then 30
// min, 2 h and 24 h.
func DefaultBreaker() Breaker {
	return Breaker{Failures: 20, Pauses: []time.Duration{10 * time.Minute, 30 * time.Minute, 2 * time.Hour, 24 * time.Hour}}
}

// WithBreaker sets the breaker of each destination; the default is DefaultBreaker. All
// processes on a database should have the same.
func WithBreaker(b Breaker) Option {
	if b.Failures < 1 || len(b.Pauses) == 0 || slices.Min(b.Pauses) < time.Millisecond {
		panic(fmt.Sprintf("deliver: WithBreaker(%+v): Failures must be at least 1, and Pauses at least one of 1ms or more", b))
	}
	b.Pauses = slices.Clone(b.Pauses)
	return func(c *config) { c.breaker = b }
}

// pauseSQL is the pause before the next trip, in milliseconds.
func (b Breaker) pauseSQL() string {
	var s strings.Builder
	s.WriteString("CASE trips")
	last := len(b.Pauses) - 1
	for i, p := range b.Pauses[:last] {
		fmt.Fprintf(&s, " WHEN %d THEN %d", i, p.Milliseconds())
	}
	fmt.Fprintf(&s, " ELSE %d END", b.Pauses[last].Milliseconds())
	if last == 0 {
		return fmt.Sprint(b.Pauses[0].Milliseconds())
	}
	return s.String()
}

// failed counts a failure and opens the breaker if it was one too many. That is one
// UPDATE, so that of all processes only one sees itself open it; the notice is written
// with it, in the same transaction.
func (c *core) failed(ctx context.Context, d DestinationState, probe bool, why string, slow time.Duration) error {
	return c.store.write(ctx, func(tx txn) error {
		now := time.Now().UnixMilli()
		by := uuid.NewString()
		// A probe that fails opens it again; so does the last of too many. What was under
		// way when it opened is only counted.
		limit := c.config.breaker.Failures
		trip := fmt.Sprintf(`(paused_until <= $2 AND (failures + 1 >= %d AND trips = 0 OR trips > 0 AND $5 = 1))`, limit)
		pause := `$2 + ` + c.config.breaker.pauseSQL()
		opened, trips := 0, 0
		var until int64
		err := one(ctx, tx, `
			UPDATE retrip_destination SET
				failures = failures + 1,
				probe_until = CASE WHEN $5 = 1 THEN 0 ELSE probe_until END,
				tripped_by = CASE WHEN `+trip+` THEN $3 ELSE tripped_by END,
				paused_why = CASE WHEN `+trip+` OR paused_until < $6 THEN $4 ELSE paused_why END,
				paused_until = CASE WHEN `+trip+` AND `+pause+` > $6 THEN `+pause+` WHEN paused_until < $6 THEN $6 ELSE paused_until END,
				trips = CASE WHEN `+trip+` THEN trips + 1 ELSE trips END,
				updated_at = $2
			WHERE id = $1
			RETURNING CASE WHEN tripped_by = $3 THEN 1 ELSE 0 END, trips, paused_until`,
			[]any{d.ID, now, by, why, flag(probe), slowUntil(now, slow)}, &opened, &trips, &until)
		if err != nil || opened == 0 {
			return err
		}
		return c.notify(ctx, tx, Notice{
			Kind: BreakerOpened, Destination: d.ID, Until: at(until), Trip: trips, Trips: len(c.config.breaker.Pauses), Why: why,
		})
	})
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// slowUntil is the end of a pause that the destination asked for; 0 if it did not.
func slowUntil(now int64, slow time.Duration) int64 {
	if slow <= 0 {
		return 0
	}
	return now + slow.Milliseconds()
}

// succeeded forgets failures, if there were any.
func (c *core) succeeded(ctx context.Context, d DestinationState) error {
	if d.Failures == 0 && d.Trips == 0 && d.PausedUntil.IsZero() {
		return nil
	}
	return c.store.write(ctx, func(tx txn) error {
		now := time.Now().UnixMilli()
		// Not while it is paused: what succeeded then was sent before.
		closed, err := tx.exec(ctx, `
			UPDATE retrip_destination SET failures = 0, trips = 0, paused_until = 0, paused_why = '', probe_until = 0, updated_at = $2
			WHERE id = $1 AND trips > 0 AND paused_until <= $2`, d.ID, now)
		if err != nil {
			return err
		}
		if closed > 0 {
			return c.notify(ctx, tx, Notice{Kind: BreakerClosed, Destination: d.ID})
		}
		_, err = tx.exec(ctx, `
			UPDATE retrip_destination SET failures = 0, probe_until = 0, paused_until = CASE WHEN paused_until <= $2 THEN 0 ELSE paused_until END
			WHERE id = $1 AND trips = 0 AND (failures > 0 OR paused_until > 0)`, d.ID, now)
		return err
	})
}

// claimProbe makes this delivery the one that is tried after a pause. The claim ends
// with the attempt, or by itself if its process dies. There is none to be had if another
// probe has failed since the pause was seen to be over.
func (c *core) claimProbe(ctx context.Context, id string) (bool, error) {
	claimed := false
	err := c.store.write(ctx, func(tx txn) error {
		now := time.Now()
		n, err := tx.exec(ctx, `UPDATE retrip_destination SET probe_until = $3 WHERE id = $1 AND probe_until <= $2 AND paused_until BETWEEN 1 AND $2`,
			id, now.UnixMilli(), now.Add(c.config.rescue).UnixMilli())
		claimed = n > 0
		return err
	})
	return claimed, err
}

// releaseProbe gives a claim back that came to nothing.
func (c *core) releaseProbe(ctx context.Context, id string) error {
	return c.Destinations().set(ctx, id, `probe_until = $2`, int64(0))
}
