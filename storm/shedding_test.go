package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The loads of the model in which the quota was chosen. Its server sheds with 503 only,
// but 429 costs as much.
func TestRetriesOfAServerThatShedsAreFewWithAQuota(t *testing.T) {
	t.Parallel()
	clients := shedClients()
	for _, c := range []struct {
		client           client
		rate, load, near float64
	}{
		{clients[0], 600, 3.147, 0.15},
		{clients[0], 400, 2.560, 0.15},
		{clients[1], 330, 1.077, 0.02},
		{clients[1], 400, 1.071, 0.02},
		{clients[1], 3000, 1.010, 0.02},
	} {
		for _, status := range []int{503, 429} {
			if status == 429 && c.client.quota == nil {
				continue // the same without a quota
			}
			t.Run(fmt.Sprintf("%s, %d at %v a second", c.client.name, status, c.rate), func(t *testing.T) {
				t.Parallel()
				sum := inWorld(t, shed{c.client, status, c.rate, 300, lasting(8_000, c.rate, 60*time.Second)})
				require.InDelta(t, c.load, sum.load(), c.near)
				require.InDelta(t, 300/c.rate, sum.success(), 0.04)
			})
		}
	}
}

func TestTheDefaultsAddEightPercentToAServerThatShedsAtMost(t *testing.T) {
	t.Parallel()
	for _, status := range []int{503, 429} {
		sum := inWorld(t, shed{shipped(), status, 400, 300, 20 * time.Second})
		require.LessOrEqual(t, sum.load(), 1.08, "status %d", status)
		require.InDelta(t, 0.75, sum.success(), 0.04, "status %d", status)
	}
}

func TestTheBreakerOpensOnlyWhenHalfIsShed(t *testing.T) {
	t.Parallel()
	require.Less(t, inWorld(t, shed{shipped(), 503, 1200, 300, 5 * time.Second}).load(), 0.1)
	require.Greater(t, inWorld(t, shed{shipped(), 429, 1200, 300, 5 * time.Second}).load(), 1.0)
}
