package retripprom_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/retrip-go/retrip"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func TestTheAlertsUseWhatIsExported(t *testing.T) {
	t.Parallel()
	names := exported(t)
	for _, r := range alerts(t) {
		names.check(t, r.Expr)
		for _, annotation := range []string{"summary", "description"} {
			require.NotEmpty(t, r.Annotations[annotation], r.Alert)
		}
		for _, name := range metricNames.FindAllString(r.Annotations["description"], -1) {
			require.Contains(t, names, name, r.Alert)
		}
		require.NotEmpty(t, r.Labels["severity"], r.Alert)
	}
}

func TestTheDashboardUsesAllThatIsExported(t *testing.T) {
	t.Parallel()
	names := exported(t)
	d := readDashboard(t)
	used := map[string]bool{}
	for _, expr := range d.exprs() {
		for _, name := range names.check(t, expr) {
			used[strings.TrimSuffix(name, "_bucket")] = true
		}
		require.Contains(t, expr, `{job=~"$job", transport=~"$transport", host=~"$host"`, "the variables choose")
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		if v.Type == "query" {
			names.check(t, v.Definition)
			require.Equal(t, ".*", v.AllValue, "%s: a label may be empty", v.Name)
		}
	}
	require.Equal(t, []string{"datasource", "job", "transport", "host"}, variables)
	for name := range names {
		if !strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") {
			require.True(t, used[strings.TrimSuffix(name, "_bucket")], "no panel shows %s", name)
		}
	}
}

func TestTheDashboardIsWellFormed(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	require.GreaterOrEqual(t, d.SchemaVersion, 39, "that of Grafana 11")
	require.Nil(t, d.ID, "which Grafana gives")
	ids := map[int]bool{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "panel %d is there twice", p.ID)
		ids[p.ID] = true
		require.NotEmpty(t, p.Description, p.Title)
		require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, taken[cell], "%s lies over another panel", p.Title)
				taken[cell] = p.Title
			}
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			require.Equal(t, "${datasource}", target.Datasource.UID, p.Title)
			require.False(t, refs[target.RefID], p.Title)
			refs[target.RefID] = true
		}
	}
}

func TestPromtoolTakesTheAlertsAndTheirTests(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "alerts.yml")
	promtool(t, "test", "rules", "alerts_test.yml")
	tests, err := os.ReadFile("alerts_test.yml")
	require.NoError(t, err)
	for _, r := range alerts(t) {
		require.Regexp(t, `alertname: `+r.Alert+`\n\s+exp_alerts:`, string(tests), "no test in which it fires")
		require.Regexp(t, `alertname: `+r.Alert+`}`, string(tests), "no test in which it does not")
	}
}

// Each query is evaluated by Prometheus over one value of every series that a Collector
// exports, and must find something.
func TestEachPanelShowsSomething(t *testing.T) {
	t.Parallel()
	type series struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	type sample struct {
		Labels string  `json:"labels"`
		Value  float64 `json:"value"`
	}
	type query struct {
		Expr    string   `json:"expr"`
		At      string   `json:"eval_time"`
		Samples []sample `json:"exp_samples"`
	}
	var input []series
	for name, labels := range exported(t) {
		values := "2x30" // gauges: the breaker is open
		if strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_bucket") {
			values = "0+60x30"
		}
		pairs := []string{}
		for label, all := range labels {
			value := slices.Sorted(maps.Keys(all))[0]
			if label == "attempt" {
				value = "first"
			}
			pairs = append(pairs, fmt.Sprintf("%s=%q", label, value))
		}
		input = append(input, series{name + "{" + strings.Join(pairs, ",") + "}", values})
	}
	var queries []query
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$transport", "api", "$host", ".*",
		" or vector(0)", "")
	for _, expr := range readDashboard(t).exprs() {
		queries = append(queries, query{"count(" + variables.Replace(expr) + ") > bool 0", "10m", []sample{{"{}", 1}}})
	}
	file := filepath.Join(t.TempDir(), "panels.yml") // JSON is YAML
	b, err := json.Marshal(map[string]any{"tests": []any{map[string]any{
		"interval": "1m", "input_series": input, "promql_expr_test": queries,
	}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, b, 0o600))
	promtool(t, "test", "rules", file)
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	name, err := exec.LookPath("promtool")
	if err != nil {
		require.NotEqual(t, "required", os.Getenv("RETRIP_TEST_SERVICES"), "there is no promtool")
		t.Skip("SKIPPED: no promtool; it is part of Debian's package prometheus")
	}
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "promtool %s:\n%s", strings.Join(args, " "), out)
}

