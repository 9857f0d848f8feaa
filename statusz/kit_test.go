package statusz_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/statusz"
	"github.com/stretchr/testify/require"
)

// A script answers each attempt with the next status, or an error if that is 0; the last
// one repeats.
type script struct {
	mu       sync.Mutex
	statuses []int
}

var errDown = errors.New("dial tcp: a text that nobody needs to see")

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.statuses[0]
	if len(s.statuses) > 1 {
		s.statuses = s.statuses[1:]
	}
	if status == 0 {
		return nil, errDown
	}
	return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: req}, nil
}

func play(statuses ...int) *script { return &script{statuses: statuses} }

// then replaces what comes next.
func (s *script) then(statuses ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses = statuses
}

// every is a Backoff of one pause.
func every(d time.Duration) retrip.Option { return retrip.WithBackoff(retrip.Constant(d)) }

func get(t testing.TB, rt http.RoundTripper, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if resp, err := rt.RoundTrip(req); err == nil {
		require.NoError(t, resp.Body.Close())
	}
}

// ask returns the page's answer.
func ask(p http.Handler, query string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/retrip"+query, nil))
	return w
}

// only returns the one host of the one Transport.
func only(t testing.TB, p *statusz.Page) statusz.Host {
	t.Helper()
	s := p.Snapshot()
	require.Len(t, s.Transports, 1)
	require.Len(t, s.Transports[0].Hosts, 1)
	return s.Transports[0].Hosts[0]
}

// names are those of the hosts, in the order of the rows.
func names(t testing.TB, html string) []string {
	t.Helper()
	var all []string
	for _, part := range strings.Split(html, `<th scope="row">`)[1:] {
		name, _, ok := strings.Cut(part, "</th>")
		require.True(t, ok)
		all = append(all, name)
	}
	return all
}

func hosts(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("host-%05d.example", i)
	}
	return all
}
