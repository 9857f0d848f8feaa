package retrip_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"

	"math"
	"math/big"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // for the child processes with other local zones

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// unlimited is a Transport that nothing but the attempts holds back, and which
// does not pause.
func unlimited(base http.RoundTripper, opts ...retrip.Option) *retrip.Transport {
	return retrip.New(base, slices.Concat([]retrip.Option{
		retrip.WithBackoff(retrip.Constant(0)), retrip.WithRetryQuota(nil), retrip.WithBreaker(nil),
	}, opts)...)
}

// sends returns how often a request is sent, at most twice, whose first attempt
// takes the given step. No key is added.
func sends(t testing.TB, first step, req *http.Request, opts ...retrip.Option) int {
	t.Helper()
	base := play(first, answer(204))
	opts = slices.Concat([]retrip.Option{retrip.WithMaxAttempts(2), retrip.WithIdempotencyKey(nil)}, opts)
	resp, err := unlimited(base, opts...).RoundTrip(req)
	n := len(base.attempts())
	require.Equal(t, err == nil, resp != nil)
	if err == nil {
		require.Equal(t, "x", finish(t, resp), "the response is handed back unread")
	}
	return n
}

// requirePanic fails unless f panics with a text of ours that contains part.
func requirePanic(t testing.TB, part string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		require.Contains(t, fmt.Sprint(recover()), "retrip: "+part)
	}()
	f()
}

// Statuses.

func TestWhichStatusesAreTriedAgain(t *testing.T) {
	t.Parallel()
	key := retrip.WithIdempotencyKey(func(*http.Request) string { return "k" })
	never := func(int) bool { return false }
	refused := func(status int) bool { return status == 425 || status == 429 }
	transient := func(status int) bool {
		switch status {
		case 408, 425, 429:
			return true
		case 501, 505, 506, 507, 508, 510, 511:
			return false
		}
		return status >= 500
	}
	for _, c := range []struct {
		method string
		again  func(status int) bool
		header http.Header
		opts   []retrip.Option
	}{
		{method: "", again: transient},
		{method: "GET", again: transient},
		{method: "HEAD", again: transient},
		{method: "OPTIONS", again: transient},
		{method: "TRACE", again: transient},
		{method: "PUT", again: transient},
		{method: "DELETE", again: transient},
		{method: "QUERY", again: transient},
		{method: "POST", again: transient, opts: []retrip.Option{key}},
		{method: "POST", again: transient, header: http.Header{"idempotency-key": nil}},
		{method: "PATCH", again: transient, opts: []retrip.Option{key}},
		{method: "LOCK", again: transient, header: http.Header{"X-Idempotency-Key": {"k"}}},
		{method: "POST", again: refused},
		{method: "PATCH", again: refused},
		{method: "LOCK", again: refused, opts: []retrip.Option{key}},
		{method: "PROPFIND", again: refused},
		{method: "get", again: refused},
		{method: "CONNECT", again: never},
		{method: "CONNECT", again: never, header: http.Header{"Idempotency-Key": {"k"}}},
		{method: "GET", again: never, opts: []retrip.Option{retrip.WithPolicy(nil)}},
	} {
		for status := 100; status <= 599; status++ {
			req := request(t, http.MethodGet, nil)
			req.Method = c.method
			maps.Copy(req.Header, c.header)
			n := sends(t, answer(status), req, c.opts...)
			require.Equal(t, c.again(status), n == 2, "%q %v to %d", c.method, c.header, status)
		}
	}
}

func TestStatusesThatDependOnAField(t *testing.T) {
	t.Parallel()
	for row, c := range map[string]struct {
		status int
		answer []string
		asked  string // Cache-Control of the request
		again  bool
	}{
		"413":                              {413, nil, "", false},
		"413 with Retry-After":             {413, []string{"Retry-After", "0"}, "", true},
		"413 with a bad Retry-After":       {413, []string{"Retry-After", "soon"}, "", false},
		"200 with Retry-After":             {200, []string{"Retry-After", "0"}, "", false},
		"301 with Retry-After":             {301, []string{"Retry-After", "0"}, "", false},
		"404 with Retry-After":             {404, []string{"Retry-After", "0"}, "", false},
		"501 with Retry-After":             {501, []string{"Retry-After", "0"}, "", false},
		"504":                              {504, nil, "no-cache", true},
		"504 to only-if-cached":            {504, nil, "only-if-cached", false},
		"504 to only-if-cached, in a list": {504, nil, "max-age=0 , Only-If-Cached", false},
		"504 to a part of the word":        {504, nil, "only-if-cached-not", true},
		"503 to only-if-cached":            {503, nil, "only-if-cached", true},
	} {
		req := request(t, http.MethodGet, nil)
		if c.asked != "" {
			req.Header["Cache-Control"] = []string{"x", c.asked}
		}
		require.Equal(t, c.again, sends(t, answer(c.status, c.answer...), req) == 2, row)
	}
}

func TestAPolicyIsAskedOnceForEachAttempt(t *testing.T) {
	t.Parallel()
	req := request(t, http.MethodGet, nil)
	var asked []string
	policy := func(a retrip.Attempt) bool {
		require.Same(t, req, a.Request)
		require.Equal(t, a.Err == nil, a.Response != nil)
		outcome := "error"
		if a.Err == nil {
			outcome = fmt.Sprint(a.Response.StatusCode)
		}
		asked = append(asked, fmt.Sprintf("%d: %s", a.Number, outcome))
		return a.Number < 3
	}
	base := play(answer(200), fail(errors.New("odd")), answer(503))
	resp, err := unlimited(base, retrip.WithPolicy(policy)).RoundTrip(req)
	require.NoError(t, err)
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, "x", finish(t, resp))
	require.Equal(t, []string{"1: 200", "2: error", "3: 503"}, asked)
}

func TestAPolicyDoesNotMakeARequestSafe(t *testing.T) {
	t.Parallel()
	always := retrip.WithPolicy(func(retrip.Attempt) bool { return true })
	require.Equal(t, 1, sends(t, answer(503), request(t, http.MethodPost, nil), always))
	require.Equal(t, 1, sends(t, fail(io.EOF), request(t, http.MethodPost, nil), always))
	require.Equal(t, 2, sends(t, answer(418), request(t, http.MethodGet, nil), always))
}

func TestDefaultPolicyOnAttemptsMadeByHand(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	resp := func(status int) *http.Response { return &http.Response{StatusCode: status} }
	for row, c := range map[string]struct {
		attempt retrip.Attempt
		again   bool
	}{
		"nothing":                         {retrip.Attempt{}, false},
		"a status without a request":      {retrip.Attempt{Response: resp(504)}, true},
		"409 without a request":           {retrip.Attempt{Number: 2, Response: resp(409)}, false},
		"an error without a request":      {retrip.Attempt{Err: io.EOF}, true},
		"a request that lives":            {retrip.Attempt{Request: request(t, "GET", nil), Response: resp(503)}, true},
		"a request that has ended":        {retrip.Attempt{Request: request(t, "GET", nil).WithContext(ended), Response: resp(503)}, false},
		"an error of one that has ended":  {retrip.Attempt{Request: request(t, "GET", nil).WithContext(ended), Err: io.EOF}, false},
		"a status that is none":           {retrip.Attempt{Response: resp(0)}, false},
		"a status beyond the server ones": {retrip.Attempt{Response: resp(600)}, false},
	} {
		require.Equal(t, c.again, retrip.DefaultPolicy(c.attempt), row)
	}
}

// Errors.

// A verdict is what an error of the base means.
type verdict string

const (
	again verdict = "again"
	final verdict = "final"
	local verdict = "local" // final, and no fault of the host
)

// judge returns the verdict on an error of the base: by the attempts that a GET
// gets, and by a breaker that opens at the first failure.
func judge(t testing.TB, err error) verdict {
	t.Helper()
	base := play(fail(err), answer(200))
	breaker := retrip.DefaultBreaker()
	breaker.Failures = 1
	rt := unlimited(base, retrip.WithBreaker(&breaker), retrip.WithMaxAttempts(1))
	_, got := rt.RoundTrip(request(t, http.MethodGet, nil))
	require.True(t, err == got, "the error of a single attempt is the base's own")
	for _, stats := range rt.Hosts() {
		if stats.State == retrip.Closed {
			require.Equal(t, 1, sends(t, fail(err), request(t, http.MethodGet, nil)))
			return local
		}
	}
	if sends(t, fail(err), request(t, http.MethodGet, nil)) == 2 {
		return again
	}
	return final
}

// A plain error has no method but Error.
type plain string

func (e *plain) Error() string { return string(*e) }

func plainError(text string) error { return (*plain)(&text) }

