package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/retrip-go/retrip/deliver"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

func TestDestinationsArePutListedPausedAndDisabled(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		secret, file := secretFile(t)
		_, second := secretFile(t)
		hint := "whsec_…" + strings.TrimRight(secret, "=")[len(strings.TrimRight(secret, "="))-4:]
		state := func() []string {
			t.Helper()
			all := lines(r.ok("dest", "ls"))
			require.Len(t, all, 1)
			return all[0]
		}
		require.Empty(t, r.ok("dest", "ls"))
		require.Empty(t, r.ok("dest", "put", "acme", "https://acme.example/hook?key=k", "--secret-file", file, "--schedule", "slow", "--timeout", "3s", "--at-once", "4"))
		require.Equal(t, []string{"acme", "https://acme.example", "slow", hint, "0", "open", "for", "deliveries"}, state())

		r.ok("dest", "put", "acme", "https://acme.example/other") // what is not named stays
		o := objects(t, r.ok("dest", "ls", "--json"))[0]
		require.Equal(t, "slow", o["schedule"])
		require.Equal(t, 3000.0, o["timeout_ms"])
		require.Equal(t, 4.0, o["at_once"])
		require.Equal(t, []any{hint}, o["secret_hints"])
		r.ok("dest", "put", "acme", "https://acme.example/other", "--secret-file", second, "--secret-file", file)
		require.Len(t, objects(t, r.ok("dest", "ls", "--json"))[0]["secret_hints"], 2)
		r.ok("dest", "put", "acme", "https://acme.example/other", "--unsigned", "--schedule", "")
		require.Equal(t, []string{"acme", "https://acme.example", "-", "-", "0", "open", "for", "deliveries"}, state())

		r.ok("dest", "pause", "acme", "--for", "2h")
		require.Equal(t, []string{"held", "until"}, state()[5:7])
		r.ok("dest", "resume", "acme")
		require.Equal(t, "open", state()[5])
		r.ok("dest", "disable", "acme")
		require.Equal(t, []string{"disabled:", "by", "its", "operator"}, state()[5:])
		r.ok("dest", "disable", "acme", "--why", "moved")
		require.Equal(t, []string{"disabled:", "moved"}, state()[5:])
		r.ok("dest", "enable", "acme")
		require.Equal(t, "open", state()[5])
		for _, args := range [][]string{{"pause", "nobody", "--for", "1h"}, {"resume", "nobody"}, {"disable", "nobody"}, {"enable", "nobody"}} {
			got := r.run("", append([]string{"dest"}, args...)...)
			require.Equal(t, result{exitNothing, "", "retrip: destination \"nobody\": not found\n"}, got)
		}
	})
}

// The application may allow more than what is the default of the command.
func TestADestinationIsChangedWhateverTimeItsApplicationGivesIt(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		application := openAs(t, r, deliver.WithTimeout(5*time.Minute), deliver.WithRescue(10*time.Minute))
		require.NoError(t, application.Destinations().Put(t.Context(), deliver.Destination{ID: "acme", URL: "https://acme.example/", Timeout: 2 * time.Minute}))
		r.ok("dest", "put", "acme", "https://other.example/")
		o := objects(t, r.ok("dest", "ls", "--json"))[0]
		require.Equal(t, "https://other.example", o["host"])
		require.Equal(t, 120_000.0, o["timeout_ms"])
	})
}

