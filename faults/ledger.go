package faults

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/retrip-go/retrip"
)

// A Call is one request whose fate is followed from the caller to the server's work
// and back.
type Call struct {
	ID     string
	Method string
	Key    bool   // an Idempotency-Key goes with it, the caller's own
	Body   []byte // nil: none
	Stream bool   // the body comes without GetBody and without a length
	Answer int    // bytes of the answer's body

	// Through is what the bytes of a Stream pass through on their way; nil: nothing.
	// An io.Closer in its place is closed with the body.
	Through func(io.Reader) io.Reader
}

// An Outcome is what the caller got: an answer, which is right in every byte, or an
// error of the round trip or of reading the answer.
type Outcome struct {
	Status   int // 0 without an answer
	Attempts int
	Err      error
	Broken   bool // the answer came, but was cut: Err says how
}

// idField names the call to the server; it is not the idempotency key.
const (
	idField  = "Faults-Id"
	sumField = "Faults-Sum" // of the request's body, as the server read it
)

// Do sends the call to the server at url and reads the answer. An answer that is not
// the call's own in every byte is an error that matches ErrWrong.
func Do(ctx context.Context, client *http.Client, url string, c Call) (out Outcome) {
	var body io.Reader
	switch {
	case c.Stream:
		body = struct{ io.Reader }{bytes.NewReader(c.Body)}
		if c.Through != nil {
			body = c.Through(body)
		}
	case c.Body != nil:
		body = bytes.NewReader(c.Body)
	}
	req, err := http.NewRequestWithContext(ctx, c.Method, url+"?answer="+strconv.Itoa(c.Answer), body)
	if err != nil {
		return Outcome{Err: err}
	}
	req.Header.Set(idField, c.ID)
	if c.Key {
		req.Header.Set(retrip.KeyHeader, c.ID)
	}
	resp, err := client.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*retrip.Error](err); ok {
			out.Attempts = len(failed.Attempts)
		}
		out.Err = err
		return out
	}
	defer func() { _ = resp.Body.Close() }()
	out.Status = resp.StatusCode
	out.Attempts = max(1, len(retrip.History(resp)))
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		out.Err, out.Broken = err, true
		return out
	}
	if resp.StatusCode != http.StatusOK {
		return out
	}
	switch {
	case resp.Header.Get(idField) != c.ID:
		out.Err = fmt.Errorf("%w: it belongs to %q", ErrWrong, resp.Header.Get(idField))
	case resp.Header.Get(sumField) != sum(c.Body):
		out.Err = fmt.Errorf("%w: the server read other bytes than were sent", ErrWrong)
	case c.Method != http.MethodHead && !bytes.Equal(got, Pattern(c.ID, c.Answer)):
		out.Err = fmt.Errorf("%w: %d bytes came that are not the %d that were sent", ErrWrong, len(got), c.Answer)
	}
	return out
}

// ErrWrong is what must never happen: an answer that says it is right and is not.
var ErrWrong = errors.New("wrong answer")

// Pattern returns n bytes that follow from id and nothing else.
func Pattern(id string, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(id))).Read(b)
	return b
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// An Entry is what the server saw of one call.
type Entry struct {
	Arrivals int             // requests whose headers came
	Whole    int             // those of them whose body came to its end
	Work     int             // how often the work was done: once for all requests with one key
	Keys     map[string]bool // of all arrivals, "" for one without; true if its work was done
	Sums     map[string]bool // of whole bodies
}

// A Ledger is a server that writes down what it does. It does the work of requests
// with one idempotency key once, and answers the others from memory. The zero Ledger
// is ready, and forgets when the process ends; OpenLedger makes one that does not.
type Ledger struct {
	mu      sync.Mutex
	entries map[string]*Entry
	file    *os.File // nil: kept in memory only
}

// An event is one line of a Ledger's file. All that a Ledger knows follows from its
// events.
type event struct {
	ID  string
	Key string `json:",omitempty"`
	Sum string `json:",omitempty"` // of a body that came to its end; empty: a request arrived
}

// OpenLedger returns a Ledger that knows what is written in the file at path, and
// appends to it, synced, before it answers. It survives a process that is killed.
func OpenLedger(path string) (*Ledger, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	l := &Ledger{file: f}
	for lines := bufio.NewScanner(f); ; {
		if !lines.Scan() {
			if err := lines.Err(); err != nil {
				_ = f.Close()
				return nil, err
			}
			return l, nil
		}
		var e event
		// A line that was torn is the last deed of a process that was killed before it
		// could answer.
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			l.apply(e)
		}
	}
}

