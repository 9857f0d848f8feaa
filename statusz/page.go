package statusz

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"html/template"
	"io"
	"net/url"
	"strings"
	"time"
)

//go:embed page.html
var pageHTML string

//go:embed style.css
var styleCSS string

//go:embed script.js
var scriptJS string

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"style":   func() template.CSS { return template.CSS(styleCSS) },
	"script":  func() template.JS { return template.JS(scriptJS) },
	"chart":   chart,
	"row":     func(r row) template.HTML { return r.html() },
	"percent": percent, "stamp": stamp, "clock": clock,
}).Parse(pageHTML))

// policy permits the style and the script that are in the page, by their hashes, and the
// stream of what changes. The page may not be framed.
var policy = "default-src 'none'; style-src " + hash(styleCSS) + "; script-src " + hash(scriptJS) +
	"; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// A column is one of the table. order compares two hosts; nil means that there is
// nothing to sort by.
type column struct {
	Key, Title, Hint string
	Number           bool
	order            func(a, b *Host, q query) int
}

var columns = []column{
	{Key: "host", Title: "Host", order: func(a, b *Host, _ query) int { return strings.Compare(a.Name, b.Name) }},
	{Title: "15 minutes"},
	{Key: "requests", Title: "Requests", Number: true, order: by(Counts.requests)},
	{Key: "first", Title: "First try", Hint: "answered at the first attempt", Number: true, order: by(Counts.firstTry)},
	{Key: "success", Title: "Success", Hint: "answered, after retries too", Number: true, order: by(Counts.success)},
	{Key: "retried", Title: "Retried", Hint: "requests with more than one attempt", Number: true, order: by(Counts.RetryRate)},
	{Key: "amplification", Title: "Amplification", Hint: "attempts for each request", Number: true, order: by(Counts.Amplification)},
	{Key: "p50", Title: "Pause p50", Hint: "of the last 128", Number: true, order: func(a, b *Host, _ query) int { return cmp.Compare(a.Pauses.P50, b.Pauses.P50) }},
	{Key: "p99", Title: "p99", Hint: "of the last 128", Number: true, order: func(a, b *Host, _ query) int { return cmp.Compare(a.Pauses.P99, b.Pauses.P99) }},
	{Key: "breaker", Title: "Breaker", order: func(a, b *Host, _ query) int { return cmp.Compare(a.Breaker.rank(), b.Breaker.rank()) }},
	{Key: "quota", Title: "Quota", Hint: "tokens for retries", order: func(a, b *Host, _ query) int { return cmp.Compare(a.Quota.level(), b.Quota.level()) }},
	{Key: "failure", Title: "Last failures", order: func(a, b *Host, _ query) int { return a.failed().Compare(b.failed()) }},
}

func by(value func(Counts) float64) func(a, b *Host, q query) int {
	return func(a, b *Host, q query) int { return cmp.Compare(value(q.counts(a)), value(q.counts(b))) }
}

func (c Counts) requests() float64 { return float64(c.Requests) }

// firstTry and success have hosts that nothing is known of come after all others.
func (c Counts) firstTry() float64 { return c.known(c.FirstTryRate()) }
func (c Counts) success() float64  { return c.known(c.SuccessRate()) }

func (c Counts) known(rate float64) float64 {
	if c.Ended() == 0 {
		return 2
	}
	return rate
}

func (b Breaker) rank() int {
	switch b.State {
	case "half-open":
		return 1
	case "open":
		return 2
	}
	return 0
}

func (q *Quota) level() float64 {
	if q == nil {
		return 2
	}
	return q.Tokens / q.Capacity
}

func (h *Host) failed() time.Time {
	if len(h.Last) == 0 {
		return time.Time{}
	}
	return h.Last[0].At
}

// A view is what the templates are given.
type view struct {
	At             time.Time
	Host, State    string
	States         []string
	Sort           string
	Recent         bool
	All, Window15m string // addresses of the page
	Heads          []head
	Groups         []group
	Several        bool
}

// A head is one of a column.
type head struct {
	column
	Href string // with the sort that a click asks for
	Aria string // the sort that there is; "" if none
}

// A group is a Transport.
type group struct {
	ID, Name string
	Since    time.Time
	Total    Counts
	Requests []path
	Attempts []path
	Rows     []row
}

// A row is a host.
type row struct {
	ID   string
	At   time.Time
	Host Host
	Counts
	Chart []path
}

// A path is a kind of bars in a chart.
type path struct {
	Class, Label string
	Sum          uint64
	D            string
}

func (p *Page) view(q query) view {
	s := p.snapshot(q)
	v := view{At: s.At, Host: q.host, State: q.state, States: states, Recent: q.recent, Several: len(s.Transports) > 1}
	v.Sort = q.sort
	if q.down {
		v.Sort = "-" + q.sort
	}
	all, recent := q, q
	all.recent, recent.recent = false, true
	v.All, v.Window15m = all.address(), recent.address()
	for _, c := range columns {
		v.Heads = append(v.Heads, q.head(c))
	}
	for i, t := range s.Transports {
		v.Groups = append(v.Groups, q.group(fmt.Sprint("t", i), t, s.At))
	}
	return v
}

// head has a click sort by the column, and turn the order that it has.
func (q query) head(c column) head {
	h := head{column: c}
	to := q
	to.sort, to.down = c.Key, c.Number || c.Key == "breaker" || c.Key == "failure"
	if q.sort == c.Key || q.sort == "" && c.Key == "host" {
		to.down = !q.down
		h.Aria = "ascending"
		if q.down {
			h.Aria = "descending"
		}
	}
	if c.order == nil {
		h.Aria = ""
	}
	h.Href = to.address()
	return h
}

