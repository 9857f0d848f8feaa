package retripprom_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripprom"
	"github.com/stretchr/testify/require"
)

// A script answers each attempt with the next status, or an error if that is 0; the last
// one repeats.
type script struct {
	mu       sync.Mutex
	statuses []int
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.statuses[0]
	if len(s.statuses) > 1 {
		s.statuses = s.statuses[1:]
	}
	if status == 0 {
		return nil, errors.New("s3cret")
	}
	return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: req}, nil
}

func play(statuses ...int) *script { return &script{statuses: statuses} }

func get(t testing.TB, ctx context.Context, rt http.RoundTripper, host string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/s3cret?s3cret", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "s3cret")
	if resp, err := rt.RoundTrip(req); err == nil {
		require.NoError(t, resp.Body.Close())
	}
}

// metrics are what a scrape yields, without help, types and zeros.
func metrics(t testing.TB, c prometheus.Collector, names ...string) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	text, err := testutil.CollectAndFormat(c, expfmt.TypeTextPlain, names...)
	require.NoError(t, err)
	_, err = registry.Gather()
	require.NoError(t, err)
	var all []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0") && !strings.Contains(line, "_bucket{") {
			all = append(all, line)
		}
	}
	return all
}

var names = []string{"retrip_attempts_total", "retrip_retries_total", "retrip_give_ups_total", "retrip_pause_seconds",
	"retrip_breaker_state", "retrip_breaker_trips_total", "retrip_quota_tokens", "retrip_quota_capacity", "retrip_refused_total"}

func TestWhatIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		breaker := retrip.DefaultBreaker()
		breaker.Failures = 6
		rt := retrip.New(play(200, 503, 429, 404, 503), retrip.WithBreaker(&breaker), retrip.WithBackoff(retrip.Constant(1500*time.Millisecond)))
		c := retripprom.New()
		c.Watch("billing", rt)
		get(t, t.Context(), rt, "a.example") // 200
		get(t, t.Context(), rt, "a.example") // 503, 429, 404
		require.Equal(t, []string{
			`retrip_attempts_total{host="a.example",outcome="2xx",transport="billing"} 1`,
			`retrip_attempts_total{host="a.example",outcome="4xx",transport="billing"} 2`,
			`retrip_attempts_total{host="a.example",outcome="5xx",transport="billing"} 1`,
			`retrip_pause_seconds_sum{host="a.example",transport="billing"} 3`,
			`retrip_pause_seconds_count{host="a.example",transport="billing"} 2`,
			`retrip_quota_capacity{host="a.example",transport="billing"} 20`,
			`retrip_quota_tokens{host="a.example",transport="billing"} 8.1`,
			`retrip_retries_total{host="a.example",transport="billing"} 2`,
		}, metrics(t, c, names...))

		get(t, t.Context(), rt, "a.example") // 503 four times: attempts
		get(t, t.Context(), rt, "a.example") // twice, then the breaker
		get(t, t.Context(), rt, "a.example") // refused
		require.Equal(t, []string{
			`retrip_breaker_state{host="a.example",transport="billing"} 2`,
			`retrip_breaker_trips_total{host="a.example",transport="billing"} 1`,
			`retrip_give_ups_total{host="a.example",reason="attempts",transport="billing"} 1`,
			`retrip_give_ups_total{host="a.example",reason="breaker",transport="billing"} 2`,
			`retrip_refused_total{host="a.example",transport="billing"} 1`,
		}, metrics(t, c, "retrip_give_ups_total", "retrip_breaker_state", "retrip_breaker_trips_total", "retrip_refused_total"))
	})
}

func TestErrorsAndCallersThatGoAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(play(0, 503), retrip.WithBackoff(retrip.Constant(time.Minute)))
		c := retripprom.New()
		c.Watch("t", rt)
		get(t, t.Context(), rt, "a.example")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		time.AfterFunc(time.Second, cancel)
		get(t, ctx, rt, "a.example")
		require.Equal(t, []string{
			`retrip_attempts_total{host="a.example",outcome="5xx",transport="t"} 1`,
			`retrip_attempts_total{host="a.example",outcome="error",transport="t"} 1`,
			`retrip_give_ups_total{host="a.example",reason="cancelled",transport="t"} 1`,
			`retrip_give_ups_total{host="a.example",reason="policy",transport="t"} 1`,
		}, metrics(t, c, "retrip_attempts_total", "retrip_give_ups_total"))
		require.NotContains(t, strings.Join(metrics(t, c), "\n"), "s3cret")
	})
}

func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		opts []retripprom.Option
		want int
		has  string
	}{
		"by default": {nil, 101, `host="other"`},
		"by a limit": {[]retripprom.Option{retripprom.WithMaxHosts(3)}, 4, `host="other"`},
		"none":       {[]retripprom.Option{retripprom.WithMaxHosts(0)}, 1, `host="other"`},
		"by a label": {[]retripprom.Option{retripprom.WithHostLabel(func(host string) string { return host[:1] })}, 1, `host="h"`},
		"to nothing": {[]retripprom.Option{retripprom.WithHostLabel(func(string) string { return "" })}, 1, `host=""`},
		"no UTF-8":   {[]retripprom.Option{retripprom.WithHostLabel(func(string) string { return "\xff" })}, 1, "host=\"\uFFFD\""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rt := retrip.New(play(200), retrip.WithHosts(5000, nil))
			c := retripprom.New(tt.opts...)
			get(t, t.Context(), rt, "h-before.example")
			c.Watch("t", rt)
			for i := range 4500 { // more than it remembers
				get(t, t.Context(), rt, fmt.Sprintf("h-%d.example", i))
			}
			for _, metric := range []string{"retrip_retries_total", "retrip_breaker_state", "retrip_quota_tokens"} {
				require.Equal(t, tt.want, testutil.CollectAndCount(c, metric), metric)
			}
			require.Contains(t, strings.Join(metrics(t, c, "retrip_attempts_total"), "\n"), tt.has)
			sum := 0.0
			for _, line := range metrics(t, c, "retrip_attempts_total") {
				var n float64
				_, err := fmt.Sscan(line[strings.LastIndex(line, " "):], &n)
				require.NoError(t, err)
				sum += n
			}
			require.Equal(t, 4500.0, sum, "nothing is lost")
		})
	}
}

func TestHostsOfOneLabelShowTheWorst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		breaker := retrip.DefaultBreaker()
		breaker.Failures = 2
		base := play(503)
		rt := retrip.New(base, retrip.WithBreaker(&breaker), retrip.WithBackoff(retrip.Constant(time.Second)))
		c := retripprom.New(retripprom.WithHostLabel(func(string) string { return "all" }))
		c.Watch("t", rt)
		get(t, t.Context(), rt, "down.example")
		base.statuses = []int{200}
		get(t, t.Context(), rt, "well.example")
		require.Equal(t, []string{
			`retrip_breaker_state{host="all",transport="t"} 2`,
			`retrip_quota_capacity{host="all",transport="t"} 20`,
			`retrip_quota_tokens{host="all",transport="t"} 9`,
		}, metrics(t, c, "retrip_breaker_state", "retrip_quota_tokens", "retrip_quota_capacity"))
	})
}

