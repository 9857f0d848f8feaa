package retripprom

import (
	"strings"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/retrip-go/retrip"
)

var (
	stateDesc = prometheus.NewDesc("retrip_breaker_state",
		"State of the breaker: 0 closed, 1 half-open, 2 open; the worst of the hosts with this label.", []string{"transport", "host"}, nil)
	tokensDesc = prometheus.NewDesc("retrip_quota_tokens",
		"Tokens for retries; of the hosts with this label those of the one with the fewest.", []string{"transport", "host"}, nil)
	capacityDesc = prometheus.NewDesc("retrip_quota_capacity",
		"Tokens that a host's quota holds at most.", []string{"transport", "host"}, nil)
)

// maxNames bounds what is remembered of names, not of labels: a name that was forgotten
// gets its label again.
const maxNames = 4096

// A watched is a Transport.
type watched struct {
	c         *Collector
	name      string
	transport *retrip.Transport

	mu     sync.Mutex
	names  *simplelru.LRU[string, *series] // by host
	labels map[string]*series              // at most maxHosts, and other
}

// Series are those of one label, looked up once.
type series struct {
	label    string
	outcomes [len(outcomes)]prometheus.Counter
	retries  prometheus.Counter
	trips    prometheus.Counter
	refused  prometheus.Counter
	pauses   prometheus.Observer
	giveUps  *prometheus.CounterVec
}

var outcomes = [...]string{"error", "1xx", "2xx", "3xx", "4xx", "5xx"}

// outcome is an index of outcomes.
func outcome(a retrip.Attempt) int {
	if a.Response == nil {
		return 0
	}
	return min(max(a.Response.StatusCode/100, 1), len(outcomes)-1)
}

func newWatched(c *Collector, name string, t *retrip.Transport) *watched {
	names, err := simplelru.NewLRU[string, *series](maxNames, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	return &watched{c: c, name: name, transport: t, names: names, labels: map[string]*series{}}
}

func (w *watched) trace() *retrip.Trace {
	return &retrip.Trace{
		Attempted: func(i retrip.AttemptedInfo) {
			s := w.series(i.Host)
			s.outcomes[outcome(i.Attempt)].Inc()
			if i.Attempt.Number > 1 {
				s.retries.Inc()
			}
		},
		Pausing: func(i retrip.PausingInfo) {
			w.series(i.Host).pauses.Observe(i.Attempt.Pause.Seconds())
		},
		GaveUp: func(i retrip.GaveUpInfo) {
			s := w.series(i.Host)
			s.giveUps.WithLabelValues(i.Reason.String()).Inc()
			if i.Reason == retrip.ReasonBreaker && i.Attempt.Number == 0 {
				s.refused.Inc()
			}
		},
		BreakerMoved: func(i retrip.BreakerMovedInfo) {
			if i.To == retrip.Open {
				w.series(i.Host).trips.Inc()
			}
		},
	}
}

// series returns those of a host.
func (w *watched) series(host string) *series {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.names.Get(host); ok {
		return s
	}
	label := host
	if w.c.label != nil {
		label = w.unlocked(host)
	}
	label = strings.ToValidUTF8(label, "\uFFFD") // any other fails the whole scrape
	s := w.labels[label]
	if s == nil {
		if _, other := w.labels[Other]; len(w.labels) >= w.c.maxHosts+count(other) {
			label = Other
		}
		if s = w.labels[label]; s == nil {
			s = w.c.series(w.name, label)
			w.labels[label] = s
		}
	}
	w.names.Add(host, s)
	return s
}

// unlocked calls the user's function, which may take its time or panic.
func (w *watched) unlocked(host string) string {
	w.mu.Unlock()
	defer w.mu.Lock()
	return w.c.label(host)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// series begins at zero, so that the first failure shows as an increase.
func (c *Collector) series(transport, host string) *series {
	s := &series{
		label:   host,
		retries: c.retries.WithLabelValues(transport, host),
		trips:   c.trips.WithLabelValues(transport, host),
		refused: c.refused.WithLabelValues(transport, host),
		pauses:  c.pauses.WithLabelValues(transport, host),
		giveUps: c.giveUps.MustCurryWith(prometheus.Labels{"transport": transport, "host": host}),
	}
	for i, o := range outcomes {
		s.outcomes[i] = c.attempts.WithLabelValues(transport, host, o)
	}
	return s
}

// A gauge joins the hosts of one label.
type gauge struct {
	state    float64
	quota    bool
	tokens   float64
	capacity float64
}

var states = map[retrip.State]float64{retrip.Closed: 0, retrip.HalfOpen: 1, retrip.Open: 2}

// gauges are read when they are asked for.
func (w *watched) gauges(ch chan<- prometheus.Metric) {
	byLabel := map[string]gauge{}
	for host, stats := range w.transport.Hosts() {
		label := w.series(host).label
		g := byLabel[label]
		g.state = max(g.state, states[stats.State])
		if stats.Capacity > 0 && (!g.quota || stats.Tokens < g.tokens) {
			g.quota, g.tokens, g.capacity = true, stats.Tokens, stats.Capacity
		}
		byLabel[label] = g
	}
	for label, g := range byLabel {
		send := func(desc *prometheus.Desc, value float64) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, w.name, label)
		}
		send(stateDesc, g.state)
		if g.quota {
			send(tokensDesc, g.tokens)
			send(capacityDesc, g.capacity)
		}
	}
}
