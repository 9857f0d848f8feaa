package deliver_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
)

// send sends an event whose payload is its id.
func send(t testing.TB, c client, id, to string) {
	t.Helper()
	_, err := c.Send(t.Context(), deliver.Event{ID: id, To: []string{to}, Payload: []byte(id)})
	require.NoError(t, err)
}

// only returns the status of an event's only delivery.
func only(t testing.TB, c client, id string) deliver.Status {
	t.Helper()
	s, err := c.Status(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, s, 1)
	return s[0]
}

// reached waits until an event's only delivery is in that state.
func reached(t testing.TB, c client, id string, want deliver.State) deliver.Status {
	t.Helper()
	until(t, fmt.Sprintf("%s of %s", want, id), func() bool { return state(t, c, id) == want })
	return only(t, c, id)
}

// failed waits until an event's only delivery waits for its next attempt.
func failed(t testing.TB, c client, id string) deliver.Status {
	t.Helper()
	return reached(t, c, id, deliver.StateRetrying)
}

// letter waits until an event is a dead letter.
func letter(t testing.TB, c client, id string) deliver.DeadLetter {
	t.Helper()
	reached(t, c, id, deliver.StateDead)
	all, err := c.Dead().List(t.Context(), deliver.Filter{EventID: id})
	require.NoError(t, err)
	require.Len(t, all, 1)
	return all[0]
}

// get returns a destination.
func get(t testing.TB, c client, id string) deliver.DestinationState {
	t.Helper()
	d, err := c.Destinations().Get(t.Context(), id)
	require.NoError(t, err)
	return d
}

// wake makes everything due that sleeps.
func (p place) wake(t testing.TB) {
	t.Helper()
	p.exec(t, `UPDATE river_job SET state = 'available', scheduled_at = `+p.minutesAgo(1)+` WHERE state IN ('scheduled', 'retryable', 'available')`)
}

// snoozed counts the deliveries that found that it was not their time.
const snoozed = `SELECT count(*) FROM river_job WHERE metadata->>'snoozes' IS NOT NULL`

// never is a breaker that stays out of the way.
var never = deliver.WithBreaker(deliver.Breaker{Failures: 1_000_000, Pauses: []time.Duration{time.Hour}})

func TestEachAnswerHasItsConsequence(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, never)
		elsewhere := receive(t, nil)
		r := receive(t, func(_ int, w http.ResponseWriter, req *http.Request) {
			code, err := strconv.Atoi(path.Base(req.URL.Path))
			if err != nil {
				panic(err)
			}
			w.Header().Set("Location", elsewhere.URL)
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(code)
		})
		strange := httptest.NewUnstartedServer(elsewhere)
		strange.Config.ErrorLog = log.New(io.Discard, "", 0)
		strange.StartTLS()
		t.Cleanup(strange.Close)
		closed := receive(t, nil)
		closed.Close()

		want := map[string]deliver.Reason{"certificate": deliver.ReasonExhausted, "refused": deliver.ReasonExhausted}
		urls := map[string]string{"certificate": strange.URL, "refused": closed.URL}
		for reason, codes := range map[deliver.Reason][]int{
			"":                      {200, 201, 202, 204, 226, 299},
			deliver.ReasonExhausted: {300, 301, 302, 303, 304, 307, 408, 421, 423, 425, 500, 501, 502, 503, 504, 507, 511, 599, 308, 409, 429},
			deliver.ReasonPermanent: {400, 401, 402, 403, 404, 405, 406, 413, 415, 418, 422, 424, 451, 499},
			deliver.ReasonGone:      {410},
		} {
			if p.slow() {
				codes = codes[max(len(codes)-3, 0):]
			}
			for _, code := range codes {
				want[fmt.Sprint(code)], urls[fmt.Sprint(code)] = reason, fmt.Sprint(r.URL, "/", code)
			}
		}
		var events []deliver.Event
		for id, url := range urls {
			put(t, c, id, url)
			events = append(events, deliver.Event{ID: id, To: []string{id}, Payload: []byte(id)})
		}
		_, err := c.SendMany(t.Context(), events)
		require.NoError(t, err)
		require.NoError(t, c.Start(t.Context()))
		for id, reason := range want {
			attempts := 1
			if reason == deliver.ReasonExhausted {
				attempts = 3
			}
			if reason == "" {
				reached(t, c, id, deliver.StateDelivered)
			} else {
				require.Equal(t, reason, letter(t, c, id).Reason, id)
			}
			s := only(t, c, id)
			require.Len(t, s.Attempts, attempts, id)
			require.Equal(t, attempts, s.Attempt, id)
			for _, a := range s.Attempts {
				if a.Status == 0 {
					require.NotEmpty(t, a.Err, id)
					continue
				}
				require.Equal(t, id, fmt.Sprint(a.Status))
			}
			if len(id) == 3 {
				require.Equal(t, attempts, r.count(id), id)
			}
		}
		require.Contains(t, only(t, c, "certificate").LastError(), "certificate")
		require.Empty(t, elsewhere.all(), "redirects are not followed")
		require.Equal(t, "it answered 410 Gone", get(t, c, "410").Disabled)
		require.Empty(t, get(t, c, "499").Disabled)

		// Nothing goes to who wanted no more, until the operator says so.
		send(t, c, "more", "410")
		require.Equal(t, deliver.ReasonDisabled, letter(t, c, "more").Reason)
		require.Zero(t, r.count("more"))
	})
}

