package deliver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/retrip-go/retrip"
)

// Parked is what is kept of a request that a retrip.Transport gave up.
type Parked struct {
	Method string      `json:"method"`
	URL    string      `json:"url"` // may hold secrets: it is kept to replay, and shown only by its host
	Header http.Header `json:"header,omitempty"`
	Lost   string      `json:"lost,omitempty"` // why it cannot be replayed; "" if it can
}

type parked struct{ Parked }

// kept are the header fields that are kept of a parked request. Credentials are not.
var kept = []string{"Content-Type", "Content-Encoding", "Accept", retrip.KeyHeader, "Webhook-Id"}

// Parking returns hooks for a retrip.Transport that make a dead letter of each request
// it gives up, with the story of its attempts, so that it can be looked at and
// replayed:
//
//	http.Client{Transport: retrip.New(nil, retrip.WithTrace(client.Parking()))}
//
// Requests that the caller cancelled, and answers that are final (most 4xx), are not
// parked. The destination of a parked request is its host. Its body is kept if the
// request has GetBody and it is no longer than WithMaxPayload; else the dead letter
// says so, and can only be looked at. Of its header the content's fields, the key and
// the fields named here are kept; credentials are the caller's to add, by the Client's
// WithTransport, when it is replayed, and a user and password in its URL are not kept.
//
// The replay carries the key that the attempts carried, so that a server which did the
// work after all does not do it again.
//
// The dead letter is written before the caller gets the response or the error; one
// that cannot be written within 5 s is logged.
func (c *core) Parking(fields ...string) *retrip.Trace {
	keep := slices.Clone(kept)
	for _, f := range fields {
		keep = append(keep, textproto.CanonicalMIMEHeaderKey(f))
	}
	return &retrip.Trace{GaveUp: func(info retrip.GaveUpInfo) {
		if info.Reason == retrip.ReasonCancelled {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(info.Attempt.Request.Context()), 5*time.Second)
		defer cancel()
		if err := c.park(ctx, info, keep); err != nil {
			c.config.log.Error("deliver: a request that was given up could not be parked", "host", info.Host, "err", err)
		}
	}}
}

func (c *core) park(ctx context.Context, info retrip.GaveUpInfo, keep []string) error {
	req := info.Attempt.Request
	to := *req.URL
	to.User, to.Fragment, to.RawFragment = nil, "", ""
	p := Parked{Method: cmp.Or(req.Method, http.MethodGet), URL: to.String(), Header: make(http.Header)}
	for _, f := range keep {
		if v, ok := req.Header[f]; ok {
			p.Header[f] = slices.Clone(v)
		}
	}
	body, lost := c.copyBody(req)
	p.Lost = lost
	id := info.Key
	if e := (Event{ID: id, To: []string{"-"}}); id == "" || e.check(0) != nil {
		id = uuid.NewString()
	}
	l := letter{
		Event: id, Destination: info.Host, Payload: body, ContentType: req.Header.Get("Content-Type"),
		MaxAttempts: max(info.MaxAttempts, info.Attempt.Number), Reason: ReasonParked, Parked: &parked{p}, Died: time.Now(),
	}
	for _, r := range info.Attempts {
		a := Attempt{Number: r.Number, At: r.Start, Duration: r.Duration, Status: r.Status}
		if r.Err != nil {
			a.Err = explain(r.Err)
		}
		l.Attempts = append(l.Attempts, a)
	}
	if len(l.Attempts) == 0 { // refused by the breaker
		l.Attempts = []Attempt{{At: l.Died, Err: explain(info.Err)}}
	}
	added, err := c.Dead().add(ctx, l)
	if err == nil && !added {
		err = fmt.Errorf("there is a delivery of event %s to %s already", id, info.Host)
	}
	if err == nil {
		c.meter.add(info.Host, minute{attempts: int64(info.Attempt.Number), retries: int64(max(info.Attempt.Number-1, 0)), failed: int64(info.Attempt.Number), dead: 1})
	}
	return err
}

// copyBody returns the request's body, or why there is none.
func (c *core) copyBody(req *http.Request) (body []byte, lost string) {
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		return nil, ""
	case req.GetBody == nil:
		return nil, "its body could be read only once, and was not kept"
	case req.ContentLength > int64(c.config.maxBody):
		return nil, fmt.Sprintf("its body of %d bytes is more than the %d that are kept", req.ContentLength, c.config.maxBody)
	}
	r, err := req.GetBody()
	if err != nil {
		return nil, "its body could not be had again"
	}
	defer func() { _ = r.Close() }()
	body, err = io.ReadAll(io.LimitReader(r, int64(c.config.maxBody)+1))
	switch {
	case err != nil:
		return nil, "its body could not be read again"
	case len(body) > c.config.maxBody:
		return nil, fmt.Sprintf("its body is more than the %d bytes that are kept", c.config.maxBody)
	}
	return body, ""
}

// request makes the request of a parked one's replay.
func (p *parked) request(ctx context.Context, d delivery) (*http.Request, error) {
	if p.Lost != "" {
		return nil, errors.New(p.Lost)
	}
	req, err := http.NewRequestWithContext(ctx, p.Method, p.URL, bytes.NewReader(d.Payload))
	if err != nil {
		return nil, errors.New("the parked request's URL cannot be used")
	}
	for name, values := range p.Header {
		req.Header[name] = slices.Clone(values)
	}
	if (p.Method == http.MethodPost || p.Method == http.MethodPatch) && req.Header.Get(retrip.KeyHeader) == "" {
		req.Header.Set(retrip.KeyHeader, d.Event)
	}
	return req, nil
}
