package deliver_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

// A board is where notices are put up.
type board struct {
	mu      sync.Mutex
	notices []deliver.Notice
}

func (b *board) Notify(_ context.Context, n deliver.Notice) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notices = append(b.notices, n)
	return nil
}

// of returns the notices of a kind about a destination.
func (b *board) of(kind, destination string) (all []deliver.Notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.notices {
		if n.Kind == kind && n.Destination == destination {
			all = append(all, n)
		}
	}
	return all
}

// pauseOver lets the pause of every destination end.
const pauseOver = `UPDATE retrip_destination SET paused_until = 1`

// running counts the deliveries that a worker has.
const running = `SELECT count(*) FROM river_job WHERE state = 'running'`

func TestTheBreakerOfTwoWorkersClimbsItsLadder(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		var notices board
		var well atomic.Bool
		r := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
			if !well.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		// Each delivery fails once before the breaker opens, and then only as a probe.
		steps := deliver.Steps(time.Hour)
		steps.Attempts = 20
		opts := []deliver.Option{deliver.WithNotifier(&notices), deliver.WithSchedule("", steps)}
		breaker, n := deliver.DefaultBreaker(), 30
		if p.slow() {
			breaker.Failures, n = 3, 5
		}
		opts = append(opts, deliver.WithBreaker(breaker))
		c, other := p.open(t, opts...), p.open(t, opts...)
		put(t, c, "acme", r.URL)
		var events []deliver.Event
		for i := range n {
			events = append(events, order(fmt.Sprint("event-", i)))
		}
		_, err := c.SendMany(t.Context(), events)
		require.NoError(t, err)
		require.NoError(t, c.Start(t.Context()))
		require.NoError(t, other.Start(t.Context()))
		for trip, pause := range []time.Duration{10 * time.Minute, 30 * time.Minute, 2 * time.Hour, 24 * time.Hour, 24 * time.Hour} {
			trip++
			before := len(r.all())
			if trip > 1 {
				p.exec(t, pauseOver)
				p.wake(t)
			}
			until(t, "a notice", func() bool { return len(notices.of(deliver.BreakerOpened, "acme")) >= trip })
			until(t, "quiet", func() bool { return p.count(t, running) == 0 })
			d := get(t, c, "acme")
			require.Equal(t, trip, d.Trips)
			require.Equal(t, "503 Service Unavailable", d.PausedWhy)
			require.InDelta(t, pause, time.Until(d.PausedUntil), float64(5*time.Minute))
			date := d.PausedUntil.Format(time.DateOnly) + " "
			if pause < 24*time.Hour { // today, but for a run shortly before midnight
				date = "(" + date + ")?"
			}
			require.Regexp(t, fmt.Sprintf(`^paused until %s%s, trip %d of 4, because 503 Service Unavailable$`,
				date, d.PausedUntil.Format(time.TimeOnly), min(trip, 4)), c.Destinations().Describe(d))
			opened := notices.of(deliver.BreakerOpened, "acme")
			require.Len(t, opened, trip, "one for each trip")
			n := opened[trip-1]
			require.Equal(t, trip, n.Trip)
			require.Equal(t, 4, n.Trips)
			require.Equal(t, "503 Service Unavailable", n.Why)
			require.WithinDuration(t, d.PausedUntil, n.Until, time.Millisecond)
			if trip == 1 {
				require.GreaterOrEqual(t, len(r.all()), breaker.Failures)
				require.LessOrEqual(t, len(r.all()), breaker.Failures+20, "what was under way in two workers, and no more")
			} else {
				require.Equal(t, before+1, len(r.all()), "one probe after a pause")
			}
		}
		well.Store(true)
		p.exec(t, pauseOver)
		p.wake(t)
		until(t, "all", func() bool { return p.count(t, delivered) == len(events) })
		until(t, "a notice", func() bool { return len(notices.of(deliver.BreakerClosed, "acme")) > 0 })
		require.Len(t, notices.of(deliver.BreakerClosed, "acme"), 1)
		require.Len(t, notices.of(deliver.BreakerOpened, "acme"), 5)
		d := get(t, c, "acme")
		require.Zero(t, d.Failures)
		require.Zero(t, d.Trips)
		require.Zero(t, d.PausedUntil)
		require.Empty(t, d.PausedWhy)
		for _, e := range events {
			s := only(t, c, e.ID)
			require.Equal(t, r.count(e.ID), s.Attempt, "a pause uses no attempt up")
			require.Len(t, s.Attempts, s.Attempt)
		}
	})
}