// openAs opens the database as an application does.
func openAs(t *testing.T, r tool, opts ...deliver.Option) store {
	t.Helper()
	a := &app{err: io.Discard, db: r.db}
	s, err := a.open(t.Context(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestASentEventIsWrittenDownOnceAndItsStatusIsShown(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		r.ok("dest", "put", "acme", "https://acme.example/hook")
		r.ok("dest", "put", "globex", "https://globex.example/hook", "--schedule", "slow")
		got := r.run("one", "send", "--to", "acme", "--to", "globex", "--id", "order-1", "--schedule", "slow=1h,2h")
		require.Equal(t, result{0, "order-1\n", ""}, got)
		got = r.run("one", "send", "--to", "acme", "--id", "order-1")
		require.Equal(t, result{0, "order-1\n", "acme has it already, as delivery 1\n"}, got)
		got = r.run("two", "send", "--to", "acme", "--id", "order-1")
		require.Equal(t, result{exitNothing, "", "retrip: event order-1 was sent to acme before with another payload\n"}, got)
		got = r.run("one", "send", "--to", "nobody")
		require.Equal(t, result{exitNothing, "", "retrip: destination \"nobody\": not found\n"}, got)

		file := filepath.Join(t.TempDir(), "payload")
		require.NoError(t, os.WriteFile(file, []byte{0, 1, 0xff}, 0o600))
		id := strings.TrimSpace(r.ok("send", "--to", "acme", "--file", file, "--content-type", "application/octet-stream"))
		require.Equal(t, 3.0, objects(t, r.ok("status", id, "--json"))[0]["payload_bytes"])

		all := lines(r.ok("status", "order-1"))
		require.Len(t, all, 2)
		require.Equal(t, []string{"1", "acme", "waiting", "0", "of", "12"}, all[0][:6])
		require.Equal(t, []string{"2", "globex", "waiting", "0", "of", "3"}, all[1][:6])
		require.Equal(t, result{exitNothing, "", "retrip: event \"none\": not found\n"}, r.run("", "status", "none"))
	})
}

func TestDeadLettersAreListedShownAndPurged(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		in := letters(t, 3, func(i int, l map[string]any) {
			if i == 2 {
				l["destination"], l["reason"], l["died"] = "globex", "permanent", time.Now().Add(-48*time.Hour)
			}
			if i == 3 {
				l["content_type"], l["payload"] = "text/plain", []byte("one\ntwo")
			}
		})
		require.Equal(t, result{0, "", "3 imported\n"}, r.run(in, "dlq", "import"))
		require.Equal(t, result{0, "", "0 imported\n"}, r.run(in, "dlq", "import"))

		events := func(args ...string) []string {
			t.Helper()
			var all []string
			for _, l := range lines(r.ok(append([]string{"dlq", "ls"}, args...)...)) {
				all = append(all, l[1])
			}
			return all
		}
		require.Equal(t, []string{"e3", "e2", "e1"}, events())
		require.Equal(t, []string{"e3", "e1"}, events("--dest", "acme"))
		require.Equal(t, []string{"e2"}, events("--reason", "permanent"))
		require.Equal(t, []string{"e3", "e1"}, events("--since", "24h"))
		require.Equal(t, []string{"e1"}, events("--event", "e1"))
		require.Empty(t, events("--dest", "nobody"))
		require.Equal(t, []string{"e3", "e2", "e1"}, events("--limit", "0"))
		require.Equal(t, []string{"e3", "e2", "e1"}, events("--limit", "3"))
		got := r.run("", "dlq", "ls", "--limit", "2")
		require.Equal(t, "there are more: --limit is 2\n", got.err)
		require.Len(t, lines(got.out), 2)
		require.Empty(t, r.run("", "dlq", "ls", "--limit", "3").err)

		died, _ := objects(t, r.ok("dlq", "ls", "--event", "e1", "--json"))[0]["ended"].(string)
		at, err := time.Parse(time.RFC3339, died)
		require.NoError(t, err)
		clock := func(d time.Duration) string { return at.Add(d).Local().Format(time.DateTime) }
		number := r.number("e3")
		require.Equal(t, strings.Join([]string{
			"event        e3",
			"destination  acme",
			"state        dead, exhausted",
			"created      " + clock(-time.Minute),
			"died         " + clock(0),
			"",
			"ATTEMPT  AT                   TOOK  OUTCOME                  ANSWER",
			"1        " + clock(-time.Minute) + "  12ms  503 Service Unavailable  \"not now\"",
			"2        " + clock(0) + "  30s   timed out                \"\"",
			"",
			"payload      7 bytes, text/plain",
			"one\ntwo",
			"",
		}, "\n"), r.ok("dlq", "show", number))
		require.Equal(t, "one\ntwo", r.ok("dlq", "show", number, "--payload"))
		require.Equal(t, result{exitNothing, "", "retrip: delivery 999: not found\n"}, r.run("", "dlq", "show", "999"))

		require.Equal(t, result{0, "", "1 would be purged\n"}, r.run("", "dlq", "purge", "--older-than", "24h", "--dry-run"))
		require.Equal(t, result{0, "", "0 purged\n"}, r.run("", "dlq", "purge", "--older-than", "1s", "--dest", "nobody"))
		require.Equal(t, result{0, "", "1 purged\n"}, r.run("", "dlq", "purge", "--older-than", "24h"))
		require.Equal(t, []string{"e3", "e1"}, events())
		require.Equal(t, result{0, "{\"would_purge\":2}\n", ""}, r.run("", "dlq", "purge", "--older-than", "1s", "--dry-run", "--json"))
		require.Equal(t, result{0, "{\"purged\":2}\n", ""}, r.run("", "dlq", "purge", "--older-than", "1s", "--reason", "exhausted", "--json"))
		require.Empty(t, events())
	})
}

