package idempotent_test

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/retrip-go/retrip/idempotent"
)

// BenchmarkHandler compares with the bare handler: over a loopback connection, as clients
// see it, and called directly, where all that differs is the middleware.
func BenchmarkHandler(b *testing.B) {
	charge := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":"ch_1","amount":500}`)
	})
	for _, clients := range []int{1, 64} {
		for _, request := range []string{"bare", "first", "replay"} {
			h := http.Handler(charge)
			if request != "bare" {
				h = idempotent.Handler(charge, idempotent.Memory(10_000))
			}
			server := start(b, h)
			transport := &http.Transport{MaxIdleConnsPerHost: clients}
			b.Cleanup(transport.CloseIdleConnections)
			for via, serve := range map[string]func(*http.Request) error{
				"call": func(r *http.Request) error {
					h.ServeHTTP(httptest.NewRecorder(), r)
					return nil
				},
				"http": func(r *http.Request) error {
					resp, err := transport.RoundTrip(r)
					if err == nil {
						_, err = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
					}
					return err
				},
			} {
				b.Run(fmt.Sprintf("via=%s/clients=%d/request=%s", via, clients, request), func(b *testing.B) {
					var keys atomic.Int64
					run := rand.Text()
					work(b, clients, func() error {
						r, err := http.NewRequest(http.MethodPost, server.URL+"/charges", strings.NewReader(`{"amount":500,"currency":"EUR"}`))
						if err != nil {
							return err
						}
						key := "key"
						if request == "first" {
							key = fmt.Sprint(run, keys.Add(1))
						}
						r.Header.Set(idempotent.KeyHeader, key)
						return serve(r)
					})
				})
			}
		}
	}
}

// work has clients do b.N steps among them.
func work(b *testing.B, clients int, step func() error) {
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	errs := make(chan error, clients)
	b.ResetTimer()
	for range clients {
		go func() {
			for left.Add(-1) >= 0 {
				if err := step(); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range clients {
		if err := <-errs; err != nil {
			b.Error(err)
		}
	}
}
