package panel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/retrip-go/retrip/deliver"
)

// A view is what a template shows. Root leads to the panel's first page from wherever
// the page is.
type view struct {
	Root    string
	Title   string
	Token   string // "" where nothing may be changed
	Note    string
	Now     time.Time
	Refresh bool

	Destinations []row
	Pending      []deliver.Status
	More         bool // pending ones than are shown
	Dead         []deliver.DeadLetter
	DeadCount    string
	Letter       *deliver.DeadLetter
	Event        []deliver.Status
	Filter       url.Values
	Query        template.URL     // the filter, as it stands in a URL
	Next         template.URL     // the query of the next page
	Searched     int              // how many dead letters were looked through, if that ended the page
	Reasons      []deliver.Reason // to choose from
	IDs          []string         // of destinations, too
}

// A row is a destination and its counts.
type row struct {
	deliver.Stats
	ID, Host string
	State    string // open, probing, paused, off or none: how it is marked
	Does     string // the same in words
	Failures int
}

// Ended tells whether there are deliveries that a share can be of.
func (r row) Ended() bool { return r.FirstTry+r.Recovered+r.Stats.Dead > 0 }

const (
	pendingShown = 50
	perPage      = 50
	counted      = 1000 // how far dead letters are counted: a page has no time for more
	searched     = 1000 // and how many are looked through for a reason
)

func (p *panel) overview(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	v := view{Root: "./", Title: "Webhooks", Refresh: true}
	var err error
	if v.Destinations, err = p.rows(ctx); err != nil {
		p.fail(w, r, err)
		return
	}
	if v.Pending, err = p.src.Pending(ctx, pendingShown+1); err != nil {
		p.fail(w, r, err)
		return
	}
	if v.More = len(v.Pending) > pendingShown; v.More {
		v.Pending = v.Pending[:pendingShown]
	}
	if v.DeadCount, err = p.count(ctx, deliver.Filter{}); err != nil {
		p.fail(w, r, err)
		return
	}
	p.show(w, r, "overview", v)
}

// rows are the destinations, and the hosts of which requests were parked.
func (p *panel) rows(ctx context.Context) ([]row, error) {
	all, err := p.src.Destinations().List(ctx)
	if err != nil {
		return nil, err
	}
	stats, err := p.src.Stats(ctx, time.Now().Add(-24*time.Hour))
	if err != nil {
		return nil, err
	}
	of := make(map[string]deliver.Stats, len(stats))
	for _, s := range stats {
		of[s.Destination] = s
	}
	var rows []row
	for _, d := range all {
		rows = append(rows, row{
			Stats: of[d.ID], ID: d.ID, Host: host(d.URL), State: state(d), Does: p.src.Destinations().Describe(d), Failures: d.Failures,
		})
		delete(of, d.ID)
	}
	for _, s := range stats {
		if _, left := of[s.Destination]; left {
			rows = append(rows, row{Stats: s, ID: s.Destination, State: "none", Does: "no destination: parked requests"})
		}
	}
	return rows, nil
}

func state(d deliver.DestinationState) string {
	switch now := time.Now(); {
	case d.Disabled != "":
		return "off"
	case d.HeldUntil.After(now) || d.PausedUntil.After(now):
		return "paused"
	case d.Trips > 0:
		return "probing"
	}
	return "open"
}

func (p *panel) count(ctx context.Context, f deliver.Filter) (string, error) {
	if f.Reason != "" {
		return "", nil // would have to read every story
	}
	f.Limit, f.Before = counted+1, 0
	n, err := p.src.Dead().Count(ctx, f)
	if n > counted {
		return fmt.Sprintf("more than %d", counted), err
	}
	return strconv.Itoa(n), err
}

var reasons = []deliver.Reason{
	deliver.ReasonExhausted, deliver.ReasonExpired, deliver.ReasonPermanent, deliver.ReasonGone,
	deliver.ReasonDisabled, deliver.ReasonWorkerLost, deliver.ReasonParked,
}

