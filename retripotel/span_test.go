package retripotel_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripotel"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

func TestEachAttemptIsASpanUnderTheCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const took = 100 * time.Millisecond
		o, start := newTelemetry(), time.Now()
		rt := o.transport(play(after(took, answer(503)), after(2*took, fail(syscall.ECONNRESET)), after(3*took, answer(200))))
		ctx, caller := o.tracer.Tracer("test").Start(t.Context(), "caller")
		require.Equal(t, 200, send(t, rt, request(t, http.MethodPut, "https://user:pw@Example.com:8443/path?q=1").WithContext(ctx)))
		time.Sleep(time.Hour)
		caller.End()

		spans := o.all(t)
		require.Len(t, spans, 4)
		began, ended := []time.Duration{0, time.Minute + took, 2*time.Minute + 3*took}, []time.Duration{took, time.Minute + 3*took, 2*time.Minute + 6*took}
		outcome := []map[string]any{
			{"http.response.status_code": int64(503), "error.type": "503", "network.protocol.version": "1.1"},
			{"error.type": syscall.ECONNRESET.Error(), "http.request.resend_count": int64(1)},
			{"http.response.status_code": int64(200), "network.protocol.version": "1.1", "http.request.resend_count": int64(2)},
		}
		for i, s := range spans[1:] {
			require.Equal(t, "PUT", s.Name)
			require.Equal(t, trace.SpanKindClient, s.SpanKind)
			require.Equal(t, caller.SpanContext(), s.Parent)
			require.Equal(t, start.Add(began[i]), s.StartTime)
			require.Equal(t, start.Add(ended[i]), s.EndTime, "headers end it, not the body")
			want := outcome[i]
			want["http.request.method"], want["url.scheme"] = "PUT", "https"
			want["server.address"], want["server.port"] = "example.com", int64(8443)
			require.Equal(t, want, attrs(s.Attributes))
			require.Empty(t, s.Events)
			require.Equal(t, sdktrace.Status{Code: []codes.Code{codes.Error, codes.Error, codes.Unset}[i]}, s.Status)
			require.Equal(t, "github.com/retrip-go/retrip/retripotel", s.InstrumentationScope.Name)
			require.Equal(t, "https://opentelemetry.io/schemas/1.43.0", s.InstrumentationScope.SchemaURL)
			if i == 0 {
				require.Empty(t, s.Links)
				continue
			}
			require.Len(t, s.Links, 1)
			require.Equal(t, spans[i].SpanContext, s.Links[0].SpanContext, "the attempt before it")
		}
		require.Equal(t, codes.Unset, spans[0].Status.Code, "the caller's span is its own")
	})
}

func TestTheCallersSpanHearsOfPausesAndOfTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, start := newTelemetry(), time.Now()
		rt := o.transport(play(after(time.Second, answer(503)), fail(syscall.ECONNRESET)), retrip.WithMaxAttempts(2))
		ctx, caller := o.tracer.Tracer("test").Start(t.Context(), "caller")
		_, err := rt.RoundTrip(request(t, http.MethodPut, "http://example.com/").WithContext(ctx))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		caller.End()

		events := o.all(t)[0].Events
		require.Len(t, events, 2)
		require.Equal(t, "retrip.pausing", events[0].Name)
		require.Equal(t, start.Add(time.Second), events[0].Time)
		require.Equal(t, map[string]any{
			"retrip.attempt": int64(1), "retrip.pause": 60.0, "http.response.status_code": int64(503), "error.type": "503",
		}, attrs(events[0].Attributes))
		require.Equal(t, "retrip.gave_up", events[1].Name)
		require.Equal(t, start.Add(time.Minute+time.Second), events[1].Time)
		require.Equal(t, map[string]any{"retrip.reason": "attempts", "retrip.attempts": int64(2)}, attrs(events[1].Attributes))
	})
}

func TestWithoutACallersSpanAttemptsAreTracesThatAreLinked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newTelemetry()
		send(t, o.transport(play(answer(503), answer(503), answer(200))), request(t, http.MethodGet, "http://example.com/"))
		spans := o.all(t)
		require.Len(t, spans, 3)
		for i, s := range spans {
			require.False(t, s.Parent.IsValid())
			if i > 0 {
				require.NotEqual(t, spans[i-1].SpanContext.TraceID(), s.SpanContext.TraceID())
				require.Equal(t, spans[i-1].SpanContext, s.Links[0].SpanContext)
			}
		}
	})
}

