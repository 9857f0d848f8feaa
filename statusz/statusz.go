// Package statusz is a page over live Transports, in the spirit of net/http/pprof: for
// each host the rates of success and of retries, the pauses, the breaker and when it
// lets a probe through, the quota, the last failures, and charts of the last 15 minutes.
//
//	http.Handle("/debug/retrip", statusz.Handler(client.Transport.(*retrip.Transport)))
//
// The page needs nothing from elsewhere and changes nothing. It names the hosts that are
// called, and no path, query, header or body; put it where the application's other debug
// pages are, behind its own authentication. The same as JSON, which does not change but
// by new fields, is at ?format=json: see Snapshot.
package statusz

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/retrip-go/retrip"
)

// A Page is an http.Handler that shows Transports. It may be mounted anywhere and is
// safe for concurrent use.
//
// It keeps about 3 KiB a host, for the 1,024 hosts of each Transport that were used last.
type Page struct {
	mu      sync.Mutex
	watched []*watched
	closed  bool

	servers sync.Map // of *http.Server to a channel that its Shutdown closes
}

// Handler returns a Page of Transports, which are named "1", "2" and so on; Add gives
// them names that say more. What it counts begins now. A request that succeeds at once
// still costs no allocation.
//
// Handler panics if a Transport is nil.
func Handler(transports ...*retrip.Transport) *Page {
	p := &Page{}
	for i, t := range transports {
		p.Add(strconv.Itoa(i+1), t)
	}
	return p
}

// Add puts another Transport on the page and returns the page.
//
//	http.Handle("/debug/retrip", statusz.Handler().Add("billing", a).Add("mail", b))
//
// Add panics if t is nil, if the name is empty or on the page already, or after Close.
func (p *Page) Add(name string, t *retrip.Transport) *Page {
	if t == nil {
		panic(fmt.Sprintf("statusz: Add(%q, nil): no Transport", name))
	}
	if name == "" {
		panic(`statusz: Add(""): a Transport without a name`)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		panic(fmt.Sprintf("statusz: Add(%q) after Close", name))
	}
	for _, w := range p.watched {
		if w.name == name {
			panic(fmt.Sprintf("statusz: Add(%q): there is one of that name", name))
		}
	}
	p.watched = append(p.watched, watch(name, t))
	return p
}

// Close takes the page's hooks from its Transports. It shows what it has counted until
// then.
func (p *Page) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, w := range p.watched {
		w.stop()
	}
}

// ServeHTTP answers GET and HEAD. The query may have format=json; host, which is a part
// of the names of the hosts to show; state, which is that of their breakers; sort, the
// column, with a minus before it for the largest first; and window=15m, for counts of
// the last 15 minutes.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the page can only be read", http.StatusMethodNotAllowed)
		return
	}
	q, err := parse(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch {
	case q.json:
		h.Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p.snapshot(q))
	case q.stream && r.Method == http.MethodGet:
		p.stream(w, r, q)
	default:
		h.Set("Content-Type", "text/html; charset=utf-8")
		_ = render(w, "page", p.view(q))
	}
}

// Snapshot returns what the page shows, of all hosts.
func (p *Page) Snapshot() Snapshot { return p.snapshot(query{}) }
