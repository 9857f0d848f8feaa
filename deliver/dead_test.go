package deliver_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

// list returns the ids of the events of the dead letters that a filter chooses.
func list(t testing.TB, c client, f deliver.Filter) (events []string) {
	t.Helper()
	all, err := c.Dead().List(t.Context(), f)
	require.NoError(t, err)
	for _, d := range all {
		events = append(events, d.EventID)
	}
	n, err := c.Dead().Count(t.Context(), f)
	require.NoError(t, err)
	require.Equal(t, len(all), n)
	return events
}

// replay replays one dead letter.
func replay(t testing.TB, c client, id int64, how deliver.Replaying) deliver.Replay {
	t.Helper()
	all, err := c.Dead().Replay(t.Context(), []int64{id}, how)
	require.NoError(t, err)
	require.Len(t, all, 1)
	return all[0]
}

func TestAReplayIsANewDeliveryOfTheSameEvent(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		well := 3
		r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n < well {
				w.WriteHeader(http.StatusNotFound)
			}
		})
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Start(t.Context()))
		send(t, c, "one", "acme")
		first := letter(t, c, "one")
		require.Equal(t, []byte("one"), first.Payload)
		require.Equal(t, "404 Not Found", first.LastError())
		require.WithinDuration(t, time.Now(), first.Ended, time.Minute)

		r0 := replay(t, c, first.ID, deliver.Replaying{DryRun: true})
		require.NoError(t, r0.Refused)
		require.Zero(t, r0.Delivery)
		require.Equal(t, []string{"one"}, list(t, c, deliver.Filter{}))
		require.Len(t, mustStatus(t, c, "one"), 1, "a dry run changes nothing")

		r1 := replay(t, c, first.ID, deliver.Replaying{})
		require.NoError(t, r1.Refused)
		until(t, "the replay's death", func() bool {
			d, err := c.Dead().Get(t.Context(), r1.Delivery)
			return err == nil && d.ReplayOf == first.ID
		})
		all := mustStatus(t, c, "one")
		require.Len(t, all, 2)
		require.Equal(t, deliver.StateReplayed, all[0].State)
		require.Equal(t, deliver.StateDead, all[1].State)
		require.Equal(t, 1, all[1].Attempt, "its schedule is anew")
		second := letterByID(t, c, r1.Delivery)
		left, err := c.Dead().List(t.Context(), deliver.Filter{})
		require.NoError(t, err)
		require.Len(t, left, 1, "what was replayed has left the list")
		require.Equal(t, second.ID, left[0].ID)
		require.Equal(t, []string{"one", "one"}, list(t, c, deliver.Filter{Replayed: true}))

		again := replay(t, c, first.ID, deliver.Replaying{})
		var replayed *deliver.ReplayedError
		require.ErrorAs(t, again.Refused, &replayed)
		require.Equal(t, deliver.ReplayedError{ID: first.ID, Replay: r1.Delivery}, *replayed)
		require.Zero(t, again.Delivery)
		forced := replay(t, c, first.ID, deliver.Replaying{Force: true})
		require.NoError(t, forced.Refused)
		until(t, "delivery", func() bool { return mustStatus(t, c, "one")[2].State == deliver.StateDelivered })

		// Now the event is where it was to go.
		var was *deliver.DeliveredError
		require.ErrorAs(t, replay(t, c, second.ID, deliver.Replaying{}).Refused, &was)
		require.Equal(t, deliver.DeliveredError{EventID: "one", Destination: "acme", By: forced.Delivery}, *was)
		require.ErrorAs(t, replay(t, c, second.ID, deliver.Replaying{DryRun: true}).Refused, &was, "a dry run says so too")
		require.NoError(t, replay(t, c, second.ID, deliver.Replaying{Force: true}).Refused)
		until(t, "the forced", func() bool { return r.count("one") == 4 })
		for _, got := range r.all() {
			require.Equal(t, "one", got.id)
			require.Equal(t, "one", got.header.Get("Idempotency-Key"))
			require.Equal(t, "one", string(got.body))
		}
	})
}