func TestWithoutAnSDKTheCallersSpanStaysInTheContext(t *testing.T) {
	t.Parallel()
	o := newTelemetry()
	var seen []trace.Span
	rt := retrip.New(roundTrip(func(req *http.Request) (*http.Response, error) {
		seen = append(seen, trace.SpanFromContext(req.Context()))
		return answer(503)(req)
	}), retrip.WithMaxAttempts(2), retrip.WithBackoff(retrip.Constant(0)), retrip.WithTrace(retripotel.New(
		retripotel.WithTracerProvider(noop.NewTracerProvider()), retripotel.WithMeterProvider(metricnoop.NewMeterProvider()))))
	ctx, caller := o.tracer.Tracer("test").Start(t.Context(), "caller")
	send(t, rt, request(t, http.MethodGet, "http://example.com/").WithContext(ctx))
	require.Equal(t, []trace.Span{caller, caller}, seen)
	require.True(t, caller.IsRecording(), "nobody ended it")
	caller.End()
	require.Len(t, o.all(t)[0].Events, 2)
}

func TestSpansAreNamedByMethodsThatAreKnown(t *testing.T) {
	t.Parallel()
	tests := []struct {
		method, name, attr, original string
		known                        []string // nil: the default
	}{
		{"", "GET", "GET", "", nil},
		{"GET", "GET", "GET", "", nil},
		{"QUERY", "QUERY", "QUERY", "", nil},
		{"PATCH", "PATCH", "PATCH", "", nil},
		{"get", "HTTP", "_OTHER", "get", nil},
		{"PROPFIND", "HTTP", "_OTHER", "PROPFIND", nil},
		{"PROPFIND", "PROPFIND", "PROPFIND", "", []string{"PROPFIND"}},
		{"GET", "HTTP", "_OTHER", "GET", []string{"PROPFIND"}},
		{"GET", "HTTP", "_OTHER", "GET", []string{}},
	}
	for _, tt := range tests {
		t.Run(tt.method, func(t *testing.T) {
			t.Parallel()
			o, opts := newTelemetry(), []retripotel.Option(nil)
			if tt.known != nil {
				opts = append(opts, retripotel.WithMethods(tt.known...))
			}
			rt := retrip.New(play(answer(200)), retrip.WithTrace(o.trace(opts...)))
			req := request(t, http.MethodGet, "http://example.com/")
			req.Method = tt.method
			send(t, rt, req)
			span := o.all(t)[0]
			require.Equal(t, tt.name, span.Name)
			got := attrs(span.Attributes)
			require.Equal(t, tt.attr, got["http.request.method"])
			original, _ := got["http.request.method_original"].(string)
			require.Equal(t, tt.original, original)
		})
	}
}

func TestServersAreNamedByTheURL(t *testing.T) {
	t.Parallel()
	byTenant := retrip.WithHosts(10, func(*http.Request) string { return "tenant" })
	tests := []struct {
		url, address string
		port         int64
		opts         []retrip.Option
	}{
		{"http://example.com/", "example.com", 80, nil},
		{"https://example.com/", "example.com", 443, nil},
		{"https://EXAMPLE.com:8443/", "example.com", 8443, nil},
		{"http://192.0.2.1:8080/", "192.0.2.1", 8080, nil},
		{"http://[2001:DB8::1]/", "2001:db8::1", 80, nil},
		{"http://[2001:db8::1]:8080/", "2001:db8::1", 8080, nil},
		{"http://example.com:/", "example.com", 80, nil},
		{"other://example.com/", "example.com", 0, nil},
		{"https://Example.com:8443/", "example.com", 8443, []retrip.Option{byTenant}},
	}
	for _, tt := range tests {
		t.Run(tt.url, func(t *testing.T) {
			t.Parallel()
			o := newTelemetry()
			req := request(t, http.MethodGet, tt.url)
			req.Host = "virtual.example.org"
			send(t, o.transport(play(answer(200)), tt.opts...), req)
			got := attrs(o.all(t)[0].Attributes)
			require.Equal(t, tt.address, got["server.address"])
			port, _ := got["server.port"].(int64)
			require.Equal(t, tt.port, port)
		})
	}
}

func TestAStatusIsAnErrorFrom400OnOrBelow100(t *testing.T) {
	t.Parallel()
	for status, failed := range map[int]bool{
		0: true, 99: true, 101: false, 200: false, 204: false, 304: false, 399: false,
		400: true, 404: true, 500: true, 501: true, 999: true,
	} {
		o := newTelemetry()
		send(t, o.transport(play(answer(status)), retrip.WithMaxAttempts(1)), request(t, http.MethodGet, "http://example.com/"))
		span := o.all(t)[0]
		require.Equal(t, failed, span.Status.Code == codes.Error, status)
		_, has := attrs(span.Attributes)["error.type"]
		require.Equal(t, failed, has, status)
	}
}

