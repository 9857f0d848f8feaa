package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
)

const (
	ruleRoundTripper = "net/http.RoundTripper"
	rule922          = "RFC 9110 9.2.2"
)

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

var behavioursOfContract = []behaviour{
	{
		group: "Contract of a RoundTripper", name: "the request is left as it was", rule: ruleRoundTripper, right: "same header, body, GetBody, length",
		ask: func(p *probe) (string, bool) {
			body := io.NopCloser(strings.NewReader("hello"))
			req := put(nil)
			req.Body, req.ContentLength = body, 5
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("hello")), nil }
			header := req.Header.Clone()
			got := outcome(p.wrap(play(reply(503, ""), reply(200, ""))).RoundTrip(req))
			switch {
			case req.Body != body:
				return "another Body", false
			case !maps.EqualFunc(req.Header, header, slices.Equal[[]string]):
				return fmt.Sprintf("another Header: %v", req.Header), false
			case req.ContentLength != 5:
				return fmt.Sprintf("ContentLength %d", req.ContentLength), false
			}
			return "unchanged, " + got, true
		},
	},
	{
		group: "Contract of a RoundTripper", name: "the body is closed after a success", rule: ruleRoundTripper, right: "closed",
		ask: func(p *probe) (string, bool) {
			body := track("hello")
			_ = outcome(p.wrap(play(reply(200, ""))).RoundTrip(put(body)))
			return closedOrNot(body)
		},
	},
	{
		group: "Contract of a RoundTripper", name: "the body is closed when every attempt fails", rule: ruleRoundTripper, right: "closed",
		ask: func(p *probe) (string, bool) {
			body := track("hello")
			_ = outcome(p.wrap(play(fail(errRefused))).RoundTrip(put(body)))
			return closedOrNot(body)
		},
	},
	{
		group: "Contract of a RoundTripper", name: "the last response is handed back", rule: ruleRoundTripper, right: "503 with its 4 bytes, no error", needs: retrying,
		ask: func(p *probe) (string, bool) {
			got := outcome(p.wrap(play(reply(503, "busy"))).RoundTrip(get(somewhere)))
			return got, got == "503 with 4 bytes"
		},
	},
	{
		group: "Contract of a RoundTripper", name: "discarded responses are closed", rule: ruleRoundTripper, right: "all of them", needs: retrying,
		ask: func(p *probe) (string, bool) {
			var mu sync.Mutex
			var bodies []*tracked
			base := play(func(req *http.Request) (*http.Response, error) {
				resp := answer(req, 503)
				mu.Lock()
				defer mu.Unlock()
				b := track("busy")
				bodies = append(bodies, b)
				resp.Body, resp.ContentLength = b, 4
				return resp, nil
			})
			resp, err := p.wrap(base).RoundTrip(get(somewhere))
			open := 0
			mu.Lock()
			for _, b := range bodies[:len(bodies)-1] {
				if !b.isClosed() {
					open++
				}
			}
			mu.Unlock()
			_ = outcome(resp, err)
			return fmt.Sprintf("%d of %d left open", open, len(bodies)-1), open == 0 && len(bodies) > 1
		},
	},
	{
		group: "Contract of a RoundTripper", name: "the last failure can be recognised", rule: "errors.Is", right: "matches ECONNREFUSED and *net.OpError", needs: retrying,
		ask: func(p *probe) (string, bool) {
			resp, err := p.wrap(play(fail(errRefused))).RoundTrip(get(somewhere))
			var op *net.OpError
			return outcome(resp, err), errors.Is(err, syscall.ECONNREFUSED) && errors.As(err, &op)
		},
	},
	{
		group: "Contract of a RoundTripper", name: "no body stays no body", rule: "net/http.Request.Body; https://github.com/PuerkitoBio/rehttp/pull/5", right: "nil or NoBody at each attempt",
		ask: func(p *probe) (string, bool) {
			base := play(reply(503, ""), reply(200, ""))
			req := get(somewhere)
			req.Body = http.NoBody
			_ = outcome(p.wrap(base).RoundTrip(req))
			for _, a := range base.attempts() {
				if a.req.Body != nil && a.req.Body != http.NoBody {
					return fmt.Sprintf("a %T", a.req.Body), false
				}
			}
			return "nil or NoBody", true
		},
	},
	{
		group: "Contract of a RoundTripper", name: "CloseIdleConnections reaches the base", rule: "net/http.Client.CloseIdleConnections: without the method it does nothing", right: "called", needs: offersRoundTripper,
		ask: func(p *probe) (string, bool) {
			base := &closer{}
			(&http.Client{Transport: p.wrap(base)}).CloseIdleConnections()
			if base.closed {
				return "called", true
			}
			return "not called", false
		},
	},
	{
		group: "Contract of a RoundTripper", name: "a context that has ended is told, and the body closed", rule: ruleRoundTripper, right: "context.Canceled, closed",
		ask: func(p *probe) (string, bool) {
			// Like net/http, this base looks at the context first, and closes the body.
			base := roundTrip(func(req *http.Request) (*http.Response, error) {
				defer func() { _ = req.Body.Close() }()
				if err := req.Context().Err(); err != nil {
					return nil, err
				}
				return answer(req, 200), nil
			})
			body := track("hello")
			req := put(body)
			ctx, cancel := contextOf(req)
			cancel()
			_, err := p.wrap(base).RoundTrip(req.WithContext(ctx))
			closed, ok := closedOrNot(body)
			return fmt.Sprintf("%s, %v", closed, err), ok && errors.Is(err, context.Canceled)
		},
	},
}