func TestRefusalsOfOneEventDoNotOpenTheBreaker(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithAtOnce(1), deliver.WithBreaker(deliver.Breaker{Failures: 2, Pauses: []time.Duration{time.Hour}}),
			deliver.WithSchedule("", deliver.Steps(time.Hour)))
		r := receive(t, func(_ int, w http.ResponseWriter, req *http.Request) {
			switch req.Header.Get("webhook-id")[0] {
			case 'r':
				w.WriteHeader(http.StatusUnprocessableEntity)
			case 'f':
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Start(t.Context()))
		for i := range 3 {
			send(t, c, fmt.Sprint("refused-", i), "acme")
			letter(t, c, fmt.Sprint("refused-", i))
		}
		// Not in a row: it is there, and answers.
		for i, between := range []string{"refused-3", "good"} {
			send(t, c, fmt.Sprint("failed-", i), "acme")
			failed(t, c, fmt.Sprint("failed-", i))
			require.Equal(t, 1, get(t, c, "acme").Failures)
			send(t, c, between, "acme")
			until(t, "the next", func() bool { return only(t, c, between).Ended != time.Time{} })
			require.Zero(t, get(t, c, "acme").Failures)
		}
		d := get(t, c, "acme")
		require.Zero(t, d.Trips)
		require.Zero(t, d.PausedUntil)
	})
}

func TestTheProbeOfADeadProcessIsTakenBack(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		r := receive(t, func(_ int, _ http.ResponseWriter, req *http.Request) {
			if req.Header.Get("webhook-id") == "probe" {
				<-req.Context().Done()
			}
		})
		put(t, c, "acme", r.URL)
		p.exec(t, `UPDATE retrip_destination SET trips = 1, paused_until = 1`)
		send(t, c, "probe", "acme")
		child := p.process(t, task{Do: "work"})
		until(t, "the probe", func() bool { return r.count("probe") == 1 })
		child.end()
		require.NoError(t, c.Start(t.Context()))
		send(t, c, "next", "acme")
		until(t, "a snooze", func() bool { return p.count(t, snoozed) > 0 })
		require.Zero(t, r.count("next"), "the probe may still be under way")
		p.exec(t, `UPDATE retrip_destination SET probe_until = probe_until - 90000`)
		reached(t, c, "next", deliver.StateDelivered)
		require.Zero(t, get(t, c, "acme").Trips)
	})
}

// A claim must not outlive the pause that it was for.
func TestADestinationMayAskToBeLeftAloneAgainAndAgain(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithTimeout(30*time.Second), deliver.WithRescue(time.Hour))
		r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n == 1 {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		})
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Start(t.Context()))
		for i := range 2 {
			send(t, c, fmt.Sprint("event-", i), "acme")
			reached(t, c, fmt.Sprint("event-", i), deliver.StateDelivered)
		}
		require.Len(t, r.all(), 4)
	})
}

func TestALongerPauseThatIsAskedForIsKept(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithBreaker(deliver.Breaker{Failures: 1, Pauses: []time.Duration{time.Minute}}))
		r := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7200")
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Start(t.Context()))
		send(t, c, "one", "acme")
		failed(t, c, "one")
		d := get(t, c, "acme")
		require.Equal(t, 1, d.Trips)
		require.InDelta(t, 2*time.Hour, time.Until(d.PausedUntil), float64(5*time.Minute))
	})
}

func TestBreakersThatMakeNoSensePanic(t *testing.T) {
	t.Parallel()
	for _, b := range []deliver.Breaker{
		{}, {Failures: 1}, {Pauses: []time.Duration{time.Hour}}, {Failures: -1, Pauses: []time.Duration{time.Hour}},
		{Failures: 1, Pauses: []time.Duration{time.Hour, 0}}, {Failures: 1, Pauses: []time.Duration{-time.Hour}},
	} {
		require.Panics(t, func() { deliver.WithBreaker(b) }, "%+v", b)
	}
	require.Equal(t, deliver.Breaker{
		Failures: 20, Pauses: []time.Duration{10 * time.Minute, 30 * time.Minute, 2 * time.Hour, 24 * time.Hour},
	}, deliver.DefaultBreaker())
}
