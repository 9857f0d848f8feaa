package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/spf13/cobra"
)

func (a *app) dlq() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Dead letters: deliveries that were given up",
		Example: `  retrip dlq ls --since 24h
  retrip dlq show 1042
  retrip dlq replay --dest acme --rate 10`,
	}
	cmd.AddCommand(a.dlqList(), a.dlqShow(), a.dlqReplay(), a.dlqPurge(), a.dlqExport(), a.dlqImport())
	return cmd
}

// A choice is a deliver.Filter by flags.
type choice struct {
	filter deliver.Filter
	since  time.Duration
	reason string
}

var lineBreaks = strings.NewReplacer("\r\n", "", "\n", "", "\t", "")

var reasons = []string{
	string(deliver.ReasonExhausted), string(deliver.ReasonExpired), string(deliver.ReasonPermanent), string(deliver.ReasonGone),
	string(deliver.ReasonDisabled), string(deliver.ReasonWorkerLost), string(deliver.ReasonParked),
}

func (c *choice) flags(cmd *cobra.Command, limit int) {
	f := cmd.Flags()
	f.StringVar(&c.filter.Destination, "dest", "", "only those to this destination")
	f.StringVar(&c.filter.EventID, "event", "", "only those of this event")
	f.DurationVar(&c.since, "since", 0, "only those that died within this time, such as 24h")
	f.StringVar(&c.reason, "reason", "", fmt.Sprintf("only those for this reason, one of %v", reasons))
	f.IntVar(&c.filter.Limit, "limit", limit, "at most so many, the last sent; 0 is no limit")
	_ = cmd.RegisterFlagCompletionFunc("reason", cobra.FixedCompletions(reasons, cobra.ShellCompDirectiveNoFileComp))
}

// narrow reports whether any flag leaves something out, the limit aside.
func (c *choice) narrow() bool {
	return c.filter.Destination != "" || c.filter.EventID != "" || c.since > 0 || c.reason != ""
}

// read checks the flags before the database is opened.
func (c *choice) read() ([]deliver.Option, error) {
	switch f := &c.filter; {
	case c.reason != "" && !slices.Contains(reasons, c.reason):
		return nil, misuse("--reason %s is not one of %v", c.reason, reasons)
	case c.since < 0:
		return nil, misuse("--since is negative")
	case f.Limit < 0:
		return nil, misuse("--limit is negative")
	case f.Limit == 0:
		f.Limit = math.MaxInt
	}
	c.filter.Reason = deliver.Reason(c.reason)
	if c.since > 0 {
		c.filter.Since = time.Now().Add(-c.since)
	}
	return nil, nil
}

// each goes through the chosen ones in pages, so that not all payloads are in memory at
// once, and tells whether there are more than the limit.
func (c *choice) each(ctx context.Context, dead *deliver.DeadLetters, do func(deliver.DeadLetter) error) (more bool, err error) {
	const page = 100
	f := c.filter
	for left := f.Limit; ; {
		f.Limit = page
		all, err := dead.List(ctx, f)
		if err != nil {
			return false, err
		}
		for _, d := range all {
			if left == 0 {
				return true, nil
			}
			left, f.Before = left-1, d.ID
			if err := do(d); err != nil {
				return false, err
			}
		}
		if len(all) < page {
			return false, nil
		}
	}
}

