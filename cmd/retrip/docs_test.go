package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

// A timeline is a table under a comment that says of which schedule.
var timeline = regexp.MustCompile(`(?s)<!-- (Doubling|Steps)\(([^)]*)\) -->\n\|[^\n]*\n\|[^\n]*\n(.*?)\n\n`)

func TestTheTimelinesInTheGuideAreThoseOfTheSchedules(t *testing.T) {
	t.Parallel()
	tables := timeline.FindAllStringSubmatch(read(t, "../../docs/webhooks.md"), -1)
	require.Len(t, tables, 2)
	for _, table := range tables {
		args := strings.Split(table[2], ", ")
		var s deliver.Schedule
		if table[1] == "Steps" {
			s = deliver.Steps(durations(t, args...)...)
		} else {
			attempts, err := strconv.Atoi(args[3])
			require.NoError(t, err)
			d := durations(t, args[:2]...)
			s = deliver.Doubling(d[0], d[1], 0, attempts)
		}
		want := []string{"| 1 | | 0s |"}
		for after, n := time.Duration(0), 2; n <= s.Attempts; n++ {
			after += s.Pause(n - 1)
			want = append(want, fmt.Sprintf("| %d | %s | %s |", n, short(s.Pause(n-1)), short(after)))
		}
		require.Equal(t, want, strings.Split(table[3], "\n"))
	}
}

// short is a duration without the zeros that String ends with.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func durations(t *testing.T, all ...string) []time.Duration {
	t.Helper()
	var ds []time.Duration
	for _, s := range all {
		d, err := time.ParseDuration(s)
		require.NoError(t, err)
		ds = append(ds, d)
	}
	return ds
}

func TestWhatTheDocumentsSayOfSchedulesInPassingIsTrue(t *testing.T) {
	t.Parallel()
	guide, page := read(t, "../../docs/webhooks.md"), read(t, "../../deliver/README.md")
	total := func(s deliver.Schedule) (d time.Duration) {
		for n := 1; n < s.Attempts; n++ {
			d += s.Pause(n)
		}
		return d
	}
	require.Equal(t, 5*time.Minute+10*time.Second, total(deliver.Doubling(10*time.Second, 30*time.Minute, 0, 6)))
	require.Contains(t, guide, "With six attempts the same schedule ends after 5 min 10 s")
	require.Equal(t, 2*time.Hour+12*time.Minute+30*time.Second, total(deliver.Doubling(10*time.Second, 30*time.Minute, 0, 12)))
	require.Contains(t, page, "2 h 12 min 30 s")
	b := deliver.DefaultBreaker()
	require.Equal(t, deliver.Breaker{Failures: 20, Pauses: durations(t, "10m", "30m", "2h", "24h")}, b)
	require.Equal(t, deliver.Alert{Dead: 20, Per: time.Hour, Again: time.Hour}, deliver.DefaultAlert())
	for _, text := range []string{guide, page} {
		for _, reason := range reasons {
			require.Contains(t, text, "`"+reason+"`")
		}
	}
}

// commandLine is a line of the documents that calls the command.
var commandLine = regexp.MustCompile(`(?m)(?:^    (?:echo [^|]*\| )?|[^>]` + "`" + `)(retrip [a-z][^#\n` + "`" + `]*)`)

// What the documents show can be typed: it fails for want of what it names at most.
func TestTheCommandsInTheDocumentsExist(t *testing.T) {
	r := onSQLite(t)
	found := 0
	for _, file := range []string{"../../docs/webhooks.md", "../../deliver/README.md"} {
		for _, m := range commandLine.FindAllStringSubmatch(read(t, file), -1) {
			line, _, _ := strings.Cut(m[1], ">")
			line, _, _ = strings.Cut(line, "<")
			args := strings.Fields(strings.NewReplacer("'", "", "7d0f2b1e-…", "7d0f", "https://…", "https://a.example", "\n", " ").Replace(line))[1:]
			if len(args) == 0 || args[0] == "serve" {
				continue
			}
			found++
			var out, err bytes.Buffer
			code := run(t.Context(), append([]string{"--db", r.db}, args...), strings.NewReader("{}"), &out, &err)
			require.NotEqual(t, exitUsage, code, "%s: %q: %s", file, args, &err)
		}
	}
	require.GreaterOrEqual(t, found, 14)
}
