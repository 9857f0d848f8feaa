package deliver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/riverqueue/river"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// A worker makes attempts.
type worker struct {
	river.WorkerDefaults[delivery]
	*core
}

func (w *worker) Timeout(*river.Job[delivery]) time.Duration { return w.config.timeout + 5*time.Second }

// NextRetry is asked right after Work failed, with the same job; or, when its process
// died, with one that never was worked: that is tried again soon, whatever the schedule
// says, since it was not the destination's fault. What the queue is told must not be
// past.
func (w *worker) NextRetry(job *river.Job[delivery]) time.Time {
	now := time.Now()
	if job.Args.next.IsZero() {
		return now.Add(soon())
	}
	if job.Args.next.Before(now) {
		return now
	}
	return job.Args.next
}

// Work makes one attempt, if now is the time for it.
func (w *worker) Work(ctx context.Context, job *river.Job[delivery]) error {
	d, probing, err := w.target(ctx, job)
	if err != nil {
		return err
	}
	leave, ok := w.gates.enter(d.ID, cmp.Or(d.AtOnce, w.config.atOnce))
	if !ok {
		return river.JobSnooze(soon())
	}
	defer leave()
	probe := false
	if probing {
		if probe, err = w.claimProbe(ctx, d.ID); err != nil || !probe {
			return errors.Join(err, river.JobSnooze(soon()))
		}
	}
	a, slow := w.attempt(ctx, job, d)
	if a.Status == 0 && errors.Is(ctx.Err(), context.Canceled) {
		if probe { // another process may make it at once
			w.note(w.releaseProbe(context.WithoutCancel(ctx), d.ID))
		}
		return river.JobSnooze(0) // this process stops: no attempt is used up, no failure counted
	}
	return w.conclude(ctx, job, d, a, probe, slow)
}

// soon is a second or two: enough for another destination's deliveries to pass.
func soon() time.Duration { return time.Second + rand.N(time.Second) }

// target finds where to send. Its error is what Work returns if now is not the time;
// probing says that a pause is over, and that one delivery goes first.
func (w *worker) target(ctx context.Context, job *river.Job[delivery]) (d DestinationState, probing bool, err error) {
	if p := job.Args.Parked; p != nil {
		return DestinationState{Destination: Destination{ID: job.Args.Destination, URL: p.URL}}, false, nil
	}
	d, _, err = destinationAndProbe(ctx, w.store.read(), job.Args.Destination)
	switch {
	case errors.Is(err, ErrNotFound):
		return d, false, w.bury(job, Attempt{Err: "the destination was removed", Reason: ReasonDisabled})
	case err != nil:
		return d, false, w.postpone(job, err)
	case d.Disabled != "":
		return d, false, w.bury(job, Attempt{Err: "the destination is disabled: " + d.Disabled, Reason: ReasonDisabled})
	}
	now := time.Now()
	if age := job.Args.age(job.CreatedAt, now); w.config.maxAge > 0 && age > w.config.maxAge {
		return d, false, w.bury(job, Attempt{Err: w.expired(job, d), Reason: ReasonExpired})
	}
	if wait := max(d.HeldUntil.Sub(now), d.PausedUntil.Sub(now)); wait > 0 {
		return d, false, river.JobSnooze(min(wait, week) + jitter(wait))
	}
	return d, d.Trips > 0 || !d.PausedUntil.IsZero(), nil
}

// expired says why a delivery that got too old was not made.
func (w *worker) expired(job *river.Job[delivery], d DestinationState) string {
	why := fmt.Sprintf("not delivered within %v", w.config.maxAge)
	if all := attempts(job.JobRow); len(all) > 0 {
		return why + ", the last attempt: " + all[len(all)-1].String()
	}
	if d.PausedWhy != "" {
		return why + ", the destination was paused: " + d.PausedWhy
	}
	return why
}

// week is the longest sleep: a destination may be held until a year that no Duration
// reaches.
const week = 7 * 24 * time.Hour

// jitter spreads what wakes up after a pause over a tenth of it, 30 s at most.
func jitter(pause time.Duration) time.Duration { return rand.N(min(pause/10, 30*time.Second) + 1) }

// postpone is for troubles of our own: they use no attempt up.
func (w *worker) postpone(job *river.Job[delivery], err error) error {
	w.config.log.Warn("deliver: attempt put off", "event", job.Args.Event, "destination", job.Args.Destination, "err", err)
	return river.JobSnooze(soon())
}

// bury ends the delivery.
func (w *worker) bury(job *river.Job[delivery], a Attempt) error {
	w.meter.add(job.Args.Destination, minute{dead: 1})
	return river.JobCancel(failure{a})
}

// attempt sends the delivery once. slow is how long the destination wants to be left
// alone.
func (w *worker) attempt(ctx context.Context, job *river.Job[delivery], d DestinationState) (a Attempt, slow time.Duration) {
	a = Attempt{Number: job.Attempt, At: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(d.Timeout, w.config.timeout))
	defer cancel()
	defer func() { a.Duration = time.Since(a.At) }()
	req, err := newRequest(ctx, job.Args, d, a.At)
	if err != nil {
		a.Err, a.Reason = err.Error(), ReasonPermanent
		return a, 0
	}
	resp, err := w.http.RoundTrip(req) // an http.Client would read a redirect's Location
	if err != nil {
		a.Err = explain(err)
		return a, 0
	}
	defer func() { _ = resp.Body.Close() }()
	a.Status = resp.StatusCode
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, answerSize+1))
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
	if a.Status < 200 || a.Status > 299 {
		a.Answer = string(answer)
		slow = slowdown(resp)
	}
	return a, slow
}

