package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

// The tests that make a run are not parallel: a run counts the goroutines of the process and
// measures its heap.

// soakFor makes a short run and returns its report.
func soakFor(t *testing.T, c config) (bool, string) {
	t.Helper()
	var out bytes.Buffer
	ok, err := run(t.Context(), c, &out, t.Output())
	require.NoError(t, err)
	return ok, out.String()
}

func TestAShortSoakHoldsAndItsTablesAddUp(t *testing.T) {
	ok, report := soakFor(t, config{duration: 3 * time.Second, seed: 1, goroutines: 40, hosts: 6, verbose: true})
	require.True(t, ok, report)
	require.Regexp(t, `^soak: seed 1, 3s, 40 goroutines, 6 hosts, go`, report)
	require.Regexp(t, `\nok: seed 1: \d+ requests in [0-9.]+s\n$`, report)
	require.Regexp(t, `\nheap: [0-9.]+ MiB in the second tenth, [0-9.]+ MiB in the last third\n`, report)

	byWeather, byKind := table(t, report, "fault of the host at the start"), table(t, report, "request")
	require.Equal(t, byWeather["all"], byKind["all"])
	require.Len(t, byKind, len(kinds)+1)
	for _, rows := range []map[string][]float64{byWeather, byKind} {
		all := make([]float64, len(rows["all"]))
		for name, row := range rows {
			attempts := len(row) - 2
			ends := 0.0
			for i, n := range row[:attempts] {
				if name != "all" {
					all[i] += n
				}
				if i > 0 {
					ends += n
				}
			}
			require.Equal(t, row[0], ends, "each request of %q ends once", name)
			require.InDelta(t, row[attempts]/row[0], row[attempts+1], 0.01)
		}
		require.Equal(t, rows["all"][:len(all)-2], all[:len(all)-2])
	}
	require.Len(t, table(t, report, "host"), 6)
	require.Positive(t, byWeather["all"][1], "there is a right answer")
}

// table returns the numbers of the table whose first column is called name.
func table(t *testing.T, report, name string) map[string][]float64 {
	t.Helper()
	_, rest, ok := strings.Cut(report, "| "+name+" | ")
	require.True(t, ok, report)
	body, _, _ := strings.Cut(rest, "\n\n")
	rows := make(map[string][]float64)
	for _, line := range strings.Split(body, "\n")[2:] {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		for _, cell := range cells[1:] {
			n, err := strconv.ParseFloat(cell, 64)
			require.NoError(t, err, line)
			rows[cells[0]] = append(rows[cells[0]], n)
		}
	}
	return rows
}

// A plant is a RoundTripper between others that does what retrip must not.
type plant struct {
	http.RoundTripper
	do func(next http.RoundTripper, r *http.Request) (*http.Response, error)
}

func (p plant) RoundTrip(r *http.Request) (*http.Response, error) { return p.do(p.RoundTripper, r) }

func (p plant) CloseIdleConnections() {
	p.RoundTripper.(interface{ CloseIdleConnections() }).CloseIdleConnections()
}

func (p plant) in(next http.RoundTripper) http.RoundTripper {
	p.RoundTripper = next
	return p
}

// chain puts one plant above the other.
func chain(plants ...func(next http.RoundTripper, r *http.Request) (*http.Response, error)) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		for _, do := range plants {
			next = plant{do: do}.in(next)
		}
		return next
	}
}