func TestWhichErrorsAreTriedAgain(t *testing.T) {
	t.Parallel()
	refuse := func(call string, errno syscall.Errno) error {
		return &net.OpError{Op: call, Net: "tcp", Err: os.NewSyscallError(call, errno)}
	}
	for row, c := range map[string]struct {
		err  error
		want verdict
	}{
		"refused":             {refuse("dial", syscall.ECONNREFUSED), again},
		"reset":               {refuse("read", syscall.ECONNRESET), again},
		"aborted":             {refuse("read", syscall.ECONNABORTED), again},
		"broken pipe":         {refuse("write", syscall.EPIPE), again},
		"timed out":           {refuse("dial", syscall.ETIMEDOUT), again},
		"network unreachable": {refuse("dial", syscall.ENETUNREACH), again},
		"host unreachable":    {refuse("dial", syscall.EHOSTUNREACH), again},
		"network down":        {refuse("dial", syscall.ENETDOWN), again},
		"host down":           {refuse("dial", syscall.EHOSTDOWN), again},
		"network reset":       {refuse("read", syscall.ENETRESET), again},
		"refused by a proxy":  {refuse("proxyconnect", syscall.ECONNREFUSED), again},
		"a bare errno":        {&os.SyscallError{Syscall: "read", Err: syscall.ECONNRESET}, again},
		"no permission":       {refuse("dial", syscall.EACCES), final},
		"out of descriptors":  {refuse("dial", syscall.EMFILE), final},

		"no such host":           {&net.DNSError{Err: "no such host", IsNotFound: true}, final},
		"no such host, for now":  {&net.DNSError{Err: "no such host", IsNotFound: true, IsTemporary: true}, final},
		"a DNS server's failure": {&net.DNSError{Err: "server misbehaving", IsTemporary: true}, again},
		"a DNS timeout":          {&net.DNSError{Err: "i/o timeout", IsTimeout: true}, again},
		"a DNS failure for good": {&net.DNSError{Err: "unrecognized address"}, final},
		"DNS while dialling":     {&net.OpError{Op: "dial", Err: &net.DNSError{IsTimeout: true}}, again},
		"no host while dialling": {&net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}, final},

		"certificate":            {&tls.CertificateVerificationError{Err: errors.New("odd")}, final},
		"unknown authority":      {&url.Error{Err: x509.UnknownAuthorityError{}}, final},
		"another host's":         {&url.Error{Err: x509.HostnameError{Certificate: &x509.Certificate{}, Host: "h"}}, final},
		"expired":                {&url.Error{Err: x509.CertificateInvalidError{Reason: x509.Expired}}, final},
		"no roots":               {&url.Error{Err: x509.SystemRootsError{}}, final},
		"not TLS":                {&url.Error{Err: tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}}, again},
		"HTTP, not TLS":          {&url.Error{Err: tls.RecordHeaderError{RecordHeader: [5]byte([]byte("HTTP/"))}}, final},
		"HTTP, says http.Client": {http.ErrSchemeMismatch, final},
		"header line cut off":    {&url.Error{Err: textproto.ProtocolError("malformed MIME header: missing colon: \"Conte\"")}, again},

		"HTTP/2 refused stream":         {&url.Error{Err: resetError{Code: 0x7}}, again},
		"HTTP/2 protocol error":         {&url.Error{Err: resetError{Code: 0x1}}, again},
		"HTTP/2 internal error":         {&url.Error{Err: resetError{Code: 0x2}}, again},
		"HTTP/2 cancelled":              {&url.Error{Err: resetError{Code: 0x8}}, again},
		"HTTP/2 calm":                   {&url.Error{Err: resetError{Code: 0xb}}, again},
		"HTTP/2 inadequate security":    {&url.Error{Err: resetError{Code: 0xc}}, final},
		"HTTP/2 wants HTTP/1.1":         {&url.Error{Err: resetError{Code: 0xd}}, final},
		"HTTP/2 code that is not known": {&url.Error{Err: resetError{Code: 0xff}}, again},

		"end of file":                    {io.EOF, again},
		"unexpected end of file":         {io.ErrUnexpectedEOF, again},
		"closed":                         {net.ErrClosed, again},
		"closed while reading":           {&net.OpError{Op: "read", Err: net.ErrClosed}, again},
		"a timeout":                      {os.ErrDeadlineExceeded, again},
		"a read timeout":                 {&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, again},
		"a deadline that is not ours":    {&url.Error{Err: context.DeadlineExceeded}, again},
		"cancelled, but not by us":       {context.Canceled, local},
		"cancelled in a dial":            {&net.OpError{Op: "dial", Err: context.Canceled}, local},
		"a breaker below":                {&retrip.OpenError{Host: "h"}, local},
		"anything else":                  {plainError("odd"), final},
		"the text of a timeout":          {plainError("context deadline exceeded"), final},
		"the text of a reset":            {plainError("read: connection reset by peer"), final},
		"the text of an end":             {plainError("EOF"), final},
		"a timeout that is none":         {&net.OpError{Op: "read", Err: plainError("odd")}, final},
		"HTTP/2's fields in another way": {&url.Error{Err: plainError("stream error: stream ID 1; REFUSED_STREAM")}, final},
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			for layer, err := range map[string]error{
				"itself":                           c.err,
				"wrapped":                          fmt.Errorf("layer: %w", c.err),
				"wrapped twice":                    fmt.Errorf("layer: %w", fmt.Errorf("layer: %w", c.err)),
				"in a url.Error":                   &url.Error{Op: "Get", URL: "http://example.com", Err: c.err},
				"wrapped in a url.Error":           &url.Error{Op: "Get", Err: fmt.Errorf("layer: %w", c.err)},
				"wrapped in an OpError":            &net.OpError{Op: "read", Err: fmt.Errorf("layer: %w", c.err)},
				"joined with one that is nobody's": errors.Join(plainError("layer"), c.err),
			} {
				require.Equal(t, c.want, judge(t, err), layer)
			}
		})
	}
}

// netHTTPTexts are the errors that the library knows by nothing but their text.
var netHTTPTexts = map[string]verdict{
	"http: server closed idle connection":                         again,
	"http: persistConn.readLoop exiting":                          again,
	"http: CloseIdleConnections called":                           again,
	"http: idle connection timeout":                               again,
	"http: putIdleConn: ":                                         again,
	"http2: client connection lost":                               again,
	"http2: client connection force closed":                       again,
	"http2: client conn is closed":                                again,
	"http2: client conn not usable":                               again,
	"http2: client conn could not be established":                 again,
	"http2: server sent GOAWAY and closed the connection":         again,
	"http2: Transport received Server's graceful shutdown GOAWAY": again,
	"http2: Transport: cannot retry err [":                        again,
	"connection error: ":                                          again,
	"net/http: cannot rewind body after connection loss":          again,
	"malformed HTTP ":                                             final,
	"malformed response from server":                              final,
	"unsupported protocol scheme":                                 local,
	"net/http: invalid ":                                          local,
	"http: no Host in request URL":                                local,
	"http: ContentLength=":                                        local,
	"http: Request.ContentLength=":                                local,
	"http2: request body larger than specified content length":    local,
}

func TestNetHTTPErrorTexts(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	var source strings.Builder
	dir := filepath.Join(strings.TrimSpace(string(out)), "src", "net", "http")
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		source.Write(b)
		return err
	}))
	for text, want := range netHTTPTexts {
		require.True(t, strings.Contains(source.String(), `"`+text), "net/http has no error %q any more", text)
		whole := plainError(text + "and so on")
		require.Equal(t, want, judge(t, whole), text)
		require.Equal(t, want, judge(t, fmt.Errorf("layer: %w", &url.Error{Op: "Get", Err: whole})), text)
		require.Equal(t, final, judge(t, plainError("somebody said: "+text)), "%q within another text", text)
	}
}

// Errors of an http.Transport whose connections are pipes.

// overPipes sends a request at most twice through an http.Transport that dials
// pipes, and returns how often and net/http's last error. serve gets the other end,
// which is closed when it returns; nil refuses the connection. No key is added.
func overPipes(t testing.TB, serve func(net.Conn), change func(*http.Transport), req *http.Request) (int, error) {
	base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		if serve == nil {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		}
		client, server := net.Pipe()
		out := make(chan []byte, 100)
		go func() {
			for b := range out {
				_, _ = server.Write(b)
			}
			_ = server.Close()
		}()
		go func() {
			serve(queued{server, out})
			close(out)
			_, _ = io.Copy(io.Discard, server)
		}()
		return client, nil
	}}
	defer base.CloseIdleConnections()
	if change != nil {
		change(base)
	}
	attempts, last := 0, error(nil)
	counted := roundTrip(func(req *http.Request) (resp *http.Response, err error) {
		attempts++
		resp, last = base.RoundTrip(req)
		return resp, last
	})
	resp, err := unlimited(counted, retrip.WithMaxAttempts(2), retrip.WithIdempotencyKey(nil)).RoundTrip(req)
	require.ErrorIs(t, err, last)
	if err == nil {
		finish(t, resp)
	}
	return attempts, last
}

