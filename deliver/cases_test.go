package deliver_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
)

// refuse makes the database refuse what is done to a table, if a condition holds.
func (p place) refuse(t testing.TB, name, what, table, when string) {
	t.Helper()
	if p.engine == "sqlite" {
		p.exec(t, fmt.Sprintf(`CREATE TRIGGER %s BEFORE %s ON %s WHEN %s BEGIN SELECT RAISE(ABORT, 'disk full'); END`, name, what, table, when))
		return
	}
	p.exec(t, `CREATE OR REPLACE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'disk full'; END $$ LANGUAGE plpgsql`)
	p.exec(t, fmt.Sprintf(`CREATE TRIGGER %s BEFORE %s ON %s FOR EACH ROW WHEN (%s) EXECUTE FUNCTION refuse()`, name, what, table, when))
}

// allow ends refuse.
func (p place) allow(t testing.TB, name, table string) {
	t.Helper()
	if p.engine == "sqlite" {
		p.exec(t, `DROP TRIGGER `+name)
		return
	}
	p.exec(t, `DROP TRIGGER `+name+` ON `+table)
}

func TestB65NothingIsAcknowledgedThatCannotBeWrittenDown(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		var logged syncBuffer
		c, hc := p.parker(t, deliver.WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
		r := receive(t, func(n int, w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodPut || n < 3 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		put(t, c, "acme", r.URL)
		put(t, c, "other", r.URL)

		// The second of two: neither is there.
		p.refuse(t, "no_job", "INSERT", "river_job", `NEW.args->>'destination' <> 'acme'`)
		_, err := c.Send(t.Context(), deliver.Event{ID: "both", To: []string{"acme", "other"}})
		require.ErrorContains(t, err, "disk full")
		_, err = c.Status(t.Context(), "both")
		require.ErrorIs(t, err, deliver.ErrNotFound)

		// A request that cannot be parked is still the caller's, and the log says so.
		resp, err := hc.Do(request(t, http.MethodPut, r.URL, strings.NewReader("x")))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.Contains(t, logged.String(), "could not be parked")
		require.Empty(t, list(t, c, deliver.Filter{}))
		p.allow(t, "no_job", "river_job")

		// A replay that cannot be linked to its dead letter is none.
		buried(t, c, "acme", 0, 1, deliver.ReasonExhausted, time.Now())
		p.refuse(t, "no_link", "INSERT", "retrip_replay", `1 = 1`)
		_, err = c.Dead().ReplayAll(t.Context(), deliver.Filter{}, deliver.Replaying{})
		require.ErrorContains(t, err, "disk full")
		require.Equal(t, deliver.StateDead, only(t, c, "acme-0").State)
		p.allow(t, "no_link", "retrip_replay")

		// The breaker cannot be told: the attempts are not lost for it.
		p.refuse(t, "no_breaker", "UPDATE", "retrip_destination", `1 = 1`)
		require.NoError(t, c.Start(t.Context()))
		send(t, c, "one", "acme")
		s := reached(t, c, "one", deliver.StateDelivered)
		require.Len(t, s.Attempts, 3)
		require.Equal(t, 503, s.Attempts[1].Status)
		require.Contains(t, logged.String(), "not fully written down")
	})
}

func TestB66ADeadLetterSaysWhatKindOfFailureItWas(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, never, deliver.WithTimeout(5*time.Second))
		r := receive(t, func(_ int, w http.ResponseWriter, req *http.Request) {
			code, err := strconv.Atoi(strings.Trim(req.URL.Path, "/"))
			if err != nil {
				panic(err)
			}
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(code)
		})
		want := map[string]deliver.Reason{
			"400": deliver.ReasonPermanent, "404": deliver.ReasonPermanent, "410": deliver.ReasonGone,
			"429": deliver.ReasonExhausted, "503": deliver.ReasonExhausted,
		}
		for code := range want {
			put(t, c, code, r.URL+"/"+code)
			send(t, c, code, code)
		}
		require.NoError(t, c.Start(t.Context()))
		for code, reason := range want {
			require.Equal(t, reason, letter(t, c, code).Reason, code)
		}
		// What time may heal can be told from what it does not.
		require.ElementsMatch(t, []string{"429", "503"}, list(t, c, deliver.Filter{Reason: deliver.ReasonExhausted}))
	})
}

