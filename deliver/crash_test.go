package deliver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

func TestWhatWasAcknowledgedOutlivesAKill(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		put(t, c, "acme", "https://acme.example")
		acknowledged := 0
		const rounds = 3
		for round := range rounds {
			child := p.process(t, task{Do: "enqueue", Prefix: fmt.Sprint("round", round)})
			until(t, "sends", func() bool { return len(child.said()) >= 20 })
			child.end()
			for _, line := range child.said() {
				id := strings.TrimPrefix(line, "sent ")
				require.Equal(t, deliver.StateWaiting, state(t, c, id))
				acknowledged++
			}
		}
		// What is there beside it was written down, and the kill came before the answer.
		all := p.count(t, `SELECT count(*) FROM river_job`)
		require.GreaterOrEqual(t, all, acknowledged)
		require.LessOrEqual(t, all, acknowledged+4*rounds)
	})
}

// The receiver takes some deliveries and then keeps the others waiting, so that each
// kill comes after answers that may not have been written down yet, and in the middle
// of attempts.
func TestB68AKilledWorkerSendsAgainOnlyWhatWasUnderWay(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		const rounds, quick, workers = 5, 8, 4
		c := p.open(t, deliver.WithAtOnce(1000))
		calls := make(chan struct{}, 1000)
		open := make(chan struct{})
		tokens := make(chan struct{}, rounds*quick)
		r := receive(t, func(_ int, _ http.ResponseWriter, req *http.Request) {
			calls <- struct{}{}
			select {
			case <-tokens:
			case <-open:
			case <-req.Context().Done():
			}
		})
		put(t, c, "acme", r.URL)
		var events []deliver.Event
		for i := range rounds*quick + 10 {
			id := fmt.Sprint("event-", i)
			events = append(events, deliver.Event{ID: id, To: []string{"acme"}, Payload: []byte("payload of " + id)})
		}
		_, err := c.SendMany(t.Context(), events)
		require.NoError(t, err)

		underWay := 0
		for round := range rounds {
			for range quick {
				tokens <- struct{}{}
			}
			child := p.process(t, task{Do: "work", Workers: workers})
			for range quick + workers { // all workers wait for an answer
				select {
				case <-calls:
				case <-time.After(60 * time.Second):
					require.Fail(t, "the child stopped sending")
				}
			}
			unmarked := func() int {
				return p.count(t, `SELECT count(*) FROM river_job WHERE state = 'running' AND attempted_at > `+p.minutesAgo(30))
			}
			if round%2 == 1 { // with all answers written down
				until(t, "marks", func() bool { return unmarked() == workers })
			}
			child.end()
			n := unmarked()
			require.GreaterOrEqual(t, n, workers)
			underWay += n
			p.anHour(t)
		}
		close(open)
		require.NoError(t, c.Start(t.Context()))
		until(t, "all attempts", func() bool { return r.ids() == len(events) })
		until(t, "all deliveries", func() bool { return p.count(t, delivered) == len(events) })

		again := 0
		for _, e := range events {
			n := r.count(e.ID)
			require.Positive(t, n, e.ID)
			again += n - 1
		}
		require.Equal(t, len(events)+again, len(r.all()), "an id that was never sent")
		require.LessOrEqual(t, again, underWay)
		for _, got := range r.all() {
			require.Equal(t, got.id, got.header.Get("Idempotency-Key"))
			require.Equal(t, "payload of "+got.id, string(got.body))
		}
		t.Logf("%d kills: %d were under way, %d of them sent again", rounds, underWay, again)
	})
}