func mustStatus(t testing.TB, c client, event string) []deliver.Status {
	t.Helper()
	all, err := c.Status(t.Context(), event)
	require.NoError(t, err)
	return all
}

func letterByID(t testing.TB, c client, id int64) deliver.DeadLetter {
	t.Helper()
	d, err := c.Dead().Get(t.Context(), id)
	require.NoError(t, err)
	return d
}

func TestTwentyReplaysAtOnceAreOne(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c, other := p.open(t), p.open(t)
		r := receive(t, nil)
		put(t, c, "acme", r.URL)
		buried(t, c, "acme", 0, 1, deliver.ReasonExhausted, time.Now())
		d := letter(t, c, "acme-0")
		replays := make([]deliver.Replay, 20)
		errs := make([]error, 20)
		var g sync.WaitGroup
		for i := range replays {
			g.Go(func() {
				from := c
				if i%2 == 1 {
					from = other
				}
				all, err := from.Dead().Replay(t.Context(), []int64{d.ID}, deliver.Replaying{})
				if errs[i] = err; err == nil {
					replays[i] = all[0]
				}
			})
		}
		g.Wait()
		require.NoError(t, errors.Join(errs...))
		made, by := 0, int64(0)
		for _, r := range replays {
			if r.Delivery != 0 {
				made, by = made+1, r.Delivery
				require.NoError(t, r.Refused)
			}
		}
		require.Equal(t, 1, made)
		for _, r := range replays {
			if r.Delivery == 0 {
				require.Equal(t, &deliver.ReplayedError{ID: d.ID, Replay: by}, r.Refused)
			}
		}
		require.NoError(t, c.Start(t.Context()))
		until(t, "delivery", func() bool { return p.count(t, delivered) == 1 })
		require.Equal(t, 1, r.count("acme-0"))
	})
}

func TestAReplayWaitsForAnOpenBreaker(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		r := receive(t, nil)
		put(t, c, "acme", r.URL)
		buried(t, c, "acme", 0, 2, deliver.ReasonExhausted, time.Now())
		p.exec(t, fmt.Sprintf(`UPDATE retrip_destination SET trips = 2, failures = 21, paused_why = 'trouble', paused_until = %d`, time.Now().Add(time.Hour).UnixMilli()))
		before := get(t, c, "acme")
		require.NoError(t, c.Start(t.Context()))
		replays, err := c.Dead().ReplayAll(t.Context(), deliver.Filter{}, deliver.Replaying{})
		require.NoError(t, err)
		until(t, "snoozes", func() bool { return p.count(t, snoozed) == 2 })
		require.Equal(t, before, get(t, c, "acme"), "it is not broken")
		require.Empty(t, r.all())
		for _, replay := range replays {
			s := mustStatus(t, c, replay.Dead.EventID)[1]
			require.Equal(t, deliver.StateWaiting, s.State)
			require.Zero(t, s.Attempt)
			require.Greater(t, time.Until(s.Next), 50*time.Minute)
		}
		p.exec(t, pauseOver)
		p.wake(t)
		until(t, "deliveries", func() bool { return p.count(t, delivered) == 2 })
		require.Len(t, r.all(), 2)
	})
}

