package idempotent

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// A recorder is the handler's ResponseWriter. It keeps the answer, and holds it back
// until release, unless the handler flushes, takes the connection over, or writes more
// than can be stored. In all else it is as net/http's.
type recorder struct {
	http.ResponseWriter
	limit int
	head  bool        // the request is a HEAD
	hold  bool        // nothing goes out before release, whatever the handler does
	above http.Header // as it was before the handler

	header   http.Header // as it was at WriteHeader; nil before
	status   int
	length   int64 // as declared; -1: it was not
	written  int64 // what was tried to
	body     bytes.Buffer
	sent     bool // what was held back went out; more goes out at once
	long     bool // the body is longer than limit
	broken   bool // something did not go out
	hijacked bool
}

func newRecorder(w http.ResponseWriter, r *http.Request, limit int, hold bool) *recorder {
	return &recorder{ResponseWriter: w, limit: limit, head: r.Method == http.MethodHead, hold: hold, above: w.Header().Clone()}
}

// Unwrap is for http.ResponseController: deadlines are the connection's business.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("idempotent: WriteHeader(%d): no status", status)) // as net/http, at the culprit
	case r.header != nil:
		return
	case r.hijacked:
		r.ResponseWriter.WriteHeader(status) // net/http logs it
		return
	}
	forged := func(name string, _ []string) bool { return strings.EqualFold(name, ReplayedHeader) }
	maps.DeleteFunc(r.Header(), forged)
	if status <= 199 && status != http.StatusSwitchingProtocols {
		r.ResponseWriter.WriteHeader(status) // informational: it comes before the answer, and is not stored
		return
	}
	r.status, r.header, r.length = status, r.Header().Clone(), -1
	if n, err := strconv.ParseInt(r.header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		r.length = n
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.hijacked {
		return r.ResponseWriter.Write(p) // http.ErrHijacked
	}
	r.begin()
	if len(p) == 0 {
		return 0, nil
	}
	if !r.bodyAllowed() {
		return 0, http.ErrBodyNotAllowed
	}
	if r.written += int64(len(p)); r.length >= 0 && r.written > r.length {
		return 0, http.ErrContentLength
	}
	kept := r.keep(p)
	if !r.sent {
		if kept || r.hold {
			return len(p), nil
		}
		r.send()
	}
	n, err := r.ResponseWriter.Write(p)
	r.broken = r.broken || err != nil
	return n, err
}

// begin is what net/http does for handlers that do not call WriteHeader.
func (r *recorder) begin() {
	if r.header == nil {
		r.WriteHeader(http.StatusOK)
	}
}

func (r *recorder) bodyAllowed() bool {
	return r.status >= 200 && r.status != http.StatusNoContent && r.status != http.StatusNotModified
}

// keep reports whether p could be kept.
func (r *recorder) keep(p []byte) bool {
	if r.long || r.body.Len()+len(p) > r.limit {
		if r.long = true; r.sent {
			r.body = bytes.Buffer{}
		}
		return false
	}
	r.body.Write(p)
	return true
}

// send lets go of what was held back. The header that goes out is the one of
// WriteHeader; what was set after it is not part of the answer, but for trailers.
func (r *recorder) send() {
	r.sent = true
	r.sniff()
	h := r.ResponseWriter.Header()
	late := maps.Clone(h)
	clear(h)
	maps.Copy(h, r.header.Clone())
	r.ResponseWriter.WriteHeader(r.status)
	if r.body.Len() > 0 {
		_, err := r.ResponseWriter.Write(r.body.Bytes())
		r.broken = err != nil
	}
	for name, v := range late {
		if r.isTrailer(name) {
			h[name] = v
		}
	}
	if r.long {
		r.body = bytes.Buffer{}
	}
}

// sniff settles the Content-Type, which net/http would guess from what is written first:
// that may be more for the replay.
func (r *recorder) sniff() {
	_, typed := r.header["Content-Type"]
	if typed || !r.bodyAllowed() || r.header.Get("Content-Encoding") != "" || r.header.Get("Transfer-Encoding") != "" {
		return
	}
	if r.body.Len() > 0 {
		r.header.Set("Content-Type", http.DetectContentType(r.body.Bytes()))
	}
}

// release sends what is still held back.
func (r *recorder) release() {
	if r.sent || r.hijacked {
		return
	}
	r.begin()
	r.send()
}

// reset takes back what the handler did to the header.
func (r *recorder) reset() {
	h := r.ResponseWriter.Header()
	clear(h)
	maps.Copy(h, r.above)
}