// A queued end of a pipe does not wait for the other one to read.
type queued struct {
	net.Conn
	out chan<- []byte
}

func (c queued) Write(b []byte) (int, error) {
	c.out <- bytes.Clone(b)
	return len(b), nil
}

// takeRequest reads one HTTP/1 request.
func takeRequest(conn net.Conn) {
	if req, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}
}

// reply reads one HTTP/1 request, and answers with these bytes.
func reply(text string) func(net.Conn) {
	return func(conn net.Conn) {
		takeRequest(conn)
		_, _ = io.WriteString(conn, text)
	}
}

// hello reads the start of a handshake, and says something else.
func hello(text string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1<<10))
		_, _ = io.WriteString(conn, text)
	}
}

// swallow reads whatever comes, and answers nothing.
func swallow(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// secure makes the handshake, and waits for the client to hang up if it fails.
func secure(config *tls.Config) func(net.Conn) {
	return func(conn net.Conn) {
		server := tls.Server(conn, config)
		if server.Handshake() == nil {
			reply("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")(server)
		} else {
			swallow(conn)
		}
	}
}

// serveHTTP2 answers each HTTP/2 request with these frames; nil hangs up.
func serveHTTP2(replies ...func(stream uint32) []byte) func(net.Conn) {
	return func(conn net.Conn) {
		preface := make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
		_, err := io.ReadFull(conn, preface)
		_, _ = conn.Write(http2Frame(0x4, 0, 0)) // SETTINGS
		for head := make([]byte, 9); err == nil; {
			if _, err = io.ReadFull(conn, head); err != nil {
				return
			}
			_, err = io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
			if head[3] == 0x1 { // HEADERS
				for _, answer := range replies {
					b := answer(binary.BigEndian.Uint32(head[5:]))
					if b == nil {
						return
					}
					_, _ = conn.Write(b)
				}
			}
		}
	}
}

func hangUp(uint32) []byte { return nil }

func http2Frame(kind, flags byte, stream uint32, payload ...byte) []byte {
	head := []byte{0, 0, byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(head, stream), payload...)
}

// reset is RST_STREAM.
func reset(code uint32) func(uint32) []byte {
	return func(stream uint32) []byte {
		return http2Frame(0x3, 0, stream, binary.BigEndian.AppendUint32(nil, code)...)
	}
}

// goAway is GOAWAY, for the streams after this one.
func goAway(code uint32) func(uint32) []byte {
	return func(stream uint32) []byte {
		return http2Frame(0x7, 0, 0, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, stream), code)...)
	}
}

func onlyHTTP2(base *http.Transport) {
	base.Protocols = new(http.Protocols)
	base.Protocols.SetUnencryptedHTTP2(true)
}

// certificate is one for example.com that signs itself.
func certificate(t testing.TB, until time.Time) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"example.com"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: until,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestWhichErrorsOfNetHTTPAreTriedAgain(t *testing.T) {
	t.Parallel()
	good, roots := certificate(t, time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))
	old, oldRoots := certificate(t, time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC))
	server := func(change func(*tls.Config)) func(net.Conn) {
		config := &tls.Config{Certificates: []tls.Certificate{good}}
		change(config)
		return secure(config)
	}
	client := func(change func(*tls.Config)) func(*http.Transport) {
		return func(base *http.Transport) {
			base.TLSClientConfig = &tls.Config{RootCAs: roots}
			change(base.TLSClientConfig)
		}
	}
	trust := client(func(*tls.Config) {})
	showing := func(c tls.Certificate) func(*http.Transport) {
		return client(func(config *tls.Config) { config.Certificates = []tls.Certificate{c} })
	}
	header := func(name, value string) func(*http.Request) {
		return func(req *http.Request) { req.Header[name] = []string{value} }
	}
	for row, c := range map[string]struct {
		url      string
		serve    func(net.Conn)
		change   func(*http.Transport)
		request  func(*http.Request)
		attempts int
		text     string // that the error is to contain, to be the one that is meant
	}{
		"refused":               {url: "http://example.com", attempts: 2, text: "refused"},
		"cut before the answer": {url: "http://example.com", serve: takeRequest, attempts: 2, text: "EOF"},
		"cut in a header line":  {url: "http://example.com", serve: reply("HTTP/1.1 200 OK\r\nConte"), attempts: 2, text: "malformed MIME header"},
		"cut in the headers":    {url: "http://example.com", serve: reply("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n"), attempts: 2, text: "EOF"},
		"cut in the protocol":   {url: "http://example.com", serve: reply("HTT"), attempts: 2, text: "malformed HTTP response"},
		"cut after the version": {url: "http://example.com", serve: reply("HTTP/1.1"), attempts: 2, text: "malformed HTTP response"},
		"cut before the status": {url: "http://example.com", serve: reply("HTTP/1.1 "), attempts: 2, text: "malformed HTTP status code"},
		"cut in the status":     {url: "http://example.com", serve: reply("HTTP/1.0 20"), attempts: 2, text: "malformed HTTP status code"},
		"not a status":          {url: "http://example.com", serve: reply("HTTP/1.1 2x"), attempts: 1, text: "malformed HTTP status code"},
		"another protocol":      {url: "http://example.com", serve: reply("HTTPS"), attempts: 1, text: "malformed HTTP response"},
		"no headers in time": {url: "http://example.com", serve: swallow, attempts: 2, text: "timeout awaiting response headers",
			change: func(base *http.Transport) { base.ResponseHeaderTimeout = time.Second }},
		"not HTTP":    {url: "http://example.com", serve: reply("hello\r\n"), attempts: 1, text: "malformed HTTP response"},
		"no status":   {url: "http://example.com", serve: reply("HTTP/1.1 abc no\r\n"), attempts: 1, text: "malformed HTTP status code"},
		"bad version": {url: "http://example.com", serve: reply("HTTP/x 200 OK\r\n"), attempts: 1, text: "malformed HTTP version"},
		"bad scheme":  {url: "ftp://example.com", attempts: 1, text: "unsupported protocol scheme"},
		"no host":     {url: "http:///path", attempts: 1, text: "no Host"},
		"bad name":    {url: "http://example.com", request: header("a b", "c"), attempts: 1, text: "invalid header field name"},
		"bad value":   {url: "http://example.com", request: header("A", "b\n"), attempts: 1, text: "invalid header field value"},
		"bad method":  {url: "http://example.com", request: func(req *http.Request) { req.Method, req.Header["Idempotency-Key"] = "G T", nil }, attempts: 1, text: "invalid method"},
		"proxy refuses": {url: "https://example.com", serve: reply("HTTP/1.1 503 Service Unavailable\r\n\r\n"), attempts: 1, text: "Service Unavailable",
			change: func(base *http.Transport) { base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy"}) }},

		"TLS works": {url: "https://example.com", serve: server(func(*tls.Config) {}), change: trust, attempts: 1},
		"TLS: not trusted": {url: "https://example.com", serve: server(func(*tls.Config) {}), attempts: 1, text: "unknown authority",
			change: client(func(config *tls.Config) { config.RootCAs = x509.NewCertPool() })},
		"TLS: another host's": {url: "https://example.net", serve: server(func(*tls.Config) {}), change: trust, attempts: 1, text: "not example.net"},
		"TLS: expired": {url: "https://example.com", attempts: 1, text: "expired",
			serve:  server(func(config *tls.Config) { config.Certificates[0] = old }),
			change: client(func(config *tls.Config) { config.RootCAs = oldRoots })},
		"TLS 1.2: no client certificate, told like any failure": {url: "https://example.com", change: trust, attempts: 2, text: "remote error: tls: handshake failure",
			serve: server(func(config *tls.Config) {
				config.MaxVersion, config.ClientAuth = tls.VersionTLS12, tls.RequireAnyClientCert
			})},
		"TLS 1.3: no client certificate": {url: "https://example.com", change: trust, attempts: 1, text: "remote error: tls: certificate required",
			serve: server(func(config *tls.Config) {
				config.MinVersion, config.ClientAuth = tls.VersionTLS13, tls.RequireAnyClientCert
			})},
		"TLS: the client's certificate is not trusted": {url: "https://example.com", change: showing(good), attempts: 1, text: "remote error: tls:",
			serve: server(func(config *tls.Config) {
				config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
			})},
		"TLS: the client's certificate has expired": {url: "https://example.com", change: showing(old), attempts: 1, text: "remote error: tls: expired certificate",
			serve: server(func(config *tls.Config) {
				config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, oldRoots
			})},
		"TLS: no common version": {url: "https://example.com", attempts: 2, text: "remote error: tls: protocol version not supported",
			serve:  server(func(config *tls.Config) { config.MinVersion = tls.VersionTLS13 }),
			change: client(func(config *tls.Config) { config.RootCAs, config.MaxVersion = roots, tls.VersionTLS12 })},
		"TLS: no common cipher": {url: "https://example.com", change: trust, attempts: 2, text: "remote error: tls: handshake failure",
			serve: server(func(config *tls.Config) {
				config.MaxVersion, config.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}
			})},
		"TLS: a server without its certificate": {url: "https://example.com", change: trust, attempts: 2, text: "remote error: tls: internal error",
			serve: server(func(config *tls.Config) {
				config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, errors.New("rotating") }
			})},
		"TLS: cut":         {url: "https://example.com", serve: hello(""), attempts: 2, text: "EOF"},
		"TLS: not spoken":  {url: "https://example.com", serve: hello("220 mail.example.com ESMTP\r\n"), attempts: 2, text: "does not look like a TLS handshake"},
		"TLS: HTTP spoken": {url: "https://example.com", serve: hello("HTTP/1.1 400 Bad Request\r\n\r\n"), attempts: 1, text: "does not look like a TLS handshake"},
		"TLS: no handshake in time": {url: "https://example.com", serve: swallow, attempts: 2, text: "TLS handshake timeout",
			change: func(base *http.Transport) { base.TLSHandshakeTimeout = time.Second }},

		"HTTP/2: cut":                 {url: "http://example.com", serve: serveHTTP2(hangUp), change: onlyHTTP2, attempts: 2, text: "EOF"},
		"HTTP/2: no headers at all":   {url: "http://example.com", serve: serveHTTP2(func(s uint32) []byte { return http2Frame(0x1, 0x5, s) }), change: onlyHTTP2, attempts: 1, text: "malformed response from server"},
		"HTTP/2: internal error":      {url: "http://example.com", serve: serveHTTP2(reset(0x2)), change: onlyHTTP2, attempts: 2, text: "INTERNAL_ERROR"},
		"HTTP/2: refused stream":      {url: "http://example.com", serve: serveHTTP2(reset(0x7)), change: onlyHTTP2, attempts: 2, text: "REFUSED_STREAM"},
		"HTTP/2: cancelled":           {url: "http://example.com", serve: serveHTTP2(reset(0x8)), change: onlyHTTP2, attempts: 2, text: "CANCEL"},
		"HTTP/2: calm":                {url: "http://example.com", serve: serveHTTP2(reset(0xb)), change: onlyHTTP2, attempts: 2, text: "ENHANCE_YOUR_CALM"},
		"HTTP/2: inadequate security": {url: "http://example.com", serve: serveHTTP2(reset(0xc)), change: onlyHTTP2, attempts: 1, text: "INADEQUATE_SECURITY"},
		"HTTP/2: wants HTTP/1.1":      {url: "http://example.com", serve: serveHTTP2(reset(0xd)), change: onlyHTTP2, attempts: 1, text: "HTTP_1_1_REQUIRED"},
		"HTTP/2: GOAWAY":              {url: "http://example.com", serve: serveHTTP2(goAway(0x2), hangUp), change: onlyHTTP2, attempts: 2, text: "GOAWAY"},
		"HTTP/2: broken frames":       {url: "http://example.com", serve: serveHTTP2(func(uint32) []byte { return http2Frame(0x4, 0, 1) }), change: onlyHTTP2, attempts: 2, text: "connection error"},
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url, nil)
				require.NoError(t, err)
				if c.request != nil {
					c.request(req)
				}
				attempts, err := overPipes(t, c.serve, c.change, req)
				if c.text == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.text)
				}
				require.Equal(t, c.attempts, attempts, "%v", err)
			})
		})
	}
}

