// Package retripprom exports what retrip's Transports do to Prometheus.
//
//	metrics := retripprom.New()
//	prometheus.MustRegister(metrics)
//	metrics.Watch("payments", transport)
//
// Counters come from the hooks of retrip.Trace, so that they never go back, also when
// a Transport forgets a host. Gauges are read from Transport.Hosts at each scrape, and
// are there as long as the Transport remembers the host. README.md lists them all;
// grafana.json and alerts.yml beside it are a dashboard and rules over them.
package retripprom

import (
	"fmt"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/retrip-go/retrip"
)

// A Collector is a prometheus.Collector over any number of Transports. Make one with
// New and register it once. It is safe for concurrent use; a request waits for a scrape
// only while its Transport lists its hosts.
type Collector struct {
	limits hostLimits
	native bool

	mu     sync.Mutex
	groups map[string]*group
}

// An Option sets something of a Collector. If the same is set twice, the last one wins.
type Option func(*Collector)

// New returns a Collector that watches nothing yet.
func New(opts ...Option) *Collector {
	c := &Collector{limits: hostLimits{max: 100}, groups: map[string]*group{}}
	for _, o := range opts {
		o(c)
	}
	return c
}

// WithNativeHistograms adds a native histogram to the classic buckets of
// retrip_pause_seconds, of at most 100 buckets a tenth apart. Servers that don't
// collect native histograms see no difference.
func WithNativeHistograms() Option { return func(c *Collector) { c.native = true } }

// Watch exports what the Transport does from now on, with name in the label transport,
// until stop is called, which may be more than once. Of requests under way, those that
// began before Watch are not counted, and those that began before stop still are.
//
// Transports of one name add up: their counts are summed, and of their gauges the
// worse one is exported, as for hosts of one label. Names should be few and fixed. When
// the last Transport of a name is stopped, the series of that name end; should the name
// come back, its counters start at zero. To replace a Transport without that, Watch the
// new one before the old one is stopped.
//
// Watch panics if t is nil, if name is not UTF-8, and if t is watched under that name
// already, since all it did would count twice.
func (c *Collector) Watch(name string, t *retrip.Transport) (stop func()) {
	switch {
	case t == nil:
		panic(fmt.Sprintf("retripprom: Watch(%q, nil): no Transport", name))
	case !utf8.ValidString(name):
		panic(fmt.Sprintf("retripprom: Watch(%q, …): the name is not UTF-8", name))
	}
	g := c.join(name, t)
	unwatch := t.Watch(g.trace())
	return sync.OnceFunc(func() {
		unwatch()
		c.leave(g, t)
	})
}

func (c *Collector) join(name string, t *retrip.Transport) *group {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[name]
	if g == nil {
		g = newGroup(name, c.limits, newPauses(c.native))
		c.groups[name] = g
	}
	if slices.Contains(g.transports, t) {
		panic(fmt.Sprintf("retripprom: Watch(%q, …): the Transport is watched under this name already", name))
	}
	g.transports = append(slices.Clip(g.transports), t)
	return g
}

// leave forgets a group with its last Transport. Requests under way go on counting in
// it, unseen; it goes with the last of them.
func (c *Collector) leave(g *group, t *retrip.Transport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.transports = slices.DeleteFunc(slices.Clone(g.transports), func(have *retrip.Transport) bool { return have == t })
	if len(g.transports) == 0 {
		delete(c.groups, g.name)
	}
}

// Describe is part of prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
	newPauses(c.native).Describe(ch)
}

// Collect is part of prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	watched := make(map[*group][]*retrip.Transport, len(c.groups))
	for _, g := range c.groups {
		watched[g] = g.transports
	}
	c.mu.Unlock()
	for g, transports := range watched {
		g.collectGauges(ch, transports)
		g.collectCounters(ch)
	}
}
