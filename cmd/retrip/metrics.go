package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/deliver"
	"github.com/retrip-go/retrip/retripprom"
	"github.com/retrip-go/retrip/statusz"
)

// A watch is what serve shows of its requests, beside the panel.
type watch struct {
	page    *statusz.Page
	metrics *retripprom.Collector
}

func newWatch() watch { return watch{statusz.Handler(), retripprom.New()} }

// option hands over the Transport that sends.
func (w watch) option() deliver.Option {
	return deliver.WithObserver(func(rt *retrip.Transport) {
		w.page.Add("deliver", rt)
		w.metrics.Watch("deliver", rt)
	})
}

// handler serves /metrics and /debug/retrip, and leaves all else to the panel.
func (w watch) handler(panel http.Handler) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.metrics, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/debug/retrip", w.page)
	mux.Handle("/", panel)
	return mux
}