func TestDeadLettersAreReplayedByNumberByFilterAndOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		r.ok("dest", "put", "acme", "https://acme.example/hook")
		r.run(letters(t, 6, func(i int, l map[string]any) {
			if i == 6 {
				l["parked"] = map[string]any{"method": "POST", "url": "https://parked.example/secret", "lost": "its body was not kept"}
			}
		}), "dlq", "import")
		n := r.number
		got := r.run("", "dlq", "replay", n("e1"), "--dry-run")
		require.Equal(t, []string{n("e1"), "e1", "acme", "-"}, lines(got.out)[0])
		require.Equal(t, "1 would be replayed, 0 refused\n", got.err)
		require.Len(t, lines(r.ok("dlq", "ls")), 6, "a dry run changes nothing")

		got = r.run("", "dlq", "replay", n("e1"), n("e2"), n("e1"))
		require.Zero(t, got.code)
		require.Equal(t, "2 replayed, 0 refused\n", got.err)
		all := lines(got.out)
		require.Equal(t, []string{n("e1"), "e1", "acme"}, all[0][:3])
		require.Len(t, lines(r.ok("dlq", "ls")), 4)

		got = r.run("", "dlq", "replay", n("e1"))
		require.Equal(t, result{exitNothing, "", "dead letter " + n("e1") + " was replayed before, as delivery " + all[0][3] + "\n0 replayed, 1 refused\n"}, got)
		require.Zero(t, r.run("", "dlq", "replay", n("e1"), "--force").code)
		require.Len(t, lines(r.ok("status", "e1"))[:3], 3, "it, its replay, and the forced one")

		got = r.run("", "dlq", "replay", n("e3"), "999")
		require.Equal(t, result{exitNothing, "", "retrip: delivery 999: not found\n"}, got, "all or nothing")
		require.Len(t, lines(r.ok("dlq", "ls")), 4)

		got = r.run("", "dlq", "replay", "--dest", "acme", "--rate", "0.001", "--limit", "2", "--json")
		require.Equal(t, exitNothing, got.code, "what is lost is refused, and does not keep the rest back")
		o := objects(t, got.out)
		require.Len(t, o, 2)
		require.Equal(t, "e5", o[0]["event"])
		require.Contains(t, o[1]["refused"], "cannot be replayed: its body was not kept")

		got = r.run("", "dlq", "replay", "--all", "--rate", "0.001", "--schedule", "1h,1h,1h", "--limit", "3")
		require.Equal(t, exitNothing, got.code)
		require.Contains(t, got.err, "2 replayed, 1 refused\n")
		var next []time.Time
		for _, e := range []string{"e3", "e4"} {
			for _, o := range objects(t, r.ok("status", e, "--json")) {
				if o["replay_of"] != nil {
					at, err := time.Parse(time.RFC3339, fmt.Sprint(o["next"]))
					require.NoError(t, err)
					require.Equal(t, 4.0, o["max_attempts"], "by the schedule that was given")
					next = append(next, at)
				}
			}
		}
		require.Len(t, next, 2)
		require.InDelta(t, 1000, next[1].Sub(next[0]).Seconds(), 1)
		require.Empty(t, r.run("", "dlq", "replay", "--dest", "nobody").out)

		// All but the lost one were replayed by now: only who insists gets at them, and a
		// purge.
		require.Contains(t, r.run("", "dlq", "replay", "--all").err, "0 replayed, 1 refused\n")
		require.Len(t, objects(t, r.run("", "dlq", "replay", "--event", "e2", "--force", "--json").out), 1)
		require.Equal(t, "6 purged\n", r.run("", "dlq", "purge", "--older-than", "1s").err)
	})
}