func TestADestinationThatAsksForItIsLeftAlone(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, never, deliver.WithSchedule("", deliver.Steps(3*time.Minute)))
		require.NoError(t, c.Start(t.Context()))
		r := receive(t, func(_ int, w http.ResponseWriter, req *http.Request) {
			code, after, _ := strings.Cut(path.Base(req.URL.Path), "-")
			if after == "date" {
				now := time.Now().UTC()
				w.Header().Set("Date", now.Format(http.TimeFormat))
				after = now.Add(1000 * time.Second).Format(http.TimeFormat)
			}
			if after != "" {
				w.Header().Set("Retry-After", after)
			}
			status, err := strconv.Atoi(code)
			if err != nil {
				panic(err)
			}
			w.WriteHeader(status)
		})
		type bounds struct{ least, most time.Duration }
		const s, day = time.Second, 24 * time.Hour
		step := bounds{3 * time.Minute, 3 * time.Minute} // the schedule's, which is longer than asked for
		table := map[string]struct{ delivery, destination bounds }{
			"429-1000":               {bounds{1000 * s, 1000 * s}, bounds{1000 * s, 1000 * s}},
			"503-date":               {bounds{1000 * s, 1000 * s}, bounds{1000 * s, 1000 * s}},
			"500-1000":               {bounds{1000 * s, 1000 * s}, bounds{1000 * s, 1000 * s}},
			"429-999999999999999999": {bounds{day, day}, bounds{day, day}},
			"429":                    {step, bounds{5 * s, 10 * s}},
			"502":                    {step, bounds{5 * s, 10 * s}},
			"504":                    {step, bounds{5 * s, 10 * s}},
			"429-soon":               {step, bounds{5 * s, 10 * s}},
			"429-20":                 {step, bounds{20 * s, 20 * s}},
			"409-1000":               {bounds{1000 * s, 1000 * s}, bounds{}}, // it is about this delivery
			"302-1000":               {bounds{1000 * s, 1000 * s}, bounds{}},
			"503-0":                  {step, bounds{}},
			"503":                    {step, bounds{}},
			"404-1000":               {bounds{}, bounds{}},
		}
		for id := range table {
			put(t, c, id, r.URL+"/"+id)
			send(t, c, id, id)
		}
		for id, want := range table {
			var got deliver.Status
			until(t, "an attempt", func() bool { got = only(t, c, id); return len(got.Attempts) == 1 })
			if strings.HasPrefix(id, "404") {
				require.Equal(t, deliver.StateDead, got.State)
			} else {
				pause := got.Next.Sub(got.Attempts[0].At)
				require.GreaterOrEqual(t, pause, want.delivery.least-s/2, id) // the engines keep less of a time
				require.LessOrEqual(t, pause, want.delivery.most+30*s, id)
			}
			d := get(t, c, id)
			if want.destination == (bounds{}) {
				require.Zero(t, d.PausedUntil, id)
				continue
			}
			paused := d.PausedUntil.Sub(got.Attempts[0].At)
			require.GreaterOrEqual(t, paused, want.destination.least-s/2, id)
			require.LessOrEqual(t, paused, want.destination.most+30*s, id)
			if want.destination.least > 30*s { // it may be over
				require.Contains(t, c.Destinations().Describe(d), "paused until", id)
			}
		}
	})
}

