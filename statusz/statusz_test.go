package statusz_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/statusz"
	"github.com/stretchr/testify/require"
)

func TestARequestIsCountedAsWhatItEndsAs(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		statuses []int
		want     statusz.Counts
	}{
		"answered":              {[]int{200}, statusz.Counts{Requests: 1, Attempts: 1, FirstTry: 1}},
		"not found":             {[]int{404}, statusz.Counts{Requests: 1, Attempts: 1, FirstTry: 1}},
		"answered after one":    {[]int{503, 200}, statusz.Counts{Requests: 1, Attempts: 2, Retried: 1, Recovered: 1}},
		"answered after three":  {[]int{503, 502, 429, 200}, statusz.Counts{Requests: 1, Attempts: 4, Retried: 1, Recovered: 1}},
		"given up":              {[]int{503}, statusz.Counts{Requests: 1, Attempts: 4, Retried: 1, Failed: 1}},
		"given up with errors":  {[]int{0}, statusz.Counts{Requests: 1, Attempts: 1, Failed: 1}}, // of a kind that is not known
		"a failure, then a 404": {[]int{503, 404}, statusz.Counts{Requests: 1, Attempts: 2, Retried: 1, Recovered: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := retrip.New(play(tt.statuses...), every(time.Second))
				p := statusz.Handler(rt)
				get(t, rt, "http://example.com/")
				require.Equal(t, tt.want, only(t, p).Total)
				require.Equal(t, tt.want, only(t, p).Recent)
			})
		})
	}
}

func TestRequestsEndedByTheirCallerCountNeitherWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(play(503), every(time.Minute))
		p := statusz.Handler(rt)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/", nil)
		require.NoError(t, err)
		_, err = rt.RoundTrip(req)
		require.ErrorIs(t, err, context.Canceled)
		h := only(t, p)
		require.Equal(t, statusz.Counts{Requests: 1, Attempts: 1, Cancelled: 1}, h.Total)
		require.Zero(t, h.Total.Ended())
		require.Len(t, h.Last, 1, "the 503, not the caller")
		require.Empty(t, h.Last[0].GaveUp)
	})
}

// The caller left before the failure came: the request ends once, not twice.
func TestAFailureThatComesTooLateIsTheCallersEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(503)
		rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second) // whatever the context says
			return base.RoundTrip(req)
		}))
		p := statusz.Handler(rt)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/", nil)
		require.NoError(t, err)
		_, err = rt.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, statusz.Counts{Requests: 1, Attempts: 1, Cancelled: 1}, only(t, p).Total)
	})
}

func TestRates(t *testing.T) {
	t.Parallel()
	c := statusz.Counts{Requests: 10, Attempts: 14, Retried: 3, FirstTry: 6, Recovered: 2, Failed: 1, Cancelled: 1}
	require.InDelta(t, 6.0/9, c.FirstTryRate(), 1e-9)
	require.InDelta(t, 8.0/9, c.SuccessRate(), 1e-9)
	require.InDelta(t, 0.3, c.RetryRate(), 1e-9)
	require.InDelta(t, 1.4, c.Amplification(), 1e-9)
	var none statusz.Counts
	require.Equal(t, [4]float64{}, [4]float64{none.FirstTryRate(), none.SuccessRate(), none.RetryRate(), none.Amplification()})
}

func TestChartsHoldTheLast15Minutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(200)
		rt := retrip.New(base, retrip.WithMaxAttempts(1))
		p := statusz.Handler(rt)
		get(t, rt, "http://example.com/") // at 0:00
		time.Sleep(15 * time.Second)
		base.then(503)
		get(t, rt, "http://example.com/")
		get(t, rt, "http://example.com/")
		h := only(t, p)
		require.Equal(t, 15, h.Chart.Seconds)
		require.Len(t, h.Chart.Attempts, 60)
		require.Equal(t, []uint32{0, 1, 2}, h.Chart.Attempts[57:])
		require.Equal(t, []uint32{0, 1, 0}, h.Chart.FirstTry[57:])
		require.Equal(t, []uint32{0, 0, 2}, h.Chart.Failed[57:])

		time.Sleep(58 * 15 * time.Second) // nobody calls
		h = only(t, p)
		require.Equal(t, []uint32{1, 2, 0}, h.Chart.Attempts[:3])
		require.Equal(t, uint64(3), h.Recent.Requests)
		time.Sleep(15 * time.Second)
		h = only(t, p)
		require.Equal(t, []uint32{2, 0, 0}, h.Chart.Attempts[:3])
		require.Equal(t, statusz.Counts{Requests: 2, Attempts: 2, Failed: 2}, h.Recent)
		time.Sleep(24 * time.Hour)
		base.then(200)
		get(t, rt, "http://example.com/")
		h = only(t, p)
		require.Equal(t, statusz.Counts{Requests: 1, Attempts: 1, FirstTry: 1}, h.Recent)
		require.Equal(t, statusz.Counts{Requests: 4, Attempts: 4, FirstTry: 2, Failed: 2}, h.Total)
		require.Equal(t, uint32(1), h.Chart.Attempts[59])
	})
}