func TestAFilterChoosesDeadLetters(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		put(t, c, "a", "https://a.example")
		put(t, c, "b", "https://b.example")
		now := time.Now()
		buried(t, c, "a", 0, 2, deliver.ReasonPermanent, now.Add(-2*time.Hour))
		buried(t, c, "a", 2, 4, deliver.ReasonExhausted, now)
		buried(t, c, "b", 0, 2, deliver.ReasonPermanent, now)
		all, err := c.Dead().List(t.Context(), deliver.Filter{})
		require.NoError(t, err)
		require.Len(t, all, 6)
		for name, f := range map[string]struct {
			deliver.Filter
			want string
		}{
			"all":             {deliver.Filter{}, "b-1 b-0 a-3 a-2 a-1 a-0"},
			"a destination":   {deliver.Filter{Destination: "b"}, "b-1 b-0"},
			"an event":        {deliver.Filter{EventID: "a-2"}, "a-2"},
			"both":            {deliver.Filter{EventID: "a-2", Destination: "b"}, ""},
			"since":           {deliver.Filter{Since: now.Add(-time.Hour)}, "b-1 b-0 a-3 a-2"},
			"until":           {deliver.Filter{Until: now.Add(-time.Hour)}, "a-1 a-0"},
			"in between":      {deliver.Filter{Since: now.Add(-3 * time.Hour), Until: now.Add(-time.Hour), Destination: "a"}, "a-1 a-0"},
			"a reason":        {deliver.Filter{Reason: deliver.ReasonPermanent}, "b-1 b-0 a-1 a-0"},
			"and a limit":     {deliver.Filter{Reason: deliver.ReasonPermanent, Limit: 3}, "b-1 b-0 a-1"},
			"a limit":         {deliver.Filter{Limit: 1}, "b-1"},
			"the next page":   {deliver.Filter{Before: all[1].ID, Limit: 2}, "a-3 a-2"},
			"an odd reason":   {deliver.Filter{Reason: "bad luck"}, ""},
			"no such":         {deliver.Filter{Destination: "c"}, ""},
			"nothing younger": {deliver.Filter{Since: now.Add(time.Hour)}, ""},
		} {
			require.Equal(t, f.want, strings.Join(list(t, c, f.Filter), " "), name)
		}

		// All that works on many takes the same, the first sent first.
		done := 0
		replays, err := c.Dead().ReplayAll(t.Context(), deliver.Filter{Destination: "a", Reason: deliver.ReasonPermanent},
			deliver.Replaying{Rate: 2, Done: func(n, of int) { done++; require.Equal(t, done, n); require.Equal(t, 2, of) }})
		require.NoError(t, err)
		require.Equal(t, 2, done)
		var next []time.Time
		for i, r := range replays {
			require.Equal(t, fmt.Sprint("a-", i), r.Dead.EventID)
			next = append(next, mustStatus(t, c, r.Dead.EventID)[1].Next)
		}
		require.InDelta(t, 500*time.Millisecond, next[1].Sub(next[0]), float64(2*time.Millisecond), "two a second")
		require.Equal(t, "b-1 b-0 a-3 a-2", strings.Join(list(t, c, deliver.Filter{}), " "))
		_, err = c.Dead().ReplayAll(t.Context(), deliver.Filter{}, deliver.Replaying{Rate: -1})
		require.ErrorContains(t, err, "makes no sense")

		n, err := c.Dead().Purge(t.Context(), now.Add(-time.Hour))
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, "b-1 b-0 a-3 a-2", strings.Join(list(t, c, deliver.Filter{Replayed: true}), " "))
		require.Equal(t, deliver.StateWaiting, only(t, c, "a-0").State, "its replay stays")
	})
}

// notImported makes dead letters as old as if they had died here.
const notImported = `UPDATE river_job SET scheduled_at = finalized_at`

func TestRetentionPurgesWhatIsOverAndNothingElse(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithRetention(time.Hour, 2*time.Hour))
		put(t, c, "acme", "https://acme.example")
		require.NoError(t, c.Destinations().Pause(t.Context(), "acme", time.Now().Add(time.Hour)))
		n := 130 // more than are deleted at once
		if p.slow() {
			n = 6
		}
		buried(t, c, "acme", 0, n, deliver.ReasonGone, time.Now().Add(-3*time.Hour))
		p.exec(t, fmt.Sprintf(`UPDATE river_job SET state = 'completed' WHERE id <= %d`, n*5/6))
		buried(t, c, "acme", n, n+2, deliver.ReasonGone, time.Now().Add(-90*time.Minute))
		p.exec(t, notImported)
		send(t, c, "pending", "acme")
		p.exec(t, `UPDATE river_job SET created_at = `+p.minutesAgo(3*24*60)+`, scheduled_at = `+p.minutesAgo(3*24*60)+` WHERE state = 'available'`)
		require.NoError(t, c.Start(t.Context()))
		until(t, "the purge", func() bool { return p.count(t, `SELECT count(*) FROM river_job`) <= 3 })
		require.Equal(t, []string{fmt.Sprint("acme-", n+1), fmt.Sprint("acme-", n)}, list(t, c, deliver.Filter{}))
		reached(t, c, "pending", deliver.StateWaiting)
	})
}

