package deliver_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

// died are n dead letters to acme, for Import.
func died(t *testing.T, n int, edit func(i int, l map[string]any)) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	for i := range n {
		l := map[string]any{"event": fmt.Sprint("e", i), "destination": "acme", "payload": []byte("x"), "max_attempts": 1, "reason": "exhausted", "died": time.Now(), "attempts": []map[string]any{{"number": 1, "status": 500}}}
		edit(i, l)
		require.NoError(t, json.NewEncoder(&b).Encode(l))
	}
	return &b
}

// At one a minute the last of many dead letters would have been older than WithMaxAge
// before its first attempt.
func TestAReplayAtARateAgesFromItsTurnOn(t *testing.T) {
	t.Parallel()
	created := time.Now()
	require.Equal(t, time.Hour, deliver.AgeOf(created, time.Time{}, created.Add(time.Hour)))
	require.Equal(t, time.Minute, deliver.AgeOf(created, created.Add(30*24*time.Hour), created.Add(30*24*time.Hour+time.Minute)))
	require.Equal(t, time.Hour, deliver.AgeOf(created, created.Add(-time.Hour), created.Add(time.Hour)))
}

func TestAnyRateIsPlannedWithoutOverflow(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		put(t, c, "acme", "https://acme.example/")
		_, err := c.Dead().Import(t.Context(), died(t, 3, func(int, map[string]any) {}))
		require.NoError(t, err)
		start := time.Now()
		all, err := c.Dead().ReplayAll(t.Context(), deliver.Filter{}, deliver.Replaying{Rate: 1e-300})
		require.NoError(t, err)
		require.Len(t, all, 3)
		pending, err := c.Pending(t.Context(), 10)
		require.NoError(t, err)
		for _, s := range pending[1:] {
			require.Greater(t, s.Next.Sub(start), 24*365*time.Hour)
		}
	})
}

// One that cannot be replayed used to end a replay of many with an error.
func TestWhatLostItsBodyDoesNotKeepTheOthersFromBeingReplayed(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		put(t, c, "acme", "https://acme.example/")
		_, err := c.Dead().Import(t.Context(), died(t, 3, func(i int, l map[string]any) {
			if i == 1 {
				l["parked"] = map[string]any{"method": "PUT", "url": "https://acme.example/", "lost": "its body was not kept"}
			}
		}))
		require.NoError(t, err)
		all, err := c.Dead().ReplayAll(t.Context(), deliver.Filter{}, deliver.Replaying{})
		require.NoError(t, err)
		require.Len(t, all, 3)
		refused := 0
		for _, r := range all {
			if r.Refused != nil {
				require.IsType(t, &deliver.LostError{}, r.Refused)
				require.EqualError(t, r.Refused, fmt.Sprintf("deliver: dead letter %d cannot be replayed: its body was not kept", r.Dead.ID))
				require.Zero(t, r.Delivery)
				refused++
			}
		}
		require.Equal(t, 1, refused)
	})
}

func TestDeleteTakesWhatTheFilterChooses(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		_, err := c.Dead().Import(t.Context(), died(t, 40, func(i int, l map[string]any) {
			if i%10 == 0 {
				l["reason"] = "permanent"
			}
		}))
		require.NoError(t, err)
		n, err := c.Dead().Delete(t.Context(), deliver.Filter{Destination: "nobody"})
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = c.Dead().Delete(t.Context(), deliver.Filter{Reason: deliver.ReasonPermanent})
		require.NoError(t, err)
		require.Equal(t, 4, n)
		n, err = c.Dead().Delete(t.Context(), deliver.Filter{})
		require.NoError(t, err)
		require.Equal(t, 36, n)
		n, err = c.Dead().Count(t.Context(), deliver.Filter{Replayed: true})
		require.NoError(t, err)
		require.Zero(t, n)
	})
}

func TestWithoutMigrationADatabaseStaysAsItIs(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		for range 2 {
			_, err := p.tryOpen(deliver.WithoutMigration())
			require.Error(t, err, "nothing is there, and nothing was made")
			if p.engine == "postgres" {
				require.ErrorIs(t, err, deliver.ErrNotMigrated)
			}
		}
		p.open(t)
		c := p.open(t, deliver.WithoutMigration())
		put(t, c, "acme", "https://acme.example/")
	})
}
