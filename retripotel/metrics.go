package retripotel

import (
	"context"
	"net/http"

	"github.com/retrip-go/retrip"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/semconv/v1.43.0/httpconv"
)

// metrics are the instruments.
type metrics struct {
	attempts    metric.Int64Counter
	retries     metric.Int64Counter
	giveUps     metric.Int64Counter
	transitions metric.Int64Counter
	pauses      metric.Float64Histogram
	durations   metric.Float64Histogram // nil: left to otelhttp
}

// pauseBounds reach from a backoff's first step to the longest Retry-After that a
// batch job sits out, in seconds.
var pauseBounds = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}

func newMetrics(m metric.Meter, duration bool) *metrics {
	all := &metrics{
		attempts:    counter(m, "retrip.attempts", "{attempt}", "Attempts that reached the base."),
		retries:     counter(m, "retrip.retries", "{attempt}", "Attempts after the first of a request."),
		giveUps:     counter(m, "retrip.give_ups", "{request}", "Requests that ended without success."),
		transitions: counter(m, "retrip.breaker.transitions", "{transition}", "Changes of state of a host's breaker."),
	}
	var err error
	all.pauses, err = m.Float64Histogram("retrip.pause.duration", metric.WithUnit("s"),
		metric.WithDescription("Pauses before retries, as decided."), metric.WithExplicitBucketBoundaries(pauseBounds...))
	if err != nil {
		otel.Handle(err)
		all.pauses = noop.Float64Histogram{}
	}
	if duration {
		h, err := httpconv.NewClientRequestDuration(m)
		if err != nil {
			otel.Handle(err)
		}
		all.durations = h.Inst()
	}
	return all
}

func counter(m metric.Meter, name, unit, description string) metric.Int64Counter {
	c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	if err != nil {
		otel.Handle(err)
		return noop.Int64Counter{}
	}
	return c
}

// countAttempt uses the attempt's context, so that an exemplar names its span.
func (r *recorder) countAttempt(i retrip.AttemptedInfo) {
	if r.metrics == nil {
		return
	}
	m, ctx := r.metrics, i.Context
	retried := i.Attempt.Number > 1 && m.retries.Enabled(ctx)
	timed := m.durations != nil && m.durations.Enabled(ctx)
	if !retried && !timed && !m.attempts.Enabled(ctx) {
		return
	}
	with := set(appendOutcome(r.target(i.Attempt.Request, i.Host), i.Attempt))
	m.attempts.Add(ctx, 1, with)
	if retried {
		m.retries.Add(ctx, 1, with)
	}
	if timed {
		m.durations.Record(ctx, i.Duration.Seconds(), with)
	}
}

func (r *recorder) countPause(i retrip.PausingInfo) {
	ctx := i.Attempt.Request.Context()
	if r.metrics == nil || !r.metrics.pauses.Enabled(ctx) {
		return
	}
	attrs := appendOutcome(r.target(i.Attempt.Request, i.Host), i.Attempt)
	r.metrics.pauses.Record(ctx, i.Attempt.Pause.Seconds(), set(attrs))
}

func (r *recorder) countGiveUp(i retrip.GaveUpInfo) {
	ctx := i.Attempt.Request.Context()
	if r.metrics == nil || !r.metrics.giveUps.Enabled(ctx) {
		return
	}
	attrs := append(r.target(i.Attempt.Request, i.Host), reasonKey.String(i.Reason.String()))
	r.metrics.giveUps.Add(ctx, 1, set(attrs))
}

// breakerMoved belongs to the host and to no request: that on which it is called may be
// any.
func (r *recorder) breakerMoved(i retrip.BreakerMovedInfo) {
	attrs := append([]attribute.KeyValue{
		hostKey.String(withoutUserinfo(i.Host)), fromKey.String(i.From.String()), toKey.String(i.To.String()),
	}, r.attrs...)
	r.metrics.transitions.Add(context.Background(), 1, set(attrs))
}

// target has room for the attributes of what came of the request.
func (r *recorder) target(req *http.Request, host string) []attribute.KeyValue {
	return r.appendTarget(make([]attribute.KeyValue, 0, 5+len(r.attrs)), req, host)
}

func set(attrs []attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attrs...))
}
