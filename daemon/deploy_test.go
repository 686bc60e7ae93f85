package daemon

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lbgraph/lbgraph/control/metrics"
	"github.com/lbgraph/lbgraph/graph"
)

// described answers the labels of every metric that a daemon with all control blocks
// can have, by name. Histograms have their three.
func described(t *testing.T) map[string][]string {
	t.Helper()
	r := newRig(t, everything(t))
	form := regexp.MustCompile(`fqName: "(\w+)", help: .*variableLabels: \{(.*)\}\}`)
	all := map[string][]string{"up": {"job", "instance"}}
	for _, c := range append(r.Collectors(), metrics.Collector(r.Daemon)) {
		ch := make(chan *prometheus.Desc)
		go func() {
			c.Describe(ch)
			close(ch)
		}()
		for d := range ch {
			m := form.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("%s is not understood", d)
			}
			labels := strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })
			for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
				if suffix == "" || strings.HasSuffix(m[1], "_seconds") || strings.HasSuffix(m[1], "_packets") {
					all[m[1]+suffix] = append(slices.Clone(labels), "instance", "job", "le")
				}
			}
		}
	}
	return all
}

var (
	metricName = regexp.MustCompile(`\b(?:lbgraph_\w+|up)\b(?:\{([^}]*)\})?`)
	matcher    = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	grouping   = regexp.MustCompile(`\b(?:by|on)\s*\(([^)]*)\)`)
)

// words are matchers by what nodes tell of themselves.
var words = regexp.MustCompile(`\b(event|reason|outcome|value)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)

// wordsOf answers all values that labels can have which nodes give: what they count,
// why they drop, how sessions end. Values that nodes measure are those of a daemon with
// every stream node.
var wordsOf = func() func(*testing.T) map[string][]string {
	var all map[string][]string
	return func(t *testing.T) map[string][]string {
		if all != nil {
			return all
		}
		all = map[string][]string{}
		for _, k := range graph.Kinds() {
			for _, c := range k.Counters {
				all["event"] = append(all["event"], c.Name)
			}
			for _, o := range k.Outputs {
				all["reason"] = append(all["reason"], o.Name)
			}
		}
		all["reason"] = append(all["reason"], "reload", "no_punt", "unanswered", "no_socket", "no_frame")
		for o := range graph.Outcomes {
			all["outcome"] = append(all["outcome"], graph.Outcome(o).String())
		}
		r, _, _ := newShop(t)
		for _, s := range r.StreamStats() {
			for _, n := range s.Nodes {
				for v := range n.Gauges {
					all["value"] = append(all["value"], v)
				}
			}
		}
		full, _ := newFull(t)
		for _, n := range full.Stats()[0].Nodes {
			for v := range n.Gauges {
				all["value"] = append(all["value"], v)
			}
		}
		return all
	}
}()

// checkExpression finds names in an expression that no daemon has.
func checkExpression(t *testing.T, where, expr string, all map[string][]string) {
	t.Helper()
	var labels []string
	named := false
	for _, m := range metricName.FindAllStringSubmatch(expr, -1) {
		name, _, _ := strings.Cut(m[0], "{")
		have, ok := all[name]
		if !ok {
			t.Errorf("%s: there is no metric %s", where, name)
			continue
		}
		named = true
		labels = append(labels, have...)
		for _, l := range words.FindAllStringSubmatch(m[1], -1) {
			for _, w := range strings.Split(l[2], "|") {
				if whole := regexp.MustCompile("^(?:" + w + ")$"); !slices.ContainsFunc(wordsOf(t)[l[1]], whole.MatchString) {
					t.Errorf("%s: %s = %q, which nothing tells of itself", where, l[1], w)
				}
			}
		}
		for _, l := range matcher.FindAllStringSubmatch(m[1], -1) {
			if !slices.Contains(have, l[1]) {
				t.Errorf("%s: %s has no label %s, but %v", where, name, l[1], have)
			}
		}
	}
	if !named {
		t.Errorf("%s has no metric in it: %s", where, expr)
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for _, l := range strings.Split(m[1], ",") {
			if l = strings.TrimSpace(l); !slices.Contains(labels, l) {
				t.Errorf("%s: groups by %s, which its metrics do not have", where, l)
			}
		}
	}
}

func promtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("missing: promtool (Debian's prometheus)")
	}
	return path
}

// TestAlertRules: promtool takes them, they fire when they should, and all names in them
// are those of a real daemon.
func TestAlertRules(t *testing.T) {
	all := described(t)
	b, err := os.ReadFile("../deploy/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(b), ">-\n", "")
	rules := regexp.MustCompile(`(?s)- alert: (\w+)\s+expr: (.*?)\n\s+(?:for|labels):`).FindAllStringSubmatch(text, -1)
	if len(rules) < 29 || len(rules) != strings.Count(text, "- alert:") {
		t.Fatalf("%d rules were read", len(rules))
	}
	for _, r := range rules {
		checkExpression(t, r[1], r[2], all)
	}
	for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
		known := false
		for _, labels := range all {
			known = known || slices.Contains(labels, m[1])
		}
		if !known {
			t.Errorf("an annotation names the label %s, which no metric has", m[1])
		}
	}
	tool := promtool(t)
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command(tool, args...)
		cmd.Dir = "../deploy"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v: %s", args, err, out)
		}
	}
}

// TestDashboard: every panel asks for what a real daemon has, in the language of
// Prometheus, and panels do not lie over each other.
func TestDashboard(t *testing.T) {
	all := described(t)
	b, err := os.ReadFile("../deploy/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct {
				Name  string
				Query any
			}
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	rules := "groups:\n- name: dashboard\n  rules:\n"
	n := 0
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if at[0] >= 24 || taken[at] != "" {
					t.Errorf("%q lies at %v, where %q is", p.Title, at, taken[at])
				}
				taken[at] = p.Title
			}
		}
		for _, q := range p.Targets {
			checkExpression(t, p.Title, q.Expr, all)
			expr := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*").Replace(q.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s: an unknown variable in %s", p.Title, expr)
			}
			n++
			rules += fmt.Sprintf("  - record: panel:%d\n    expr: %s\n", n, strconv.Quote(expr))
		}
	}
	if n < 45 {
		t.Errorf("only %d expressions", n)
	}
	file := filepath.Join(t.TempDir(), "panels.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool(t), "check", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v: %s", err, out)
	}
}

// TestUnit: systemd takes the unit, and finds little that it leaves open.
func TestUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("missing: systemd-analyze (Debian's systemd)")
	}
	b, err := os.ReadFile("../deploy/lbgraph.service")
	if err != nil {
		t.Fatal(err)
	}
	// The program is not installed here.
	text := strings.ReplaceAll(string(b), "/usr/bin/lbgraph", "/bin/true")
	if text == string(b) {
		t.Fatal("the unit does not run /usr/bin/lbgraph")
	}
	unit := filepath.Join(t.TempDir(), "lbgraph.service")
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// What it says about other units of the machine does not matter; it fails on ours.
	out, err := exec.Command(analyze, "verify", "--man=no", unit).CombinedOutput()
	if err != nil || strings.Contains(string(out), "lbgraph.service") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	out, err = exec.Command(analyze, "security", "--offline=true", "--threshold=30", "--no-pager", unit).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
	for _, line := range []string{"Type=notify", "WatchdogSec=5s", "NoNewPrivileges=yes", "CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_BPF CAP_PERFMON"} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}
}
