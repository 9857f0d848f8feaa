package storetest

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/retrip-go/retrip/idempotent"
)

// First measures requests whose keys are new, Replay those whose answer is stored: over
// loopback, on connections that stay, through the stores and through none.
func First(b *testing.B, stores map[string]idempotent.Store) { bench(b, stores, false) }

// Replay is First for answers that are stored.
func Replay(b *testing.B, stores map[string]idempotent.Store) { bench(b, stores, true) }

func bench(b *testing.B, stores map[string]idempotent.Store, replay bool) {
	answer := []byte(strings.Repeat("x", 200))
	bare := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answer)
	})
	handlers := map[string]http.Handler{"none": bare}
	for name, s := range stores {
		handlers[name] = idempotent.Handler(bare, s)
	}
	for name, h := range handlers {
		for _, clients := range []int{1, 64} {
			b.Run(fmt.Sprintf("store=%s/clients=%d", name, clients), func(b *testing.B) {
				srv := httptest.NewServer(h)
				defer srv.Close()
				keys := make([]string, clients)
				for i := range keys {
					keys[i] = rand.Text()
					post(b, srv.URL, keys[i])
				}
				b.ResetTimer()
				var n atomic.Int64
				var all sync.WaitGroup
				for _, key := range keys {
					all.Go(func() {
						for n.Add(1) <= int64(b.N) {
							if !replay {
								key = rand.Text()
							}
							post(b, srv.URL, key)
						}
					})
				}
				all.Wait()
			})
		}
	}
}

func post(b *testing.B, url, key string) {
	if status, body := Post(url, key); status != http.StatusCreated {
		b.Error(status, body)
	}
}
