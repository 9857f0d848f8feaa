// Command retrip looks after webhooks that package deliver sends: it migrates the
// database, serves workers and the panel, sends events, and shows, replays, purges,
// exports and imports dead letters.
//
// Data goes to the standard output, talk to the standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/retrip-go/retrip/deliver"
	"github.com/spf13/cobra"
)

// The exit statuses.
const (
	exitOK      = 0
	exitFailed  = 1 // it was tried, and did not work
	exitUsage   = 2 // senseless flags or arguments: nothing was tried
	exitNothing = 3 // what was asked for is not there, or was refused
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// A usageError is the caller's.
type usageError struct{ error }

func misuse(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errRefused ends a command some of whose work was refused, after it has said so.
var errRefused = errors.New("")

func run(ctx context.Context, args []string, in io.Reader, out, err io.Writer) int {
	a := &app{in: in, out: &output{w: out}, err: err, terminal: isTerminal(out)}
	root := a.root()
	root.SetArgs(args)
	cmd, failed := root.ExecuteContextC(ctx)
	if failed == nil {
		failed = a.out.err // what nobody looked at
	}
	if failed == nil {
		return exitOK
	}
	for line := range strings.SplitSeq(failed.Error(), "\n") {
		if line = strings.TrimPrefix(line, "deliver: "); line != "" {
			fmt.Fprintf(err, "retrip: %s\n", plain(redact(line)))
		}
	}
	var usage usageError
	var conflict *deliver.ConflictError
	switch {
	case errors.As(failed, &usage):
		fmt.Fprintf(err, "Try '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	case errors.Is(failed, errRefused), errors.Is(failed, deliver.ErrNotFound), errors.As(failed, &conflict):
		return exitNothing
	}
	return exitFailed
}

// What must not be printed even if it was given where it does not belong, and an error
// repeats it: secrets that sign, passwords, and of URLs all but the host.
var (
	secrets = regexp.MustCompile(`whsec_[A-Za-z0-9+/=_-]+|(?i:password) *= *('[^']*'?|\S+)`)
	urls    = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"]*`)
)

func redact(s string) string {
	return urls.ReplaceAllStringFunc(secrets.ReplaceAllString(s, "…"), func(u string) string {
		scheme, rest, _ := strings.Cut(u, "://")
		host, _, _ := strings.Cut(rest, "/")
		host, _, _ = strings.Cut(host, "?")
		if strings.Contains(rest, "@") { // userinfo, of which a slash may be a part
			host = "…"
		}
		return scheme + "://" + host
	})
}

// An app is what the commands share.
type app struct {
	in       io.Reader
	out      *output
	err      io.Writer
	terminal bool // a person looks at out

	db   string
	json bool
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "retrip",
		Short: "Look after webhooks that must not be lost",
		Long: `Retrip looks after webhooks that must not be lost.

The database is a SQLite file, or PostgreSQL if it begins with postgres://. It is named
by --db, or by the variable RETRIP_DB: a password in --db is in the list of processes.

Exit status: 0 done, 1 failed, 2 senseless flags or arguments, 3 not there or refused.`,
		Example: `  export RETRIP_DB=webhooks.db
  retrip migrate
  retrip dest put acme https://acme.example/hook --secret-file acme.secret
  retrip serve --listen 127.0.0.1:8080
  echo '{"n":1}' | retrip send --to acme
  retrip dlq ls --dest acme --since 24h`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetVersionTemplate("retrip {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&a.db, "db", os.Getenv("RETRIP_DB"), "SQLite file, or postgres://… (default $RETRIP_DB)")
	root.PersistentFlags().Lookup("db").DefValue = "" // it may hold a password
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON, one object a line")
	root.AddCommand(a.migrate(), a.serve(), a.send(), a.status(), a.dlq(), a.dest())
	root.SetHelpCommand(help(root))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion") // the name makes it be added
	if c, _, err := root.Find([]string{"completion"}); err == nil && c != root {
		c.Example = "  retrip completion bash >/etc/bash_completion.d/retrip"
		for _, shell := range c.Commands() {
			shell.Args = noArgs
			shell.Example = "  retrip completion " + shell.Name() + " >retrip." + shell.Name()
		}
	}
	groups(root)
	return root
}

// groups makes the commands that only hold others fail when they are called themselves.
func groups(cmd *cobra.Command) {
	if !cmd.HasSubCommands() {
		return
	}
	var names []string
	for _, sub := range cmd.Commands() {
		groups(sub)
		names = append(names, sub.Name())
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return misuse("%s needs a command, one of %s", cmd.CommandPath(), strings.Join(names, ", "))
		}
		if close := cmd.SuggestionsFor(args[0]); len(close) > 0 {
			return misuse("%s has no command %q; did you mean %s?", cmd.CommandPath(), args[0], strings.Join(close, " or "))
		}
		return misuse("%s has no command %q, only %s", cmd.CommandPath(), args[0], strings.Join(names, ", "))
	}
	cmd.SuggestionsMinimumDistance = 2
}

func help(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:               "help [COMMAND …]",
		Short:             "Show how a command is used",
		Example:           "  retrip help dlq replay",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 || slices.ContainsFunc(args, func(s string) bool { return strings.HasPrefix(s, "-") }) {
				return misuse("there is no command %q", strings.Join(args, " "))
			}
			cmd.InitDefaultHelpFlag()
			cmd.InitDefaultVersionFlag()
			return cmd.Help()
		},
	}
}

// version is what the build says of itself.
func version() string {
	v := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("%s (%s, %s/%s)", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func noArgs(_ *cobra.Command, args []string) error { return exactly(0)(nil, args) }

// exactly is for commands that take as many arguments.
func exactly(n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return misuse("%d arguments are needed, %d were given", n, len(args)) // not which: they may be misplaced secrets
	}
}

// untilSignal is for commands that have something to bring to an end when they are
// told to stop; the second signal ends them at once. All others just die, which harms
// nothing.
func untilSignal(ctx context.Context) (context.Context, func()) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