func TestWhatIsExportedCanBeImportedElsewhere(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		payload := []byte("\x00\x1b[31m\xff{\"a\": 1.0 }")
		in := letters(t, 5, func(i int, l map[string]any) { l["payload"] = payload })
		r.run(in, "dlq", "import")
		got := r.run("", "dlq", "export")
		require.Equal(t, "5 exported\n", got.err)
		other := tool{t, filepath.Join(t.TempDir(), "other.db")}.migrated()
		require.Equal(t, result{0, "{\"imported\":5}\n", ""}, other.run(got.out, "dlq", "import", "--json"))
		again := other.run("", "dlq", "export")
		require.ElementsMatch(t, objects(t, got.out), objects(t, again.out))
		number := other.number("e3")
		require.Equal(t, string(payload), other.ok("dlq", "show", number, "--payload"))
		require.Contains(t, other.ok("dlq", "show", number), `"\x00\x1b[31m\xff{\"a\": 1.0 }"`)

		got = r.run("", "dlq", "export", "--event", "e3")
		require.Len(t, objects(t, got.out), 1)
		got = other.run(got.out+"not JSON\n", "dlq", "import")
		require.Equal(t, result{exitFailed, "", "0 imported\nretrip: line 2 is not a dead letter\n"}, got)
	})
}

func TestAPayloadOfAnySizeComesBack(t *testing.T) {
	r := onSQLite(t)
	payload := bytes.Repeat([]byte("x"), 8<<20)
	in := letters(t, 1, func(_ int, l map[string]any) { l["payload"] = payload })
	require.Equal(t, result{0, "", "1 imported\n"}, r.run(in, "dlq", "import"))
	require.True(t, r.ok("dlq", "show", r.number("e1"), "--payload") == string(payload))
}

func TestTheNamesInJSONAreStable(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		keys := func(got result) string {
			t.Helper()
			require.NotEmpty(t, got.out, got.err)
			return strings.Join(slices.Sorted(maps.Keys(objects(t, got.out)[0])), " ")
		}
		_, file := secretFile(t)
		require.Equal(t, "up_to_date", keys(r.run("", "--json", "migrate")))
		r.ok("dest", "put", "acme", "https://acme.example/", "--secret-file", file, "--schedule", "slow", "--timeout", "1s", "--at-once", "1")
		r.ok("dest", "pause", "acme", "--for", "1h")
		r.ok("dest", "disable", "acme")
		require.Equal(t, "at_once disabled failures_in_a_row held_until host id schedule secret_hints state timeout_ms trips", keys(r.run("", "--json", "dest", "ls")))
		require.Equal(t, "delivery destination duplicate event", keys(r.run("x", "--json", "send", "--to", "acme", "--id", "one")))
		require.Equal(t, "attempt attempts created delivery destination event max_attempts next payload_bytes state", keys(r.run("", "--json", "status", "one")))
		r.run(letters(t, 1, func(_ int, l map[string]any) { l["content_type"] = "text/plain" }), "dlq", "import")
		dead := "attempt attempts content_type created delivery destination ended event max_attempts payload_bytes reason state"
		require.Equal(t, dead, keys(r.run("", "--json", "dlq", "ls")))
		o := objects(t, r.ok("--json", "dlq", "ls"))[0]
		attempts, _ := o["attempts"].([]any)
		require.Len(t, attempts, 2)
		first, _ := attempts[0].(map[string]any)
		require.Equal(t, "answer at ms number status", strings.Join(slices.Sorted(maps.Keys(first)), " "))
		number := fmt.Sprint(o["delivery"])
		require.Equal(t, strings.Replace(dead, " payload_bytes", " payload payload_bytes", 1), keys(r.run("", "--json", "dlq", "show", number)))
		require.Equal(t, "dead_letter destination dry_run event", keys(r.run("", "--json", "dlq", "replay", number, "--dry-run")))
		require.Equal(t, "dead_letter delivery destination dry_run event", keys(r.run("", "--json", "dlq", "replay", number)))
		require.Equal(t, "dead_letter destination dry_run event refused", keys(r.run("", "--json", "dlq", "replay", number)))
		require.Equal(t, "attempts content_type created destination died event max_attempts payload reason", keys(r.run(letters(t, 1, func(_ int, l map[string]any) {
			l["event"], l["content_type"] = "other", "text/plain"
		}), "dlq", "import").then(r, "dlq", "export")))
	})
}

