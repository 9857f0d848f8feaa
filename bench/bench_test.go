package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
)

func TestStatistics(t *testing.T) {
	t.Parallel()
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 2.5, median([]float64{4, 1, 2, 3}))
	require.Equal(t, 1.0, quantile([]float64{1}, 0.99))
	require.Equal(t, 99.0, quantile(count(101), 0.99))
	require.Zero(t, median(nil))
	require.Equal(t, []float64{2, 3}, ratios([]float64{2, 9, 5}, []float64{1, 3}))
	require.Empty(t, ratios([]float64{1}, []float64{0}))
	require.Equal(t, "2.50 (2.00 to 12)", times([]float64{2, 2.5, 12}))
	require.Equal(t, "999 ns", nanoseconds(999))
	require.Equal(t, "1.50 µs", nanoseconds(1500))
	require.Equal(t, "2.00 ms", nanoseconds(2e6))
	require.Equal(t, "-1.5 KiB", difference(-1536))
}

// count returns 0 to n-1.
func count(n int) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = float64(i)
	}
	return all
}

func TestAddedAllocationsAreWhole(t *testing.T) {
	t.Parallel()
	rows := map[string]row{"bare": {allocs: []float64{2.001, 2, 2.004}}, "retrip": {allocs: []float64{18.01, 18, 18.02}}, "same": {allocs: []float64{2}}}
	require.Equal(t, 16.0, added(rows, "retrip"))
	require.Equal(t, "+0", fmt.Sprintf("%+.0f", added(rows, "same")))
}

func TestTakeCountsEachOperation(t *testing.T) {
	s, err := take(func(n int) error {
		for range n {
			held = new([1 << 10]byte)
		}
		return nil
	}, 1000)
	require.NoError(t, err)
	require.InDelta(t, 1, s.allocs, 0.5)
	require.InDelta(t, 1<<10, s.bytes, 512)
	require.Positive(t, s.ns)
}

var held *[1 << 10]byte // keeps the compiler from using the stack

func TestATableIsMarkdown(t *testing.T) {
	t.Parallel()
	var w strings.Builder
	table{head: []string{"", "time"}, rows: [][]string{{"a|b", "1 ns"}}, notes: []string{"c: not offered"}}.write(&w, "Name", "Doc.")
	require.Equal(t, "## Name\n\nDoc.\n\n|  | time |\n| --- | ---: |\n| a\\|b | 1 ns |\n\nNot here: c: not offered.\n\n", w.String())
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-nonsense"}, {"-run", "("}, {"-rounds", "-1"}, {"-rounds", "x"}, {"left over"}, {"-run", "no such measure"}} {
		var out, talk bytes.Buffer
		require.Equal(t, 2, run(args, &out, &talk), args)
		require.NotEmpty(t, talk.String(), args)
		require.Empty(t, out.String(), args)
	}
	require.Zero(t, run([]string{"-h"}, io.Discard, io.Discard))
}

func TestAFailedClaimIsTold(t *testing.T) {
	t.Parallel()
	b := &bench{claims: []claim{atMost("this", 1, 2), atMost("that", 3, 2)}}
	var talk bytes.Buffer
	require.Equal(t, 1, b.verdict(&talk, true))
	require.Equal(t, "ok   this: 1, at most 2\nFAIL that: 3, at most 2\n", talk.String())
	b.claims = b.claims[:1]
	require.Zero(t, b.verdict(io.Discard, true))
	b.claims = nil
	require.Equal(t, 2, b.verdict(io.Discard, true), "nothing was checked")
	require.Zero(t, b.verdict(io.Discard, false))
}

// Nobody may win by leaving work out.

