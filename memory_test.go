//go:build !race

package retrip_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The race detector makes every stack and every object larger, so this is measured
// without it: by "make memory", which is part of "make check".

func TestAWaitingRequestIsSmall(t *testing.T) {
	const n = 2000
	// What else goes on in the process can only add to a measurement.
	over := math.Inf(1)
	for range 3 {
		asleep, one := waiting(t, n, false)
		paused, goroutines := waiting(t, n, true)
		require.InDelta(t, one, goroutines, 0.05, "no goroutine of its own")
		over = min(over, paused-asleep)
	}
	require.Less(t, over, 1024.0, "bytes over a goroutine that sleeps")
}
