package retripotel_test

import (
	"net/http"
	"testing"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripotel"
	"github.com/stretchr/testify/require"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"
)

// BenchmarkGet is a GET that succeeds at once, over a stub.
func BenchmarkGet(b *testing.B) {
	exporter := tracetest.NewInMemoryExporter()
	dropped := retripotel.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())))
	sampled := retripotel.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))
	measured := retripotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())))
	noSpans, noMetrics := retripotel.WithTracerProvider(nil), retripotel.WithMeterProvider(nil)
	for _, bb := range []struct {
		name string
		opts []retrip.Option
	}{
		{"trace=none", nil},
		{"spans=global/metrics=global", with()}, // and no SDK
		{"spans=noop/metrics=noop", with(retripotel.WithTracerProvider(noop.NewTracerProvider()),
			retripotel.WithMeterProvider(metricnoop.NewMeterProvider()))},
		{"spans=dropped/metrics=off", with(dropped, noMetrics)},
		{"spans=off/metrics=on", with(noSpans, measured)},
		{"spans=dropped/metrics=on", with(dropped, measured)},
		{"spans=memory/metrics=off", with(sampled, noMetrics)},
		{"spans=memory/metrics=on", with(sampled, measured)},
	} {
		b.Run(bb.name, func(b *testing.B) {
			resp := &http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody}
			rt := retrip.New(roundTrip(func(*http.Request) (*http.Response, error) { return resp, nil }), bb.opts...)
			req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "https://example.com/", nil)
			require.NoError(b, err)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if _, err := rt.RoundTrip(req); err != nil {
					b.Fatal(err)
				}
				if n%1000 == 0 {
					exporter.Reset()
				}
			}
		})
	}
}

func with(opts ...retripotel.Option) []retrip.Option {
	return []retrip.Option{retrip.WithTrace(retripotel.New(opts...))}
}
