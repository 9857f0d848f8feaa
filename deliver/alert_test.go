package deliver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
)

// buried adds dead letters of a destination, with ids from..to-1.
func buried(t testing.TB, c client, destination string, from, to int, reason deliver.Reason, at time.Time) {
	t.Helper()
	var file strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&file, `{"event":"%s-%d","destination":"%s","payload":"AP8=","max_attempts":3,"reason":"%s","died":"%s","attempts":[{"number":1,"status":500},{"number":2,"status":%d}]}`+"\n",
			destination, i, destination, reason, at.Format(time.RFC3339Nano), 500+i%5)
	}
	n, err := c.Dead().Import(t.Context(), strings.NewReader(file.String()))
	require.NoError(t, err)
	require.Equal(t, to-from, n)
}

func TestTooManyDeadLettersGiveOneNoticeAnHour(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		var notices board
		opts := []deliver.Option{deliver.WithNotifier(&notices), deliver.WithAlert(deliver.Alert{Dead: 3, Per: time.Hour, Again: time.Hour})}
		c, other := p.open(t, opts...), p.open(t, opts...)
		for _, id := range []string{"acme", "marker", "marker-2", "marker-3"} {
			put(t, c, id, "https://acme.example")
		}
		require.NoError(t, c.Start(t.Context()))
		require.NoError(t, other.Start(t.Context()))
		of := func(id string) []deliver.Notice { return notices.of(deliver.TooManyDead, id) }
		// What another destination's notice was looked for with, acme's was too.
		look := func(marker string) {
			buried(t, c, marker, 0, 4, deliver.ReasonGone, time.Now())
			until(t, "the marker's notice", func() bool { return len(of(marker)) > 0 })
		}

		buried(t, c, "acme", 0, 10, deliver.ReasonGone, time.Now().Add(-61*time.Minute))
		buried(t, c, "acme", 10, 13, deliver.ReasonExhausted, time.Now())
		look("marker")
		require.Empty(t, of("acme"), "three are not more than three, and the old ones do not count")
		buried(t, c, "acme", 13, 15, deliver.ReasonPermanent, time.Now())
		until(t, "a notice", func() bool { return len(of("acme")) > 0 })
		n := of("acme")[0]
		require.NotEmpty(t, n.ID)
		require.Equal(t, 5, n.Dead)
		require.Equal(t, map[deliver.Reason]int{deliver.ReasonExhausted: 3, deliver.ReasonPermanent: 2}, n.Reasons)
		require.Equal(t, "504 Gateway Timeout", n.Why)
		require.Equal(t, "acme has 5 new dead letters (exhausted 3, permanent 2), the last because 504 Gateway Timeout", n.String())

		buried(t, c, "acme", 15, 20, deliver.ReasonPermanent, time.Now())
		look("marker-2")
		require.Len(t, of("acme"), 1, "once an hour, of two that watch")
		p.exec(t, `UPDATE retrip_destination SET alerted_at = alerted_at - 3600000 WHERE id = 'acme'`)
		until(t, "the next hour's", func() bool { return len(of("acme")) > 1 })
		look("marker-3")
		require.Len(t, of("acme"), 2)
		require.Equal(t, 10, of("acme")[1].Dead)
		for _, marker := range []string{"marker", "marker-2", "marker-3"} {
			require.Len(t, of(marker), 1, marker)
		}
	})
}

func TestANoticeIsGivenAgainUntilItIsTaken(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		var first, second atomic.Value
		var calls atomic.Int32
		deaf := deliver.NotifierFunc(func(_ context.Context, n deliver.Notice) error {
			first.Store(n)
			if calls.Add(1) == 1 {
				panic("deaf")
			}
			return errors.New("deaf")
		})
		one := deliver.WithBreaker(deliver.Breaker{Failures: 1, Pauses: []time.Duration{time.Hour}})
		c := p.open(t, one, deliver.WithNotifier(deaf))
		put(t, c, "acme", "http://127.0.0.1:1")
		require.NoError(t, c.Start(t.Context()))
		send(t, c, "one", "acme")
		until(t, "the deaf", func() bool { return calls.Load() == 2 })
		require.NoError(t, c.Close())

		// Another process takes it over.
		p.wake(t)
		heard := deliver.NotifierFunc(func(_ context.Context, n deliver.Notice) error { second.Store(n); return nil })
		c = p.open(t, one, deliver.WithNotifier(heard))
		require.NoError(t, c.Start(t.Context()))
		until(t, "the next", func() bool { return second.Load() != nil })
		require.Equal(t, first.Load(), second.Load(), "with the same id")
	})
}

func TestTheWebhookNotifierSigns(t *testing.T) {
	t.Parallel()
	key := secret()
	wh, err := standardwebhooks.NewWebhook(key)
	require.NoError(t, err)
	answer := http.StatusOK
	r := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(answer) })
	n := deliver.Notice{ID: "notice-1", Kind: deliver.BreakerOpened, Destination: "acme", Trip: 1, Trips: 4, Until: time.Now().Add(time.Hour).UTC().Round(0)}
	notifier := deliver.WebhookNotifier(nil, r.URL+"/hook?token=hush", key)
	for range 2 {
		require.NoError(t, notifier.Notify(t.Context(), n))
	}
	for _, got := range r.all() {
		require.Equal(t, "notice-1", got.id)
		require.NoError(t, wh.Verify(got.body, got.header))
		var back deliver.Notice
		require.NoError(t, json.Unmarshal(got.body, &back))
		require.Equal(t, n, back)
	}
	answer = http.StatusBadGateway
	require.EqualError(t, notifier.Notify(t.Context(), n), "the notifier answered 502 Bad Gateway")
	r.Close()
	err = notifier.Notify(t.Context(), n)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hush")
	require.Panics(t, func() { deliver.WebhookNotifier(nil, r.URL, "whsec_c2hvcnQ=") })
}

func TestAlertsThatMakeNoSensePanic(t *testing.T) {
	t.Parallel()
	for _, a := range []deliver.Alert{
		{}, {Dead: -1, Per: time.Hour, Again: time.Hour}, {Dead: 1, Per: time.Hour}, {Dead: 1, Again: time.Hour}, {Dead: 1, Per: -1, Again: 1},
	} {
		require.Panics(t, func() { deliver.WithAlert(a) }, "%+v", a)
	}
	require.Equal(t, deliver.Alert{Dead: 20, Per: time.Hour, Again: time.Hour}, deliver.DefaultAlert())
}
