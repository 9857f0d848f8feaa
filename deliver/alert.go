package deliver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/riverqueue/river"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// An Alert says when too many deliveries to one destination died.
type Alert struct {
	Dead  int           // more dead letters than this
	Per   time.Duration // within this time
	Again time.Duration // one notice in this time, whatever else happens
}

// DefaultAlert is more than 20 dead letters in an hour, once an hour.
func DefaultAlert() Alert { return Alert{Dead: 20, Per: time.Hour, Again: time.Hour} }

// WithAlert sets when a notice of too many dead letters is given; the default is
// DefaultAlert.
func WithAlert(a Alert) Option {
	if a.Dead < 0 || a.Per <= 0 || a.Again <= 0 {
		panic(fmt.Sprintf("deliver: WithAlert(%+v): Dead must not be negative, Per and Again must be positive", a))
	}
	return func(c *config) { c.alert = a }
}

// The kinds of notices.
const (
	BreakerOpened = "breaker_opened" // a destination is paused
	BreakerClosed = "breaker_closed" // it took a delivery again
	TooManyDead   = "dead_letters"   // more than the Alert allows
)

// A Notice is what somebody should know.
type Notice struct {
	ID          string         `json:"id"`
	Kind        string         `json:"kind"`
	Destination string         `json:"destination"`
	At          time.Time      `json:"at"`
	Why         string         `json:"why,omitempty"`   // the last failure
	Until       time.Time      `json:"until,omitzero"`  // of a pause
	Trip        int            `json:"trip,omitempty"`  // the how manieth
	Trips       int            `json:"trips,omitempty"` // of as many
	Dead        int            `json:"dead,omitempty"`
	Reasons     map[Reason]int `json:"reasons,omitempty"` // of the last 100 dead letters at most
}

func (n Notice) String() string {
	switch n.Kind {
	case BreakerOpened:
		return fmt.Sprintf("%s is paused until %s, trip %d of %d, because %s", n.Destination, clock(n.Until), min(n.Trip, n.Trips), n.Trips, n.Why)
	case BreakerClosed:
		return fmt.Sprintf("%s takes deliveries again", n.Destination)
	}
	return fmt.Sprintf("%s has %d new dead letters (%s), the last because %s", n.Destination, n.Dead, n.reasons(), n.Why)
}

// reasons says them with the most frequent first: "exhausted 20, permanent 1".
func (n Notice) reasons() string {
	all := slices.SortedFunc(maps.Keys(n.Reasons), func(a, b Reason) int {
		return cmp.Or(n.Reasons[b]-n.Reasons[a], cmp.Compare(a, b))
	})
	var parts []string
	looked := 0
	for _, r := range all {
		parts = append(parts, fmt.Sprintf("%s %d", r, n.Reasons[r]))
		looked += n.Reasons[r]
	}
	text := strings.Join(parts, ", ")
	if looked < n.Dead {
		text += fmt.Sprintf(" of the last %d", looked)
	}
	return text
}

// A Notifier passes notices on. It is called by a worker of the queue: a notice is as
// durable as a delivery, and is given again when Notify fails, for about two days. Its
// id stays the same.
type Notifier interface {
	Notify(context.Context, Notice) error
}

// A NotifierFunc is a function that is a Notifier.
type NotifierFunc func(context.Context, Notice) error

// Notify calls f.
func (f NotifierFunc) Notify(ctx context.Context, n Notice) error { return f(ctx, n) }

// WithNotifier sets who gets the notices; the default is LogNotifier.
func WithNotifier(n Notifier) Option { return func(c *config) { c.notifier = n } }

// LogNotifier logs a warning for each notice.
func LogNotifier(l *slog.Logger) Notifier {
	return NotifierFunc(func(ctx context.Context, n Notice) error {
		l.WarnContext(ctx, "deliver: "+n.String(), "kind", n.Kind, "destination", n.Destination, "notice", n.ID)
		return nil
	})
}

// WebhookNotifier posts each notice as JSON, signed as deliveries are. It is meant for
// an operator's own URL: no address is refused. A nil client is http.DefaultClient.
//
// WebhookNotifier panics if the secret is not a Standard Webhooks secret.
func WebhookNotifier(client *http.Client, url, secret string) Notifier {
	if client == nil {
		client = http.DefaultClient
	}
	if _, err := restore([]string{secret}, nil); err != nil {
		panic("deliver: WebhookNotifier: " + err.Error())
	}
	wh, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		panic("deliver: WebhookNotifier: the secret cannot be used")
	}
	return NotifierFunc(func(ctx context.Context, n Notice) error {
		body, err := json.Marshal(n)
		if err != nil {
			return err
		}
		now := time.Now()
		signature, err := wh.Sign(n.ID, now, body)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return fmt.Errorf("the notifier's URL cannot be used")
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(standardwebhooks.HeaderWebhookID, n.ID)
		req.Header.Set(standardwebhooks.HeaderWebhookTimestamp, fmt.Sprint(now.Unix()))
		req.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("%s", explain(err))
		}
		_ = resp.Body.Close()
		if resp.StatusCode < 200 || resp.StatusCode > 299 {
			return fmt.Errorf("the notifier answered %s", statusText(resp.StatusCode))
		}
		return nil
	})
}

