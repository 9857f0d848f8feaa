package idempotent_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/retrip-go/retrip/idempotent"
	"github.com/stretchr/testify/require"
)

func TestB71WhatIsRememberedIsARule(t *testing.T) {
	t.Parallel()
	gateways := idempotent.Remember(func(status int) bool {
		return status == http.StatusBadGateway || status == http.StatusGatewayTimeout || idempotent.DefaultRemember(status)
	})
	for code := 200; code <= 599; code++ {
		for _, test := range []struct {
			opts []idempotent.Option
			want bool
		}{
			{nil, code < 500 && code != 401 && code != 403 && code != 408 && code != 409 && code != 425 && code != 429},
			{[]idempotent.Option{gateways}, idempotent.DefaultRemember(code) || code == 502 || code == 504},
		} {
			first := true
			h := idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if first {
					first = false
					w.WriteHeader(code)
					return
				}
				w.WriteHeader(http.StatusCreated)
			}), idempotent.Memory(10), test.opts...)
			answers(t, serve(h, post("k", "")), code, "")
			if test.want {
				replays(t, serve(h, post("k", "")), code, "")
			} else {
				answers(t, serve(h, post("k", "")), http.StatusCreated, "")
			}
		}
	}
}

func TestB72AKeyBelongsToItsRoute(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	protect := idempotent.Middleware(idempotent.Memory(10))
	a, b := say("a"), say("b")
	mux.Handle("POST /a", protect(a))
	mux.Handle("POST /b", protect(b))
	at := func(path string) *http.Request {
		r := post("k", "")
		r.URL.Path = path
		return r
	}
	answers(t, serve(mux, at("/a")), http.StatusCreated, "a")
	answers(t, serve(mux, at("/b")), http.StatusCreated, "b")
	replays(t, serve(mux, at("/a")), http.StatusCreated, "a")
	require.EqualValues(t, 1, b.runs.Load())
}

// TestB72AFailureIsKeptForItsBody: a 400 will not change, so it is stored; the corrected
// request is another, and needs another key.
func TestB72AFailureIsKeptForItsBody(t *testing.T) {
	t.Parallel()
	h := idempotent.Handler(status(http.StatusBadRequest), idempotent.Memory(10))
	answers(t, serve(h, post("k", "wrong")), http.StatusBadRequest, "")
	replays(t, serve(h, post("k", "wrong")), http.StatusBadRequest, "")
	refuses(t, serve(h, post("k", "right")), http.StatusUnprocessableEntity, "reused")
}

func TestB73AKeyIsNotForAnotherRequest(t *testing.T) {
	t.Parallel()
	charges := say("done")
	h := idempotent.Handler(charges, idempotent.Memory(10), idempotent.Scope(func(*http.Request) string { return "" }))
	answers(t, serve(h, post("k", "1")), http.StatusCreated, "done")
	for name, change := range map[string]func(*http.Request){
		"method": func(r *http.Request) { r.Method = http.MethodPatch },
		"path":   func(r *http.Request) { r.URL.Path = "/refunds" },
		"slash":  func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/charges", "/%63harges" },
		"query":  func(r *http.Request) { r.URL.RawQuery = "a=1" },
		"body":   func(r *http.Request) { r.Body = http.NoBody },
	} {
		r := post("k", "1")
		change(r)
		resp := serve(h, r)
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, name)
		refuses(t, resp, http.StatusUnprocessableEntity, "reused")
	}
	replays(t, serve(h, post("k", "1")), http.StatusCreated, "done")
	require.EqualValues(t, 1, charges.runs.Load())
}

// TestB74AReplayIsTheAnswerByteForByte goes over the wire, and compares with what the bare
// handler says.
func TestB74AReplayIsTheAnswerByteForByte(t *testing.T) {
	t.Parallel()
	binary := make([]byte, 4096)
	for i := range binary {
		binary[i] = byte(i)
	}
	for _, test := range []struct {
		status int
		body   []byte
	}{{201, []byte("done")}, {200, binary}, {200, nil}, {204, nil}, {304, nil}, {303, []byte("<a href=/>")}} {
		t.Run(fmt.Sprint(test.status, " with ", len(test.body)), func(t *testing.T) {
			t.Parallel()
			next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				h := w.Header()
				h.Add("Set-Cookie", "a=1; expires=Mon, 21 Oct 2030 07:28:00 GMT")
				h.Add("Set-Cookie", "b=2; expires=Tue, 22 Oct 2030 07:28:00 GMT")
				h.Set("Content-Disposition", `attachment; filename="a, b.txt"`)
				h["X-Empty"] = []string{""}
				h["X-Latin"] = []string{"caf\xe9", "2", "1"}
				h["x-odd-CASE"] = []string{"kept"}
				w.WriteHeader(test.status)
				h.Set("X-Late", "is not part of it")
				w.WriteHeader(http.StatusTeapot)
				_, _ = w.Write(test.body)
			})
			bare, guarded := start(t, next), start(t, idempotent.Handler(next, idempotent.Memory(10)))
			want := send(t, bare, "k", "")
			wantBody := read(t, want)
			want.Header.Del("Date")
			for replayed := range 3 {
				got := send(t, guarded, "k", "")
				require.Equal(t, wantBody, read(t, got))
				require.Equal(t, want.StatusCode, got.StatusCode)
				require.NotEmpty(t, got.Header.Get("Date"))
				require.Equal(t, replayed > 0, got.Header.Get(idempotent.ReplayedHeader) == "true")
				got.Header.Del("Date")
				got.Header.Del(idempotent.ReplayedHeader)
				require.Equal(t, want.Header, got.Header)
			}
		})
	}
}

func TestB75OnlyAReplaySaysThatItIsOne(t *testing.T) {
	t.Parallel()
	for _, name := range []string{idempotent.ReplayedHeader, "idempotent-replayed"} {
		h := idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header()[name] = []string{"forged", "true"}
			_, _ = io.WriteString(w, "done")
			w.Header()[name] = []string{"late"}
		}), idempotent.Memory(10))
		s := start(t, h)
		answers(t, send(t, s, "k", ""), http.StatusOK, "done")
		replays(t, send(t, s, "k", ""), http.StatusOK, "done")
		above := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(idempotent.ReplayedHeader, "true")
			h.ServeHTTP(w, r)
		})
		refuses(t, send(t, start(t, above), "k", "other"), http.StatusUnprocessableEntity, "reused")
	}
}