func (a *app) dlqList() *cobra.Command {
	var c choice
	cmd := &cobra.Command{
		Use:               "ls",
		Short:             "List dead letters, the last sent first",
		Example:           "  retrip dlq ls --dest acme --since 24h --reason exhausted",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.flags(cmd, 100)
	cmd.Flags().BoolVar(&c.filter.Replayed, "replayed", false, "also those that were replayed")
	cmd.RunE = a.withOptions(c.read, func(ctx context.Context, s store, _ []string) error {
		var rows [][]any
		more, err := c.each(ctx, s.Dead(), func(d deliver.DeadLetter) error {
			if a.json {
				return a.line(newLetterJSON(d))
			}
			rows = append(rows, []any{d.ID, d.EventID, d.Destination, d.Ended, d.Reason, fmt.Sprintf("%d of %d", len(d.Attempts), d.MaxAttempts), d.LastError()})
			return nil
		})
		a.table("NUMBER\tEVENT\tDESTINATION\tDIED\tREASON\tATTEMPTS\tLAST FAILURE", rows)
		if more {
			fmt.Fprintf(a.err, "there are more: --limit is %d\n", c.filter.Limit)
		}
		return err
	})
	return cmd
}

// numbers reads those of dead letters, each once.
func numbers(args []string) ([]int64, error) {
	var ids []int64
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return nil, misuse("%q is not the number of a dead letter", arg)
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func (a *app) dlqShow() *cobra.Command {
	var payload bool
	cmd := &cobra.Command{
		Use:   "show NUMBER",
		Short: "Show a dead letter: its story and its payload",
		Long: `Show prints the story of a dead letter and its payload, quoted if it is not plain text;
--payload prints the payload alone, byte for byte.`,
		Example: `  retrip dlq show 1042
  retrip dlq show 1042 --payload | jq .`,
		Args:              exactly(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&payload, "payload", false, "print the payload alone, as it is unless to a terminal")
	cmd.RunE = a.with(func(ctx context.Context, s store, args []string) error {
		ids, err := numbers(args)
		if err != nil {
			return err
		}
		d, err := s.Dead().Get(ctx, ids[0])
		if err != nil {
			return err
		}
		switch {
		case payload && !a.terminal:
			_, err := a.out.Write(d.Payload)
			return err
		case payload:
			fmt.Fprintln(a.out, text(d.Payload))
		case a.json:
			j := newLetterJSON(d)
			j.Payload = d.Payload
			return a.line(j)
		default:
			a.story(d)
		}
		return nil
	})
	return cmd
}

func (a *app) story(d deliver.DeadLetter) {
	field := func(name string, value any) { fmt.Fprintf(a.out, "%-12s %s\n", name, plain(fmt.Sprint(value))) }
	field("event", d.EventID)
	field("destination", d.Destination)
	field("state", fmt.Sprintf("%s, %s", d.State, d.Reason))
	field("created", clock(d.Created))
	field("died", clock(d.Ended))
	if d.ReplayOf != 0 {
		field("replay of", d.ReplayOf)
	}
	if p := d.Parked; p != nil {
		field("request", p.Method+" "+host(p.URL))
		if p.Lost != "" {
			field("lost", p.Lost)
		}
	}
	fmt.Fprintln(a.out)
	var rows [][]any
	for _, at := range d.Attempts {
		rows = append(rows, []any{at.Number, at.At, at.Duration, at.String(), strconv.Quote(at.Answer)})
	}
	a.table("ATTEMPT\tAT\tTOOK\tOUTCOME\tANSWER", rows)
	fmt.Fprintf(a.out, "\npayload      %d bytes", len(d.Payload))
	if d.ContentType != "" {
		fmt.Fprintf(a.out, ", %s", plain(d.ContentType))
	}
	fmt.Fprintf(a.out, "\n%s\n", text(d.Payload))
}

// text is a payload for people: line by line if all of it can be printed, else quoted.
func text(payload []byte) string {
	s := string(payload)
	if plain(lineBreaks.Replace(s)) == lineBreaks.Replace(s) {
		return s
	}
	return strconv.Quote(s)
}

func (a *app) dlqPurge() *cobra.Command {
	var c choice
	var older time.Duration
	var dry bool
	cmd := &cobra.Command{
		Use:   "purge --older-than DURATION",
		Short: "Delete dead letters for good",
		Long:  "Purge deletes dead letters for good, also those that were replayed.",
		Example: `  retrip dlq purge --older-than 720h
  retrip dlq purge --dest acme --reason permanent --older-than 1h --dry-run`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.flags(cmd, 0)
	cmd.Flags().DurationVar(&older, "older-than", 0, "those that died at least so long ago")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say how many")
	read := func() ([]deliver.Option, error) {
		if older <= 0 {
			return nil, misuse("purge needs --older-than, and more than zero")
		}
		c.filter.Replayed, c.filter.Until = true, time.Now().Add(-older)
		return c.read()
	}
	cmd.RunE = a.withOptions(read, func(ctx context.Context, s store, _ []string) error {
		if dry {
			n, err := s.Dead().Count(ctx, c.filter)
			return errors.Join(err, a.said(map[string]int{"would_purge": n}, "%d would be purged", n))
		}
		n, err := s.Dead().Delete(ctx, c.filter)
		return errors.Join(err, a.said(map[string]int{"purged": n}, "%d purged", n))
	})
	return cmd
}

func (a *app) dlqExport() *cobra.Command {
	var c choice
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print dead letters, payloads and all, one line of JSON each",
		Long: `Export prints dead letters for import: one line of JSON each, with the payload in base64,
and of parked requests the URL. Treat the file as you treat the database.`,
		Example:           "  retrip dlq export --dest acme >acme.jsonl",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.flags(cmd, 0)
	cmd.RunE = a.withOptions(c.read, func(ctx context.Context, s store, _ []string) error {
		n, err := s.Dead().Export(ctx, tame{a.out}, c.filter)
		fmt.Fprintf(a.err, "%d exported\n", n)
		return err
	})
	return cmd
}

func (a *app) dlqImport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Read what export printed",
		Long: `Import reads from the standard input what export printed. Events that the database has a
delivery of, to the same destination, are left out: it may be run again. What is imported
is a dead letter until it is replayed, or has been there for as long as serve keeps them.`,
		Example:           "  retrip --db other.db dlq import <acme.jsonl",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	// What an application was allowed to send comes back, whatever the default is here.
	large := func() ([]deliver.Option, error) {
		return []deliver.Option{deliver.WithMaxPayload(256 << 20)}, nil
	}
	cmd.RunE = a.withOptions(large, func(ctx context.Context, s store, _ []string) error {
		n, err := s.Dead().Import(ctx, a.in)
		return errors.Join(err, a.said(map[string]int{"imported": n}, "%d imported", n))
	})
	return cmd
}