func TestRetryAfterIsKeptToByEveryDelivery(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		r := receive(t, func(n int, w http.ResponseWriter, req *http.Request) {
			if n == 1 && req.Header.Get("webhook-id") == "first" {
				w.Header().Set("Retry-After", "2")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		})
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Start(t.Context()))
		send(t, c, "first", "acme")
		s := failed(t, c, "first")
		send(t, c, "second", "acme")
		reached(t, c, "first", deliver.StateDelivered)
		reached(t, c, "second", deliver.StateDelivered)
		for _, got := range r.all()[1:] {
			require.GreaterOrEqual(t, got.at.Sub(s.Attempts[0].At), 2*time.Second, got.id)
		}
		require.Equal(t, 2, r.count("first"))
		require.Equal(t, 1, r.count("second"))
		d := get(t, c, "acme")
		require.Zero(t, d.PausedUntil)
		require.Zero(t, d.Failures)
	})
}

func TestPayloadsArriveAsTheyAre(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		r := receive(t, nil)
		key := secret()
		require.NoError(t, c.Destinations().Put(t.Context(), deliver.Destination{ID: "acme", URL: r.URL, Secrets: []string{key}}))
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		payloads := map[string]string{
			"odd-json": "{\"b\" : 1.0, \"a\":1e2,\n\"a\": \"\\u0000\\ud800\", \"n\": 12345678901234567890123, \"html\": \"<&>\"}\r\n",
			"no-json":  `{"a":`, "nul": "\x00", "nuls": strings.Repeat("\x00", 1000), "binary": string(every), "not-utf-8": "\xff\xfe",
			"empty": "", "space": " \n", "null": "null", "a-mebibyte": strings.Repeat(string(every), 4096),
		}
		var events []deliver.Event
		for id, payload := range payloads {
			events = append(events, deliver.Event{ID: id, To: []string{"acme"}, Payload: []byte(payload), ContentType: "text/x-" + id})
		}
		_, err := c.SendMany(t.Context(), events)
		require.NoError(t, err)
		require.NoError(t, c.Start(t.Context()))
		wh, err := standardwebhooks.NewWebhook(key)
		require.NoError(t, err)
		for id := range payloads {
			reached(t, c, id, deliver.StateDelivered)
		}
		calls := r.all()
		require.Len(t, calls, len(payloads))
		for _, got := range calls {
			require.True(t, payloads[got.id] == string(got.body), got.id)
			require.NoError(t, wh.Verify(got.body, got.header), got.id)
			require.Equal(t, "text/x-"+got.id, got.header.Get("Content-Type"))
			require.Equal(t, fmt.Sprint(len(got.body)), got.header.Get("Content-Length"))
		}
	})
}

func TestEventsThatCannotBeSentAreRefused(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithMaxPayload(100))
		put(t, c, "acme", "https://acme.example")
		good := deliver.Event{ID: "good", To: []string{"acme"}, Payload: make([]byte, 100)}
		for text, change := range map[string]func(*deliver.Event){
			"101 bytes, 100 are allowed":         func(e *deliver.Event) { e.Payload = make([]byte, 101) },
			"no destination":                     func(e *deliver.Event) { e.To = nil },
			`destination "": not found`:          func(e *deliver.Event) { e.To = []string{""} },
			`destination "nobody": not found`:    func(e *deliver.Event) { e.To = []string{"acme", "nobody"} },
			"twice":                              func(e *deliver.Event) { e.To = []string{"acme", "acme"} },
			"byte 0x2e at position 1":            func(e *deliver.Event) { e.ID = "a.b" },
			"byte 0x20":                          func(e *deliver.Event) { e.ID = "a b" },
			"byte 0x0a":                          func(e *deliver.Event) { e.ID = "a\nb" },
			"byte 0xc3":                          func(e *deliver.Event) { e.ID = "ä" },
			"256 bytes, 255 are allowed":         func(e *deliver.Event) { e.ID = strings.Repeat("a", 256) },
			"content type is not a header value": func(e *deliver.Event) { e.ContentType = "text/plain\r\nX: y" },
			"deliver: the content type is not a header valu": func(e *deliver.Event) { e.ContentType = "text/plain\x01" },
		} {
			bad := good
			bad.ID = "bad"
			change(&bad)
			_, err := c.Send(t.Context(), bad)
			require.ErrorContains(t, err, text)
			_, err = c.SendMany(t.Context(), []deliver.Event{good, bad})
			require.ErrorContains(t, err, text)
		}
		_, err := c.Status(t.Context(), "good")
		require.ErrorIs(t, err, deliver.ErrNotFound, "all or nothing")
		require.Zero(t, p.count(t, `SELECT count(*) FROM river_job`))
		_, err = c.Send(t.Context(), good)
		require.NoError(t, err)
	})
}

