package retripprom_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripprom"
	"github.com/stretchr/testify/require"
)

func TestARequestThatRecoversIsExported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(play(answer(503), fail(syscall.ECONNRESET), answer(200)), retrip.WithBackoff(retrip.Ladder(time.Second, 3*time.Second)))
		c := watch(t, rt)
		get(t, rt, "example.com")
		require.Equal(t, map[string]float64{
			`retrip_attempts_total{host="example.com",outcome="2xx",transport="api"}`:        1,
			`retrip_attempts_total{host="example.com",outcome="5xx",transport="api"}`:        1,
			`retrip_attempts_total{host="example.com",outcome="connection",transport="api"}`: 1,
			`retrip_retries_total{host="example.com",transport="api"}`:                       2,
			`retrip_answered_total{attempt="first",host="example.com",transport="api"}`:      0,
			`retrip_answered_total{attempt="later",host="example.com",transport="api"}`:      1,
			`retrip_pause_seconds{host="example.com",transport="api"}`:                       4,
			`retrip_refused_total{host="example.com",transport="api"}`:                       0,
			`retrip_breaker_trips_total{host="example.com",transport="api"}`:                 0,
			`retrip_breaker_state{host="example.com",transport="api"}`:                       0,
			`retrip_quota_tokens{host="example.com",transport="api"}`:                        9, // 10 - 2, and one comes back
			`retrip_quota_capacity{host="example.com",transport="api"}`:                      20,
		}, scrape(t, c))
	})
}

func TestAttemptsAreCountedByTheirOutcome(t *testing.T) {
	t.Parallel()
	cancelling := func(req *http.Request) (*http.Response, error) {
		req.Context().Value(cancelKey{}).(context.CancelFunc)()
		return nil, errors.New("gone")
	}
	for _, tt := range []struct {
		name string
		base roundTrip
		want string
	}{
		{"101", answer(101), "1xx"},
		{"204", answer(204), "2xx"},
		{"304", answer(304), "3xx"},
		{"404", answer(404), "4xx"},
		{"500", answer(500), "5xx"},
		{"599", answer(599), "5xx"},
		{"a status that is none", answer(99), "other"},
		{"another that is none", answer(600), "other"},
		{"the attempt timeout", hang, "timeout"},
		{"a deadline below", fail(fmt.Errorf("signing: %w", context.DeadlineExceeded)), "timeout"},
		{"a dial that timed out", fail(&net.OpError{Op: "dial", Err: syscall.ETIMEDOUT}), "timeout"},
		{"the caller's cancellation", cancelling, "cancelled"},
		{"one of a layer below", fail(context.Canceled), "cancelled"},
		{"no such host", fail(&net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}), "dns"},
		{"a look-up that timed out", fail(&net.OpError{Op: "dial", Err: &net.DNSError{IsTimeout: true}}), "dns"},
		{"a certificate", fail(&tls.CertificateVerificationError{Err: errors.New("expired")}), "tls"},
		{"HTTP for HTTPS", fail(tls.RecordHeaderError{Msg: "not TLS"}), "tls"},
		{"an alert", fail(&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}), "tls"},
		{"connection refused", fail(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), "connect"},
		{"connection reset", fail(&net.OpError{Op: "read", Err: syscall.ECONNRESET}), "connection"},
		{"closed before the response", fail(io.EOF), "connection"},
		{"net/http's, without a type", fail(errors.New("http: server closed idle connection")), "connection"},
		{"a Transport below that refuses", fail(&retrip.OpenError{Host: "example.com"}), "breaker"},
		{"anything else", fail(errors.New("no signature")), "other"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := steady(tt.base, retrip.WithMaxAttempts(1), retrip.WithAttemptTimeout(time.Minute))
				c := watch(t, rt)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				req := request(t, "example.com")
				_, _ = rt.RoundTrip(req.WithContext(context.WithValue(ctx, cancelKey{}, cancel)))
				require.Equal(t, map[string]float64{
					`retrip_attempts_total{host="example.com",outcome="` + tt.want + `",transport="api"}`: 1,
				}, only(scrape(t, c), "retrip_attempts_total"))
			})
		})
	}
}

type cancelKey struct{}

func TestGiveUpsAreCountedByTheirReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := steady(answer(503))
		c := watch(t, rt)
		send := func(opts ...retrip.CallOption) {
			req := request(t, "example.com")
			_, err := rt.RoundTrip(req.WithContext(retrip.Override(req.Context(), opts...)))
			require.NoError(t, err)
		}
		send(retrip.WithMaxAttempts(2))
		send(retrip.WithMaxAttempts(3))
		send(retrip.WithBudget(time.Second / 2))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := rt.RoundTrip(request(t, "Example.com").WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, map[string]float64{
			`retrip_give_ups_total{host="example.com",reason="attempts",transport="api"}`:  2,
			`retrip_give_ups_total{host="example.com",reason="budget",transport="api"}`:    1,
			`retrip_give_ups_total{host="example.com",reason="cancelled",transport="api"}`: 1,
		}, only(scrape(t, c), "retrip_give_ups_total"))
	})
}

func TestCountersAgreeWithHostStats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := func(req *http.Request) (*http.Response, error) {
			discard(req)
			var statuses []int
			for s := range strings.SplitSeq(req.URL.RawQuery, ",") {
				var n int
				_, err := fmt.Sscan(s, &n)
				require.NoError(t, err)
				statuses = append(statuses, n)
			}
			return answer(statuses[min(retrip.AttemptNumber(req.Context()), len(statuses))-1])(req)
		}
		rt := steady(roundTrip(base))
		c := watch(t, rt)
		for _, script := range []string{
			"200", "204", "302", "404", "409", "501", "500,200", "503,503,404", "429,409", "409,409", "503,409,200", "500", "408,501", "413", "425,200",
		} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				req, err := http.NewRequestWithContext(t.Context(), method, "http://example.com/?"+script, strings.NewReader("body"))
				require.NoError(t, err)
				resp, err := rt.RoundTrip(req)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
		}
		var want retrip.HostStats
		for _, want = range rt.Hosts() {
		}
		require.NotZero(t, want.FirstTry)
		require.NotZero(t, want.Recovered)
		got := scrape(t, c)
		require.EqualValues(t, want.FirstTry, got[`retrip_answered_total{attempt="first",host="example.com",transport="api"}`])
		require.EqualValues(t, want.Recovered, got[`retrip_answered_total{attempt="later",host="example.com",transport="api"}`])
		require.EqualValues(t, want.Retries, got[`retrip_retries_total{host="example.com",transport="api"}`])
		attempts := 0.0
		for _, n := range only(got, "retrip_attempts_total") {
			attempts += n
		}
		require.EqualValues(t, want.Attempts, attempts)
		require.EqualValues(t, want.Requests, attempts-float64(want.Retries), "what the dashboard takes for requests")
	})
}

func TestCountersGoOnWhenTheHostWasForgotten(t *testing.T) {
	t.Parallel()
	rt := steady(answer(200), retrip.WithHosts(1, nil))
	c := watch(t, rt)
	const attempts = `retrip_attempts_total{host="a",outcome="2xx",transport="api"}`
	const state = `retrip_breaker_state{host="a",transport="api"}`
	get(t, rt, "a")
	require.Contains(t, scrape(t, c), state)
	get(t, rt, "b")
	require.EqualValues(t, 1, scrape(t, c)[attempts])
	require.NotContains(t, scrape(t, c), state, "nothing is known of its state")
	get(t, rt, "a")
	require.EqualValues(t, 2, scrape(t, c)[attempts])
}

func TestTheBreakerIsExported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		breaker := retrip.Breaker{Failures: 2, Cooldowns: []time.Duration{time.Minute}, Probes: 1, Successes: 2}
		rt := retrip.New(play(answer(500), answer(500), answer(200)), retrip.WithMaxAttempts(1), retrip.WithBreaker(&breaker))
		c := watch(t, rt)
		expect := func(state, trips, refused float64) {
			t.Helper()
			got := scrape(t, c)
			require.Equal(t, state, got[`retrip_breaker_state{host="example.com",transport="api"}`])
			require.Equal(t, trips, got[`retrip_breaker_trips_total{host="example.com",transport="api"}`])
			require.Equal(t, refused, got[`retrip_refused_total{host="example.com",transport="api"}`])
		}
		get(t, rt, "example.com")
		expect(0, 0, 0)
		get(t, rt, "example.com")
		expect(2, 1, 0)
		get(t, rt, "example.com")
		time.Sleep(time.Minute - time.Nanosecond)
		expect(2, 1, 1)
		time.Sleep(time.Nanosecond)
		expect(1, 1, 1)
		get(t, rt, "example.com")
		expect(1, 1, 1)
		get(t, rt, "example.com")
		expect(0, 1, 1)
	})
}

