package panel_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/retrip-go/retrip/deliver"
	"github.com/retrip-go/retrip/deliver/panel"
	"github.com/stretchr/testify/require"
)

// A store is a deliver.Client on either engine, with its database beside it.
type store struct {
	client
	engine string
	db     *sql.DB   // of SQLite
	pg     *pgx.Conn // of PostgreSQL
}

type client interface {
	panel.Source
	Send(context.Context, deliver.Event) (deliver.Receipt, error)
	Start(context.Context) error
	Close() error
}

// onEngines runs a test on each engine, with a database of its own.
func onEngines(t *testing.T, test func(t *testing.T, s store)) {
	t.Parallel()
	for _, engine := range []string{"sqlite", "postgres"} {
		t.Run("engine="+engine, func(t *testing.T) {
			t.Parallel()
			test(t, open(t, engine))
		})
	}
}

// open opens a new database. PostgreSQL is the one that RETRIP_TEST_POSTGRES names.
func open(t testing.TB, engine string, opts ...deliver.Option) store {
	opts = append([]deliver.Option{
		deliver.WithAllowedNetworks(netip.MustParsePrefix("127.0.0.0/8")),
		deliver.WithSchedule("", deliver.Steps(time.Hour, time.Hour)),
		deliver.WithBreaker(deliver.Breaker{Failures: 3, Pauses: []time.Duration{time.Hour, 2 * time.Hour}}),
		deliver.WithLogger(slog.New(slog.DiscardHandler)),
		deliver.WithPolling(25 * time.Millisecond),
		deliver.WithWorkers(4),
	}, opts...)
	ctx := context.Background()
	s := store{engine: engine}
	if engine == "sqlite" {
		path := filepath.Join(t.TempDir(), "test.db")
		c, err := deliver.OpenSQLite(path, opts...)
		require.NoError(t, err)
		s.client = c
		s.db, err = sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = s.db.Close(), c.Close() })
		return s
	}
	server := os.Getenv("RETRIP_TEST_POSTGRES")
	if server == "" {
		require.NotEqual(t, "required", os.Getenv("RETRIP_TEST_SERVICES"), "there is no PostgreSQL")
		t.Skip("SKIPPED: no PostgreSQL; .ci/services starts one, RETRIP_TEST_POSTGRES names it")
	}
	admin, err := pgx.Connect(ctx, server)
	require.NoError(t, err)
	name := "t" + strings.ToLower(rand.Text())
	_, err = admin.Exec(ctx, "CREATE DATABASE "+name)
	require.NoError(t, err)
	dsn := strings.Replace(server, "/postgres?", "/"+name+"?", 1)
	c, err := deliver.OpenPostgres(ctx, dsn, opts...)
	require.NoError(t, err)
	s.client = c
	s.pg, err = pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, _ = s.pg.Close(ctx), c.Close()
		_, err := admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
		_ = admin.Close(ctx)
	})
	return s
}

// query returns the rows as text.
func (s store) query(t testing.TB, query string) []string {
	t.Helper()
	var all []string
	if s.engine == "sqlite" {
		rows, err := s.db.Query(query)
		require.NoError(t, err)
		defer func() { _ = rows.Close() }()
		columns, err := rows.Columns()
		require.NoError(t, err)
		for rows.Next() {
			values := make([]any, len(columns))
			for i := range values {
				values[i] = new(any)
			}
			require.NoError(t, rows.Scan(values...))
			text := ""
			for _, v := range values {
				text += fmt.Sprint(*v.(*any), " ")
			}
			all = append(all, text)
		}
		require.NoError(t, rows.Err())
		return all
	}
	rows, err := s.pg.Query(context.Background(), query)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		require.NoError(t, err)
		all = append(all, fmt.Sprint(values...))
	}
	require.NoError(t, rows.Err())
	return all
}

func (s store) exec(t testing.TB, query string) {
	t.Helper()
	var err error
	if s.engine == "sqlite" {
		_, err = s.db.Exec(query)
	} else {
		_, err = s.pg.Exec(context.Background(), query)
	}
	require.NoError(t, err)
}

