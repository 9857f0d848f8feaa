// Storm is a laboratory: it lets many clients, each with a real retrip.Transport, meet
// simulated servers in virtual time, where an hour takes a second.
//
//	go run -C storm .
//	go run -C storm . -list
//	go run -C storm . -scenario herd -clients 500 -backoff equal -base 1s -cap 60s
//
// Only the servers, and the clock, are simulated. The same seed gives the same numbers.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"testing"
)

// garbage is how much a heap may grow, in percent: what a world keeps is little, what it
// uses once is much.
const garbage = 500

func main() {
	debug.SetGCPercent(garbage)
	s, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "storm:", err)
		os.Exit(2)
	case s.list:
		list(os.Stdout)
		return
	}
	inTest(func(t *testing.T) {
		if err := run(t, s, os.Stdout, terminal(os.Stderr)); err != nil {
			fmt.Fprintln(os.Stderr, "storm:", err)
			os.Exit(1)
		}
		os.Exit(0)
	})
}

// inTest calls f with a T, without which testing/synctest makes no virtual time. f ends
// the program, since testing.Main would have the last word otherwise.
func inTest(f func(*testing.T)) {
	os.Args = os.Args[:1] // else testing.Main reads them
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "storm", F: f}}, nil, nil)
}

// terminal returns a progress line if out is where somebody watches it.
func terminal(out *os.File) *progress {
	if info, err := out.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return &progress{out: out}
}

func list(out io.Writer) {
	for _, sc := range scenarios() {
		fmt.Fprintf(out, "%s: %s\n%s\n  heeds:", sc.name, sc.title, indent(sc.about))
		for _, name := range sc.heeds {
			fmt.Fprintf(out, " -%s", name)
		}
		fmt.Fprint(out, "\n\n")
	}
}

// run runs the scenarios, all at once, and prints their tables in order.
func run(t *testing.T, s settings, out io.Writer, p *progress) error {
	l := newLab(t, s.seed, p, os.Stderr)
	defer p.clear()
	var ran []scenario
	var results []chan report
	for _, sc := range scenarios() {
		if s.scenario == "" || s.scenario == sc.name {
			result := make(chan report, 1)
			ran, results = append(ran, sc), append(results, result)
			go func() { result <- sc.run(l, s) }()
		}
	}
	var reports []report
	for _, result := range results {
		r := <-result
		reports = append(reports, r)
		p.clear()
		for _, table := range r.tables {
			if err := table.print(out); err != nil {
				return err
			}
		}
	}
	if s.out == "" {
		return nil
	}
	return save(s.out, s, ran, reports)
}
