package statusz

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
)

// html is the row of a host. It is not made by a template: a page of a thousand hosts
// took several times as long by one. The names of hosts and the kinds of errors, all that
// comes from outside, pass through write, which escapes.
func (r row) html() template.HTML {
	b := &builder{now: r.At}
	b.raw(`<tr id="`, r.ID, `">`, "\n", `<th scope="row">`)
	b.write(r.Host.Name)
	b.raw("</th>\n", `<td class="spark">`)
	b.chart(r.Chart)
	b.raw("</td>\n")
	b.number(strconv.FormatUint(r.Requests, 10), true, "")
	bad := ""
	if r.Failed > 0 {
		bad = " bad"
	}
	b.number(percent(r.FirstTryRate()), r.Ended() > 0, "")
	b.number(percent(r.SuccessRate()), r.Ended() > 0, bad)
	b.number(percent(r.RetryRate()), r.Requests > 0, "")
	b.number(strconv.FormatFloat(r.Amplification(), 'f', 2, 64), r.Requests > 0, "")
	b.number(span(r.Host.Pauses.P50), r.Host.Pauses.Count > 0, "")
	b.number(span(r.Host.Pauses.P99), r.Host.Pauses.Count > 0, "")
	b.breaker(r.Host.Breaker)
	b.quota(r.Host.Quota)
	b.failures(r.Host.Last)
	b.raw("</tr>")
	return template.HTML(b.String())
}

type builder struct {
	strings.Builder
	now time.Time
}

// raw writes what is HTML: of this package, or numbers.
func (b *builder) raw(parts ...string) {
	for _, p := range parts {
		b.WriteString(p)
	}
}

func (b *builder) write(text string) { template.HTMLEscape(b, []byte(text)) }

func (b *builder) number(text string, known bool, class string) {
	if !known {
		text, class = "–", ""
	}
	b.raw(`<td class="n`, class, `">`, text, "</td>\n")
}

// chart is a picture whose kinds of bars have their sums as its name.
func (b *builder) chart(paths []path) {
	b.raw(`<svg viewBox="0 0 300 60" preserveAspectRatio="none" role="img" aria-label="`)
	for i, p := range paths {
		if i > 0 {
			b.raw(", ")
		}
		b.raw(strconv.FormatUint(p.Sum, 10), " ", p.Label)
	}
	b.raw(` in 15 minutes">`)
	for _, p := range paths {
		if p.D != "" {
			b.raw(`<path class="`, p.Class, `" d="`, p.D, `"/>`)
		}
	}
	b.raw("</svg>")
}

func (b *builder) breaker(s Breaker) {
	b.raw(`<td class="state `, s.State, `">`, s.State)
	if s.Until != nil {
		b.raw(", ", left(*s.Until, b.now))
	}
	if s.Trips > 0 {
		b.raw(", trip ", strconv.Itoa(s.Trips))
	}
	b.raw("</td>\n")
}

func (b *builder) quota(q *Quota) {
	if q == nil {
		b.raw("<td>–</td>\n")
		return
	}
	fmt.Fprintf(b, `<td><meter min="0" max="%g" value="%g" low="%g" optimum="%g"></meter> %.0f of %.0f</td>`+"\n",
		q.Capacity, q.Tokens, q.Capacity/4, q.Capacity, q.Tokens, q.Capacity)
}

// failures shows the newest, and the others to whoever opens it.
func (b *builder) failures(last []Failure) {
	if len(last) == 0 {
		b.raw(`<td class="fails">–</td>`, "\n")
		return
	}
	b.raw(`<td class="fails"><details><summary>`)
	b.failure(last[0])
	b.raw("</summary><ol>")
	for _, f := range last[1:] {
		b.raw("<li>")
		b.failure(f)
		b.raw("</li>")
	}
	b.raw("</ol></details></td>\n")
}

func (b *builder) failure(f Failure) {
	b.raw(`<time datetime="`, stamp(f.At), `">`, clock(f.At, b.now), "</time> ")
	b.write(last(f))
}