// An http.Transport reports these too, but not always: it may take notice first of
// the connection that it closes because of them.
func TestABodyOfAnotherLengthThanDeclaredIsFinal(t *testing.T) {
	t.Parallel()
	for body, length := range map[string]int64{"too long": 3, "too short": 30, "": 5} {
		req := request(t, http.MethodPut, strings.NewReader(body))
		if body == "" {
			req.Body = nil
		}
		req.ContentLength = length
		attempts := 0
		_, err := unlimited(roundTrip(func(req *http.Request) (*http.Response, error) {
			attempts++
			return nil, req.Write(io.Discard)
		})).RoundTrip(req)
		require.ErrorContains(t, err, fmt.Sprintf("ContentLength=%d with ", length))
		require.Equal(t, 1, attempts)
	}
}

// Retry-After.

// receipt is when the responses of the Retry-After table come in.
var receipt = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// invalid stands for a field that asks for nothing.
const invalid time.Duration = -1

const forever time.Duration = math.MaxInt64

var retryAfters = []struct {
	values []string
	want   time.Duration
}{
	{nil, invalid},
	{[]string{"120"}, 120 * time.Second},
	{[]string{"0"}, 0},
	{[]string{"2"}, 2 * time.Second},
	{[]string{" 5 "}, 5 * time.Second},
	{[]string{"\t5 "}, 5 * time.Second},
	{[]string{"\t42 "}, 42 * time.Second},
	{[]string{"007"}, 7 * time.Second},
	{[]string{"1000"}, 1000 * time.Second},
	{[]string{"2026"}, 2026 * time.Second},
	{[]string{""}, invalid},
	{[]string{" "}, invalid},
	{[]string{"-5"}, invalid},
	{[]string{"-1"}, invalid},
	{[]string{"-0"}, invalid},
	{[]string{"+5"}, invalid},
	{[]string{"1.5"}, invalid},
	{[]string{"1.0"}, invalid},
	{[]string{"0x10"}, invalid},
	{[]string{"1e3"}, invalid},
	{[]string{"1_000"}, invalid},
	{[]string{"Infinity"}, invalid},
	{[]string{"NaN"}, invalid},
	{[]string{"²"}, invalid},
	{[]string{"٣"}, invalid},
	{[]string{"1 0"}, invalid},
	{[]string{"10s"}, invalid},
	{[]string{"10;x"}, invalid},
	{[]string{"\n5"}, invalid},
	{[]string{"badbadbad"}, invalid},
	{[]string{"120, 60"}, invalid},
	{[]string{"120", "60"}, invalid},
	{[]string{"60", "60"}, invalid},
	{[]string{"2147483648"}, 2147483648 * time.Second},
	{[]string{"9223372036"}, 9223372036 * time.Second},
	{[]string{"9223372037"}, forever},
	{[]string{"18446744074"}, forever},
	{[]string{"9223372036854775807"}, forever},
	{[]string{"9223372036854775808"}, forever},
	{[]string{"18446744073709551616"}, forever},
	{[]string{"18446744073709551617"}, forever},
	{[]string{strings.Repeat("1", 400)}, forever},
	{[]string{strings.Repeat("0", 400)}, 0},
	{[]string{strings.Repeat("0", 400) + "9"}, 9 * time.Second},
	{[]string{"Mon, 30 Nov 2026 12:00:30 GMT"}, 30 * time.Second},
	{[]string{" Mon, 30 Nov 2026 12:00:30 GMT\t"}, 30 * time.Second},
	{[]string{"Monday, 30-Nov-26 12:00:30 GMT"}, 30 * time.Second},
	{[]string{"Mon Nov 30 12:00:30 2026"}, 30 * time.Second},
	{[]string{"Tue Dec  1 12:00:00 2026"}, 24 * time.Hour},
	{[]string{"Mon, 30 Nov 2026 12:30:12 GMT"}, 1812 * time.Second},
	{[]string{"Monday, 30-Nov-26 12:30:12 GMT"}, 1812 * time.Second},
	{[]string{"Mon Nov 30 12:30:12 2026"}, 1812 * time.Second},
	{[]string{"Mon, 30 Nov 2026 12:00:00 GMT"}, 0},
	{[]string{"Sun, 29 Nov 2026 12:00:00 GMT"}, 0},
	{[]string{"Sunday, 29-Nov-26 12:00:00 GMT"}, 0},
	{[]string{"Sunday, 06-Nov-94 08:49:37 GMT"}, 0}, // 1994
	{[]string{"Wednesday, 06-Nov-69 08:49:37 GMT"}, time.Date(2069, 11, 6, 8, 49, 37, 0, time.UTC).Sub(receipt)},
	{[]string{"Monday, 30-Nov-76 12:00:00 GMT"}, time.Date(2076, 11, 30, 12, 0, 0, 0, time.UTC).Sub(receipt)},
	{[]string{"Monday, 30-Nov-76 12:00:01 GMT"}, 0},   // 1976: 2076 is over 50 years ahead
	{[]string{"Tuesday, 30-Nov-77 12:00:00 GMT"}, 0},  // 1977
	{[]string{"Friday, 01-Jan-99 00:00:00 GMT"}, 0},   // 1999
	{[]string{"Saturday, 01-Jan-00 00:00:00 GMT"}, 0}, // 2000
	{[]string{"Mon, 30 Nov 2026 12:00:60 GMT"}, 60 * time.Second},
	{[]string{"Monday, 30-Nov-26 12:00:60 GMT"}, 60 * time.Second},
	{[]string{"Mon Nov 30 12:00:60 2026"}, 60 * time.Second},
	{[]string{"Mon, 30 Nov 2026 12:00:61 GMT"}, invalid},
	{[]string{"Sun, 30 Nov 2026 12:00:30 GMT"}, 30 * time.Second}, // it is a Monday
	{[]string{"mon, 30 nov 2026 12:00:30 gmt"}, invalid},
	{[]string{"Mon, 30 Nov 2026 12:00:30 UTC"}, invalid},
	{[]string{"Mon, 30 Nov 2026 12:00:30 +0000"}, invalid},
	{[]string{"Mon, 30 Nov 2026 12:00:30 PST"}, invalid},
	{[]string{"Mon, 30 Nov 2026 12:00:30"}, invalid},
	{[]string{"Monday, 30-Nov-26 12:00:30 PST"}, invalid},
	{[]string{"Mon, 30 Nov 2026 12:00:30.5 GMT"}, invalid},
	{[]string{"Mon, 31 Feb 2026 12:00:00 GMT"}, invalid},
	{[]string{"Tue, 32 Dec 2026 12:00:00 GMT"}, invalid},
	{[]string{"Mon, 30 Nov 2026 24:00:00 GMT"}, invalid},
	{[]string{"Mon, 30 Nov 2026 12:00:30 GMT, 60"}, invalid},
	{[]string{"2026-11-30T12:00:30Z"}, invalid},
	{[]string{"Fri, 31 Dec 9999 23:59:59 GMT"}, forever},
	{[]string{"Sun, 06 Nov 0000 08:49:37 GMT"}, 0},
}