func TestASoakNoticesWhatGoesWrongWithRequests(t *testing.T) {
	var n atomic.Int64
	var last atomic.Pointer[string]
	swap := func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		id := r.Header.Get("Faults-Id")
		if other := last.Swap(&id); other != nil && r.Method == http.MethodGet && n.Add(1)%4 == 0 {
			r = r.Clone(r.Context())
			r.Header.Set("Faults-Id", *other)
		}
		return next.RoundTrip(r)
	}
	twice := func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPost && r.Header.Get(retrip.KeyHeader) == "" && r.GetBody != nil {
			again := r.Clone(r.Context())
			again.Body, _ = r.GetBody()
			_ = send(next, again)
		}
		return next.RoundTrip(r)
	}
	deny := func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodPut {
			return next.RoundTrip(r)
		}
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	}
	aside := func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet {
			_ = send(next, r.Clone(context.WithValue(r.Context(), trailKey{}, &trail{})))
		}
		return next.RoundTrip(r)
	}
	ok, report := soakFor(t, config{
		duration: 2 * time.Second, seed: 2, goroutines: 40, hosts: 2,
		options: []retrip.Option{retrip.WithRetryQuota(nil), retrip.WithBreaker(nil)},
		above:   chain(swap, aside), below: chain(twice, deny),
	})
	require.False(t, ok, report)
	for _, want := range []string{
		`FAIL: .*wrong answer: it belongs to "`,
		`FAIL: POST \S+: work was done 2 times\n`,
		`POST \S+: it came 2 times without a key\n`,
		`FAIL: all hosts: Hosts tells of`,
		`FAIL: \S+: \d+ retries were made that the quota has to pay for, which allows`,
		`\nfailed: seed 2: \d+ claims do not hold, \d+ calls went wrong\n$`,
	} {
		require.Regexp(t, want, report)
	}
	require.NotRegexp(t, `FAIL: .*(left|after the end)\n`, report)
}

func TestASoakNoticesWhatIsLeft(t *testing.T) {
	var n atomic.Int64
	var left sync.WaitGroup
	t.Cleanup(left.Wait)
	kept := make([][]byte, 1<<12)
	leave := func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		i := n.Add(1)
		kept[i%int64(len(kept))] = make([]byte, 512<<10)
		if i > 30 {
			return next.RoundTrip(r)
		}
		again, err := http.NewRequestWithContext(
			context.WithValue(t.Context(), trailKey{}, &trail{}), http.MethodGet, r.URL.String(), nil)
		if err != nil {
			return nil, err
		}
		left.Go(func() {
			for t.Context().Err() == nil {
				sleep(t.Context(), 100*time.Millisecond)
				_ = send(next, again)
				if conn, err := net.Dial("tcp", r.URL.Host); err == nil {
					context.AfterFunc(t.Context(), func() { _ = conn.Close() })
				}
			}
		})
		return next.RoundTrip(r)
	}
	ok, report := soakFor(t, config{
		duration: time.Second, seed: 3, goroutines: 40, hosts: 2, patience: 500 * time.Millisecond, above: chain(leave),
	})
	require.False(t, ok, report)
	for _, want := range []string{
		`FAIL: \d+ goroutines are left\n`,
		`FAIL: \d+ connections are left\n`,
		`FAIL: \d+ requests reached a server after the end\n`,
		`FAIL: \d+ hooks were called after the end\n`,
		`FAIL: the heap grew\n`,
	} {
		require.Regexp(t, want, report)
	}
}

// send makes a round trip whose answer nobody wants.
func send(rt http.RoundTripper, r *http.Request) error {
	resp, err := rt.RoundTrip(r)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.Body.Close()
}

func TestASoakThatIsInterruptedTakesStock(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	ok, err := run(ctx, config{duration: time.Hour, seed: 4, goroutines: 10, hosts: 2}, &out, io.Discard)
	require.NoError(t, err)
	require.True(t, ok, out.String())
	require.Regexp(t, `\ninterrupted after [0-9.]+m?s\nok: seed 4: `, out.String())
}

func TestFlagsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-duration 10ms":    "want 1s at least",
		"-duration forever": "invalid value",
		"-goroutines 0":     "want 1 to 10000",
		"-hosts -1":         "want 1 to 1000",
		"-seed -1":          "invalid value",
		"now":               `unexpected argument "now"`,
	} {
		var stderr bytes.Buffer
		_, err := parse(strings.Fields(args), &stderr)
		require.Error(t, err, args)
		require.Contains(t, stderr.String(), want)
	}
	c, err := parse(nil, io.Discard)
	require.NoError(t, err)
	require.NotZero(t, c.seed)
	c.seed = 0
	require.Equal(t, config{duration: 3 * time.Minute, goroutines: 200, hosts: 20}, c)
}
