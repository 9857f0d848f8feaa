package idempotent_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/retrip-go/retrip/idempotent"
)

func Example() {
	n := 0
	charges := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charge %d", n)
	})
	mux := http.NewServeMux()
	mux.Handle("POST /charges", idempotent.Handler(charges, idempotent.Memory(10_000), idempotent.Required()))
	server := httptest.NewServer(mux)
	defer server.Close()

	pay := func(key, order string) {
		req, _ := http.NewRequest(http.MethodPost, server.URL+"/charges", strings.NewReader(order))
		if key != "" {
			req.Header.Set(idempotent.KeyHeader, key)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		body, _ := io.ReadAll(resp.Body)
		if resp.Header.Get("Content-Type") == "application/problem+json" {
			body = nil
		}
		fmt.Printf("%d %s, replayed %q\n", resp.StatusCode, body, resp.Header.Get(idempotent.ReplayedHeader))
	}
	pay("key-1", "one shirt")
	pay("key-1", "one shirt")
	pay(`"key-1"`, "one shirt")
	pay("key-1", "two shirts")
	pay("", "one shirt")
	// Output:
	// 201 charge 1, replayed ""
	// 201 charge 1, replayed "true"
	// 201 charge 1, replayed "true"
	// 422 , replayed ""
	// 400 , replayed ""
}

// Tenants that are told apart by something else than Authorization need a scope, or one
// could get another's answer.
func ExampleScope() {
	tenants := idempotent.Scope(func(r *http.Request) string { return r.Pattern + "\x00" + r.Host })
	h := idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "done for ", r.Host)
	}), idempotent.Memory(10_000), tenants)
	for _, host := range []string{"a.example", "b.example", "a.example"} {
		r := httptest.NewRequest(http.MethodPost, "http://"+host+"/charges", nil)
		r.Header.Set(idempotent.KeyHeader, "key-1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(w.Body)
	}
	// Output:
	// done for a.example
	// done for b.example
	// done for a.example
}
