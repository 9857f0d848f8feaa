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

// The default cool-down of 30 s outlasts the outage; with a first one of 5 s the
// recovery is as quick as in the model.
func TestWithTheBreakerAServerRecoversWhenTheCoolDownEnds(t *testing.T) {
	t.Parallel()
	all := stormClients()
	for name, s := range map[string]func(client) storm{
		"net, 280 a second": func(c client) storm { return netStorm(c, 280, time.Minute) },
		"net, 240 a second": func(c client) storm { return netStorm(c, 240, time.Minute) },
		"cpu, 240 a second": func(c client) storm { return cpuStorm(c, 240, time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			usual, quick := inWorld(t, s(all[5])), inWorld(t, s(all[6]))
			require.InDelta(t, 26, usual.after.Seconds(), 2)
			require.Positive(t, quick.after)
			require.LessOrEqual(t, quick.after, 16*time.Second)
			require.Less(t, usual.load, 0.3)
		})
	}
}