// A streamError is found as net/http's HTTP/2 stream error is, by the shape of what it
// is asked for.
type streamError uint32

func (e streamError) Error() string { return "stream error" }

func (e streamError) As(target any) bool {
	v := reflect.ValueOf(target).Elem()
	if v.Kind() != reflect.Struct || !v.FieldByName("StreamID").IsValid() {
		return false
	}
	v.FieldByName("Code").SetUint(uint64(e))
	return true
}

func TestErrorsAreNamedByTheirKind(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want string
	}{
		{syscall.ECONNREFUSED, syscall.ECONNREFUSED.Error()},
		{io.ErrUnexpectedEOF, "connection closed before the response"},
		{os.ErrDeadlineExceeded, "timeout"},
		{&net.DNSError{IsNotFound: true, Name: "secret.example.com"}, "no such host"},
		{&retrip.OpenError{Host: "example.com"}, "breaker open"},
		{x509.UnknownAuthorityError{}, "certificate not trusted"},
		{streamError(8), "HTTP/2 stream error"},
		{streamError(123456789), "HTTP/2 stream error"},
		{errors.New("GET https://example.com/secret"), "*errors.errorString"},
	} {
		o := newTelemetry()
		rt := o.transport(play(fail(tt.err)), retrip.WithMaxAttempts(1))
		_, err := rt.RoundTrip(request(t, http.MethodGet, "http://example.com/"))
		require.Error(t, err)
		require.Equal(t, tt.want, attrs(o.all(t)[0].Attributes)["error.type"])
		require.Equal(t, sdktrace.Status{Code: codes.Error}, o.all(t)[0].Status)
	}
}

func TestAPanicOfTheBaseEndsTheSpan(t *testing.T) {
	t.Parallel()
	o := newTelemetry()
	rt := o.transport(play(func(*http.Request) (*http.Response, error) { panic("boom") }))
	require.PanicsWithValue(t, "boom", func() { _, _ = rt.RoundTrip(request(t, http.MethodGet, "http://example.com/")) })
	spans := o.all(t)
	require.Len(t, spans, 1)
	require.Equal(t, "panic", attrs(spans[0].Attributes)["error.type"])
	require.Equal(t, codes.Error, spans[0].Status.Code)
	require.Len(t, o.points(t, "retrip.attempts"), 1)
}

func TestACancelledAttemptEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newTelemetry()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		rt := o.transport(play(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, context.Cause(req.Context())
		}))
		_, err := rt.RoundTrip(request(t, http.MethodGet, "http://example.com/").WithContext(ctx))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		span := o.all(t)[0]
		require.Equal(t, time.Second, span.EndTime.Sub(span.StartTime))
		require.Equal(t, "timeout", attrs(span.Attributes)["error.type"])
	})
}

// The lower Transport sends each attempt of the upper one once.
func TestTransportsAboveEachOtherMakeATree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newTelemetry()
		lower := o.transport(play(answer(503), answer(200)))
		ctx, caller := o.tracer.Tracer("test").Start(t.Context(), "caller")
		require.Equal(t, 200, send(t, o.transport(lower), request(t, http.MethodGet, "http://example.com/").WithContext(ctx)))
		caller.End()
		require.Equal(t, []string{
			"caller",
			"caller > example.com 503", "caller > example.com 503 > example.com 503",
			"caller > example.com 200 resent 1", "caller > example.com 200 resent 1 > example.com 200",
		}, tree(o.all(t)))
	})
}

// A lower Transport retries requests to another host, such as a gateway's.
func TestRetriesWithinAnAttemptAreItsChildren(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"one Trace", "a Trace each"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := newTelemetry()
				upper, lower := o.trace(), o.trace()
				if name == "one Trace" {
					lower = upper
				}
				below := retrip.New(play(answer(503), answer(503), answer(503), answer(200)), retrip.WithTrace(lower),
					retrip.WithMaxAttempts(2), retrip.WithBackoff(retrip.Constant(time.Second)))
				gateway := roundTrip(func(req *http.Request) (*http.Response, error) {
					req = req.Clone(req.Context())
					req.URL.Host = "gateway"
					return below.RoundTrip(req)
				})
				above := retrip.New(gateway, retrip.WithTrace(upper))
				ctx, caller := o.tracer.Tracer("test").Start(t.Context(), "caller")
				require.Equal(t, 200, send(t, above, request(t, http.MethodGet, "http://example.com/").WithContext(ctx)))
				caller.End()
				require.Equal(t, []string{
					"caller",
					"caller > example.com 503",
					"caller > example.com 503 > gateway 503",
					"caller > example.com 503 > gateway 503 resent 1",
					"caller > example.com 200 resent 1",
					"caller > example.com 200 resent 1 > gateway 503",
					"caller > example.com 200 resent 1 > gateway 200 resent 1",
				}, tree(o.all(t)))
			})
		})
	}
}

