package retrip

import (
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
)

// KeyHeader is the header field that carries an idempotency key unless
// WithKeyHeader names another
// (draft-ietf-httpapi-idempotency-key-header).
const KeyHeader = "Idempotency-Key"

// netHTTPKeyHeader makes net/http take a request for idempotent, as KeyHeader
// does.
const netHTTPKeyHeader = "X-Idempotency-Key"

// WithIdempotencyKey sets what makes the key of a POST or PATCH that comes
// without one. The default is a random UUID; nil adds no keys.
//
// A key makes the request repeatable, so the server must honour it: it must do
// the work once for all requests with one key. Switch injection off for servers
// that do not. One key is made for each RoundTrip and goes out with every
// attempt. None is made if the request carries the key field already, even with
// an empty slice, which net/http reads as "idempotent, send nothing"; or if only
// one attempt is allowed. After a redirect http.Client starts a new RoundTrip,
// which gets a new key unless the caller set one.
//
// The key goes out as gen returns it. Deployed APIs take it raw; a server that
// holds to the draft wants it in double quotes, which gen may add. An empty string
// adds no key to that request. A key with a byte that is not printable ASCII fails
// the request before anything is sent. gen must be safe for concurrent use and
// must not change the request.
func WithIdempotencyKey(gen func(*http.Request) string) CallOption {
	return callOption(func(s *settings) { s.genKey = gen })
}

// WithKeyHeader sets the header field that carries the key; the default is
// KeyHeader. X-Idempotency-Key of a caller is heeded whatever the name.
//
// WithKeyHeader panics if name is not a valid field name.
func WithKeyHeader(name string) CallOption {
	if !isToken(name) {
		panic(fmt.Sprintf("retrip: WithKeyHeader(%q): not a field name", name))
	}
	name = textproto.CanonicalMIMEHeaderKey(name)
	return callOption(func(s *settings) { s.keyHeader = name })
}

// isToken reports whether s is a token of RFC 9110 section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// newKey is a random UUID (RFC 9562 section 5.4).
func newKey(*http.Request) string {
	var u [16]byte
	rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	var s [36]byte
	hex.Encode(s[0:8], u[0:4])
	hex.Encode(s[9:13], u[4:6])
	hex.Encode(s[14:18], u[6:8])
	hex.Encode(s[19:23], u[8:10])
	hex.Encode(s[24:36], u[10:16])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

// addKey sees whether the request carries a key, and adds one if it should.
func (c *call) addKey() error {
	name := cmp.Or(c.s.keyHeader, KeyHeader)
	if keyed(c.req.Header, name) {
		c.repeatable = true
		return nil
	}
	if c.s.genKey == nil || c.req.Method != http.MethodPost && c.req.Method != http.MethodPatch {
		return nil
	}
	key := c.s.genKey(c.req)
	if key == "" {
		return nil
	}
	if err := checkKey(key); err != nil {
		return err
	}
	c.header = c.req.Header.Clone()
	c.header[name] = []string{key}
	c.repeatable = true
	return nil
}

// checkKey refuses what a header field or a structured field string (RFC 9651
// section 3.3.3) cannot hold. The error does not repeat the key.
func checkKey(key string) error {
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return fmt.Errorf("retrip: idempotency key has byte %#02x at position %d, which is not printable ASCII", key[i], i)
		}
	}
	return nil
}

// keyed reports whether the request carries an idempotency key of its own. The
// caller may have filled the header map without the canonical form.
func keyed(h http.Header, name string) bool {
	if _, ok := h[name]; ok {
		return true
	}
	if _, ok := h[netHTTPKeyHeader]; ok {
		return true
	}
	for k := range h {
		if strings.EqualFold(k, name) || strings.EqualFold(k, netHTTPKeyHeader) {
			return true
		}
	}
	return false
}

// key returns the key that was sent, or ""; of the caller's, whichever field it is in.
func (c *call) key() string {
	name := cmp.Or(c.s.keyHeader, KeyHeader)
	if c.header != nil {
		return c.header.Get(name)
	}
	for _, name := range []string{name, netHTTPKeyHeader} {
		for k, v := range c.req.Header {
			if strings.EqualFold(k, name) && len(v) > 0 {
				return v[0]
			}
		}
	}
	return ""
}

// idempotentMethod reports whether the method is idempotent by RFC 9110 section
// 9.2.2 or RFC 10008 (QUERY). Methods are case-sensitive; empty means GET.
func idempotentMethod(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace,
		http.MethodPut, http.MethodDelete, "QUERY":
		return true
	}
	return false
}

// Idempotent reports whether the request may be repeated whatever became of the
// attempt: its method is idempotent (RFC 9110 section 9.2.2), or it carries an
// idempotency key.
func (a Attempt) Idempotent() bool {
	return a.Request != nil && idempotentMethod(a.Request.Method) || a.carriesKey()
}

func (a Attempt) carriesKey() bool {
	return a.keyed || a.Request != nil && keyed(a.Request.Header, cmp.Or(a.keyHeader, KeyHeader))
}

// Unsent reports whether it is certain that the server did not process the
// attempt: no connection was had for it, or nothing was written to one, or the
// peer refused the HTTP/2 stream (RFC 9113 section 8.7). It is never a guess: for
// a base that is no http.Transport only the last can be known. It is looked into
// only for requests that are not idempotent.
func (a Attempt) Unsent() bool {
	if a.unsent {
		return true
	}
	se, ok := errors.AsType[streamError](a.Err)
	return ok && se.Code == refusedStream
}

// safe reports whether the request may be sent again after this attempt.
func (a Attempt) safe() bool {
	if a.Idempotent() || a.Unsent() {
		return true
	}
	// These two say that nothing was done (RFC 8470 section 5.2, RFC 6585 section 4).
	return a.Response != nil && (a.Response.StatusCode == http.StatusTooEarly ||
		a.Response.StatusCode == http.StatusTooManyRequests)
}

// A sendProbe learns from httptrace whether an attempt can have reached a server.
// Its flags stick over the resends of net/http. Hooks of an attempt may still
// fire when it is over, so every attempt has its own.
type sendProbe struct {
	hooks httptrace.ClientTrace
	asked atomic.Bool // GetConn: the base is an http.Transport
	conn  atomic.Bool // GotConn
	wrote atomic.Bool // something may have left on a connection
}

// trace returns the hooks that fill p.
func (p *sendProbe) trace() *httptrace.ClientTrace {
	p.hooks = httptrace.ClientTrace{
		GetConn: func(string) { p.asked.Store(true) },
		GotConn: func(info httptrace.GotConnInfo) {
			p.conn.Store(true)
			// HTTP/2 tells of its headers only after they left.
			if c, ok := info.Conn.(interface{ ConnectionState() tls.ConnectionState }); ok &&
				c.ConnectionState().NegotiatedProtocol == "h2" {
				p.wrote.Store(true)
			}
		},
		// HTTP/2 without TLS cannot be told from HTTP/1 by its connection, but it
		// tells of each field before it sends any.
		WroteHeaderField: func(string, []string) { p.wrote.Store(true) },
		WroteHeaders:     func() { p.wrote.Store(true) },
	}
	return &p.hooks
}

func (p *sendProbe) unsent() bool {
	return p != nil && p.asked.Load() && (!p.conn.Load() || !p.wrote.Load())
}
