package retrip_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// keys returns the key that each attempt carried; "" for none.
func (s *script) keys(name string) (keys []string) {
	for _, saw := range s.attempts() {
		keys = append(keys, saw.header.Get(name))
	}
	return keys
}

func TestAKeyIsMadeOnceForEachRoundTrip(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, method := range []string{http.MethodPost, http.MethodPatch} {
		for range 2 {
			base := play(fail(syscall.ECONNRESET), answer(503), answer(409), answer(200))
			req := request(t, method, strings.NewReader("x"))
			req.Header = http.Header{"X-Other": {"a", "b"}}
			resp, err := unlimited(base).RoundTrip(req)
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			keys := base.keys(retrip.KeyHeader)
			require.Len(t, keys, 4)
			require.NotEmpty(t, keys[0])
			require.Len(t, slices.Compact(keys), 1, "all attempts carry the same key")
			require.NotContains(t, seen, keys[0], "each RoundTrip has its own")
			seen[keys[0]] = true
			require.Equal(t, http.Header{"X-Other": {"a", "b"}}, req.Header, "the caller's map is untouched")
			require.Equal(t, []string{"a", "b"}, base.attempts()[3].header["X-Other"])
		}
	}
}

func TestAKeyIsARandomUUID(t *testing.T) {
	t.Parallel()
	const draws = 1000
	shape := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	base := play(answer(200))
	rt := unlimited(base)
	for range draws {
		resp, err := rt.RoundTrip(request(t, http.MethodPost, nil))
		require.NoError(t, err)
		finish(t, resp)
	}
	keys := base.keys(retrip.KeyHeader)
	digits := [36]map[byte]int{}
	for _, key := range keys {
		require.Regexp(t, shape, key)
		for i := range digits {
			if digits[i] == nil {
				digits[i] = map[byte]int{}
			}
			digits[i][key[i]]++
		}
	}
	slices.Sort(keys)
	require.Len(t, slices.Compact(keys), draws, "all differ")
	want := map[int]int{8: 1, 13: 1, 18: 1, 23: 1, 14: 1, 19: 4}
	for i, counts := range digits {
		kinds := 16
		if n, special := want[i]; special {
			kinds = n
		}
		require.Len(t, counts, kinds, "values at position %d", i)
		// A digit comes 62 times on average; 7 sigma are 54 off, and more for the rarer.
		require.Less(t, slices.Max(slices.Collect(maps.Values(counts))), draws/kinds+110, "position %d", i)
	}
}

func TestOnlyPostAndPatchGetAKey(t *testing.T) {
	t.Parallel()
	for method, keyed := range map[string]bool{
		"POST": true, "PATCH": true,
		"": false, "GET": false, "HEAD": false, "OPTIONS": false, "TRACE": false, "PUT": false, "DELETE": false,
		"QUERY": false, "CONNECT": false, "LOCK": false, "PROPFIND": false, "post": false, "Post": false, "patch": false,
	} {
		base := play(answer(200))
		req := request(t, http.MethodGet, nil)
		req.Method = method
		_, err := unlimited(base).RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, keyed, base.keys(retrip.KeyHeader)[0] != "", method)
	}
}