const (
	noticeKind  = "retrip_notice"
	noticeQueue = "retrip_notices"
)

type noticeArgs struct {
	Notice Notice `json:"notice"`
}

func (noticeArgs) Kind() string { return noticeKind }

// notify queues a notice with what it is about.
func (c *core) notify(ctx context.Context, tx txn, n Notice) error {
	n.ID, n.At = uuid.NewString(), time.Now().UTC()
	_, err := tx.insert(ctx, noticeArgs{n}, &river.InsertOpts{Queue: noticeQueue, MaxAttempts: 16})
	return err
}

type notices struct {
	river.WorkerDefaults[noticeArgs]
	*core
}

func (w *notices) Work(ctx context.Context, job *river.Job[noticeArgs]) error {
	return w.config.notifier.Notify(ctx, job.Args.Notice)
}

// watch does what has to be done now and then. Every process does it; what must be
// done once is a conditional UPDATE.
func (c *core) watch(ctx context.Context) {
	tick := time.NewTicker(c.config.tick)
	defer tick.Stop()
	var purged time.Time
	for {
		done := false
		select {
		case <-tick.C:
		case <-ctx.Done():
			done = true
		}
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		c.report("counting", c.meter.flush(work))
		if !done {
			c.report("looking for dead letters", c.alarm(work))
			if time.Since(purged) > time.Hour {
				purged = time.Now()
				c.report("purging", c.purge(work))
			}
		}
		cancel()
		if done {
			return
		}
	}
}

func (c *core) report(what string, err error) {
	if err != nil {
		c.config.log.Warn("deliver: "+what+" failed, and will be tried again", "err", err)
	}
}

// alarm gives a notice of each destination that gathers too many dead letters. It counts
// the dead letters themselves: also those whose worker died.
func (c *core) alarm(ctx context.Context) error {
	now := time.Now()
	var many []string
	err := c.store.read().query(ctx, `
		SELECT args->>'destination' FROM river_job WHERE `+diedSince+`
		GROUP BY args->>'destination' HAVING count(*) > $2`,
		[]any{c.store.stamp(now.Add(-c.config.alert.Per)), c.config.alert.Dead}, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			many = append(many, id)
			return err
		})
	for _, id := range many {
		if err == nil {
			err = c.alarmOf(ctx, id, now)
		}
	}
	return err
}

const diedSince = `kind = 'retrip_delivery' AND state IN ('cancelled', 'discarded') AND finalized_at > $1`

func (c *core) alarmOf(ctx context.Context, id string, now time.Time) error {
	due := now.Add(-c.config.alert.Again).UnixMilli()
	var alerted int64
	err := one(ctx, c.store.read(), `SELECT alerted_at FROM retrip_destination WHERE id = $1`, []any{id}, &alerted)
	if err != nil || alerted > due {
		return ignore(err, ErrNotFound)
	}
	// Counted once it is known that a notice is due: what was found before may be old, if
	// another process gave the last notice meanwhile.
	var n int
	err = one(ctx, c.store.read(), `SELECT count(*) FROM river_job WHERE `+diedSince+` AND args->>'destination' = $2`,
		[]any{c.store.stamp(now.Add(-c.config.alert.Per)), id}, &n)
	if err != nil {
		return err
	}
	latest, err := c.Dead().List(ctx, Filter{Destination: id, Since: now.Add(-c.config.alert.Per), Replayed: true, Limit: 100})
	if err != nil {
		return err
	}
	notice := Notice{Kind: TooManyDead, Destination: id, Dead: n, Reasons: make(map[Reason]int)}
	for i, d := range latest {
		if i == 0 {
			notice.Why = d.LastError()
		}
		notice.Reasons[d.Reason]++
	}
	return c.store.write(ctx, func(tx txn) error {
		first, err := tx.exec(ctx, `UPDATE retrip_destination SET alerted_at = $2 WHERE id = $1 AND alerted_at <= $3`, id, now.UnixMilli(), due)
		if err != nil || first == 0 {
			return err
		}
		return c.notify(ctx, tx, notice)
	})
}
