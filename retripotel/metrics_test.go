package retripotel_test

import (
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripotel"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

func TestMetricsCountAttemptsRetriesAndEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newTelemetry()
		rt := o.transport(play(answer(503), fail(syscall.ECONNRESET), answer(503), answer(200)), retrip.WithMaxAttempts(3))
		require.Equal(t, 503, send(t, rt, request(t, http.MethodPut, "http://example.com:8080/")))
		require.Equal(t, 200, send(t, rt, request(t, http.MethodPut, "http://example.com:8080/")))

		const server = ",server.address=example.com,server.port=8080"
		reset := "error.type=" + syscall.ECONNRESET.Error() + ",http.request.method=PUT"
		unavailable := "error.type=503,http.request.method=PUT,http.response.status_code=503"
		require.Equal(t, map[string]int64{
			unavailable + server: 2,
			reset + server:       1,
			"http.request.method=PUT,http.response.status_code=200" + server: 1,
		}, o.points(t, "retrip.attempts"))
		require.Equal(t, map[string]int64{unavailable + server: 1, reset + server: 1}, o.points(t, "retrip.retries"))
		require.Equal(t, map[string]int64{"http.request.method=PUT,retrip.reason=attempts" + server: 1}, o.points(t, "retrip.give_ups"))

		pauses := o.histogram(t, "retrip.pause.duration")
		require.Len(t, pauses.DataPoints, 2, "by what they follow")
		for _, p := range pauses.DataPoints {
			require.Equal(t, uint64(1), p.Count)
			require.Equal(t, 60.0, p.Sum)
			require.Contains(t, p.Bounds, 3600.0)
		}
		for _, m := range o.collect(t) {
			require.NotEqual(t, "http.client.request.duration", m.Name, "that is otelhttp's")
		}
	})
}

func TestEveryInstrumentHasItsUnitAndSaysWhatItIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newTelemetry()
		rt := o.transport(play(answer(503)), retrip.WithMaxAttempts(2),
			retrip.WithTrace(nil), retrip.WithTrace(o.trace(retripotel.WithRequestDuration())),
			retrip.WithBreaker(&retrip.Breaker{Failures: 2, Successes: 1, Probes: 1, Cooldowns: []time.Duration{time.Minute}}))
		send(t, rt, request(t, http.MethodPut, "http://example.com/"))
		units := map[string]string{}
		for _, m := range o.collect(t) {
			units[m.Name] = m.Unit
			require.NotEmpty(t, m.Description, m.Name)
		}
		require.Equal(t, map[string]string{
			"retrip.attempts": "{attempt}", "retrip.retries": "{attempt}", "retrip.give_ups": "{request}",
			"retrip.pause.duration": "s", "retrip.breaker.transitions": "{transition}", "http.client.request.duration": "s",
		}, units)
	})
}

func TestTheDurationOfEachAttemptOnRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newTelemetry()
		rt := retrip.New(play(after(time.Second, answer(503)), after(2*time.Second, answer(200))),
			retrip.WithTrace(o.trace(retripotel.WithRequestDuration())))
		send(t, rt, request(t, http.MethodGet, "https://example.com/"))
		got := map[string]float64{}
		for _, p := range o.histogram(t, "http.client.request.duration").DataPoints {
			require.Equal(t, uint64(1), p.Count)
			require.Equal(t, []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}, p.Bounds)
			got[p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Sum
		}
		require.Equal(t, map[string]float64{
			"error.type=503,http.request.method=GET,http.response.status_code=503,server.address=example.com,server.port=443": 1,
			"http.request.method=GET,http.response.status_code=200,server.address=example.com,server.port=443":                2,
		}, got)
	})
}

func TestMovesOfABreakerAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newTelemetry()
		rt := o.transport(play(answer(503), answer(200)), retrip.WithMaxAttempts(1),
			retrip.WithBreaker(&retrip.Breaker{Failures: 1, Successes: 1, Probes: 1, Cooldowns: []time.Duration{time.Minute}}))
		send(t, rt, request(t, http.MethodGet, "http://Example.com:8080/"))
		_, err := rt.RoundTrip(request(t, http.MethodGet, "http://Example.com:8080/"))
		require.ErrorAs(t, err, new(*retrip.OpenError))
		time.Sleep(time.Minute)
		send(t, rt, request(t, http.MethodGet, "http://Example.com:8080/"))
		require.Equal(t, map[string]int64{
			"retrip.breaker.from=closed,retrip.breaker.to=open,retrip.host=example.com:8080":      1,
			"retrip.breaker.from=open,retrip.breaker.to=half-open,retrip.host=example.com:8080":   1,
			"retrip.breaker.from=half-open,retrip.breaker.to=closed,retrip.host=example.com:8080": 1,
		}, o.points(t, "retrip.breaker.transitions"))
		require.Equal(t, int64(1), o.points(t, "retrip.give_ups")["http.request.method=GET,retrip.reason=breaker,server.address=example.com,server.port=8080"])
		require.Len(t, o.all(t), 2, "what the breaker refused is no attempt")
	})
}

func TestAViewLeavesOutTheServers(t *testing.T) {
	t.Parallel()
	o := newTelemetry(sdkmetric.NewView(sdkmetric.Instrument{Name: "retrip.*"},
		sdkmetric.Stream{AttributeFilter: attribute.NewDenyKeysFilter("server.address", "server.port", "retrip.host")}))
	for _, host := range []string{"a.example", "b.example", "c.example"} {
		send(t, o.transport(play(answer(200))), request(t, http.MethodGet, "http://"+host+"/"))
	}
	require.Equal(t, map[string]int64{"http.request.method=GET,http.response.status_code=200": 3}, o.points(t, "retrip.attempts"))
}

func TestNilProvidersSwitchOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newTelemetry()
		ctx, caller := o.tracer.Tracer("test").Start(t.Context(), "caller")
		breaker := retrip.WithBreaker(&retrip.Breaker{Failures: 2, Successes: 1, Probes: 1, Cooldowns: []time.Duration{time.Minute}})
		use := func(opts ...retripotel.Option) {
			rt := retrip.New(play(answer(503)), breaker, retrip.WithMaxAttempts(2), retrip.WithTrace(o.trace(opts...)))
			require.Equal(t, 503, send(t, rt, request(t, http.MethodGet, "http://example.com/").WithContext(ctx)))
		}
		use(retripotel.WithTracerProvider(nil), retripotel.WithMeterProvider(nil))
		require.Len(t, o.begun.Started(), 1)
		require.Empty(t, o.collect(t))
		use(retripotel.WithTracerProvider(nil))
		require.Len(t, o.begun.Started(), 1)
		require.Len(t, o.points(t, "retrip.attempts"), 1)
		use(retripotel.WithMeterProvider(nil))
		require.Len(t, o.begun.Started(), 3)
		caller.End()
		for n := range o.points(t, "retrip.attempts") {
			require.Equal(t, int64(2), o.points(t, "retrip.attempts")[n])
		}
		require.Len(t, o.all(t)[0].Events, 2, "of the last request")
	})
}

func (o *telemetry) histogram(t *testing.T, name string) metricdata.Histogram[float64] {
	t.Helper()
	h, ok := o.metric(t, name).Data.(metricdata.Histogram[float64])
	require.True(t, ok, "%s is a histogram", name)
	return h
}
