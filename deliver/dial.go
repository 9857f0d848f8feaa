package deliver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"

	"github.com/retrip-go/retrip"
)

// dialing says which addresses may be connected to.
type dialing struct{ allowed []netip.Prefix }

// WithAllowedNetworks lets deliveries go to addresses that are not public, such as
// 10.0.0.0/8. By default loopback, private, link-local (and with it the clouds'
// metadata services), shared, multicast, reserved and unspecified addresses are
// refused, so that whoever names a destination cannot reach inside.
//
// The address is checked when it is dialled, after the name was looked up: a name that
// is looked up differently the next time gains nothing.
func WithAllowedNetworks(prefixes ...netip.Prefix) Option {
	for _, p := range prefixes {
		if !p.IsValid() {
			panic(fmt.Sprintf("deliver: WithAllowedNetworks(%v): not a network", p))
		}
	}
	return func(c *config) { c.dialing.allowed = slices.Concat(c.dialing.allowed, prefixes) }
}

// reserved are the networks that are not public and that netip has no method for
// (IANA's special-purpose registries).
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("2001::/23"), // Teredo among them
	netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"), // 6to4: holds any IPv4 address
	netip.MustParsePrefix("3fff::/20"),
}

// public6 is all that IPv6 has of public addresses. Outside of it lie those that hold an
// IPv4 address, which a translator on the way would send there (64:ff9b::/96, ::/96).
var public6 = netip.MustParsePrefix("2000::/3")

func (d dialing) permits(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if slices.ContainsFunc(d.allowed, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return true
	}
	return addr.IsGlobalUnicast() && !addr.IsPrivate() && (addr.Is4() || public6.Contains(addr)) &&
		!slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// errForbidden is about a destination's address.
var errForbidden = errors.New("its address is not public, and not allowed")

// control is called for each address before it is connected to.
func (d dialing) control(_, address string, _ syscall.RawConn) error {
	addr, err := netip.ParseAddrPort(address)
	if err != nil || !d.permits(addr.Addr()) {
		return errForbidden
	}
	return nil
}

func newTransport(c *config) *retrip.Transport {
	base := c.transport
	if base == nil {
		dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, Control: c.dialing.control}
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.Proxy = nil // a proxy would look up the name itself
		t.DialContext = dialer.DialContext
		// With fewer idle places than requests at once net/http now and then fails a POST
		// that was answered.
		t.MaxIdleConns, t.MaxIdleConnsPerHost = 2*c.workers, c.workers
		t.ResponseHeaderTimeout = 0
		t.MaxResponseHeaderBytes = 256 << 10
		base = t
	}
	opts := []retrip.Option{retrip.WithMaxAttempts(1)}
	for _, o := range c.again {
		opts = append(opts, o)
	}
	// The destination's breaker is the database's.
	opts = append(opts, retrip.WithBreaker(nil), retrip.WithRetryQuota(nil))
	rt := retrip.New(base, opts...)
	if c.observer != nil {
		c.observer(rt)
	}
	return rt
}

// explain is an error's text without the URL, which may hold a secret.
func explain(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "timed out"
	}
	return clip(err.Error(), answerSize)
}