func closedOrNot(t *tracked) (string, bool) {
	if t.isClosed() {
		return "closed", true
	}
	return "left open", false
}

type closer struct{ closed bool }

func (c *closer) RoundTrip(req *http.Request) (*http.Response, error) { return answer(req, 200), nil }
func (c *closer) CloseIdleConnections()                               { c.closed = true }

var errSource = errors.New("the caller's file is gone")

// breaksOff is a body that does.
type breaksOff struct{ sent bool }

func (b *breaksOff) Read(p []byte) (int, error) {
	if !b.sent {
		b.sent = true
		return copy(p, "hello"), nil
	}
	return 0, errSource
}

var behavioursOfSafety = []behaviour{
	sent("a GET answered 500 is sent again", rule922, http.MethodGet, reply(500, ""), 2, retrying),
	sent("a GET whose connection is refused is sent again", rule922, http.MethodGet, fail(errRefused), 2, retrying),
	sent("a POST without a key, answered 500, is sent once", rule922, http.MethodPost, reply(500, ""), 1, retrying),
	sent("a POST without a key whose connection is reset is sent once", rule922, http.MethodPost,
		fail(&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}), 1, retrying),
	sent("a PATCH without a key, answered 503, is sent once", rule922, http.MethodPatch, reply(503, ""), 1, retrying),
	sent("501 is final", "RFC 9110 15.6.2", http.MethodGet, reply(501, ""), 1, retrying|offersPolicy),
	sent("404 is final", "RFC 9110 15.5.5", http.MethodGet, reply(404, ""), 1, retrying|offersPolicy),
	sent("429 is tried again", "RFC 6585 4", http.MethodGet, reply(429, ""), 2, retrying|offersPolicy),
	{
		group: "Safety", name: "a POST gets a key, and is sent again with it", rule: "draft-ietf-httpapi-idempotency-key-header", right: "2 attempts, one key", needs: offersKey,
		ask: func(p *probe) (string, bool) {
			base := play(reply(500, ""), reply(200, ""))
			_ = outcome(p.wrap(base, withKeys).RoundTrip(newRequest(http.MethodPost, somewhere, strings.NewReader("hello"))))
			keys := base.keys()
			return fmt.Sprintf("%s, %d keys", base.n(), len(keys)), len(base.attempts()) == 2 && len(keys) == 1 && !keys[""]
		},
	},
	{
		group: "Safety", name: "two POSTs get two keys", rule: "draft-ietf-httpapi-idempotency-key-header", right: "2 keys", needs: offersKey,
		ask: func(p *probe) (string, bool) {
			base := play(reply(200, ""))
			rt := p.wrap(base, withKeys)
			for range 2 {
				_ = outcome(rt.RoundTrip(newRequest(http.MethodPost, somewhere, strings.NewReader("hello"))))
			}
			return fmt.Sprintf("%d keys", len(base.keys())), len(base.keys()) == 2
		},
	},
	{
		group: "Safety", name: "a POST with the caller's own key is sent again, and the key is left alone", rule: "net/http.Transport", right: "2 attempts, the caller's key", needs: offersKey,
		ask: func(p *probe) (string, bool) {
			base := play(reply(503, ""), reply(200, ""))
			req := newRequest(http.MethodPost, somewhere, strings.NewReader("hello"))
			req.Header.Set("Idempotency-Key", "mine")
			_ = outcome(p.wrap(base, withKeys).RoundTrip(req))
			return fmt.Sprintf("%s, keys %v", base.n(), base.keys()), len(base.attempts()) == 2 && maps.Equal(base.keys(), map[string]bool{"mine": true})
		},
	},
	{
		group: "Bodies", name: "a body with GetBody is sent again, byte for byte", rule: rule922 + "; https://github.com/gojek/heimdall/issues/42", right: "hello, hello", needs: retrying,
		ask: func(p *probe) (string, bool) {
			base := play(reply(503, ""), reply(200, ""))
			_ = outcome(p.wrap(base).RoundTrip(newRequest(http.MethodPut, somewhere, strings.NewReader("hello"))))
			got, whole := base.bodies("hello")
			return got, whole && len(base.attempts()) == 2
		},
	},
	{
		group: "Bodies", name: "a stream without GetBody is never sent again cut or empty", rule: "https://github.com/go-resty/resty/pull/1156", right: "whole each time", needs: retrying,
		ask: func(p *probe) (string, bool) {
			base := play(reply(503, ""), reply(200, ""))
			_ = outcome(p.wrap(base).RoundTrip(put(track("hello"))))
			return base.bodies("hello")
		},
	},
	{
		group: "Bodies", name: "a long stream is not read ahead", rule: "https://github.com/aws/smithy-go/pull/457", right: "under 2 MiB of 64 before the base reads",
		ask: func(p *probe) (string, bool) {
			source := &pattern{size: 64 << 20}
			read := int64(-1)
			base := roundTrip(func(req *http.Request) (*http.Response, error) {
				read = source.at
				_, _ = io.Copy(io.Discard, req.Body)
				_ = req.Body.Close()
				return answer(req, 200), nil
			})
			_ = outcome(p.wrap(base).RoundTrip(put(onlyReader{source})))
			return size(float64(read)), read >= 0 && read < 2<<20
		},
	},
	{
		group: "Bodies", name: "an error of the caller's own body is final", rule: "https://github.com/golang/go/issues/18239", right: "1 attempt at most, matches the error", needs: retrying,
		ask: func(p *probe) (string, bool) {
			base := play(reply(200, ""))
			resp, err := p.wrap(base).RoundTrip(put(&breaksOff{}))
			return base.n() + ", " + outcome(resp, err), len(base.attempts()) <= 1 && errors.Is(err, errSource)
		},
	},
	{
		group: "Bodies", name: "GetBody that fails is told, and nothing else is sent", rule: "net/http.Request.GetBody", right: "its error, or the 503", needs: retrying,
		ask: func(p *probe) (string, bool) {
			base := play(reply(503, ""), reply(200, ""))
			req := newRequest(http.MethodPut, somewhere, strings.NewReader("hello"))
			req.GetBody = func() (io.ReadCloser, error) { return nil, errSource }
			resp, err := p.wrap(base).RoundTrip(req)
			got, whole := base.bodies("hello")
			keptItself := status(resp) == 200 && len(base.attempts()) == 2
			return got + "; " + outcome(resp, err), whole && (keptItself || errors.Is(err, errSource) || status(resp) == 503)
		},
	},
}

func withKeys(c *config) { c.key = true }

// keys are the idempotency keys that the base saw.
func (s *script) keys() map[string]bool {
	keys := make(map[string]bool)
	for _, a := range s.attempts() {
		keys[strings.Join(a.header.Values("Idempotency-Key"), " and ")] = true
	}
	return keys
}

// bodies says what the base got, and whether it was whole each time.
func (s *script) bodies(want string) (string, bool) {
	whole := true
	var got []string
	for _, a := range s.attempts() {
		got = append(got, fmt.Sprintf("%q", a.body))
		whole = whole && a.body == want
	}
	return strings.Join(got, ", "), whole
}

// sent is a row about how often a request is sent whose first attempt ends so.
func sent(name, rule, method string, first step, want int, needs offers) behaviour {
	return behaviour{
		group: "Safety", name: name, rule: rule, right: attemptCount(want), needs: needs,
		ask: func(p *probe) (string, bool) {
			base := play(first, reply(200, ""))
			got := outcome(p.wrap(base).RoundTrip(newRequest(method, somewhere, nil)))
			return base.n() + ", " + got, len(base.attempts()) == want
		},
	}
}
