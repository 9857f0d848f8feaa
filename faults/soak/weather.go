package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip-go/retrip/faults"
)

// A fault is one way for a server to fail. hit answers a request, or does not; nil is
// a server that is not there. Answers whose work is lost come from the ledger, so that
// it knows.
type fault struct {
	name string
	hit  func(s *site, w http.ResponseWriter, r *http.Request)
}

const healthy = "none"

// blackout is how long a server that never answers waits for its caller to go away.
const blackout = 2 * attemptTimeout

var weathers = []fault{
	{healthy, (*site).work},
	{"slow", func(s *site, w http.ResponseWriter, r *http.Request) {
		time.Sleep(s.below(200 * time.Millisecond))
		s.work(w, r)
	}},
	{"500", answer(500, "", whole)},
	{"503", answer(503, "", whole)},
	{"503, Retry-After 0", answer(503, "0", whole)},
	{"503, Retry-After 1", answer(503, "1", whole)},
	{"429, Retry-After 0", answer(429, "0", whole)},
	{"429, Retry-After 1", answer(429, "1", whole)},
	{"503 before the body came", answer(503, "", func(*http.Request) {})},
	{"503 that is huge", func(s *site, w http.ResponseWriter, r *http.Request) {
		s.arrived(r)
		whole(r)
		if s.below(2) == 0 { // else it is chunked
			w.Header().Set("Content-Length", strconv.Itoa(len(noise)))
		}
		w.WriteHeader(503)
		_, _ = w.Write(noise)
	}},
	{"reset before reading", func(s *site, _ http.ResponseWriter, r *http.Request) {
		s.arrived(r)
		reset(r)
	}},
	{"reset after the work", func(s *site, _ http.ResponseWriter, r *http.Request) {
		s.Ledger.ServeHTTP(unheard{http.Header{}}, r)
		reset(r)
	}},
	{"reset in the headers", func(s *site, w http.ResponseWriter, r *http.Request) {
		s.Ledger.ServeHTTP(unheard{http.Header{}}, r)
		if conn, buf, err := http.NewResponseController(w).Hijack(); err == nil {
			_, _ = buf.WriteString("HTTP/1.1 200 OK\r\nContent-Le")
			_ = buf.Flush()
			defer func() { _ = conn.Close() }()
		}
		reset(r)
	}},
	{"reset in the body", func(s *site, w http.ResponseWriter, r *http.Request) {
		s.work(&torn{w, func() { reset(r) }}, r)
	}},
	{"body cut short", func(s *site, w http.ResponseWriter, r *http.Request) {
		s.work(&torn{w, abort}, r)
	}},
	{"closed without an answer", func(s *site, _ http.ResponseWriter, r *http.Request) {
		s.arrived(r)
		whole(r)
		abort() // over HTTP/2 this resets the stream
	}},
	{"silence", func(s *site, _ http.ResponseWriter, r *http.Request) {
		s.arrived(r)
		timer := time.NewTimer(blackout)
		defer timer.Stop()
		select {
		case <-r.Context().Done():
		case <-timer.C:
		}
		abort()
	}},
	{"refused", nil},
}

// answer returns a status with few bytes, once as much of the request was read as read
// does. The ledger takes no note of what got a 429: it was not done, and may be sent
// again whatever it is.
func answer(status int, retryAfter string, read func(*http.Request)) func(*site, http.ResponseWriter, *http.Request) {
	return func(s *site, w http.ResponseWriter, r *http.Request) {
		if status != 429 {
			s.arrived(r)
		}
		read(r)
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, http.StatusText(status))
	}
}

// whole reads the body.
func whole(r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		abort()
	}
}

func abort() { panic(http.ErrAbortHandler) }

type connKey struct{}

// reset makes the connection end with an RST, and the answer with it.
func reset(r *http.Request) {
	conn := r.Context().Value(connKey{}).(net.Conn)
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
	abort()
}

// unheard takes an answer that nobody gets.
type unheard struct{ header http.Header }

func (u unheard) Header() http.Header         { return u.header }
func (u unheard) WriteHeader(int)             {}
func (u unheard) Write(p []byte) (int, error) { return len(p), nil }

// torn is an answer that ends after half of its body.
type torn struct {
	http.ResponseWriter
	end func()
}

