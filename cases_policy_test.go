package retrip_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// caseFinal fails unless the error ends the request at once and comes back as it is.
func caseFinal(t *testing.T, err error) {
	t.Helper()
	base := play(fail(err))
	start := time.Now()
	_, got := retrip.New(base, retrip.WithMaxAttempts(5)).RoundTrip(request(t, http.MethodGet, nil))
	require.Equal(t, err, got)
	require.Len(t, base.attempts(), 1)
	require.Zero(t, time.Since(start))
}

func TestB26DistrustIsFinal(t *testing.T) {
	t.Parallel()
	t.Run("over a real connection", func(t *testing.T) {
		t.Parallel()
		srv := httptest.NewUnstartedServer(http.NotFoundHandler())
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.StartTLS()
		defer srv.Close()
		attempts := 0
		base := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool()}}
		_, err := retrip.New(base, retrip.WithTrace(&retrip.Trace{Attempted: func(retrip.AttemptedInfo) { attempts++ }})).RoundTrip(caseTo(t, srv.URL))
		require.Equal(t, 1, attempts)
		require.ErrorAs(t, err, new(x509.UnknownAuthorityError))
		require.ErrorAs(t, err, new(*tls.CertificateVerificationError))
	})
	for _, bare := range []error{
		x509.UnknownAuthorityError{},
		x509.HostnameError{Certificate: &x509.Certificate{}, Host: "example.com"},
		x509.CertificateInvalidError{Reason: x509.Expired},
		x509.SystemRootsError{},
		&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
	} {
		for _, err := range []error{
			bare,
			&tls.CertificateVerificationError{Err: bare},
			&url.Error{Op: "Get", URL: "/", Err: fmt.Errorf("signer: %w", bare)},
			&net.OpError{Op: "proxyconnect", Net: "tcp", Err: bare},
		} {
			caseBubble(t, fmt.Sprintf("%T in %T", bare, err), func(t *testing.T) { caseFinal(t, err) })
		}
	}
}

func TestB27ANameThatDoesNotExistIsFinal(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"dial", "proxyconnect"} {
		for _, tt := range []struct {
			dns   net.DNSError
			final bool
		}{
			{net.DNSError{IsNotFound: true}, true},
			{net.DNSError{IsNotFound: true, IsTemporary: true}, true},
			{net.DNSError{}, true},
			{net.DNSError{IsTemporary: true}, false},
			{net.DNSError{IsTimeout: true}, false},
		} {
			caseBubble(t, fmt.Sprintf("%s %+v", op, tt.dns), func(t *testing.T) {
				err := &net.OpError{Op: op, Net: "tcp", Err: &tt.dns}
				if tt.final {
					caseFinal(t, err)
				} else {
					require.Equal(t, 200, caseStatus(t, retrip.New(play(fail(err), answer(200))), request(t, http.MethodGet, nil)))
				}
			})
		}
	}
}