func TestPausesAreTheLast128(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		rt := retrip.New(play(503), retrip.WithBackoff(func(int, time.Duration) time.Duration {
			n++
			return time.Duration(n) * time.Millisecond
		}), retrip.WithMaxAttempts(101), retrip.WithRetryQuota(nil), retrip.WithBreaker(nil))
		p := statusz.Handler(rt)
		get(t, rt, "http://example.com/") // 1 to 100 ms
		require.Equal(t, statusz.Pauses{Count: 100, P50: 0.05, P99: 0.099}, only(t, p).Pauses)
		get(t, rt, "http://example.com/") // to 200 ms; those of 73 ms and more are left
		require.Equal(t, statusz.Pauses{Count: 128, P50: 0.136, P99: 0.199}, only(t, p).Pauses)
	})
}

func TestTheLastFiveFailuresAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		base := play(502)
		rt := retrip.New(base, every(1500*time.Millisecond))
		p := statusz.Handler(rt)
		get(t, rt, "http://example.com/") // pushed out, but for its last two
		base.then(0)
		get(t, rt, "http://example.com/")
		base.then(429, 503, 200)
		get(t, rt, "http://example.com/")
		h := only(t, p)
		require.Equal(t, []statusz.Failure{
			{At: begin.Add(6 * time.Second), Status: 503, Attempt: 2, MaxAttempts: 4, Pause: 1.5},
			{At: begin.Add(4500 * time.Millisecond), Status: 429, Attempt: 1, MaxAttempts: 4, Pause: 1.5},
			{At: begin.Add(4500 * time.Millisecond), Error: "*errors.errorString", Attempt: 1, MaxAttempts: 4, GaveUp: "policy"},
			{At: begin.Add(4500 * time.Millisecond), Status: 502, Attempt: 4, MaxAttempts: 4, GaveUp: "attempts"},
			{At: begin.Add(3 * time.Second), Status: 502, Attempt: 3, MaxAttempts: 4, Pause: 1.5},
		}, h.Last)
		html := ask(p, "").Body.String()
		require.Contains(t, html, "503, attempt 2 of 4, next after 1.5s")
		require.Contains(t, html, "*errors.errorString, attempt 1 of 4, gave up (policy)")
		require.Contains(t, html, "502, attempt 4 of 4, gave up (attempts)")
	})
}

func TestAnOpenBreakerCountsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(503)
		breaker := retrip.DefaultBreaker()
		breaker.Failures = 3
		breaker.Cooldowns = []time.Duration{90 * time.Second}
		rt := retrip.New(base, retrip.WithMaxAttempts(1), retrip.WithBreaker(&breaker))
		p := statusz.Handler(rt)
		for range 4 {
			get(t, rt, "http://example.com/")
		}
		h := only(t, p)
		require.Equal(t, "open", h.Breaker.State)
		require.Equal(t, 1, h.Breaker.Trips)
		require.NotNil(t, h.Breaker.Until)
		require.Equal(t, statusz.Counts{Requests: 4, Attempts: 3, Failed: 4, Unsent: 1}, h.Total)
		require.Len(t, h.Last, 3, "a refusal does not push out what opened the breaker")
		for _, tt := range []struct {
			left time.Duration
			want string
		}{
			{80 * time.Second, "open, next probe in 1m20s, trip 1<"},
			{60 * time.Second, "open, next probe in 1m0s, trip 1<"},
			{59500 * time.Millisecond, "open, next probe in 1m0s, trip 1<"},
			{12 * time.Second, "open, next probe in 12 s, trip 1<"},
			{100 * time.Millisecond, "open, next probe in 1 s, trip 1<"},
		} {
			time.Sleep(time.Until(h.Breaker.Until.Add(-tt.left)))
			require.Contains(t, ask(p, "").Body.String(), tt.want)
		}
		time.Sleep(time.Second)
		require.Contains(t, ask(p, "").Body.String(), "open, next probe now, trip 1<")
		base.then(200)
		get(t, rt, "http://example.com/")
		require.Equal(t, statusz.Breaker{State: "half-open", Trips: 1}, only(t, p).Breaker)
		get(t, rt, "http://example.com/")
		require.Equal(t, statusz.Breaker{State: "closed"}, only(t, p).Breaker)
	})
}

func TestTheQuotaIsShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(play(503, 200), every(time.Second))
		p := statusz.Handler(rt)
		get(t, rt, "http://example.com/")
		require.Equal(t, &statusz.Quota{Tokens: 9, Capacity: 20}, only(t, p).Quota)
		require.Contains(t, ask(p, "").Body.String(), `<meter min="0" max="20" value="9" low="5" optimum="20"></meter> 9 of 20`)

		rt = retrip.New(play(200), retrip.WithRetryQuota(nil))
		p = statusz.Handler(rt)
		get(t, rt, "http://example.com/")
		require.Nil(t, only(t, p).Quota)
		require.NotContains(t, ask(p, "").Body.String(), "<meter")
	})
}

func TestHostsUsedBeforeThePageWasMadeAreOnIt(t *testing.T) {
	t.Parallel()
	rt := retrip.New(play(200))
	get(t, rt, "http://old.example/")
	p := statusz.Handler(rt)
	get(t, rt, "http://new.example/")
	all := p.Snapshot().Transports[0].Hosts
	require.Len(t, all, 2)
	require.Equal(t, []string{"new.example", "old.example"}, []string{all[0].Name, all[1].Name})
	require.Equal(t, uint64(1), all[0].Total.Requests)
	require.Zero(t, all[1].Total)
	require.Equal(t, "closed", all[1].Breaker.State)
}

func TestAHostThatTheTransportHasForgottenKeepsItsCounts(t *testing.T) {
	t.Parallel()
	rt := retrip.New(play(200), retrip.WithHosts(1, nil))
	p := statusz.Handler(rt)
	get(t, rt, "http://a.example/")
	get(t, rt, "http://b.example/")
	all := p.Snapshot().Transports[0].Hosts
	require.Len(t, all, 2)
	require.Equal(t, "unknown", all[0].Breaker.State)
	require.Nil(t, all[0].Quota)
	require.Equal(t, uint64(1), all[0].Total.FirstTry)
	require.Equal(t, "closed", all[1].Breaker.State)
}

func TestATransportWithoutHostsIsShown(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	rt := &retrip.Transport{}
	p := statusz.Handler(rt)
	get(t, rt, server.URL)
	require.Equal(t, "unknown", only(t, p).Breaker.State)
	require.Equal(t, uint64(1), only(t, p).Total.FirstTry)
	require.Equal(t, 200, ask(p, "").Code)
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	rt := retrip.New(play(200), retrip.WithHosts(5000, nil))
	all := hosts(3000)
	for _, name := range all[:1500] {
		get(t, rt, "http://"+name+"/")
	}
	p := statusz.Handler(rt)
	require.Len(t, p.Snapshot().Transports[0].Hosts, 1024)
	for _, name := range all {
		get(t, rt, "http://"+name+"/")
	}
	shown := p.Snapshot().Transports[0].Hosts
	require.Len(t, shown, 1024)
	require.Equal(t, all[3000-1024], shown[0].Name, "those used last are kept")
	require.Equal(t, all[2999], shown[1023].Name)
}

func TestSeveralTransportsHaveNames(t *testing.T) {
	t.Parallel()
	a, b := retrip.New(play(200)), retrip.New(play(503), retrip.WithMaxAttempts(1))
	p := statusz.Handler(a).Add("mail & more", b)
	get(t, a, "http://one.example/")
	get(t, b, "http://one.example/")
	s := p.Snapshot()
	require.Equal(t, []string{"1", "mail & more"}, []string{s.Transports[0].Name, s.Transports[1].Name})
	require.Equal(t, uint64(1), s.Transports[0].Hosts[0].Total.FirstTry)
	require.Equal(t, uint64(1), s.Transports[1].Hosts[0].Total.Failed)
	html := ask(p, "").Body.String()
	require.Contains(t, html, "mail &amp; more <small>")
	ids := strings.Count(html, `<tr id="h`)
	require.Equal(t, 2, ids)
	first, rest, _ := strings.Cut(html, `<tr id="h`)
	require.NotEmpty(t, first)
	require.Equal(t, 1, strings.Count(rest, rest[:16]), "one host of two Transports has two ids")
}

func TestAddRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	rt := retrip.New(nil)
	require.PanicsWithValue(t, `statusz: Add("1", nil): no Transport`, func() { statusz.Handler(nil) })
	require.PanicsWithValue(t, `statusz: Add(""): a Transport without a name`, func() { statusz.Handler().Add("", rt) })
	require.PanicsWithValue(t, `statusz: Add("1"): there is one of that name`, func() { statusz.Handler(rt).Add("1", rt) })
	p := statusz.Handler()
	p.Close()
	require.PanicsWithValue(t, `statusz: Add("a") after Close`, func() { p.Add("a", rt) })
}

func TestAClosedPageCountsNoMore(t *testing.T) {
	t.Parallel()
	rt := retrip.New(play(200))
	p := statusz.Handler(rt)
	get(t, rt, "http://example.com/")
	p.Close()
	p.Close()
	get(t, rt, "http://example.com/")
	require.Equal(t, uint64(1), only(t, p).Total.Requests)
	require.Equal(t, 200, ask(p, "").Code)
}

func TestThePageCanOnlyBeRead(t *testing.T) {
	t.Parallel()
	p := statusz.Handler(retrip.New(nil))
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, "PURGE"} {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(method, "/", nil))
		require.Equal(t, 405, w.Code, method)
		require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	}
	for _, query := range []string{"", "?format=json", "?stream"} {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(http.MethodHead, "/"+query, nil))
		require.Equal(t, 200, w.Code, "a HEAD ends at once")
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	w := ask(statusz.Handler(), "")
	require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	require.Equal(t, "no-referrer", w.Header().Get("Referrer-Policy"))
	require.Regexp(t, `^default-src 'none'; style-src 'sha256-[A-Za-z0-9+/]{43}='; script-src 'sha256-[A-Za-z0-9+/]{43}='; `+
		`connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'$`, w.Header().Get("Content-Security-Policy"))
	require.Contains(t, w.Body.String(), "No Transport is on this page.")
}

func TestAQueryThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	p := statusz.Handler(retrip.New(nil))
	for query, want := range map[string]string{
		"?format=xml":  `there is no format "xml": json or html`,
		"?window=1h":   `there is no window "1h": 15m or all`,
		"?state=ajar":  `there is no state "ajar": closed, half-open, open or unknown`,
		"?sort=colour": `there is no column "colour" to sort by`,
		"?sort=-":      "",
	} {
		w := ask(p, query)
		if want == "" {
			require.Equal(t, 200, w.Code, query)
			continue
		}
		require.Equal(t, 400, w.Code, query)
		require.Equal(t, want+"\n", w.Body.String())
	}
}

