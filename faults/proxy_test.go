package faults_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/faults"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func newProxy(t *testing.T, upstream string) *toxiproxy.Proxy {
	s := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(s, t.Name(), "127.0.0.1:0", upstream)
	require.NoError(t, p.Start())
	t.Cleanup(p.Stop)
	return p
}

// poison adds a toxic to all connections of the proxy, and returns what takes it
// away.
func poison(t *testing.T, p *toxiproxy.Proxy, toxic string) (lift func()) {
	added, err := p.Toxics.AddToxicJson(strings.NewReader(toxic))
	require.NoError(t, err)
	return func() { _ = p.Toxics.RemoveToxic(context.Background(), added.Name) }
}

// grid runs a test for all kinds of requests over both versions of HTTP, each with a
// server of its own.
func grid(t *testing.T, body, answer int, test func(t *testing.T, w wire, k kind, l *faults.Ledger, addr string)) {
	for _, w := range []wire{http1, h2c} {
		for _, k := range kinds(body, answer) {
			t.Run(string(w)+"/"+k.name, func(t *testing.T) {
				t.Parallel()
				l := new(faults.Ledger)
				test(t, w, k, l, serve(t, w, l))
			})
		}
	}
}

func TestASlowNetworkIsNoReasonToRetry(t *testing.T) {
	t.Parallel()
	for name, toxics := range map[string][]string{
		"LatencyWithJitter": {
			`{"type":"latency","stream":"upstream","attributes":{"latency":8,"jitter":7}}`,
			`{"type":"latency","stream":"downstream","attributes":{"latency":8,"jitter":7}}`,
		},
		"LittleBandwidth": {
			`{"type":"bandwidth","stream":"upstream","attributes":{"rate":1000}}`,
			`{"type":"bandwidth","stream":"downstream","attributes":{"rate":1000}}`,
		},
		"SlowClose": {
			`{"type":"slow_close","stream":"upstream","attributes":{"delay":50}}`,
			`{"type":"slow_close","stream":"downstream","attributes":{"delay":50}}`,
		},
		"SmallPackets": {
			`{"type":"slicer","stream":"upstream","attributes":{"average_size":512,"size_variation":500,"delay":10}}`,
			`{"type":"slicer","stream":"downstream","attributes":{"average_size":512,"size_variation":500,"delay":10}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			grid(t, 20<<10, 100<<10, func(t *testing.T, w wire, k kind, l *faults.Ledger, addr string) {
				p := newProxy(t, addr)
				for _, toxic := range toxics {
					poison(t, p, toxic)
				}
				base := newBase(w, nil)
				t.Cleanup(base.CloseIdleConnections)
				client := newClient(base, retrip.WithAttemptTimeout(patience))
				for _, id := range []string{"first", "next"} {
					out, err := k.do(t, client, l, "http://"+p.Listen, id)
					require.NoError(t, err)
					require.NoError(t, out.Err)
					require.Equal(t, faults.Outcome{Status: http.StatusOK, Attempts: 1}, out)
					require.Equal(t, 1, l.Of(id).Arrivals)
					require.Equal(t, 1, l.Of(id).Work)
				}
			})
		})
	}
}

func TestWhatMayBeRepeatedOutlivesAFaultThatPasses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		toxic   string
		timeout time.Duration // of an attempt; 0: the fault makes itself known
	}{
		"AnswerCutInItsHeader":         {`{"type":"limit_data","stream":"downstream","attributes":{"bytes":40}}`, 0},
		"RequestCutInItsHeader":        {`{"type":"limit_data","stream":"upstream","attributes":{"bytes":40}}`, 0},
		"ResetByTheAnswer":             {`{"type":"reset_peer","stream":"downstream","attributes":{"timeout":0}}`, 0},
		"ResetByTheRequest":            {`{"type":"reset_peer","stream":"upstream","attributes":{"timeout":0}}`, 0},
		"ClosedAfterASilence":          {`{"type":"timeout","stream":"downstream","attributes":{"timeout":30}}`, 0},
		"BlackHoleThatTakesTheAnswer":  {`{"type":"timeout","stream":"downstream","attributes":{"timeout":0}}`, 250 * time.Millisecond},
		"BlackHoleThatTakesTheRequest": {`{"type":"timeout","stream":"upstream","attributes":{"timeout":0}}`, 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			grid(t, 4<<10, 32<<10, func(t *testing.T, w wire, k kind, l *faults.Ledger, addr string) {
				p := newProxy(t, addr)
				base := newBase(w, nil)
				t.Cleanup(base.CloseIdleConnections)
				lift := poison(t, p, test.toxic)
				client := newClient(base, retrip.WithMaxAttempts(20), retrip.WithAttemptTimeout(test.timeout),
					retrip.WithTrace(onFirstPause(lift)))
				out, err := k.do(t, client, l, "http://"+p.Listen, "first")
				require.NoError(t, err)
				switch {
				case k.again:
					require.True(t, succeeded(out) && out.Attempts > 1, "%+v", out)
				case k.bare() && w == http1:
					// The frames of HTTP/2 may spring the trap before the request is sent.
					require.Error(t, out.Err)
					require.Zero(t, out.Attempts)
				}
				if out.Err != nil && test.timeout > 0 {
					requireTimeout(t, out.Err)
				}

				lift()
				client = newClient(base, retrip.WithMaxAttempts(20), retrip.WithAttemptTimeout(patience))
				out, err = k.do(t, client, l, "http://"+p.Listen, "later")
				require.NoError(t, err)
				if k.again || w == http1 {
					// A bare request over a connection of HTTP/2 that dies as the toxic is
					// taken away is not repeated.
					require.True(t, succeeded(out), "%+v", out)
				}
			})
		})
	}
}

func requireTimeout(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	timeout, ok := errors.AsType[net.Error](err)
	require.True(t, ok && timeout.Timeout(), "%v", err)
}

func TestAFaultThatStaysEndsInOneHonestError(t *testing.T) {
	t.Parallel()
	for name, toxic := range map[string]string{
		"EveryAnswerIsCut":   `{"type":"limit_data","stream":"downstream","attributes":{"bytes":40}}`,
		"EveryRequestIsCut":  `{"type":"limit_data","stream":"upstream","attributes":{"bytes":40}}`,
		"EveryAnswerIsReset": `{"type":"reset_peer","stream":"downstream","attributes":{"timeout":0}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			grid(t, 4<<10, 32<<10, func(t *testing.T, w wire, k kind, l *faults.Ledger, addr string) {
				p := newProxy(t, addr)
				base := newBase(w, nil)
				t.Cleanup(base.CloseIdleConnections)
				poison(t, p, toxic)
				out, err := k.do(t, newClient(base, retrip.WithMaxAttempts(3)), l, "http://"+p.Listen, "call")
				require.NoError(t, err)
				require.Error(t, out.Err)
				require.Zero(t, out.Status)
				require.LessOrEqual(t, l.Of("call").Arrivals, 3)
				if k.again {
					failed, ok := errors.AsType[*retrip.Error](out.Err)
					require.True(t, ok, "%v", out.Err)
					require.Equal(t, retrip.ReasonAttempts, failed.Reason)
					require.Len(t, failed.Attempts, 3)
				}
			})
		})
	}
}