func TestB29OnlyWhatIsSafeIsRepeated(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		outcome    step
		name       string
		nothingWas bool // done, so that any request may be repeated
	}{
		{answer(500), "500", false},
		{answer(502), "502", false},
		{answer(503, "Retry-After", "1"), "503", false},
		{answer(408), "408", false},
		{fail(caseReset), "a reset", false},
		{fail(io.EOF), "EOF", false},
		{fail(&net.OpError{Op: "dial", Err: caseReset.Err}), "a failed dial that may be a redirect's", false},
		{answer(425), "425", true},
		{answer(429), "429", true},
	} {
		for _, req := range []struct {
			method, key string
			safe        bool
		}{
			{"GET", "", true}, {"HEAD", "", true}, {"OPTIONS", "", true}, {"TRACE", "", true}, {"PUT", "", true}, {"DELETE", "", true}, {"QUERY", "", true},
			{"POST", "", false}, {"PATCH", "", false}, {"get", "", false}, {"PROPFIND", "", false},
			{"POST", "k", true}, {"PATCH", "k", true}, {"PROPFIND", "k", true},
		} {
			caseBubble(t, fmt.Sprintf("%s after %s, key=%s", req.method, tt.name, req.key), func(t *testing.T) {
				var reason retrip.Reason
				base := play(tt.outcome)
				r := request(t, req.method, strings.NewReader("hello"))
				if req.key != "" {
					r.Header.Set(retrip.KeyHeader, req.key)
				}
				resp, _ := retrip.New(base, retrip.WithIdempotencyKey(nil), retrip.WithMaxAttempts(2), caseReason(&reason)).RoundTrip(r)
				if resp != nil {
					finish(t, resp)
				}
				if req.safe || tt.nothingWas {
					require.Len(t, base.attempts(), 2)
					require.Equal(t, retrip.ReasonAttempts, reason)
				} else {
					require.Len(t, base.attempts(), 1)
					require.Equal(t, retrip.ReasonUnsafe, reason)
				}
				for _, saw := range base.attempts() {
					require.Equal(t, req.key, saw.header.Get(retrip.KeyHeader))
				}
			})
		}
	}
}

// A policy must not read the body, so nothing is done for one that does.
func TestB30APolicyMayAddAStatus(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		own   bool
		steps []step
		want  int
		asked int
	}{
		"412 is final by default":    {false, []step{answer(412), answer(200)}, 412, 0},
		"412 is not, with a policy":  {true, []step{answer(412), answer(200)}, 200, 2},
		"the rest stays as it is":    {true, []step{answer(412), fail(caseReset), answer(503), answer(404)}, 404, 4},
		"it is asked the last time":  {true, []step{answer(412)}, 412, 4},
		"it does not see the limits": {true, []step{answer(200)}, 200, 1},
	} {
		caseBubble(t, name, func(t *testing.T) {
			asked := 0
			policy := func(a retrip.Attempt) bool {
				asked++
				require.Equal(t, asked, a.Number)
				require.NotEqual(t, a.Response == nil, a.Err == nil)
				return a.Response != nil && a.Response.StatusCode == 412 || retrip.DefaultPolicy(a)
			}
			opts := []retrip.Option(nil)
			if tt.own {
				opts = append(opts, retrip.WithPolicy(policy))
			}
			base := play(tt.steps...)
			require.Equal(t, tt.want, caseStatus(t, retrip.New(base, opts...), request(t, http.MethodGet, nil)))
			require.Equal(t, tt.asked, asked)
			if tt.own {
				require.Len(t, base.attempts(), tt.asked)
			}
		})
	}
}

func TestB31AllAttemptsCarryOneKey(t *testing.T) {
	t.Parallel()
	failures := []step{answer(503), fail(caseReset), hang, answer(200)}
	for _, method := range []string{http.MethodPost, http.MethodPatch} {
		for _, field := range []string{retrip.KeyHeader, "X-Request-Key"} {
			caseBubble(t, method+" in "+field, func(t *testing.T) {
				base := play(append(failures, failures...)...)
				rt := retrip.New(base, retrip.WithKeyHeader(strings.ToLower(field)), retrip.WithAttemptTimeout(time.Second))
				keys := map[string]bool{}
				for call := range 2 {
					require.Equal(t, 200, caseStatus(t, rt, request(t, method, track("hello"))))
					seen := base.attempts()[4*call:]
					require.Len(t, seen, 4)
					for _, saw := range seen {
						require.Equal(t, "hello", saw.body)
						require.Equal(t, seen[0].header, saw.header)
						require.Len(t, saw.header[field], 1)
					}
					keys[seen[0].header.Get(field)] = true
				}
				require.Len(t, keys, 2, "every round trip has a key of its own")
				require.NotContains(t, keys, "")
			})
		}
		for name, header := range map[string]http.Header{
			"mine":                            {"Idempotency-Key": {"mine"}},
			"mine, in lower case":             {"idempotency-key": {"mine"}},
			"mine, in upper case":             {"IDEMPOTENCY-KEY": {"mine"}},
			"mine, quoted":                    {"Idempotency-Key": {`"mine"`}},
			"two of mine":                     {"Idempotency-Key": {"mine", "too"}},
			"net/http's, with nothing to say": {"Idempotency-Key": {}},
			"net/http's other name":           {"X-Idempotency-Key": {"mine"}},
		} {
			caseBubble(t, method+" with "+name, func(t *testing.T) {
				base := play(failures...)
				req := request(t, method, strings.NewReader("hello"))
				req.Header = header.Clone()
				require.Equal(t, 200, caseStatus(t, retrip.New(base, retrip.WithAttemptTimeout(time.Second)), req))
				require.Len(t, base.attempts(), 4)
				for _, saw := range base.attempts() {
					require.Equal(t, header, saw.header)
					require.Equal(t, "hello", saw.body)
				}
			})
		}
	}
}

