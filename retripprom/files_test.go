package retripprom_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/retripprom"
	"github.com/stretchr/testify/require"
)

// exported are the names of what is collected, with their labels.
func exported(t *testing.T) map[string][]string {
	breaker := retrip.DefaultBreaker()
	breaker.Failures = 1
	rt := retrip.New(play(503), retrip.WithBackoff(retrip.Constant(0)), retrip.WithBreaker(&breaker))
	c := retripprom.New()
	c.Watch("t", rt)
	get(t, t.Context(), rt, "h")
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string][]string{}
	for _, f := range families {
		var labels []string
		for _, l := range f.Metric[0].Label {
			labels = append(labels, l.GetName())
		}
		all[f.GetName()] = labels
		if f.Metric[0].Histogram != nil {
			all[f.GetName()+"_bucket"] = append(slices.Clone(labels), "le")
			all[f.GetName()+"_sum"], all[f.GetName()+"_count"] = labels, labels
		}
	}
	return all
}

var (
	metricNames = regexp.MustCompile(`retrip_\w+`)
	selectors   = regexp.MustCompile(`(retrip_\w+)\{([^}]*)\}`)
	matchers    = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	grouped     = regexp.MustCompile(`by \(([^)]*)\)`)
)

// checkExpr fails if an expression names what is not collected.
func checkExpr(t *testing.T, expr string) (used []string) {
	t.Helper()
	all := exported(t)
	used = metricNames.FindAllString(expr, -1)
	require.NotEmpty(t, used, expr)
	for _, name := range used {
		require.Contains(t, all, name, expr)
	}
	for _, m := range selectors.FindAllStringSubmatch(expr, -1) {
		for _, label := range matchers.FindAllStringSubmatch(m[2], -1) {
			require.Contains(t, all[m[1]], label[1], expr)
		}
	}
	for _, m := range grouped.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(m[1], ",") {
			require.True(t, slices.ContainsFunc(used, func(name string) bool {
				return slices.Contains(all[name], strings.TrimSpace(label))
			}), "%s by %s", expr, label)
		}
	}
	return used
}

func TestTheDashboardShowsWhatIsCollected(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("grafana.json")
	require.NoError(t, err)
	var board struct {
		SchemaVersion int
		Templating    struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &board))
	require.GreaterOrEqual(t, board.SchemaVersion, 36)
	var used []string
	ids := map[int]bool{}
	for _, p := range board.Panels {
		require.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			used = append(used, checkExpr(t, target.Expr)...)
		}
	}
	for _, v := range board.Templating.List[1:] {
		checkExpr(t, v.Definition)
	}
	for name := range exported(t) {
		if strings.HasPrefix(name, "retrip_pause_seconds") {
			name = "retrip_pause_seconds_bucket"
		}
		require.Contains(t, used, name, "no panel shows it")
	}
}

func TestTheAlertsAreAboutWhatIsCollected(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	exprs := regexp.MustCompile(`(?m)^ +expr:((?:.*\n)(?: {10,}.*\n)*)`).FindAllStringSubmatch(string(text), -1)
	require.Len(t, exprs, strings.Count(string(text), "- alert:"))
	for _, m := range exprs {
		checkExpr(t, m[1])
	}
}

func TestPrometheusTakesTheAlerts(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		require.NotEqual(t, "required", os.Getenv("RETRIP_TEST_SERVICES"), "there is no promtool")
		t.Skip("SKIPPED: no promtool (Debian's package prometheus), so the rules were not tried")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		out, err := exec.Command(promtool, args...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
}