// isTrailer reports whether a field that was set after WriteHeader is a trailer.
func (r *recorder) isTrailer(name string) bool {
	if strings.HasPrefix(name, http.TrailerPrefix) {
		return true
	}
	return slices.Contains(fieldNames(r.header["Trailer"]), name)
}

// fieldNames reads the names that are listed in a field.
func fieldNames(lists []string) (names []string) {
	for _, list := range lists {
		for name := range strings.SplitSeq(list, ",") {
			names = append(names, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	return names
}

// FlushError sends what was held back, and all that follows at once. A transactional
// answer stays: nothing is true of it yet.
func (r *recorder) FlushError() error {
	if r.hold {
		return nil
	}
	if !r.hijacked {
		r.begin()
		if !r.sent {
			r.send()
		}
	}
	err := http.NewResponseController(r.ResponseWriter).Flush()
	r.broken = r.broken || err != nil
	return err
}

// Flush is FlushError, for those who ask for an http.Flusher.
func (r *recorder) Flush() { _ = r.FlushError() }

// Hijack hands the connection over, after what was written: there is no answer to store.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if r.hold {
		return nil, nil, http.ErrNotSupported
	}
	if r.header != nil && !r.sent {
		r.send()
	}
	conn, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	r.hijacked = r.hijacked || err == nil
	return conn, rw, err
}

// clientGone is what handlers answer that gave up because nobody waits for them (gRPC
// gateways among them, for a call that was cancelled).
const clientGone = 499

// resigned reports whether the handler answered nothing, or only that nobody was there.
func (r *recorder) resigned() bool {
	return !r.hijacked && (r.header == nil || r.status == clientGone)
}

// notStored are the fields that are of one answer, not of another just like it, and
// those of the connection (RFC 9110 section 7.6.1).
var notStored = []string{
	"Connection", "Date", ReplayedHeader, "Keep-Alive", "Proxy-Authenticate", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

// record returns the answer, and whether it can be stored whole. gone says that the
// handler knew that nobody would read it: it may have stopped sending in the middle.
func (r *recorder) record(gone bool) (Record, bool) {
	if r.hijacked {
		return Record{Status: r.status, Unstored: true}, false
	}
	r.begin()
	short := r.length >= 0 && r.length != int64(r.body.Len()) && !r.head && r.bodyAllowed()
	if r.long || short || r.sent && (r.broken || gone) {
		return Record{Status: r.status, Unstored: true}, false
	}
	if !r.sent {
		r.sniff()
	} else if r.header["Content-Type"] == nil {
		r.header["Content-Type"] = []string{} // to net/http: none
	}
	rec := Record{Status: r.status, Header: make(http.Header), Body: slices.Clone(r.body.Bytes())}
	left := append(fieldNames(r.header["Connection"]), notStored...)
	for name, v := range r.header {
		if slices.Contains(left, name) || strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		switch above, ok := r.above[name]; {
		case ok && slices.Equal(above, v):
		case len(above) > 0 && len(v) > len(above) && slices.Equal(above, v[:len(above)]):
			// Such as a Set-Cookie after that of a session, which is of the one request.
			add(&rec.Added, name, v[len(above):])
		default:
			rec.Header[name] = slices.Clone(v)
		}
	}
	for name, v := range r.Header() {
		plain := strings.TrimPrefix(name, http.TrailerPrefix)
		if !r.isTrailer(name) || strings.EqualFold(plain, ReplayedHeader) {
			continue
		}
		add(&rec.Trailer, plain, v)
	}
	return rec, true
}

// add sets a field of a header that may not be there yet.
func add(h *http.Header, name string, values []string) {
	if *h == nil {
		*h = make(http.Header)
	}
	(*h)[name] = slices.Clone(values)
}

// replay gives a stored answer again. Its trailers are announced, or net/http would leave
// them out of a short answer.
func replay(w http.ResponseWriter, r Record) {
	h := w.Header()
	for name, v := range r.Header {
		h[name] = slices.Clone(v)
	}
	for name, v := range r.Added {
		h[name] = slices.Concat(h[name], v)
	}
	h.Set(ReplayedHeader, "true")
	if len(r.Trailer) > 0 {
		h["Trailer"] = append(h["Trailer"], slices.Sorted(maps.Keys(r.Trailer))...)
	}
	w.WriteHeader(r.Status)
	if len(r.Body) > 0 {
		_, _ = w.Write(r.Body)
	}
	for name, v := range r.Trailer {
		h[name] = slices.Clone(v)
	}
}
