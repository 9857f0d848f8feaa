package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/retrip-go/retrip/deliver"
	"github.com/spf13/cobra"
)

func (a *app) send() *cobra.Command {
	var e deliver.Event
	var file string
	var s schedules
	cmd := &cobra.Command{
		Use:   "send --to DESTINATION [--to …]",
		Short: "Write an event down, to be delivered",
		Long: `Send writes an event down and prints its id. The payload is read from a file or the
standard input, and sent as it is. How many attempts it gets is settled here: if the
destination has a schedule by name, give the same --schedule as to serve.`,
		Example: `  echo '{"n":1}' | retrip send --to acme
  retrip send --to acme --to globex --id order-1042 --file order.json`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringArrayVar(&e.To, "to", nil, "destination; may be repeated")
	f.StringVar(&e.ID, "id", "", "the event's id; the same id is delivered once (default: a new one)")
	f.StringVar(&e.ContentType, "content-type", "", "of the payload (default application/json)")
	f.StringVar(&file, "file", "-", "the payload; - is the standard input")
	s.flag(cmd)
	cmd.RunE = a.withOptions(s.options, func(ctx context.Context, s store, _ []string) (err error) {
		if len(e.To) == 0 {
			return misuse("send needs --to")
		}
		if e.Payload, err = a.read(file); err != nil {
			return err
		}
		r, err := s.Send(ctx, e)
		if err != nil {
			return err
		}
		if !a.json {
			fmt.Fprintln(a.out, r.EventID)
		}
		for _, d := range r.Deliveries {
			if a.json {
				if err := a.line(receiptJSON{r.EventID, d.ID, d.Destination, d.Duplicate}); err != nil {
					return err
				}
			} else if d.Duplicate {
				fmt.Fprintf(a.err, "%s has it already, as delivery %d\n", plain(d.Destination), d.ID)
			}
		}
		return nil
	})
	return cmd
}

// read reads a file, or the standard input if it is called -.
func (a *app) read(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(a.in)
	}
	b, err := os.ReadFile(file)
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = fmt.Errorf("the file cannot be read: %w", p.Err) // not its name: it may be the content, misplaced
	}
	return b, err
}

func (a *app) status() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "status EVENT",
		Short:             "Show where the deliveries of an event are, and their attempts",
		Example:           "  retrip status 7d0f2b1e-6f0a-4f43-9a52-0c8f3ad3f0b5",
		Args:              exactly(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = a.with(func(ctx context.Context, s store, args []string) error {
		all, err := s.Status(ctx, args[0])
		if err != nil {
			return err
		}
		var rows, attempts [][]any
		for _, st := range all {
			if a.json {
				if err := a.line(newStatusJSON(st)); err != nil {
					return err
				}
				continue
			}
			rows = append(rows, []any{st.ID, st.Destination, st.State, fmt.Sprintf("%d of %d", st.Attempt, st.MaxAttempts), st.Created, st.Next, st.Ended})
			for _, at := range st.Attempts {
				attempts = append(attempts, []any{st.ID, at.Number, at.At, at.Duration, at.String()})
			}
		}
		a.table("DELIVERY\tDESTINATION\tSTATE\tATTEMPT\tCREATED\tNEXT\tENDED", rows)
		if len(attempts) > 0 {
			fmt.Fprintln(a.out)
		}
		a.table("DELIVERY\tATTEMPT\tAT\tTOOK\tOUTCOME", attempts)
		return nil
	})
	return cmd
}
