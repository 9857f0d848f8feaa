package statusz

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	streamEvery   = time.Second
	streamShare   = 20               // a stream sleeps this many times as long as it works
	streamTimeout = 10 * time.Second // for one event to be written
)

// An update is what one event of a stream tells: parts of the page by their ids, and for
// each table whose rows are others than before, or in another order, the ids of its rows.
type update struct {
	Parts map[string]string   `json:"parts"`
	Order map[string][]string `json:"order,omitempty"`
}

// stream sends what has changed, until the client or the server goes.
func (p *Page) stream(w http.ResponseWriter, r *http.Request, q query) {
	out := http.NewResponseController(w)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // else nginx would keep the events
	if err := out.Flush(); err != nil {
		http.Error(w, "this server cannot stream", http.StatusNotImplemented)
		return
	}
	stopping := p.stopping(r)
	s := sender{seed: maphash.MakeSeed(), parts: map[string]uint64{}, order: map[string][]string{}}
	for {
		began := time.Now()
		data, err := json.Marshal(s.update(p.view(q)))
		if err != nil {
			return
		}
		worked := time.Since(began)
		// The server's own timeout, if there is one, is for a whole answer.
		_ = out.SetWriteDeadline(time.Now().Add(streamTimeout))
		if _, err := fmt.Fprintf(w, "data: %s\n\n", data); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-time.After(max(streamEvery, streamShare*worked)):
		case <-r.Context().Done():
			return
		case <-stopping:
			return
		}
	}
}

// stopping is closed when the request's server shuts down, which would otherwise wait for
// every page that somebody left open. It is nil if the server is not known.
func (p *Page) stopping(r *http.Request) <-chan struct{} {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok {
		return nil
	}
	stopping := make(chan struct{})
	if known, ok := p.servers.LoadOrStore(server, stopping); ok {
		return known.(chan struct{})
	}
	server.RegisterOnShutdown(func() {
		p.servers.Delete(server)
		close(stopping)
	})
	return stopping
}

// A sender remembers what its client has.
type sender struct {
	seed  maphash.Seed
	parts map[string]uint64 // hashes, by id
	order map[string][]string
}

func (s *sender) update(v view) update {
	u := update{Parts: map[string]string{}, Order: map[string][]string{}}
	s.part(u, "at", rendered("at", v))
	for _, g := range v.Groups {
		s.part(u, g.ID+"-charts", rendered("charts", g))
		rows := make([]string, len(g.Rows))
		for i, r := range g.Rows {
			rows[i] = r.ID
			s.part(u, r.ID, string(r.html()))
		}
		table := g.ID + "-rows"
		if old, ok := s.order[table]; !ok || !slices.Equal(old, rows) {
			u.Order[table] = rows
			s.forget(old, rows)
			s.order[table] = rows
		}
	}
	return u
}

func rendered(template string, data any) string {
	var b strings.Builder
	if err := render(&b, template, data); err != nil {
		panic(err) // the template does not fit its data
	}
	return b.String()
}

// part adds one that is not as the client has it.
func (s *sender) part(u update, id, html string) {
	hash := maphash.String(s.seed, html)
	if old, ok := s.parts[id]; ok && old == hash {
		return
	}
	s.parts[id] = hash
	u.Parts[id] = html
}

// forget drops the rows that are gone: the client has not kept them.
func (s *sender) forget(old, rows []string) {
	here := make(map[string]bool, len(rows))
	for _, id := range rows {
		here[id] = true
	}
	for _, id := range old {
		if !here[id] {
			delete(s.parts, id)
		}
	}
}
