package retrip_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// stub is a base that costs next to nothing: it reads the request's body and
// answers with a response made beforehand.
func stub(status int) http.RoundTripper {
	resp := &http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody}
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		if req.Body != nil {
			_, _ = io.Copy(io.Discard, req.Body)
			_ = req.Body.Close()
		}
		return resp, nil
	})
}

// A floor does what nothing that keeps state for each host can do without: one
// look-up in a golang-lru under its lock, two clock readings, three atomic
// operations.
type floor struct {
	base    http.RoundTripper
	mu      sync.Mutex
	hosts   *simplelru.LRU[string, *atomic.Int64]
	count   atomic.Int64
	ended   atomic.Int64
	elapsed atomic.Int64
}

func newFloor(base http.RoundTripper) *floor {
	hosts, _ := simplelru.NewLRU[string, *atomic.Int64](1024, nil)
	hosts.Add("example.com", new(atomic.Int64))
	return &floor{base: base, hosts: hosts}
}

func (f *floor) RoundTrip(req *http.Request) (*http.Response, error) {
	start := time.Now()
	f.mu.Lock()
	f.hosts.Get(req.URL.Host)
	f.mu.Unlock()
	f.count.Add(1)
	resp, err := f.base.RoundTrip(req)
	f.ended.Add(1)
	f.elapsed.Add(int64(time.Since(start)))
	return resp, err
}

// everything is what is on by default, and what is not.
var everything = []retrip.Option{
	retrip.WithAttemptTimeout(time.Minute),
	retrip.WithTrace(&retrip.Trace{Attempted: func(retrip.AttemptedInfo) {}}),
}

// contenders are measured beside each other.
func contenders(base http.RoundTripper) []struct {
	name string
	rt   http.RoundTripper
} {
	return []struct {
		name string
		rt   http.RoundTripper
	}{
		{"base", base},
		{"floor", newFloor(base)},
		{"retrip", retrip.New(base)},
		{"everything", retrip.New(base, everything...)},
	}
}

func BenchmarkGet(b *testing.B) {
	for _, c := range contenders(stub(200)) {
		b.Run("method=GET/wrap="+c.name, func(b *testing.B) {
			req := request(b, http.MethodGet, nil)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.rt.RoundTrip(req)
			}
		})
		b.Run("method=GET/parallel=yes/wrap="+c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				req := request(b, http.MethodGet, nil)
				for pb.Next() {
					_, _ = c.rt.RoundTrip(req)
				}
			})
		})
	}
}

func BenchmarkPost(b *testing.B) {
	body := bytes.Repeat([]byte{'x'}, 1<<10)
	for _, c := range contenders(stub(200)) {
		b.Run("method=POST/body=1KiB/wrap="+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.rt.RoundTrip(request(b, http.MethodPost, bytes.NewReader(body)))
			}
		})
	}
}

// retries is what a test or a benchmark of many retries needs: nothing that ends
// them.
func retries(opts ...retrip.Option) []retrip.Option {
	return append([]retrip.Option{
		retrip.WithBackoff(retrip.Constant(0)), retrip.WithRetryQuota(nil), retrip.WithBreaker(nil),
	}, opts...)
}

// every fails all calls but each n-th.
func every(n int64) http.RoundTripper {
	var calls atomic.Int64
	good, bad := stub(200), stub(500)
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		if calls.Add(1)%n == 0 {
			return good.RoundTrip(req)
		}
		return bad.RoundTrip(req)
	})
}

func BenchmarkTwoFailures(b *testing.B) {
	b.Run("failures=2/wrap=base", func(b *testing.B) {
		base, req := every(3), request(b, http.MethodGet, nil)
		b.ReportAllocs()
		for b.Loop() {
			for range 3 {
				_, _ = base.RoundTrip(req)
			}
		}
	})
	b.Run("failures=2/wrap=retrip", func(b *testing.B) {
		rt, req := retrip.New(every(3), retries()...), request(b, http.MethodGet, nil)
		b.ReportAllocs()
		for b.Loop() {
			_, _ = rt.RoundTrip(req)
		}
	})
}

func BenchmarkHosts(b *testing.B) {
	const n = 10_000
	requests := make([]*http.Request, n)
	for i := range requests {
		requests[i] = request(b, http.MethodGet, nil)
		requests[i].URL.Host = fmt.Sprintf("host-%d.example.com", i)
	}
	base := stub(200)
	for _, c := range []struct {
		name string
		rt   http.RoundTripper
	}{
		{"base", base},
		{"floor", newFloor(base)},
		{"retrip", retrip.New(base)},
		{"retrip-all", retrip.New(base, retrip.WithHosts(n, nil))},
	} {
		b.Run("hosts=10000/law=zipf/wrap="+c.name, func(b *testing.B) {
			zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, n-1)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.rt.RoundTrip(requests[zipf.Uint64()])
			}
		})
	}
}

// A source is a body that can be read only once; now and then it has the heap
// looked at, most often round the first MiB, which is what is kept.
type source struct {
	size, read int64
	peak       func()
}

func (s *source) Read(p []byte) (int, error) {
	n := min(int64(len(p)), s.size-s.read)
	if n == 0 {
		return 0, io.EOF
	}
	every := int64(4 << 20)
	if s.read < 2<<20 {
		every = 128 << 10
	}
	if s.read%every+n >= every {
		s.peak()
	}
	s.read += n
	return int(n), nil
}

