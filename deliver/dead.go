package deliver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// A DeadLetter is a delivery that was given up. It is the delivery itself, kept where
// it was, with its payload and the story of its attempts.
type DeadLetter struct {
	Status
	Reason      Reason
	Payload     []byte
	ContentType string
	Parked      *Parked // what a Transport gave up; nil for an event's delivery
}

// A Filter chooses dead letters. The zero Filter chooses all, those that were replayed
// excepted.
type Filter struct {
	Destination string
	EventID     string
	Since       time.Time // died then or later
	Until       time.Time // died before
	Reason      Reason
	Replayed    bool  // also those that were replayed
	Before      int64 // only deliveries with a smaller id: the next page
	Limit       int   // 0: 100 for List, no limit for what works on all
}

// DeadLetters are those of a Client. It is safe for concurrent use.
type DeadLetters struct{ c *core }

// Dead returns the dead letters.
func (c *core) Dead() *DeadLetters { return &DeadLetters{c} }

// page is how many are worked on at once; each may hold a payload of WithMaxPayload.
const page = 100

// List returns the dead letters that the filter chooses, the last sent first.
func (dl *DeadLetters) List(ctx context.Context, f Filter) ([]DeadLetter, error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	var all []DeadLetter
	err := dl.each(ctx, f, func(d DeadLetter) error {
		all = append(all, d)
		return nil
	})
	return all, err
}

// Count returns how many dead letters the filter chooses; with a Limit it counts no
// further.
func (dl *DeadLetters) Count(ctx context.Context, f Filter) (int, error) {
	if f.Reason != "" { // which only the story tells
		n := 0
		err := dl.each(ctx, f, func(DeadLetter) error { n++; return nil })
		return n, err
	}
	query, values := positional(dl.ids(f))
	n := 0
	err := one(ctx, dl.c.store.read(), `SELECT count(*) FROM (`+query+`) AS chosen`, values, &n)
	return n, err
}

// isDead chooses dead letters, in the words of our partial indexes: an engine finds out
// that it may use one only if they are there, and not in parameters.
const isDead = `kind = 'retrip_delivery' AND state IN ('cancelled', 'discarded')`

// ids is a query for what the filter chooses, the last sent first. Which index it goes
// by is settled here: nobody tells SQLite how the rows are spread, and PostgreSQL plans
// without the values.
func (dl *DeadLetters) ids(f Filter) (string, river.NamedArgs) {
	index := "retrip_dead_by_id"
	switch {
	case f.EventID != "":
		index = "retrip_event"
	case f.Destination != "":
		index = "retrip_dead_of"
	}
	where, args := dl.where(f)
	query := `SELECT id FROM ` + dl.c.jobsBy(index) + ` WHERE ` + where + ` ORDER BY id DESC`
	if f.Limit > 0 {
		query += fmt.Sprintf(" LIMIT %d", f.Limit)
	}
	return query, args
}

// where is the filter in SQL.
func (dl *DeadLetters) where(f Filter) (string, river.NamedArgs) {
	all := []string{isDead}
	args := river.NamedArgs{}
	add := func(condition, name string, value any) {
		all = append(all, condition)
		if name != "" {
			args[name] = value
		}
	}
	if f.Destination != "" {
		add(`args->>'destination' = @destination`, "destination", f.Destination)
	}
	if f.EventID != "" {
		add(`args->>'event' = @event`, "event", f.EventID)
	}
	if !f.Since.IsZero() {
		add(`finalized_at >= @since`, "since", dl.c.store.stamp(f.Since))
	}
	if !f.Until.IsZero() {
		add(`finalized_at < @until`, "until", dl.c.store.stamp(f.Until))
	}
	if f.Before > 0 {
		add(`river_job.id < @before`, "before", f.Before)
	}
	if !f.Replayed {
		add(`NOT EXISTS (SELECT 1 FROM retrip_replay WHERE delivery = river_job.id)`, "", nil)
	}
	return strings.Join(all, " AND "), args
}

// positional turns names into numbers.
func positional(query string, args river.NamedArgs) (string, []any) {
	var values []any
	for name, value := range args {
		values = append(values, value)
		query = strings.ReplaceAll(query, "@"+name, fmt.Sprintf("$%d", len(values)))
	}
	return query, values
}

