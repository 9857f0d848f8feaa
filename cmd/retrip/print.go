package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/retrip-go/retrip/deliver"
	"golang.org/x/term"
)

// An output remembers that something could not be written: on a full disk no list is
// complete, and no command done.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(p)
	o.err = err
	return n, err
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// plain quotes what a terminal would obey, or show as something else than it is: events,
// answers and errors are written by others.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(s)
	}
	return s
}

// table prints rows under a head, or nothing without rows.
func (a *app) table(head string, rows [][]any) {
	if len(rows) == 0 {
		return
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if t, ok := cell.(time.Time); ok {
				cell = clock(t)
			}
			if cells[i] = plain(fmt.Sprint(cell)); cells[i] == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // the output remembers
}

func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}

// line prints a line of JSON.
func (a *app) line(v any) error {
	e := json.NewEncoder(tame{a.out})
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// said prints the result of a command as JSON, or as talk.
func (a *app) said(v any, format string, args ...any) error {
	if a.json {
		return a.line(v)
	}
	fmt.Fprintf(a.err, format+"\n", args...)
	return nil
}

// tame escapes in whole lines of JSON what encoding/json lets through and terminals
// obey, such as U+009B and U+202E. Only strings can hold it.
type tame struct{ w io.Writer }

func (t tame) Write(p []byte) (int, error) {
	var b bytes.Buffer
	for _, r := range string(p) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	if _, err := t.w.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// The JSON of the commands; its names are stable.
type (
	receiptJSON struct {
		Event       string `json:"event"`
		Delivery    int64  `json:"delivery"`
		Destination string `json:"destination"`
		Duplicate   bool   `json:"duplicate"`
	}
	statusJSON struct {
		Delivery    int64          `json:"delivery"`
		Event       string         `json:"event"`
		Destination string         `json:"destination"`
		ReplayOf    int64          `json:"replay_of,omitempty"`
		State       deliver.State  `json:"state"`
		Attempt     int            `json:"attempt"`
		MaxAttempts int            `json:"max_attempts"`
		Next        time.Time      `json:"next,omitzero"`
		Created     time.Time      `json:"created"`
		Ended       time.Time      `json:"ended,omitzero"`
		Reason      deliver.Reason `json:"reason,omitempty"`
		Size        int            `json:"payload_bytes"`
		ContentType string         `json:"content_type,omitempty"`
		Attempts    []attemptJSON  `json:"attempts"`
		Payload     []byte         `json:"payload,omitempty"` // base64
	}
	attemptJSON struct {
		Number int       `json:"number"`
		At     time.Time `json:"at"`
		Status int       `json:"status,omitempty"`
		MS     int64     `json:"ms"`
		Error  string    `json:"error,omitempty"`
		Answer string    `json:"answer,omitempty"`
	}
	replayJSON struct {
		Dead        int64  `json:"dead_letter"`
		Event       string `json:"event"`
		Destination string `json:"destination"`
		DryRun      bool   `json:"dry_run"`
		Delivery    int64  `json:"delivery,omitempty"`
		Refused     string `json:"refused,omitempty"`
	}
	destinationJSON struct {
		ID          string    `json:"id"`
		Host        string    `json:"host"`
		Schedule    string    `json:"schedule,omitempty"`
		TimeoutMS   int64     `json:"timeout_ms,omitempty"`
		AtOnce      int       `json:"at_once,omitempty"`
		State       string    `json:"state"`
		Disabled    string    `json:"disabled,omitempty"`
		HeldUntil   time.Time `json:"held_until,omitzero"`
		PausedUntil time.Time `json:"paused_until,omitzero"`
		PausedWhy   string    `json:"paused_because,omitempty"`
		Trips       int       `json:"trips"`
		Failures    int       `json:"failures_in_a_row"`
		Secrets     []string  `json:"secret_hints"`
	}
)

func newStatusJSON(s deliver.Status) statusJSON {
	j := statusJSON{
		Delivery: s.ID, Event: s.EventID, Destination: s.Destination, ReplayOf: s.ReplayOf, State: s.State, Attempt: s.Attempt,
		MaxAttempts: s.MaxAttempts, Next: s.Next.UTC(), Created: s.Created.UTC(), Ended: s.Ended.UTC(), Size: s.Size, Attempts: []attemptJSON{},
	}
	for _, at := range s.Attempts {
		j.Attempts = append(j.Attempts, attemptJSON{at.Number, at.At.UTC(), at.Status, at.Duration.Milliseconds(), at.Err, at.Answer})
	}
	return j
}

func newLetterJSON(d deliver.DeadLetter) statusJSON {
	j := newStatusJSON(d.Status)
	j.Reason, j.ContentType = d.Reason, d.ContentType
	return j
}

func newDestinationJSON(d deliver.DestinationState, state string) destinationJSON {
	return destinationJSON{
		ID: d.ID, Host: host(d.URL), Schedule: d.Schedule, TimeoutMS: d.Timeout.Milliseconds(), AtOnce: d.AtOnce, State: state,
		Disabled: d.Disabled, HeldUntil: d.HeldUntil.UTC(), PausedUntil: d.PausedUntil.UTC(), PausedWhy: d.PausedWhy,
		Trips: d.Trips, Failures: d.Failures, Secrets: append([]string{}, d.Secrets...),
	}
}

// host is all that is printed of a URL: path and query may hold secrets.
func host(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}
