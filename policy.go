package retrip

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/textproto"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// An Attempt is one call of the base and what came of it, as a Policy and the
// hooks of a Trace see it. Exactly one of Response and Err is set. The body of
// Response must not be read or closed.
type Attempt struct {
	Number   int            // 1 is the first
	Request  *http.Request  // the caller's own
	Response *http.Response // nil if Err is set
	Err      error          // as the base gave it, or an attempt timeout
	Pause    time.Duration  // the wait that follows; zero until it is decided
	Elapsed  time.Duration  // since RoundTrip began

	keyHeader string // empty: KeyHeader
	keyed     bool   // a key was added
	unsent    bool
}

// Outcome names what came of the attempt in a word or a few: the status, as "503", or
// the kind of error, as "connection refused". It repeats no text of an error and holds
// no secret. It is empty if the attempt is still to come.
func (a Attempt) Outcome() string {
	switch {
	case isType[*OpenError](a.Err):
		return "breaker open"
	case isType[*attemptTimeoutError](a.Err):
		return "attempt timeout"
	case a.Err != nil || a.Response != nil:
		return phrase(status(a.Response), a.Err)
	}
	return ""
}

// A Policy reports whether an attempt's outcome is worth another attempt. It is
// asked once for each attempt that reached the base, unless the caller has
// cancelled the request or the caller's own body failed.
//
// It decides neither safety nor limits: a request that must not be repeated is
// handed back whatever the policy says, and so is one whose attempts, budget or
// quota have run out. A Policy must be safe for concurrent use and must not read
// the response's body.
type Policy func(Attempt) bool

// WithPolicy sets what is worth another attempt. The default is DefaultPolicy;
// nil means that nothing is.
func WithPolicy(p Policy) CallOption {
	return callOption(func(s *settings) { s.policy, s.plain = p, false })
}

// WithMaxAttempts limits how often one RoundTrip calls the base, the first
// attempt included. The default is 4; 1 means no retry, and then nothing is added
// to the request.
//
// WithMaxAttempts panics if n is less than 1.
func WithMaxAttempts(n int) CallOption {
	if n < 1 {
		panic(fmt.Sprintf("retrip: WithMaxAttempts(%d): fewer than one attempt", n))
	}
	return callOption(func(s *settings) { s.maxAttempts = n })
}

// DefaultPolicy is the policy of a Transport without WithPolicy.
//
// Worth another attempt are the statuses 408, 425, 429, 413 with Retry-After, and
// 5xx except 501, 505, 506, 507, 508, 510 and 511; timeouts, connections refused,
// reset or closed before the response, DNS failures that are temporary, and TLS
// handshakes that fail for other reasons than trust. After 409 a repeated request
// with an idempotency key is tried again, since its first attempt is still at
// work. A 504 for a request with "Cache-Control: only-if-cached" is final.
//
// All else is final, among it every error that is not known to be transient.
func DefaultPolicy(a Attempt) bool {
	if a.Request != nil && a.Request.Context().Err() != nil {
		return false
	}
	if a.Err != nil {
		class, _ := classify(a.Err)
		return class == errTransient
	}
	if a.Response == nil {
		return false
	}
	switch status := a.Response.StatusCode; status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusConflict:
		return a.Number > 1 && a.carriesKey()
	case http.StatusRequestEntityTooLarge:
		_, ok := a.RetryAfter()
		return ok
	case http.StatusGatewayTimeout:
		return !onlyIfCached(a.Request)
	default:
		return serverFailed(status)
	}
}

// onlyIfCached reports whether a 504 is a cache's way of saying that it has
// nothing (RFC 9111 section 5.2.1.7).
func onlyIfCached(req *http.Request) bool {
	if req == nil {
		return false
	}
	for _, line := range req.Header["Cache-Control"] {
		for directive := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(directive), "only-if-cached") {
				return true
			}
		}
	}
	return false
}

// serverFailed reports whether the status says that the server failed in a way
// that may pass. The 5xx left out tell of what it will never do (501, 505, 506,
// 508, 510), of a full disk (507) or of a captive portal (511).
func serverFailed(status int) bool {
	switch status {
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported,
		http.StatusVariantAlsoNegotiates, http.StatusInsufficientStorage,
		http.StatusLoopDetected, http.StatusNotExtended,
		http.StatusNetworkAuthenticationRequired:
		return false
	}
	return status >= 500 && status <= 599
}

