package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
)

// answer makes a response as cheaply as a real base could: it is new each time.
func answer(req *http.Request, status int) *http.Response {
	return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody, Request: req}
}

var buffers = sync.Pool{New: func() any { return new([4 << 10]byte) }}

// stub is a base that reads the request's body and answers at once.
var stub = roundTrip(func(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		buf := buffers.Get().(*[4 << 10]byte)
		_, err := io.CopyBuffer(onlyWriter{io.Discard}, onlyReader{req.Body}, buf[:])
		buffers.Put(buf)
		if closed := req.Body.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return nil, err
		}
	}
	return answer(req, http.StatusOK), nil
})

type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// thirds answers 503, 503, 200 and so on. It is for one caller at a time.
func thirds() http.RoundTripper {
	n := 0
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		if n++; n%3 != 0 {
			return answer(req, http.StatusServiceUnavailable), nil
		}
		return answer(req, http.StatusOK), nil
	})
}

// newRequest makes a request as callers do, under a context that can be cancelled, as
// in a server's handler.
func newRequest(method, url string, body io.Reader) *http.Request {
	req, err := http.NewRequestWithContext(cancellable, method, url, body)
	if err != nil {
		panic(err)
	}
	return req
}

var cancellable, _ = context.WithCancel(context.Background()) //nolint:govet // it lives as long as the program

// once makes a round trip and gives its response back.
func once(rt http.RoundTripper, req *http.Request) error {
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %d", resp.StatusCode)
	}
	return nil
}

// manyHosts are the requests to as many hosts, and the order in which they are sent:
// the same for all, by a Zipf law.
const manyHosts = 10_000

var hostRequests = sync.OnceValue(func() []*http.Request {
	all := make([]*http.Request, manyHosts)
	for i := range all {
		all[i] = newRequest(http.MethodGet, fmt.Sprintf("http://host-%d.example.com/path", i), nil)
	}
	return all
})

var hostOrder = sync.OnceValue(func() []uint64 {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, manyHosts-1)
	order := make([]uint64, 1<<16)
	for i := range order {
		order[i] = zipf.Uint64()
	}
	return order
})

var kibibyte = bytes.Repeat([]byte("0123456789abcdef"), 64)

// spread shares n operations between goroutines, each with a loop of its own.
func spread(goroutines int, loop func(worker int) func(n int) error) func(n int) error {
	loops := make([]func(int) error, goroutines)
	for i := range loops {
		loops[i] = loop(i)
	}
	return func(n int) error {
		var failed atomic.Pointer[error]
		var all sync.WaitGroup
		for i, run := range loops {
			all.Go(func() {
				share := n / goroutines
				if i < n%goroutines {
					share++
				}
				if err := run(share); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			})
		}
		all.Wait()
		if err := failed.Load(); err != nil {
			return *err
		}
		return nil
	}
}