func TestATraceThatIsAddedTwiceMakesOneSpan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newTelemetry()
		tr := o.trace()
		rt := o.transport(play(answer(503), answer(200)), retrip.WithTrace(nil), retrip.WithTrace(tr))
		defer rt.Watch(tr)()
		send(t, rt, request(t, http.MethodGet, "http://example.com/"))
		require.Equal(t, []string{"example.com 503", "example.com 200 resent 1"}, tree(o.all(t)))
	})
}

func TestRequestsAtOnceKeepTheirSpansApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 50
		o := newTelemetry()
		rt := o.transport(roundTrip(func(req *http.Request) (*http.Response, error) {
			time.Sleep(time.Second)
			return answer(map[bool]int{true: 503, false: 200}[retrip.AttemptNumber(req.Context()) < 3])(req)
		}))
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				ctx, caller := o.tracer.Tracer("test").Start(t.Context(), "caller")
				defer caller.End()
				resp, err := rt.RoundTrip(request(t, http.MethodGet, "http://example.com/").WithContext(ctx))
				if err == nil {
					_ = resp.Body.Close()
				}
			})
		}
		wg.Wait()
		paths := map[string]int{}
		for _, path := range tree(o.all(t)) {
			paths[path]++
		}
		require.Equal(t, map[string]int{
			"caller": n, "caller > example.com 503": n,
			"caller > example.com 503 resent 1": n, "caller > example.com 200 resent 2": n,
		}, paths)
		traces := map[trace.TraceID]int{}
		for _, s := range o.all(t) {
			traces[s.SpanContext.TraceID()]++
			for _, l := range s.Links {
				require.Equal(t, s.SpanContext.TraceID(), l.SpanContext.TraceID())
			}
		}
		require.Len(t, traces, n)
		for _, spans := range traces {
			require.Equal(t, 4, spans)
		}
	})
}

func TestSpansOfKindInternal(t *testing.T) {
	t.Parallel()
	o := newTelemetry()
	rt := retrip.New(play(answer(200)), retrip.WithTrace(o.trace(retripotel.WithSpanKind(trace.SpanKindInternal))))
	send(t, rt, request(t, http.MethodGet, "http://example.com/"))
	require.Equal(t, trace.SpanKindInternal, o.all(t)[0].SpanKind)
	require.PanicsWithValue(t, "retripotel: WithSpanKind(server): neither client nor internal", func() {
		retripotel.WithSpanKind(trace.SpanKindServer)
	})
}

func TestAttributesOfTheCallersAreOnSpansAndMetrics(t *testing.T) {
	t.Parallel()
	o := newTelemetry()
	rt := retrip.New(play(answer(200)), retrip.WithTrace(o.trace(retripotel.WithAttributes(attribute.String("client", "payments")))))
	send(t, rt, request(t, http.MethodGet, "http://example.com/"))
	require.Equal(t, "payments", attrs(o.all(t)[0].Attributes)["client"])
	for set := range o.points(t, "retrip.attempts") {
		require.Contains(t, set, "client=payments")
	}
}

// late is where the spans go of a Trace that was made before there were providers,
// which a process can see only once.
var late = sync.OnceValues(func() (*telemetry, *retrip.Trace) {
	tr, o := retripotel.New(), newTelemetry()
	otel.SetTracerProvider(o.tracer)
	otel.SetMeterProvider(o.meter)
	return o, tr
})

func TestTheGlobalProvidersMayBeSetLater(t *testing.T) {
	t.Parallel()
	o, tr := late()
	before := len(o.all(t))
	send(t, retrip.New(play(answer(200)), retrip.WithTrace(tr)), request(t, http.MethodGet, "http://example.com/"))
	require.Len(t, o.all(t), before+1)
	require.NotEmpty(t, o.points(t, "retrip.attempts"))
}