// A letter is a line of the file that dead letters are imported from.
type letter struct {
	Event       string            `json:"event"`
	Destination string            `json:"destination"`
	Payload     []byte            `json:"payload"`
	ContentType string            `json:"content_type,omitempty"`
	MaxAttempts int               `json:"max_attempts"`
	Attempts    []deliver.Attempt `json:"attempts"`
	Reason      deliver.Reason    `json:"reason"`
	Died        time.Time         `json:"died"`
	Parked      *deliver.Parked   `json:"parked,omitempty"`
}

// failed is a letter that died after one attempt.
func failed(event, destination string) letter {
	return letter{Event: event, Destination: destination, Payload: []byte(`{"n":1}`), MaxAttempts: 6, Reason: deliver.ReasonPermanent, Died: time.Now(),
		Attempts: []deliver.Attempt{{Number: 1, At: time.Now(), Status: 404, Duration: 12 * time.Millisecond, Answer: "no such hook"}}}
}

// bury imports dead letters and returns their numbers.
func (s store) bury(t testing.TB, letters ...letter) []int64 {
	t.Helper()
	var lines bytes.Buffer
	out := json.NewEncoder(&lines)
	for _, l := range letters {
		require.NoError(t, out.Encode(l))
	}
	n, err := s.Dead().Import(context.Background(), &lines)
	require.NoError(t, err)
	require.Len(t, letters, n)
	all, err := s.Dead().List(context.Background(), deliver.Filter{Limit: n})
	require.NoError(t, err)
	ids := make([]int64, n)
	for i, d := range all {
		ids[n-1-i] = d.ID
	}
	return ids
}

// put adds a destination.
func (s store) put(t testing.TB, id, url string) {
	t.Helper()
	require.NoError(t, s.Destinations().Put(context.Background(), deliver.Destination{ID: id, URL: url}))
}

// anyone may replay.
func anyone(*http.Request) bool { return true }

// discard is for panels whose errors are expected.
func discard() panel.Option { return panel.WithLogger(slog.New(slog.DiscardHandler)) }

// A browser has cookies and goes where it is sent, unless told not to.
type browser struct {
	t    testing.TB
	base string // with a slash
	*http.Client
}

// browse serves a panel under /hooks/.
func browse(t testing.TB, src panel.Source, opts ...panel.Option) *browser {
	mux := http.NewServeMux()
	mux.Handle("/hooks/", http.StripPrefix("/hooks", panel.Handler(src, opts...)))
	return visit(t, mux, "/hooks/")
}

func visit(t testing.TB, h http.Handler, path string) *browser {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return &browser{t, server.URL + path, &http.Client{Jar: jar, Timeout: time.Minute, Transport: server.Client().Transport}}
}

// do sends a request and returns the answer and all its text.
func (b *browser) do(method, path string, form url.Values, header ...string) (*http.Response, string) {
	b.t.Helper()
	base, err := url.Parse(b.base)
	require.NoError(b.t, err)
	to, err := base.Parse(path)
	require.NoError(b.t, err)
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequest(method, to.String(), body)
	require.NoError(b.t, err)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := b.Do(req)
	require.NoError(b.t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	require.NoError(b.t, resp.Body.Close())
	return resp, string(text)
}

// get returns the text of a page that must be there.
func (b *browser) get(path string) string {
	b.t.Helper()
	resp, text := b.do(http.MethodGet, path, nil)
	require.Equal(b.t, http.StatusOK, resp.StatusCode, text)
	return text
}

var (
	tokens = regexp.MustCompile(`name="token" value="([^"]+)"`)
	links  = regexp.MustCompile(`(?:href|action)="([^"]+)"`)
	rows   = regexp.MustCompile(`<th scope="row"><a href="[^"]*dead/(\d+)">`)
)

// first returns what the pattern's group matches first.
func first(t testing.TB, pattern *regexp.Regexp, text string) string {
	t.Helper()
	m := pattern.FindStringSubmatch(text)
	require.NotNil(t, m, "%v is not in:\n%s", pattern, text)
	return m[1]
}

// listed returns the numbers that the page lists.
func listed(text string) []string {
	var all []string
	for _, m := range rows.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}
