package deliver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
)

// A Destination is where events go.
type Destination struct {
	ID       string // up to 255 bytes without spaces
	URL      string // http or https
	Schedule string // by name (WithSchedule); one that the working process does not know is its default

	// Secrets sign what is sent, each a Standard Webhooks secret ("whsec_" and base64
	// of 24 to 64 bytes). While one is being replaced there are two, and two
	// signatures. None: nothing is signed. Get and List return hints instead of
	// secrets; Put with a hint keeps the secret it stands for.
	Secrets []string

	Timeout time.Duration // of an attempt; 0: the Client's
	AtOnce  int           // deliveries at once in a process; 0: the Client's
}

// A DestinationState is a Destination and how it does.
type DestinationState struct {
	Destination
	Disabled    string // why; "" if it is not
	HeldUntil   time.Time
	Failures    int       // in a row
	Trips       int       // in a row that the breaker opened
	PausedUntil time.Time // by the breaker, or since the destination asked for it
	PausedWhy   string
	Created     time.Time
	Updated     time.Time
}

// String says why nothing is sent, if so: "paused until 14:03:10, trip 2 of 4, because
// 503 Service Unavailable".
func (d DestinationState) describe(ladder int) string {
	switch now := time.Now(); {
	case d.Disabled != "":
		return "disabled: " + d.Disabled
	case d.HeldUntil.After(now):
		return "held until " + clock(d.HeldUntil)
	case d.PausedUntil.After(now) && d.Trips > 0:
		return fmt.Sprintf("paused until %s, trip %d of %d, because %s", clock(d.PausedUntil), min(d.Trips, ladder), ladder, d.PausedWhy)
	case d.PausedUntil.After(now):
		return fmt.Sprintf("paused until %s, because %s", clock(d.PausedUntil), d.PausedWhy)
	case d.Trips > 0:
		return "being probed"
	}
	return "open for deliveries"
}

// Destinations are those of a Client. It is safe for concurrent use.
type Destinations struct{ c *core }

// Destinations returns the destinations, to look at and to change.
func (c *core) Destinations() *Destinations { return &Destinations{c} }

// Put adds the destination, or replaces what was set for that id. How it does, its
// breaker and its history stay.
func (ds *Destinations) Put(ctx context.Context, d Destination) error {
	if err := ds.c.checkDestination(d); err != nil {
		return err
	}
	return ds.c.store.write(ctx, func(tx txn) error {
		old, err := destination(ctx, tx, d.ID)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if d.Secrets, err = restore(d.Secrets, old.Secrets); err != nil {
			return fmt.Errorf("deliver: destination %s: %w", d.ID, err)
		}
		secrets, err := json.Marshal(append([]string{}, d.Secrets...))
		if err != nil {
			return err
		}
		_, err = tx.exec(ctx, `
			INSERT INTO retrip_destination (id, url, secrets, schedule, timeout, at_once, created_at, updated_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $7)
			ON CONFLICT (id) DO UPDATE SET url = excluded.url, secrets = excluded.secrets, schedule = excluded.schedule,
				timeout = excluded.timeout, at_once = excluded.at_once, updated_at = excluded.updated_at`,
			d.ID, d.URL, string(secrets), d.Schedule, d.Timeout.Milliseconds(), d.AtOnce, time.Now().UnixMilli())
		return err
	})
}

func (c *core) checkDestination(d Destination) error {
	fault := func(format string, args ...any) error {
		return fmt.Errorf("deliver: destination %q: "+format, append([]any{d.ID}, args...)...)
	}
	if d.ID == "" || len(d.ID) > 255 || !utf8.ValidString(d.ID) || strings.ContainsFunc(d.ID, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fault("the id must have 1 to 255 bytes, and no spaces or control characters")
	}
	u, err := url.Parse(d.URL)
	switch {
	case err != nil:
		return fault("the URL cannot be parsed") // err repeats it
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fault("the URL must be http or https, with a host")
	case u.User != nil:
		return fault("the URL must not hold a user name or password")
	}
	if d.Timeout < 0 || d.Timeout > c.config.timeout {
		return fault("Timeout %v is not between 0 and the Client's, %v", d.Timeout, c.config.timeout)
	}
	if d.AtOnce < 0 {
		return fault("AtOnce is negative")
	}
	return nil
}

// restore puts back the secrets that hints stand for.
func restore(given, have []string) ([]string, error) {
	var all []string
	for i, s := range given {
		if strings.HasPrefix(s, hintPrefix) {
			known := false
			for _, h := range have {
				if hint(h) == s {
					all, known = append(all, h), true
					break
				}
			}
			if !known {
				return nil, fmt.Errorf("secret %d is a hint that stands for no secret", i+1)
			}
			continue
		}
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s, "whsec_"))
		if !strings.HasPrefix(s, "whsec_") || err != nil || len(key) < 24 || len(key) > 64 {
			return nil, fmt.Errorf("secret %d is not whsec_ and base64 of 24 to 64 bytes", i+1)
		}
		all = append(all, s)
	}
	return all, nil
}

const hintPrefix = "whsec_…"

