package statusz

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/retrip-go/retrip"
)

// A Snapshot is what a Page shows. As JSON it is the answer to ?format=json.
type Snapshot struct {
	At         time.Time   `json:"at"`
	Transports []Transport `json:"transports"` // in the order in which they were added
}

// A Transport is one of a Page. Its hosts are the 1,024 that were used last.
type Transport struct {
	Name  string    `json:"name"`
	Since time.Time `json:"since"` // when counting began
	Hosts []Host    `json:"hosts"` // sorted as the query asks, by name otherwise
}

// A Host is what a Transport knows of one, and what the Page has seen of it.
type Host struct {
	Name    string    `json:"name"`
	Breaker Breaker   `json:"breaker"`
	Quota   *Quota    `json:"quota"` // null without a quota, or if the Transport has forgotten the host
	Total   Counts    `json:"total"` // since counting began, or the host came to be known
	Recent  Counts    `json:"last_15m"`
	Pauses  Pauses    `json:"pauses"`
	Last    []Failure `json:"last_failures"` // the last five, the newest first
	Chart   Chart     `json:"chart"`
}

// A Breaker is that of a host.
type Breaker struct {
	State string     `json:"state"` // "closed", "half-open", "open"; "unknown" if the Transport has forgotten the host
	Until *time.Time `json:"until"` // when an open one lets a probe through; null if it is not open
	Trips int        `json:"trips"` // times in a row that it opened without closing
}

// A Quota is the level of the tokens that a host's retries draw on.
type Quota struct {
	Tokens   float64 `json:"tokens"`
	Capacity float64 `json:"capacity"`
}

// Counts are of requests that have ended or wait for another attempt, and of their
// attempts. A request that its host is done with counts as FirstTry or Recovered,
// whatever the status, as in retrip.HostStats; one that was given up counts as Failed; one
// that a panic of the base ended counts in no way but Requests and Attempts.
type Counts struct {
	Requests  uint64 `json:"requests"`
	Attempts  uint64 `json:"attempts"`
	Retried   uint64 `json:"retried"`   // requests with more than one attempt
	FirstTry  uint64 `json:"first_try"` // requests answered at the first attempt
	Recovered uint64 `json:"recovered"` // requests answered at a later one
	Failed    uint64 `json:"failed"`    // requests given up, those refused by the breaker among them
	Cancelled uint64 `json:"cancelled"` // requests ended by their caller
	Unsent    uint64 `json:"unsent"`    // requests that ended without an attempt
}

// Ended is the number of requests that ended otherwise than by their caller.
func (c Counts) Ended() uint64 { return c.FirstTry + c.Recovered + c.Failed }

// FirstTryRate is the share of the requests ended that were answered at the first
// attempt, from 0 to 1. The rates are 0 if there were no requests.
func (c Counts) FirstTryRate() float64 { return ratio(c.FirstTry, c.Ended()) }

// SuccessRate is the share of the requests ended that were answered.
func (c Counts) SuccessRate() float64 { return ratio(c.FirstTry+c.Recovered, c.Ended()) }

// RetryRate is the share of the requests that had more than one attempt.
func (c Counts) RetryRate() float64 { return ratio(c.Retried, c.Requests) }

// Amplification is the number of attempts for each request: what the host gets for
// what the callers ask for.
func (c Counts) Amplification() float64 { return ratio(c.Attempts, c.Requests) }

func ratio(a, b uint64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// Pauses are the last 128 pauses before retries.
type Pauses struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_seconds"` // the median; 0 if there were none
	P99   float64 `json:"p99_seconds"`
}

// A Failure is an attempt that failed, or a request that ended without one.
type Failure struct {
	At          time.Time `json:"at"`
	Status      int       `json:"status"`       // 0 if there was no response
	Error       string    `json:"error"`        // the kind of error, never its text; "" if there was a response
	Attempt     int       `json:"attempt"`      // 1 is the first; 0 if none reached the host
	MaxAttempts int       `json:"max_attempts"` // how many there might have been
	Pause       float64   `json:"pause_seconds"`
	GaveUp      string    `json:"gave_up"` // the retrip.Reason; "" if another attempt was to follow
}

// A Chart is the last 15 minutes, the oldest slot first; the last slot is not over yet.
type Chart struct {
	Seconds   int      `json:"slot_seconds"`
	FirstTry  []uint32 `json:"first_try"`
	Recovered []uint32 `json:"recovered"`
	Failed    []uint32 `json:"failed"`
	Attempts  []uint32 `json:"attempts"`
	Retries   []uint32 `json:"retries"`
}

// A query is what the page is asked for.
type query struct {
	json, stream bool
	host, state  string
	sort         string
	down         bool // the largest first
	recent       bool
}

var states = []string{"closed", "half-open", "open", "unknown"}

// parse refuses what it does not know, rather than show something else.
func parse(v url.Values) (query, error) {
	q := query{host: v.Get("host"), state: v.Get("state"), stream: v.Has("stream")}
	switch f := v.Get("format"); f {
	case "json":
		q.json = true
	case "", "html":
	default:
		return q, fmt.Errorf("there is no format %q: json or html", f)
	}
	switch w := v.Get("window"); w {
	case "15m":
		q.recent = true
	case "", "all":
	default:
		return q, fmt.Errorf("there is no window %q: 15m or all", w)
	}
	if q.state != "" && !slices.Contains(states, q.state) {
		return q, fmt.Errorf("there is no state %q: closed, half-open, open or unknown", q.state)
	}
	q.sort, q.down = strings.CutPrefix(v.Get("sort"), "-")
	if q.sort != "" && !slices.ContainsFunc(columns, func(c column) bool { return c.Key == q.sort && c.order != nil }) {
		return q, fmt.Errorf("there is no column %q to sort by", q.sort)
	}
	return q, nil
}

