package main

import (
	"bytes"
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEveryScenarioEndsAsItSays(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run(t.Context(), &out, scenarios)
	require.NoError(t, err, out.String())
	for _, s := range scenarios {
		require.Contains(t, out.String(), "\n"+s.name+": ", "it is told while it runs")
		require.Contains(t, out.String(), "\n"+s.name+"  ", "it has a line in the table")
	}
	require.Regexp(t, `attempt 1 of 4, 503, next in 1[.\d]*s at \d\d:\d\d:\d\d\.\d{3}\n`, out.String())
}

func TestAnotherResultIsAFailure(t *testing.T) {
	t.Parallel()
	ok := scenario{name: "ok", method: "GET", bare: outcome{"200", 1}, retrip: outcome{"200", 1}, attempts: 1}
	for _, tc := range []struct {
		say  string
		with func(*scenario)
	}{
		{"bare result is 200, not 503", func(s *scenario) { s.bare.result = "503" }},
		{"bare work is 1, not 2", func(s *scenario) { s.bare.work = 2 }},
		{"retrip result is 200, not 503", func(s *scenario) { s.retrip.result = "503" }},
		{"retrip attempts is 1, not 3", func(s *scenario) { s.attempts = 3 }},
		{"retrip work is 1, not 0", func(s *scenario) { s.retrip.work = 0 }},
		{"retrip time is ", func(s *scenario) { s.least = time.Minute }},
		{"retrip time is ", func(s *scenario) { s.most = 1 }},
	} {
		s := ok
		tc.with(&s)
		var out bytes.Buffer
		err := run(t.Context(), &out, []scenario{ok, s})
		require.EqualError(t, err, "1 results are not the expected ones")
		require.Contains(t, out.String(), "\nUNEXPECTED: ok: "+tc.say)
	}
}

func TestAnInterruptEndsIt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	hangs := scenario{name: "hangs", method: "GET", script: []step{
		func(s *server, w http.ResponseWriter, r *http.Request) { cancel(); sleep(s, w, r) },
	}}
	require.ErrorIs(t, run(ctx, &bytes.Buffer{}, []scenario{hangs}), context.Canceled)
}