// newRequest makes the request of one attempt, signed anew: a signature is good for
// minutes, a schedule takes days.
func newRequest(ctx context.Context, d delivery, to DestinationState, now time.Time) (*http.Request, error) {
	if d.Parked != nil {
		return d.Parked.request(ctx, d)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, bytes.NewReader(d.Payload))
	if err != nil {
		return nil, errors.New("the destination's URL cannot be used")
	}
	h := req.Header
	h.Set("Content-Type", cmp.Or(d.ContentType, jsonType))
	h.Set("User-Agent", "retrip-deliver")
	h.Set(retrip.KeyHeader, d.Event)
	h.Set(standardwebhooks.HeaderWebhookID, d.Event)
	h.Set(standardwebhooks.HeaderWebhookTimestamp, fmt.Sprint(now.Unix()))
	var signatures []string
	for _, secret := range to.Secrets {
		wh, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			return nil, errors.New("a secret of the destination cannot be used")
		}
		s, err := wh.Sign(d.Event, now, d.Payload)
		if err != nil {
			return nil, errors.New("the payload cannot be signed")
		}
		signatures = append(signatures, s)
	}
	if len(signatures) > 0 {
		h.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	}
	return req, nil
}

// conclude tells the destination's breaker, and the queue by its error.
func (w *worker) conclude(ctx context.Context, job *river.Job[delivery], d DestinationState, a Attempt, probe bool, slow time.Duration) error {
	// What was sent is written down even if this process is told to stop.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	m := minute{attempts: 1}
	if job.Attempt > 1 || len(job.Errors) > 0 {
		m.retries = 1
	}
	if a.Status >= 200 && a.Status <= 299 {
		if m.retries > 0 {
			m.recovered = 1
		} else {
			m.firstTry = 1
		}
		w.meter.add(d.ID, m)
		w.note(w.succeeded(ctx, d))
		w.note(river.RecordOutput(ctx, a.record()))
		return nil
	}
	m.failed = 1
	w.meter.add(d.ID, m)
	if job.Args.Parked == nil {
		w.note(w.learn(ctx, d, a, probe, slow))
	}
	if a.Reason == "" {
		a.Reason = verdict(a.Status)
	}
	if a.Reason != "" {
		return w.bury(job, a)
	}
	if job.Attempt >= job.MaxAttempts {
		a.Reason = ReasonExhausted
		w.meter.add(d.ID, minute{dead: 1})
	} else {
		pause := w.schedule(d.Schedule).Pause
		if pause == nil { // it makes one attempt; that of the process which sent this made more
			pause = standard.Pause
		}
		job.Args.next = time.Now().Add(max(pause(job.Attempt), slow))
	}
	return failure{a}
}

// learn tells the breaker of a failure. A refusal of this one event says nothing about
// the destination; an answer of 410 disables it.
func (w *worker) learn(ctx context.Context, d DestinationState, a Attempt, probe bool, slow time.Duration) error {
	switch verdict(a.Status) {
	case ReasonGone:
		return w.Destinations().Disable(ctx, d.ID, "it answered 410 Gone")
	case ReasonPermanent:
		return w.succeeded(ctx, d)
	}
	if a.Status != http.StatusTooManyRequests && a.Status < 500 {
		slow = 0 // it is asked for this delivery alone
	}
	return w.failed(ctx, d, probe, a.String(), slow)
}

func (w *worker) note(err error) {
	if err != nil {
		w.config.log.Error("deliver: the result of an attempt was not fully written down", "err", err)
	}
}

// verdict says whether a status is final. 2xx alone is success; a redirect is a
// failure that somebody may mend, and is not followed.
func verdict(status int) Reason {
	switch status {
	case http.StatusGone:
		return ReasonGone
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusMisdirectedRequest, http.StatusLocked,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return ""
	}
	if status >= 400 && status <= 499 {
		return ReasonPermanent
	}
	return ""
}

// slowdown is how long a destination asks to be left alone: by Retry-After, else a few
// seconds if it says that it has too much to do (Standard Webhooks).
func slowdown(resp *http.Response) time.Duration {
	if d, ok := (retrip.Attempt{Response: resp}).RetryAfter(); ok {
		return min(d, 24*time.Hour)
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusGatewayTimeout:
		return 5*time.Second + rand.N(5*time.Second)
	}
	return 0
}

// gates limit the deliveries to one destination at once.
type gates struct {
	mu     sync.Mutex
	inside map[string]int
}

func (g *gates) enter(id string, limit int) (leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside == nil {
		g.inside = make(map[string]int)
	}
	if g.inside[id] >= limit {
		return nil, false
	}
	g.inside[id]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.inside[id]--; g.inside[id] == 0 {
			delete(g.inside, id)
		}
	}, true
}