// An errorClass says what an error of the base means for a retry and for the
// breaker.
type errorClass uint8

const (
	errUnknown   errorClass = iota // a mock's, a signer's: whether waiting helps cannot be told
	errTransient                   // the host's or the network's; may pass
	errPermanent                   // the host's; waiting does not help
	errLocal                       // not the host's; waiting does not help
)

// A streamError is what errors.As takes for net/http's HTTP/2 stream error.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string {
	return fmt.Sprintf("stream error: stream %d: code %#x", e.StreamID, e.Code)
}

// HTTP/2 error codes, RFC 9113 section 7.
const (
	refusedStream      = 0x7
	enhanceYourCalm    = 0xb
	inadequateSecurity = 0xc
	http11Required     = 0xd
)

// transientErrnos are the errors of connections that come and go. The last ones
// are the Windows numbers, which the syscall package does not map to these names
// and which no other system uses.
var transientErrnos = []syscall.Errno{
	syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE,
	syscall.ETIMEDOUT, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN,
	syscall.EHOSTDOWN, syscall.ENETRESET,
	10050, 10051, 10052, 10053, 10054, 10060, 10061, 10064, 10065,
}

// netHTTPErrors are the errors of net/http that have neither a type nor a value
// to recognise them by. TestNetHTTPErrorTexts fails when Go changes one.
var netHTTPErrors = []struct {
	prefix string
	class  errorClass
	phrase string
}{
	{"http: server closed idle connection", errTransient, "server closed an idle connection"},
	{"http: persistConn.readLoop exiting", errTransient, "connection closed"},
	{"http: CloseIdleConnections called", errTransient, "connection closed"},
	{"http: idle connection timeout", errTransient, "idle connection closed"},
	{"http: putIdleConn: ", errTransient, "connection closed"},
	{"http2: client connection lost", errTransient, "connection lost"},
	{"http2: client connection force closed", errTransient, "connection closed"},
	{"http2: client conn is closed", errTransient, "connection closed"},
	{"http2: client conn not usable", errTransient, "connection not usable"},
	{"http2: client conn could not be established", errTransient, "connection not established"},
	{"http2: server sent GOAWAY and closed the connection", errTransient, "server closed the HTTP/2 connection (GOAWAY)"},
	{"http2: Transport received Server's graceful shutdown GOAWAY", errTransient, "server is shutting the HTTP/2 connection down (GOAWAY)"},
	{"http2: Transport: cannot retry err [", errTransient, "HTTP/2 stream or connection refused after the body was sent"},
	{"connection error: ", errTransient, "HTTP/2 connection error"},
	{"malformed HTTP ", errPermanent, "malformed HTTP response"},
	{"malformed response from server", errPermanent, "malformed HTTP/2 response"},
	{"unsupported protocol scheme", errLocal, "unsupported protocol scheme"},
	{"net/http: invalid ", errLocal, "invalid request"},
	{"http: no Host in request URL", errLocal, "no host in the URL"},
	{"http: ContentLength=", errLocal, "body and Content-Length differ"},
	{"http: Request.ContentLength=", errLocal, "body and Content-Length differ"},
	{"http2: request body larger than specified content length", errLocal, "body and Content-Length differ"},
	{"net/http: cannot rewind body after connection loss", errTransient, "connection lost"},
}

// classify sorts an error of the base, and names it without repeating its text,
// which may hold a URL or worse.
func classify(err error) (errorClass, string) {
	for _, known := range [...]func(error) (errorClass, string){
		classifyOurs, classifyTLS, classifyDNS, classifyHTTP2, classifyErrno, classifyText, classifyRest,
	} {
		if class, phrase := known(err); phrase != "" {
			return class, phrase
		}
	}
	return errUnknown, fmt.Sprintf("%T", err)
}

func classifyOurs(err error) (errorClass, string) {
	if timeout, ok := errors.AsType[*attemptTimeoutError](err); ok {
		return errTransient, timeout.phrase()
	}
	if errors.Is(err, errBodyClosed) {
		// HTTP/2 closes the body when the connection fails, and at times reads it once more.
		return errTransient, "connection failed while the request was sent"
	}
	if errors.Is(err, errPanic) {
		return errLocal, "panic"
	}
	if isType[*OpenError](err) {
		return errLocal, "refused by the breaker of a Transport below"
	}
	return errUnknown, ""
}