func TestB67TwoWhoReplayAllSendEachOnce(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		n := min(100, many[p.engine]/10)
		c, other := p.open(t, deliver.WithAtOnce(100)), p.open(t, deliver.WithAtOnce(100))
		r := receive(t, func(_ int, _ http.ResponseWriter, _ *http.Request) { time.Sleep(100 * time.Millisecond) })
		put(t, c, "acme", r.URL)
		buried(t, c, "acme", 0, n, deliver.ReasonExhausted, time.Now())
		require.NoError(t, c.Start(t.Context()))
		require.NoError(t, other.Start(t.Context()))
		made := make([]int, 2)
		var g sync.WaitGroup
		for i, from := range []client{c, other} {
			g.Go(func() {
				all, err := from.Dead().ReplayAll(context.Background(), deliver.Filter{}, deliver.Replaying{})
				if err != nil {
					t.Error(err)
				}
				for _, r := range all {
					if r.Delivery != 0 {
						made[i]++
					}
				}
			})
		}
		g.Wait()
		require.Equal(t, n, made[0]+made[1])
		until(t, "all", func() bool { return p.count(t, delivered) == n })
		require.Len(t, r.all(), n)
		for i := range n {
			require.Equal(t, 1, r.count(fmt.Sprint("acme-", i)))
		}
		require.Empty(t, list(t, c, deliver.Filter{}))
	})
}

func TestB69ARetryIsMadeAndAHangingDestinationIsCutOff(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithTimeout(500*time.Millisecond), deliver.WithSchedule("long", deliver.Steps(time.Hour)))
		hangs := receive(t, func(_ int, _ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
		r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		for id, url := range map[string]string{"hangs": hangs.URL, "acme": r.URL} {
			require.NoError(t, c.Destinations().Put(t.Context(), deliver.Destination{ID: id, URL: url, Schedule: "long"}))
			send(t, c, id, id)
		}
		require.NoError(t, c.Start(t.Context()))
		require.Equal(t, "timed out", failed(t, c, "hangs").LastError())
		failed(t, c, "acme")
		p.wake(t) // an hour later
		require.Len(t, reached(t, c, "acme", deliver.StateDelivered).Attempts, 2)
		require.Equal(t, 2, r.count("acme"))
		d := letter(t, c, "hangs")
		require.Equal(t, deliver.ReasonExhausted, d.Reason)
		require.Len(t, d.Attempts, 2)
		for _, a := range d.Attempts {
			require.GreaterOrEqual(t, a.Duration, 500*time.Millisecond)
		}
	})
}

func TestB70EachAttemptAndReplayIsSignedAnewByEachSecret(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t, deliver.WithSchedule("", deliver.Steps(1100*time.Millisecond)))
		r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n < 3 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		secrets := []string{secret(), secret()}
		require.NoError(t, c.Destinations().Put(t.Context(), deliver.Destination{ID: "acme", URL: r.URL, Secrets: secrets}))
		require.NoError(t, c.Start(t.Context()))
		send(t, c, "one", "acme")
		d := letter(t, c, "one")
		time.Sleep(1100 * time.Millisecond) // a timestamp is in seconds
		replay(t, c, d.ID, deliver.Replaying{})
		until(t, "the replay", func() bool { return p.count(t, delivered) == 1 })

		calls := r.all()
		require.Len(t, calls, 3)
		stamps := make(map[string]bool)
		for _, got := range calls {
			signatures := strings.Fields(got.header.Get(standardwebhooks.HeaderWebhookSignature))
			require.Len(t, signatures, 2)
			for i, s := range secrets {
				wh, err := standardwebhooks.NewWebhook(s)
				require.NoError(t, err)
				require.NoError(t, wh.Verify(got.body, got.header), "either secret is enough")
				alone := got.header.Clone()
				alone.Set(standardwebhooks.HeaderWebhookSignature, signatures[i])
				require.NoError(t, wh.Verify(got.body, alone))
				alone.Set(standardwebhooks.HeaderWebhookSignature, signatures[1-i])
				require.Error(t, wh.Verify(got.body, alone))
				require.Error(t, wh.Verify(append(bytes.Clone(got.body), ' '), got.header))
			}
			stamp := got.header.Get(standardwebhooks.HeaderWebhookTimestamp)
			sent, err := strconv.ParseInt(stamp, 10, 64)
			require.NoError(t, err)
			require.WithinDuration(t, got.at, time.Unix(sent, 0), 30*time.Second)
			stamps[stamp] = true
			require.Equal(t, "one", got.id)
			require.Equal(t, "one", got.header.Get("Idempotency-Key"))
			require.Equal(t, "one", string(got.body))
		}
		require.Len(t, stamps, 3)
	})
}
