// Soak keeps one http.Client over one retrip.Transport busy while the servers it
// talks to fail at random, then takes stock.
//
//	go run -race ./soak -duration 3m -seed 1
//
// The servers are real ones on loopback, over HTTP/1.1 and some over HTTP/2 with TLS.
// Each has a weather of its own that changes all the time: overload, lost answers,
// connections that are refused, reset or cut, silence. The requests are of every kind
// that retrip treats in its own way, and some callers have no patience.
//
// At the end every request must be accounted for, on both sides; the retries must be
// as few as the quota allows; and nothing may be left: no goroutine, no connection, no
// timer, no memory. What does not hold is said on standard output, and the exit status
// is 1.
//
// The seed decides the weather and what each caller asks for. What meets what is up to
// the scheduler, so that two runs with one seed are alike and not the same.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/retrip-go/retrip"
)

func main() {
	c, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it the hard way
	ok, err := run(ctx, c, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// A config is what a run is like.
type config struct {
	duration   time.Duration
	seed       uint64
	goroutines int
	hosts      int
	verbose    bool

	// The rest is for tests, which plant faults of retrip's own.
	options  []retrip.Option
	above    func(http.RoundTripper) http.RoundTripper // between client and retrip
	below    func(http.RoundTripper) http.RoundTripper // between retrip and its base
	patience time.Duration                             // with what should end at once; 0: 10 s
}

// parse reads the flags. What is wrong with them it says itself.
func parse(args []string, stderr io.Writer) (config, error) {
	c := config{duration: 3 * time.Minute, goroutines: 200, hosts: 20}
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.DurationVar(&c.duration, "duration", c.duration, "how long the load lasts, 1s at least")
	f.Uint64Var(&c.seed, "seed", 0, "of all that is random; 0 draws one, which is printed")
	f.IntVar(&c.goroutines, "goroutines", c.goroutines, "how many callers there are at once")
	f.IntVar(&c.hosts, "hosts", c.hosts, "how many servers there are; every fifth speaks HTTP/2")
	f.BoolVar(&c.verbose, "v", false, "log the weather and the breakers to standard error")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	var err error
	switch {
	case f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	case c.duration < time.Second:
		err = fmt.Errorf("-duration %v: want 1s at least", c.duration)
	case c.goroutines < 1 || c.goroutines > 10_000:
		err = fmt.Errorf("-goroutines %d: want 1 to 10000", c.goroutines)
	case c.hosts < 1 || c.hosts > 1000:
		err = fmt.Errorf("-hosts %d: want 1 to 1000", c.hosts)
	}
	if err != nil {
		fmt.Fprintln(stderr, "soak:", err)
	}
	for c.seed == 0 {
		c.seed = rand.Uint64()
	}
	return c, err
}

// run makes a run and prints what came of it. It reports whether all held that must.
func run(ctx context.Context, c config, stdout, stderr io.Writer) (bool, error) {
	c.patience = cmp.Or(c.patience, 10*time.Second)
	s := newSoak(c, stderr)
	s.printHeader(stdout)
	if err := s.open(); err != nil {
		s.close()
		return false, err
	}
	s.load(ctx)
	s.rest()
	s.close()
	s.audit()
	s.printReport(stdout)
	return len(s.wrong) == 0, nil
}