func TestEachContenderDoesTheWork(t *testing.T) {
	t.Parallel()
	for _, c := range append(breakers(), contenders...) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			sum := sha256.New()
			base := roundTrip(func(req *http.Request) (*http.Response, error) {
				calls++
				if req.Body != nil {
					_, _ = io.Copy(sum, req.Body)
					_ = req.Body.Close()
				}
				return answer(req, http.StatusOK), nil
			})
			require.NoError(t, gets(c.new(base, noFailures))(5))
			require.Equal(t, 5, calls, "GETs")
			calls = 0
			sum.Reset()
			require.NoError(t, posts(c.new(base, noFailures), octets)(2))
			require.Equal(t, 2, calls, "POSTs")
			require.Equal(t, sha256.Sum256(append(append([]byte{}, kibibyte...), kibibyte...)), [32]byte(sum.Sum(nil)))

			if !c.has(offersRetries) {
				return
			}
			failing := thirds()
			calls = 0
			counted := roundTrip(func(req *http.Request) (*http.Response, error) {
				calls++
				return failing.RoundTrip(req)
			})
			require.NoError(t, gets(c.new(counted, config{retries: 3, failing: true}))(4))
			require.Equal(t, 12, calls, "attempts")
		})
	}
}

func TestAllHostsAreReached(t *testing.T) {
	t.Parallel()
	for _, c := range contenders {
		if needsBreaker(c) != "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			hosts := make(map[string]bool)
			rt := c.new(roundTrip(func(req *http.Request) (*http.Response, error) {
				hosts[req.URL.Host] = true
				return answer(req, http.StatusOK), nil
			}), hostsConfig)
			require.NoError(t, visit(rt))
			require.Len(t, hosts, manyHosts)
			if r, ok := rt.(*retrip.Transport); ok {
				remembered := 0
				for range r.Hosts() {
					remembered++
				}
				require.Equal(t, manyHosts, remembered)
			}
		})
	}
}

func TestTheZipfLawReachesItsHosts(t *testing.T) {
	t.Parallel()
	seen, reached := make(map[string]int), make(map[string]int)
	for _, h := range hostOrder() {
		seen[hostRequests()[h].URL.Host]++
	}
	require.Greater(t, len(seen), manyHosts/4)
	require.NoError(t, zipf(roundTrip(func(req *http.Request) (*http.Response, error) {
		reached[req.URL.Host]++
		return answer(req, http.StatusOK), nil
	}), 0)(len(hostOrder())))
	require.Equal(t, seen, reached)
}

func TestConnectionsOfAContenderThatReadsBodiesAreTheFewest(t *testing.T) {
	for _, name := range []string{"bare", "retrip"} {
		i := slices.IndexFunc(contenders, func(c contender) bool { return c.name == name })
		conns, attempts, err := fewestDialled(contenders[i], 4)
		require.NoError(t, err)
		require.LessOrEqual(t, conns, 4, name)
		require.Equal(t, 400, attempts, name)
	}
}

func TestAWaitingRequestIsWeighed(t *testing.T) {
	for _, c := range contenders[:2] { // bare, retrip
		_, goroutines, err := weigh(c, 50, 30*time.Second) // which is cut short
		require.NoError(t, err, c.name)
		require.InDelta(t, 1, goroutines, 0.5, c.name)
	}
	_, _, err := weigh(contenders[1], 50, time.Nanosecond)
	require.ErrorIs(t, err, errLate)
}

func TestAnUploadArrivesWhole(t *testing.T) {
	for _, c := range contenders {
		u, err := upload(c, 300<<10) // which compares the sums
		require.NoError(t, err, c.name)
		require.Positive(t, u.first, c.name)
		require.GreaterOrEqual(t, u.whole, u.first, c.name)
	}
}

func TestARunPrintsWhatItMeasured(t *testing.T) {
	var w strings.Builder
	b := &bench{rounds: 2, slice: time.Millisecond, waiting: 10, weighings: 1}
	chosen := slices.DeleteFunc(measures(), func(m measure) bool { return m.name != "POST of 1 KiB" && m.name != "Memory of a host" })
	require.NoError(t, b.run(&w, io.Discard, chosen))
	require.Contains(t, w.String(), "## How to read this\n")
	for _, c := range contenders {
		require.Contains(t, w.String(), "| "+c.name+" | ")
	}
	require.Contains(t, w.String(), "## POST of 1 KiB\n")
	require.Contains(t, w.String(), "## Memory of a host\n")
	require.NotContains(t, w.String(), "## GET that succeeds\n")
	require.Contains(t, w.String(), "v0.7.8", "the versions of the contenders")
}
