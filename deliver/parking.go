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
	"runtime"
	"slices"
	"sync"
	"time"
	"weak"

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
// The replay carries the request's key. One that the Transport made is known only if
// there was an answer: give requests that must not be done twice a key of your own.
//
// The dead letter is written before the caller gets the response or the error; one
// that cannot be written within 5 s is logged.
func (c *core) Parking(fields ...string) *retrip.Trace {
	keep := slices.Clone(kept)
	for _, f := range fields {
		keep = append(keep, textproto.CanonicalMIMEHeaderKey(f))
	}
	var s stories
	return &retrip.Trace{Attempted: s.begin, Pausing: s.goOn, GaveUp: func(info retrip.GaveUpInfo) {
		told := s.end(info)
		if info.Reason == retrip.ReasonCancelled {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(info.Attempt.Request.Context()), 5*time.Second)
		defer cancel()
		if err := c.park(ctx, info, told, keep); err != nil {
			c.config.log.Error("deliver: a request that was given up could not be parked", "host", info.Host, "err", err)
		}
	}}
}

// stories are those of requests that have failed once and may yet succeed: then nobody
// says so, and the story goes with its request. The response of a hook has no
// retrip.History yet.
type stories struct{ told sync.Map } // []chapter by weak.Pointer[http.Request]

// A chapter is an attempt, and when it ended since the first began.
type chapter struct {
	Attempt
	end, pause time.Duration
}

// begin forgets what was told of a request that is used again.
func (s *stories) begin(a retrip.Attempt) {
	if a.Number == 1 {
		s.told.Delete(weak.Make(a.Request))
	}
}

func (s *stories) goOn(info retrip.PausingInfo) {
	key := weak.Make(info.Attempt.Request)
	told, _ := s.told.Load(key)
	chapters, _ := told.([]chapter)
	if chapters == nil {
		runtime.AddCleanup(info.Attempt.Request, func(key weak.Pointer[http.Request]) { s.told.Delete(key) }, key)
	}
	s.told.Store(key, tell(chapters, info.Attempt))
}

func (s *stories) end(info retrip.GaveUpInfo) []chapter {
	told, _ := s.told.LoadAndDelete(weak.Make(info.Attempt.Request))
	chapters, _ := told.([]chapter)
	return chapters
}

// tell adds an attempt that has just ended.
func tell(chapters []chapter, a retrip.Attempt) []chapter {
	start := time.Duration(0)
	if n := len(chapters); n > 0 {
		start = chapters[n-1].end + chapters[n-1].pause
	}
	c := chapter{Attempt{
		Number: max(a.Number, 1), At: time.Now().Add(start - a.Elapsed), Duration: max(a.Elapsed-start, 0),
	}, a.Elapsed, a.Pause}
	if a.Response != nil {
		c.Status = a.Response.StatusCode
	}
	if a.Err != nil {
		c.Err = explain(a.Err)
	}
	return append(chapters, c)
}

func (c *core) park(ctx context.Context, info retrip.GaveUpInfo, told []chapter, keep []string) error {
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
	id := req.Header.Get(retrip.KeyHeader)
	if resp := info.Attempt.Response; id == "" && resp != nil && resp.Request != nil {
		id = resp.Request.Header.Get(retrip.KeyHeader) // the Transport's
	}
	if e := (Event{ID: id, To: []string{"-"}}); id == "" || e.check(0) != nil {
		id = uuid.NewString()
	}
	l := letter{
		Event: id, Destination: info.Host, Payload: body, ContentType: req.Header.Get("Content-Type"),
		MaxAttempts: max(info.MaxAttempts, info.Attempt.Number), Reason: ReasonParked, Parked: &parked{p}, Died: time.Now(),
	}
	l.Attempts = story(info, told)
	added, err := c.Dead().add(ctx, l)
	if err == nil && !added {
		err = fmt.Errorf("there is a delivery of event %s to %s already", id, info.Host)
	}
	if err == nil {
		c.meter.add(info.Host, minute{attempts: int64(info.Attempt.Number), retries: int64(max(info.Attempt.Number-1, 0)), failed: int64(info.Attempt.Number), dead: 1})
	}
	return err
}

// story is what the Transport tells of its attempts.
func story(info retrip.GaveUpInfo, told []chapter) []Attempt {
	var all []Attempt
	if failed, ok := errors.AsType[*retrip.Error](info.Err); ok {
		for _, r := range failed.Attempts {
			a := Attempt{Number: r.Number, At: r.Start, Duration: r.Duration, Status: r.Status}
			if r.Err != nil {
				a.Err = explain(r.Err)
			}
			all = append(all, a)
		}
	}
	if len(all) > 0 {
		return all
	}
	last := info.Attempt
	last.Err = info.Err
	for _, c := range tell(told, last) {
		all = append(all, c.Attempt)
	}
	return all
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
