// Observe shows what can be seen of a Transport while its hosts misbehave.
//
//	go run -C examples/observe .
//
// It starts servers on loopback that are well, flaky, slow, overloaded and down by turns,
// sends them requests through retrip, and serves the page of statusz and the metrics of
// retripprom. It prints where, and ends on Ctrl-C or after the time that -for names.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripprom"
	"github.com/retrip-go/retrip/statusz"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: go run -C examples/observe . [-for 30s] [-listen 127.0.0.1:8080]\n\n"+
			"Sends requests to servers that misbehave, and shows what can be seen of it.")
		flag.PrintDefaults()
	}
	end := flag.Duration("for", 0, "end after this time; 0: on Ctrl-C")
	listen := flag.String("listen", "127.0.0.1:0", "address of the page and the metrics")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		refuse("argument %q: there are only flags", flag.Arg(0))
	case *end < 0:
		refuse("-for %v: it is negative", *end)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it the hard way
	if *end > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *end)
		defer cancel()
	}
	if err := run(ctx, os.Stdout, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "observe:", err)
		os.Exit(1)
	}
}

// refuse ends the program as flag does where it cannot read a value.
func refuse(format string, args ...any) {
	fmt.Fprintf(flag.CommandLine.Output(), "observe: "+format+"\n", args...)
	flag.Usage()
	os.Exit(2)
}

// run lasts until ctx ends.
func run(ctx context.Context, out io.Writer, listen string) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	hosts, stop := start()
	defer stop()
	base := &http.Transport{DialContext: dialer(hosts)}
	defer base.CloseIdleConnections()
	breaker := retrip.DefaultBreaker()
	breaker.Failures, breaker.Cooldowns = 5, []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second}
	rt := retrip.New(base, retrip.WithBreaker(&breaker), retrip.WithAttemptTimeout(time.Second),
		retrip.WithBackoff(retrip.FullJitter(100*time.Millisecond, 2*time.Second)))

	server := &http.Server{Handler: pages(rt), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Fprintf(out, "page     http://%s/debug/retrip\nJSON     http://%[1]s/debug/retrip?format=json\nmetrics  http://%[1]s/metrics\n", listener.Addr())

	sent := traffic(ctx, &http.Client{Transport: rt}, hosts)
	fmt.Fprintf(out, "%d requests were answered, %d were not\n", sent.answered, sent.failed)
	ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(ended); err != nil {
		return err
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// pages are what there is to see.
func pages(rt *retrip.Transport) http.Handler {
	metrics := retripprom.New()
	metrics.Watch("observe", rt)
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	mux := http.NewServeMux()
	mux.Handle("/debug/retrip", statusz.Handler(rt))
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/{$}", http.RedirectHandler("/debug/retrip", http.StatusFound))
	return mux
}

// A tally is what came of the requests.
type tally struct{ answered, failed int }

// traffic sends requests to all hosts until ctx ends.
func traffic(ctx context.Context, client *http.Client, hosts map[string]string) tally {
	var (
		callers sync.WaitGroup
		mu      sync.Mutex
		sum     tally
	)
	for name := range hosts {
		callers.Go(func() {
			for ctx.Err() == nil {
				ok := call(ctx, client, name)
				if ctx.Err() != nil {
					return // cut off by the end
				}
				mu.Lock()
				if ok {
					sum.answered++
				} else {
					sum.failed++
				}
				mu.Unlock()
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	callers.Wait()
	return sum
}

func call(ctx context.Context, client *http.Client, name string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+name+"/", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close()) == nil && resp.StatusCode < 400
}