func TestTheRetentionOfAnImportStartsAnew(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithRetention(time.Hour, 2*time.Hour))
		put(t, c, "acme", "https://acme.example")
		buried(t, c, "acme", 0, 1, deliver.ReasonGone, time.Now().Add(-3*time.Hour)) // to see that the purge ran
		p.exec(t, notImported)
		old := `{"event":"old","destination":"acme","payload":"e30=","max_attempts":1,"reason":"exhausted","died":"2026-01-02T03:04:05Z"}`
		n, err := c.Dead().Import(t.Context(), strings.NewReader(old))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NoError(t, c.Start(t.Context()))
		until(t, "the purge", func() bool { return p.count(t, `SELECT count(*) FROM river_job`) == 1 })
		d := letter(t, c, "old")
		require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), d.Ended.UTC())
		n, err = c.Dead().Purge(t.Context(), time.Now().Add(-time.Hour))
		require.NoError(t, err)
		require.Equal(t, 1, n, "by hand it is as old as it is")
	})
}

func TestAReplayByWhoDoesNotKnowTheScheduleKeepsItsAttempts(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithSchedule("short", deliver.Steps(time.Millisecond)))
		r := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
		require.NoError(t, c.Destinations().Put(t.Context(), deliver.Destination{ID: "acme", URL: r.URL, Schedule: "short"}))
		require.NoError(t, c.Start(t.Context()))
		send(t, c, "a", "acme")
		d := letter(t, c, "a")
		require.Equal(t, 2, d.MaxAttempts)
		require.NoError(t, c.Destinations().Pause(t.Context(), "acme", time.Now().Add(time.Hour)))

		stranger := p.open(t)
		replayed := replay(t, stranger, d.ID, deliver.Replaying{})
		require.NoError(t, replayed.Refused)
		all, err := stranger.Status(t.Context(), "a")
		require.NoError(t, err)
		require.Len(t, all, 2)
		for _, s := range all {
			require.Equal(t, 2, s.MaxAttempts)
		}
	})
}

func TestNoticesAreNoDeadLetters(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		p.exec(t, `INSERT INTO river_job (args, attempt, max_attempts, created_at, scheduled_at, finalized_at, kind, metadata, priority, queue, state, tags)
			SELECT '{}', 1, 1, `+p.minutesAgo(9)+`, `+p.minutesAgo(9)+`, `+p.minutesAgo(9)+`, 'retrip_notice', '{}', 1, 'q', 'discarded', `+map[string]string{"sqlite": `'[]'`, "postgres": `'{}'`}[p.engine])
		require.Empty(t, list(t, c, deliver.Filter{}))
		n, err := c.Dead().Purge(t.Context(), time.Now())
		require.NoError(t, err)
		require.Zero(t, n)
		_, err = c.Dead().Get(t.Context(), 1)
		require.ErrorIs(t, err, deliver.ErrNotFound)
		require.Equal(t, 1, p.count(t, `SELECT count(*) FROM river_job`))
	})
}

