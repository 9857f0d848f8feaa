package deliver

import "net/netip"

// Permits says whether an address may be connected to.
func Permits(addr netip.Addr, allowed ...netip.Prefix) bool { return dialing{allowed}.permits(addr) }
