package retripotel

import (
	"context"
	"net/http"

	"github.com/retrip-go/retrip"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// An attempt is what the context of an attempt carries, under the recorder as its key,
// to the attempt's end and to the next attempt.
type attempt struct {
	request *http.Request // tells it from an attempt of a Transport above
	number  int
	parent  trace.Span // the caller's
	span    trace.Span
}

// of returns the attempt of a request that ctx belongs to; nil if that has no span.
func (r *recorder) of(req *http.Request, ctx context.Context) *attempt {
	if a, _ := ctx.Value(r).(*attempt); a != nil && a.request == req {
		return a
	}
	return nil
}

// attempting starts the attempt's span. ctx is the previous attempt's, if there was
// one, so the caller's span is put back first.
func (r *recorder) attempting(ctx context.Context, i retrip.AttemptingInfo) context.Context {
	parent := trace.SpanFromContext(ctx)
	opts := append(make([]trace.SpanStartOption, 0, 3), r.kind, trace.WithAttributes(r.startAttributes(i)...))
	outer := ctx
	if last := r.of(i.Request, ctx); last != nil {
		if last.number == i.Number {
			return ctx // the Trace was added twice
		}
		parent = last.parent
		outer = trace.ContextWithSpan(ctx, parent)
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: last.span.SpanContext()}))
	}
	made, span := r.tracer.Start(outer, r.spanName(i.Request), opts...)
	if span.SpanContext().Equal(parent.SpanContext()) {
		return ctx // without an SDK the tracer makes none
	}
	return context.WithValue(made, r, &attempt{i.Request, i.Number, parent, span})
}

// spanName is the method alone, as the conventions want it where there is no template
// of the path.
func (r *recorder) spanName(req *http.Request) string {
	if m := method(req); r.methods[m] {
		return m
	}
	return "HTTP"
}

// startAttributes are those that a sampler may decide by.
func (r *recorder) startAttributes(i retrip.AttemptingInfo) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 6+len(r.attrs))
	attrs = r.appendTarget(attrs, i.Request, i.Host)
	if m := method(i.Request); !r.methods[m] {
		attrs = append(attrs, semconv.HTTPRequestMethodOriginal(m))
	}
	if i.Request.URL.Scheme != "" {
		attrs = append(attrs, semconv.URLScheme(i.Request.URL.Scheme))
	}
	if n := resends(i.Request, i.Number); n > 0 {
		attrs = append(attrs, semconv.HTTPRequestResendCount(n))
	}
	return attrs
}

// resends counts what was sent before: the conventions want redirects in it, each of
// which http.Client makes a RoundTrip of its own.
func resends(req *http.Request, number int) int {
	n := number - 1
	for req != nil && req.Response != nil {
		n += max(1, len(retrip.History(req.Response)))
		req = req.Response.Request
	}
	return n
}

func (r *recorder) endSpan(i retrip.AttemptedInfo) {
	a := r.of(i.Attempt.Request, i.Context)
	if a == nil {
		return
	}
	if a.span.IsRecording() {
		attrs := appendOutcome(make([]attribute.KeyValue, 0, 3), i.Attempt)
		if resp := i.Attempt.Response; resp != nil && resp.ProtoMajor > 0 {
			attrs = append(attrs, semconv.NetworkProtocolVersion(version(resp)))
		}
		a.span.SetAttributes(attrs...)
		if failed(i.Attempt) {
			a.span.SetStatus(codes.Error, "") // a description would be the error's text
		}
	}
	a.span.End()
}

// addPause tells the caller's span of a pause.
func (r *recorder) addPause(i retrip.PausingInfo) {
	span := r.callers(i.Attempt.Request)
	if span == nil {
		return
	}
	attrs := []attribute.KeyValue{
		attribute.Int("retrip.attempt", i.Attempt.Number),
		attribute.Float64("retrip.pause", i.Attempt.Pause.Seconds()),
	}
	span.AddEvent("retrip.pausing", trace.WithAttributes(appendOutcome(attrs, i.Attempt)...))
}

// addGiveUp tells the caller's span that there is no further attempt.
func (r *recorder) addGiveUp(i retrip.GaveUpInfo) {
	span := r.callers(i.Attempt.Request)
	if span == nil {
		return
	}
	span.AddEvent("retrip.gave_up", trace.WithAttributes(
		reasonKey.String(i.Reason.String()),
		attribute.Int("retrip.attempts", len(i.Attempts)),
	))
}

// callers returns the span that a request was made under; nil if it records nothing.
func (r *recorder) callers(req *http.Request) trace.Span {
	if r.tracer == nil {
		return nil
	}
	if span := trace.SpanFromContext(req.Context()); span.IsRecording() {
		return span
	}
	return nil
}
