// Package retripprom tells Prometheus what Transports do: attempts, retries, requests
// given up, pauses, and the breakers and quotas of their hosts.
//
//	metrics := retripprom.New()
//	metrics.Watch("billing", client.Transport.(*retrip.Transport))
//	prometheus.MustRegister(metrics)
//
// Beside it are a dashboard for Grafana, grafana.json, and rules for alerts, alerts.yml.
package retripprom

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/retrip-go/retrip"
)

// An Option sets something of a Collector.
type Option func(*Collector)

// WithHostLabel sets what stands for a host in the label host; the default is its name.
// Several hosts may share one, and "" is for all that need not be told apart. It is
// called once for each host that is new to the Collector, and must be safe for
// concurrent use. nil means the default.
func WithHostLabel(label func(host string) string) Option {
	return func(c *Collector) { c.label = label }
}

// WithMaxHosts limits the values of the label host, for each Transport; the default is
// 100. Hosts beyond it, in the order in which they are first used, share the value
// "other". It panics if n is negative.
func WithMaxHosts(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("retripprom: WithMaxHosts(%d): the number is negative", n))
	}
	return func(c *Collector) { c.maxHosts = n }
}

// Other is the label of hosts beyond WithMaxHosts.
const Other = "other"

// A Collector is a prometheus.Collector of any number of Transports. It is safe for
// concurrent use. It keeps a little for each value of the label host, and a name for each
// of the last 4,096 hosts of a Transport.
type Collector struct {
	label    func(string) string
	maxHosts int

	attempts, retries, giveUps, trips, refused *prometheus.CounterVec
	pauses                                     *prometheus.HistogramVec

	mu      sync.Mutex
	watched map[string]*watched
}

// New returns a Collector of no Transports. It is registered once, and Watch adds
// Transports to it before or after.
func New(opts ...Option) *Collector {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"transport", "host"}, labels...))
	}
	c := &Collector{
		maxHosts: 100,
		watched:  map[string]*watched{},
		attempts: counter("retrip_attempts_total", "Attempts that reached the base, by the class of the status or error.", "outcome"),
		retries:  counter("retrip_retries_total", "Attempts that were not a request's first."),
		giveUps:  counter("retrip_give_ups_total", "Requests that ended without success, by the reason why there was no further attempt.", "reason"),
		trips:    counter("retrip_breaker_trips_total", "Times that a breaker opened."),
		refused:  counter("retrip_refused_total", "Requests that a breaker refused before their first attempt."),
		pauses: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "retrip_pause_seconds", Help: "Pauses before retries.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"transport", "host"}),
	}
	for _, o := range opts {
		o(c)
	}
	return c
}

// Watch adds a Transport, whose series have the label transport with its name. What is
// counted begins now. stop ends the counting and the gauges; the counts remain.
//
// Watch panics if t is nil or the name is in use.
func (c *Collector) Watch(name string, t *retrip.Transport) (stop func()) {
	if t == nil {
		panic(fmt.Sprintf("retripprom: Watch(%q, nil): no Transport", name))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[name] != nil {
		panic(fmt.Sprintf("retripprom: Watch(%q): there is one of that name", name))
	}
	w := newWatched(c, name, t)
	c.watched[name] = w
	unhook := t.Watch(w.trace())
	return func() {
		unhook()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.watched[name] == w {
			delete(c.watched, name)
		}
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range c.counters() {
		v.Describe(ch)
	}
	ch <- stateDesc
	ch <- tokensDesc
	ch <- capacityDesc
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, v := range c.counters() {
		v.Collect(ch)
	}
	c.mu.Lock()
	all := make([]*watched, 0, len(c.watched))
	for _, w := range c.watched {
		all = append(all, w)
	}
	c.mu.Unlock()
	for _, w := range all {
		w.gauges(ch)
	}
}

func (c *Collector) counters() []prometheus.Collector {
	return []prometheus.Collector{c.attempts, c.retries, c.giveUps, c.trips, c.refused, c.pauses}
}
