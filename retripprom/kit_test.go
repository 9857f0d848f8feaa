package retripprom_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripprom"
	"github.com/stretchr/testify/require"
)

// A roundTrip is a base made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// play is a base that takes one step an attempt; the last one repeats.
func play(steps ...roundTrip) roundTrip {
	var calls atomic.Int64
	return func(req *http.Request) (*http.Response, error) {
		return steps[min(int(calls.Add(1)), len(steps))-1](req)
	}
}

func answer(status int) roundTrip {
	return func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody, Request: req}, nil
	}
}

func fail(err error) roundTrip {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

// hang ends with the attempt, as net/http would.
func hang(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func request(t testing.TB, host string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/path", nil)
	require.NoError(t, err)
	req.URL.Host = host
	return req
}

// get makes a request and does away with what comes of it.
func get(t testing.TB, rt http.RoundTripper, host string) {
	t.Helper()
	if resp, err := rt.RoundTrip(request(t, host)); err == nil {
		require.NoError(t, resp.Body.Close())
	}
}

// steady is a Transport that pauses for a second, over and over.
func steady(base http.RoundTripper, opts ...retrip.Option) *retrip.Transport {
	opts = append([]retrip.Option{
		retrip.WithBackoff(retrip.Constant(time.Second)), retrip.WithRetryQuota(nil), retrip.WithBreaker(nil),
	}, opts...)
	return retrip.New(base, opts...)
}

// watch is a Collector of one Transport, named api.
func watch(t testing.TB, rt *retrip.Transport, opts ...retripprom.Option) *retripprom.Collector {
	c := retripprom.New(opts...)
	t.Cleanup(c.Watch("api", rt))
	return c
}

// scrape returns what a Collector exports, by name and labels as they are in the text
// format. The pedantic registry fails if anything is not as it was described.
func scrape(t testing.TB, c prometheus.Collector) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(c))
	families, err := r.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+`="`+l.GetValue()+`"`)
			}
			series := f.GetName() + "{" + strings.Join(labels, ",") + "}"
			switch {
			case m.Counter != nil:
				all[series] = m.Counter.GetValue()
			case m.Gauge != nil:
				all[series] = m.Gauge.GetValue()
			case m.Histogram != nil:
				all[series] = m.Histogram.GetSampleSum()
			}
		}
	}
	return all
}

// only leaves the series whose names begin with prefix and that are not zero.
func only(all map[string]float64, prefix string) map[string]float64 {
	some := map[string]float64{}
	for series, v := range all {
		if strings.HasPrefix(series, prefix) && v != 0 {
			some[series] = v
		}
	}
	return some
}

// discard lets go of a body that a base was given.
func discard(req *http.Request) {
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
	}
}
