package retripotel_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripotel"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func Example() {
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if served.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()

	exporter := tracetest.NewInMemoryExporter() // a program has one of go.opentelemetry.io/otel/exporters
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))

	client := &http.Client{Transport: retrip.New(nil,
		retrip.WithTrace(retripotel.New(retripotel.WithTracerProvider(provider))),
		retrip.WithBackoff(retrip.Constant(time.Millisecond)))}
	ctx, span := provider.Tracer("example").Start(context.Background(), "checkout")
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = resp.Body.Close()
	span.End()

	for _, s := range exporter.GetSpans() {
		fmt.Println(s.Name, s.SpanKind)
		for _, kv := range s.Attributes {
			switch kv.Key {
			case "http.request.resend_count", "http.response.status_code", "error.type":
				fmt.Println("  ", kv.Key, kv.Value.String())
			}
		}
	}
	// Output:
	// GET client
	//    http.response.status_code 503
	//    error.type 503
	// GET client
	//    http.request.resend_count 1
	//    http.response.status_code 503
	//    error.type 503
	// GET client
	//    http.request.resend_count 2
	//    http.response.status_code 200
	// checkout internal
}

// With otelhttp below, which tells the server the trace's id and measures each attempt.
func Example_otelhttp() {
	_ = &http.Client{Transport: retrip.New(
		otelhttp.NewTransport(http.DefaultTransport),
		retrip.WithTrace(retripotel.New()))}
}

// A program that calls many hosts leaves them out of its metrics with a view of the SDK.
func Example_view() {
	perHost := attribute.NewDenyKeysFilter("server.address", "server.port", "retrip.host")
	var provider metric.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithView(sdkmetric.NewView(
		sdkmetric.Instrument{Name: "retrip.*"}, sdkmetric.Stream{AttributeFilter: perHost})))
	_ = retrip.New(nil, retrip.WithTrace(retripotel.New(retripotel.WithMeterProvider(provider))))
}