func (p *panel) dead(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f, err := filter(q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	v := view{Root: "./", Title: "Dead letters", Filter: q, Query: template.URL(chosen(q).Encode()), Note: note(q), Reasons: reasons}
	all, err := p.src.Destinations().List(r.Context())
	if err != nil {
		p.fail(w, r, err)
		return
	}
	for _, d := range all {
		v.IDs = append(v.IDs, d.ID)
	}
	if v.DeadCount, err = p.count(r.Context(), f); err != nil {
		p.fail(w, r, err)
		return
	}
	var next int64
	if v.Dead, next, err = p.page(r.Context(), f); err != nil {
		p.fail(w, r, err)
		return
	}
	if next > 0 {
		older := chosen(q)
		older.Set("before", strconv.FormatInt(next, 10))
		v.Next = template.URL(older.Encode())
		if len(v.Dead) < perPage {
			v.Searched = searched
		}
	}
	p.show(w, r, "dead", v)
}

// chosen is the filter of a query, without the page.
func chosen(q url.Values) url.Values {
	only := url.Values{}
	for _, k := range []string{"destination", "event", "reason", "since"} {
		if s := q.Get(k); s != "" {
			only.Set(k, s)
		}
	}
	return only
}

// filter reads the query of the list. Its errors are for the reader.
func filter(q url.Values) (f deliver.Filter, err error) {
	f = deliver.Filter{Destination: q.Get("destination"), EventID: q.Get("event"), Reason: deliver.Reason(q.Get("reason"))}
	for _, s := range []string{f.Destination, f.EventID} {
		// PostgreSQL takes no such text, and no id has it.
		if len(s) > 255 || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
			return f, errors.New("an id has at most 255 bytes, and no control characters")
		}
	}
	if f.Reason != "" && !slices.Contains(reasons, f.Reason) {
		return f, errors.New("there is no such reason")
	}
	if s := q.Get("since"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			return f, errors.New("since is not a duration such as 90m or 24h")
		}
		f.Since = time.Now().Add(-d)
	}
	if s := q.Get("before"); s != "" {
		if f.Before, err = strconv.ParseInt(s, 10, 64); err != nil || f.Before < 1 {
			return f, errors.New("before is not a delivery's number")
		}
	}
	return f, nil
}

// page returns the first dead letters of a filter, and before which number the next page
// starts, 0 if there is none. Reasons are in the stories, where the database does not
// look, so no more than searched dead letters are read for one: a page may have few of
// them, or none, and still another after it.
func (p *panel) page(ctx context.Context, f deliver.Filter) (letters []deliver.DeadLetter, next int64, err error) {
	reason := f.Reason
	f.Reason, f.Limit = "", perPage+1
	for read := 0; read < searched; read += f.Limit {
		if reason != "" {
			f.Limit = 100
		}
		all, err := p.src.Dead().List(ctx, f)
		if err != nil {
			return nil, 0, err
		}
		for _, d := range all {
			if reason != "" && d.Reason != reason {
				f.Before = d.ID
				continue
			}
			if len(letters) == perPage {
				return letters, f.Before, nil
			}
			f.Before, d.Payload = d.ID, nil
			letters = append(letters, d)
		}
		if len(all) < f.Limit {
			return letters, 0, nil
		}
	}
	return letters, f.Before, nil
}

func (p *panel) letter(w http.ResponseWriter, r *http.Request) {
	id, ok := number(r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	d, err := p.src.Dead().Get(r.Context(), id)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	p.show(w, r, "letter", view{Root: "../", Title: "Dead letter " + strconv.FormatInt(id, 10), Letter: &d})
}

// number is the id in the path.
func number(r *http.Request) (int64, bool) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	return id, err == nil && id > 0
}

// event shows all deliveries of an event: to each of its destinations, and the replays.
func (p *panel) event(w http.ResponseWriter, r *http.Request) {
	f, err := filter(url.Values{"event": r.URL.Query()["id"]})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	all, err := p.src.Status(r.Context(), f.EventID)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	p.show(w, r, "event", view{Root: "./", Title: "Event " + f.EventID, Event: all})
}

func (p *panel) show(w http.ResponseWriter, r *http.Request, name string, v view) {
	v.Now = time.Now()
	if p.authorize != nil && p.authorize(r) {
		v.Token = p.tokenFor(w, r)
	}
	var page bytes.Buffer // an error half-way must not look like a page
	if err := pages.ExecuteTemplate(&page, name, v); err != nil {
		p.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page.Bytes())
}