// Here nothing is hurried: the leader's lease and the rescue take the time they take.
func TestAnotherProcessFinishesWhatAKilledLeaderHadUnderWay(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithTimeout(time.Second), deliver.WithRescue(2*time.Second),
			deliver.WithSchedule("", deliver.Steps(time.Hour, time.Hour, time.Hour)), deliver.WithSchedule("once", deliver.Schedule{Attempts: 1}))
		r := receive(t, func(n int, w http.ResponseWriter, req *http.Request) {
			switch id := req.Header.Get("webhook-id"); {
			case id == "held-third" && n < 3:
				w.WriteHeader(http.StatusInternalServerError)
			case id == "held-third" && n == 3, strings.HasPrefix(id, "held-") && n == 1:
				<-req.Context().Done()
			}
		})
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Destinations().Put(t.Context(), deliver.Destination{ID: "once", URL: r.URL, Schedule: "once"}))
		send := func(id, to string) {
			_, err := c.Send(t.Context(), deliver.Event{ID: id, To: []string{to}, Payload: []byte(id)})
			require.NoError(t, err)
		}

		leader := p.process(t, task{Do: "work", Workers: 3})
		until(t, "leadership", func() bool { return p.count(t, `SELECT count(*) FROM river_leader`) == 1 })
		send("held-first", "acme")
		send("held-third", "acme")
		send("held-last", "once")
		until(t, "the leader's attempts", func() bool { return len(r.all()) == 5 })
		require.NoError(t, c.Start(t.Context()))
		send("other", "acme")
		until(t, "the other's work", func() bool { return state(t, c, "other") == deliver.StateDelivered })
		require.Equal(t, deliver.StateSending, state(t, c, "held-first"))
		leader.end()
		start := time.Now()
		until(t, "the rescue", func() bool {
			return state(t, c, "held-first") == deliver.StateDelivered && state(t, c, "held-third") == deliver.StateDelivered &&
				state(t, c, "held-last") == deliver.StateDead
		})
		t.Logf("everything was finished %.1f s after the kill", time.Since(start).Seconds())

		// At once, although the schedule has pauses of an hour: the destination did nothing
		// wrong.
		s, err := c.Status(t.Context(), "held-third")
		require.NoError(t, err)
		require.Equal(t, 4, s[0].Attempt)
		require.Len(t, s[0].Attempts, 4)
		require.Equal(t, "the process died during the attempt", s[0].Attempts[2].String())
		for id, n := range map[string]int{"held-first": 2, "held-third": 4, "held-last": 1, "other": 1} {
			require.Equal(t, n, r.count(id), id)
		}

		// It died in the last attempt: nobody knows whether it arrived, so somebody decides.
		dead, err := c.Dead().List(t.Context(), deliver.Filter{})
		require.NoError(t, err)
		require.Len(t, dead, 1)
		require.Equal(t, "held-last", dead[0].EventID)
		require.Equal(t, deliver.ReasonWorkerLost, dead[0].Reason)
		require.Equal(t, []byte("held-last"), dead[0].Payload)
		_, err = c.Dead().Replay(t.Context(), []int64{dead[0].ID}, deliver.Replaying{})
		require.NoError(t, err)
		until(t, "the replay", func() bool { return r.count("held-last") == 2 })
	})
}

func TestAScheduleGoesOnAfterAKill(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithSchedule("", deliver.Steps(time.Hour, 2*time.Hour, 3*time.Hour)))
		r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n < 3 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		put(t, c, "acme", r.URL)
		_, err := c.Send(t.Context(), order("one"))
		require.NoError(t, err)
		failed := func(attempt int, pause time.Duration) deliver.Status {
			var s deliver.Status
			until(t, "a failure", func() bool {
				all, err := c.Status(t.Context(), "one")
				require.NoError(t, err)
				s = all[0]
				return s.State == deliver.StateRetrying && s.Attempt == attempt
			})
			require.Len(t, s.Attempts, attempt)
			require.Equal(t, 4, s.MaxAttempts)
			require.WithinDuration(t, s.Attempts[attempt-1].At.Add(pause), s.Next, 30*time.Second)
			return s
		}
		child := p.process(t, task{Do: "work", Steps: time.Hour})
		before := failed(1, time.Hour)
		child.end()

		// Not sooner because another process starts, and not later.
		p.exec(t, `DELETE FROM river_leader`)
		require.NoError(t, c.Start(t.Context()))
		time.Sleep(1500 * time.Millisecond) // the leader looks for what is due within a second
		require.Equal(t, before, failed(1, time.Hour))
		require.Equal(t, 1, r.count("one"))
		require.NoError(t, c.Stop(t.Context()))
		p.anHour(t)
		require.NoError(t, c.Start(t.Context()))
		failed(2, 2*time.Hour)
		require.NoError(t, c.Stop(t.Context()))
		p.anHour(t)
		p.anHour(t)
		require.NoError(t, c.Start(t.Context()))
		until(t, "delivery", func() bool { return state(t, c, "one") == deliver.StateDelivered })
		s, err := c.Status(t.Context(), "one")
		require.NoError(t, err)
		require.Equal(t, 3, s[0].Attempt)
		require.Len(t, s[0].Attempts, 3)
		require.Equal(t, 3, r.count("one"))
	})
}