func TestTheCallersOwnKeyIsKept(t *testing.T) {
	t.Parallel()
	const name = retrip.KeyHeader
	for row, c := range map[string]struct {
		header http.Header
		opts   []retrip.Option
	}{
		"raw":                         {header: http.Header{name: {"8e03978e-40d5-43dd-bc93-6894a57f9324"}}},
		"quoted":                      {header: http.Header{name: {`"8e03978e-40d5-43dd-bc93-6894a57f9324"`}}},
		"token":                       {header: http.Header{name: {"b2c"}}},
		"empty":                       {header: http.Header{name: {""}}},
		"empty string":                {header: http.Header{name: {`""`}}},
		"spaces":                      {header: http.Header{name: {`  "foo"  `}}},
		"unbalanced at the end":       {header: http.Header{name: {`"foo`}}},
		"unbalanced at the start":     {header: http.Header{name: {`foo"`}}},
		"one quote":                   {header: http.Header{name: {`"`}}},
		"single quotes":               {header: http.Header{name: {`'foo'`}}},
		"escapes":                     {header: http.Header{name: {`"a\"b\\c"`}}},
		"bad escape":                  {header: http.Header{name: {`"a\,b"`}}},
		"ends in an escape":           {header: http.Header{name: {`"foo\"`}}},
		"not ASCII":                   {header: http.Header{name: {`"füü"`}}},
		"tab":                         {header: http.Header{name: {"\"a\tb\""}}},
		"long":                        {header: http.Header{name: {`"` + strings.Repeat("k", 1024) + `"`}}},
		"two lines":                   {header: http.Header{name: {"a", "b"}}},
		"parameter":                   {header: http.Header{name: {`"k";p=1`}}},
		"empty slice":                 {header: http.Header{name: {}}},
		"nil slice":                   {header: http.Header{name: nil}},
		"lower case":                  {header: http.Header{"idempotency-key": {"k"}}},
		"upper case":                  {header: http.Header{"IDEMPOTENCY-KEY": {"k"}}},
		"mixed case, empty slice":     {header: http.Header{"idempotency-Key": {}}},
		"X-Idempotency-Key":           {header: http.Header{"X-Idempotency-Key": {"k"}}},
		"X-Idempotency-Key, lower":    {header: http.Header{"x-idempotency-key": {"k"}}},
		"X-Idempotency-Key, empty":    {header: http.Header{"X-Idempotency-Key": {}}},
		"custom name":                 {header: http.Header{"Paypal-Request-Id": {"k"}}, opts: []retrip.Option{retrip.WithKeyHeader("PayPal-Request-Id")}},
		"custom name, any case":       {header: http.Header{"PAYPAL-request-id": {"k"}}, opts: []retrip.Option{retrip.WithKeyHeader("paypal-request-id")}},
		"custom name, net/http's own": {header: http.Header{"X-Idempotency-Key": {"k"}}, opts: []retrip.Option{retrip.WithKeyHeader("PayPal-Request-Id")}},
		"injection switched off":      {header: http.Header{name: {"k"}}, opts: []retrip.Option{retrip.WithIdempotencyKey(nil)}},
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			minted := retrip.WithIdempotencyKey(func(*http.Request) string {
				t.Error("a key is made beside the caller's")
				return "mine"
			})
			for _, method := range []string{"POST", "PATCH", "LOCK"} {
				base := play(answer(500), answer(200))
				req := request(t, method, strings.NewReader("x"))
				req.Header = c.header.Clone()
				resp, err := unlimited(base, append([]retrip.Option{minted}, c.opts...)...).RoundTrip(req)
				require.NoError(t, err)
				require.Equal(t, 200, resp.StatusCode, "it makes the request repeatable")
				for _, saw := range base.attempts() {
					require.Equal(t, c.header, saw.header)
				}
				require.Equal(t, c.header, req.Header)
			}
		})
	}
}

func TestNoKeyIsAddedWhereItIsOfNoUse(t *testing.T) {
	t.Parallel()
	none := func(*http.Request) string { return "" }
	for row, c := range map[string]struct {
		opt    retrip.CallOption
		single bool // then nothing at all is added
	}{
		"one attempt":            {retrip.WithMaxAttempts(1), true},
		"no budget":              {retrip.WithBudget(0), true},
		"no policy":              {retrip.WithPolicy(nil), true},
		"injection switched off": {retrip.WithIdempotencyKey(nil), false},
		"an empty key":           {retrip.WithIdempotencyKey(none), false},
	} {
		for place, override := range map[string]bool{"transport": false, "request": true} {
			t.Run(row+" of the "+place, func(t *testing.T) {
				t.Parallel()
				base := play(answer(500))
				body := track("hello")
				req := request(t, http.MethodPost, body)
				rt := unlimited(base, c.opt)
				if override {
					rt = unlimited(base)
					req = req.WithContext(retrip.Override(req.Context(), c.opt))
				}
				resp, err := rt.RoundTrip(req)
				require.NoError(t, err)
				require.Equal(t, 500, resp.StatusCode)
				require.Len(t, base.attempts(), 1)
				saw := base.attempts()[0]
				require.Empty(t, saw.header)
				require.Equal(t, "hello", saw.body)
				require.Nil(t, saw.req.GetBody, "net/http must not send it again by itself")
				if c.single {
					require.Same(t, req, saw.req)
				}
				body.requireClosed(t)
			})
		}
	}
}

