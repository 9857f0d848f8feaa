package main

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func attemptsAtTheBottom(t *testing.T, c client, layers int, b between) float64 {
	return inWorld(t, tower{c, layers, b, 10, 1, 20 * time.Second}).load()
}

func TestRetriesOfLayersMultiplyWithoutAQuota(t *testing.T) {
	t.Parallel()
	for layers := 1; layers <= 3; layers++ {
		require.InDelta(t, math.Pow(4, float64(layers)), attemptsAtTheBottom(t, towerClients()[0], layers, processes), 1e-9)
	}
}

func TestAQuotaAtEachLayerKeepsThemFromMultiplying(t *testing.T) {
	t.Parallel()
	const requests = 200
	// Each layer has 10 tokens and one more each 10 s.
	most := 1 + (10+2+1)/float64(requests)*1.25
	for layers := 1; layers <= 4; layers++ {
		load := attemptsAtTheBottom(t, towerClients()[1], layers, processes)
		require.Greater(t, load, 1.0)
		require.LessOrEqual(t, load, math.Pow(most, float64(layers)))
	}
}

func TestABreakerAtEachLayerSparesTheBottom(t *testing.T) {
	t.Parallel()
	for layers := 1; layers <= 4; layers++ {
		require.Less(t, attemptsAtTheBottom(t, towerClients()[2], layers, processes), 0.3)
	}
}

func TestTransportsAboveEachOtherDoNotMultiply(t *testing.T) {
	t.Parallel()
	for layers := 1; layers <= 4; layers++ {
		require.InDelta(t, 4, attemptsAtTheBottom(t, towerClients()[0], layers, nothing), 1e-9)
		require.InDelta(t, 1+3*layers, attemptsAtTheBottom(t, towerClients()[0], layers, middleware), 1e-9)
	}
}
