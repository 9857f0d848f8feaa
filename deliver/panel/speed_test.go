package panel_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/retrip-go/retrip/deliver/panel"
	"github.com/stretchr/testify/require"
)

// many writes n dead letters of 20 destinations at once, copies of one that was imported
// but for their ids and times: one a second up to now.
func (s store) many(t testing.TB, n int) {
	t.Helper()
	l := failed("model", "model")
	l.Payload = []byte(`{"type":"order.paid","data":{"text":"` + strings.Repeat("x", 400) + `"}}`)
	model := s.bury(t, l)[0]
	const columns = `attempt, max_attempts, attempted_at, created_at, scheduled_at, errors, kind, metadata, priority, queue, state, tags`
	if s.engine == "sqlite" {
		s.exec(t, fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d)
			INSERT INTO river_job (args, finalized_at, %s)
			SELECT jsonb_set(args, '$.event', 'event-' || i, '$.destination', 'shop-' || (i %% 20)),
				strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '-' || (%d - i) || ' seconds'), %s FROM n, river_job WHERE id = %d`, n, columns, n, columns, model))
	} else {
		s.exec(t, fmt.Sprintf(`INSERT INTO river_job (args, finalized_at, %s)
			SELECT args || jsonb_build_object('event', 'event-' || i, 'destination', 'shop-' || (i %% 20)),
				now() - make_interval(secs => %d - i), %s FROM generate_series(1, %d) AS n(i), river_job WHERE id = %d`, columns, n, columns, n, model))
	}
	s.exec(t, fmt.Sprint("DELETE FROM river_job WHERE id = ", model))
	// Half as many were delivered after them.
	s.exec(t, fmt.Sprintf(`INSERT INTO river_job (args, finalized_at, state, attempt, max_attempts, attempted_at, created_at, scheduled_at, errors, kind, metadata, priority, queue, tags)
		SELECT args, finalized_at, 'completed', attempt, max_attempts, attempted_at, created_at, scheduled_at, errors, kind, metadata, priority, queue, tags
		FROM river_job WHERE state = 'discarded' ORDER BY id LIMIT %d`, n/2))
	if s.engine == "postgres" {
		s.exec(t, "VACUUM ANALYZE river_job") // as autovacuum does; of SQLite nobody takes such care
	}
}

// lookups are the pages that must be quick, whatever lies in the database.
func lookups(n int) map[string]string {
	return map[string]string{
		"overview": "/", "list": "/dead", "oldest": fmt.Sprint("/dead?before=", n/10), "destination": "/dead?destination=shop-7", "event": fmt.Sprint("/dead?event=event-", n/2),
		"since": "/dead?since=10m", "nothing": "/dead?destination=nobody", "deliveries": fmt.Sprint("/event?id=event-", n/2), "reason": "/dead?reason=gone",
	}
}

func BenchmarkPanelWith100000DeadLetters(b *testing.B) {
	const n = 100_000
	for _, engine := range []string{"sqlite", "postgres"} {
		b.Run("engine="+engine, func(b *testing.B) {
			s := open(b, engine)
			s.put(b, "shop-7", "https://shop.example/")
			s.many(b, n)
			h := panel.Handler(s, panel.WithAuthorize(anyone))
			for name, path := range lookups(n) {
				b.Run("page="+name, func(b *testing.B) {
					var took []time.Duration
					for b.Loop() {
						start := time.Now()
						w := httptest.NewRecorder()
						h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
						require.Equal(b, http.StatusOK, w.Code)
						took = append(took, time.Since(start))
					}
					slices.Sort(took)
					b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
				})
			}
		})
	}
}