func TestRetryAfterIsReadInEveryForm(t *testing.T) {
	t.Parallel()
	const right, wrong = "Mon, 30 Nov 2026 12:00:00 GMT", "Mon, 30 Nov 2026 11:00:00 GMT"
	for row, c := range map[string]struct {
		skew      time.Duration // how fast the clock here is
		date, age string
	}{
		"by the clock":                      {0, "", ""},
		"by the Date, the clock being fast": {10 * time.Minute, right, ""},
		"by the Date, the clock being slow": {-48 * time.Hour, right, ""},
		"by a Date of RFC 850":              {-time.Hour, "Monday, 30-Nov-26 12:00:00 GMT", ""},
		"by a Date of asctime":              {time.Hour, "Mon Nov 30 12:00:00 2026", ""},
		"by the Date of a fresh response":   {time.Hour, right, "0"},
		"by the clock, coming from a cache": {0, wrong, "7"},
		"by the clock, the Date being bad":  {0, "Mon, 30 Nov 2026 11:00:00 PST", ""},
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(receipt.Add(c.skew)))
				for _, r := range retryAfters {
					h := http.Header{"Retry-After": r.values}
					if c.date != "" {
						h.Set("Date", c.date)
					}
					if c.age != "" {
						h.Set("Age", c.age)
					}
					d, ok := retrip.Attempt{Response: &http.Response{StatusCode: 503, Header: h}}.RetryAfter()
					require.Equal(t, r.want != invalid, ok, "%q", r.values)
					require.Equal(t, max(0, r.want), d, "%q", r.values)
				}
			})
		})
	}
}

func TestRetryAfterDoesNotDependOnTheLocalZone(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	for _, zone := range []string{"America/Los_Angeles", "Asia/Kolkata", "Pacific/Kiritimati"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			_, err := time.LoadLocation(zone)
			require.NoError(t, err, "the child has the same data")
			cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestRetryAfterIsReadInEveryForm$", "-test.v")
			cmd.Env = append(os.Environ(), "TZ="+zone)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "--- PASS: TestRetryAfterIsReadInEveryForm")
		})
	}
}

func TestWithoutAResponseNothingIsAsked(t *testing.T) {
	t.Parallel()
	for _, a := range []retrip.Attempt{{}, {Err: io.EOF}, {Response: &http.Response{StatusCode: 503}}} {
		d, ok := a.RetryAfter()
		require.False(t, ok)
		require.Zero(t, d)
	}
}

func TestAPauseIsAsLongAsTheServerAskedAndAJitter(t *testing.T) {
	t.Parallel()
	for asked, most := range map[time.Duration]time.Duration{
		time.Second:      100 * time.Millisecond,
		2 * time.Second:  200 * time.Millisecond,
		50 * time.Second: 5 * time.Second,
		time.Minute:      5 * time.Second,
		24 * time.Hour:   5 * time.Second,
	} {
		t.Run(asked.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				base := play(answer(503, "Retry-After", fmt.Sprint(int(asked.Seconds()))))
				rt := unlimited(base, retrip.WithMaxAttempts(501), retrip.WithBudget(forever))
				_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
				require.NoError(t, err)
				pauses := base.pauses()
				require.Len(t, pauses, 500)
				low, high := slices.Min(pauses), slices.Max(pauses)
				require.GreaterOrEqual(t, low, asked, "never earlier")
				require.LessOrEqual(t, high, asked+most)
				require.Less(t, low, asked+most/10, "the whole range is used")
				require.Greater(t, high, asked+most-most/10)
			})
		})
	}
}

func TestTheServersPauseIsTheRuleForEveryStatusThatIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, status := range []int{408, 413, 425, 429, 500, 502, 503, 504, 599} {
		synctest.Test(t, func(t *testing.T) {
			base := play(answer(status, "Retry-After", "10"), answer(200))
			rt := unlimited(base, retrip.WithBackoff(retrip.Constant(time.Minute)))
			_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
			require.NoError(t, err)
			require.Len(t, base.pauses(), 1)
			require.GreaterOrEqual(t, base.pauses()[0], 10*time.Second)
			require.LessOrEqual(t, base.pauses()[0], 11*time.Second, "also if the backoff says more")
		})
	}
}

func TestTheBackoffDecidesWhenTheServerDoesNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, value := range []string{"0", "000", "-5", "+5", "1.5", "soon", "", "10, 20", "Sun, 29 Nov 1998 12:00:00 GMT", "1998-11-29"} {
			base := play(answer(503, "Retry-After", value), answer(200))
			rt := unlimited(base, retrip.WithBackoff(retrip.Constant(7*time.Second)))
			_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
			require.NoError(t, err)
			require.Equal(t, []time.Duration{7 * time.Second}, base.pauses(), value)
		}
	})
}

func TestAPauseThatDoesNotFitIsNotBegun(t *testing.T) {
	t.Parallel()
	for row, c := range map[string]struct {
		asked    string
		backoff  time.Duration
		budget   time.Duration
		deadline time.Duration // 0: none
		reason   retrip.Reason // 0: it fits
	}{
		"over the budget":                     {"120", 0, time.Minute, 0, retrip.ReasonBudget},
		"the whole budget":                    {"60", 0, time.Minute, 0, retrip.ReasonBudget},
		"within the budget by a nanosecond":   {"60", 0, time.Minute + 1, 0, 0},
		"over the deadline":                   {"120", 0, time.Hour, time.Minute, retrip.ReasonDeadline},
		"until the deadline":                  {"60", 0, time.Hour, time.Minute, retrip.ReasonDeadline},
		"within the deadline by a nanosecond": {"60", 0, time.Hour, time.Minute + 1, 0},
		"within both":                         {"60", 0, time.Minute + 2, time.Minute + 1, 0},
		"a budget that is shorter":            {"60", 0, time.Minute + 1, time.Minute + 2, 0},
		"more than a Duration":                {strings.Repeat("9", 30), 0, forever, 0, retrip.ReasonBudget},
		"a date beyond a Duration":            {"Fri, 31 Dec 9999 23:59:59 GMT", 0, forever, 0, retrip.ReasonBudget},
		"wrapping to 290 ms":                  {"18446744074", 0, time.Minute, 0, retrip.ReasonBudget},
		"a backoff over the budget":           {"", time.Minute + 1, time.Minute, 0, retrip.ReasonBudget},
		"a backoff for the whole budget":      {"", time.Minute, time.Minute, 0, retrip.ReasonBudget},
		"a backoff that just fits":            {"", time.Minute - 1, time.Minute, 0, 0},
		"a backoff over the deadline":         {"", time.Minute, time.Hour, time.Minute, retrip.ReasonDeadline},
		"a backoff just before the deadline":  {"", time.Minute - 1, time.Hour, time.Minute, 0},
		"a backoff without end":               {"", forever, forever, 0, retrip.ReasonBudget},
		"a backoff without end, a deadline":   {"", forever - 1, forever, time.Minute, retrip.ReasonDeadline},
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for range 20 { // the jitter may not fit by chance only
					start := time.Now()
					ctx, cancel := context.WithCancel(t.Context())
					if c.deadline > 0 {
						ctx, cancel = context.WithTimeout(t.Context(), c.deadline)
					}
					var reason retrip.Reason
					base := play(answer(503, "Retry-After", c.asked), answer(200))
					rt := unlimited(base, retrip.WithBudget(c.budget), retrip.WithBackoff(retrip.Constant(c.backoff)),
						retrip.WithTrace(&retrip.Trace{GaveUp: func(i retrip.GaveUpInfo) { reason = i.Reason }}))
					resp, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
					require.NoError(t, err)
					require.Equal(t, "x", finish(t, resp), "the body is unread")
					require.Equal(t, c.reason, reason)
					if c.reason != 0 {
						require.Equal(t, 503, resp.StatusCode)
						require.Zero(t, time.Since(start), "it is handed back at once")
					} else {
						require.Equal(t, 200, resp.StatusCode)
						pause := base.pauses()[0]
						require.Less(t, pause, c.budget)
						require.GreaterOrEqual(t, pause, time.Minute-1)
						if c.deadline > 0 {
							require.Less(t, pause, c.deadline)
						}
					}
					cancel()
				}
			})
		})
	}
}

func TestJitterIsTrimmedNotDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var pauses []time.Duration
		for range 200 {
			base := play(answer(429, "Retry-After", "60"), answer(200))
			_, err := unlimited(base, retrip.WithBudget(61*time.Second)).RoundTrip(request(t, http.MethodGet, nil))
			require.NoError(t, err)
			pauses = append(pauses, base.pauses()...)
		}
		require.Len(t, pauses, 200)
		require.GreaterOrEqual(t, slices.Min(pauses), 60*time.Second)
		require.Less(t, slices.Min(pauses), 61*time.Second-1)
		require.Equal(t, 61*time.Second-1, slices.Max(pauses), "the last moment that fits")
	})
}

func TestACancelledRequestDoesNotWaitOutTheLongestRetryAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(503, "Retry-After", "9223372036"))
		rt := retrip.New(base, retrip.WithBudget(forever))
		time.Sleep(time.Hour) // the Transport's clock plus the pause is over a Duration
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		start := time.Now()
		resp, err := rt.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
		require.Nil(t, resp)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, time.Minute, time.Since(start))
		require.Len(t, base.attempts(), 1)
	})
}

// Backoffs.

// ends are retry numbers at which arithmetic goes wrong.
var ends = []int{math.MinInt, -1, 0, 1, 2, 31, 32, 33, 62, 63, 64, 65, 70, 128, 200, math.MaxInt32, math.MaxInt - 1, math.MaxInt}

func TestSchedulesWithoutJitter(t *testing.T) {
	t.Parallel()
	const s, m, h = time.Second, time.Minute, time.Hour
	for row, c := range map[string]struct {
		backoff retrip.Backoff
		want    []time.Duration // of the retries from 1 on; the last repeats
	}{
		"Exponential(1s, 5s)":       {retrip.Exponential(s, 5*s), []time.Duration{s, 2 * s, 4 * s, 5 * s}},
		"Exponential(1s, 5m)":       {retrip.Exponential(s, 5*m), []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s, 128 * s, 256 * s, 300 * s}},
		"Exponential(500ms, 30s)":   {retrip.Exponential(s/2, 30*s), []time.Duration{s / 2, s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s}},
		"Exponential(10s, 30m)":     {retrip.Exponential(10*s, 30*m), []time.Duration{10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 320 * s, 640 * s, 1280 * s, 1800 * s}},
		"Exponential(1s, 8s)":       {retrip.Exponential(s, 8*s), []time.Duration{s, 2 * s, 4 * s, 8 * s}},
		"Exponential(1ns, 5ns)":     {retrip.Exponential(1, 5), []time.Duration{1, 2, 4, 5}},
		"Exponential(5s, 5s)":       {retrip.Exponential(5*s, 5*s), []time.Duration{5 * s}},
		"Exponential(0, 5s)":        {retrip.Exponential(0, 5*s), []time.Duration{0}},
		"Exponential(0, 0)":         {retrip.Exponential(0, 0), []time.Duration{0}},
		"Exponential(max/2, max)":   {retrip.Exponential(forever/2, forever), []time.Duration{forever / 2, forever - 1, forever}},
		"Exponential(max, max)":     {retrip.Exponential(forever, forever), []time.Duration{forever}},
		"FullJitter(0, 0)":          {retrip.FullJitter(0, 0), []time.Duration{0}},
		"FullJitter(0, 5s)":         {retrip.FullJitter(0, 5*s), []time.Duration{0}},
		"EqualJitter(0, 5s)":        {retrip.EqualJitter(0, 5*s), []time.Duration{0}},
		"DecorrelatedJitter(0, 5s)": {retrip.DecorrelatedJitter(0, 5*s), []time.Duration{0}},
		"DecorrelatedJitter(5, 5)":  {retrip.DecorrelatedJitter(5, 5), []time.Duration{5}},
		"Constant(0)":               {retrip.Constant(0), []time.Duration{0}},
		"Constant(7s)":              {retrip.Constant(7 * s), []time.Duration{7 * s}},
		"Constant(max)":             {retrip.Constant(forever), []time.Duration{forever}},
		"Ladder(5m, 30m, 3h)":       {retrip.Ladder(5*m, 30*m, 3*h), []time.Duration{5 * m, 30 * m, 3 * h}},
		"Ladder(0, 5s, 0)":          {retrip.Ladder(0, 5*s, 0), []time.Duration{0, 5 * s, 0}},
		"Ladder(1s)":                {retrip.Ladder(s), []time.Duration{s}},
		"Ladder(3h, 1s)":            {retrip.Ladder(3*h, s), []time.Duration{3 * h, s}},
		"Spread(Ladder, 0)":         {retrip.Spread(retrip.Ladder(5*m, 0, 3*h), 0), []time.Duration{5 * m, 0, 3 * h}},
	} {
		for retry := range 20 {
			want := c.want[min(max(retry, 1), len(c.want))-1]
			require.Equal(t, want, c.backoff(retry, 0), "%s: retry %d", row, retry)
		}
		for _, retry := range ends {
			want := c.want[0]
			if retry >= 1 {
				want = c.want[min(retry, len(c.want))-1]
			}
			require.Equal(t, want, c.backoff(retry, 0), "%s: retry %d", row, retry)
		}
	}
}

func TestExponentialStaysWithinItsLimitAndNeverFalls(t *testing.T) {
	t.Parallel()
	for _, limit := range []time.Duration{1, 3, time.Second, 30 * time.Second, 24 * time.Hour, forever - 1, forever} {
		for _, base := range []time.Duration{1, 2, time.Millisecond, 700 * time.Millisecond, forever/2 + 1} {
			if base > limit {
				continue
			}
			b, last := retrip.Exponential(base, limit), time.Duration(0)
			for _, retry := range ends {
				d := b(retry, last)
				require.Positive(t, d, "(%v, %v) %d", base, limit, retry)
				require.LessOrEqual(t, d, limit, "(%v, %v) %d", base, limit, retry)
				require.GreaterOrEqual(t, d, last, "(%v, %v) %d", base, limit, retry)
				last = d
			}
			require.Equal(t, limit, last)
		}
	}
}

// draw calls a backoff often, always with the same arguments.
func draw(b retrip.Backoff, retry int, last time.Duration) []time.Duration {
	all := make([]time.Duration, 10_000)
	for i := range all {
		all[i] = b(retry, last)
	}
	return all
}

func count(all []time.Duration, want time.Duration) (n int) {
	for _, d := range all {
		if d == want {
			n++
		}
	}
	return n
}

