package retrip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
)

// WithMaxBody sets how many bytes of a request body without GetBody are kept so
// that the request can be repeated. The default is 1 MiB.
//
// The body is kept while the first attempt streams it, never ahead of it. A body
// that turns out longer is sent once, and what was kept of it is dropped; one
// whose declared length is over n is not kept at all. Zero keeps nothing: such a
// request is repeated only if no byte of its body had been read. A body with
// GetBody, as http.NewRequest sets it for bytes and strings, is never kept.
//
// WithMaxBody panics if n is negative.
func WithMaxBody(n int64) CallOption {
	if n < 0 {
		panic(fmt.Sprintf("retrip: WithMaxBody(%d): the limit is negative", n))
	}
	return callOption(func(s *settings) { s.maxBody = n })
}

// A payload gives each attempt of one request its body.
type payload struct {
	req    *http.Request
	log    *replayLog   // nil if the caller's GetBody serves
	reader *watchedBody // around the caller's reader of this attempt; nil in memory
}

// newPayload returns nil for a request without a body, which needs no help.
func newPayload(req *http.Request, limit int64) *payload {
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	p := &payload{req: req}
	if req.GetBody == nil {
		if req.ContentLength > limit {
			limit = 0
		}
		p.log = newReplayLog(req, limit)
	}
	return p
}

// open returns the body for an attempt. The first one is the caller's own where
// that can be, so that net/http still sees what it knows how to send best.
func (p *payload) open(attempt int) (io.ReadCloser, error) {
	if p.log != nil {
		return p.log.open()
	}
	body := p.req.Body
	if attempt > 1 {
		var err error
		if body, err = p.req.GetBody(); err != nil {
			return nil, err
		}
	}
	p.reader = nil
	if !inMemory(body) {
		p.reader = &watchedBody{ReadCloser: body}
		return p.reader, nil
	}
	return body, nil
}

// getBody is what an attempt carries for the base's own use: net/http sends a
// request again by itself when a kept connection turns out to be dead.
func (p *payload) getBody() func() (io.ReadCloser, error) {
	switch {
	case p.log == nil:
		return p.req.GetBody
	case p.log.limit == 0:
		return nil
	}
	return p.log.openAgain
}

// replayable reports whether another attempt could send the whole body.
func (p *payload) replayable() bool { return p.log == nil || p.log.replayable() }

// fault returns the error of the caller's own reader, if it failed.
func (p *payload) fault() error {
	if p.log != nil {
		return p.log.fault()
	}
	if p.reader != nil {
		return p.reader.fault()
	}
	return nil
}

// reading reports whether a Read of the caller's reader is under way.
func (p *payload) reading() bool {
	if p.log != nil {
		return p.log.busy()
	}
	return p.reader != nil && p.reader.busy()
}

// interrupt ends a Read that is under way, and all later ones.
func (p *payload) interrupt() {
	if p.log != nil {
		p.log.halt(errSourceClosed)
	} else {
		_ = p.reader.Close()
	}
}

// retire makes the bodies of the attempt that just ended stale, for another to
// follow. It reports false, and leaves them alone, if none can: the base may have
// read on since that was asked.
func (p *payload) retire() bool { return p.log == nil || p.log.retire() }

// end says that no further attempt starts. The last attempt's body stays open if
// its response is handed back: the base may still be sending it, and closes it.
func (p *payload) end(responded bool) {
	if p.log != nil {
		p.log.end(responded)
	}
}

var (
	nopCloser         = reflect.TypeOf(io.NopCloser(nil))
	nopCloserWriterTo = reflect.TypeOf(io.NopCloser(new(bytes.Buffer)))
)

// inMemory reports whether net/http would see at once that reading body neither
// fails nor blocks. Such a body is not wrapped: net/http sends its first bytes in
// one packet with the headers.
func inMemory(body io.Reader) bool {
	if t := reflect.TypeOf(body); t == nopCloser || t == nopCloserWriterTo {
		body, _ = reflect.ValueOf(body).Field(0).Interface().(io.Reader)
	}
	switch body.(type) {
	case *bytes.Buffer, *bytes.Reader, *strings.Reader:
		return true
	}
	return false
}

// A watchedBody remembers how the caller's reader failed: that is neither the
// host's fault nor worth another attempt.
type watchedBody struct {
	io.ReadCloser
	mu      sync.Mutex
	reading bool
	closed  bool // what a Read under way then returns is no fault
	err     error
}

// Close closes the caller's body once: an attempt's timer and the base may both ask.
func (b *watchedBody) Close() error {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	if closed {
		return nil
	}
	return b.ReadCloser.Close()
}

func (b *watchedBody) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	closed := b.closed
	b.reading = !closed
	b.mu.Unlock()
	if closed {
		return 0, errBodyClosed
	}
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reading = false
		if err != nil && err != io.EOF && b.err == nil && !b.closed {
			b.err = err
		}
	}()
	return b.ReadCloser.Read(p)
}

