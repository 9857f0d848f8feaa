package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheQuotaOfQuietClientsHardlyLimitsTheirFleet(t *testing.T) {
	t.Parallel()
	loads := map[string][2]float64{}
	for _, c := range fleetClients() {
		d := inWorld(t, armada{c, 200, 200.0 / 60, 10 * time.Minute})
		loads[c.name] = [2]float64{d.first.load(), d.last.load()}
	}
	require.InDelta(t, 4, loads["no quota"][0], 0.1)
	require.InDelta(t, 4, loads["no quota"][1], 0.1)
	// The bucket is soon empty; the reserve pays for one retry of each request, since
	// the others would come within 10 s.
	require.InDelta(t, 3.3, loads["retrip's quota"][0], 0.3)
	require.InDelta(t, 2, loads["retrip's quota"][1], 0.1)
	// The breaker opens after five requests, and looks again with most of the next ones.
	require.InDelta(t, 1.25, loads["retrip as shipped"][1], 0.2)
	small := loads["initial 1, reserve 0.01/s"]
	require.Less(t, small[0], 1.8)
	require.Less(t, small[1], 1.5)
	require.Less(t, loads["and a breaker at 5 in a row"][0], small[0])
}

func TestAFleetsLoadGrowsWithItsClients(t *testing.T) {
	t.Parallel()
	few := inWorld(t, armada{shipped(), 100, 100.0 / 60, 2 * time.Minute})
	many := inWorld(t, armada{shipped(), 2000, 2000.0 / 60, 2 * time.Minute})
	require.InEpsilon(t, 20*few.first.sent, many.first.sent, 0.15)
	require.InDelta(t, few.first.load(), many.first.load(), 0.2)
}