func TestB32OnlyPostAndPatchGetAKey(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]bool{
		"POST": true, "PATCH": true,
		"": false, "GET": false, "HEAD": false, "PUT": false, "DELETE": false, "OPTIONS": false, "TRACE": false, "QUERY": false,
		"CONNECT": false, "PROPFIND": false, "post": false, "Patch": false, // methods are case-sensitive
	} {
		caseBubble(t, "method="+method, func(t *testing.T) {
			base := play(answer(200))
			req := request(t, "GET", nil)
			req.Method = method
			require.Equal(t, 200, caseStatus(t, retrip.New(base), req))
			_, keyed := base.attempts()[0].header[retrip.KeyHeader]
			require.Equal(t, want, keyed)
		})
	}
}

func TestB33ARepeatedRequestThatMeetsItselfIsTriedAgain(t *testing.T) {
	t.Parallel()
	stillAtWork := answer(409, "Retry-After", "1")
	for _, tt := range []struct {
		name   string
		method string
		steps  []step
		opts   []retrip.Option
		want   int
		hits   int
	}{
		{"the first attempt is still at work", http.MethodPost, []step{hang, stillAtWork, answer(201)}, nil, 201, 3},
		{"and works on", http.MethodPatch, []step{answer(503), stillAtWork, stillAtWork, answer(201)}, nil, 201, 4},
		{"for too long", http.MethodPost, []step{hang, stillAtWork}, nil, 409, 4},
		{"a conflict at once", http.MethodPost, []step{stillAtWork, answer(201)}, nil, 409, 1},
		{"a conflict without a key", http.MethodPut, []step{hang, stillAtWork, answer(201)}, nil, 409, 2},
		{"a key that was used for something else", http.MethodPost, []step{hang, answer(422), answer(201)}, nil, 422, 2},
		{"a key that the server does not like", http.MethodPost, []step{hang, answer(400), answer(201)}, nil, 400, 2},
		{"a policy that finds it final", http.MethodPost, []step{hang, stillAtWork, answer(201)}, []retrip.Option{
			retrip.WithPolicy(func(a retrip.Attempt) bool { return a.Err != nil && retrip.DefaultPolicy(a) }),
		}, 409, 2},
	} {
		caseBubble(t, tt.name, func(t *testing.T) {
			base := play(tt.steps...)
			rt := retrip.New(base, append(tt.opts, retrip.WithAttemptTimeout(100*time.Millisecond))...)
			require.Equal(t, tt.want, caseStatus(t, rt, request(t, tt.method, track("hello"))))
			seen := base.attempts()
			require.Len(t, seen, tt.hits)
			for i, saw := range seen {
				require.Equal(t, seen[0].header, saw.header, "the key is never made anew")
				if i >= 2 && tt.hits > 2 {
					require.GreaterOrEqual(t, saw.at.Sub(seen[i-1].at), time.Second, "as long as the server asked")
				}
			}
		})
	}
}
