package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// uploads stream a body that can be read only once, over loopback.
func uploads(size int64) measure {
	return measure{
		name: fmt.Sprintf("Upload of %d MiB as a stream", size>>20),
		doc: "A PUT whose body has neither a known length nor GetBody, over loopback: the time until the server has the first byte, " +
			"and the most that the heap grew meanwhile, garbage included. The first byte depends on the scheduler's mood: mind the spread.",
		run: func(b *bench) (table, error) {
			t := table{head: []string{"", "first byte", "times bare", "whole upload", "peak heap", "over bare", "allocations, server's too"}}
			first, whole, peak, allocs := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
			rounds := 2 * b.rounds // what takes so little is easily disturbed
			if size > 16<<20 {
				rounds = max(2, b.rounds/2)
			}
			for round := range rounds {
				for i := range contenders {
					c := contenders[(i+round)%len(contenders)]
					u, err := upload(c, size)
					if err != nil {
						return t, fmt.Errorf("upload: %s: %w", c.name, err)
					}
					first[c.name] = append(first[c.name], float64(u.first.Nanoseconds()))
					whole[c.name] = append(whole[c.name], float64(u.whole.Nanoseconds()))
					peak[c.name] = append(peak[c.name], float64(u.peak))
					allocs[c.name] = append(allocs[c.name], float64(u.allocs))
				}
			}
			for _, c := range contenders {
				t.rows = append(t.rows, []string{
					c.name, nanoseconds(median(first[c.name])), times(ratios(first[c.name], first["bare"])),
					nanoseconds(median(whole[c.name])), difference(median(peak[c.name])), difference(median(peak[c.name]) - median(peak["bare"])),
					fmt.Sprintf("%.0f", median(allocs[c.name])),
				})
			}
			b.claims = append(b.claims, atMost(fmt.Sprintf("MiB of heap over bare for a stream of %d MiB", size>>20),
				(median(peak["retrip"])-median(peak["bare"]))/(1<<20), 2))
			return t, nil
		},
	}
}

// difference writes a difference, which may be negative.
func difference(b float64) string {
	if b < 0 {
		return "-" + size(-b)
	}
	return size(b)
}

type uploaded struct {
	first, whole time.Duration
	peak         int64
	allocs       uint64
}

// pattern is a body of bytes that follow from their place.
type pattern struct{ at, size int64 }

func (p *pattern) Read(b []byte) (int, error) {
	n := int(min(int64(len(b)), p.size-p.at))
	if n == 0 {
		return 0, io.EOF
	}
	for i := range b[:n] {
		b[i] = byte((p.at + int64(i)) * 31 >> 3)
	}
	p.at += int64(n)
	return n, nil
}

var sums sync.Map // of patterns, by size

func sumOf(size int64) [32]byte {
	if s, ok := sums.Load(size); ok {
		return s.([32]byte)
	}
	h := sha256.New()
	_, _ = io.Copy(h, &pattern{size: size})
	s := [32]byte(h.Sum(nil))
	sums.Store(size, s)
	return s
}

func upload(c contender, size int64) (u uploaded, err error) {
	var start time.Time
	var first atomic.Int64
	var got [32]byte
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		h, buf := sha256.New(), make([]byte, 32<<10)
		for {
			n, err := r.Body.Read(buf)
			if n > 0 && first.Load() == 0 {
				first.Store(int64(time.Since(start)))
			}
			_, _ = h.Write(buf[:n])
			if err != nil {
				break
			}
		}
		got = [32]byte(h.Sum(nil))
	}))
	defer server.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	rt := c.new(base, config{retries: 3, base: time.Millisecond, limit: time.Second})
	put := func(n int64) error {
		req := newRequest(http.MethodPut, server.URL, onlyReader{&pattern{size: n}})
		req.ContentLength = -1
		return once(rt, req)
	}
	if err := put(1); err != nil { // the connection is there before
		return u, err
	}
	first.Store(0)
	want := sumOf(size)
	runtime.GC()
	before := heap()
	var m0, m1 runtime.MemStats
	runtime.ReadMemStats(&m0)
	stop := watchHeap(&u.peak)
	start = time.Now()
	err = put(size)
	u.whole = time.Since(start)
	stop()
	runtime.ReadMemStats(&m1)
	u.allocs = m1.Mallocs - m0.Mallocs
	u.first, u.peak = time.Duration(first.Load()), max(0, u.peak-before)
	if err == nil && got != want {
		err = fmt.Errorf("the server got other bytes")
	}
	return u, err
}

// heap is what lives on the heap, and what died since the last collection.
func heap() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

func watchHeap(peak *int64) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			*peak = max(*peak, heap())
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() { close(done); <-ended }
}
