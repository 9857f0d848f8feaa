package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// named returns the row of that name.
func named(t *testing.T, name string) behaviour {
	t.Helper()
	for _, b := range behaviourRows() {
		if b.name == name {
			return b
		}
	}
	t.Fatalf("no row is called %q", name)
	return behaviour{}
}

func TestRetripBehaves(t *testing.T) {
	rows := behaviourRows()
	require.GreaterOrEqual(t, len(rows), 40)
	for _, c := range contenders {
		if !strings.HasPrefix(c.name, "retrip") {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			for _, b := range rows {
				t.Run(b.name, func(t *testing.T) {
					if b.group == "Races" { // this very test runs under the race detector
						p := &probe{contender: c}
						for _, scene := range scenes {
							scene(p)
						}
						p.end()
						return
					}
					if !b.alone {
						t.Parallel()
					}
					r := b.of(c)
					require.Equal(t, passes, r.verdict, r.observed)
				})
			}
		})
	}
}

func TestNamesOfRowsAreUnique(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, b := range behaviourRows() {
		require.False(t, seen[b.name], b.name)
		seen[b.name] = true
		require.NotEmpty(t, b.rule, b.name)
		require.NotEmpty(t, b.right, b.name)
	}
}

// above is a contender with a fault between the caller and retrip, below one between
// retrip and the base.
func above(fault func(rt http.RoundTripper, req *http.Request) (*http.Response, error)) contender {
	return faulty(func(base http.RoundTripper, c config) http.RoundTripper {
		rt := retrip.New(base, retripOptions(c)...)
		return roundTrip(func(req *http.Request) (*http.Response, error) { return fault(rt, req) })
	})
}

func below(fault func(base http.RoundTripper, req *http.Request) (*http.Response, error)) contender {
	return faulty(func(base http.RoundTripper, c config) http.RoundTripper {
		return retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) { return fault(base, req) }), retripOptions(c)...)
	})
}

// with is retrip with other options.
func with(opts ...retrip.Option) contender {
	return faulty(func(base http.RoundTripper, c config) http.RoundTripper {
		return retrip.New(base, append(retripOptions(c), opts...)...)
	})
}

func faulty(make func(http.RoundTripper, config) http.RoundTripper) contender {
	return contender{name: "faulty", offers: retripOffers, new: make}
}

// unsafePost makes every POST one that may be repeated.
func unsafePost(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header["X-Idempotency-Key"] = nil
	return rt.RoundTrip(req)
}

func TestARowNoticesItsFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]contender{
		"the request is left as it was": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
			req.Header.Set("X-Seen", "1")
			return rt.RoundTrip(req)
		}),
		"the body is closed after a success": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.Body = io.NopCloser(req.Body)
			return rt.RoundTrip(req)
		}),
		"the last response is handed back": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
			resp, err := rt.RoundTrip(req)
			if err == nil && resp.StatusCode >= 500 {
				_ = resp.Body.Close()
				return nil, errors.New("giving up")
			}
			return resp, err
		}),
		"discarded responses are closed": below(func(base http.RoundTripper, req *http.Request) (*http.Response, error) {
			resp, err := base.RoundTrip(req)
			if err == nil {
				resp.Body = io.NopCloser(resp.Body)
			}
			return resp, err
		}),
		"the last failure can be recognised": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
			resp, err := rt.RoundTrip(req)
			if err != nil {
				err = fmt.Errorf("failed: %v", err)
			}
			return resp, err
		}),
		"no body stays no body": below(func(base http.RoundTripper, req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.Body = io.NopCloser(strings.NewReader(""))
			return base.RoundTrip(req)
		}),
		"a POST without a key, answered 500, is sent once": above(unsafePost),
		"501 is final": with(retrip.WithPolicy(func(a retrip.Attempt) bool { return a.Response.StatusCode >= 500 })),
		"404 is final": with(retrip.WithPolicy(func(a retrip.Attempt) bool { return a.Response.StatusCode >= 400 })),
		"a POST gets a key, and is sent again with it": below(func(base http.RoundTripper, req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.Header.Set("Idempotency-Key", fmt.Sprint(retrip.AttemptNumber(req.Context())))
			return base.RoundTrip(req)
		}),
		"a stream without GetBody is never sent again cut or empty": below(func(base http.RoundTripper, req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			if retrip.AttemptNumber(req.Context()) > 1 {
				req.Body = http.NoBody
			}
			return base.RoundTrip(req)
		}),
		"a long stream is not read ahead": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
			b, err := io.ReadAll(req.Body)
			if err != nil {
				return nil, err
			}
			req = req.Clone(req.Context())
			req.Body = io.NopCloser(strings.NewReader(string(b)))
			return rt.RoundTrip(req)
		}),
		"an error of the caller's own body is final": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
			resp, err := rt.RoundTrip(req)
			if err != nil {
				err = errors.New("the body failed")
			}
			return resp, err
		}),
		"seconds are heeded": below(func(base http.RoundTripper, req *http.Request) (*http.Response, error) {
			resp, err := base.RoundTrip(req)
			resp.Header.Del("Retry-After")
			return resp, err
		}),
		"longer than the deadline: nobody waits for nothing": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
			resp, err := rt.RoundTrip(req)
			<-req.Context().Done()
			return resp, err
		}),
		"a cancellation ends a pause": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
			return rt.RoundTrip(req.WithContext(context.WithoutCancel(req.Context())))
		}),
		"an attempt's time limit lets a good answer be read": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
			ctx, cancel := context.WithTimeout(req.Context(), 200*time.Millisecond)
			time.AfterFunc(time.Second, cancel)
			return rt.RoundTrip(req.WithContext(ctx))
		}),
		"opens after failures in a row": with(retrip.WithBreaker(nil)),
		"404 is no failure": below(func(base http.RoundTripper, req *http.Request) (*http.Response, error) {
			resp, err := base.RoundTrip(req)
			resp.StatusCode += 100
			return resp, err
		}),
		"the error of several attempts holds none": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
			resp, err := rt.RoundTrip(req)
			return resp, fmt.Errorf("%v: %w", req.URL, err)
		}),
		"an upgraded connection can be written to": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
			resp, err := rt.RoundTrip(req)
			if err == nil {
				resp.Body = struct{ io.ReadCloser }{resp.Body}
			}
			return resp, err
		}),
		"CloseIdleConnections reaches the base": above(func(rt http.RoundTripper, req *http.Request) (*http.Response, error) { return rt.RoundTrip(req) }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := named(t, name).of(c)
			require.Equal(t, fails, r.verdict, r.observed)
		})
	}
}

func TestARowThatHangsOrPanicsIsWrong(t *testing.T) {
	t.Parallel()
	b := behaviour{ask: func(*probe) (string, bool) { panic("no") }}
	require.Equal(t, behaviourResult{fails, "panic: no"}, b.of(contender{}))
	b.needs = offersKey
	require.Equal(t, notOffered, b.of(contender{}).verdict)
}

func TestTheMatrixIsMarkdown(t *testing.T) {
	t.Parallel()
	var w strings.Builder
	rows := []behaviour{{group: "Group", name: "name", rule: "rule", right: "right"}}
	results := []map[string]behaviourResult{{}}
	for _, c := range contenders {
		results[0][c.name] = behaviourResult{passes, "a | b"}
	}
	results[0]["retrip"] = behaviourResult{fails, "c\nd"}
	require.ErrorContains(t, writeBehaviours(&w, rows, results, true), "retrip, name: c d")
	require.Contains(t, w.String(), "## Group\n")
	require.Contains(t, w.String(), `| name | right | rule | yes: a \| b | no: c d |`)
	require.Contains(t, w.String(), "- retrip, name: c d\n")
	require.NoError(t, writeBehaviours(io.Discard, rows, results, false))
}