// then runs another command after one.
func (result) then(r tool, args ...string) result { return r.run("", args...) }

func TestMisuseIsToldFromFailure(t *testing.T) {
	r := onSQLite(t)
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, bytes.Repeat([]byte("not a database\n"), 100), 0o600))
	alien := filepath.Join(t.TempDir(), "alien.db")
	require.NoError(t, os.WriteFile(alien, nil, 0o600))
	r.ok("dest", "put", "acme", "https://acme.example/")
	for _, c := range []struct {
		args string
		code int
		err  string // in it
	}{
		{"", exitUsage, "retrip needs a command, one of "},
		{"dlq", exitUsage, "retrip dlq needs a command, one of export, import, ls, purge, replay, show"},
		{"dest", exitUsage, "retrip dest needs a command"},
		{"completion", exitUsage, "retrip completion needs a command"},
		{"completion tcsh", exitUsage, `no command "tcsh"`},
		{"stauts", exitUsage, "did you mean status?"},
		{"dlq nothing", exitUsage, `retrip dlq has no command "nothing", only export,`},
		{"help nothing", exitUsage, `there is no command "nothing"`},
		{"help dlq nothing", exitUsage, "there is no command"},
		{"--no-such-flag", exitUsage, "unknown flag: --no-such-flag"},
		{"dlq ls --no-such-flag", exitUsage, "unknown flag: --no-such-flag\nTry 'retrip dlq ls --help'.\n"},
		{"dlq ls 1", exitUsage, "0 arguments are needed, 1 were given"},
		{"dlq show", exitUsage, "1 arguments are needed, 0 were given"},
		{"dlq show x", exitUsage, `"x" is not the number of a dead letter`},
		{"dlq show 0", exitUsage, "not the number"},
		{"dlq show 9223372036854775808", exitUsage, "not the number"},
		{"dlq ls --limit x", exitUsage, "invalid argument"},
		{"dlq ls --limit -1", exitUsage, "--limit is negative"},
		{"dlq ls --since -1h", exitUsage, "--since is negative"},
		{"dlq ls --since tomorrow", exitUsage, "invalid argument"},
		{"dlq ls --reason unlucky", exitUsage, "--reason unlucky is not one of [exhausted expired permanent gone disabled worker_lost parked]"},
		{"dlq replay", exitUsage, "give numbers, filters or --all"},
		{"dlq replay 1 x", exitUsage, `"x" is not the number`},
		{"dlq replay 1 --dest acme", exitUsage, "not both"},
		{"dlq replay 1 --all", exitUsage, "not both"},
		{"dlq replay --all --rate -1", exitUsage, "--rate"},
		{"dlq replay --all --rate NaN", exitUsage, "--rate"},
		{"dlq replay --all --rate Inf", exitUsage, "--rate"},
		{"dlq replay --all --schedule 5", exitUsage, `--schedule 5: "5" is not a pause such as 30s`},
		{"dlq purge", exitUsage, "purge needs --older-than"},
		{"dlq purge --older-than -1h", exitUsage, "purge needs --older-than"},
		{"dest put acme", exitUsage, "2 arguments are needed, 1 were given"},
		{"dest put acme https://a.example --unsigned --secret-file x", exitUsage, "not both"},
		{"dest pause acme", exitUsage, "pause needs --for"},
		{"dest put acme ftp://a.example", exitFailed, "the URL must be http or https"},
		{"dest put acme https://a.example --timeout 25h", exitFailed, "Timeout 25h0m0s is not between"},
		{"dest put acme https://a.example --secret-file /no/such/file", exitFailed, "secret 1: the file cannot be read: no such file or directory"},
		{"send", exitUsage, "send needs --to"},
		{"send --to acme --file /no/such/file", exitFailed, "the file cannot be read"},
		{"send --to acme --id a.b", exitFailed, "the event's id has byte 0x2e"},
		{"serve --workers 0", exitUsage, "--workers is not between"},
		{"serve --allow-network everywhere", exitUsage, "is not a network"},
		{"serve --schedule 1s,,2s", exitUsage, "is not a pause"},
		{"serve --grace -1s", exitUsage, "--grace is negative"},
		{"serve --timeout 0s", exitUsage, "--timeout is not between"},
		{"serve --keep -1s", exitUsage, "--keep or --keep-dead is negative"},
		{"serve --keep-dead -1s", exitUsage, "--keep or --keep-dead is negative"},
		{"serve --listen 127.0.0.1:99999", exitFailed, "the panel: "},
		{"--db /no/such/dir/x.db migrate", exitFailed, "unable to open database file"},
		{"--db /no/such/file dlq ls", exitFailed, "the database file is not there: retrip migrate makes one"},
		{"--db " + text + " dlq ls", exitFailed, "not a database"},
		{"--db " + alien + " dlq ls", exitFailed, "the database is not up to date, or not one of retrip's"},
		{"--db mysql://x dlq ls", exitUsage, "--db is neither a file nor postgres://"},
		{"--db file:x.db migrate", exitUsage, "--db is neither a file nor postgres://"},
		{"--db= dlq ls", exitUsage, "no database: set --db or RETRIP_DB"},
		{"--db postgres://127.0.0.1:1/x dlq ls", exitFailed, "connect"},
		{"--db postgres://127.0.0.1:x/x dlq ls", exitFailed, "the connection string cannot be read"},
		{"--db host=127.0.0.1~port=1 dlq ls", exitFailed, "connect"}, // ~ is a space
	} {
		args := strings.Fields(c.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "~", " ")
		}
		got := r.run("", args...)
		require.Equal(t, c.code, got.code, "%s: %s", c.args, got.err)
		require.Contains(t, got.err, c.err, c.args)
		require.Empty(t, got.out, c.args)
		require.True(t, strings.HasPrefix(got.err, "retrip: "), "%s: %s", c.args, got.err)
		require.Equal(t, c.code == exitUsage, strings.Contains(got.err, "Try 'retrip"), c.args)
	}
}

