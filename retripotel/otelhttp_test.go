package retripotel_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripotel"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// flaky answers every other request with 503, and keeps the traceparent of each.
type flaky struct {
	n       atomic.Int64
	parents chan string
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	f.parents <- req.Header.Get("Traceparent")
	if f.n.Add(1)%2 == 1 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// layered is otelhttp with what it needs for its spans to go to o.
func (o *telemetry) layered(base http.RoundTripper) http.RoundTripper {
	return otelhttp.NewTransport(base, otelhttp.WithTracerProvider(o.tracer), otelhttp.WithMeterProvider(o.meter),
		otelhttp.WithPropagators(propagation.TraceContext{}))
}

func quick(o *telemetry, base http.RoundTripper, opts ...retripotel.Option) *retrip.Transport {
	return retrip.New(base, retrip.WithTrace(o.trace(opts...)), retrip.WithBackoff(retrip.Constant(time.Millisecond)))
}

func serve(t *testing.T) (*flaky, *httptest.Server) {
	t.Helper()
	f := &flaky{parents: make(chan string, 10)}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, server
}

// get closes the response's body, which ends otelhttp's span.
func get(t *testing.T, o *telemetry, client *http.Client, url string) {
	t.Helper()
	ctx, caller := o.tracer.Tracer("test").Start(t.Context(), "caller")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
	caller.End()
}

// byScope returns the spans of otelhttp, and ours.
func byScope(spans tracetest.SpanStubs) (theirs, ours tracetest.SpanStubs) {
	for _, s := range spans {
		switch {
		case strings.Contains(s.InstrumentationScope.Name, "otelhttp"):
			theirs = append(theirs, s)
		case strings.Contains(s.InstrumentationScope.Name, "retripotel"):
			ours = append(ours, s)
		}
	}
	return theirs, ours
}

func TestSpansOfOtelhttpBelowAreChildrenOfOurs(t *testing.T) {
	t.Parallel()
	for _, kind := range []trace.SpanKind{trace.SpanKindClient, trace.SpanKindInternal} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			o := newTelemetry()
			handler, server := serve(t)
			base := server.Client().Transport
			client := &http.Client{Transport: quick(o, o.layered(base), retripotel.WithSpanKind(kind))}
			get(t, o, client, server.URL)

			spans := o.all(t)
			require.Len(t, spans, 5)
			caller := spans[0].SpanContext
			theirs, ours := byScope(spans)
			require.Len(t, theirs, 2)
			require.Len(t, ours, 2)
			for i := range ours {
				require.Equal(t, caller, ours[i].Parent)
				require.Equal(t, kind, ours[i].SpanKind)
				require.Equal(t, ours[i].SpanContext, theirs[i].Parent)
				require.Equal(t, trace.SpanKindClient, theirs[i].SpanKind)
				require.Contains(t, <-handler.parents, theirs[i].SpanContext.SpanID().String(), "otelhttp tells the server")
			}
			require.Equal(t, ours[0].SpanContext, ours[1].Links[0].SpanContext)
			require.EqualValues(t, 1, attrs(ours[1].Attributes)["http.request.resend_count"])
			require.Len(t, o.histogram(t, "http.client.request.duration").DataPoints, 2, "recorded by otelhttp alone")
		})
	}
}

func TestOurSpansAreChildrenOfThatOfOtelhttpAbove(t *testing.T) {
	t.Parallel()
	o := newTelemetry()
	handler, server := serve(t)
	client := &http.Client{Transport: o.layered(quick(o, server.Client().Transport))}
	get(t, o, client, server.URL)

	spans := o.all(t)
	require.Len(t, spans, 4)
	theirs, ours := byScope(spans)
	require.Len(t, theirs, 1)
	require.Equal(t, spans[0].SpanContext, theirs[0].Parent)
	require.Len(t, ours, 2)
	for _, s := range ours {
		require.Equal(t, theirs[0].SpanContext, s.Parent)
		require.Contains(t, <-handler.parents, theirs[0].SpanContext.SpanID().String(), "the request's header is otelhttp's")
	}
	require.Equal(t, "retrip.pausing", theirs[0].Events[0].Name)
}

func TestAloneItTellsTheServerNothing(t *testing.T) {
	t.Parallel()
	o := newTelemetry()
	handler, server := serve(t)
	get(t, o, &http.Client{Transport: quick(o, server.Client().Transport)}, server.URL)
	require.Empty(t, <-handler.parents)
	require.Empty(t, <-handler.parents)
}

// Each hop is a RoundTrip of its own, whose first attempt has no link.
func TestRedirectsCountAsResends(t *testing.T) {
	t.Parallel()
	o := newTelemetry()
	var n atomic.Int64
	statuses := []int{503, 302, 307, 503, 503, 200}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Location", "/next")
		w.WriteHeader(statuses[n.Add(1)-1])
	}))
	defer server.Close()
	get(t, o, &http.Client{Transport: quick(o, server.Client().Transport)}, server.URL)
	_, ours := byScope(o.all(t))
	require.Len(t, ours, len(statuses))
	linked := []bool{false, true, false, false, true, true}
	for i, status := range statuses {
		got := attrs(ours[i].Attributes)
		require.EqualValues(t, status, got["http.response.status_code"])
		resent, _ := got["http.request.resend_count"].(int64)
		require.EqualValues(t, i, resent)
		require.Equal(t, linked[i], len(ours[i].Links) == 1)
	}
}

func TestWhatIsNotSampledKeepsItsParent(t *testing.T) {
	t.Parallel()
	var seen []trace.SpanContext
	p := sdktrace.NewTracerProvider(sdktrace.WithSampler(watch{&seen}))
	rt := retrip.New(play(answer(503), answer(200)), retrip.WithBackoff(retrip.Constant(0)),
		retrip.WithTrace(retripotel.New(retripotel.WithTracerProvider(p), retripotel.WithMeterProvider(nil))))
	ctx, caller := p.Tracer("test").Start(t.Context(), "caller")
	send(t, rt, request(t, http.MethodGet, "http://example.com/").WithContext(ctx))
	require.Equal(t, []trace.SpanContext{{}, caller.SpanContext(), caller.SpanContext()}, seen)
}

// watch is a sampler that takes nothing, and keeps what it saw as parents.
type watch struct{ parents *[]trace.SpanContext }

func (w watch) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	*w.parents = append(*w.parents, trace.SpanContextFromContext(p.ParentContext))
	return sdktrace.SamplingResult{Decision: sdktrace.Drop}
}

func (watch) Description() string { return "watch" }