func TestAKeyedAttemptCanBeSentAgainByNetHTTP(t *testing.T) {
	t.Parallel()
	for row, keyed := range map[string]bool{"our key": false, "the caller's key": true} {
		body := track("hello")
		req := request(t, http.MethodPost, body)
		if keyed {
			req.Header.Set(retrip.KeyHeader, "k")
		}
		attempts := 0
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			attempts++
			require.NotNil(t, req.GetBody, row)
			again, err := req.GetBody()
			require.NoError(t, err, row)
			for _, r := range []io.ReadCloser{req.Body, again} {
				b, err := io.ReadAll(r)
				require.NoError(t, err, row)
				require.Equal(t, "hello", string(b), row)
				require.NoError(t, r.Close())
			}
			return answer(500)(req)
		})
		_, err := unlimited(base, retrip.WithMaxAttempts(2)).RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, 2, attempts)
		require.Nil(t, req.GetBody, "the caller's request is untouched")
		body.requireClosed(t)
	}
}

func TestAGeneratorMakesTheKey(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"k", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`, `a b~!`, strings.Repeat("k", 1024)} {
		for _, name := range []string{retrip.KeyHeader, "PayPal-Request-Id", "x-lower-case"} {
			base := play(answer(500), answer(200))
			req := request(t, http.MethodPost, nil)
			calls := 0
			gen := func(r *http.Request) string {
				calls++
				require.Same(t, req, r)
				return key
			}
			_, err := unlimited(base, retrip.WithIdempotencyKey(gen), retrip.WithKeyHeader(name)).RoundTrip(req)
			require.NoError(t, err)
			require.Equal(t, 1, calls)
			require.Equal(t, []string{key, key}, base.keys(name), "as it is")
			require.Len(t, base.attempts()[0].header, 1)
			require.Empty(t, req.Header)
		}
	}
}

func TestAKeyThatNoFieldCanHoldEndsTheRequest(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"hush\x00", "hush\r\nX-Evil: 1", "hush\thush", "hush\x7f", "hushü", "hush\xff"} {
		base := play(answer(200))
		body := track("x")
		rt := unlimited(base, retrip.WithIdempotencyKey(func(*http.Request) string { return key }))
		resp, err := rt.RoundTrip(request(t, http.MethodPost, body))
		require.Nil(t, resp)
		require.ErrorContains(t, err, "retrip: ")
		require.NotContains(t, err.Error(), "hush")
		require.NotContains(t, err.Error(), "Evil")
		require.Empty(t, base.attempts(), "nothing is sent")
		body.requireClosed(t)
	}
}

func TestWithKeyHeaderWantsAFieldName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", " ", "a b", "a:b", "a\n", "(a)", "clé", "a/b", "\x7f"} {
		requirePanic(t, fmt.Sprintf("WithKeyHeader(%q)", name), func() { retrip.WithKeyHeader(name) })
	}
}

func TestStatusesOfAKeyedRequest(t *testing.T) {
	t.Parallel()
	post := func(t *testing.T, method string) *http.Request {
		return request(t, method, strings.NewReader("x"))
	}
	named := func(name string) func(*testing.T, string) *http.Request {
		return func(t *testing.T, method string) *http.Request {
			req := post(t, method)
			req.Header[name] = []string{"k"}
			return req
		}
	}
	for row, c := range map[string]struct {
		make     func(*testing.T, string) *http.Request
		method   string
		statuses []int // 0 is an error
		attempts int
		opts     []retrip.Option
	}{
		"409 at once":                             {post, "POST", []int{409}, 1, nil},
		"409 to the second":                       {post, "POST", []int{503, 409, 200}, 3, nil},
		"409 to the second after an error":        {post, "POST", []int{0, 409, 200}, 3, nil},
		"409 on and on":                           {post, "POST", []int{500, 409}, 4, nil},
		"409 to a PATCH":                          {post, "PATCH", []int{503, 409, 200}, 3, nil},
		"409 with the caller's key":               {named("idempotency-key"), "POST", []int{503, 409, 200}, 3, nil},
		"409 with X-Idempotency-Key":              {named("X-Idempotency-Key"), "POST", []int{503, 409, 200}, 3, nil},
		"409 with a custom name":                  {named("My-Key"), "POST", []int{503, 409, 200}, 3, []retrip.Option{retrip.WithKeyHeader("My-Key")}},
		"409 with our key of a custom name":       {post, "POST", []int{503, 409, 200}, 3, []retrip.Option{retrip.WithKeyHeader("My-Key")}},
		"409 to a PUT with a key":                 {named(retrip.KeyHeader), "PUT", []int{503, 409, 200}, 3, nil},
		"409 to a PUT without":                    {post, "PUT", []int{503, 409}, 2, nil},
		"409 to a POST without":                   {post, "POST", []int{429, 409}, 2, []retrip.Option{retrip.WithIdempotencyKey(nil)}},
		"400 at once":                             {post, "POST", []int{400}, 1, nil},
		"400 to the second":                       {post, "POST", []int{503, 400}, 2, nil},
		"422 at once":                             {post, "POST", []int{422}, 1, nil},
		"422 to the second":                       {post, "POST", []int{503, 422}, 2, nil},
		"422 after 409":                           {post, "POST", []int{503, 409, 422}, 3, nil},
		"a server's stored 500":                   {post, "POST", []int{500}, 4, nil},
		"the caller's key and a server's refusal": {named(retrip.KeyHeader), "PATCH", []int{500, 422}, 2, nil},
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			var steps []step
			for _, status := range c.statuses {
				if status == 0 {
					steps = append(steps, fail(io.EOF))
				} else {
					steps = append(steps, answer(status))
				}
			}
			base := play(steps...)
			resp, err := unlimited(base, c.opts...).RoundTrip(c.make(t, c.method))
			require.NoError(t, err)
			require.Equal(t, c.statuses[len(c.statuses)-1], resp.StatusCode)
			require.Len(t, base.attempts(), c.attempts)
			for _, saw := range base.attempts() {
				require.Equal(t, base.attempts()[0].header, saw.header, "no new key is ever made")
			}
		})
	}
}

func TestAnAttemptKnowsWhetherItMayBeRepeated(t *testing.T) {
	t.Parallel()
	with := func(method, name string) retrip.Attempt {
		req := request(t, http.MethodGet, nil)
		req.Method = method
		if name != "" {
			req.Header[name] = nil
		}
		return retrip.Attempt{Number: 1, Request: req}
	}
	for _, method := range []string{"", "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "QUERY"} {
		require.True(t, with(method, "").Idempotent(), method)
	}
	for _, method := range []string{"POST", "PATCH", "CONNECT", "LOCK", "PROPFIND", "get", "Put", "query", " GET"} {
		require.False(t, with(method, "").Idempotent(), method)
		require.False(t, with(method, "X-Other").Idempotent(), method)
		for _, name := range []string{"Idempotency-Key", "idempotency-key", "X-Idempotency-Key", "x-IDEMPOTENCY-key"} {
			require.True(t, with(method, name).Idempotent(), method, name)
		}
	}
	require.False(t, retrip.Attempt{}.Idempotent())
}

func TestHooksSeeWhetherAnAttemptCarriesAKey(t *testing.T) {
	t.Parallel()
	for row, c := range map[string]struct {
		opt  retrip.Option
		want bool
	}{
		"our key":          {retrip.WithMaxAttempts(4), true},
		"of a custom name": {retrip.WithKeyHeader("My-Key"), true},
		"none":             {retrip.WithIdempotencyKey(nil), false},
		"not needed":       {retrip.WithMaxAttempts(1), false},
	} {
		saw := []bool{}
		tr := retrip.WithTrace(&retrip.Trace{Attempted: func(i retrip.AttemptedInfo) { saw = append(saw, i.Attempt.Idempotent()) }})
		_, err := unlimited(play(answer(200)), tr, c.opt).RoundTrip(request(t, http.MethodPost, nil))
		require.NoError(t, err)
		require.Equal(t, []bool{c.want}, saw, row)
	}
}

// A resetError is an HTTP/2 stream error as net/http has it: an unexported type
// that errors.As turns into any struct with the same fields.
type (
	resetCode  uint32
	resetError struct {
		StreamID uint32
		Code     resetCode
		Cause    error
	}
)

func (e resetError) Error() string { return fmt.Sprintf("reset, code %d", e.Code) }

func (e resetError) As(target any) bool {
	from, to := reflect.ValueOf(e), reflect.ValueOf(target).Elem()
	if to.Kind() != reflect.Struct || to.NumField() != from.NumField() {
		return false
	}
	for i := range from.NumField() {
		have, want := from.Type().Field(i), to.Type().Field(i)
		if have.Name != want.Name || !have.Type.ConvertibleTo(want.Type) {
			return false
		}
		to.Field(i).Set(from.Field(i).Convert(want.Type))
	}
	return true
}

func TestOnlyARefusedStreamIsUnsentByItsError(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	for row, c := range map[string]struct {
		err  error
		want bool
	}{
		"none":                     {nil, false},
		"refused":                  {resetError{StreamID: 1, Code: 0x7}, true},
		"refused, wrapped":         {fmt.Errorf("layer: %w", resetError{Code: 0x7}), true},
		"refused, joined":          {errors.Join(io.EOF, resetError{Code: 0x7}), true},
		"internal error":           {resetError{Code: 0x2}, false},
		"cancelled":                {resetError{Code: 0x8}, false},
		"too much":                 {resetError{Code: 0xb}, false},
		"no error":                 {resetError{}, false},
		"dial":                     {dial, false}, // it may be a redirect's
		"dial, wrapped":            {fmt.Errorf("layer: %w", dial), false},
		"end of the connection":    {io.EOF, false},
		"refused, but only a text": {errors.New("stream error: stream ID 1; REFUSED_STREAM"), false},
	} {
		require.Equal(t, c.want, retrip.Attempt{Err: c.err}.Unsent(), row)
		if c.err != nil {
			require.Equal(t, c.want, sends(t, fail(c.err), bare(t)) == 2, row)
		}
	}
}

// bare makes a POST that nothing makes repeatable; its transport is to have
// WithIdempotencyKey(nil), as that of sends has.
func bare(t testing.TB) *http.Request { return request(t, http.MethodPost, strings.NewReader("hello")) }

// A secured connection says what was negotiated on it.
type secured struct {
	net.Conn
	proto string
}

func (c secured) ConnectionState() tls.ConnectionState {
	return tls.ConnectionState{NegotiatedProtocol: c.proto}
}

// The hooks of net/http, as a base of the tests calls them.
func getConn(tr *httptrace.ClientTrace)      { tr.GetConn("example.com:80") }
func gotPlain(tr *httptrace.ClientTrace)     { tr.GotConn(httptrace.GotConnInfo{Conn: &net.TCPConn{}}) }
func wroteHeader(tr *httptrace.ClientTrace)  { tr.WroteHeaderField("host", []string{"example.com"}) }
func wroteHeaders(tr *httptrace.ClientTrace) { tr.WroteHeaders() }

func gotTLS(proto string) func(*httptrace.ClientTrace) {
	return func(tr *httptrace.ClientTrace) { tr.GotConn(httptrace.GotConnInfo{Conn: secured{proto: proto}}) }
}

type hooks []func(*httptrace.ClientTrace)

// then calls the hooks of the attempt's context before the step.
func (h hooks) then(next step) step {
	return func(req *http.Request) (*http.Response, error) {
		for _, hook := range h {
			hook(httptrace.ContextClientTrace(req.Context()))
		}
		return next(req)
	}
}

func TestAnAttemptIsUnsentWhenTheTraceSaysSo(t *testing.T) {
	t.Parallel()
	for row, c := range map[string]struct {
		hooks  hooks
		unsent bool
	}{
		"no hook: not an http.Transport":                   {hooks{}, false},
		"no connection was had":                            {hooks{getConn}, true},
		"no connection was had, twice":                     {hooks{getConn, getConn}, true},
		"a connection, nothing written":                    {hooks{getConn, gotPlain}, true},
		"a TLS connection, nothing written":                {hooks{getConn, gotTLS("http/1.1")}, true},
		"a TLS connection without ALPN":                    {hooks{getConn, gotTLS("")}, true},
		"headers written":                                  {hooks{getConn, gotPlain, wroteHeaders}, false},
		"headers written on TLS":                           {hooks{getConn, gotTLS(""), wroteHeaders}, false},
		"HTTP/2, whose headers may have left":              {hooks{getConn, gotTLS("h2")}, false},
		"HTTP/2, headers written":                          {hooks{getConn, gotTLS("h2"), wroteHeader, wroteHeaders}, false},
		"HTTP/2 without TLS tells of the first field only": {hooks{getConn, gotPlain, wroteHeader}, false},
		"written, then no other connection":                {hooks{getConn, gotPlain, wroteHeaders, getConn}, false},
		"written, then nothing on another connection":      {hooks{getConn, gotPlain, wroteHeaders, getConn, gotPlain}, false},
		"HTTP/2, then nothing on another connection":       {hooks{getConn, gotTLS("h2"), getConn, gotPlain}, false},
		"nothing written on two connections":               {hooks{getConn, gotPlain, getConn, gotTLS("http/1.1")}, true},
		"the second connection was written to":             {hooks{getConn, gotPlain, getConn, gotPlain, wroteHeaders}, false},
		"a connection from nowhere":                        {hooks{gotPlain}, false},
	} {
		for name, failure := range map[string]error{
			"reset": &net.OpError{Op: "read", Err: syscall.ECONNRESET},
			"dial":  &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
			"EOF":   io.EOF,
		} {
			var saw []bool
			tr := retrip.WithTrace(&retrip.Trace{Attempted: func(i retrip.AttemptedInfo) { saw = append(saw, i.Attempt.Unsent()) }})
			n := sends(t, c.hooks.then(fail(failure)), bare(t), tr)
			require.Equal(t, c.unsent, n == 2, "%s, %s", row, name)
			require.Equal(t, c.unsent, saw[0], "%s, %s", row, name)
		}
		require.Equal(t, 1, sends(t, c.hooks.then(answer(500)), bare(t)), "%s, but there was a response", row)
		require.Equal(t, 1, sends(t, c.hooks.then(fail(errors.New("odd"))), bare(t)), "%s, but it may not pass", row)
	}
}

func TestLateHooksOfAnAttemptDoNotSpeakForTheNext(t *testing.T) {
	t.Parallel()
	for row, c := range map[string]struct {
		late, own hooks
		attempts  int
	}{
		"the next one was never sent":       {hooks{gotPlain, wroteHeaders}, hooks{getConn}, 3},
		"whether the next was sent is open": {hooks{getConn}, hooks{}, 2},
		"the next one was sent":             {hooks{getConn}, hooks{getConn, gotPlain, wroteHeaders}, 2},
	} {
		var first *http.Request
		base := play(
			func(req *http.Request) (*http.Response, error) {
				first = req
				return hooks{getConn}.then(fail(io.EOF))(req)
			},
			func(req *http.Request) (*http.Response, error) {
				_, _ = c.late.then(fail(io.EOF))(first)
				return c.own.then(fail(io.EOF))(req)
			},
			answer(200),
		)
		resp, err := unlimited(base, retrip.WithIdempotencyKey(nil)).RoundTrip(bare(t))
		require.Len(t, base.attempts(), c.attempts, row)
		require.Equal(t, c.attempts == 3, err == nil, row)
		require.Equal(t, err == nil, resp != nil, row)
	}
}

func TestAnUnsentStreamIsSentAgainWhole(t *testing.T) {
	t.Parallel()
	body := track("hello")
	got := ""
	attempts := 0
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		if attempts++; attempts == 1 {
			require.NoError(t, req.Body.Close())
			return hooks{getConn}.then(fail(syscall.ECONNREFUSED))(req)
		}
		b, err := io.ReadAll(req.Body)
		require.NoError(t, err)
		require.NoError(t, req.Body.Close())
		got = string(b)
		return answer(200)(req)
	})
	_, err := unlimited(base, retrip.WithIdempotencyKey(nil)).RoundTrip(request(t, http.MethodPost, body))
	require.NoError(t, err)
	require.Equal(t, 2, attempts)
	require.Equal(t, "hello", got)
	body.requireClosed(t)
}

func TestTheCallersOwnTraceStillFires(t *testing.T) {
	t.Parallel()
	var fired []string
	note := func(what string) { fired = append(fired, what) }
	own := &httptrace.ClientTrace{
		GetConn:          func(string) { note("get") },
		GotConn:          func(httptrace.GotConnInfo) { note("got") },
		WroteHeaderField: func(string, []string) { note("field") },
		WroteHeaders:     func() { note("headers") },
		WroteRequest:     func(httptrace.WroteRequestInfo) { note("request") },
	}
	req := bare(t)
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), own))
	all := hooks{getConn, gotPlain, wroteHeader, wroteHeaders, func(tr *httptrace.ClientTrace) { tr.WroteRequest(httptrace.WroteRequestInfo{}) }}
	require.Equal(t, 2, sends(t, all.then(answer(429)), req))
	require.Equal(t, []string{"get", "got", "field", "headers", "request"}, fired)
}

func TestTheTraceIsArmedOnlyWhereItCanMatter(t *testing.T) {
	t.Parallel()
	for method, armed := range map[string]bool{"GET": false, "PUT": false, "QUERY": false, "POST": false, "LOCK": true, "get": true, "CONNECT": false} {
		base := play(answer(200))
		_, err := unlimited(base).RoundTrip(request(t, method, nil)) // a POST has a key
		require.NoError(t, err)
		require.Equal(t, armed, httptrace.ContextClientTrace(base.attempts()[0].req.Context()) != nil, method)
	}
}

func TestARefusedRequestIsSentAgainWithoutAKey(t *testing.T) {
	t.Parallel()
	for status, again := range map[int]bool{425: true, 429: true, 408: false, 500: false, 502: false, 503: false, 504: false, 200: false} {
		require.Equal(t, again, sends(t, answer(status), bare(t)) == 2, status)
		// Of a stream nothing was kept: it would not have been repeated.
		require.Equal(t, 1, sends(t, answer(status), request(t, http.MethodPost, track("hello"))), status)
		require.Equal(t, again, sends(t, answer(status), request(t, http.MethodPost, nil)) == 2, status)
	}
}

// What the scripted hooks above stand for, with an http.Transport over pipes.
func TestARealTransportsFailuresOfAPostWithoutAKey(t *testing.T) {
	t.Parallel()
	for row, c := range map[string]struct {
		url    string
		serve  func(net.Conn)
		change func(*http.Transport)
		body   string
		again  bool
	}{
		"no connection":                 {"http://example.com", nil, nil, "hello", true},
		"no TLS":                        {"https://example.com", hello(""), nil, "hello", true},
		"cut after the request":         {"http://example.com", takeRequest, nil, "hello", false},
		"HTTP/2: cut after the request": {"http://example.com", serveHTTP2(hangUp), onlyHTTP2, "", false},
		"HTTP/2: refused, after net/http's own tries": {"http://example.com", serveHTTP2(reset(0x7)), onlyHTTP2, "", true},
		"HTTP/2: internal error":                      {"http://example.com", serveHTTP2(reset(0x2)), onlyHTTP2, "", false},
		"HTTP/2: GOAWAY, may have been processed":     {"http://example.com", serveHTTP2(goAway(0x2), hangUp), onlyHTTP2, "", false},
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var body io.Reader
				if c.body != "" {
					body = strings.NewReader(c.body)
				}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url, body)
				require.NoError(t, err)
				attempts, err := overPipes(t, c.serve, c.change, req)
				require.Error(t, err)
				require.Equal(t, c.again, attempts == 2, "%v", err)
			})
		})
	}
}