func TestLookingAtADatabaseDoesNotChangeIt(t *testing.T) {
	t.Parallel()
	alien := tool{t, filepath.Join(t.TempDir(), "alien.db")}
	require.NoError(t, os.WriteFile(alien.db, nil, 0o600))
	require.Equal(t, exitFailed, alien.run("x", "send", "--to", "acme").code)
	require.Equal(t, exitFailed, alien.run("", "dlq", "purge", "--older-than", "1h").code)
	info, err := os.Stat(alien.db)
	require.NoError(t, err)
	require.Zero(t, info.Size())

	t.Run("engine=postgres", func(t *testing.T) {
		alien := tool{t, database(t)}
		require.Equal(t, exitFailed, alien.run("", "dlq", "ls").code)
		got := alien.run("", "dest", "ls")
		require.Equal(t, result{exitFailed, "", "retrip: the database is not up to date, or not one of retrip's: if it is to be, run retrip migrate\n"}, got)
		require.Zero(t, alien.migrated().run("", "dest", "ls").code)
	})
}

// commands are all there are, with what their path is.
func commands() map[string]*cobra.Command {
	all := make(map[string]*cobra.Command)
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		all[c.CommandPath()] = c
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk((&app{out: &output{w: io.Discard}, err: io.Discard}).root())
	return all
}

func TestEveryCommandHasAHelpWithAnExample(t *testing.T) {
	t.Parallel()
	all := commands()
	require.Greater(t, len(all), 20)
	for path := range all {
		args := strings.Fields(path)[1:]
		for _, way := range [][]string{append(slices.Clone(args), "--help"), append(slices.Clone(args), "-h"), append([]string{"help"}, args...)} {
			var out, err bytes.Buffer
			require.Zero(t, run(t.Context(), way, nil, &out, &err), "%v: %s", way, &err)
			require.Empty(t, err.String())
			require.Contains(t, out.String(), "\nExamples:\n  ", "%v", way)
			require.Contains(t, out.String(), "Usage:\n  retrip", "%v", way)
			require.Contains(t, out.String(), "--db string", "%v", way)
		}
	}
	for path, c := range all {
		for line := range strings.Lines(c.Example) {
			require.Contains(t, strings.ToLower(line), "retrip", "%s has an example without the command", path)
		}
	}
}

func TestTheVersionComesFromTheBuild(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--version", "-v"} {
		var out, err bytes.Buffer
		require.Zero(t, run(t.Context(), []string{flag}, nil, &out, &err))
		require.Regexp(t, `^retrip \S+ \(go1\.\S+, \w+/\w+\)\n$`, out.String())
		require.Empty(t, err.String())
	}
}

