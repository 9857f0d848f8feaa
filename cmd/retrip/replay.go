package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
)

func (a *app) dlqReplay() *cobra.Command {
	var c choice
	var how deliver.Replaying
	var all bool
	var s schedules
	var ids []int64
	cmd := &cobra.Command{
		Use:   "replay [NUMBER …]",
		Short: "Deliver dead letters again",
		Long: `Replay makes a new delivery of each dead letter, with the same event id and payload.
Without numbers it replays those that the filters choose; --all chooses all. What was
replayed or delivered before is refused, unless forced. The serving processes make the
deliveries, at --rate if it is given: replay itself does not wait for them.`,
		Example: `  retrip dlq replay 1042 1043
  retrip dlq replay --dest acme --since 24h --dry-run
  retrip dlq replay --dest acme --rate 10`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.flags(cmd, 0)
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "all dead letters")
	f.BoolVar(&how.DryRun, "dry-run", false, "only say what would be replayed")
	f.Float64Var(&how.Rate, "rate", 0, "at most so many deliveries a second; 0 is no limit")
	f.BoolVar(&how.Force, "force", false, "also what was delivered or replayed before")
	s.flag(cmd)
	cmd.Args = func(_ *cobra.Command, args []string) (err error) {
		ids, err = numbers(args)
		return err
	}
	read := func() ([]deliver.Option, error) {
		switch given := len(ids) > 0; {
		case !(how.Rate >= 0 && how.Rate <= math.MaxFloat64):
			return nil, misuse("--rate is not a number of deliveries a second")
		case given && (c.narrow() || all):
			return nil, misuse("give numbers, or filters, not both")
		case !given && !c.narrow() && !all:
			return nil, misuse("give numbers, filters or --all")
		}
		c.filter.Replayed = how.Force
		if _, err := c.read(); err != nil {
			return nil, err
		}
		return s.options()
	}
	cmd.RunE = a.withOptions(read, func(ctx context.Context, s store, _ []string) (err error) {
		ctx, stop := untilSignal(ctx)
		defer stop()
		finish := a.progress(&how)
		var replays []deliver.Replay
		if len(ids) > 0 {
			replays, err = s.Dead().Replay(ctx, ids, how)
		} else {
			replays, err = s.Dead().ReplayAll(ctx, c.filter, how)
		}
		finish()
		if ctx.Err() != nil {
			err = errors.New("interrupted: what is listed was replayed, the rest was not")
		}
		if err != nil && len(replays) == 0 {
			return err
		}
		return errors.Join(err, a.printReplays(replays, how.DryRun))
	})
	return cmd
}

// progress shows a bar to a person who waits.
func (a *app) progress(how *deliver.Replaying) (finish func()) {
	if how.DryRun || a.json || !isTerminal(a.err) {
		return func() {}
	}
	bar := progressbar.NewOptions(1, progressbar.OptionSetWriter(a.err), progressbar.OptionSetDescription("replaying"),
		progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
	how.Done = func(done, all int) {
		bar.ChangeMax(all)
		_ = bar.Set(done)
	}
	return func() { _ = bar.Finish() }
}

func (a *app) printReplays(replays []deliver.Replay, dry bool) error {
	var rows [][]any
	refused := 0
	for _, r := range replays {
		why := ""
		if r.Refused != nil {
			refused++
			why = strings.TrimPrefix(r.Refused.Error(), "deliver: ")
		}
		switch {
		case a.json:
			if err := a.line(replayJSON{r.Dead.ID, r.Dead.EventID, r.Dead.Destination, dry, r.Delivery, why}); err != nil {
				return err
			}
		case r.Refused != nil:
			fmt.Fprintln(a.err, plain(why))
		case dry:
			rows = append(rows, []any{r.Dead.ID, r.Dead.EventID, r.Dead.Destination, "-"})
		default:
			rows = append(rows, []any{r.Dead.ID, r.Dead.EventID, r.Dead.Destination, r.Delivery})
		}
	}
	a.table("NUMBER\tEVENT\tDESTINATION\tDELIVERY", rows)
	if !a.json {
		verb := "replayed"
		if dry {
			verb = "would be replayed"
		}
		fmt.Fprintf(a.err, "%d %s, %d refused\n", len(replays)-refused, verb, refused)
	}
	if refused > 0 {
		return errRefused
	}
	return nil
}
