package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/retrip-go/retrip"
)

// A server misbehaves by script, one step for each request that arrives, and then
// no more.
type server struct {
	url   string
	close func()

	mu      sync.Mutex
	script  []step
	work    int               // times it was done
	answers map[string]string // by idempotency key
}

// A host is what kind of server there is.
type host int

const (
	http1     host = iota
	http2          // over TLS
	untrusted      // with a certificate that nobody trusts
	down           // none
)

func serve(kind host, script []step, cert tls.Certificate) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{script: script, answers: map[string]string{}, url: "http://" + l.Addr().String()}
	srv := &http.Server{
		Handler:     s,
		ErrorLog:    log.New(io.Discard, "", 0), // it fails on purpose
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	s.close = func() { srv.Close() }
	switch kind {
	case http1:
		go srv.Serve(l)
		return s, nil
	case down:
		return s, s.shut(l)
	case untrusted:
		if cert, _, err = newCertificate("a stranger"); err != nil {
			return nil, err
		}
	}
	s.url = "https://" + l.Addr().String()
	srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
	go srv.ServeTLS(l, "", "")
	return s, nil
}

// shut moves the server to a port on which nobody listens, nor can come to listen:
// the client's end of a connection.
func (s *server) shut(l net.Listener) error {
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	s.url, s.close = "http://"+c.LocalAddr().String(), func() { c.Close() }
	return nil
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client went away
	}
	if r.Method != http.MethodGet && string(body) != content {
		http.Error(w, "this is not the body that was sent", 422)
		return
	}
	s.next()(s, w, r)
}

func (s *server) next() step {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.script) == 0 {
		return behave
	}
	do := s.script[0]
	s.script = s.script[1:]
	return do
}

// answer does the work, but once for all requests with one key: the others get the
// answer that the first one got, or would have got.
func (s *server) answer(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.answers[key]; ok {
		return a
	}
	s.work++
	a := fmt.Sprintf("done, number %d", s.work)
	if key != "" {
		s.answers[key] = a
	}
	return a
}

func (s *server) done() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.work
}

// A step is what the server does with one request, whose body it has read.
type step func(*server, http.ResponseWriter, *http.Request)

func behave(s *server, w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, s.answer(r.Header.Get(retrip.KeyHeader)))
}

// status answers with the status and header fields: name, value, name, value.
func status(code int, fields ...string) step {
	return func(_ *server, w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(fields); i += 2 {
			w.Header().Set(fields[i], fields[i+1])
		}
		http.Error(w, "not now", code)
	}
}

// afterWork does the work, and then something from which a client cannot know that.
func afterWork(then step) step {
	return func(s *server, w http.ResponseWriter, r *http.Request) {
		s.answer(r.Header.Get(retrip.KeyHeader))
		then(s, w, r)
	}
}

func redirect(_ *server, w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, "/moved", http.StatusTemporaryRedirect)
}

// sleep does not answer at all.
func sleep(_ *server, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// abort ends the response before it began, and over HTTP/2 only that.
func abort(*server, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// hangUp closes the connection.
func hangUp(_ *server, _ http.ResponseWriter, r *http.Request) {
	connOf(r).Close()
	panic(http.ErrAbortHandler)
}

// reset closes the connection without a farewell, as a crash does.
func reset(s *server, w http.ResponseWriter, r *http.Request) {
	connOf(r).SetLinger(0)
	hangUp(s, w, r)
}

type connKey struct{}

// connOf returns the connection on which the request came. Hijack would not do
// for HTTP/2.
func connOf(r *http.Request) *net.TCPConn {
	c := r.Context().Value(connKey{}).(net.Conn)
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*net.TCPConn)
}

// newCertificate makes one for 127.0.0.1, signed by itself, and what to trust it by.
func newCertificate(name string) (tls.Certificate, *x509.CertPool, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: cert}, roots, nil
}
