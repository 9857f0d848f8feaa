package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// netStorm and cpuStorm are the two outages of ten seconds.
func netStorm(c client, rate float64, during time.Duration) storm {
	return storm{client: c, rate: rate, capacity: 300, before: 5 * time.Second, outage: 10 * time.Second, during: during}
}

func cpuStorm(c client, rate float64, during time.Duration) storm {
	s := netStorm(c, rate, during)
	s.slow = 60
	return s
}

func TestRetriesWithoutAQuotaKeepAServerDownFromHalfItsCapacityOn(t *testing.T) {
	t.Parallel()
	retry := stormClients()[1]
	below := inWorld(t, netStorm(retry, 130, 100*time.Second))
	require.InDelta(t, 58, below.after.Seconds(), 12)
	for name, s := range map[string]storm{
		"net": netStorm(retry, 160, time.Minute),
		"cpu": cpuStorm(retry, 240, time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := inWorld(t, s)
			require.Negative(t, r.after)
			require.InDelta(t, 2, r.load, 0.03)
		})
	}
}

func TestATenthOfTheRequestsIsTooMuchForAServerNearItsCapacity(t *testing.T) {
	t.Parallel()
	r := inWorld(t, netStorm(stormClients()[3], 280, time.Minute))
	require.Negative(t, r.after)
	require.InDelta(t, 1.1, r.load, 0.01)
}

func TestWithTheQuotaAServerRecoversAsIfNobodyRetried(t *testing.T) {
	t.Parallel()
	all := stormClients()
	for _, c := range []struct {
		name  string
		storm func(client) storm
		limit time.Duration
	}{
		{"net, 280 a second", func(c client) storm { return netStorm(c, 280, 164*time.Second) }, 163 * time.Second},
		{"net, 240 a second", func(c client) storm { return netStorm(c, 240, time.Minute) }, 46 * time.Second},
		{"cpu, 240 a second", func(c client) storm { return cpuStorm(c, 240, time.Minute) }, 34 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			none, quota := inWorld(t, c.storm(all[0])), inWorld(t, c.storm(all[4]))
			require.Positive(t, quota.after)
			require.LessOrEqual(t, quota.after, c.limit)
			require.LessOrEqual(t, quota.after.Seconds(), 1.05*none.after.Seconds()+1)
		})
	}
}

// The first cool-down decides it: one of 30 s outlasts the outage.
func TestWithTheBreakerAServerRecoversWhenTheCoolDownEnds(t *testing.T) {
	t.Parallel()
	all := stormClients()
	for _, c := range []struct {
		name  string
		storm func(client) storm
		limit time.Duration
	}{
		{"net, 280 a second", func(c client) storm { return netStorm(c, 280, time.Minute) }, 20 * time.Second},
		{"net, 240 a second", func(c client) storm { return netStorm(c, 240, time.Minute) }, 19 * time.Second},
		{"cpu, 240 a second", func(c client) storm { return cpuStorm(c, 240, time.Minute) }, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			usual, slow := inWorld(t, c.storm(all[5])), inWorld(t, c.storm(all[6]))
			require.Positive(t, usual.after)
			require.LessOrEqual(t, usual.after, c.limit)
			require.Less(t, usual.load, 0.7)
			require.InDelta(t, 26, slow.after.Seconds(), 2)
		})
	}
}
