// Exactlyonce makes payments over a network that loses answers.
//
//	go run -C examples/exactlyonce .
//
// Clients post payments with retrip, through a proxy that cuts and resets connections at
// random, to a server that writes them into a ledger. Whenever an answer is lost retrip
// sends the payment again. It does so twice: to a server behind idempotent.Handler, which
// does each payment once and gives its answer again, and to the same server without it,
// which does what it is told.
//
// It fails if a payment was not answered, if a client got another's answer, or if the
// ledger of the first run is not the list of payments.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"text/tabwriter"
	"time"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: go run -C examples/exactlyonce .\n\n"+
			"Makes 1000 payments from 50 clients over a network that loses answers, to a server\n"+
			"with idempotent.Handler and to one without. It needs nothing but loopback.")
	}
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it the hard way
	ctx, cancel := context.WithTimeoutCause(ctx, 55*time.Second, errors.New("not done after 55s"))
	defer cancel()
	if err := run(ctx, os.Stdout, 1000, 50); err != nil {
		fmt.Fprintln(os.Stderr, "exactlyonce:", err)
		os.Exit(1)
	}
}

// run makes the payments with the middleware and without it, and prints both results.
func run(ctx context.Context, out io.Writer, payments, clients int) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "middleware\tpayments\tanswered\tattempts\treplays\tin the ledger\tdoubles\ttime\t")
	var failed []error
	for _, on := range []bool{true, false} {
		r, err := loop(ctx, on, payments, clients)
		if err != nil {
			return err
		}
		name := map[bool]string{true: "on", false: "off"}[on]
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%v\t\n",
			name, payments, r.answered, r.attempts, r.replays, r.rows, r.doubles(), r.took.Round(100*time.Millisecond))
		failed = append(failed, r.check(on, payments))
	}
	return errors.Join(table.Flush(), errors.Join(failed...))
}