func TestOnlyRefusalsAreCountedAsRefused(t *testing.T) {
	t.Parallel()
	one := retrip.Breaker{Failures: 1, Cooldowns: []time.Duration{time.Hour}, Probes: 1, Successes: 1}
	again := func(retrip.Attempt) bool { return true }
	for _, tt := range []struct {
		name string
		rt   func() *retrip.Transport
		want float64
	}{
		{"a pause that would end while the breaker is open", func() *retrip.Transport {
			return retrip.New(answer(500), retrip.WithBreaker(&one))
		}, 0},
		{"a refusal by a Transport below that nobody repeats", func() *retrip.Transport {
			return steady(fail(&retrip.OpenError{Host: "example.com"}))
		}, 0},
		{"the same, repeated until our own breaker is open", func() *retrip.Transport {
			below := fail(fmt.Errorf("%w: %w", syscall.ECONNRESET, &retrip.OpenError{Host: "example.com"}))
			return steady(below, retrip.WithPolicy(again), retrip.WithBreaker(&one))
		}, 0},
		{"a retry that found the breaker open", func() *retrip.Transport {
			var rt *retrip.Transport
			base := play(answer(503), answer(500))
			rt = steady(base, retrip.WithBreaker(&retrip.Breaker{
				Failures: 2, Cooldowns: []time.Duration{time.Hour}, Probes: 1, Successes: 1,
			}), retrip.WithTrace(&retrip.Trace{Pausing: func(retrip.PausingInfo) {
				req, _ := http.NewRequest(http.MethodGet, "http://example.com/", nil)
				_, _ = rt.RoundTrip(req.WithContext(retrip.Override(req.Context(), retrip.WithMaxAttempts(1))))
			}}))
			return rt
		}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := tt.rt()
				c := watch(t, rt)
				get(t, rt, "example.com")
				got := scrape(t, c)
				require.Equal(t, tt.want, got[`retrip_refused_total{host="example.com",transport="api"}`])
			})
		})
	}
}

func TestWithoutAQuotaThereIsNoLevel(t *testing.T) {
	t.Parallel()
	rt := steady(answer(200))
	c := watch(t, rt)
	get(t, rt, "example.com")
	got := scrape(t, c)
	require.Contains(t, got, `retrip_breaker_state{host="example.com",transport="api"}`)
	require.NotContains(t, got, `retrip_quota_tokens{host="example.com",transport="api"}`)
	require.NotContains(t, got, `retrip_quota_capacity{host="example.com",transport="api"}`)
}

func TestHostsOfOneLabelAreOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := func(req *http.Request) (*http.Response, error) {
			return answer(map[string]int{"a.example.com": 200, "b.example.com": 500, "c.example.com": 200}[req.URL.Host])(req)
		}
		breaker := retrip.Breaker{Failures: 4, Cooldowns: []time.Duration{time.Minute}, Probes: 1, Successes: 1}
		rt := retrip.New(roundTrip(base), retrip.WithBackoff(retrip.Constant(0)), retrip.WithBreaker(&breaker))
		c := watch(t, rt, retripprom.WithHostLabel(func(host string) string {
			_, domain, _ := strings.Cut(host, ".")
			return domain
		}))
		for _, host := range []string{"c.example.com", "b.example.com", "a.example.com"} {
			get(t, rt, host)
		}
		got := scrape(t, c)
		require.EqualValues(t, 2, got[`retrip_attempts_total{host="example.com",outcome="2xx",transport="api"}`])
		require.EqualValues(t, 4, got[`retrip_attempts_total{host="example.com",outcome="5xx",transport="api"}`])
		require.EqualValues(t, 2, got[`retrip_breaker_state{host="example.com",transport="api"}`], "b is open")
		require.EqualValues(t, 7, got[`retrip_quota_tokens{host="example.com",transport="api"}`], "what b has left")
	})
}

