package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/spf13/cobra"
)

func (a *app) dest() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dest",
		Short: "Destinations: where events go",
		Example: `  retrip dest put acme https://acme.example/hook --secret-file acme.secret
  retrip dest ls`,
	}
	cmd.AddCommand(a.destList(), a.destPut(), a.destPause(),
		a.destSet("resume", "End a pause, also the breaker's", func(ctx context.Context, ds *deliver.Destinations, id string) error { return ds.Resume(ctx, id) }),
		a.destDisable(),
		a.destSet("enable", "End disable", func(ctx context.Context, ds *deliver.Destinations, id string) error { return ds.Enable(ctx, id) }))
	return cmd
}

func (a *app) destList() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "ls",
		Short:             "List destinations and how they do",
		Example:           "  retrip dest ls --json",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = a.with(func(ctx context.Context, s store, _ []string) error {
		all, err := s.Destinations().List(ctx)
		if err != nil {
			return err
		}
		var rows [][]any
		for _, d := range all {
			state := s.Destinations().Describe(d)
			if a.json {
				if err := a.line(newDestinationJSON(d, state)); err != nil {
					return err
				}
				continue
			}
			rows = append(rows, []any{d.ID, host(d.URL), d.Schedule, strings.Join(d.Secrets, " "), d.Failures, state})
		}
		a.table("DESTINATION\tHOST\tSCHEDULE\tSECRETS\tFAILURES\tSTATE", rows)
		return nil
	})
	return cmd
}

func (a *app) destPut() *cobra.Command {
	var given deliver.Destination
	var files []string
	var unsigned bool
	cmd := &cobra.Command{
		Use:   "put ID URL",
		Short: "Add a destination, or change it",
		Long: `Put adds a destination, or changes its URL and what flags are given for; the rest stays.
Secrets are read from files, so that they are in no list of processes: all that it is to
have from now on, two while one is being replaced.`,
		Example: `  retrip dest put acme https://acme.example/hook --secret-file acme.secret
  retrip dest put acme https://acme.example/hook --secret-file new.secret --secret-file old.secret
  retrip dest put acme https://acme.example/hook --schedule slow --timeout 10s`,
		Args:              exactly(2),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&given.Schedule, "schedule", "", "by name, of those that serve and send are given (default: their default)")
	f.StringArrayVar(&files, "secret-file", nil, "file with a whsec_… secret, - is the standard input; may be repeated")
	f.BoolVar(&unsigned, "unsigned", false, "from now on without a signature")
	f.DurationVar(&given.Timeout, "timeout", 0, "of an attempt; 0 is that of serve, which is also the most")
	f.IntVar(&given.AtOnce, "at-once", 0, "deliveries at once in a process; 0 is the sender's")
	cmd.RunE = a.withOptions(anyTimeout, func(ctx context.Context, s store, args []string) error {
		if unsigned && len(files) > 0 {
			return misuse("give --secret-file or --unsigned, not both")
		}
		old, err := s.Destinations().Get(ctx, args[0])
		if err != nil && !errors.Is(err, deliver.ErrNotFound) {
			return err
		}
		d := old.Destination // its secrets as hints, which stand for them
		d.ID, d.URL = args[0], args[1]
		if f.Changed("schedule") {
			d.Schedule = given.Schedule
		}
		if f.Changed("timeout") {
			d.Timeout = given.Timeout
		}
		if f.Changed("at-once") {
			d.AtOnce = given.AtOnce
		}
		if unsigned || len(files) > 0 {
			d.Secrets = nil
		}
		for i, file := range files {
			secret, err := a.read(file)
			if err != nil {
				return fmt.Errorf("secret %d: %w", i+1, err)
			}
			d.Secrets = append(d.Secrets, strings.TrimSpace(string(secret)))
		}
		return s.Destinations().Put(ctx, d)
	})
	return cmd
}

// anyTimeout leaves it to who delivers how long an attempt may take at most: a destination
// that the application put must not be refused by what is the default here.
func anyTimeout() ([]deliver.Option, error) { return timeout(24 * time.Hour), nil }

// timeout is of an attempt, at most, and with it how long after a process died its work
// is taken over: one that still works must have given up by then.
func timeout(d time.Duration) []deliver.Option {
	return []deliver.Option{deliver.WithTimeout(d), deliver.WithRescue(d + time.Minute)}
}

func (a *app) destPause() *cobra.Command {
	var d time.Duration
	cmd := &cobra.Command{
		Use:               "pause ID --for DURATION",
		Short:             "Hold all deliveries to a destination for a time",
		Example:           "  retrip dest pause acme --for 2h",
		Args:              exactly(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().DurationVar(&d, "for", 0, "how long")
	cmd.RunE = a.with(func(ctx context.Context, s store, args []string) error {
		if d <= 0 {
			return misuse("pause needs --for, and more than zero")
		}
		return s.Destinations().Pause(ctx, args[0], time.Now().Add(d))
	})
	return cmd
}

func (a *app) destDisable() *cobra.Command {
	var why string
	cmd := a.destSet("disable", "Make every delivery to a destination a dead letter", func(ctx context.Context, ds *deliver.Destinations, id string) error {
		return ds.Disable(ctx, id, why)
	})
	cmd.Flags().StringVar(&why, "why", "", "for whoever looks at it later")
	return cmd
}

// destSet is a command that does one thing to one destination.
func (a *app) destSet(name, short string, do func(context.Context, *deliver.Destinations, string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:               name + " ID",
		Short:             short,
		Example:           fmt.Sprintf("  retrip dest %s acme", name),
		Args:              exactly(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = a.with(func(ctx context.Context, s store, args []string) error { return do(ctx, s.Destinations(), args[0]) })
	return cmd
}
