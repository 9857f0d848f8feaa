package retripotel_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripotel"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// A roundTrip is a base made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A step is what a scripted base does with one attempt.
type step func(*http.Request) (*http.Response, error)

// A script is a base that plays one step an attempt; the last one repeats.
type script struct {
	steps []step

	mu sync.Mutex
	n  int
}

func play(steps ...step) *script { return &script{steps: steps} }

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
	}
	s.mu.Lock()
	next := s.steps[min(s.n, len(s.steps)-1)]
	s.n++
	s.mu.Unlock()
	return next(req)
}

func answer(status int) step {
	return func(req *http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{}, Body: http.NoBody, Request: req,
		}, nil
	}
}

func fail(err error) step {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

// after is a step that takes its time.
func after(d time.Duration, then step) step {
	return func(req *http.Request) (*http.Response, error) {
		time.Sleep(d)
		return then(req)
	}
}

// telemetry is an SDK in memory.
type telemetry struct {
	spans  *tracetest.InMemoryExporter
	begun  *tracetest.SpanRecorder
	tracer *sdktrace.TracerProvider
	reader *sdkmetric.ManualReader
	meter  *sdkmetric.MeterProvider
}

func newTelemetry(views ...sdkmetric.View) *telemetry {
	o := &telemetry{spans: tracetest.NewInMemoryExporter(), begun: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	o.tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(o.spans), sdktrace.WithSpanProcessor(o.begun))
	o.meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(o.reader), sdkmetric.WithView(views...))
	return o
}

// trace returns hooks that report to o.
func (o *telemetry) trace(opts ...retripotel.Option) *retrip.Trace {
	return retripotel.New(append([]retripotel.Option{
		retripotel.WithTracerProvider(o.tracer), retripotel.WithMeterProvider(o.meter),
	}, opts...)...)
}

// transport retries every minute, without a quota or a breaker.
func (o *telemetry) transport(base http.RoundTripper, opts ...retrip.Option) *retrip.Transport {
	return retrip.New(base, append([]retrip.Option{
		retrip.WithTrace(o.trace()), retrip.WithBackoff(retrip.Constant(time.Minute)), retrip.WithBudget(time.Hour),
		retrip.WithRetryQuota(nil), retrip.WithBreaker(nil),
	}, opts...)...)
}

// all returns the exported spans in the order in which they began. It fails if one that
// began was not exported, or not once.
func (o *telemetry) all(t testing.TB) tracetest.SpanStubs {
	t.Helper()
	exported := map[trace.SpanID]tracetest.SpanStub{}
	for _, s := range o.spans.GetSpans() {
		exported[s.SpanContext.SpanID()] = s
	}
	require.Len(t, o.spans.GetSpans(), len(exported))
	var all tracetest.SpanStubs
	for _, s := range o.begun.Started() {
		require.Contains(t, exported, s.SpanContext().SpanID(), "span %q has not ended", s.Name())
		all = append(all, exported[s.SpanContext().SpanID()])
	}
	return all
}

// tree returns the path of each span: the servers, or names, from the root down.
func tree(spans tracetest.SpanStubs) []string {
	paths := map[trace.SpanID]string{}
	var all []string
	for _, s := range spans {
		a, path := attrs(s.Attributes), s.Name
		if address, ok := a["server.address"]; ok {
			path = fmt.Sprint(address, " ", a["http.response.status_code"])
		}
		if resent, ok := a["http.request.resend_count"]; ok {
			path += fmt.Sprint(" resent ", resent)
		}
		if above, ok := paths[s.Parent.SpanID()]; ok {
			path = above + " > " + path
		}
		paths[s.SpanContext.SpanID()] = path
		all = append(all, path)
	}
	return all
}

// points returns what a counter counted: "http.request.method=GET,..." to a number.
func (o *telemetry) points(t *testing.T, name string) map[string]int64 {
	t.Helper()
	got := map[string]int64{}
	sum, ok := o.metric(t, name).Data.(metricdata.Sum[int64])
	require.True(t, ok, "%s is a counter", name)
	require.True(t, sum.IsMonotonic)
	for _, p := range sum.DataPoints {
		got[p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Value
	}
	return got
}

func (o *telemetry) metric(t *testing.T, name string) metricdata.Metrics {
	t.Helper()
	for _, m := range o.collect(t) {
		if m.Name == name {
			return m
		}
	}
	require.Fail(t, "nothing was recorded for "+name)
	return metricdata.Metrics{}
}

func (o *telemetry) collect(t *testing.T) []metricdata.Metrics {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, o.reader.Collect(t.Context(), &rm))
	var all []metricdata.Metrics
	for _, scope := range rm.ScopeMetrics {
		all = append(all, scope.Metrics...)
	}
	return all
}

// attrs are attributes by their keys, with the values of Go.
func attrs(kvs []attribute.KeyValue) map[string]any {
	m := map[string]any{}
	for _, kv := range kvs {
		m[string(kv.Key)] = kv.Value.AsInterface()
	}
	return m
}

func request(t testing.TB, method, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("hello"))
	require.NoError(t, err)
	return req
}

// send makes the request and closes its response.
func send(t testing.TB, rt http.RoundTripper, req *http.Request) int {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}