// Close closes the file of a Ledger that has one.
func (l *Ledger) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// write takes note of an event, in the file first.
func (l *Ledger) write(e event) error {
	if err := l.append(e); err != nil || l.file == nil {
		return err
	}
	return l.file.Sync() // not under the lock, so that others need not wait for the disk
}

func (l *Ledger) append(e event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		// The line break in front ends a line that was torn.
		if _, err := fmt.Fprintf(l.file, "\n%s\n", line); err != nil {
			return err
		}
	}
	l.apply(e)
	return nil
}

func (l *Ledger) apply(ev event) {
	e := l.entry(ev.ID)
	if ev.Sum == "" {
		e.Arrivals++
		if _, ok := e.Keys[ev.Key]; !ok {
			e.Keys[ev.Key] = false
		}
		return
	}
	e.Whole++
	e.Sums[ev.Sum] = true
	if ev.Key == "" || !e.Keys[ev.Key] {
		e.Work++
	}
	e.Keys[ev.Key] = true
}

func (l *Ledger) entry(id string) *Entry {
	if l.entries == nil {
		l.entries = make(map[string]*Entry)
	}
	e := l.entries[id]
	if e == nil {
		e = &Entry{Keys: make(map[string]bool), Sums: make(map[string]bool)}
		l.entries[id] = e
	}
	return e
}

// Of returns what is written down about a call.
func (l *Ledger) Of(id string) Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := *l.entry(id)
	e.Keys, e.Sums = maps.Clone(e.Keys), maps.Clone(e.Sums)
	return e
}

// ServeHTTP does the work of a request whose whole body came.
func (l *Ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := event{ID: r.Header.Get(idField), Key: r.Header.Get(retrip.KeyHeader)}
	if err := l.write(e); err != nil {
		panic(http.ErrAbortHandler) // what was not written down must not be done
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, r.Body); err != nil {
		panic(http.ErrAbortHandler) // half a body is no order to do anything
	}
	e.Sum = hex.EncodeToString(hash.Sum(nil))
	if err := l.write(e); err != nil {
		panic(http.ErrAbortHandler)
	}
	n, _ := strconv.Atoi(r.URL.Query().Get("answer"))
	w.Header().Set(idField, e.ID)
	w.Header().Set(sumField, e.Sum)
	w.Header().Set("Content-Length", strconv.Itoa(n))
	_, _ = w.Write(Pattern(e.ID, n))
}

// Arrived writes down a request that something else will answer, or nothing.
func (l *Ledger) Arrived(r *http.Request) error {
	return l.write(event{ID: r.Header.Get(idField), Key: r.Header.Get(retrip.KeyHeader)})
}

// Forget makes room: what a call did is no longer known, and a request of it that
// still arrives is taken to be the first. A Ledger's file is left as it is.
func (l *Ledger) Forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.entries, id)
}

// Len returns how many calls are known.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

// Check returns an error for each way in which the outcome of a call does not agree
// with the ledger and with what a Transport promises.
func (l *Ledger) Check(c Call, out Outcome) error {
	e := l.Of(c.ID)
	var wrong []error
	claim := func(holds bool, format string, args ...any) {
		if !holds {
			wrong = append(wrong, fmt.Errorf("%s %s: "+format, append([]any{c.Method, c.ID}, args...)...))
		}
	}
	claim(!errors.Is(out.Err, ErrWrong), "%v", out.Err)
	claim((out.Status != 0) != (out.Err != nil) || out.Broken, "neither one answer nor one error: %+v", out)
	if out.Status == http.StatusOK {
		claim(e.Work >= 1, "success without work")
	}
	_, bare := e.Keys[""]
	claim(len(e.Keys) <= 1, "%d keys, or one that did not always go with it", len(e.Keys))
	for s := range e.Sums {
		claim(s == sum(c.Body), "the server read other bytes than were sent")
	}
	if c.Method == http.MethodPost || c.Method == http.MethodPatch {
		claim(e.Work <= 1, "work was done %d times", e.Work)
		claim(!bare || e.Arrivals <= 1, "it came %d times without a key", e.Arrivals)
	}
	return errors.Join(wrong...)
}