func TestTransportsHaveNames(t *testing.T) {
	t.Parallel()
	a, b := retrip.New(play(200)), retrip.New(play(404), retrip.WithRetryQuota(nil))
	c := retripprom.New()
	stop := c.Watch("a", a)
	c.Watch("b", b)
	require.PanicsWithValue(t, `retripprom: Watch("a"): there is one of that name`, func() { c.Watch("a", b) })
	require.PanicsWithValue(t, `retripprom: Watch("x", nil): no Transport`, func() { c.Watch("x", nil) })
	require.PanicsWithValue(t, `retripprom: WithMaxHosts(-1): the number is negative`, func() { retripprom.WithMaxHosts(-1) })
	get(t, t.Context(), a, "h")
	get(t, t.Context(), b, "h")
	want := []string{`retrip_attempts_total{host="h",outcome="2xx",transport="a"} 1`, `retrip_attempts_total{host="h",outcome="4xx",transport="b"} 1`}
	require.Equal(t, want, metrics(t, c, "retrip_attempts_total"))
	require.Equal(t, 1, testutil.CollectAndCount(c, "retrip_quota_tokens"), "b has no quota")
	stop()
	stop()
	get(t, t.Context(), a, "h")
	require.Equal(t, want, metrics(t, c, "retrip_attempts_total"), "counts remain")
	require.Equal(t, 1, testutil.CollectAndCount(c, "retrip_breaker_state"), "gauges do not")
	c.Watch("a", a)
	get(t, t.Context(), a, "h")
	require.Contains(t, metrics(t, c, "retrip_attempts_total"), `retrip_attempts_total{host="h",outcome="2xx",transport="a"} 2`)
}

func TestTheMetricsAreAsPrometheusWantsThem(t *testing.T) {
	t.Parallel()
	rt := retrip.New(play(503, 200), retrip.WithBackoff(retrip.Constant(0)))
	c := retripprom.New()
	c.Watch("t", rt)
	get(t, t.Context(), rt, "h")
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestManyScrapeWhileManyCall(t *testing.T) {
	t.Parallel()
	rt := retrip.New(play(503, 200), retrip.WithBackoff(retrip.Constant(0)), retrip.WithHosts(8, nil))
	c := retripprom.New(retripprom.WithMaxHosts(10))
	c.Watch("t", rt)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := range 200 {
				get(t, t.Context(), rt, fmt.Sprintf("h-%d", (i+k)%20))
			}
		})
	}
	for range 4 {
		all.Go(func() {
			for range 20 {
				if _, err := registry.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	sum := 0.0
	for _, line := range metrics(t, c, "retrip_attempts_total") {
		var n float64
		_, err := fmt.Sscan(line[strings.LastIndex(line, " "):], &n)
		require.NoError(t, err)
		sum += n
	}
	require.Equal(t, 1601.0, sum)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func perRun(t testing.TB, watch bool, retries int) float64 {
	n := 0
	down, up := &http.Response{StatusCode: 503, Body: http.NoBody}, &http.Response{StatusCode: 200, Body: http.NoBody}
	rt := retrip.New(roundTrip(func(*http.Request) (*http.Response, error) {
		if n++; n%(retries+1) != 0 {
			return down, nil
		}
		return up, nil
	}), retrip.WithBackoff(retrip.Constant(0)), retrip.WithRetryQuota(nil), retrip.WithBreaker(nil))
	if watch {
		retripprom.New().Watch("t", rt)
	}
	req, err := http.NewRequest(http.MethodGet, "http://example.com/", nil)
	require.NoError(t, err)
	return testing.AllocsPerRun(500, func() { _, _ = rt.RoundTrip(req) })
}

func TestARequestThatSucceedsAllocatesNothing(t *testing.T) {
	require.Zero(t, perRun(t, true, 0))
}

func TestARetryAllocatesAtMostOnceMore(t *testing.T) {
	require.LessOrEqual(t, perRun(t, true, 2), perRun(t, false, 2)+2)
}

func BenchmarkGet(b *testing.B) {
	resp := &http.Response{StatusCode: 200, Body: http.NoBody}
	for _, with := range []string{"nothing", "retripprom"} {
		b.Run("watched="+with, func(b *testing.B) {
			rt := retrip.New(roundTrip(func(*http.Request) (*http.Response, error) { return resp, nil }))
			if with != "nothing" {
				retripprom.New().Watch("t", rt)
			}
			req, err := http.NewRequest(http.MethodGet, "http://example.com/", nil)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = rt.RoundTrip(req)
			}
		})
	}
}