func TestHostsAreSortedAndFiltered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(200)
		breaker := retrip.DefaultBreaker()
		breaker.Failures = 4
		rt := retrip.New(base, every(time.Second), retrip.WithBreaker(&breaker))
		p := statusz.Handler(rt)
		for range 3 {
			get(t, rt, "http://well.example/")
		}
		base.then(503, 200)
		get(t, rt, "http://slow.example/")
		get(t, rt, "http://slow.example/")
		base.then(503)
		get(t, rt, "http://down.example/")
		for query, want := range map[string]string{
			"":                    "down slow well",
			"?sort=host":          "down slow well",
			"?sort=-host":         "well slow down",
			"?sort=requests":      "down slow well",
			"?sort=-requests":     "well slow down",
			"?sort=first":         "down slow well",
			"?sort=-first":        "well slow down",
			"?sort=success":       "down slow well",
			"?sort=-success":      "slow well down",
			"?sort=-retried":      "down slow well",
			"?sort=amplification": "well slow down",
			"?sort=-p50":          "down slow well",
			"?sort=p99":           "well down slow",
			"?sort=-breaker":      "down slow well",
			"?sort=-failure":      "down slow well",
			"?sort=quota":         "down slow well",
			"?host=W":             "down slow well",
			"?host=ow":            "down slow",
			"?host=none":          "",
			"?state=open":         "down",
			"?state=closed":       "slow well",
			"?state=closed&host=slow&sort=-requests&window=15m": "slow",
		} {
			html := ask(p, query).Body.String()
			require.Equal(t, want, strings.ReplaceAll(strings.Join(names(t, html), " "), ".example", ""), query)
			var s statusz.Snapshot
			w := ask(p, "?format=json&"+strings.TrimPrefix(query, "?"))
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &s))
			var got []string
			for _, h := range s.Transports[0].Hosts {
				got = append(got, strings.TrimSuffix(h.Name, ".example"))
			}
			require.Equal(t, want, strings.Join(got, " "), query)
		}
		html := ask(p, "?sort=-requests&host=e&state=closed&window=15m").Body.String()
		require.Contains(t, html, `class="n" aria-sort="descending"><a`)
		require.Contains(t, html, `<a href="?host=e&amp;sort=requests&amp;state=closed&amp;window=15m">Requests</a>`, "a click turns it")
		require.Contains(t, html, `<a href="?host=e&amp;sort=-success&amp;state=closed&amp;window=15m">Success</a>`)
		require.Contains(t, html, `<a href="?host=e&amp;sort=-requests&amp;state=closed">since the start</a>`)
		require.Contains(t, html, `<input type="hidden" name="sort" value="-requests">`)
		require.Contains(t, html, `<input type="hidden" name="window" value="15m">`)
		require.Contains(t, html, `<option selected>closed</option>`)
	})
}

// The JSON is for programs: a field may be added here, none taken away or renamed.
func TestTheJSONIsStable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		breaker := retrip.DefaultBreaker()
		breaker.Failures = 2
		rt := retrip.New(play(503), every(2500*time.Millisecond), retrip.WithBreaker(&breaker))
		p := statusz.Handler().Add("billing", rt)
		get(t, rt, "http://example.com/")
		w := ask(p, "?format=json")
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
		var got map[string]any
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
		host := got["transports"].([]any)[0].(map[string]any)["hosts"].([]any)[0].(map[string]any)
		until := host["breaker"].(map[string]any)["until"]
		_, err := time.Parse(time.RFC3339, until.(string))
		require.NoError(t, err)
		chart := func(last int) []int { return append(make([]int, 59), last) }
		counts := map[string]any{"requests": 1, "attempts": 2, "retried": 1, "first_try": 0, "recovered": 0, "failed": 1, "cancelled": 0, "unsent": 0}
		want, err := json.Marshal(map[string]any{
			"at": "2000-01-01T00:00:02.5Z",
			"transports": []any{map[string]any{
				"name": "billing", "since": "2000-01-01T00:00:00Z",
				"hosts": []any{map[string]any{
					"name": "example.com", "breaker": map[string]any{"state": "open", "until": until, "trips": 1},
					"quota": map[string]any{"tokens": 9, "capacity": 20}, "total": counts, "last_15m": counts,
					"pauses": map[string]any{"count": 1, "p50_seconds": 2.5, "p99_seconds": 2.5},
					"last_failures": []any{
						map[string]any{"at": "2000-01-01T00:00:02.5Z", "status": 503, "error": "", "attempt": 2, "max_attempts": 4, "pause_seconds": 0, "gave_up": "breaker"},
						map[string]any{"at": "2000-01-01T00:00:00Z", "status": 503, "error": "", "attempt": 1, "max_attempts": 4, "pause_seconds": 2.5, "gave_up": ""},
					},
					"chart": map[string]any{"slot_seconds": 15, "first_try": chart(0), "recovered": chart(0), "failed": chart(1), "attempts": chart(2), "retries": chart(1)},
				}},
			}},
		})
		require.NoError(t, err)
		require.JSONEq(t, string(want), w.Body.String())
	})
	require.JSONEq(t, `{"at": "2000-01-01T00:00:00Z", "transports": []}`, func() string {
		b, err := json.Marshal(statusz.Snapshot{At: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), Transports: statusz.Handler().Snapshot().Transports})
		require.NoError(t, err)
		return string(b)
	}(), "lists are never null")
}