func TestJitterFillsItsRangeEvenly(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for row, c := range map[string]struct {
		backoff   retrip.Backoff
		retry     int
		last      time.Duration
		low, high time.Duration
	}{
		"full, first":            {retrip.FullJitter(s/2, 30*s), 1, 0, 0, s / 2},
		"full, third":            {retrip.FullJitter(s/2, 30*s), 3, 0, 0, 2 * s},
		"full, at the limit":     {retrip.FullJitter(s/2, 30*s), 7, 0, 0, 30 * s},
		"full, far beyond":       {retrip.FullJitter(s/2, 30*s), math.MaxInt, 0, 0, 30 * s},
		"full, largest":          {retrip.FullJitter(s, forever), 200, 0, 0, forever},
		"full, base is limit":    {retrip.FullJitter(s, s), 5, 0, 0, s},
		"equal, first":           {retrip.EqualJitter(s, 60*s), 1, 0, s / 2, s},
		"equal, third":           {retrip.EqualJitter(s, 60*s), 3, 0, 2 * s, 4 * s},
		"equal, at the limit":    {retrip.EqualJitter(s, 60*s), 70, 0, 30 * s, 60 * s},
		"equal, largest":         {retrip.EqualJitter(s, forever), 64, 0, forever / 2, forever},
		"decorrelated, first":    {retrip.DecorrelatedJitter(s, 60*s), 1, 0, s, 3 * s},
		"decorrelated, after 3s": {retrip.DecorrelatedJitter(s, 60*s), 2, 3 * s, s, 9 * s},
		"decorrelated, largest":  {retrip.DecorrelatedJitter(s, forever), 9, forever, s, forever},
		"decorrelated, tripled":  {retrip.DecorrelatedJitter(s, forever), 9, forever / 2, s, forever},
		"spread of 10s":          {retrip.Spread(retrip.Constant(10*s), 0.2), 1, 0, 8 * s, 12 * s},
		"spread of a schedule":   {retrip.Spread(retrip.Exponential(10*s, 1800*s), 0.2), 3, 0, 32 * s, 48 * s},
		"spread of all":          {retrip.Spread(retrip.Constant(10*s), 1), 1, 0, 0, 20 * s},
	} {
		all := draw(c.backoff, c.retry, c.last)
		width := float64(c.high) - float64(c.low)
		mean := 0.0
		for _, d := range all {
			mean += float64(d) / float64(len(all))
		}
		require.GreaterOrEqual(t, slices.Min(all), c.low, row)
		require.LessOrEqual(t, slices.Max(all), c.high, row)
		// The mean's sigma is 0.0029 widths; a hundredth of the range stays empty
		// with a chance of 10^-43.
		require.InDelta(t, float64(c.low)+width/2, mean, 0.025*width, row)
		require.Less(t, float64(slices.Min(all)), float64(c.low)+width/100, row)
		require.Greater(t, float64(slices.Max(all)), float64(c.high)-width/100, row)
	}
}

func TestJitterOfTheSmallestRanges(t *testing.T) {
	t.Parallel()
	for row, c := range map[string]struct {
		backoff retrip.Backoff
		last    time.Duration
		want    []time.Duration
	}{
		"full":         {retrip.FullJitter(1, 1), 0, []time.Duration{0, 1}},
		"equal":        {retrip.EqualJitter(2, 2), 0, []time.Duration{1, 2}},
		"equal of 1":   {retrip.EqualJitter(1, 1), 0, []time.Duration{1}},
		"decorrelated": {retrip.DecorrelatedJitter(1, 3), 0, []time.Duration{1, 2, 3}},
		"capped":       {retrip.DecorrelatedJitter(1, 2), 5, []time.Duration{1, 2}},
	} {
		all := draw(c.backoff, 1, c.last)
		slices.Sort(all)
		require.Equal(t, c.want, slices.Compact(all), row)
	}
}

func TestDecorrelatedJitterIsCapped(t *testing.T) {
	t.Parallel()
	all := draw(retrip.DecorrelatedJitter(time.Second, 10*time.Second), 5, 10*time.Second)
	require.GreaterOrEqual(t, slices.Min(all), time.Second)
	require.Equal(t, 10*time.Second, slices.Max(all))
	// Of the range from 1s to 30s, 20 of 29 are at the cap; sigma is 46.
	require.InDelta(t, 10_000*20/29, count(all, 10*time.Second), 350)
}

func TestSpreadSaturates(t *testing.T) {
	t.Parallel()
	all := draw(retrip.Spread(retrip.Constant(forever), 1), 1, 0)
	require.GreaterOrEqual(t, slices.Min(all), time.Duration(0))
	require.InDelta(t, 5000, count(all, forever), 400, "half of the factors are over 1") // sigma is 50
}

func TestSpreadPassesOnWhatItIsTold(t *testing.T) {
	t.Parallel()
	b := retrip.Spread(func(retry int, last time.Duration) time.Duration {
		require.Equal(t, 3, retry)
		return 2 * last
	}, 0)
	require.Equal(t, 14*time.Second, b(3, 7*time.Second))
}

func TestMeansOfTheCumulativeWaits(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for row, c := range map[string]struct {
		backoff retrip.Backoff
		want    [6]float64 // seconds after retry 1 to 6
	}{
		"full, 50ms to 20s":          {retrip.FullJitter(50*ms, 20_000*ms), [6]float64{.025, .075, .175, .375, .775, 1.575}},
		"full, 1s to 20s":            {retrip.FullJitter(1000*ms, 20_000*ms), [6]float64{.5, 1.5, 3.5, 7.5, 15.5, 25.5}},
		"equal, 100ms to 10s":        {retrip.EqualJitter(100*ms, 10_000*ms), [6]float64{.075, .225, .525, 1.125, 2.325, 4.725}},
		"decorrelated, 100ms to 10s": {retrip.DecorrelatedJitter(100*ms, 10_000*ms), [6]float64{.2, .549, 1.123, 2.033, 3.441, 5.458}},
	} {
		const draws = 10_000
		var sum, squares [6]float64
		for range draws {
			last, total := time.Duration(0), 0.0
			for i := range sum {
				last = c.backoff(i+1, last)
				total += last.Seconds()
				sum[i] += total
				squares[i] += total * total
			}
		}
		for i, want := range c.want {
			mean := sum[i] / draws
			sigma := math.Sqrt((squares[i]/draws - mean*mean) / draws)
			// The table's own figures are from a simulation: half a percent more.
			require.InDelta(t, want, mean, 7*sigma+want/200, "%s: retry %d", row, i+1)
		}
	}
}

func TestALadderKeepsItsOwnSteps(t *testing.T) {
	t.Parallel()
	steps := []time.Duration{time.Second, time.Minute}
	b := retrip.Ladder(steps...)
	steps[0], steps[1] = 0, 0
	require.Equal(t, time.Second, b(1, 0))
	require.Equal(t, time.Minute, b(9, 0))
}

func TestALadderDoesNotLimitTheAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(answer(503))
		rt := unlimited(base, retrip.WithMaxAttempts(6), retrip.WithBudget(24*time.Hour),
			retrip.WithBackoff(retrip.Ladder(5*time.Minute, 0, 3*time.Hour)))
		_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
		require.NoError(t, err)
		require.Equal(t, []time.Duration{5 * time.Minute, 0, 3 * time.Hour, 3 * time.Hour, 3 * time.Hour}, base.pauses())
	})
}

func TestWhatABackoffIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type told struct {
			retry int
			last  time.Duration
		}
		var all []told
		b := func(retry int, last time.Duration) time.Duration {
			all = append(all, told{retry, last})
			return time.Duration(retry) * time.Second
		}
		base := play(answer(503), answer(503, "Retry-After", "10"), fail(io.EOF), answer(500), answer(200))
		_, err := unlimited(base, retrip.WithMaxAttempts(5), retrip.WithBackoff(b)).RoundTrip(request(t, http.MethodGet, nil))
		require.NoError(t, err)
		require.Equal(t, []told{{1, 0}, {3, time.Second}, {4, 3 * time.Second}}, all, "nothing of the server's own pause")
		pauses := base.pauses()
		require.GreaterOrEqual(t, pauses[1], 10*time.Second)
		pauses[1] = 0
		require.Equal(t, []time.Duration{time.Second, 0, 3 * time.Second, 4 * time.Second}, pauses)
	})
}

func TestANegativePauseIsNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, d := range []time.Duration{-1, -time.Hour, math.MinInt64} {
			base := play(answer(503), fail(io.EOF), answer(200))
			told := retrip.WithTrace(&retrip.Trace{Pausing: func(i retrip.PausingInfo) {
				require.Zero(t, i.Attempt.Pause)
				require.Equal(t, time.Now(), i.Next)
			}})
			rt := unlimited(base, told, retrip.WithBackoff(func(int, time.Duration) time.Duration { return d }))
			_, err := rt.RoundTrip(request(t, http.MethodGet, nil))
			require.NoError(t, err)
			require.Equal(t, []time.Duration{0, 0}, base.pauses())
		}
	})
}

func TestAPanicOfUserCodePassesThrough(t *testing.T) {
	t.Parallel()
	for row, opt := range map[string]retrip.CallOption{
		"backoff":       retrip.WithBackoff(func(int, time.Duration) time.Duration { panic("ouch") }),
		"policy":        retrip.WithPolicy(func(retrip.Attempt) bool { panic("ouch") }),
		"key generator": retrip.WithIdempotencyKey(func(*http.Request) string { panic("ouch") }),
	} {
		closed := 0
		base := play(func(req *http.Request) (*http.Response, error) {
			resp, err := answer(503)(req)
			resp.Body = closer{resp.Body, func() { closed++ }}
			return resp, err
		})
		body := track("hello")
		rt := retrip.New(base, opt)
		require.PanicsWithValue(t, "ouch", func() {
			_, _ = rt.RoundTrip(request(t, http.MethodPost, body))
		}, row)
		require.Equal(t, len(base.attempts()), closed, "%s: the response is not left open", row)
		body.requireClosed(t)
		for _, stats := range rt.Hosts() {
			require.Equal(t, retrip.DefaultQuota().Initial, stats.Tokens, row)
		}
	}
}