func (t *torn) Write(p []byte) (int, error) {
	_, _ = t.ResponseWriter.Write(p[:len(p)/2])
	_ = http.NewResponseController(t.ResponseWriter).Flush()
	t.end()
	return len(p), nil
}

// A site is one host: a server with a ledger behind a weather.
type site struct {
	faults.Ledger
	name     string // host:port
	url      string
	server   *http.Server
	tls      *tls.Config // nil: HTTP/1.1 without TLS
	spell    atomic.Pointer[spell]
	arrivals atomic.Int64
	serving  sync.WaitGroup

	mu       sync.Mutex
	random   *rand.Rand // for single requests
	conns    map[net.Conn]bool
	listener net.Listener
}

// A spell is the weather of a site for a while. The fault hits a share of the
// requests; the others are served.
type spell struct {
	fault
	share float64
}

func newSite(seed, number uint64, secure *tls.Config) *site {
	s := &site{
		tls:    secure,
		random: rand.New(rand.NewPCG(seed, number)),
		conns:  make(map[net.Conn]bool),
	}
	s.spell.Store(&spell{fault: weathers[0]})
	s.server = &http.Server{
		Handler:     s,
		ErrorLog:    log.New(io.Discard, "", 0),
		Protocols:   new(http.Protocols),
		TLSConfig:   secure,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ConnState:   s.track,
	}
	s.server.Protocols.SetHTTP1(secure == nil)
	s.server.Protocols.SetHTTP2(secure != nil)
	return s
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.arrivals.Add(1)
	if now := s.spell.Load(); now.hit != nil && s.chance(now.share) {
		now.hit(s, w, r)
		return
	}
	s.work(w, r)
}

func (s *site) work(w http.ResponseWriter, r *http.Request) { s.Ledger.ServeHTTP(w, r) }

func (s *site) arrived(r *http.Request) {
	if err := s.Arrived(r); err != nil {
		abort()
	}
}

func (s *site) chance(share float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.Float64() < share
}

func (s *site) below(d time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.random.Int64N(int64(d)))
}

// track keeps the connections that are open.
func (s *site) track(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		s.conns[c] = true
	case http.StateClosed, http.StateHijacked: // who hijacks it closes it at once
		delete(s.conns, c)
	}
}

func (s *site) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// open finds a port and listens on it. It is one that the system does not give away by
// itself: while a site is down, nobody else may answer in its place.
func (s *site) open() error {
	for range 100 {
		s.name = net.JoinHostPort("127.0.0.1", strconv.Itoa(20_000+rand.IntN(12_000)))
		if s.up() == nil {
			s.url = "http://" + s.name + "/"
			if s.tls != nil {
				s.url = "https://" + s.name + "/"
			}
			return nil
		}
	}
	return errors.New("no free port between 20000 and 32000 on 127.0.0.1")
}

// up listens, unless it does so already.
func (s *site) up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp", s.name)
	if err != nil {
		return err
	}
	s.listener = l
	s.serving.Go(func() {
		if s.tls != nil {
			_ = s.server.ServeTLS(l, "", "")
		} else {
			_ = s.server.Serve(l)
		}
	})
	return nil
}

// down closes the listener and all connections, as a process that dies does.
func (s *site) down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		_ = s.listener.Close()
		s.listener = nil
	}
	for c := range s.conns {
		_ = c.Close()
	}
}

// change lets the weather change until ctx ends, then makes it fine. Half of the time
// it is.
func (s *site) change(ctx context.Context, random *rand.Rand, debugf func(string, ...any)) {
	for n := 0; ctx.Err() == nil; n++ {
		next := &spell{fault: weathers[0]}
		if n%2 == 1 {
			next.fault = weathers[1+random.IntN(len(weathers)-1)]
			next.share = []float64{0.1, 0.3, 0.6, 1}[random.IntN(4)]
		}
		s.set(next)
		pause := 100*time.Millisecond + time.Duration(random.Int64N(int64(1200*time.Millisecond)))
		debugf("%s: %s for %.0f %% of the requests, %v", s.name, next.name, 100*next.share, pause.Round(time.Millisecond))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	s.set(&spell{fault: weathers[0]})
}

func (s *site) set(next *spell) {
	s.spell.Store(next)
	if next.hit == nil {
		s.down()
		return
	}
	// If the port is taken, the site is down for another spell.
	_ = s.up()
}

func (s *site) close() error {
	if err := s.server.Close(); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	s.serving.Wait()
	return nil
}