func classifyTLS(err error) (errorClass, string) {
	if untrusted(err) {
		return errPermanent, "certificate not trusted"
	}
	if alert, ok := tlsAlert(err); ok {
		if slices.Contains(trustAlerts, alert) {
			return errPermanent, fmt.Sprintf("TLS alert %d: certificate refused", alert)
		}
		return errTransient, fmt.Sprintf("TLS alert %d", alert)
	}
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		if string(record.RecordHeader[:]) == "HTTP/" {
			return errPermanent, "server speaks HTTP, not HTTPS"
		}
		return errTransient, "TLS handshake failed"
	}
	return errUnknown, ""
}

func classifyDNS(err error) (errorClass, string) {
	dns, ok := errors.AsType[*net.DNSError](err)
	switch {
	case !ok:
		return errUnknown, ""
	case dns.IsNotFound:
		return errPermanent, "no such host"
	case dns.IsTemporary, dns.IsTimeout:
		return errTransient, "temporary DNS failure"
	}
	return errPermanent, "DNS failure"
}

func classifyHTTP2(err error) (errorClass, string) {
	se, ok := errors.AsType[streamError](err)
	if !ok {
		return errUnknown, ""
	}
	if class, phrase := classifyText(se.Cause); phrase != "" {
		return class, phrase
	}
	class := errTransient
	if se.Code == inadequateSecurity || se.Code == http11Required {
		class = errPermanent
	}
	return class, fmt.Sprintf("HTTP/2 stream error, code %d", se.Code)
}

func classifyErrno(err error) (errorClass, string) {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok || !slices.Contains(transientErrnos, errno) {
		return errUnknown, ""
	}
	return errTransient, errno.Error()
}

func classifyRest(err error) (errorClass, string) {
	switch {
	case timedOut(err):
		return errTransient, "timeout"
	case isType[textproto.ProtocolError](err):
		// A header that was cut off in the middle of a line looks like this.
		return errTransient, "malformed response header"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errTransient, "connection closed before the response"
	case errors.Is(err, net.ErrClosed):
		return errTransient, "connection closed"
	case errors.Is(err, context.Canceled):
		return errLocal, "cancelled" // by a layer below, for reasons of its own
	}
	return errUnknown, ""
}

// cutStatusLine reports whether text is net/http's complaint about a status line that
// is the beginning of a good one: the connection was closed in the middle of it, which
// is no other fault than one closed before it.
func cutStatusLine(text string) bool {
	if quoted, ok := strings.CutPrefix(text, "malformed HTTP response "); ok {
		line, err := strconv.Unquote(quoted)
		return err == nil && line != "" && (strings.HasPrefix("HTTP/1.1", line) || strings.HasPrefix("HTTP/1.0", line))
	}
	quoted, ok := strings.CutPrefix(text, "malformed HTTP status code ")
	code, err := strconv.Unquote(quoted)
	return ok && err == nil && len(code) < 3 && strings.Trim(code, "0123456789") == ""
}

func classifyText(err error) (errorClass, string) {
	for ; err != nil; err = errors.Unwrap(err) {
		text := err.Error()
		if cutStatusLine(text) {
			return errTransient, "connection closed before the response"
		}
		for _, e := range netHTTPErrors {
			if strings.HasPrefix(text, e.prefix) {
				return e.class, e.phrase
			}
		}
	}
	return errUnknown, ""
}

// timedOut reports whether any error behind err says that it is a timeout. Asking
// the nearest that has the method is not enough: url.Error asks only the one it holds.
func timedOut(err error) bool {
	if t, ok := err.(interface{ Timeout() bool }); ok && t.Timeout() {
		return true
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return timedOut(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), timedOut)
	}
	return false
}

func untrusted(err error) bool {
	return isType[*tls.CertificateVerificationError](err) || isType[x509.UnknownAuthorityError](err) ||
		isType[x509.HostnameError](err) || isType[x509.CertificateInvalidError](err) ||
		isType[x509.SystemRootsError](err)
}

func isType[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// trustAlerts are the alerts of RFC 8446 section 6.2 by which a server refuses the
// client's certificate or asks for one.
var trustAlerts = []uint64{42, 43, 44, 45, 46, 48, 49, 116}

// tlsAlert returns the alert that the peer sent. Its type in crypto/tls has no
// name to recognise it by outside, but it is a number.
func tlsAlert(err error) (uint64, bool) {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" {
		return 0, false
	}
	if v := reflect.ValueOf(op.Err); v.IsValid() && v.Kind() == reflect.Uint8 {
		return v.Uint(), true
	}
	return 0, false
}

