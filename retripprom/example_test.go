package retripprom_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripprom"
)

func Example() {
	// A base that is busy at first; yours is http.DefaultTransport.
	base := play(answer(http.StatusServiceUnavailable), answer(http.StatusOK))
	transport := retrip.New(base, retrip.WithBackoff(retrip.Constant(10*time.Millisecond)))

	metrics := retripprom.New()
	metrics.Watch("payments", transport)
	registry := prometheus.NewRegistry() // or prometheus.MustRegister(metrics)
	registry.MustRegister(metrics)

	client := &http.Client{Transport: transport}
	resp, err := client.Get("http://pay.example.com/")
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = resp.Body.Close()

	scrape := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(scrape, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(scrape.Body.String()) {
		if strings.HasPrefix(line, "retrip_attempts_total") || strings.HasPrefix(line, "retrip_answered_total") {
			fmt.Print(line)
		}
	}
	// Output:
	// retrip_answered_total{attempt="first",host="pay.example.com",transport="payments"} 0
	// retrip_answered_total{attempt="later",host="pay.example.com",transport="payments"} 1
	// retrip_attempts_total{host="pay.example.com",outcome="2xx",transport="payments"} 1
	// retrip_attempts_total{host="pay.example.com",outcome="5xx",transport="payments"} 1
}

func ExampleWithHostLabel() {
	// One label for all the tenants of a host that has a name for each.
	metrics := retripprom.New(retripprom.WithHostLabel(func(host string) string {
		if strings.HasSuffix(host, ".shops.example.com") {
			return "shops.example.com"
		}
		return host
	}))
	transport := retrip.New(answer(http.StatusOK))
	defer metrics.Watch("webhooks", transport)()

	client := &http.Client{Transport: transport}
	for _, shop := range []string{"anna", "bert"} {
		if resp, err := client.Get("http://" + shop + ".shops.example.com/hook"); err == nil {
			_ = resp.Body.Close()
		}
	}

	text, err := testutil.CollectAndFormat(metrics, expfmt.TypeTextPlain, "retrip_attempts_total")
	fmt.Print(string(text), err)
	// Output:
	// # HELP retrip_attempts_total Attempts that reached the base, by what came of them.
	// # TYPE retrip_attempts_total counter
	// retrip_attempts_total{host="shops.example.com",outcome="2xx",transport="webhooks"} 2
	// <nil>
}