func TestExportAndImportKeepDeadLetters(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		r := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte("short\x00and\xffstout"))
		})
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Start(t.Context()))
		payloads := map[string]string{"binary": "\x00\xff{\n", "empty": "", "json": "{\"a\": 1 }\n"}
		for id, payload := range payloads {
			_, err := c.Send(t.Context(), deliver.Event{ID: id, To: []string{"acme"}, Payload: []byte(payload), ContentType: "x/y"})
			require.NoError(t, err)
			letter(t, c, id)
		}
		before, err := c.Dead().List(t.Context(), deliver.Filter{})
		require.NoError(t, err)
		var file bytes.Buffer
		n, err := c.Dead().Export(t.Context(), &file, deliver.Filter{})
		require.NoError(t, err)
		require.Equal(t, 3, n)

		to := place{"sqlite", filepath.Join(t.TempDir(), "other.db")}.open(t)
		n, err = to.Dead().Import(t.Context(), bytes.NewReader(file.Bytes()))
		require.NoError(t, err)
		require.Equal(t, 3, n)
		for _, want := range before {
			got := letter(t, to, want.EventID)
			require.Equal(t, payloads[want.EventID], string(got.Payload))
			require.WithinDuration(t, want.Created, got.Created, time.Millisecond)
			require.WithinDuration(t, want.Ended, got.Ended, time.Millisecond)
			got.ID, got.Created, got.Ended, got.MaxAttempts = want.ID, want.Created, want.Ended, want.MaxAttempts
			require.WithinDuration(t, want.Attempts[0].At, got.Attempts[0].At, time.Millisecond)
			got.Attempts[0].At = want.Attempts[0].At
			require.Equal(t, want, got)
		}
		again, err := to.Dead().Import(t.Context(), bytes.NewReader(file.Bytes()))
		require.NoError(t, err)
		require.Zero(t, again, "they are there")
		back, err := c.Dead().Import(t.Context(), bytes.NewReader(file.Bytes()))
		require.NoError(t, err)
		require.Zero(t, back)

		// An import is a delivery of its event: a Send finds it.
		put(t, to, "acme", r.URL)
		receipt, err := to.Send(t.Context(), deliver.Event{ID: "json", To: []string{"acme"}, Payload: []byte(payloads["json"]), ContentType: "x/y"})
		require.NoError(t, err)
		require.True(t, receipt.Deliveries[0].Duplicate)
	})
}

func TestImportsAtOnceAddEachLetterOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c, other := p.open(t), p.open(t)
		var file strings.Builder
		n := min(20, many[p.engine]/60)
		for i := range n {
			fmt.Fprintf(&file, `{"event":"event-%d","destination":"acme","reason":"gone"}`+"\n\n", i)
		}
		added := make([]int, 4)
		errs := make([]error, 4)
		var g sync.WaitGroup
		for i := range added {
			g.Go(func() {
				added[i], errs[i] = []client{c, other}[i%2].Dead().Import(t.Context(), strings.NewReader(file.String()))
			})
		}
		g.Wait()
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, n, added[0]+added[1]+added[2]+added[3])
		require.Len(t, list(t, c, deliver.Filter{Reason: deliver.ReasonGone}), n)
	})
}

func TestABadLineEndsAnImportWithItsNumber(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithMaxPayload(1000))
		for i, bad := range []struct{ line, err string }{
			{`{"event":`, "line 3 is not a dead letter"},
			{`[]`, "line 3 is not a dead letter"},
			{`{"event":"x"}`, "line 3 is not a dead letter"},
			{`{"event":"x","destination":"acme","payload":"no base64!"}`, "line 3 is not a dead letter"},
			{`{"event":"x y","destination":"acme"}`, "line 3: deliver: the event's id has byte 0x20"},
			{`{"event":"x\r\ny: z","destination":"acme"}`, "line 3: deliver: the event's id has byte 0x0d"},
			{`{"event":"x","destination":"acme","content_type":"a\r\nb: c"}`, "line 3: deliver: the content type"},
			{`{"event":"x","destination":"acme","payload":"` + strings.Repeat("AAAA", 400) + `"}`, "line 3: deliver: the payload has 1200 bytes, 1000 are allowed"},
			{strings.Repeat(" ", 5<<20), "line 3: bufio.Scanner: token too long"},
		} {
			file := fmt.Sprintf(`{"event":"good-%d","destination":"acme"}`+"\n\n%s\n"+`{"event":"after","destination":"acme"}`, i, bad.line)
			n, err := c.Dead().Import(t.Context(), strings.NewReader(file))
			require.ErrorContains(t, err, bad.err)
			require.Equal(t, 1, n, "what came before it is kept")
			require.Len(t, list(t, c, deliver.Filter{EventID: fmt.Sprint("good-", i)}), 1)
		}
		require.Empty(t, list(t, c, deliver.Filter{EventID: "after"}))
		require.Empty(t, list(t, c, deliver.Filter{EventID: "x"}))
	})
}
