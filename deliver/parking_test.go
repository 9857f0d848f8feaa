package deliver_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

// parker is a client with a Transport that gives up after three quick attempts.
func (p place) parker(t testing.TB, opts ...deliver.Option) (client, *http.Client) {
	c := p.open(t, opts...)
	parking := c.(interface {
		Parking(fields ...string) *retrip.Trace
	}).Parking("X-Tenant")
	rt := retrip.New(nil, retrip.WithBackoff(retrip.Constant(time.Millisecond)), retrip.WithMaxAttempts(3), retrip.WithTrace(parking),
		retrip.WithRetryQuota(nil), retrip.WithBreaker(nil))
	t.Cleanup(rt.CloseIdleConnections)
	return c, &http.Client{Transport: rt}
}

func request(t testing.TB, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	require.NoError(t, err)
	return req
}

// parkedOnly returns the only dead letter there is.
func parkedOnly(t testing.TB, c client) deliver.DeadLetter {
	t.Helper()
	all, err := c.Dead().List(t.Context(), deliver.Filter{})
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, deliver.ReasonParked, all[0].Reason)
	require.NotNil(t, all[0].Parked)
	return all[0]
}

func TestAResponseThatIsGivenUpIsParkedAndReplayed(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c, hc := p.parker(t)
		well := 4
		var keys []string
		r := receive(t, func(_ int, w http.ResponseWriter, req *http.Request) {
			keys = append(keys, req.Header.Get("Idempotency-Key")) // one request after another
			if len(keys) < well {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, "not now")
			}
		})
		to, err := url.Parse(r.URL + "/orders?tenant=7#part")
		require.NoError(t, err)
		to.User = url.UserPassword("user", "password-in-url")
		req := request(t, http.MethodPost, to.String(), strings.NewReader("order\x00one"))
		req.Header.Set("Content-Type", "text/plain")
		req.Header.Set("X-Tenant", "seven")
		req.Header.Set("X-Other", "gone")
		req.Header.Set("Cookie", "session=cookie-secret")
		req.Header.Set("Proxy-Authorization", "proxy-secret")
		resp, err := hc.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "not now", string(body), "the caller gets the response as ever")

		d := parkedOnly(t, c)
		require.Equal(t, to.Host, d.Destination)
		require.Equal(t, keys[0], d.EventID, "the key that the Transport made")
		require.Equal(t, "order\x00one", string(d.Payload))
		require.Equal(t, deliver.Parked{
			Method: http.MethodPost, URL: r.URL + "/orders?tenant=7",
			Header: http.Header{"Content-Type": {"text/plain"}, "X-Tenant": {"seven"}},
		}, *d.Parked)
		require.Len(t, d.Attempts, 3)
		for i, a := range d.Attempts {
			require.Equal(t, i+1, a.Number)
			require.Equal(t, 503, a.Status)
			require.WithinDuration(t, time.Now(), a.At, time.Minute)
		}
		for _, credential := range []string{"password-in-url", "cookie-secret", "proxy-secret", "gone"} {
			require.Zero(t, p.count(t, `SELECT count(*) FROM river_job WHERE CAST(args->>'parked' AS text) LIKE '%`+credential+`%'`), credential)
		}

		require.NoError(t, c.Start(t.Context()))
		require.NoError(t, replay(t, c, d.ID, deliver.Replaying{}).Refused)
		until(t, "the replay", func() bool { return p.count(t, delivered) == 1 })
		calls := r.all()
		require.Len(t, calls, 4)
		require.Equal(t, []string{keys[0], keys[0], keys[0], keys[0]}, keys)
		require.Equal(t, "order\x00one", string(calls[3].body))
		require.Equal(t, "seven", calls[3].header.Get("X-Tenant"))
		require.Equal(t, "text/plain", calls[3].header.Get("Content-Type"))
	})
}

