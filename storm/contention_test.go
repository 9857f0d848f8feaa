package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// AWS's figures, as means of 100 runs of its simulator. One run's time is off by a tenth
// or so, one's writes by a fiftieth.
func TestContentionAtAHundredClientsIsAsPublished(t *testing.T) {
	t.Parallel()
	all := racers()
	means := slices.Concat(races(testLab(t), all[:2], 100, 6), races(testLab(t), all[2:], 100, 25))
	for i, want := range []struct{ writes, ms float64 }{
		{2417, 2021}, {1863, 63493}, {812, 6682}, {797, 4930}, {1000, 4555},
	} {
		require.InEpsilon(t, want.writes, means[i].writes, 0.05, all[i].name)
		require.InEpsilon(t, want.ms, means[i].took.Milliseconds(), 0.05, all[i].name)
	}
}

func TestTheOrderOfTheBackoffsUnderContention(t *testing.T) {
	t.Parallel()
	for _, clients := range []int{50, 150} {
		m := races(testLab(t), racers(), clients, 4)
		none, exponential, equal, full, decorrelated := m[0], m[1], m[2], m[3], m[4]
		require.Less(t, none.took, full.took)
		require.Less(t, none.took, decorrelated.took)
		require.Less(t, full.took, equal.took)
		require.Less(t, decorrelated.took, equal.took)
		require.Less(t, 5*equal.took, exponential.took)
		require.InEpsilon(t, equal.writes, full.writes, 0.06)
		require.Less(t, full.writes, decorrelated.writes)
		require.Less(t, decorrelated.writes, exponential.writes)
		require.Less(t, exponential.writes, none.writes)
	}
}

func TestOneClientWritesOnceInFourHops(t *testing.T) {
	t.Parallel()
	for _, mean := range races(testLab(t), racers(), 1, 20) {
		require.InDelta(t, 1, mean.writes, 1e-9)
		require.InDelta(t, 40, mean.took.Milliseconds(), 3)
	}
}