func (b *watchedBody) fault() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

func (b *watchedBody) busy() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reading
}

// A bodyError is the error of a base that does not tell that it was the caller's own
// reader which failed.
type bodyError struct {
	error
	source error
}

func (e bodyError) Unwrap() []error { return []error{e.error, e.source} }

var errBodyClosed = errors.New("retrip: read on a request body that was closed")

// errSourceClosed is the error of reads that were waiting when the source was closed
// under them.
var errSourceClosed = errors.New("retrip: request body closed while it was being read")

const chunkSize = 32 << 10

// A replayLog keeps what was read of a body that can be read only once, and lets
// any number of cursors read it from the start, one attempt after the other.
//
// A base may go on reading the body of an attempt after its RoundTrip returned
// (net/http does, when a response overtakes the upload). Such a stale reader can
// neither take bytes from the next attempt nor race with it: what it still
// fetches goes to the log.
type replayLog struct {
	limit int64
	gone  chan struct{} // closed with the source; nil without Request.Cancel

	mu     sync.Mutex
	wake   sync.Cond // a fetch ended, a cursor was closed, or all is over
	source io.ReadCloser
	stop   func() bool // ends the watch on the context; nil if there is none

	chunks  [][]byte // the bytes read of the source, from chunk number dropped on
	dropped int      // chunks that are no longer kept
	size    int64    // bytes read of the source
	err     error    // how the source ended: io.EOF or its own error
	spilled bool     // size went over limit: no new cursor can start

	attempt int     // cursors of other attempts are stale
	opened  int     // cursors of this attempt that have begun and are not closed yet
	reader  *cursor // the one reading the source now; it holds no lock
	ended   bool    // no further attempt starts
	closed  bool    // the source was closed, or is being closed under the next lock
	halted  error   // why all reads fail: the context ended, or the source blocked

	closing sync.Mutex // held during the Close of the source; taken after mu
}

func newReplayLog(req *http.Request, limit int64) *replayLog {
	l := &replayLog{source: req.Body, limit: limit}
	l.wake.L = &l.mu
	if cancel := cancelOf(req); cancel != nil {
		l.gone = make(chan struct{})
		go func() {
			select {
			case <-cancel:
				l.halt(errCancelled)
			case <-l.gone:
			}
		}()
	}
	// Last, since the context may have ended by now.
	if ctx := req.Context(); ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { l.halt(context.Cause(ctx)) })
		l.mu.Lock()
		l.stop = stop
		l.mu.Unlock()
	}
	return l
}

// open returns a new reader of the whole body.
func (l *replayLog) open() (io.ReadCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, err := l.openLocked()
	if err != nil {
		return nil, err
	}
	c.beginLocked()
	return c, nil
}

// openAgain is the GetBody of the attempts. What it returns holds the source open
// only from its first Read on: when net/http sends a request again after a GOAWAY it
// asks for two bodies, and forgets the first.
func (l *replayLog) openAgain() (io.ReadCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, err := l.openLocked()
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (l *replayLog) openLocked() (*cursor, error) {
	switch {
	case l.halted != nil:
		return nil, l.halted
	case l.closed:
		return nil, errBodyClosed
	case l.spilled:
		return nil, fmt.Errorf("retrip: the request body is longer than the %d bytes kept and cannot be sent again", l.limit)
	}
	return &cursor{log: l, attempt: l.attempt}, nil
}

func (l *replayLog) replayable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replayableLocked()
}

func (l *replayLog) replayableLocked() bool {
	return !l.spilled && !l.closed && l.faultLocked() == nil
}

func (l *replayLog) fault() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.faultLocked()
}

func (l *replayLog) faultLocked() error {
	if l.err == io.EOF || l.halted != nil {
		return nil
	}
	return l.err
}

func (l *replayLog) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reader != nil
}

func (l *replayLog) retire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.replayableLocked() && l.halted == nil {
		return false
	}
	l.retireLocked()
	return true
}

func (l *replayLog) retireLocked() {
	l.attempt++
	l.opened = 0
	l.wake.Broadcast()
}

func (l *replayLog) end(responded bool) {
	l.mu.Lock()
	if !responded {
		l.retireLocked()
	}
	l.ended = true
	if l.closed {
		// The end of the context or the attempt's timer came first, and may still be
		// at it.
		l.mu.Unlock()
		l.closing.Lock()
		defer l.closing.Unlock()
		return
	}
	// A reader that the base has not closed comes out by itself and then closes
	// the source: few sources can be closed under a Read. One that the base did
	// close under its Read would have been closed so without us.
	l.closeIdle(l.reader == nil || l.reader.closed)
}

// halt ends everything, also a Read that is under way.
func (l *replayLog) halt(cause error) {
	l.mu.Lock()
	if l.halted == nil {
		l.halted = cause
	}
	l.ended, l.opened = true, 0
	l.wake.Broadcast()
	l.closeIdle(true)
}