func TestASlowDestinationDoesNotHoldUpOthers(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		release := make(chan struct{})
		slow := receive(t, func(_ int, _ http.ResponseWriter, req *http.Request) {
			select {
			case <-release:
			case <-req.Context().Done():
			}
		})
		fast := receive(t, nil)
		put(t, c, "slow", slow.URL)
		put(t, c, "fast", fast.URL)
		var events []deliver.Event
		n := min(200, many[p.engine]/10)
		for _, to := range []string{"slow", "fast"} {
			for i := range n {
				events = append(events, deliver.Event{ID: fmt.Sprint(to, "-", i), To: []string{to}})
			}
		}
		_, err := c.SendMany(t.Context(), events)
		require.NoError(t, err)
		require.NoError(t, c.Start(t.Context()))
		until(t, "the fast", func() bool { return len(fast.all()) == n })
		require.LessOrEqual(t, len(slow.all()), 10, "no more than at once")
		close(release)
		until(t, "some of the slow", func() bool { return len(slow.all()) > 10 })
	})
}

func TestADeliveryThatWaitedTooLongExpires(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithMaxAge(24*time.Hour))
		r := receive(t, nil)
		put(t, c, "acme", r.URL)
		send(t, c, "old", "acme")
		p.exec(t, `UPDATE river_job SET created_at = `+p.minutesAgo(25*60))
		send(t, c, "older", "acme")
		p.exec(t, `UPDATE river_job SET created_at = `+p.minutesAgo(23*60)+` WHERE args->>'event' = 'older'`)
		require.NoError(t, c.Start(t.Context()))
		d := letter(t, c, "old")
		require.Equal(t, deliver.ReasonExpired, d.Reason)
		require.Equal(t, "not delivered within 24h0m0s", d.LastError())
		require.Zero(t, r.count("old"))
		reached(t, c, "older", deliver.StateDelivered)

		// Its replay has all the time again.
		_, err := c.Dead().Replay(t.Context(), []int64{d.ID}, deliver.Replaying{})
		require.NoError(t, err)
		until(t, "the replay", func() bool { return r.count("old") == 1 })
	})
}

func TestDeliveriesToNobodyDieAndCanBeReplayed(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		r := receive(t, status(http.StatusInternalServerError))
		for _, id := range []string{"disabled", "removed"} {
			put(t, c, id, r.URL)
			send(t, c, "event-"+id, id)
		}
		require.NoError(t, c.Destinations().Disable(t.Context(), "disabled", "moving <house>"))
		p.exec(t, `DELETE FROM retrip_destination WHERE id = 'removed'`)
		require.NoError(t, c.Start(t.Context()))
		for id, why := range map[string]string{"disabled": "the destination is disabled: moving <house>", "removed": "the destination was removed"} {
			d := letter(t, c, "event-"+id)
			require.Equal(t, deliver.ReasonDisabled, d.Reason)
			require.Equal(t, why, d.LastError())
			require.Equal(t, []byte("event-"+id), d.Payload)
		}
		require.Empty(t, r.all())
		require.Equal(t, "disabled: moving <house>", c.Destinations().Describe(get(t, c, "disabled")))
		require.NoError(t, c.Destinations().Enable(t.Context(), "disabled"))
		put(t, c, "removed", r.URL)
		replays, err := c.Dead().ReplayAll(t.Context(), deliver.Filter{}, deliver.Replaying{})
		require.NoError(t, err)
		require.Len(t, replays, 2)
		until(t, "the replays", func() bool { return r.count("event-disabled") > 0 && r.count("event-removed") > 0 })
	})
}

