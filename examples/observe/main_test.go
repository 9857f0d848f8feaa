package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/retrip-go/retrip/statusz"
	"github.com/stretchr/testify/require"
)

// A screen is what the program prints, read while it runs.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestWhatItPrintsIsThereAndItEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out screen
	done := make(chan error, 1)
	go func() { done <- run(ctx, &out, "127.0.0.1:0") }()
	addresses := regexp.MustCompile(`^page     (http://\S+/debug/retrip)\nJSON     (\S+)\nmetrics  (\S+)\n`)
	var where []string
	require.Eventually(t, func() bool {
		where = addresses.FindStringSubmatch(out.String())
		return where != nil
	}, 30*time.Second, 10*time.Millisecond)
	get := func(url string) string {
		resp, err := http.Get(url)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 200, resp.StatusCode, url)
		return string(text)
	}
	// Long enough that the host that goes down has been refused, and others recovered.
	hosts := map[string]statusz.Host{}
	require.Eventually(t, func() bool {
		var s statusz.Snapshot
		require.NoError(t, json.Unmarshal([]byte(get(where[2])), &s))
		for _, h := range s.Transports[0].Hosts {
			hosts[h.Name] = h
		}
		return hosts["down.example"].Breaker.State == "open" && hosts["flaky.example"].Total.Recovered > 0
	}, 60*time.Second, 100*time.Millisecond)
	require.Len(t, hosts, len(moods))
	require.Contains(t, get(where[1]), "down.example")
	metrics := get(where[3])
	require.Contains(t, metrics, `retrip_breaker_state{host="down.example",transport="observe"} 2`)
	require.Contains(t, metrics, `retrip_retries_total{host="flaky.example",transport="observe"}`)
	cancel()
	require.NoError(t, <-done)
	require.Regexp(t, `\n\d+ requests were answered, \d+ were not\n$`, out.String())
}