// hint tells secrets apart for those who know them: their last four characters.
func hint(secret string) string {
	secret = strings.TrimRight(secret, "=")
	return hintPrefix + secret[len(secret)-4:]
}

const destinationColumns = `id, url, secrets, schedule, timeout, at_once, disabled, held_until, failures, trips,
	paused_until, paused_why, probe_until, created_at, updated_at`

// scanDestination reads a row with its secrets.
func scanDestination(scan func(...any) error) (DestinationState, int64, error) {
	var d DestinationState
	var secrets string
	var timeout, held, paused, probe, created, updated int64
	err := scan(&d.ID, &d.URL, &secrets, &d.Schedule, &timeout, &d.AtOnce, &d.Disabled, &held, &d.Failures, &d.Trips,
		&paused, &d.PausedWhy, &probe, &created, &updated)
	if err != nil {
		return d, 0, err
	}
	d.Timeout = time.Duration(timeout) * time.Millisecond
	d.HeldUntil, d.PausedUntil, d.Created, d.Updated = at(held), at(paused), at(created), at(updated)
	return d, probe, json.Unmarshal([]byte(secrets), &d.Secrets)
}

// at is zero for zero.
func at(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func destination(ctx context.Context, s session, id string) (DestinationState, error) {
	d, _, err := destinationAndProbe(ctx, s, id)
	return d, err
}

func destinationAndProbe(ctx context.Context, s session, id string) (d DestinationState, probe int64, err error) {
	found := false
	err = s.query(ctx, `SELECT `+destinationColumns+` FROM retrip_destination WHERE id = $1`, []any{id}, func(scan func(...any) error) error {
		found = true
		var err error
		d, probe, err = scanDestination(scan)
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("deliver: destination %q: %w", id, ErrNotFound)
	}
	return d, probe, err
}

// Get returns a destination, with hints for its secrets.
func (ds *Destinations) Get(ctx context.Context, id string) (DestinationState, error) {
	d, err := destination(ctx, ds.c.store.read(), id)
	hide(&d)
	return d, err
}

// List returns all destinations in the order of their ids, with hints for their
// secrets.
func (ds *Destinations) List(ctx context.Context) ([]DestinationState, error) {
	var all []DestinationState
	err := ds.c.store.read().query(ctx, `SELECT `+destinationColumns+` FROM retrip_destination ORDER BY id`, nil, func(scan func(...any) error) error {
		d, _, err := scanDestination(scan)
		hide(&d)
		all = append(all, d)
		return err
	})
	return all, err
}

func hide(d *DestinationState) {
	for i, s := range d.Secrets {
		d.Secrets[i] = hint(s)
	}
}

// Describe says in a few words whether a destination is sent to, and if not, why and
// until when.
func (ds *Destinations) Describe(d DestinationState) string {
	return d.describe(len(ds.c.config.breaker.Pauses))
}

// Pause holds all deliveries to a destination until then. No attempts are used up.
func (ds *Destinations) Pause(ctx context.Context, id string, until time.Time) error {
	return ds.set(ctx, id, `held_until = $2`, until.UnixMilli())
}

// Resume ends a Pause, and what the breaker knows against the destination. What sleeps
// until the end of a pause is sent within seconds.
func (ds *Destinations) Resume(ctx context.Context, id string) error {
	now := time.Now()
	return ds.c.store.write(ctx, func(tx txn) error {
		err := set(ctx, tx, id, `held_until = 0, paused_until = 0, paused_why = '', trips = 0, failures = 0, probe_until = 0, updated_at = $2`, now.UnixMilli())
		if err != nil {
			return err
		}
		// Not what was planned for later: a retry, or a replay at a rate.
		_, err = tx.exec(ctx, `UPDATE river_job SET scheduled_at = $2 WHERE `+isPending+`
			AND state = 'scheduled' AND metadata->>'snoozes' IS NOT NULL AND args->>'destination' = $1`, id, ds.c.store.stamp(now))
		return err
	})
}

// Disable makes every delivery to a destination a dead letter until Enable, also those
// that are waiting for their next attempt.
func (ds *Destinations) Disable(ctx context.Context, id, why string) error {
	if why == "" {
		why = "by its operator"
	}
	return ds.set(ctx, id, `disabled = $2`, why)
}

// Enable ends Disable. What became a dead letter meanwhile can be replayed.
func (ds *Destinations) Enable(ctx context.Context, id string) error {
	return ds.set(ctx, id, `disabled = '', probe_until = 0, updated_at = $2`, time.Now().UnixMilli())
}

func (ds *Destinations) set(ctx context.Context, id, assign string, value any) error {
	return ds.c.store.write(ctx, func(tx txn) error { return set(ctx, tx, id, assign, value) })
}

func set(ctx context.Context, s session, id, assign string, value any) error {
	n, err := s.exec(ctx, `UPDATE retrip_destination SET `+assign+` WHERE id = $1`, id, value)
	if err == nil && n == 0 {
		err = fmt.Errorf("deliver: destination %q: %w", id, ErrNotFound)
	}
	return err
}