func TestAPauseUsesNoAttemptsAndResumeEndsItAtOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithSchedule("", deliver.Steps(time.Hour)))
		r := receive(t, func(_ int, w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("webhook-id") == "later" {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		put(t, c, "acme", r.URL)
		require.NoError(t, c.Start(t.Context()))
		send(t, c, "later", "acme")
		failed(t, c, "later")
		for _, end := range []time.Time{time.Now().Add(time.Hour), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)} {
			require.NoError(t, c.Destinations().Pause(t.Context(), "acme", end))
			id := fmt.Sprint("paused-until-", end.Year())
			send(t, c, id, "acme")
			until(t, "a snooze", func() bool { return only(t, c, id).Next.After(time.Now().Add(50 * time.Minute)) })
			s := only(t, c, id)
			require.Equal(t, deliver.StateWaiting, s.State)
			require.Zero(t, s.Attempt)
			require.Empty(t, s.Attempts)
			require.Regexp(t, `^held until (\d{4,5}-\d\d-\d\d )?\d\d:\d\d:\d\d$`, c.Destinations().Describe(get(t, c, "acme")))
		}
		require.Contains(t, c.Destinations().Describe(get(t, c, "acme")), "-", "a time that is not today's has its date")
		require.Len(t, r.all(), 1)
		require.NoError(t, c.Destinations().Resume(t.Context(), "acme"))
		until(t, "all that slept", func() bool { return len(r.all()) == 3 })
		require.Equal(t, 1, reached(t, c, "paused-until-9999", deliver.StateDelivered).Attempt)
		require.Greater(t, time.Until(failed(t, c, "later").Next), 30*time.Minute, "a retry keeps to its schedule")
		require.Equal(t, "open for deliveries", c.Destinations().Describe(get(t, c, "acme")))
	})
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		ds := c.Destinations()
		for name, try := range map[string]func() error{
			"Get":     func() error { _, err := ds.Get(t.Context(), "nobody"); return err },
			"Pause":   func() error { return ds.Pause(t.Context(), "nobody", time.Now()) },
			"Resume":  func() error { return ds.Resume(t.Context(), "nobody") },
			"Disable": func() error { return ds.Disable(t.Context(), "nobody", "") },
			"Enable":  func() error { return ds.Enable(t.Context(), "nobody") },
			"Status":  func() error { _, err := c.Status(t.Context(), "nothing"); return err },
			"letter":  func() error { _, err := c.Dead().Get(t.Context(), 99); return err },
			"replay":  func() error { _, err := c.Dead().Replay(t.Context(), []int64{99}, deliver.Replaying{}); return err },
		} {
			require.ErrorIs(t, try(), deliver.ErrNotFound, name)
		}
	})
}

func TestAStopGivesTheProbeBack(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithSchedule("", deliver.Schedule{Attempts: 1}))
		r := receive(t, func(n int, _ http.ResponseWriter, req *http.Request) {
			if n == 1 {
				<-req.Context().Done()
			}
		})
		put(t, c, "acme", r.URL)
		send(t, c, "one", "acme")
		p.exec(t, `UPDATE retrip_destination SET trips = 1, paused_until = 1`) // so that it is a probe
		require.NoError(t, c.Start(t.Context()))
		until(t, "the attempt", func() bool { return r.count("one") == 1 })
		require.Equal(t, 1, p.count(t, `SELECT count(*) FROM retrip_destination WHERE probe_until > 1`))
		now, cancel := context.WithCancel(t.Context())
		cancel()
		_ = c.Stop(now)
		require.Zero(t, p.count(t, `SELECT count(*) FROM retrip_destination WHERE probe_until > 1`), "the next process can probe at once")
		s := only(t, c, "one")
		require.Equal(t, deliver.StateWaiting, s.State)
		require.Empty(t, s.Attempts)
		require.NoError(t, c.Start(t.Context()))
		require.Equal(t, 1, reached(t, c, "one", deliver.StateDelivered).Attempt)
		require.Zero(t, get(t, c, "acme").Trips)
	})
}