// dialFailed reports whether no connection was had. It is a guess where the base
// follows redirects, so only requests that are safe anyway may rely on it.
func dialFailed(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && (op.Op == "dial" || op.Op == "proxyconnect")
}

// A Backoff returns the pause before a retry. retry is 1 for the first retry,
// the second attempt; last is what this Backoff returned for the previous one of
// the same request, and zero for the first. A Retry-After of the server does not
// pass through it. Negative results count as zero, and a pause that does not fit
// the budget or the deadline ends the request. A Backoff must be safe for
// concurrent use; those of this package keep no state.
type Backoff func(retry int, last time.Duration) time.Duration

// WithBackoff sets the pauses between attempts. The default is
// FullJitter(500*time.Millisecond, 30*time.Second).
//
// WithBackoff panics if b is nil; for no pause use Constant(0).
func WithBackoff(b Backoff) CallOption {
	if b == nil {
		panic("retrip: WithBackoff(nil): for no pause use Constant(0)")
	}
	return callOption(func(s *settings) { s.backoff = b })
}

// Constant pauses for d before every retry. It panics if d is negative.
func Constant(d time.Duration) Backoff {
	if d < 0 {
		panic(fmt.Sprintf("retrip: Constant(%v): the pause is negative", d))
	}
	return func(int, time.Duration) time.Duration { return d }
}

// Exponential doubles the pause from base up to limit: Exponential(1s, 5s) pauses
// 1s, 2s, 4s, 5s, 5s. It panics if base is negative or over limit.
func Exponential(base, limit time.Duration) Backoff {
	checkRange("Exponential", base, limit)
	return func(retry int, _ time.Duration) time.Duration { return double(base, limit, retry) }
}

// FullJitter pauses for a uniformly random time between zero and what Exponential
// would: with (500ms, 30s) at most 0.5s, 1s, 2s, and from the seventh retry on at
// most 30s. It keeps apart those who failed together, at the least load
// ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015). It panics if
// base is negative or over limit.
func FullJitter(base, limit time.Duration) Backoff {
	checkRange("FullJitter", base, limit)
	return func(retry int, _ time.Duration) time.Duration {
		return between(0, double(base, limit, retry))
	}
}

// EqualJitter pauses for a uniformly random time between half of what Exponential
// would and all of it: with (1s, 60s) 0.5s to 1s, 1s to 2s, 2s to 4s. It panics if
// base is negative or over limit.
func EqualJitter(base, limit time.Duration) Backoff {
	checkRange("EqualJitter", base, limit)
	return func(retry int, _ time.Duration) time.Duration {
		d := double(base, limit, retry)
		return between(d-d/2, d)
	}
}

// DecorrelatedJitter pauses for a uniformly random time between base and three
// times the last pause, at most limit: with (1s, 60s) 1s to 3s for the first
// retry, then 1s to 9s at the most. It panics if base is negative or over limit.
func DecorrelatedJitter(base, limit time.Duration) Backoff {
	checkRange("DecorrelatedJitter", base, limit)
	return func(_ int, last time.Duration) time.Duration {
		high := max(base, last)
		if high > math.MaxInt64/3 {
			high = math.MaxInt64
		} else {
			high *= 3
		}
		return min(limit, between(base, high))
	}
}

// Ladder pauses for each of the given times in turn; the last one repeats:
// Ladder(5m, 30m, 3h) pauses 5m, 30m, 3h, 3h. How many there are does not limit
// the attempts. It panics without pauses or if one is negative.
func Ladder(pauses ...time.Duration) Backoff {
	if len(pauses) == 0 {
		panic("retrip: Ladder(): no pauses; for a single attempt use WithMaxAttempts(1)")
	}
	for _, d := range pauses {
		if d < 0 {
			panic(fmt.Sprintf("retrip: Ladder(%v): a pause is negative", pauses))
		}
	}
	pauses = slices.Clone(pauses)
	return func(retry int, _ time.Duration) time.Duration {
		return pauses[min(max(retry, 1), len(pauses))-1]
	}
}