// each goes through all dead letters of a filter, page by page.
func (dl *DeadLetters) each(ctx context.Context, f Filter, do func(DeadLetter) error) error {
	left := f.Limit
	if left <= 0 {
		left = math.MaxInt
	}
	for left > 0 {
		size := page
		if f.Reason == "" {
			size = min(page, left)
		}
		chosen := f
		chosen.Limit = size
		ids, args := dl.ids(chosen)
		rows, err := dl.c.store.list(ctx, river.NewJobListParams().States().First(size).
			OrderBy(river.JobListOrderByID, river.SortOrderDesc).Where(`id IN (`+ids+`)`, args))
		if err != nil {
			return err
		}
		for _, row := range rows {
			d := newLetter(row)
			f.Before = d.ID
			if f.Replayed { // the others were not
				if err := dl.c.markReplayed(ctx, &d.Status); err != nil {
					return err
				}
			}
			if f.Reason != "" && d.Reason != f.Reason {
				continue
			}
			if err := do(d); err != nil {
				return err
			}
			if left--; left == 0 {
				return nil
			}
		}
		if len(rows) < size {
			return nil
		}
	}
	return nil
}

func newLetter(row *rivertype.JobRow) DeadLetter {
	s, d := newStatus(row)
	l := DeadLetter{Status: s, Payload: d.Payload, ContentType: d.ContentType, Reason: reason(row, s.Attempts)}
	if d.Parked != nil {
		l.Parked = &d.Parked.Parked
	}
	return l
}

// Get returns one dead letter by the id of the delivery.
func (dl *DeadLetters) Get(ctx context.Context, id int64) (DeadLetter, error) {
	row, err := dl.c.store.get(ctx, id)
	if err != nil {
		return DeadLetter{}, err
	}
	if row.Kind != deliveryKind || row.State != rivertype.JobStateCancelled && row.State != rivertype.JobStateDiscarded {
		return DeadLetter{}, fmt.Errorf("deliver: dead letter %d: %w", id, ErrNotFound)
	}
	d := newLetter(row)
	return d, dl.c.markReplayed(ctx, &d.Status)
}

// A ReplayedError says that a dead letter was replayed before.
type ReplayedError struct {
	ID     int64
	Replay int64 // the delivery that replays it
}

func (e *ReplayedError) Error() string {
	return fmt.Sprintf("deliver: dead letter %d was replayed before, as delivery %d", e.ID, e.Replay)
}

// A DeliveredError says that the event reached the destination.
type DeliveredError struct {
	EventID     string
	Destination string
	By          int64 // the delivery that was made
}

func (e *DeliveredError) Error() string {
	return fmt.Sprintf("deliver: event %s was delivered to %s already, by delivery %d", e.EventID, e.Destination, e.By)
}

// A LostError says that a dead letter does not hold all that would have to be sent.
type LostError struct {
	ID  int64
	Why string
}

func (e *LostError) Error() string {
	return fmt.Sprintf("deliver: dead letter %d cannot be replayed: %s", e.ID, e.Why)
}

// Replaying says how to replay.
type Replaying struct {
	DryRun bool    // only say what would be replayed
	Rate   float64 // at most so many a second; 0: at once
	Force  bool    // also what was delivered, or replayed before

	// Done is called after each one, if it is not nil, with how many of how many were
	// gone through.
	Done func(done, all int)
}

// A Replay is what became of a dead letter that was to be replayed.
type Replay struct {
	Dead     DeadLetter
	Delivery int64 // the new one; 0 in a dry run, or if it was refused
	Refused  error // *ReplayedError, *DeliveredError or *LostError
}