func TestShellsCompleteCommandsFlagsAndReasons(t *testing.T) {
	t.Parallel()
	for shell, sign := range map[string]string{"bash": "__start_retrip", "zsh": "#compdef retrip", "fish": "complete -c retrip", "powershell": "Register-ArgumentCompleter"} {
		var out, err bytes.Buffer
		require.Zero(t, run(t.Context(), []string{"completion", shell}, nil, &out, &err))
		require.Contains(t, out.String(), sign)
		require.Empty(t, err.String())
		if path, lookErr := exec.LookPath(shell); lookErr == nil && shell != "powershell" {
			check := exec.CommandContext(t.Context(), path, "-n")
			check.Stdin = &out
			said, checkErr := check.CombinedOutput()
			require.NoError(t, checkErr, "%s", said)
		}
	}
	for typed, offered := range map[string][]string{
		"dlq ":                         {"export", "import", "ls", "purge", "replay", "show"},
		"dlq replay --":                {"--dest", "--reason", "--since", "--limit", "--rate", "--dry-run", "--all", "--force", "--db", "--json"},
		"dlq ls --reason ":             {"exhausted", "expired", "permanent", "gone", "disabled", "worker_lost", "parked"},
		"dlq ls --dest acme --reason ": {"exhausted"},
		"dest ":                        {"ls", "put", "pause", "resume", "disable", "enable"},
		"serve --":                     {"--listen", "--workers", "--allow-network", "--schedule", "--allow-replay", "--grace"},
	} {
		words := strings.Split(typed, " ")
		var out, err bytes.Buffer
		require.Zero(t, run(t.Context(), append([]string{"__complete"}, words...), nil, &out, &err))
		var got []string
		for line := range strings.Lines(out.String()) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			got = append(got, strings.TrimSuffix(word, "="))
		}
		require.Subset(t, got, offered, typed)
	}
}

func TestSchedulesAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		name     string
		attempts int
		first    time.Duration
		last     time.Duration // before the last attempt
	}{
		"1s,5s":                  {"", 3, time.Second, 5 * time.Second},
		"slow=5m,30m,3h,18h,24h": {"slow", 6, 5 * time.Minute, 24 * time.Hour},
		"slow=5m, 30m*10":        {"slow", 10, 5 * time.Minute, 30 * time.Minute},
		"1m*1":                   {"", 1, time.Minute, time.Minute},
		"10s..30m*12":            {"", 12, 10 * time.Second, 30 * time.Minute},
		"quick=1s..1s*2":         {"quick", 2, time.Second, time.Second},
	} {
		name, s, err := parseSchedule(text)
		require.NoError(t, err, text)
		require.Equal(t, want.name, name, text)
		require.Equal(t, want.attempts, s.Attempts, text)
		require.InEpsilon(t, want.first.Seconds(), s.Pause(1).Seconds(), 0.21, text)
		require.InEpsilon(t, want.last.Seconds(), s.Pause(max(s.Attempts-1, 1)).Seconds(), 0.21, text)
	}
	for _, text := range []string{"", "=", "a=", "1", "-1s", "0s", "1s,", "1s*", "1s*0", "1s*1001", "1s*x", "1s..", "..1s*2", "1s..2s", "2s..1s*3", "1s..2s..3s*4", "1s*2*3"} {
		_, _, err := parseSchedule(text)
		require.Error(t, err, text)
	}
}

