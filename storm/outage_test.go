package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheBreakerLeavesAHostAlone(t *testing.T) {
	t.Parallel()
	all := downClients()
	const down = 10 * time.Minute
	reached := map[string]int{}
	for _, c := range all {
		r := inWorld(t, downtime{c, 10, down})
		require.InEpsilon(t, 6000, r.asked, 0.05, c.name)
		reached[c.name] = r.reached
	}
	require.InEpsilon(t, 6000, reached["no retry"], 0.05)
	require.InEpsilon(t, 24000, reached["3 retries, no quota"], 0.05)
	// 10 tokens and what was earned before, and one each 10 s.
	require.InDelta(t, reached["no retry"]+20+60, reached["retrip's quota"], 15)
	// It opens after 20 failures in a row, and 8 cool-downs begin.
	require.InDelta(t, 20+7, reached["retrip as shipped"], 6)
	require.InDelta(t, 20+7, reached["retrip's breaker"], 10)
}

func TestTheBreakerFindsOutAtTheEndOfACoolDown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ down, back time.Duration }{
		{10 * time.Second, 7 * time.Second},  // 2 + 5 + 10
		{time.Minute, 7 * time.Second},       // and 20 + 30
		{5 * time.Minute, 247 * time.Second}, // and 60 + 120 + 300
		{time.Hour, 247 * time.Second},       // and 11 times 300
	} {
		t.Run(fmt.Sprint(c.down), func(t *testing.T) {
			t.Parallel()
			r := inWorld(t, downtime{shipped(), 10, c.down})
			require.InDelta(t, c.back.Seconds(), r.back.Seconds(), 5)
		})
	}
}