// Spread multiplies the pauses of b by a uniformly random factor between
// 1-fraction and 1+fraction. Spread(Exponential(10*time.Second, 30*time.Minute), 0.2)
// is a common schedule for webhooks: 10s, 20s, 40s and so on, each 20 % more or
// less. It panics if b is nil or fraction is not between 0 and 1.
func Spread(b Backoff, fraction float64) Backoff {
	if b == nil {
		panic("retrip: Spread(nil, …): no backoff")
	}
	if !(fraction >= 0 && fraction <= 1) {
		panic(fmt.Sprintf("retrip: Spread(…, %v): the fraction is not between 0 and 1", fraction))
	}
	return func(retry int, last time.Duration) time.Duration {
		d := float64(b(retry, last)) * (1 - fraction + 2*fraction*rand.Float64())
		if d >= math.MaxInt64 {
			return math.MaxInt64
		}
		return time.Duration(d)
	}
}

func checkRange(name string, base, limit time.Duration) {
	if base < 0 || base > limit {
		panic(fmt.Sprintf("retrip: %s(%v, %v): want 0 <= base <= limit", name, base, limit))
	}
}

// double returns base doubled retry-1 times, at most limit, for any retry.
func double(base, limit time.Duration, retry int) time.Duration {
	for d := base; ; d *= 2 {
		if retry <= 1 || d == 0 {
			return d
		}
		if d > limit/2 {
			return limit
		}
		retry--
	}
}

// between returns a uniformly random duration in [low, high]; low is not negative.
func between(low, high time.Duration) time.Duration {
	return low + time.Duration(rand.Uint64N(uint64(high-low)+1))
}

// RetryAfter returns how long the server asked to wait from now on (RFC 9110
// section 10.2.3), and whether it did so in a valid form. The result is never
// negative; a number or date too large for a Duration gives the largest one.
//
// A date is measured against the response's own Date, so that a wrong clock on
// either side does no harm; if it has none, or came from a cache (Age), against the
// clock here.
func (a Attempt) RetryAfter() (time.Duration, bool) {
	if a.Response == nil {
		return 0, false
	}
	h := a.Response.Header
	values := h["Retry-After"]
	if len(values) != 1 {
		return 0, false
	}
	v := strings.Trim(values[0], " \t")
	if d, ok := parseSeconds(v); ok {
		return d, true
	}
	from := time.Now()
	if age := h.Get("Age"); age == "" || age == "0" {
		if date, ok := parseDate(strings.Trim(h.Get("Date"), " \t"), from); ok {
			from = date
		}
	}
	t, ok := parseDate(v, from)
	if !ok {
		return 0, false
	}
	return max(0, t.Sub(from)), true
}

// parseSeconds reads 1*DIGIT, of any length.
func parseSeconds(s string) (time.Duration, bool) {
	const most = int64(math.MaxInt64 / time.Second)
	n := int64(0)
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		if n = n*10 + int64(c-'0'); n > most {
			n = most + 1
		}
	}
	if n > most {
		return math.MaxInt64, s != ""
	}
	return time.Duration(n) * time.Second, s != ""
}

// dateForms are the three forms of RFC 9110 section 5.6.7. http.ParseTime takes
// the second in any zone, and no leap second.
var dateForms = [...]string{http.TimeFormat, "Monday, 02-Jan-06 15:04:05 GMT", time.ANSIC}

func parseDate(s string, now time.Time) (time.Time, bool) {
	leap := time.Duration(0)
	if before, after, ok := strings.Cut(s, ":60 "); ok {
		s, leap = before+":59 "+after, time.Second
	}
	for i, form := range dateForms {
		t, err := time.Parse(form, s)
		if err != nil || t.Nanosecond() != 0 { // Parse takes a fraction that no form has
			continue
		}
		if i == 1 {
			t = fullYear(t, now)
		}
		return t.Add(leap), true
	}
	return time.Time{}, false
}

// fullYear gives a date with a two-digit year its century: the one that puts it
// at most 50 years ahead.
func fullYear(t, now time.Time) time.Time {
	now = now.UTC()
	year := now.Year() - now.Year()%100 + t.Year()%100
	set := func(year int) time.Time {
		return time.Date(year, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
	}
	if limit := now.AddDate(50, 0, 0); set(year).After(limit) {
		year -= 100
	} else if !set(year + 100).After(limit) {
		year += 100
	}
	return set(year)
}

// jitter is what may be added to a pause that the server asked for, so that a
// crowd that was told the same does not return as one.
func jitter(asked time.Duration) time.Duration { return min(asked/10, 5*time.Second) }