func TestNothingThatATerminalObeysIsPrinted(t *testing.T) {
	onEngines(t, func(t *testing.T, r tool) {
		bad := "a\x1b[2Jb\u009b31m\u202eč\x07\tx\r\n\x7f"
		r.ok("dest", "put", "acme\u009b", "https://acme.example/")
		r.ok("dest", "disable", "acme\u009b", "--why", bad)
		r.run(letters(t, 1, func(_ int, l map[string]any) {
			l["destination"], l["payload"] = "acme\u009b", []byte(bad)
			l["attempts"] = []map[string]any{{"number": 1, "at": time.Now(), "error": bad}, {"number": 2, "at": time.Now(), "status": 500, "answer": bad}, {"number": 3, "at": time.Now(), "error": bad}}
		}), "dlq", "import")
		number := r.number("e1")
		for _, args := range [][]string{
			{"dlq", "ls"}, {"dlq", "show", number}, {"status", "e1"}, {"status", bad}, {"dest", "ls"}, {"dlq", "export"}, {"send", "--to", bad}, {"send", "--to", "acme\u009b", "--id", bad},
			{"status", bad + bad}, {"dlq", "show", bad}, {bad}, {"dlq", bad}, {"--" + bad}, {"dlq", "ls", "--reason", bad}, {"serve", "--schedule", bad}, {"serve", "--allow-network", bad},
			{"help", bad}, {"dest", "put", bad, bad}, {"--db", bad, "dlq", "ls"}, {"dlq", "replay", number, "--dry-run"}, {"dlq", "replay", number}, {"dlq", "replay", number},
		} {
			for _, args := range [][]string{args, append([]string{"--json"}, args...)} {
				got := r.run("", args...)
				for _, text := range []string{got.out, got.err} {
					rest := strings.ReplaceAll(text, "\n", "")
					require.Equal(t, strings.Trim(plain(rest), `"`), strings.Trim(rest, `"`), "%q", args)
				}
			}
		}
		require.Equal(t, "acme\u009b", objects(t, r.ok("dest", "ls", "--json"))[0]["id"], "escaped, not changed")
	})
}

func TestTheProgressBarIsForPeople(t *testing.T) {
	r := onSQLite(t)
	r.ok("dest", "put", "acme", "https://acme.example/")
	r.run(letters(t, 40, nil), "dlq", "import")
	piped := r.child("dlq", "replay", "--all", "--limit", "20")
	var out, err bytes.Buffer
	piped.Stdout, piped.Stderr = &out, &err
	require.NoError(t, piped.Run())
	require.Equal(t, "20 replayed, 0 refused\n", err.String())
	require.Len(t, lines(out.String()), 20)

	seen := r.child("dlq", "replay", "--all")
	out.Reset()
	seen.Stdout = &out
	person, terminal, openErr := pty.Open()
	require.NoError(t, openErr)
	seen.Stderr = terminal
	require.NoError(t, seen.Start())
	require.NoError(t, terminal.Close())
	said, _ := io.ReadAll(person) // ends with an error when nobody has the terminal any more
	require.NoError(t, seen.Wait())
	require.NoError(t, person.Close())
	require.Contains(t, string(said), "replaying")
	require.Contains(t, string(said), "20 replayed, 0 refused\r\n")
	require.NotContains(t, out.String(), "replaying")
	require.Len(t, lines(out.String()), 20)
}

func TestAPayloadOnATerminalIsQuoted(t *testing.T) {
	r := onSQLite(t)
	r.run(letters(t, 1, func(_ int, l map[string]any) { l["payload"] = []byte("\x1b[2J") }), "dlq", "import")
	person, terminal, err := pty.Open()
	require.NoError(t, err)
	cmd := r.child("dlq", "show", r.number("e1"), "--payload")
	cmd.Stdout = terminal
	require.NoError(t, cmd.Run())
	require.NoError(t, terminal.Close())
	said, _ := io.ReadAll(person)
	require.NoError(t, person.Close())
	require.Equal(t, "\"\\x1b[2J\"\r\n", string(said))
}

func TestAnOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	r := onSQLite(t)
	r.ok("dest", "put", "acme", "https://acme.example/")
	r.run(letters(t, 3, nil), "dlq", "import")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, full.Close()) }()
	n := r.number("e1")
	for _, args := range []string{"dlq ls", "dlq ls --json", "dlq show " + n, "dlq show " + n + " --payload", "dlq export", "dest ls", "status e1", "--help", "completion bash"} {
		var said bytes.Buffer
		require.Equal(t, exitFailed, run(t.Context(), append([]string{"--db", r.db}, strings.Fields(args)...), nil, full, &said), args)
		require.Contains(t, said.String(), "no space left on device", args)
	}
}

func TestABrokenPipeEndsItQuietly(t *testing.T) {
	r := onSQLite(t)
	r.run(letters(t, 5, func(_ int, l map[string]any) { l["payload"] = make([]byte, 100<<10) }), "dlq", "import")
	cmd := r.child("dlq", "export")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = io.ReadFull(out, make([]byte, 100))
	require.NoError(t, err)
	require.NoError(t, out.Close())
	require.ErrorContains(t, cmd.Wait(), "broken pipe")
	require.Empty(t, said.String())
}