// closeIdle closes the source if nobody can need it any more. It is called with
// the lock held and gives it up, since a Close may take its time.
func (l *replayLog) closeIdle(now bool) {
	if !now || !l.ended || l.opened > 0 || l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	l.chunks = nil
	l.wake.Broadcast()
	stop := l.stop
	l.closing.Lock()
	l.mu.Unlock()
	defer l.closing.Unlock()

	if stop != nil {
		stop()
	}
	if l.gone != nil {
		close(l.gone)
	}
	_ = l.source.Close()
}

// appendLocked keeps p. Chunks grow with the body, so that a short one stays
// small.
func (l *replayLog) appendLocked(p []byte) {
	for len(p) > 0 {
		last := len(l.chunks) - 1
		if last < 0 || len(l.chunks[last]) == cap(l.chunks[last]) {
			size := min(chunkSize, max(512, len(p), int(min(l.size, chunkSize))))
			l.chunks = append(l.chunks, make([]byte, 0, size))
			last++
		}
		c := l.chunks[last]
		n := min(len(p), cap(c)-len(c))
		l.chunks[last] = append(c, p[:n]...)
		p = p[n:]
	}
}

// A cursor is one attempt's reader of a replayLog.
type cursor struct {
	log     *replayLog
	attempt int
	chunk   int // number of the chunk to read next, counted from the first ever
	off     int // where in it
	begun   bool
	closed  bool
}

func (c *cursor) Read(p []byte) (int, error) {
	l := c.log
	l.mu.Lock()
	defer l.mu.Unlock()
	c.beginLocked()
	if len(p) == 0 {
		return 0, nil
	}
	for {
		switch {
		case c.staleLocked():
			return 0, errBodyClosed
		case l.halted != nil:
			return 0, l.halted
		case l.closed:
			return 0, errBodyClosed
		case c.chunk < l.dropped:
			return 0, fmt.Errorf("retrip: the request body is longer than the %d bytes kept and has been read by another reader", l.limit)
		}
		if n := c.copyLocked(p); n > 0 {
			return n, nil
		}
		if l.err != nil {
			return 0, l.err
		}
		if l.reader == nil {
			return c.fetchLocked(p)
		}
		l.wake.Wait()
	}
}

// beginLocked makes the cursor hold the source open.
func (c *cursor) beginLocked() {
	if !c.begun && !c.staleLocked() {
		c.begun = true
		c.log.opened++
	}
}

func (c *cursor) staleLocked() bool { return c.closed || c.attempt != c.log.attempt }

// copyLocked reads from the log.
func (c *cursor) copyLocked(p []byte) (n int) {
	l := c.log
	for n < len(p) {
		i := c.chunk - l.dropped
		if i >= len(l.chunks) {
			break
		}
		m := copy(p[n:], l.chunks[i][c.off:])
		n += m
		c.off += m
		if c.off < len(l.chunks[i]) || i == len(l.chunks)-1 {
			break
		}
		c.chunk, c.off = c.chunk+1, 0
	}
	return n
}

// fetchLocked reads from the source, into the base's own buffer, while others
// wait for the wake-up.
func (c *cursor) fetchLocked(p []byte) (n int, err error) {
	l := c.log
	func() {
		l.reader = c
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			l.reader = nil
			l.wake.Broadcast()
		}()
		n, err = l.source.Read(p)
	}()
	c.keepLocked(p[:n])
	if err != nil && l.err == nil {
		l.err = err
	}
	switch {
	case l.halted != nil:
		return 0, l.halted
	case c.staleLocked():
		if l.ended && l.opened == 0 {
			l.closeIdle(true)
			l.mu.Lock()
		}
		return 0, errBodyClosed
	}
	return n, err
}

// keepLocked logs what the cursor has just read, as long as somebody may need it.
func (c *cursor) keepLocked(p []byte) {
	l := c.log
	size := l.size + int64(len(p))
	switch stale := c.staleLocked(); {
	case stale:
		// For the attempt that follows, even if it is over the limit: a stale reader
		// gets no second time.
		l.appendLocked(p)
	case l.spilled || size > l.limit && len(p) > 0:
		// All that was kept is behind this cursor. Another one of this attempt that
		// is not as far sees by the number of its chunk that it has lost it.
		l.spilled = true
		l.dropped += max(1, len(l.chunks))
		l.chunks = nil
		c.chunk, c.off = l.dropped, 0
	default:
		l.appendLocked(p)
		c.chunk, c.off = l.dropped, 0
		if i := len(l.chunks) - 1; i >= 0 {
			c.chunk, c.off = l.dropped+i, len(l.chunks[i])
		}
	}
	l.size = size
}

// Close never waits for a Read.
func (c *cursor) Close() error {
	l := c.log
	l.mu.Lock()
	if c.closed {
		l.mu.Unlock()
		return nil
	}
	if c.begun && !c.staleLocked() {
		l.opened--
	}
	c.closed = true
	l.wake.Broadcast()
	l.closeIdle(true)
	return nil
}
