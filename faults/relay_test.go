package faults_test

import (
	"bytes"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// whole is a limit that is never reached.
const whole = math.MaxInt64

// A plan is what a relay does to one connection. It breaks it instead of passing the
// byte after so many, up to the server or down to the client.
type plan struct {
	up, down int64
	reset    bool // by RST, else by FIN

	tap  *[2]bytes.Buffer // of what was passed up and down, if that is wanted
	over chan struct{}    // closed when the connection is
}

// A relay passes bytes between its clients and one server, without a look at them.
type relay struct {
	addr   string
	target string
	ln     net.Listener
	next   atomic.Pointer[plan] // for the next connection alone; those after it are passed whole

	wg      sync.WaitGroup
	mu      sync.Mutex
	links   map[*link]struct{}
	stopped bool
}

// A link is one connection through a relay.
type link struct {
	plan
	client, server *net.TCPConn
	frozen         atomic.Bool // what comes is read and dropped
}

func newRelay(t *testing.T, target string) *relay {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{addr: ln.Addr().String(), target: target, ln: ln, links: make(map[*link]struct{})}
	r.wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			l := &link{plan: plan{up: whole, down: whole}, client: conn.(*net.TCPConn)}
			if p := r.next.Swap(nil); p != nil {
				l.plan = *p
			}
			r.wg.Go(func() { r.pass(l) })
		}
	})
	t.Cleanup(r.stop)
	return r
}

// stop closes all connections; further ones are refused.
func (r *relay) stop() {
	_ = r.ln.Close()
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.all((*link).close)
	r.wg.Wait()
}

// freeze makes black holes of the connections that are open.
func (r *relay) freeze() { r.all(func(l *link) { l.frozen.Store(true) }) }

func (r *relay) all(f func(*link)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		f(l)
	}
}

func (r *relay) pass(l *link) {
	defer func() {
		if l.over != nil {
			close(l.over)
		}
	}()
	conn, err := net.Dial("tcp", r.target)
	if err != nil {
		_ = l.client.Close()
		return
	}
	l.server = conn.(*net.TCPConn)
	r.mu.Lock()
	r.links[l] = struct{}{}
	if r.stopped {
		l.close()
	}
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.pump(l.server, l.client, l.up, 0) })
	both.Go(func() { l.pump(l.client, l.server, l.down, 1) })
	both.Wait()
	r.mu.Lock()
	delete(r.links, l)
	r.mu.Unlock()
}

// pump passes bytes until there are no more, or one too many.
func (l *link) pump(dst, src *net.TCPConn, limit int64, way int) {
	defer l.close()
	buf := make([]byte, 8<<10)
	for {
		n, err := src.Read(buf)
		if !l.frozen.Load() {
			pass := buf[:min(int64(n), limit)]
			if l.tap != nil {
				l.tap[way].Write(pass)
			}
			if _, err := dst.Write(pass); err != nil && !l.frozen.Load() {
				return
			}
			limit -= int64(len(pass))
			if len(pass) < n && l.cut() {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut breaks both connections, and reports whether nothing is left of them. After a
// FIN what still comes is read: closing a connection with bytes unread sends a RST.
func (l *link) cut() bool {
	l.frozen.Store(true)
	if l.reset {
		_ = l.client.SetLinger(0)
		_ = l.server.SetLinger(0)
		return true
	}
	_ = l.client.CloseWrite()
	_ = l.server.CloseWrite()
	return false
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}