func TestWhatIsParkedSaysWhatIsLost(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c, hc := p.parker(t, deliver.WithMaxPayload(10))
		closed := receive(t, nil)
		closed.Close()
		once := io.NopCloser(strings.NewReader("once"))
		unsized := request(t, http.MethodPut, closed.URL, nil)
		unsized.Body, unsized.ContentLength = io.NopCloser(strings.NewReader("01234567890")), -1
		unsized.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("01234567890")), nil }
		failing := request(t, http.MethodPut, closed.URL, strings.NewReader("x"))
		calls := 0
		get := failing.GetBody
		failing.GetBody = func() (io.ReadCloser, error) {
			if calls++; calls > 2 { // the Transport's own
				return nil, fmt.Errorf("gone")
			}
			return get()
		}
		for name, tt := range map[string]struct {
			req     *http.Request
			payload string
			lost    string
		}{
			"no-body":    {request(t, http.MethodGet, closed.URL, nil), "", ""},
			"delete":     {request(t, http.MethodDelete, closed.URL, http.NoBody), "", ""},
			"as-allowed": {request(t, http.MethodPut, closed.URL, strings.NewReader("0123456789")), "0123456789", ""},
			"too-large":  {request(t, http.MethodPut, closed.URL, strings.NewReader("01234567890")), "", "its body of 11 bytes is more than the 10 that are kept"},
			"unsized":    {unsized, "", "its body is more than the 10 bytes that are kept"},
			"once":       {request(t, http.MethodPut, closed.URL, once), "", "its body could be read only once, and was not kept"},
			"failing":    {failing, "", "its body could not be had again"},
		} {
			tt.req.Header.Set("Idempotency-Key", name)
			_, err := hc.Do(tt.req) //nolint:bodyclose // there is none
			require.Error(t, err, name)
			d := letter(t, c, name)
			require.Equal(t, tt.payload, string(d.Payload), name)
			require.Equal(t, tt.lost, d.Parked.Lost, name)
			require.Len(t, d.Attempts, 3, name)
			require.Contains(t, d.LastError(), "refused", name)
			require.Equal(t, tt.req.Method, d.Parked.Method, name)
			r := replay(t, c, d.ID, deliver.Replaying{Force: true})
			if tt.lost == "" {
				require.NoError(t, r.Refused, name)
				continue
			}
			require.Equal(t, &deliver.LostError{ID: d.ID, Why: tt.lost}, r.Refused, name)
			require.Zero(t, r.Delivery)
		}
	})
}

func TestWhatTheCallerEndsOrTheServerRefusesIsNotParked(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c, hc := p.parker(t)
		ctx, cancel := context.WithCancel(t.Context())
		r := receive(t, func(_ int, w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodGet {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			cancel()
			<-req.Context().Done()
		})
		_, err := hc.Do(request(t, http.MethodPut, r.URL, nil).WithContext(ctx)) //nolint:bodyclose // there is none
		require.ErrorIs(t, err, context.Canceled)
		resp, err := hc.Get(r.URL)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Empty(t, list(t, c, deliver.Filter{}))

		// A deadline is no cancellation: the work was wanted.
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		slow := receive(t, func(_ int, _ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
		_, err = hc.Do(request(t, http.MethodPut, slow.URL, strings.NewReader("x")).WithContext(ctx)) //nolint:bodyclose // there is none
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, "x", string(parkedOnly(t, c).Payload))
	})
}

// A replay goes where the request was to go only if deliveries may.
func TestTheReplayOfAParkedRequestIsDialledLikeADelivery(t *testing.T) {
	t.Parallel()
	p := place{"sqlite", t.TempDir() + "/test.db"}
	c, hc := p.parker(t)
	r := receive(t, status(http.StatusServiceUnavailable))
	resp, err := hc.Do(request(t, http.MethodPut, r.URL, nil))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	d := parkedOnly(t, c)
	replay(t, c, d.ID, deliver.Replaying{})
	require.NoError(t, c.Close())
	strict, err := deliver.OpenSQLite(p.dsn, deliver.WithSchedule("", deliver.Schedule{Attempts: 1}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = strict.Close() })
	require.NoError(t, strict.Start(t.Context()))
	until(t, "an attempt", func() bool { return len(mustStatus(t, strict, d.EventID)[1].Attempts) > 0 })
	require.Contains(t, mustStatus(t, strict, d.EventID)[1].LastError(), "its address is not public, and not allowed")
	require.Len(t, r.all(), 3)
}