func TestNamesOfHostsAreEscaped(t *testing.T) {
	t.Parallel()
	key := `<img src=x onerror=alert(1)>"'&`
	rt := retrip.New(play(200), retrip.WithHosts(10, func(*http.Request) string { return key }))
	p := statusz.Handler(rt)
	get(t, rt, "http://example.com/")
	require.Equal(t, key, only(t, p).Name)
	html := ask(p, "?host="+`%22%3E%3Cscript%3Ealert(2)%3C/script%3E`).Body.String() + ask(p, "").Body.String()
	require.NotContains(t, html, "<img")
	require.NotContains(t, html, "<script>alert")
	require.Contains(t, html, "&lt;img src=x onerror=alert(1)&gt;&#34;&#39;&amp;")
}

func TestNoSecretIsOnThePage(t *testing.T) {
	t.Parallel()
	rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
		return nil, fmt.Errorf("Get %q with %v: s3cret", req.URL, req.Header)
	}), every(0), retrip.WithPolicy(func(retrip.Attempt) bool { return true }))
	p := statusz.Handler(rt)
	req, err := http.NewRequest(http.MethodPut, "http://s3cret:s3cret@example.com/s3cret?s3cret=s3cret#s3cret", strings.NewReader("s3cret"))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer s3cret")
	req.Header.Set("s3cret", "s3cret")
	req.Header.Set(retrip.KeyHeader, "s3cret")
	req.AddCookie(&http.Cookie{Name: "s3cret", Value: "s3cret"})
	_, err = rt.RoundTrip(req)
	require.ErrorContains(t, err, "gave up")
	for _, query := range []string{"", "?format=json"} {
		text := ask(p, query).Body.String()
		require.Contains(t, text, "example.com")
		require.Contains(t, text, "*errors.errorString")
		require.NotContains(t, text, "s3cret")
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestManyLookWhileManyCall(t *testing.T) {
	t.Parallel()
	rt := retrip.New(play(200, 503, 200), every(0))
	p := statusz.Handler(rt)
	all := hosts(20)
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for k := range 200 {
				get(t, rt, "http://"+all[(i+k)%len(all)]+"/")
			}
		})
	}
	for range 4 {
		callers.Go(func() {
			for range 20 {
				if ask(p, "?sort=-requests").Code != 200 || ask(p, "?format=json").Code != 200 {
					t.Error("no page")
				}
			}
		})
	}
	callers.Wait()
	var sum statusz.Counts
	for _, h := range p.Snapshot().Transports[0].Hosts {
		sum.Requests += h.Total.Requests
		sum.FirstTry += h.Total.FirstTry
		sum.Recovered += h.Total.Recovered
	}
	require.Equal(t, statusz.Counts{Requests: 1600, FirstTry: 1599, Recovered: 1}, sum)
}

func TestARequestThatSucceedsAllocatesNothing(t *testing.T) {
	resp := &http.Response{StatusCode: 200, Body: http.NoBody}
	rt := retrip.New(roundTrip(func(*http.Request) (*http.Response, error) { return resp, nil }))
	p := statusz.Handler(rt)
	req, err := http.NewRequest(http.MethodGet, "http://example.com/", nil)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = rt.RoundTrip(req) }))
	require.Equal(t, uint64(1001), only(t, p).Total.FirstTry)
}

func TestARetryAllocatesAtMostOnceMore(t *testing.T) {
	perRun := func(watch bool) float64 {
		n := 0
		answers := []*http.Response{{StatusCode: 503, Body: http.NoBody}, {StatusCode: 200, Body: http.NoBody}}
		rt := retrip.New(roundTrip(func(*http.Request) (*http.Response, error) {
			n++
			return answers[(n+1)%2], nil
		}), every(0), retrip.WithRetryQuota(nil), retrip.WithBreaker(nil))
		if watch {
			statusz.Handler(rt)
		}
		req, err := http.NewRequest(http.MethodGet, "http://example.com/", nil)
		require.NoError(t, err)
		return testing.AllocsPerRun(500, func() { _, _ = rt.RoundTrip(req) })
	}
	require.LessOrEqual(t, perRun(true), perRun(false)+1)
}

func TestColumnsCanBeSortedBy(t *testing.T) {
	t.Parallel()
	html := ask(statusz.Handler(retrip.New(nil)), "").Body.String()
	heads := strings.Count(html, "<th scope=\"col\"")
	links := strings.Count(html, `<a href="?sort=`)
	require.Equal(t, 12, heads)
	require.Equal(t, heads-1, links, "the chart has no order")
	require.True(t, slices.Contains(strings.Fields(html), `aria-sort="ascending"><a`))
}
