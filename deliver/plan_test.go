package deliver_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/retrip-go/retrip/deliver"
	"github.com/stretchr/testify/require"
)

// A planner explains queries on a database.
type planner func(query string, values ...any) string

// TestListsGoByAnIndex looks at the plans that the engines make for what the panel and the
// command show: none of them may read all jobs, whatever is known of the values.
func TestListsGoByAnIndex(t *testing.T) {
	onEngines(t, func(t *testing.T, p place) {
		c := p.open(t)
		put(t, c, "shop-1", "https://shop.example/")
		letter := `{"event":"model","destination":"model","payload":"e30=","max_attempts":3,"attempts":[{"number":1,"status":404}],"reason":"permanent"}`
		_, err := c.Dead().Import(t.Context(), strings.NewReader(letter))
		require.NoError(t, err)
		explain := p.fill(t)
		all := map[string]deliver.Filter{
			"all": {}, "a page": {Before: 2000}, "a destination": {Destination: "shop-1"}, "a page of it": {Destination: "shop-1", Before: 2000},
			"an event": {EventID: "event-1500"}, "since": {Since: time.Now().Add(-time.Minute)}, "a time": {Since: time.Now().Add(-time.Hour), Until: time.Now()},
			"the replayed too": {Replayed: true}, "everything": {Destination: "shop-1", EventID: "event-1", Since: time.Now(), Until: time.Now(), Before: 9},
		}
		for name, f := range all {
			f.Limit = 51
			query, values := deliver.DeadIDs(c.Dead(), f)
			require.Regexp(t, `\bretrip_(dead|dead_by_id|dead_of|event)\b`, explain(query, values...), name)
			plan := explain(`SELECT * FROM river_job WHERE id IN (`+query+`) ORDER BY id DESC LIMIT 51`, values...)
			require.NotRegexp(t, readsAll, plan, name)
		}
		plan := explain(`SELECT * FROM river_job WHERE id IN (` + deliver.NextIDs(c.Dead(), 51) + `) ORDER BY scheduled_at ASC NULLS LAST, id ASC LIMIT 51`)
		require.Regexp(t, `\bretrip_pending\b`, plan)
		require.NotRegexp(t, readsAll, plan)
		// And so that this is known to find something:
		require.Regexp(t, readsAll, explain(`SELECT * FROM river_job WHERE max_attempts = 7`))
	})
}

// readsAll is what a plan says of a table that is read from end to end, by whatever order.
const readsAll = `SCAN river_job *(\n|$)|Seq Scan on river_job|Index Scan (Backward )?using river_job_pkey on river_job .*\n *Filter`

// fill makes 3,000 dead letters of the only one, half as many deliveries that came after
// them, and the explainer.
func (p place) fill(t *testing.T) planner {
	ctx := context.Background()
	const rest = `attempt, max_attempts, attempted_at, created_at, scheduled_at, finalized_at, errors, kind, metadata, priority, queue, tags`
	const later = `INSERT INTO river_job (args, state, ` + rest + `) SELECT args, 'completed', ` + rest + ` FROM river_job ORDER BY id LIMIT 1500`
	if p.engine == "sqlite" {
		db, err := sql.Open("sqlite", "file:"+p.dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		_, err = db.Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 3000) INSERT INTO river_job (args, state, ` + rest + `)
			SELECT jsonb_set(args, '$.event', 'event-' || i, '$.destination', 'shop-' || (i % 20)), state, ` + rest + ` FROM n, river_job WHERE args->>'event' = 'model'`)
		require.NoError(t, err)
		_, err = db.Exec(later)
		require.NoError(t, err)
		return func(query string, values ...any) string {
			rows, err := db.Query("EXPLAIN QUERY PLAN "+query, values...)
			require.NoError(t, err)
			defer func() { _ = rows.Close() }()
			var plan bytes.Buffer
			for rows.Next() {
				var id, parent, unused int
				var line string
				require.NoError(t, rows.Scan(&id, &parent, &unused, &line))
				fmt.Fprintln(&plan, line)
			}
			require.NoError(t, rows.Err())
			return plan.String()
		}
	}
	conn, err := pgx.Connect(ctx, p.dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(ctx) })
	for _, statement := range []string{
		`INSERT INTO river_job (args, state, ` + rest + `)
			SELECT args || jsonb_build_object('event', 'event-' || i, 'destination', 'shop-' || (i % 20)), state, ` + rest + ` FROM generate_series(1, 3000) AS n(i), river_job WHERE args->>'event' = 'model'`,
		later, `VACUUM ANALYZE river_job`,
		`SET plan_cache_mode = force_generic_plan`, // as it is after some runs of a prepared statement
	} {
		_, err := conn.Exec(ctx, statement)
		require.NoError(t, err)
	}
	prepared := 0
	return func(query string, values ...any) string {
		prepared++
		var args []string
		for _, v := range values {
			if at, ok := v.(time.Time); ok {
				v = at.Format(time.RFC3339Nano)
			}
			args = append(args, fmt.Sprintf("'%v'", v))
		}
		run := fmt.Sprintf("EXPLAIN EXECUTE p%d", prepared)
		if len(args) > 0 {
			run += "(" + strings.Join(args, ", ") + ")"
		}
		_, err := conn.Exec(ctx, fmt.Sprintf("PREPARE p%d AS %s", prepared, query))
		require.NoError(t, err)
		rows, err := conn.Query(ctx, run, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return strings.Join(lines, "\n")
	}
}
