package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/retrip-go/retrip/deliver/panel"
	"github.com/spf13/cobra"
)

func (a *app) serve() *cobra.Command {
	var listen string
	var workers int
	var allow []string
	var replay bool
	var attempt, keep, keepDead, grace time.Duration
	var s schedules
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Deliver events, and serve the panel",
		Long: `Serve delivers events until it is told to stop (SIGINT, SIGTERM); then it lets the
attempts under way end. A second signal ends it at once; what was under way is then
delivered again later. Any number of processes may serve one database, which serve makes
and migrates if need be.

The panel has no authentication of its own: it listens on loopback, or behind
something that has. It shows payloads; --allow-replay lets it replay as well. Beside it
are /metrics, for Prometheus, and /debug/retrip, the requests of this process.`,
		Example: `  retrip --db webhooks.db serve --listen 127.0.0.1:8080
  retrip --db webhooks.db serve --schedule slow=5m,30m,3h,18h,24h --schedule quick=1s,5s
  retrip --db webhooks.db serve --schedule '10s..30m*12' --allow-network 10.0.0.0/8`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "", "address of the panel (default: no panel)")
	f.IntVar(&workers, "workers", 100, "deliveries at once")
	f.StringArrayVar(&allow, "allow-network", nil, "network that is not public and may be delivered to, such as 10.0.0.0/8; may be repeated")
	f.BoolVar(&replay, "allow-replay", false, "let whoever reaches the panel replay dead letters")
	f.DurationVar(&attempt, "timeout", 30*time.Second, "how long an attempt may take at most; all that serve a database need the same")
	f.DurationVar(&keep, "keep", 3*24*time.Hour, "how long what was delivered is kept; 0 is for ever")
	f.DurationVar(&keepDead, "keep-dead", 30*24*time.Hour, "how long dead letters are kept; 0 is for ever; the shortest of all that serve counts")
	f.DurationVar(&grace, "grace", 35*time.Second, "how long attempts under way may take when told to stop; by default 5s longer than --timeout")
	s.flag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		opts, err := s.options()
		switch {
		case err != nil:
			return err
		case workers < 1 || workers > 10_000:
			return misuse("--workers is not between 1 and 10000")
		case attempt < time.Second || attempt > 24*time.Hour:
			return misuse("--timeout is not between 1s and 24h")
		case keep < 0 || keepDead < 0:
			return misuse("--keep or --keep-dead is negative")
		case grace < 0:
			return misuse("--grace is negative")
		}
		if !cmd.Flags().Changed("grace") {
			grace = attempt + 5*time.Second
		}
		w := newWatch()
		opts = append(append(opts, timeout(attempt)...), w.option(), deliver.WithWorkers(workers), deliver.WithRetention(keep, keepDead))
		for _, text := range allow {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return misuse("--allow-network %s is not a network such as 10.0.0.0/8", text)
			}
			opts = append(opts, deliver.WithAllowedNetworks(p))
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		s, err := a.open(ctx, opts...)
		if err != nil {
			return err
		}
		return errors.Join(a.serveUntil(ctx, s, w, listen, replay, grace), s.Close())
	}
	return cmd
}

// localOnly refuses requests for another host than this one: a page elsewhere, whose
// name was made to lead here, would otherwise read payloads through the user's browser.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		host := (&url.URL{Host: req.Host}).Hostname()
		if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
			http.Error(w, "this panel is on loopback, and serves only localhost", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, req)
	})
}

func (a *app) serveUntil(ctx context.Context, s store, w watch, listen string, replay bool, grace time.Duration) error {
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute}
	failed := make(chan error, 1)
	if listen != "" {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("the panel: %w", err)
		}
		var opts []panel.Option
		if replay {
			opts = append(opts, panel.WithAuthorize(func(*http.Request) bool { return true }))
		}
		server.Handler = w.handler(panel.Handler(s, opts...))
		if tcp, ok := l.Addr().(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
			server.Handler = localOnly(server.Handler)
		}
		go func() { failed <- server.Serve(l) }()
		defer func() { _ = server.Close() }()
		fmt.Fprintf(a.err, "the panel is at http://%s/\n", l.Addr())
	}
	// The workers outlive the signal by their attempts.
	if err := s.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	fmt.Fprintln(a.err, "delivering")
	var err error
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.err, "stopping: waiting for the attempts under way")
	case err = <-failed:
	}
	// The panel shows the end of it.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if stopped := s.Stop(end); stopped != nil {
		return errors.Join(err, fmt.Errorf("attempts under way were cut off, and will be made again: %w", stopped))
	}
	fmt.Fprintln(a.err, "stopped")
	return err
}
