// Package retripotel makes spans and metrics of what a retrip.Transport does, for
// OpenTelemetry.
//
//	client := &http.Client{Transport: retrip.New(nil, retrip.WithTrace(retripotel.New()))}
//
// # Spans
//
// Each attempt is a span of kind client under the caller's span, or the root of a
// trace of its own if the caller has none. From the second on it has a link to the
// attempt before it. http.request.resend_count goes on over the redirects that
// http.Client follows, though each of them begins with a first attempt. Names and
// attributes follow the semantic conventions for HTTP, version 1.43.0.
//
// A span begins before the base is called and ends when the response's headers are
// there, or the error: the time that reading the body takes is not in it. One that
// ends in a panic of the base ends with it. Only where a hook of another Trace panics
// between the two is a span never ended, and so never exported.
//
// The caller's span, if it is recording, gets an event for each pause
// (retrip.pausing) and one when the Transport gives up (retrip.gave_up).
//
// # Metrics
//
// See the README for the instruments. Each attribute has few values, except
// server.address, of which there is one for each host that is called, and which a
// view of the SDK can leave out.
//
// # What is left out
//
// No path, query, userinfo, header, body or text of an error gets into a span or a
// metric. That is why there is no url.full, which the conventions require, nor a
// description of a span's status.
//
// A Trace cannot change a request, so nothing here sends the trace's id to the
// server. Placing otelhttp below does: its spans become children of ours.
package retripotel

import (
	"fmt"
	"slices"

	"github.com/retrip-go/retrip"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the instrumentation scope.
const scope = "github.com/retrip-go/retrip/retripotel"

// An Option sets something of a Trace. If the same is set twice, the last one wins.
type Option func(*config)

type config struct {
	tracers  trace.TracerProvider // nil: no spans
	meters   metric.MeterProvider // nil: no metrics
	kind     trace.SpanKind
	attrs    []attribute.KeyValue
	methods  []string
	duration bool
}

// New returns the hooks, for retrip.WithTrace or Transport.Watch. One Trace serves any
// number of Transports, also such as are placed above each other. It should come before
// other Traces of the Transport, which then find the attempt's span in their context.
// Added to a Transport twice it makes one span for an attempt, but counts it twice.
//
// A Trace is safe for concurrent use.
func New(opts ...Option) *retrip.Trace {
	c := config{
		tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider(),
		kind: trace.SpanKindClient, methods: knownMethods,
	}
	for _, o := range opts {
		o(&c)
	}
	r := &recorder{kind: trace.WithSpanKind(c.kind), attrs: c.attrs, methods: map[string]bool{}}
	for _, m := range c.methods {
		r.methods[m] = true
	}
	tr := &retrip.Trace{}
	if c.tracers != nil {
		r.tracer = c.tracers.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))
		tr.Attempting = r.attempting
	}
	if c.meters != nil {
		r.metrics = newMetrics(c.meters.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL)), c.duration)
		tr.BreakerMoved = r.breakerMoved
	}
	if c.tracers != nil || c.meters != nil {
		tr.Attempted, tr.Pausing, tr.GaveUp = r.attempted, r.pausing, r.gaveUp
	}
	return tr
}

// WithTracerProvider sets where spans go. The default is otel.GetTracerProvider, also
// if the provider behind it is set later; nil makes no spans and no events.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) { c.tracers = p }
}

// WithMeterProvider sets where metrics go. The default is otel.GetMeterProvider, also
// if the provider behind it is set later; nil records none.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.meters = p }
}

// WithAttributes adds attributes to all spans and metrics, to tell the Transports of a
// program from each other. There are none by default.
func WithAttributes(attrs ...attribute.KeyValue) Option {
	attrs = slices.Clone(attrs)
	return func(c *config) { c.attrs = attrs }
}

// WithSpanKind sets the kind of the attempts' spans: trace.SpanKindClient, the default,
// or trace.SpanKindInternal. With otelhttp below, whose spans are of kind client too, a
// backend that counts requests by such spans counts each attempt twice unless ours are
// internal.
//
// WithSpanKind panics on any other kind.
func WithSpanKind(kind trace.SpanKind) Option {
	if kind != trace.SpanKindClient && kind != trace.SpanKindInternal {
		panic(fmt.Sprintf("retripotel: WithSpanKind(%v): neither client nor internal", kind))
	}
	return func(c *config) { c.kind = kind }
}

// WithMethods sets the methods that http.request.method may name; all others are
// "_OTHER". The default are those of RFC 9110, PATCH (RFC 5789) and QUERY. Methods are
// case-sensitive.
func WithMethods(methods ...string) Option {
	methods = slices.Clone(methods)
	return func(c *config) { c.methods = methods }
}

// WithRequestDuration records http.client.request.duration for each attempt, until its
// headers or its error. It is off by default, since otelhttp below records the same.
func WithRequestDuration() Option {
	return func(c *config) { c.duration = true }
}

// A recorder is what the hooks of one Trace share. It is not changed after New.
type recorder struct {
	tracer  trace.Tracer // nil: no spans
	metrics *metrics     // nil: none
	kind    trace.SpanStartOption
	attrs   []attribute.KeyValue
	methods map[string]bool
}

func (r *recorder) attempted(i retrip.AttemptedInfo) {
	r.endSpan(i)
	r.countAttempt(i)
}

func (r *recorder) pausing(i retrip.PausingInfo) {
	r.addPause(i)
	r.countPause(i)
}

func (r *recorder) gaveUp(i retrip.GaveUpInfo) {
	r.addGiveUp(i)
	r.countGiveUp(i)
}