type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) []alert {
	t.Helper()
	b, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	var file struct {
		Groups []struct{ Rules []alert }
	}
	require.NoError(t, yaml.Unmarshal(b, &file))
	require.Len(t, file.Groups, 1)
	require.NotEmpty(t, file.Groups[0].Rules)
	return file.Groups[0].Rules
}

type source struct{ UID string }

type dashboard struct {
	ID            *int
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Definition, AllValue string }
	}
	Panels []struct {
		ID                 int
		Title, Description string
		Datasource         source
		GridPos            struct{ X, Y, W, H int }
		Targets            []struct {
			Expr, RefID string
			Datasource  source
		}
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	b, err := os.ReadFile("grafana.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(b, &d))
	require.NotEmpty(t, d.exprs())
	return d
}

func (d dashboard) exprs() []string {
	var all []string
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	return all
}

// metrics has the names of all series that a Collector exports, their labels and the
// values that those had.
type metrics map[string]map[string]map[string]bool

// exported asks a Collector, and adds what a server does: the labels of the target.
func exported(t *testing.T) metrics {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(everything(t)))
	families, err := r.Gather()
	require.NoError(t, err)
	all := metrics{}
	for _, f := range families {
		names := []string{f.GetName()}
		for _, m := range f.GetMetric() {
			labels := map[string]string{"job": "shop"}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if m.Histogram != nil {
				names = []string{f.GetName() + "_sum", f.GetName() + "_count"}
				all.add(f.GetName()+"_bucket", labels)
				all.add(f.GetName()+"_bucket", map[string]string{"le": "+Inf"})
			}
			for _, name := range names {
				all.add(name, labels)
			}
		}
	}
	for r := retrip.ReasonCancelled; r <= retrip.ReasonQuota; r++ {
		all.add("retrip_give_ups_total", map[string]string{"reason": r.String()})
	}
	return all
}

func (all metrics) add(name string, labels map[string]string) {
	if all[name] == nil {
		all[name] = map[string]map[string]bool{}
	}
	for label, value := range labels {
		if all[name][label] == nil {
			all[name][label] = map[string]bool{}
		}
		all[name][label][value] = true
	}
}

var (
	metricNames = regexp.MustCompile(`\bretrip_\w+`)
	selectors   = regexp.MustCompile(`\b(retrip_\w+)\{([^}]*)\}`)
	matchers    = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	groupings   = regexp.MustCompile(`\b(?:by|on|ignoring|without)\s*\(([^)]*)\)`)
	ofVariable  = regexp.MustCompile(`^label_values\(.*, (\w+)\)$`)
)

// check fails unless each metric of a query is exported, with the labels that it is
// chosen by and that all of them are grouped by; and, where a label is compared with
// one value, unless there is such a value. It returns the names.
func (all metrics) check(t *testing.T, expr string) []string {
	t.Helper()
	names := metricNames.FindAllString(expr, -1)
	require.NotEmpty(t, names, expr)
	groups := groupings.FindAllStringSubmatch(expr, -1)
	groups = append(groups, ofVariable.FindAllStringSubmatch(expr, -1)...)
	for _, name := range names {
		require.Contains(t, all, name, expr)
		for _, g := range groups {
			for label := range strings.SplitSeq(g[1], ",") {
				require.Contains(t, all[name], strings.TrimSpace(label), "%s in %s", name, expr)
			}
		}
	}
	for _, s := range selectors.FindAllStringSubmatch(expr, -1) {
		for _, m := range matchers.FindAllStringSubmatch(s[2], -1) {
			label, op, value := m[1], m[2], m[3]
			require.Contains(t, all[s[1]], label, "%s in %s", s[1], expr)
			if op == "=" || op == "!=" {
				require.Contains(t, all[s[1]][label], value, "%s of %s in %s", label, s[1], expr)
			}
		}
	}
	return names
}
