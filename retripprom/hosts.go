package retripprom

import (
	"fmt"
	"maps"
	"strings"
)

// other is the label of the hosts that have none of their own.
const other = "other"

// hostLimits keep the values of the label host few.
type hostLimits struct {
	label func(host string) string // nil: the host itself
	max   int
}

// WithHostLabel sets the value of the label host for a host, as it is named in
// retrip.HostStats: URL.Host in lower case, unless retrip.WithHosts has another key.
// Hosts of one label are one: their counts are summed, and of their gauges the worse one
// is exported. A function that returns "" for all drops the label. nil, the default,
// means the host itself.
//
// label is called for each attempt, and for each host at each scrape. It must be safe
// for concurrent use; what it allocates, each attempt allocates.
func WithHostLabel(label func(host string) string) Option {
	return func(c *Collector) { c.limits.label = label }
}

// WithMaxHosts limits how many values the label host has for one name of Watch. The
// first n keep theirs, also when their Transport has forgotten them; those that come
// later are together "other". The default is 100; with 0 all are "other".
//
// WithMaxHosts panics if n is negative.
func WithMaxHosts(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("retripprom: WithMaxHosts(%d): the number is negative", n))
	}
	return func(c *Collector) { c.limits.max = n }
}

// of returns the series of a host. For one that is known it neither locks nor
// allocates: the map is never changed but replaced, which is rare, and it is small.
func (g *group) of(host string) *series {
	label := host
	if g.limits.label != nil {
		label = g.limits.label(host)
	}
	// A URL may hold any byte behind percent signs, and one that is not UTF-8 would fail
	// the whole scrape.
	label = strings.ToValidUTF8(label, "\uFFFD")
	if s := g.find(label); s != nil {
		return s
	}
	return g.add(label)
}

// find returns nil if the label has no series yet.
func (g *group) find(label string) *series {
	known := *g.known.Load()
	s := known[label]
	if s == nil && g.full(known) {
		s = known[other]
	}
	return s
}

// full reports whether no further label gets series of its own.
func (g *group) full(known map[string]*series) bool {
	own := len(known)
	if known[other] != nil {
		own--
	}
	return own >= g.limits.max
}

func (g *group) add(label string) *series {
	g.adding.Lock()
	defer g.adding.Unlock()
	if s := g.find(label); s != nil {
		return s // somebody was faster
	}
	known := maps.Clone(*g.known.Load())
	if g.full(known) {
		label = other
	}
	// The name may be a part of a long URL, which it would keep alive.
	s := newSeries(g.name, strings.Clone(label), g.pauses)
	known[s.label] = s
	g.known.Store(&known)
	return s
}
