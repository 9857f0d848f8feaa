package main

import (
	"fmt"
	"io"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/retrip-go/retrip"
)

func (s *soak) printHeader(w io.Writer) {
	race := "without the race detector"
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		race = "with the race detector"
	}
	fmt.Fprintf(w, "soak: seed %d, %v, %d goroutines, %d hosts, %s %s\n",
		s.seed, s.duration, s.goroutines, s.config.hosts, runtime.Version(), race)
}

func (s *soak) printProgress() {
	s.log.Printf("%6v: %d requests, %d connections, %d goroutines, %s live",
		time.Since(s.began).Round(100*time.Millisecond), s.started(), s.connections(), runtime.NumGoroutine(), mib(s.heap[len(s.heap)-1]))
}

func mib(n uint64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// printReport prints what became of the requests, and the verdict.
func (s *soak) printReport(w io.Writer) {
	var names []string
	for _, f := range weathers {
		names = append(names, f.name)
	}
	s.printCounts(w, "fault of the host at the start", names, func(w *worker) map[string]*count { return w.byWeather })
	names = nil
	for _, k := range kinds {
		names = append(names, k.name)
	}
	s.printCounts(w, "request", names, func(w *worker) map[string]*count { return w.byKind })
	s.printHosts(w)
	s.printHeap(w)
	fmt.Fprintf(w, "left: %d goroutines, %d connections; %d attempts reached a server long after their caller had gone\n",
		s.leftAlive, s.leftOpen, s.strays)
	if s.took < s.duration {
		fmt.Fprintf(w, "interrupted after %v\n", s.took.Round(time.Millisecond))
	}
	for _, line := range s.wrong {
		fmt.Fprintf(w, "FAIL: %s\n", line)
	}
	if n := len(s.wrong); n > 0 {
		fmt.Fprintf(w, "failed: seed %d: %d claims do not hold, %d calls went wrong\n", s.seed, n, s.calls)
		return
	}
	fmt.Fprintf(w, "ok: seed %d: %d requests in %v\n", s.seed, s.started(), s.took.Round(time.Millisecond))
}

// printCounts prints a row for each name: how many requests there were, how they
// ended, and what they cost.
func (s *soak) printCounts(w io.Writer, what string, names []string, of func(*worker) map[string]*count) {
	head := []string{what, "requests", "right", "cut off"}
	for r := retrip.ReasonCancelled; r <= retrip.ReasonQuota; r++ {
		head = append(head, r.String())
	}
	printRow(w, append(head, "attempts made", "amplification")...)
	printRule(w, len(head)+2)
	rows := s.merge(of)
	sum := total(rows)
	rows["all"] = &sum
	for _, name := range append(names, "all") {
		c := rows[name]
		if c == nil {
			continue
		}
		row := []string{name, fmt.Sprint(c.requests), fmt.Sprint(c.right), fmt.Sprint(c.cut)}
		for _, n := range c.reasons[retrip.ReasonCancelled:] {
			row = append(row, fmt.Sprint(n))
		}
		printRow(w, append(row, fmt.Sprint(c.attempts), c.amplification())...)
	}
	fmt.Fprintln(w)
}

func (c *count) amplification() string {
	return fmt.Sprintf("%.2f", float64(c.attempts)/float64(max(c.requests, 1)))
}

// printHosts prints what the retries to each host were, and could have been.
func (s *soak) printHosts(w io.Writer) {
	head := []string{"host", "requests", "first try", "recovered", "refused", "opened", "amplification", "free retries", "paid retries", "allowed"}
	printRow(w, head...)
	printRule(w, len(head))
	hosts := s.merge(func(w *worker) map[string]*count { return w.byHost })
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		c := hosts[name]
		printRow(w, name, fmt.Sprint(c.requests), fmt.Sprint(c.firstTry), fmt.Sprint(c.recovered), fmt.Sprint(c.refused),
			fmt.Sprint(s.moves[name].opened), c.amplification(), fmt.Sprint(c.free), fmt.Sprint(c.paid),
			fmt.Sprintf("%.1f", c.allowance(s.quota, s.took)))
	}
	fmt.Fprintln(w)
}

func (s *soak) printHeap(w io.Writer) {
	var each []string
	for _, n := range s.heap {
		each = append(each, mib(n))
	}
	fmt.Fprintf(w, "heap at each tenth: %s\n", strings.Join(each, ", "))
	if len(s.heap) == 10 {
		early, end := s.steady()
		fmt.Fprintf(w, "heap: %s in the second tenth, %s in the last third\n", mib(early), mib(end))
	}
}

func printRow(w io.Writer, cells ...string) { fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")) }

func printRule(w io.Writer, n int) {
	printRow(w, append([]string{"---"}, slices.Repeat([]string{"---:"}, n-1)...)...)
}