// snapshot is of the hosts that the query asks for, in its order.
func (p *Page) snapshot(q query) Snapshot {
	p.mu.Lock()
	all := slices.Clone(p.watched)
	p.mu.Unlock()
	s := Snapshot{At: time.Now(), Transports: []Transport{}}
	for _, w := range all {
		t := Transport{Name: w.name, Since: w.since, Hosts: slices.DeleteFunc(w.snapshot(s.At), func(h Host) bool {
			return !strings.Contains(strings.ToLower(h.Name), strings.ToLower(q.host)) || q.state != "" && q.state != h.Breaker.State
		})}
		q.order(t.Hosts)
		s.Transports = append(s.Transports, t)
	}
	return s
}

func (q query) order(hosts []Host) {
	order := func(a, b *Host) int { return 0 }
	for _, c := range columns {
		if c.Key == q.sort && c.order != nil {
			order = func(a, b *Host) int { return c.order(a, b, q) }
		}
	}
	sign := 1
	if q.down {
		sign = -1
	}
	slices.SortFunc(hosts, func(a, b Host) int {
		return cmp.Or(sign*order(&a, &b), strings.Compare(a.Name, b.Name))
	})
}

// counts are those of the window that the query asks for.
func (q query) counts(h *Host) Counts {
	if q.recent {
		return h.Recent
	}
	return h.Total
}

// snapshot joins what the Transport remembers with what its hooks have told.
func (w *watched) snapshot(now time.Time) []Host {
	hosts, pauses := w.counted(now)
	at := make(map[string]int, len(hosts))
	for i := range hosts {
		hosts[i].Pauses = quantiles(pauses[i])
		at[hosts[i].Name] = i
	}
	for name, stats := range w.transport.Hosts() {
		i, ok := at[name]
		if !ok { // used before the page was made
			if len(hosts) == maxHosts {
				continue
			}
			i = len(hosts)
			hosts = append(hosts, (&host{}).snapshot(name, now))
		}
		hosts[i].remembered(stats)
	}
	return hosts
}

// counted returns the hosts and their pauses, which are to be sorted without the lock.
func (w *watched) counted(now time.Time) (hosts []Host, pauses [][]time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range w.hosts.Keys() {
		h, _ := w.hosts.Peek(name)
		hosts = append(hosts, h.snapshot(name, now))
		pauses = append(pauses, slices.Clone(h.pause))
	}
	return hosts, pauses
}

func (h *host) snapshot(name string, now time.Time) Host {
	h.advance(now)
	s := Host{Name: name, Breaker: Breaker{State: "unknown"}, Total: countsOf(h.total), Last: []Failure{}, Chart: h.chart()}
	var recent [kinds]uint64
	for _, slot := range h.ring {
		for kind, n := range slot {
			recent[kind] += uint64(n)
		}
	}
	s.Recent = countsOf(recent)
	for i := h.nfail; i > max(0, h.nfail-maxFailures); i-- {
		s.Last = append(s.Last, h.fails[(i-1)%maxFailures].snapshot())
	}
	return s
}

func (f failure) snapshot() Failure {
	s := Failure{At: f.at, Status: f.status, Error: f.kind, Attempt: f.number, MaxAttempts: f.max, Pause: f.pause.Seconds()}
	if f.reason != 0 {
		s.GaveUp = f.reason.String()
	}
	return s
}

func countsOf(n [kinds]uint64) Counts {
	return Counts{
		Requests: n[first] + n[unsent], Attempts: n[first] + n[again], Retried: n[retried],
		FirstTry: n[firstTry], Recovered: n[recovered], Failed: n[failed], Cancelled: n[cancelled], Unsent: n[unsent],
	}
}

func (h *host) chart() Chart {
	c := Chart{Seconds: int(slotTime / time.Second)}
	for i := range int64(slots) {
		slot := &h.ring[(h.slot+1+i)%slots]
		c.FirstTry = append(c.FirstTry, slot[firstTry])
		c.Recovered = append(c.Recovered, slot[recovered])
		c.Failed = append(c.Failed, slot[failed])
		c.Attempts = append(c.Attempts, slot[first]+slot[again])
		c.Retries = append(c.Retries, slot[again])
	}
	return c
}

// quantiles are by nearest rank.
func quantiles(pauses []time.Duration) Pauses {
	n := len(pauses)
	if n == 0 {
		return Pauses{}
	}
	slices.Sort(pauses)
	rank := func(percent int) float64 { return pauses[(n*percent+99)/100-1].Seconds() }
	return Pauses{Count: n, P50: rank(50), P99: rank(99)}
}

// remembered adds what the Transport knows.
func (h *Host) remembered(s retrip.HostStats) {
	h.Breaker = Breaker{State: s.State.String(), Trips: s.Trips}
	if s.State == retrip.Open {
		h.Breaker.Until = &s.Until
	}
	if s.Capacity > 0 {
		h.Quota = &Quota{s.Tokens, s.Capacity}
	}
}