// address is that of the page with this query, relative to itself.
func (q query) address() string {
	v := url.Values{}
	set := func(key, value string) {
		if value != "" {
			v.Set(key, value)
		}
	}
	set("host", q.host)
	set("state", q.state)
	if q.recent {
		set("window", "15m")
	}
	switch {
	case q.sort != "" && q.down:
		set("sort", "-"+q.sort)
	case q.sort != "":
		set("sort", q.sort)
	}
	return "?" + v.Encode()
}

func (q query) group(id string, t Transport, at time.Time) group {
	g := group{ID: id, Name: t.Name, Since: t.Since}
	sum := Chart{
		FirstTry: make([]uint32, slots), Recovered: make([]uint32, slots), Failed: make([]uint32, slots),
		Attempts: make([]uint32, slots), Retries: make([]uint32, slots),
	}
	for i := range t.Hosts {
		h := &t.Hosts[i]
		sum.add(&h.Chart)
		g.Total.add(q.counts(h))
		g.Rows = append(g.Rows, row{ID: rowID(t.Name, h.Name), At: at, Host: *h, Counts: q.counts(h), Chart: h.Chart.requests()})
	}
	g.Requests, g.Attempts = sum.requests(), sum.attempts()
	return g
}

func rowID(transport, host string) string {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s\x00%s", transport, host)
	return fmt.Sprintf("h%016x", h.Sum64())
}

func (c *Counts) add(d Counts) {
	c.Requests += d.Requests
	c.Attempts += d.Attempts
	c.Retried += d.Retried
	c.FirstTry += d.FirstTry
	c.Recovered += d.Recovered
	c.Failed += d.Failed
	c.Cancelled += d.Cancelled
	c.Unsent += d.Unsent
}

func (c *Chart) add(d *Chart) {
	for i := range slots {
		c.FirstTry[i] += d.FirstTry[i]
		c.Recovered[i] += d.Recovered[i]
		c.Failed[i] += d.Failed[i]
		c.Attempts[i] += d.Attempts[i]
		c.Retries[i] += d.Retries[i]
	}
}

func (c *Chart) requests() []path {
	return stack([]path{{Class: "good", Label: "first try"}, {Class: "wait", Label: "after retries"}, {Class: "stop", Label: "failed"}},
		c.FirstTry, c.Recovered, c.Failed)
}

func (c *Chart) attempts() []path {
	firsts := make([]uint32, slots)
	for i := range firsts {
		firsts[i] = c.Attempts[i] - c.Retries[i]
	}
	return stack([]path{{Class: "calm", Label: "first attempts"}, {Class: "wait", Label: "retries"}}, firsts, c.Retries)
}

// A chart is 300 wide and 60 high, whatever it is drawn in.
const (
	chartHeight = 60
	slotWidth   = 300 / slots
)

// stack puts series on each other, as bars of lines.
func stack(paths []path, series ...[]uint32) []path {
	var peak uint32
	for i := range slots {
		var sum uint32
		for _, s := range series {
			sum += s[i]
		}
		peak = max(peak, sum)
	}
	if peak == 0 {
		return paths
	}
	var below [slots]uint32
	for k, s := range series {
		var d strings.Builder
		for i, n := range s {
			if n == 0 {
				continue
			}
			paths[k].Sum += uint64(n)
			from, to := height(below[i], peak), height(below[i]+n, peak)
			fmt.Fprintf(&d, "M%d %gV%g", slotWidth*i+slotWidth/2, from, to)
			below[i] += n
		}
		paths[k].D = d.String()
	}
	return paths
}

// height is from above, with one digit after the point.
func height(n, peak uint32) float64 {
	return float64(int(10*chartHeight*(1-float64(n)/float64(peak)))) / 10
}

func chart(paths []path) template.HTML {
	b := &builder{}
	b.chart(paths)
	return template.HTML(b.String())
}

// render writes all of a template or nothing.
func render(w io.Writer, name string, data any) error {
	var b strings.Builder
	if err := pages.ExecuteTemplate(&b, name, data); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// percent does not round to 100 what is less.
func percent(rate float64) string {
	switch {
	case rate > 0.999 && rate < 1:
		return fmt.Sprintf("%.4g%%", min(100*rate, 99.99))
	case rate > 0.99 && rate < 1, rate > 0 && rate < 0.01:
		return fmt.Sprintf("%.2f%%", 100*rate)
	}
	return fmt.Sprintf("%.3g%%", 100*rate)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// clock is the server's, with the date if it is not today's.
func clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// span is a pause as a reader takes it in.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

// left is the time until then, in whole seconds.
func left(until, now time.Time) string {
	d := until.Sub(now)
	if d <= 0 {
		return "next probe now"
	}
	if d > 24*time.Hour {
		return "next probe " + clock(until, now)
	}
	d = (d + time.Second - 1).Truncate(time.Second)
	if d < time.Minute {
		return fmt.Sprintf("next probe in %d s", d/time.Second)
	}
	return "next probe in " + d.String()
}

// last tells a failure in a line.
func last(f Failure) string {
	what := f.Error
	if f.Status != 0 {
		what = fmt.Sprint(f.Status)
	}
	if f.Attempt == 0 {
		return fmt.Sprintf("%s, not sent, gave up (%s)", cmp.Or(what, "failed"), f.GaveUp)
	}
	what = fmt.Sprintf("%s, attempt %d of %d", what, f.Attempt, f.MaxAttempts)
	if f.GaveUp != "" {
		return what + ", gave up (" + f.GaveUp + ")"
	}
	return what + ", next after " + span(f.Pause)
}