func TestTheQuotaOfTheLeastShareIsShown(t *testing.T) {
	t.Parallel()
	c := retripprom.New()
	for _, q := range []retrip.Quota{{Capacity: 100, Initial: 20}, {Capacity: 10, Initial: 5}, {Capacity: 1, Initial: 1}} {
		rt := retrip.New(answer(200), retrip.WithRetryQuota(&q))
		t.Cleanup(c.Watch("api", rt))
		get(t, rt, "example.com")
	}
	got := scrape(t, c)
	require.EqualValues(t, 20, got[`retrip_quota_tokens{host="example.com",transport="api"}`])
	require.EqualValues(t, 100, got[`retrip_quota_capacity{host="example.com",transport="api"}`])
}

func TestHostsBeyondTheLimitAreOther(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		opts []retripprom.Option
		want map[string]float64
	}{
		{"the first keep their label", []retripprom.Option{retripprom.WithMaxHosts(2)}, map[string]float64{"a": 2, "other": 5, "c": 1}},
		{"none has one", []retripprom.Option{retripprom.WithMaxHosts(0)}, map[string]float64{"other": 8}},
		{"other is no label of its own", []retripprom.Option{retripprom.WithMaxHosts(2), retripprom.WithHostLabel(func(host string) string {
			if host == "c" {
				return "other"
			}
			return host
		})}, map[string]float64{"a": 2, "b": 2, "other": 4}},
		{"no label at all", []retripprom.Option{retripprom.WithHostLabel(func(string) string { return "" })}, map[string]float64{"": 8}},
		{"nil is the default", []retripprom.Option{retripprom.WithHostLabel(nil)}, map[string]float64{"a": 2, "b": 2, "c": 1, "d": 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rt := steady(answer(200), retrip.WithHosts(2, nil)) // which forgets hosts meanwhile
			c := watch(t, rt, tt.opts...)
			for _, host := range []string{"a", "c", "b", "d", "d", "d", "b", "a"} {
				get(t, rt, host)
			}
			got := map[string]float64{}
			for host, n := range tt.want {
				series := `retrip_attempts_total{host="` + host + `",outcome="2xx",transport="api"}`
				got[host] = scrape(t, c)[series]
				require.Equal(t, n, got[host], host)
			}
			require.Len(t, only(scrape(t, c), "retrip_attempts_total"), len(tt.want))
		})
	}
}

func TestNothingGrowsWithTheHosts(t *testing.T) {
	t.Parallel()
	rt := steady(answer(200))
	c := watch(t, rt)
	var most int
	for i := range 5000 {
		get(t, rt, fmt.Sprintf("host-%d", i))
		if i == 2500 {
			most = testutil.CollectAndCount(c)
		}
	}
	require.Equal(t, most, testutil.CollectAndCount(c))
	require.Len(t, only(scrape(t, c), "retrip_attempts_total"), 101)
}

func TestAHostThatIsNotUTF8DoesNotFailTheScrape(t *testing.T) {
	t.Parallel()
	rt := steady(answer(200))
	c := watch(t, rt, retripprom.WithHostLabel(func(host string) string { return host[:1] }))
	get(t, rt, "ä.example.com")
	get(t, rt, "界.example.com")
	require.EqualValues(t, 2, scrape(t, c)["retrip_attempts_total{host=\"\uFFFD\",outcome=\"2xx\",transport=\"api\"}"])
}

func TestTransportsOfOneNameAddUp(t *testing.T) {
	t.Parallel()
	c := retripprom.New()
	const attempts = `retrip_attempts_total{host="example.com",outcome="2xx",transport="%s"}`
	first, second := steady(answer(200)), steady(answer(200))
	stopFirst := c.Watch("api", first)
	stopSecond := c.Watch("api", second)
	defer c.Watch("another", first)()
	get(t, first, "example.com")
	get(t, second, "example.com")
	got := scrape(t, c)
	require.EqualValues(t, 2, got[fmt.Sprintf(attempts, "api")])
	require.EqualValues(t, 1, got[fmt.Sprintf(attempts, "another")])

	stopFirst()
	stopFirst()
	get(t, first, "example.com")
	get(t, second, "example.com")
	require.EqualValues(t, 3, scrape(t, c)[fmt.Sprintf(attempts, "api")], "the second goes on, and no count goes back")

	stopSecond()
	get(t, second, "example.com")
	require.NotContains(t, scrape(t, c), fmt.Sprintf(attempts, "api"))

	defer c.Watch("api", second)()
	get(t, second, "example.com")
	require.EqualValues(t, 1, scrape(t, c)[fmt.Sprintf(attempts, "api")])
}

func TestARequestUnderWayBringsNoSeriesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := steady(play(answer(503), answer(200)))
		c := retripprom.New()
		stop := c.Watch("api", rt)
		done := make(chan struct{})
		go func() {
			defer close(done)
			get(t, rt, "example.com")
		}()
		synctest.Wait() // it pauses
		require.NotEmpty(t, scrape(t, c))
		stop()
		<-done
		require.Empty(t, scrape(t, c))
	})
}

func TestSenselessArgumentsPanic(t *testing.T) {
	t.Parallel()
	c, rt := retripprom.New(), steady(answer(200))
	stop := c.Watch("api", rt)
	require.PanicsWithValue(t, `retripprom: Watch("api", …): the Transport is watched under this name already`, func() { c.Watch("api", rt) })
	require.PanicsWithValue(t, `retripprom: Watch("api", nil): no Transport`, func() { c.Watch("api", nil) })
	require.PanicsWithValue(t, `retripprom: Watch("\xff", …): the name is not UTF-8`, func() { c.Watch("\xff", rt) })
	require.PanicsWithValue(t, `retripprom: WithMaxHosts(-1): the number is negative`, func() { retripprom.WithMaxHosts(-1) })
	stop()
	c.Watch("api", rt)()
}

func TestAScrapeIsSafeWhileHostsComeAndGo(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	base := func(req *http.Request) (*http.Response, error) {
		return answer([]int{200, 503}[calls.Add(1)%2])(req)
	}
	rt := retrip.New(roundTrip(base), retrip.WithHosts(4, nil), retrip.WithBackoff(retrip.Constant(0)))
	c := watch(t, rt, retripprom.WithMaxHosts(8))
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 300 {
				get(t, rt, fmt.Sprintf("host-%d", (i*7+w)%16))
			}
		})
	}
	all.Go(func() {
		for range 50 {
			c.Watch("another", rt)()
		}
	})
	before := map[string]float64{}
	for range 30 {
		now := scrape(t, c)
		for series, n := range before {
			if strings.Contains(series, `_total{`) && strings.Contains(series, `transport="api"`) {
				require.GreaterOrEqual(t, now[series], n, series)
			}
		}
		before = now
	}
	all.Wait()
	total := 0.0
	for _, n := range only(scrape(t, c), "retrip_attempts_total") {
		total += n
	}
	require.EqualValues(t, calls.Load(), total)
}

func TestNamesAreAsPrometheusWantsThem(t *testing.T) {
	t.Parallel()
	problems, err := testutil.CollectAndLint(everything(t))
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestTheHistogramIsNativeIfAskedFor(t *testing.T) {
	t.Parallel()
	for _, native := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var opts []retripprom.Option
			if native {
				opts = append(opts, retripprom.WithNativeHistograms())
			}
			rt := steady(play(answer(503), answer(200)))
			c := watch(t, rt, opts...)
			get(t, rt, "example.com")
			r := prometheus.NewPedanticRegistry()
			require.NoError(t, r.Register(c))
			families, err := r.Gather()
			require.NoError(t, err)
			for _, f := range families {
				if f.GetName() == "retrip_pause_seconds" {
					h := f.GetMetric()[0].GetHistogram()
					require.Len(t, h.GetBucket(), 12)
					require.Equal(t, native, len(h.GetPositiveSpan()) > 0)
					return
				}
			}
			require.Fail(t, "there is no histogram")
		})
	}
}

// everything is a Collector that has every series there can be for a host.
func everything(t testing.TB) *retripprom.Collector {
	t.Helper()
	breaker := retrip.Breaker{Failures: 3, Cooldowns: []time.Duration{time.Minute}, Probes: 1, Successes: 1}
	rt := retrip.New(answer(500), retrip.WithBackoff(retrip.Constant(0)), retrip.WithBreaker(&breaker))
	c := watch(t, rt)
	get(t, rt, "example.com")
	get(t, rt, "example.com")
	return c
}
