package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestJitterBreaksUpAHerd(t *testing.T) {
	t.Parallel()
	all := herdClients()
	peaks := map[string]int{}
	var cells []crowd
	for _, c := range all {
		cells = append(cells, crowd{c, 500, 4 * time.Minute})
	}
	for i, r := range each(testLab(t), cells) {
		require.Positive(t, r.last, all[i].name)
		require.LessOrEqual(t, r.last, 73*time.Second, all[i].name)
		peaks[all[i].name] = r.peak
	}
	require.Equal(t, 500, peaks["no jitter"], "the herd")
	require.Equal(t, 500, peaks["Retry-After to the second"], "a herd again")
	require.Less(t, peaks["Retry-After, retrip's spread"], 100)
	require.Less(t, peaks["±20 %"], 50)
	for _, name := range []string{"full jitter", "equal jitter", "decorrelated jitter"} {
		require.Less(t, peaks[name], 40, name)
	}
}

func TestAHerdWithoutJitterComesAtTheTimesOfItsBackoff(t *testing.T) {
	t.Parallel()
	r := inWorld(t, crowd{herdClients()[0], 50, 4 * time.Minute})
	var came []int
	for at, row := range r.rows {
		if row.sent > 0 {
			require.Equal(t, 50, row.sent)
			came = append(came, at)
		}
	}
	require.Equal(t, []int{0, 1, 3, 7, 15, 31, 63, 123, 183, 243}, came)
}

func TestAHerdThatIsTooQuickIsNeverAnswered(t *testing.T) {
	t.Parallel()
	c := herdClients()[0]
	c.pause = pause{kind: "constant", base: time.Millisecond}
	r := inWorld(t, crowd{c, 2, time.Minute})
	require.Equal(t, "never", answeredAfter(r))
	require.Zero(t, r.peak)
}
