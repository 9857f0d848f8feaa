package statusz_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/statusz"
	"github.com/stretchr/testify/require"
)

// An event is one of a stream.
type event struct {
	Parts map[string]string   `json:"parts"`
	Order map[string][]string `json:"order"`
}

// A reader is a client of a stream, whose flushes it counts.
type reader struct {
	httptest.ResponseRecorder
	mu     sync.Mutex
	events []event
}

func (r *reader) Write(b []byte) (int, error) {
	var e event
	text, ok := strings.CutPrefix(string(b), "data: ")
	if !ok || !strings.HasSuffix(text, "\n\n") || json.Unmarshal([]byte(text), &e) != nil {
		panic("not one event: " + string(b))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	return len(b), nil
}

// take returns the events since the last time.
func (r *reader) take() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.events
	r.events = nil
	return all
}

func TestAStreamTellsWhatHasChanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.New(play(200), retrip.WithRetryQuota(nil))
		p := statusz.Handler(rt)
		get(t, rt, "http://a.example/")
		get(t, rt, "http://b.example/")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := &reader{ResponseRecorder: *httptest.NewRecorder()}
		ended := false
		go func() {
			p.ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/?stream", nil).WithContext(ctx))
			ended = true
		}()
		synctest.Wait()
		require.Equal(t, "text/event-stream", r.Header().Get("Content-Type"))
		require.Equal(t, "no", r.Header().Get("X-Accel-Buffering"))
		require.True(t, r.Flushed)
		first := r.take()
		require.Len(t, first, 1)
		rows := first[0].Order["t0-rows"]
		require.Len(t, rows, 2)
		require.Len(t, first[0].Parts, 4, "the clock, the charts and two rows")
		require.Contains(t, first[0].Parts[rows[0]], "a.example")
		require.Contains(t, first[0].Parts["t0-charts"], "<b>2</b> requests")

		time.Sleep(time.Second)
		synctest.Wait()
		second := r.take()
		require.Len(t, second, 1)
		require.Equal(t, []string{"at"}, keys(second[0].Parts), "nothing else has changed")
		require.Empty(t, second[0].Order)

		get(t, rt, "http://b.example/")
		time.Sleep(time.Second)
		synctest.Wait()
		third := r.take()[0]
		require.ElementsMatch(t, []string{"at", "t0-charts", rows[1]}, keys(third.Parts))
		require.Empty(t, third.Order)

		get(t, rt, "http://aa.example/")
		time.Sleep(time.Second)
		synctest.Wait()
		fourth := r.take()[0]
		require.Len(t, fourth.Order["t0-rows"], 3)
		require.Equal(t, []string{rows[0], rows[1]}, []string{fourth.Order["t0-rows"][0], fourth.Order["t0-rows"][2]})
		require.ElementsMatch(t, []string{"at", "t0-charts", fourth.Order["t0-rows"][1]}, keys(fourth.Parts))

		cancel()
		synctest.Wait()
		require.True(t, ended)
	})
}

func keys(m map[string]string) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	return all
}

// A row that leaves the table and comes back is sent again: the client has dropped it.
func TestAStreamFollowsItsQuery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := play(503)
		breaker := retrip.DefaultBreaker()
		breaker.Failures = 1
		breaker.Cooldowns = []time.Duration{10 * time.Second}
		rt := retrip.New(base, retrip.WithMaxAttempts(1), retrip.WithBreaker(&breaker))
		p := statusz.Handler(rt)
		r := &reader{ResponseRecorder: *httptest.NewRecorder()}
		ctx, cancel := context.WithCancel(t.Context())
		go p.ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/?stream&state=open", nil).WithContext(ctx))
		defer synctest.Wait()
		defer cancel()
		synctest.Wait()
		require.Equal(t, map[string][]string{"t0-rows": {}}, r.take()[0].Order)
		trip := func() event {
			base.then(503)
			get(t, rt, "http://a.example/")
			time.Sleep(time.Second)
			synctest.Wait()
			all := r.take()
			return all[len(all)-1]
		}
		one := trip()
		require.Len(t, one.Order["t0-rows"], 1)
		id := one.Order["t0-rows"][0]
		require.Contains(t, one.Parts, id)
		base.then(200)
		time.Sleep(20500 * time.Millisecond)
		get(t, rt, "http://a.example/")
		get(t, rt, "http://a.example/")
		r.take()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{}, r.take()[0].Order["t0-rows"])
		again := trip()
		require.Equal(t, []string{id}, again.Order["t0-rows"])
		require.Contains(t, again.Parts, id)
	})
}

// plain is a ResponseWriter and nothing more.
type plain struct{ http.ResponseWriter }

func TestAServerThatCannotStreamSaysSo(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	statusz.Handler().ServeHTTP(plain{w}, httptest.NewRequest(http.MethodGet, "/?stream", nil))
	require.Equal(t, 501, w.Code)
	require.Equal(t, "text/plain; charset=utf-8", w.Header().Get("Content-Type"))
}

func TestAnOpenPageHoldsUpNoShutdownAndOutlivesTheWriteTimeout(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: statusz.Handler(retrip.New(nil)), WriteTimeout: 500 * time.Millisecond}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	for range 2 {
		resp, err := http.Get("http://" + listener.Addr().String() + "/?stream")
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		lines := bufio.NewScanner(resp.Body)
		for n := 0; n < 3; { // 2 s
			require.True(t, lines.Scan(), lines.Err())
			if strings.HasPrefix(lines.Text(), "data: ") {
				n++
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, server.Shutdown(ctx))
	require.ErrorIs(t, <-served, http.ErrServerClosed)
}
