// Bench measures retrip beside its peers: speed and memory, and with -behaviour what
// each does right and wrong. It prints Markdown. From the root of the repository:
//
//	go run -C bench . -quick
//	go run -C bench . -behaviour
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

func main() {
	if scene, name, ok := strings.Cut(os.Getenv(raceEnv), " "); ok {
		os.Exit(playRace(scene, name))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// A bench is one run.
type bench struct {
	rounds    int
	slice     time.Duration // of one contender in one round
	waiting   int           // requests that wait at once
	weighings int           // of them
	claims    []claim
}

// A table is a measure's result.
type table struct {
	head  []string
	rows  [][]string
	notes []string
}

// A claim is a figure that does not depend on the machine's speed.
type claim struct {
	what       string
	got, limit float64
}

func atMost(what string, got, limit float64) claim { return claim{what, got, limit} }

func (c claim) holds() bool { return c.got <= c.limit }

func (c claim) String() string {
	verdict := "ok  "
	if !c.holds() {
		verdict = "FAIL"
	}
	return fmt.Sprintf("%s %s: %.4g, at most %.4g", verdict, c.what, c.got, c.limit)
}

func measures() []measure {
	var all []measure
	for _, o := range operations {
		all = append(all, o.measure())
	}
	return append(all, hostMemory, uploads(1<<20), uploads(64<<20),
		loopback(1, "GET"), loopback(16, "GET"), loopback(16, "POST"), connections, waiting)
}

func run(args []string, out, talk io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(talk)
	quick := flags.Bool("quick", false, "fewer and shorter rounds: under a minute")
	only := flags.String("run", "", "only the measures, or the behaviours, whose name matches")
	rounds := flags.Int("rounds", 0, "rounds of each measure (0: 10, or 3 if quick)")
	check := flags.Bool("check", false, "exit with 1 unless retrip's figures that do not depend on time are as claimed")
	behave := flags.Bool("behaviour", false, "what each does right and wrong, instead of speed and memory")
	strict := flags.Bool("strict", false, "with -behaviour: exit with 1 if retrip fails a row")
	usage := func(err error) int {
		fmt.Fprintf(talk, "bench: %v\n", err)
		return 2
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	pattern, err := regexp.Compile(*only)
	switch {
	case err != nil:
		return usage(fmt.Errorf("-run: %w", err))
	case flags.NArg() > 0:
		return usage(fmt.Errorf("what is %q?", flags.Arg(0)))
	case *rounds < 0:
		return usage(fmt.Errorf("-rounds %d is negative", *rounds))
	}
	w := bufio.NewWriter(out)
	defer func() { _ = w.Flush() }()
	if *behave {
		if err := behaviours(w, behaviourOptions{run: pattern, strict: *strict}); err != nil {
			fmt.Fprintf(talk, "bench: %v\n", err)
			return 1
		}
		return 0
	}
	b := &bench{rounds: 10, slice: 100 * time.Millisecond, waiting: 5000, weighings: 3}
	if *quick {
		b.rounds, b.slice, b.waiting, b.weighings = 3, 25*time.Millisecond, 2000, 2
	}
	if *rounds > 0 {
		b.rounds = *rounds
	}
	var chosen []measure
	for _, m := range measures() {
		if pattern.MatchString(m.name) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return usage(fmt.Errorf("-run %s: no measure has such a name", pattern))
	}
	if err := b.run(w, talk, chosen); err != nil {
		fmt.Fprintf(talk, "bench: %v\n", err)
		return 1
	}
	return b.verdict(talk, *check)
}

func (b *bench) run(w io.Writer, talk io.Writer, chosen []measure) error {
	header(w)
	start := time.Now()
	for _, m := range chosen {
		fmt.Fprintf(talk, "%4.0f s  %s\n", time.Since(start).Seconds(), m.name)
		t, err := m.run(b)
		if err != nil {
			return err
		}
		t.write(w, m.name, m.doc)
	}
	fmt.Fprintf(talk, "%4.0f s  done\n", time.Since(start).Seconds())
	return nil
}

// verdict prints the claims.
func (b *bench) verdict(talk io.Writer, check bool) int {
	if check && len(b.claims) == 0 {
		fmt.Fprintln(talk, "bench: -check: nothing is claimed of these measures")
		return 2
	}
	status := 0
	for _, c := range b.claims {
		if !c.holds() {
			status = 1
		}
		if check || !c.holds() {
			fmt.Fprintln(talk, c)
		}
	}
	if !check {
		return 0
	}
	return status
}

func (t table) write(w io.Writer, name, doc string) {
	fmt.Fprintf(w, "## %s\n\n%s\n\n", name, doc)
	writeRow(w, t.head)
	rule := make([]string, len(t.head))
	for i := range rule {
		rule[i] = "---:"
	}
	rule[0] = "---"
	writeRow(w, rule)
	for _, row := range t.rows {
		writeRow(w, row)
	}
	if len(t.notes) > 0 {
		fmt.Fprintf(w, "\nNot here: %s.\n", strings.Join(t.notes, "; "))
	}
	fmt.Fprintln(w)
}

func writeRow(w io.Writer, cells []string) {
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", `\|`)
	}
	fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
}

// header says where, when and of what.
func header(w io.Writer) {
	fmt.Fprintf(w, "# retrip beside its peers\n\n")
	fmt.Fprintf(w, "Measured by `go run -C bench .` on %s, %d cores, %s, %s/%s, on %s.\n\n", cpu(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH,
		time.Now().UTC().Format("2 January 2006"))
	fmt.Fprint(w, "## How to read this\n\nContenders take turns, round by round, in an order that turns too. Figures are medians over the rounds. \"Times bare\" is the "+
		"median of the ratios to the bare base within each round, with the least and the greatest: ratios carry over to other machines, times do not. CPU "+
		"is the processor time of the whole process, the collector's included, and suffers less than time from what else the machine does. "+
		"Bytes and allocations are those of one operation; \"over bare\" is what is added to the bare base's.\n\n## Contenders\n\n")
	versions := make(map[string]string)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			versions[m.Path] = m.Version
		}
	}
	fmt.Fprint(w, "| contender | version | how it is set up |\n| --- | --- | --- |\n")
	for _, c := range append(append([]contender{}, contenders...), byHand) {
		v := versions[c.module]
		if c.module == "github.com/retrip-go/retrip" {
			v = "this tree"
		}
		writeRow(w, []string{c.name, v, c.how})
	}
	fmt.Fprintln(w)
}

// cpu is the processor's name, where the system tells.
func cpu() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.SplitSeq(string(b), "\n") {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				return strings.TrimSpace(strings.TrimLeft(name, " \t:"))
			}
		}
	}
	return "an unknown processor"
}
