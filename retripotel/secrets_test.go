package retripotel_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripotel"
	"github.com/stretchr/testify/require"
)

// A leak is an error that says all it knows, also to those who ask for its type.
type leak struct{ text string }

func (e *leak) Error() string     { return e.text }
func (e *leak) ErrorType() string { return e.text }

const secret = "hunter2"

// secretive makes a request that holds the secret in every part.
func secretive(t *testing.T) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut,
		"https://hunter2:hunter2@example.com/hunter2?hunter2=hunter2#hunter2", strings.NewReader(secret))
	require.NoError(t, err)
	req.Host = "hunter2.example.com"
	req.Header.Set("Authorization", secret)
	req.Header.Set("Cookie", "hunter2=hunter2")
	req.Header.Set(retrip.KeyHeader, secret)
	req.Trailer = http.Header{"Hunter2": {secret}}
	return req
}

func TestNoSecretIsExported(t *testing.T) {
	t.Parallel()
	handmade := func(req *http.Request) { req.URL.Host = "hunter2:hunter2@example.com" }
	tests := []struct {
		name   string
		change func(*http.Request)
		step   step
	}{
		{"an error", nil, fail(&leak{secret})},
		{"an error with the URL", nil, fail(&url.Error{Op: "Put", URL: "https://example.com/hunter2", Err: errors.New(secret)})},
		{"an error in another", nil, fail(fmt.Errorf("hunter2: %w", &leak{secret}))},
		{"a response", nil, func(req *http.Request) (*http.Response, error) {
			resp, _ := answer(503)(req)
			resp.Status, resp.Header = "503 hunter2", http.Header{"Hunter2": {secret}, "Set-Cookie": {secret}}
			return resp, nil
		}},
		{"userinfo in the host", handmade, answer(503)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := newTelemetry()
				rt := o.transport(play(tt.step), retrip.WithMaxAttempts(2),
					retrip.WithPolicy(func(a retrip.Attempt) bool { return true }),
					retrip.WithBreaker(&retrip.Breaker{Failures: 2, Successes: 1, Probes: 1, Cooldowns: []time.Duration{time.Minute}}),
					retrip.WithTrace(nil), retrip.WithTrace(o.trace(retripotel.WithRequestDuration())))
				ctx, caller := o.tracer.Tracer("test").Start(t.Context(), "caller")
				req := secretive(t).WithContext(ctx)
				if tt.change != nil {
					tt.change(req)
				}
				resp, err := rt.RoundTrip(req)
				require.True(t, (resp == nil) != (err == nil))
				caller.End()
				time.Sleep(time.Minute)

				spans := o.all(t)
				require.Len(t, spans, 3, "the attempts and the caller's")
				require.Len(t, spans[0].Events, 2)
				require.Len(t, spans[2].Links, 1)
				require.GreaterOrEqual(t, len(o.collect(t)), 5)
				requireNoSecret(t, spans)
				requireNoSecret(t, o.collect(t))
			})
		})
	}
}

// requireNoSecret looks at all that Go can print and JSON can encode of v.
func requireNoSecret(t *testing.T, v any) {
	t.Helper()
	encoded, err := json.Marshal(v)
	require.NoError(t, err)
	for _, text := range []string{fmt.Sprintf("%+v", v), string(encoded)} {
		require.Contains(t, text, "example.com", "the attributes are in it")
		require.NotContains(t, strings.ToLower(text), secret)
	}
}