func TestARefusedConnectionIsTriedAgainWhateverTheRequest(t *testing.T) {
	t.Parallel()
	grid(t, 4<<10, 32<<10, func(t *testing.T, w wire, k kind, l *faults.Ledger, addr string) {
		p := newProxy(t, addr)
		base := newBase(w, nil)
		t.Cleanup(base.CloseIdleConnections)
		p.Stop()
		client := newClient(base, retrip.WithTrace(onFirstPause(func() {
			require.True(t, eventually(func() bool { return p.Start() == nil }))
		})))
		out, err := k.do(t, client, l, "http://"+p.Listen, "call")
		require.NoError(t, err)
		require.True(t, succeeded(out) && out.Attempts == 2, "%+v", out)
		require.Equal(t, 1, l.Of("call").Work)
		require.Equal(t, 1, l.Of("call").Arrivals)
	})
}

// The connection is kept by the client, and forgotten by whatever is in between.
func TestAHalfOpenConnectionCostsAnAttempt(t *testing.T) {
	t.Parallel()
	grid(t, 4<<10, 32<<10, func(t *testing.T, w wire, k kind, l *faults.Ledger, addr string) {
		r := newRelay(t, addr)
		base := newBase(w, nil)
		t.Cleanup(base.CloseIdleConnections)
		opts := []retrip.Option{retrip.WithMaxAttempts(20)}
		if w == http1 {
			opts = append(opts, retrip.WithAttemptTimeout(time.Second))
		} else {
			// The end of an attempt is not the end of its HTTP/2 connection: only a ping
			// finds out that nobody is there.
			base.HTTP2 = &http.HTTP2Config{SendPingTimeout: 50 * time.Millisecond, PingTimeout: 2 * time.Second}
		}
		out, err := k.do(t, newClient(base), l, "http://"+r.addr, "before")
		require.NoError(t, err)
		require.True(t, succeeded(out), "%+v", out)

		r.freeze()
		out, err = k.do(t, newClient(base, opts...), l, "http://"+r.addr, "call")
		require.NoError(t, err)
		if k.again {
			require.True(t, succeeded(out) && out.Attempts > 1, "%+v", out)
			// On a busy machine an attempt's second may be over although it arrived.
			require.GreaterOrEqual(t, l.Of("call").Work, 1)
			require.Less(t, l.Of("call").Work, out.Attempts)
		}
		if k.bare() {
			require.Error(t, out.Err)
			require.Zero(t, l.Of("call").Arrivals)
			if w == http1 {
				requireTimeout(t, out.Err)
			}
		}
	})
}