// Replay sends dead letters again: each becomes a new delivery of the same event, with
// the same id and payload and its schedule from the start, and leaves the list. Any
// number of calls at once make one new delivery of it.
//
// What has reached its destination, or was replayed before, is refused unless forced.
func (dl *DeadLetters) Replay(ctx context.Context, ids []int64, how Replaying) ([]Replay, error) {
	var all []DeadLetter
	for _, id := range ids {
		d, err := dl.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return dl.replay(ctx, all, how)
}

// ReplayAll replays all that the filter chooses, the first sent first.
func (dl *DeadLetters) ReplayAll(ctx context.Context, f Filter, how Replaying) ([]Replay, error) {
	var all []DeadLetter
	err := dl.each(ctx, f, func(d DeadLetter) error {
		d.Payload = nil // not all of them at once in memory
		all = append(all, d)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, j := 0, len(all)-1; i < j; i, j = i+1, j-1 {
		all[i], all[j] = all[j], all[i]
	}
	return dl.replay(ctx, all, how)
}

func (dl *DeadLetters) replay(ctx context.Context, dead []DeadLetter, how Replaying) ([]Replay, error) {
	if !(how.Rate >= 0) {
		return nil, fmt.Errorf("deliver: a rate of %v a second makes no sense", how.Rate)
	}
	start := time.Now()
	var all []Replay
	for i, d := range dead {
		at := time.Time{}
		if how.Rate > 0 {
			at = start.Add(scale(time.Second, min(float64(len(all))/how.Rate, 1e9)))
		}
		r, err := dl.replayOne(ctx, d, at, how)
		if err != nil {
			return all, err
		}
		all = append(all, r)
		if how.Done != nil {
			how.Done(i+1, len(dead))
		}
	}
	return all, nil
}

func (dl *DeadLetters) replayOne(ctx context.Context, dead DeadLetter, at time.Time, how Replaying) (r Replay, err error) {
	r.Dead = dead
	if dead.Parked != nil && dead.Parked.Lost != "" {
		r.Refused = &LostError{dead.ID, dead.Parked.Lost}
		return r, nil
	}
	err = dl.c.store.write(ctx, func(tx txn) error {
		r.Delivery = 0
		if r.Refused, err = refusal(ctx, tx, dead, how.Force); err != nil || r.Refused != nil || how.DryRun {
			return err
		}
		row, err := dl.c.store.get(ctx, dead.ID)
		if err != nil {
			return err
		}
		var d delivery
		if err := json.Unmarshal(row.EncodedArgs, &d); err != nil {
			return err
		}
		attempts := row.MaxAttempts
		if to, err := destination(ctx, tx, d.Destination); err == nil && dl.c.knows(to.Schedule) {
			attempts = dl.c.schedule(to.Schedule).Attempts
		} else if ignore(err, ErrNotFound) != nil {
			return err
		}
		d.Replays, d.Planned = dead.ID, at
		if how.Force {
			d.Forced = fmt.Sprint(time.Now().UnixNano())
		}
		res, err := tx.insert(ctx, d, insertOpts(max(attempts, 1), at))
		if err != nil {
			return err
		}
		// The row is claimed by its key: of several at once one gets through.
		n, err := tx.exec(ctx, `INSERT INTO retrip_replay (delivery, replay, created_at) VALUES ($1, $2, $3)
			ON CONFLICT (delivery) DO UPDATE SET replay = excluded.replay WHERE $4 = 1`,
			dead.ID, res.Job.ID, time.Now().UnixMilli(), flag(how.Force))
		if err == nil && (n == 0 || res.UniqueSkippedAsDuplicate) {
			err = errRaced
		}
		r.Delivery = res.Job.ID
		return err
	})
	if errors.Is(err, errRaced) {
		r.Delivery = 0
		r.Refused, err = refusal(ctx, dl.c.store.read(), dead, false)
	}
	return r, err
}

var errRaced = errors.New("deliver: replayed by another at the same time")

func refusal(ctx context.Context, s session, dead DeadLetter, force bool) (refused, err error) {
	if force {
		return nil, nil
	}
	var id int64
	err = one(ctx, s, `SELECT replay FROM retrip_replay WHERE delivery = $1`, []any{dead.ID}, &id)
	if err == nil {
		return &ReplayedError{dead.ID, id}, nil
	}
	if !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	err = one(ctx, s, `SELECT id FROM river_job WHERE kind = 'retrip_delivery' AND state = 'completed'
		AND args->>'event' = $1 AND args->>'destination' = $2 LIMIT 1`, []any{dead.EventID, dead.Destination}, &id)
	if err == nil {
		return &DeliveredError{dead.EventID, dead.Destination, id}, nil
	}
	return nil, ignore(err, ErrNotFound)
}

// Purge deletes the dead letters that died before then, and returns how many.
func (dl *DeadLetters) Purge(ctx context.Context, before time.Time) (int, error) {
	return dl.c.purgeStates(ctx, deliveryKind, before, `finalized_at < @before`, rivertype.JobStateCancelled, rivertype.JobStateDiscarded)
}

// Delete deletes the dead letters that the filter chooses, and returns how many. The
// zero Filter chooses all but those that were replayed.
func (dl *DeadLetters) Delete(ctx context.Context, f Filter) (int, error) {
	total := 0
	var ids []int64
	remove := func() error {
		if len(ids) == 0 {
			return nil
		}
		n, err := dl.c.store.remove(ctx, river.NewJobDeleteManyParams().First(page).IDs(ids...).Kinds(deliveryKind).
			States(rivertype.JobStateCancelled, rivertype.JobStateDiscarded))
		total, ids = total+n, ids[:0]
		return err
	}
	err := dl.each(ctx, f, func(d DeadLetter) error {
		if ids = append(ids, d.ID); len(ids) < page {
			return nil
		}
		return remove()
	})
	if err == nil {
		err = remove()
	}
	return total, err
}

// purge deletes what is older than it is to be kept.
func (c *core) purge(ctx context.Context) error {
	_, err := c.purgeStates(ctx, noticeKind, time.Now().Add(-30*24*time.Hour), `finalized_at < @before`,
		rivertype.JobStateCompleted, rivertype.JobStateCancelled, rivertype.JobStateDiscarded)
	errs := []error{err}
	if c.config.keep > 0 {
		_, err := c.purgeStates(ctx, deliveryKind, time.Now().Add(-c.config.keep), `finalized_at < @before`, rivertype.JobStateCompleted)
		errs = append(errs, err)
	}
	if c.config.keepDead > 0 {
		// Of an imported one scheduled_at is when it was imported: else an old one, brought
		// back to be replayed, would be gone at once.
		_, err := c.purgeStates(ctx, deliveryKind, time.Now().Add(-c.config.keepDead), `finalized_at < @before AND scheduled_at < @before`,
			rivertype.JobStateCancelled, rivertype.JobStateDiscarded)
		errs = append(errs, err)
	}
	oldest := time.Now().Add(-90*24*time.Hour).Unix() / 60
	errs = append(errs, c.store.write(ctx, func(tx txn) error {
		if _, err := tx.exec(ctx, `DELETE FROM retrip_minute WHERE minute < $1`, oldest); err != nil {
			return err
		}
		_, err := tx.exec(ctx, `DELETE FROM retrip_replay WHERE NOT EXISTS (SELECT 1 FROM river_job WHERE id = delivery)`)
		return err
	}))
	return errors.Join(errs...)
}

// purgeStates deletes in batches small enough not to keep others waiting.
func (c *core) purgeStates(ctx context.Context, kind string, before time.Time, where string, in ...rivertype.JobState) (int, error) {
	total := 0
	for {
		n, err := c.store.remove(ctx, river.NewJobDeleteManyParams().First(page).Kinds(kind).States(in...).
			Where(where, river.NamedArgs{"before": c.store.stamp(before)}))
		total += n
		if err != nil || n < page {
			return total, err
		}
	}
}

// A letter is a dead letter in a file: one line of JSON.
type letter struct {
	Event       string    `json:"event"`
	Destination string    `json:"destination"`
	Payload     []byte    `json:"payload"` // base64
	ContentType string    `json:"content_type,omitempty"`
	MaxAttempts int       `json:"max_attempts"`
	Attempts    []Attempt `json:"attempts"`
	Reason      Reason    `json:"reason"`
	Created     time.Time `json:"created"`
	Died        time.Time `json:"died"`
	Parked      *parked   `json:"parked,omitempty"`
}

// Export writes the dead letters that the filter chooses, one line of JSON each, and
// returns how many. They hold payloads.
func (dl *DeadLetters) Export(ctx context.Context, w io.Writer, f Filter) (int, error) {
	out := json.NewEncoder(w)
	n := 0
	err := dl.each(ctx, f, func(d DeadLetter) error {
		l := letter{
			Event: d.EventID, Destination: d.Destination, Payload: d.Payload, ContentType: d.ContentType, MaxAttempts: d.MaxAttempts,
			Attempts: d.Attempts, Reason: d.Reason, Created: d.Created, Died: d.Ended,
		}
		if d.Parked != nil {
			l.Parked = &parked{Parked: *d.Parked}
		}
		n++
		return out.Encode(l)
	})
	return n, err
}

// Import reads what Export wrote, and returns how many dead letters it added. Those
// whose event the database has a delivery of, to the same destination, are left out. A
// line that cannot be read ends it with an error; what came before it is kept. The
// retention of what is imported starts anew.
func (dl *DeadLetters) Import(ctx context.Context, r io.Reader) (int, error) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, dl.c.config.maxBody/3*4+4<<20) // base64, and the story
	added := 0
	var batch []letter // written together: a commit for each would take minutes for many
	flush := func() error {
		n := 0
		err := dl.c.store.write(ctx, func(tx txn) error {
			n = 0
			for _, l := range batch {
				ok, err := dl.addTx(ctx, tx, l)
				if err != nil {
					return err
				}
				if ok {
					n++
				}
			}
			return nil
		})
		if err == nil {
			added += n
		}
		batch = batch[:0]
		return err
	}
	number, bad := 1, error(nil)
	for ; bad == nil && in.Scan(); number++ {
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		var l letter
		if err := json.Unmarshal(in.Bytes(), &l); err != nil || l.Event == "" || l.Destination == "" {
			bad = fmt.Errorf("deliver: line %d is not a dead letter", number)
		} else if err := l.check(dl.c.config.maxBody); err != nil {
			bad = fmt.Errorf("deliver: line %d: %w", number, err)
		} else if batch = append(batch, l); len(batch) == page {
			if err := flush(); err != nil {
				return added, err
			}
		}
	}
	if err := in.Err(); err != nil && bad == nil {
		bad = fmt.Errorf("deliver: line %d: %w", number, err)
	}
	if err := flush(); err != nil {
		return added, err
	}
	return added, bad
}

// check holds a letter to what an event is held to: its file may come from anywhere.
func (l letter) check(limit int) error {
	return Event{ID: l.Event, To: []string{l.Destination}, Payload: l.Payload, ContentType: l.ContentType}.check(limit)
}

// add writes a dead letter down that never was in this queue.
func (dl *DeadLetters) add(ctx context.Context, l letter) (added bool, err error) {
	err = dl.c.store.write(ctx, func(tx txn) error {
		added, err = dl.addTx(ctx, tx, l)
		return err
	})
	return added && err == nil, err
}

func (dl *DeadLetters) addTx(ctx context.Context, tx txn, l letter) (added bool, err error) {
	died := l.Died
	if died.IsZero() {
		died = time.Now()
	}
	created := cmpTime(l.Created, died)
	if len(l.Attempts) == 0 {
		l.Attempts = []Attempt{{Number: 1, At: died, Err: "nothing is known of its attempts"}} // the last one has the reason
	}
	story := make([]rivertype.AttemptError, len(l.Attempts))
	for i, a := range l.Attempts {
		if i == len(l.Attempts)-1 {
			a.Reason = l.Reason
		}
		story[i] = rivertype.AttemptError{At: a.At, Attempt: a.Number, Error: failure{a}.Error()}
	}
	errs, err := json.Marshal(story)
	if err != nil {
		return false, err
	}
	var id int64
	err = one(ctx, tx, `SELECT id FROM river_job WHERE kind = 'retrip_delivery' AND args->>'event' = $1 AND args->>'destination' = $2 LIMIT 1`,
		[]any{l.Event, l.Destination}, &id)
	if !errors.Is(err, ErrNotFound) {
		return false, err
	}
	// It is sent like any other, and dead before anybody sees it: so it has the key by
	// which it, a Send and another Import are one delivery.
	attempts := min(len(l.Attempts), math.MaxInt16)
	sent, err := tx.insert(ctx, delivery{
		Event: l.Event, Destination: l.Destination, Payload: l.Payload, ContentType: l.ContentType, Parked: l.Parked,
	}, insertOpts(min(max(l.MaxAttempts, attempts, 1), math.MaxInt16), time.Time{}))
	if err != nil || sent.UniqueSkippedAsDuplicate {
		return false, err
	}
	list := `ARRAY(SELECT jsonb_array_elements($3::jsonb))`
	if dl.c.engine == sqlite {
		list = `jsonb($3)`
	}
	_, err = tx.exec(ctx, `UPDATE river_job SET state = 'discarded', attempt = $2, errors = `+list+`,
		created_at = $4, scheduled_at = $6, attempted_at = $5, finalized_at = $5 WHERE id = $1`,
		sent.Job.ID, attempts, string(errs), dl.c.store.stamp(created), dl.c.store.stamp(died), dl.c.store.stamp(time.Now()))
	return err == nil, err
}

func cmpTime(t, or time.Time) time.Time {
	if t.IsZero() {
		return or
	}
	return t
}
