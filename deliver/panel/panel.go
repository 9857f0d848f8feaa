// Package panel is a page over a deliver.Client: destinations and how they do, what is
// under way, the dead letters and their replay. It is made of plain HTML: no scripts, and
// nothing from elsewhere.
//
//	http.Handle("/webhooks/", http.StripPrefix("/webhooks", panel.Handler(client, panel.WithAuthorize(isOperator))))
//
// Whoever can reach it sees payloads and answers: put it behind the application's own
// authentication. Of URLs it shows the host alone, and no secrets.
package panel

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/retrip-go/retrip/deliver"
)

// A Source is what a panel shows: a deliver.Client.
type Source interface {
	Destinations() *deliver.Destinations
	Dead() *deliver.DeadLetters
	Pending(ctx context.Context, n int) ([]deliver.Status, error)
	Stats(ctx context.Context, since time.Time) ([]deliver.Stats, error)
	Status(ctx context.Context, eventID string) ([]deliver.Status, error)
}

// An Option sets something of a panel.
type Option func(*panel)

// WithAuthorize lets those replay dead letters for whose requests allow returns true.
// It is asked for each page, which shows buttons or not, and again for each replay.
// Without it the panel changes nothing.
//
// A replay needs a token that the same process put into the page, and must not come
// from a page elsewhere. Where several processes serve one panel, requests of one
// browser must reach the same.
func WithAuthorize(allow func(*http.Request) bool) Option {
	return func(p *panel) { p.authorize = allow }
}

// WithLogger sets where errors of the database are logged; the default is slog.Default.
// The pages do not repeat them.
func WithLogger(l *slog.Logger) Option { return func(p *panel) { p.log = l } }

//go:embed page.html
var pageHTML string

//go:embed style.css
var styleCSS []byte

var pages = template.Must(template.New("").Funcs(functions).Parse(pageHTML))

type panel struct {
	src       Source
	authorize func(*http.Request) bool // nil: read-only
	log       *slog.Logger
	key       []byte // of the tokens
	cross     *http.CrossOriginProtection
}

// Nothing may be loaded but the style sheet and the empty icon, nor may the page be
// framed.
const policy = "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Handler returns the page of a client. It may be mounted anywhere, by
// http.StripPrefix: all its links are relative.
func Handler(src Source, opts ...Option) http.Handler {
	p := &panel{src: src, log: slog.Default(), key: make([]byte, 32), cross: http.NewCrossOriginProtection()}
	_, _ = rand.Read(p.key)
	for _, o := range opts {
		o(p)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.overview)
	mux.HandleFunc("GET /dead", p.dead)
	mux.HandleFunc("GET /dead/{id}", p.letter)
	mux.HandleFunc("POST /dead/{id}/replay", p.replay)
	mux.HandleFunc("GET /event", p.event)
	mux.HandleFunc("GET /style.css", style)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		// Not no-referrer: with that browsers send "Origin: null" with the panel's own
		// forms, which is all there is to tell them by where plain HTTP is spoken.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if r = rooted(w, r); r != nil {
			mux.ServeHTTP(w, r)
		}
	})
}

// rooted makes up for a StripPrefix that took the slash too. Relative links need the
// slash of the mount point: who asks without it is sent there, and rooted returns nil.
func rooted(w http.ResponseWriter, r *http.Request) *http.Request {
	if strings.HasPrefix(r.URL.Path, "/") {
		return r
	}
	asked, err := url.ParseRequestURI(r.RequestURI)
	if err == nil && r.URL.Path == "" && !strings.HasSuffix(asked.Path, "/") {
		// http.Redirect would make it absolute by the path that is left.
		w.Header().Set("Location", "./"+path.Base(asked.EscapedPath())+"/")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return nil
	}
	r2 := *r
	u := *r.URL
	u.Path = "/" + u.Path
	if u.RawPath != "" {
		u.RawPath = "/" + u.RawPath
	}
	r2.URL = &u
	return &r2
}

// styleVersion makes a new style sheet have a new address.
var styleVersion = fmt.Sprintf("%.4x", sha256.Sum256(styleCSS))

func style(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/css; charset=utf-8")
	w.Header().Set("Cache-Control", "private, max-age=86400")
	_, _ = w.Write(styleCSS)
}

// fail does not repeat the error to the reader: it may hold an address or a name.
func (p *panel) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, deliver.ErrNotFound) {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	if r.Context().Err() == nil {
		p.log.ErrorContext(r.Context(), "panel: the store cannot be read", "err", err)
	}
	http.Error(w, "the store cannot be read; see the log", http.StatusInternalServerError)
}