func (s *source) Close() error { return nil }

func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// upload streams size bytes through rt and returns the most that the live heap
// grew, and when the base had the first byte.
func upload(b testing.TB, wrap func(http.RoundTripper) http.RoundTripper, size int64) (peak uint64, first time.Duration) {
	b.Helper()
	var start time.Time
	rt := wrap(roundTrip(func(req *http.Request) (*http.Response, error) {
		buf := make([]byte, 32<<10)
		_, _ = req.Body.Read(buf)
		first = time.Since(start)
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{req.Body}, buf)
		_ = req.Body.Close()
		return stub(200).RoundTrip(request(b, http.MethodGet, nil))
	}))
	before := liveHeap()
	body := &source{size: size, peak: func() { peak = max(peak, max(liveHeap(), before)-before) }}
	req := request(b, http.MethodPut, body)
	start = time.Now()
	_, err := rt.RoundTrip(req)
	require.NoError(b, err)
	return peak, first
}

func unwrapped(base http.RoundTripper) http.RoundTripper   { return base }
func underRetrip(base http.RoundTripper) http.RoundTripper { return retrip.New(base) }

func BenchmarkStream(b *testing.B) {
	const size = 64 << 20
	for name, wrap := range map[string]func(http.RoundTripper) http.RoundTripper{"base": unwrapped, "retrip": underRetrip} {
		b.Run("body=64MiB/wrap="+name, func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			var peak uint64
			var first time.Duration
			for b.Loop() {
				p, f := upload(b, wrap, size)
				peak, first = max(peak, p), first+f
			}
			b.ReportMetric(float64(peak)/(1<<10), "peakKiB")
			b.ReportMetric(float64(first.Microseconds())/float64(b.N), "µs-to-first-byte")
		})
	}
}

// waiting starts n goroutines with a request that pauses, or that just sleep after
// the same call of the base, and returns the memory and the goroutines of each. The
// base is net/http's, since what a call of it leaves of a stack is part of both.
func waiting(t testing.TB, n int, pauses bool) (size, goroutines float64) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	net := &http.Transport{}
	defer net.CloseIdleConnections()
	var called atomic.Int64
	few := make(chan struct{}, 2)
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		few <- struct{}{}
		defer func() { <-few; called.Add(1) }()
		return net.RoundTrip(req)
	})
	rt := retrip.New(base, retrip.WithRetryQuota(nil), retrip.WithBreaker(nil))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	requests := make([]*http.Request, n)
	for i := range requests {
		var err error
		requests[i], err = http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		require.NoError(t, err)
	}
	resp, err := base.RoundTrip(requests[0]) // the connections are there before
	require.NoError(t, err)
	finish(t, resp)
	called.Store(0)
	use := func() (uint64, int) {
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse, runtime.NumGoroutine()
	}
	memBefore, goBefore := use()
	for _, req := range requests {
		all.Go(func() {
			if pauses {
				_, _ = rt.RoundTrip(req)
				return
			}
			resp, err := base.RoundTrip(req)
			if err == nil {
				_ = resp.Body.Close()
			}
			timer := time.NewTimer(time.Minute)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-req.Context().Done():
			}
		})
	}
	// All have called the base, and then come to rest.
	require.Eventually(t, func() bool { return called.Load() == int64(n) }, time.Minute, time.Millisecond)
	var mem uint64
	for same := 0; same < 5; {
		runtime.Gosched()
		now, _ := use()
		if same++; now > mem+mem/1000 || now < mem-mem/1000 {
			same = 0
		}
		mem = now
	}
	_, goAfter := use()
	return float64(mem-min(memBefore, mem)) / float64(n), float64(goAfter-goBefore) / float64(n)
}

func BenchmarkWaiting(b *testing.B) {
	for _, c := range []struct {
		name   string
		pauses bool
	}{{"base", false}, {"retrip", true}} {
		b.Run("requests=10000/wrap="+c.name, func(b *testing.B) {
			for b.Loop() {
				size, goroutines := waiting(b, 10_000, c.pauses)
				b.ReportMetric(size, "B/request")
				b.ReportMetric(goroutines, "goroutines/request")
			}
		})
	}
}

func TestAStreamIsNotBuffered(t *testing.T) {
	plain, _ := upload(t, unwrapped, 64<<20)
	peak, _ := upload(t, underRetrip, 64<<20)
	require.Less(t, peak, plain+1<<20+64<<10, "bytes of heap over the cap")
}

func TestARetryAllocatesLittle(t *testing.T) {
	rt, req := retrip.New(every(3), retries()...), request(t, http.MethodGet, nil)
	perRetry := func() float64 {
		return testing.AllocsPerRun(100, func() { _, _ = rt.RoundTrip(req) }) / 2
	}
	require.LessOrEqual(t, perRetry(), 8.0)
	defer rt.Watch(&retrip.Trace{
		Attempted: func(retrip.AttemptedInfo) {}, Pausing: func(retrip.PausingInfo) {},
		GaveUp: func(retrip.GaveUpInfo) {}, BreakerMoved: func(retrip.BreakerMovedInfo) {},
	})()
	require.LessOrEqual(t, perRetry(), 9.0, "with somebody watching")
}
