package retripprom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/retrip-go/retrip"
)

var (
	attemptsDesc = desc("attempts_total", "Attempts that reached the base, by what came of them.", "outcome")
	retriesDesc  = desc("retries_total", "Attempts that were not the first of their request.")
	answeredDesc = desc("answered_total", "Requests that a host answered, at the first attempt or a later one.", "attempt")
	giveUpsDesc  = desc("give_ups_total", "Requests that ended with an error or with a response worth another attempt, by why there was no other.", "reason")
	refusedDesc  = desc("refused_total", "Attempts that the breaker refused.")
	tripsDesc    = desc("breaker_trips_total", "Times that the breaker opened.")
	stateDesc    = desc("breaker_state", "State of the breaker: 0 closed, 1 half-open or due for a probe, 2 open. The highest of the hosts with this label.")
	tokensDesc   = desc("quota_tokens", "Retries that the quota has tokens for. Of the hosts with this label the one with the least of its capacity.")
	capacityDesc = desc("quota_capacity", "Tokens that the quota can hold; absent without a quota.")
)

var descs = []*prometheus.Desc{
	attemptsDesc, retriesDesc, answeredDesc, giveUpsDesc, refusedDesc, tripsDesc, stateDesc, tokensDesc, capacityDesc,
}

func desc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc("retrip_"+name, help, append([]string{"transport", "host"}, more...), nil)
}

// newPauses returns the histogram of pauses. Its buckets go from a tenth of the default
// backoff's first step to beyond the default budget.
func newPauses(native bool) *prometheus.HistogramVec {
	opts := prometheus.HistogramOpts{
		Name:    "retrip_pause_seconds",
		Help:    "Pauses before retries, as they were decided.",
		Buckets: []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300},
	}
	if native {
		opts.NativeHistogramBucketFactor = 1.1
		opts.NativeHistogramMaxBucketNumber = 100
		opts.NativeHistogramMinResetDuration = time.Hour
	}
	return prometheus.NewHistogramVec(opts, []string{"transport", "host"})
}

// collectCounters exports those that a host has only now and then, outcomes and reasons,
// from their first event on; the others from the host's, at zero, so that increase()
// sees the first.
func (g *group) collectCounters(ch chan<- prometheus.Metric) {
	for _, s := range *g.known.Load() {
		count := func(d *prometheus.Desc, n uint64, more ...string) {
			labels := append([]string{g.name, s.label}, more...)
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
		}
		for o := range s.attempts {
			if n := s.attempts[o].Load(); n > 0 {
				count(attemptsDesc, n, outcomeLabels[o])
			}
		}
		for r := range s.gaveUp {
			if n := s.gaveUp[r].Load(); n > 0 {
				count(giveUpsDesc, n, reasonLabel(retrip.Reason(r)))
			}
		}
		count(retriesDesc, s.retries.Load())
		count(answeredDesc, s.firstTry.Load(), "first")
		count(answeredDesc, s.recovered.Load(), "later")
		count(refusedDesc, s.refused.Load())
		count(tripsDesc, s.trips.Load())
	}
	g.pauses.Collect(ch)
}

func reasonLabel(r retrip.Reason) string {
	if r == 0 {
		return "other"
	}
	return r.String()
}

// A level is what the gauges of one label show.
type level struct {
	state            float64
	tokens, capacity float64
}

// collectGauges exports the worst of the hosts of each label: one series whatever their
// number, since a second of the same name would fail the whole scrape.
func (g *group) collectGauges(ch chan<- prometheus.Metric, transports []*retrip.Transport) {
	now := time.Now()
	worst := map[*series]level{}
	for _, t := range transports {
		for host, stats := range t.Hosts() {
			s := g.of(host)
			worst[s] = worst[s].with(stats, now)
		}
	}
	for s, l := range worst {
		ch <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, l.state, g.name, s.label)
		if l.capacity > 0 {
			ch <- prometheus.MustNewConstMetric(tokensDesc, prometheus.GaugeValue, l.tokens, g.name, s.label)
			ch <- prometheus.MustNewConstMetric(capacityDesc, prometheus.GaugeValue, l.capacity, g.name, s.label)
		}
	}
}

// with returns the level with one more host. The tokens are compared by their share of
// the capacity, since Transports of one name may have different quotas.
func (l level) with(stats retrip.HostStats, now time.Time) level {
	l.state = max(l.state, stateOf(stats, now))
	if stats.Capacity > 0 && (l.capacity == 0 || stats.Tokens/stats.Capacity < l.tokens/l.capacity) {
		l.tokens, l.capacity = stats.Tokens, stats.Capacity
	}
	return l
}

// stateOf orders the states. A breaker whose cool-down is over stays Open until a
// request comes, which need not be soon; it would admit one, like one that is HalfOpen.
func stateOf(stats retrip.HostStats, now time.Time) float64 {
	switch {
	case stats.State == retrip.Closed:
		return 0
	case stats.State == retrip.Open && now.Before(stats.Until):
		return 2
	}
	return 1
}