type closer struct {
	io.ReadCloser
	closed func()
}

func (c closer) Close() error {
	c.closed()
	return c.ReadCloser.Close()
}

func TestOptionsOfThePolicyRefuseNonsense(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		part string
		call func()
	}{
		{"WithMaxAttempts(0)", func() { retrip.WithMaxAttempts(0) }},
		{"WithMaxAttempts(-1)", func() { retrip.WithMaxAttempts(-1) }},
		{"WithBackoff(nil)", func() { retrip.WithBackoff(nil) }},
		{"Constant(-1ns)", func() { retrip.Constant(-1) }},
		{"Exponential(-1s, 1s)", func() { retrip.Exponential(-time.Second, time.Second) }},
		{"Exponential(2s, 1s)", func() { retrip.Exponential(2*time.Second, time.Second) }},
		{"FullJitter(-1ns, 0s)", func() { retrip.FullJitter(-1, 0) }},
		{"FullJitter(1ns, 0s)", func() { retrip.FullJitter(1, 0) }},
		{"EqualJitter(-2ns, -1ns)", func() { retrip.EqualJitter(-2, -1) }},
		{"EqualJitter(2s, 1s)", func() { retrip.EqualJitter(2*time.Second, time.Second) }},
		{"DecorrelatedJitter(-1ns, 1s)", func() { retrip.DecorrelatedJitter(-1, time.Second) }},
		{"DecorrelatedJitter(2s, 1s)", func() { retrip.DecorrelatedJitter(2*time.Second, time.Second) }},
		{"Ladder()", func() { retrip.Ladder() }},
		{"Ladder([1s -1s])", func() { retrip.Ladder(time.Second, -time.Second) }},
		{"Spread(nil", func() { retrip.Spread(nil, 0.2) }},
		{"Spread(…, -0.1)", func() { retrip.Spread(retrip.Constant(0), -0.1) }},
		{"Spread(…, 1.1)", func() { retrip.Spread(retrip.Constant(0), 1.1) }},
		{"Spread(…, NaN)", func() { retrip.Spread(retrip.Constant(0), math.NaN()) }},
		{"Spread(…, +Inf)", func() { retrip.Spread(retrip.Constant(0), math.Inf(1)) }},
	} {
		requirePanic(t, c.part, c.call)
	}
}

// Allocations.

// These tests are not parallel: all goroutines' allocations count.

// requireAllocations fails unless a request costs no more than this.
func requireAllocations(t *testing.T, most float64, method string, opts ...retrip.Option) {
	t.Helper()
	resp := &http.Response{StatusCode: 200, Body: http.NoBody}
	base := roundTrip(func(*http.Request) (*http.Response, error) { return resp, nil })
	rt := retrip.New(base, opts...)
	req := request(t, method, nil)
	n := testing.AllocsPerRun(1000, func() {
		if got, err := rt.RoundTrip(req); err != nil || got != resp {
			t.Fatal(got, err)
		}
	})
	require.LessOrEqual(t, n, most)
}

func TestAllocationsOfARequestThatSucceedsAtOnce(t *testing.T) {
	key := func(req *http.Request) string { return req.URL.Host }
	for row, opts := range map[string][]retrip.Option{
		"default":            nil,
		"an empty Trace":     {retrip.WithTrace(&retrip.Trace{})},
		"a key of the hosts": {retrip.WithHosts(16, key)},
		"one attempt":        {retrip.WithMaxAttempts(1)},
	} {
		t.Run(row, func(t *testing.T) { requireAllocations(t, 0, http.MethodGet, opts...) })
	}
}

func TestAllocationsOfAnAttemptTimeout(t *testing.T) {
	requireAllocations(t, 6, http.MethodGet, retrip.WithAttemptTimeout(time.Minute))
}

func TestAllocationsOfTheTraceOfWhatWasSent(t *testing.T) {
	requireAllocations(t, 8, http.MethodPost, retrip.WithIdempotencyKey(nil))
}

// Fuzz targets.

func FuzzRetryAfter(f *testing.F) {
	for _, r := range retryAfters {
		for _, value := range r.values {
			f.Add(value, "Mon, 30 Nov 2026 12:00:00 GMT", "")
			f.Add(value, "", "7")
		}
	}
	f.Add("Fri, 31 Dec 9999 23:59:60 GMT", "Sun, 06 Nov 0000 08:49:37 GMT", "0")
	f.Fuzz(func(t *testing.T, value, date, age string) {
		h := http.Header{"Retry-After": {value}, "Date": {date}, "Age": {age}}
		d, ok := retrip.Attempt{Response: &http.Response{StatusCode: 503, Header: h}}.RetryAfter()
		require.GreaterOrEqual(t, d, time.Duration(0))
		if !ok {
			require.Zero(t, d)
		}
		digits := strings.Trim(value, " \t")
		if digits == "" || strings.Trim(digits, "0123456789") != "" {
			require.True(t, !ok || strings.Count(value, ":") == 2, "it is no date either")
			return
		}
		require.True(t, ok)
		asked, _ := new(big.Int).SetString(digits, 10)
		asked.Mul(asked, big.NewInt(int64(time.Second)))
		if !asked.IsInt64() {
			asked.SetInt64(math.MaxInt64)
		}
		require.Equal(t, asked.Int64(), int64(d))
	})
}

func FuzzBackoff(f *testing.F) {
	for _, retry := range ends {
		f.Add(int64(time.Second), int64(time.Minute), int64(0), retry, 0.2)
		f.Add(int64(1), int64(math.MaxInt64), int64(math.MaxInt64), retry, 1.0)
		f.Add(int64(0), int64(0), int64(math.MinInt64), retry, 0.0)
	}
	f.Fuzz(func(t *testing.T, a, b, c int64, retry int, fraction float64) {
		base, limit := time.Duration(a&math.MaxInt64), time.Duration(b&math.MaxInt64)
		base, limit = min(base, limit), max(base, limit)
		last := min(time.Duration(c&math.MaxInt64), limit)
		if fraction = math.Abs(fraction); !(fraction <= 1) {
			fraction = 0.5
		}
		full := retrip.Exponential(base, limit)(retry, last)
		slack := float64(full)/1e12 + 1
		for name, r := range map[string]struct{ got, low, high time.Duration }{
			"Exponential":        {full, base, limit},
			"Constant":           {retrip.Constant(base)(retry, last), base, base},
			"FullJitter":         {retrip.FullJitter(base, limit)(retry, last), 0, full},
			"EqualJitter":        {retrip.EqualJitter(base, limit)(retry, last), full - full/2, full},
			"DecorrelatedJitter": {retrip.DecorrelatedJitter(base, limit)(retry, last), base, limit},
			"Ladder":             {retrip.Ladder(base, limit)(retry, last), base, limit},
			"Spread": {
				retrip.Spread(retrip.Exponential(base, limit), fraction)(retry, last),
				max(0, saturate(float64(full)*(1-fraction)-slack)),
				saturate(float64(full)*(1+fraction) + slack),
			},
		} {
			require.GreaterOrEqual(t, r.got, r.low, name)
			require.LessOrEqual(t, r.got, r.high, name)
		}
	})
}

func saturate(f float64) time.Duration {
	if f >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(f)
}

func FuzzHostKey(f *testing.F) {
	for _, host := range []string{"", "example.com", "EXAMPLE.com:8080", "[::1]:80", "[FE80::1%25En0]", "İstanbul.example", "KELVIN.example",
		"\xff\xfe", "user:secret@host", "a b", "xn--MNCHEN-3ya.de", strings.Repeat("Long.", 1000)} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		const most = 3
		base := play(answer(200))
		rt := retrip.New(base, retrip.WithHosts(most, nil))
		lower := strings.ToLower(host)
		for i, name := range []string{host, lower, host, host + "1", host + "2", host + "3", host + "4", host} {
			req := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: name}, Header: http.Header{}}
			resp, err := rt.RoundTrip(req)
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, name, req.URL.Host)
			all := maps.Collect(rt.Hosts())
			require.LessOrEqual(t, len(all), most)
			require.Contains(t, all, strings.ToLower(name))
			if i < 3 {
				require.Len(t, all, 1)
				require.Equal(t, uint64(i+1), all[lower].Requests)
			}
		}
	})
}
