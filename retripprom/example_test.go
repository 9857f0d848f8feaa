package retripprom_test

import (
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripprom"
)

func Example() {
	rt := retrip.New(nil)
	metrics := retripprom.New(retripprom.WithHostLabel(func(host string) string {
		if strings.HasSuffix(host, ".customers.example") {
			return "customers" // thousands of them
		}
		return host
	}))
	metrics.Watch("webhooks", rt)
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}
