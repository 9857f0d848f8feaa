package main

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Brooker's figures for his own rules, and the closed forms for plain retries.
func TestRulesThatLimitRetriesDoAsPublished(t *testing.T) {
	t.Parallel()
	all := rules()
	for _, c := range []struct {
		client                 client
		failing, success, load float64
	}{
		{all[0], 0.1, 0.9, 1},
		{all[1], 0.1, 0.9999, 1.111},
		{all[1], 0.5, 0.9375, 1.875},
		{all[2], 0.05, 0.9998, 1.053},
		{all[2], 0.1, 0.9838, 1.094},
		{all[2], 0.5, 0.5525, 1.104},
		{all[3], 0.05, 0.9986, 1.052},
		{all[3], 0.2, 0.8006, 1},
		{all[4], 0.3, 0.8985, 1.287},
		{all[4], 0.5, 0.5681, 1.139},
	} {
		t.Run(fmt.Sprintf("%s, %v failing", c.client.name, c.failing), func(t *testing.T) {
			t.Parallel()
			sum := inWorld(t, flaky{c.client, 10, 100, c.failing, 100 * time.Second})
			require.InDelta(t, c.success, sum.success(), 0.02)
			require.InDelta(t, c.load, sum.load(), 0.03)
		})
	}
}

func TestQuotaAndBreakerLetTransientFailuresBeRetried(t *testing.T) {
	t.Parallel()
	all := rules()
	for _, c := range []struct {
		client                 client
		failing, success, load float64
	}{
		{all[5], 0.05, 0.9998, 1.06},
		{all[5], 0.1, 0.999, 1.12},
		{all[5], 0.2, 0.998, 1.26},
		{all[4], 0.5, 0.5, 1.15},
	} {
		t.Run(fmt.Sprintf("%s, %v failing", c.client.name, c.failing), func(t *testing.T) {
			t.Parallel()
			sum := inWorld(t, flaky{c.client, 20, 200, c.failing, 100 * time.Second})
			require.GreaterOrEqual(t, sum.success(), c.success)
			require.LessOrEqual(t, sum.load(), c.load)
		})
	}
}

func TestTheReservesOfQuietClientsAddUp(t *testing.T) {
	t.Parallel()
	for i, load := range []float64{1.755, 1.622, 1.353, 1.184, 1.001} {
		t.Run(crowds()[i].name, func(t *testing.T) {
			t.Parallel()
			sum := inWorld(t, flaky{crowds()[i], 1000, 100, 0.5, 100 * time.Second})
			require.InDelta(t, load, sum.load(), 0.03)
		})
	}
}

func TestTheSameSeedGivesTheSameNumbers(t *testing.T) {
	t.Parallel()
	f := flaky{rules()[5], 20, 2000, 0.3, 2 * time.Second}
	first := inWorld(t, f)
	require.Equal(t, first, inWorld(t, f))
	other := each(newLab(t, seed+1, nil, io.Discard), []cell[second]{f})[0]
	require.NotEqual(t, first, other)
}
