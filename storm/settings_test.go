package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip-go/retrip"
)

func TestSenselessSettingsAreRefusedWithTheirName(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"-scenario flood":                                "flood",
		"-clients 5":                                     "need a -scenario",
		"-scenario herd -layers 2":                       "-layers means nothing to -scenario herd",
		"-scenario herd -clients 0":                      "-clients 0: want 1 to 100000",
		"-scenario herd -clients -3":                     "-clients -3",
		"-scenario herd -backoff cubic":                  "-backoff cubic",
		"-scenario herd -base -1s":                       "-base -1s",
		"-scenario herd -base 2s -cap 1s":                "-cap 1s is less than -base 2s",
		"-scenario herd -outage 1ms":                     "-outage 1ms: want 1s to 24h0m0s",
		"-scenario shedding -rate NaN":                   "-rate NaN",
		"-scenario shedding -rate 1e9":                   "-rate 1e+09",
		"-scenario shedding -quota 1,2":                  "-quota 1,2",
		"-scenario shedding -quota 1,2,0,0":              "initial 2 is over capacity 1",
		"-scenario shedding -quota 1,x,0,0":              `"x" is not a number`,
		"-scenario shedding -breaker 0":                  "-breaker 0",
		"-scenario shedding -cooldowns 30":               `"30" is not a time`,
		"-scenario shedding -breaker off -cooldowns 30s": "the breaker is off",
		"-scenario tokenbucket -failing 1.5":             "-failing 1.5: want 0 to 1",
		"-scenario cascade -layers 7":                    "-layers 7",
		"-scenario contention -clients 5000":             "want 1 to 500",
		"-scenario breaker -rate 10000":                  "36 million requests",
		"-scenario breaker -rate 100 -outage 20h":        "7 million requests",
		"-scenario cascade -attempts 50 -layers 3":       "125000 attempts",
		"-scenario shedding -attempts 0":                 "-attempts 0",
		"-colour blue":                                   "colour",
		"herd":                                           `"herd" is no flag`,
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			_, err := parse(strings.Fields(line), io.Discard)
			require.ErrorContains(t, err, want)
		})
	}
}

func TestSettingsDescribeAClientOfOnesOwn(t *testing.T) {
	t.Parallel()
	s, err := parse(strings.Fields("-scenario shedding -attempts 3 -backoff equal -base 1s -cap 5s "+
		"-quota 5,1,0.2,0 -breaker 7 -cooldowns 5s,10s -timeout 2s -budget 10s"), io.Discard)
	require.NoError(t, err)
	c, err := s.own(shipped())
	require.NoError(t, err)
	require.Equal(t, 3, c.attempts)
	require.Equal(t, pause{"equal", time.Second, 5 * time.Second}, c.pause)
	require.Equal(t, &retrip.Quota{Capacity: 5, Initial: 1, Earn: 0.2}, c.quota)
	require.Equal(t, 7, c.breaker.Failures)
	require.Equal(t, []time.Duration{5 * time.Second, 10 * time.Second}, c.breaker.Cooldowns)
	require.Equal(t, 2*time.Second, c.timeout)
	require.Equal(t, 10*time.Second, c.budget)
}

func TestHelpIsNoMistake(t *testing.T) {
	t.Parallel()
	var usage bytes.Buffer
	_, err := parse([]string{"-h"}, &usage)
	require.True(t, errors.Is(err, flag.ErrHelp))
	require.Contains(t, usage.String(), "-backoff")
}

func TestTheListExplainsEachScenario(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	list(&out)
	for _, sc := range scenarios() {
		require.Contains(t, out.String(), sc.name+": "+sc.title)
		require.NotEmpty(t, sc.about)
	}
}

// The command is built, since it is run in what testing.Main makes of it.
func TestTheCommandPrintsWritesAndExits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	command := filepath.Join(dir, "storm")
	built, err := exec.Command("go", "build", "-o", command, ".").CombinedOutput()
	require.NoError(t, err, "%s", built)
	storm := func(line string) (string, string, int) {
		c := exec.Command(command, strings.Fields(line)...)
		c.Dir = dir
		var out, errs bytes.Buffer
		c.Stdout, c.Stderr = &out, &errs
		_ = c.Run()
		return out.String(), errs.String(), c.ProcessState.ExitCode()
	}

	_, errs, code := storm("-scenario flood")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "storm: -scenario flood")

	out, errs, code := storm("-scenario herd -clients 50 -backoff equal -base 1s -cap 60s")
	require.Zero(t, code)
	require.Empty(t, errs, "no progress line, since nobody watches")
	require.Contains(t, out, "no jitter")
	require.Contains(t, out, "yours")
	require.NotContains(t, out, "decorrelated")
	page, err := os.ReadFile(filepath.Join(dir, "storm-report", "index.html"))
	require.NoError(t, err)

	again, _, _ := storm("-scenario herd -clients 50 -backoff equal -base 1s -cap 60s")
	require.Equal(t, out, again)
	samePage, err := os.ReadFile(filepath.Join(dir, "storm-report", "index.html"))
	require.NoError(t, err)
	require.Equal(t, page, samePage)

	other, _, _ := storm("-scenario herd -clients 50 -backoff equal -base 1s -cap 60s -seed 2")
	require.NotEqual(t, out, other)

	_, errs, code = storm("-scenario herd -clients 5 -o " + command)
	require.Equal(t, 1, code)
	require.Contains(t, errs, "no place for the report")
}
