package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/faults"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// An answerer is a DNS server that gives one answer to all questions, for a time of
// zero. The addresses are of a network kept for documentation, and lead to places on
// loopback, as behind a gateway.
type answerer struct {
	conn   net.PacketConn
	code   atomic.Uint32 // dnsmessage.RCode
	addr   atomic.Pointer[netip.Addr]
	places map[netip.Addr]string
}

var (
	oldAddr = netip.MustParseAddr("192.0.2.1")
	newAddr = netip.MustParseAddr("192.0.2.2")
)

func newAnswerer(t *testing.T, places map[netip.Addr]string) *answerer {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	d := &answerer{conn: conn, places: places}
	d.addr.Store(&oldAddr)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 1<<10)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer, err := d.answer(buf[:n]); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		wg.Wait()
	})
	return d
}

func (d *answerer) answer(query []byte) ([]byte, error) {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: h.ID, Response: true, Authoritative: true, RCode: dnsmessage.RCode(d.code.Load())},
		Questions: []dnsmessage.Question{q},
	}
	if m.RCode == dnsmessage.RCodeSuccess && q.Type == dnsmessage.TypeA {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
			Body:   &dnsmessage.AResource{A: d.addr.Load().As4()},
		}}
	}
	return m.Pack()
}

// dial asks for the address of the host anew, and goes where it leads.
func (d *answerer) dial(ctx context.Context, network, hostport string) (net.Conn, error) {
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", d.conn.LocalAddr().String())
	}}
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, err
	}
	addrs, err := resolver.LookupNetIP(ctx, "ip4", host)
	if err != nil {
		return nil, err
	}
	place, ok := d.places[addrs[0].Unmap()]
	if !ok {
		return nil, fmt.Errorf("%v leads nowhere", addrs[0])
	}
	return new(net.Dialer).DialContext(ctx, network, place)
}

// base is one that looks names up with d.
func (d *answerer) base(t *testing.T, w wire) *http.Transport {
	b := newBase(w, nil)
	b.DialContext = d.dial
	t.Cleanup(b.CloseIdleConnections)
	return b
}

// service is the name of what moves from one address to another. The dot keeps the
// machine's own search list out of it.
const service = "http://service.test.:80"

func TestARetryFollowsAChangedAddress(t *testing.T) {
	t.Parallel()
	grid(t, 4<<10, 32<<10, func(t *testing.T, w wire, k kind, l *faults.Ledger, addr string) {
		gone := newRelay(t, addr)
		d := newAnswerer(t, map[netip.Addr]string{oldAddr: gone.addr, newAddr: addr})
		move := onFirstPause(func() { d.addr.Store(&newAddr) })
		client := newClient(d.base(t, w), retrip.WithTrace(move))
		out, err := k.do(t, client, l, service, "old")
		require.NoError(t, err)
		require.True(t, succeeded(out) && out.Attempts == 1, "%+v", out)

		// The old address refuses, and a new client has no connection to it.
		gone.stop()
		client = newClient(d.base(t, w), retrip.WithTrace(move))
		out, err = k.do(t, client, l, service, "moved")
		require.NoError(t, err)
		require.True(t, succeeded(out) && out.Attempts == 2, "%+v", out)
		require.Equal(t, 1, l.Of("moved").Work)
	})
}

func TestARetryWithoutKeptConnectionsLeavesAnAddressThatFails(t *testing.T) {
	t.Parallel()
	grid(t, 4<<10, 32<<10, func(t *testing.T, w wire, k kind, l *faults.Ledger, addr string) {
		var asked atomic.Int32
		overloaded := serve(t, w, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			rw.WriteHeader(http.StatusTooManyRequests)
		}))
		d := newAnswerer(t, map[netip.Addr]string{oldAddr: overloaded, newAddr: addr})
		base := d.base(t, w)
		base.DisableKeepAlives = true
		client := newClient(base, retrip.WithTrace(onFirstPause(func() { d.addr.Store(&newAddr) })))
		out, err := k.do(t, client, l, service, "call")
		require.NoError(t, err)
		require.EqualValues(t, 1, asked.Load())
		if k.again || k.bare() { // a 429 says that nothing was done
			require.True(t, succeeded(out) && out.Attempts == 2, "%+v", out)
			require.Equal(t, 1, l.Of("call").Work)
		}
	})
}

func TestANameThatIsNotKnownIsFinalAndAServerFailureIsNot(t *testing.T) {
	t.Parallel()
	grid(t, 4<<10, 32<<10, func(t *testing.T, w wire, k kind, l *faults.Ledger, addr string) {
		d := newAnswerer(t, map[netip.Addr]string{oldAddr: addr})
		d.code.Store(uint32(dnsmessage.RCodeNameError))
		client := newClient(d.base(t, w))
		out, err := k.do(t, client, l, service, "unknown")
		require.NoError(t, err)
		unknown, ok := errors.AsType[*net.DNSError](out.Err)
		require.True(t, ok && unknown.IsNotFound, "%v", out.Err)
		require.Zero(t, out.Attempts)

		d.code.Store(uint32(dnsmessage.RCodeServerFailure))
		client = newClient(d.base(t, w), retrip.WithTrace(onFirstPause(func() { d.code.Store(uint32(dnsmessage.RCodeSuccess)) })))
		out, err = k.do(t, client, l, service, "call")
		require.NoError(t, err)
		require.True(t, succeeded(out) && out.Attempts == 2, "%+v", out)
		require.Equal(t, 1, l.Of("call").Work)
		require.Equal(t, 1, l.Of("call").Arrivals)
	})
}
