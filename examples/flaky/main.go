// Flaky shows what retrip does about a server that misbehaves.
//
//	go run ./examples/flaky
//
// It starts real servers on loopback, over HTTP/1.1 and over HTTP/2 with TLS, that
// fail by script: they are overloaded, lose their answers, reset and close
// connections, answer too late or not at all. An http.Client sends the same requests
// to them through a bare http.Transport and through retrip over it.
//
// While it runs it prints each retry as Trace.Pausing tells of it. At the end a table
// compares the two, with how often the server did the work that it was asked for. It
// fails if anything went otherwise than scenarios.go says.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/retrip-go/retrip"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: go run ./examples/flaky\n\n"+
			"Sends requests to servers that misbehave, bare and through retrip, and compares.\n"+
			"It needs nothing but loopback and takes about 6 seconds.")
	}
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it the hard way
	if err := run(ctx, os.Stdout, scenarios); err != nil {
		fmt.Fprintln(os.Stderr, "flaky:", err)
		os.Exit(1)
	}
}

// run plays the scenarios: through retrip one after the other, so that its retries
// can be read, and bare all at once meanwhile.
func run(ctx context.Context, out io.Writer, list []scenario) error {
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, 14*time.Second, errors.New("not done after 14s"))
	defer cancel()
	cert, roots, err := newCertificate("flaky")
	if err != nil {
		return err
	}
	base := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	defer base.CloseIdleConnections()

	fmt.Fprintf(out, "%d requests, each sent through a bare http.Transport and through retrip over it. What retrip does:\n\n", len(list))
	sent := make(chan []report)
	go func() { sent <- sendBare(ctx, base, cert, list) }()
	through := sendThrough(ctx, out, base, cert, list)
	bare := <-sent
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	table(out, list, bare, through)
	if wrong := check(out, list, bare, through); wrong > 0 {
		return fmt.Errorf("%d results are not the expected ones", wrong)
	}
	fmt.Fprintf(out, "\nAll %d as expected, in %.1fs.\n", len(list), time.Since(start).Seconds())
	return nil
}

func sendBare(ctx context.Context, base http.RoundTripper, cert tls.Certificate, list []scenario) []report {
	client := &http.Client{Transport: base}
	reports := make([]report, len(list))
	var all sync.WaitGroup
	for i, s := range list {
		all.Go(func() { reports[i] = s.send(ctx, client, cert) })
	}
	all.Wait()
	return reports
}

func sendThrough(ctx context.Context, out io.Writer, base http.RoundTripper, cert tls.Certificate, list []scenario) []report {
	attempts := 0
	client := &http.Client{Transport: retrip.New(base,
		retrip.WithAttemptTimeout(time.Second),
		retrip.WithBackoff(retrip.FullJitter(100*time.Millisecond, time.Second)),
		retrip.WithTrace(&retrip.Trace{
			Attempted: func(retrip.AttemptedInfo) { attempts++ },
			Pausing:   func(i retrip.PausingInfo) { fmt.Fprintln(out, "   ", i) },
			GaveUp:    func(i retrip.GaveUpInfo) { fmt.Fprintln(out, "    gave up:", i.Reason) },
		}))}
	reports := make([]report, len(list))
	for i, s := range list {
		if ctx.Err() != nil {
			break
		}
		fmt.Fprintf(out, "%s: %s\n", s.name, s.note)
		attempts = 0
		r := s.send(ctx, client, cert)
		r.attempts = attempts
		fmt.Fprintf(out, "    %s\n\n", r.end())
		reports[i] = r
	}
	return reports
}

// A report is what became of one request.
type report struct {
	outcome
	attempts int
	took     time.Duration
	err      error
}

// end is the result, or all that the error has to say but for the URL.
func (r report) end() string {
	text := r.result
	if u, ok := errors.AsType[*url.Error](r.err); ok {
		text = u.Err.Error()
	}
	return fmt.Sprintf("%s (%.2fs)", text, r.took.Seconds())
}

func table(out io.Writer, list []scenario, bare, through []report) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REQUEST\tBARE\tTIME\tWORK\tRETRIP\tATTEMPTS\tTIME\tWORK")
	for i, s := range list {
		b, r := bare[i], through[i]
		fmt.Fprintf(w, "%s\t%s\t%.2fs\t%d\t%s\t%d\t%.2fs\t%d\n", s.name,
			b.result, b.took.Seconds(), b.work, r.result, r.attempts, r.took.Seconds(), r.work)
	}
	w.Flush()
	fmt.Fprintln(out, "\nWORK is how often the server did what it was asked for.\n"+
		"What hung did not end at its deadline, but when its body did.")
}

// check prints what is not as the scenarios say, and returns how much that is.
func check(out io.Writer, list []scenario, bare, through []report) (wrong int) {
	for i, s := range list {
		took := through[i].took
		for _, c := range []struct {
			what      string
			got, want any
		}{
			{"bare result", bare[i].result, s.bare.result},
			{"bare work", bare[i].work, s.bare.work},
			{"retrip result", through[i].result, s.retrip.result},
			{"retrip attempts", through[i].attempts, s.attempts},
			{"retrip work", through[i].work, s.retrip.work},
			{"retrip time", took, min(max(took, s.least), cmp.Or(s.most, math.MaxInt64))},
		} {
			if c.got != c.want {
				fmt.Fprintf(out, "\nUNEXPECTED: %s: %s is %v, not %v\n", s.name, c.what, c.got, c.want)
				wrong++
			}
		}
	}
	return wrong
}
