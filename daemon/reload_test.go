package daemon

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/admin"
)

// variants are files that a reload goes between: nodes come, go and are re-wired,
// arguments, pools, VIPs and controls change.
func variants(base string) []string {
	node := func(path, block string) string {
		s := strings.Replace(base, "ct.hit, gre", path, 1)
		return strings.Replace(s, `  node "gre-encap"`, block+`  node "gre-encap"`, 1)
	}
	return []string{
		base,
		node("ct.hit, seen, gre", "  node \"count\" \"seen\" {}\n"),
		node("ct.hit, clamp, gre", "  node \"mss-clamp\" \"clamp\" {}\n"),
		strings.Replace(base, `"conntrack" "ct" {}`, "\"conntrack\" \"ct\" {\n    entries = 262144\n  }", 1),
		strings.Replace(base, `"gre-encap" "gre" {}`, `"gre-encap" "gre" { ttl = 63 }`, 1),
		strings.Replace(base, `  backend "web-3"`, "  backend \"web-4\" { address = \"10.0.1.4\" }\n  backend \"web-3\"", 1),
		strings.Replace(base, `vip "web"`, "vip \"more\" {\n  address = \"203.0.113.81\"\n  pool    = pool.web\n}\nvip \"web\"", 1),
		strings.Replace(base, `graph "edge"`, "health \"tcp\" {}\ngraph \"edge\"", 1),
	}
}

// TestReloadUnderTraffic: the file is cut off at every byte, and changes a hundred
// times a second while it is watched: no packet is lost, no flow moves, and at the
// end what the file says is in force.
func TestReloadUnderTraffic(t *testing.T) {
	base := with(`reload {
  settle = "10ms"
  cache  = ""
}`)
	r := newRig(t, base)
	x := r.traffic(flows(t, 500))
	// Each of these is asked for, so that none is passed over.
	cuts := map[string]int{}
	for n := range len(base) - 1 { // the last byte ends a line that has ended
		r.write(base[:n])
		cuts[r.ReloadFile("test", false).Outcome]++
	}
	if cuts[admin.Wrong] == 0 || cuts[admin.Refused] == 0 || len(cuts) != 2 {
		t.Errorf("outcomes of files that are cut off: %v", cuts)
	}
	all := variants(base)
	rng := rand.New(rand.NewPCG(1, 2))
	last := ""
	long := 2 * time.Second
	if testing.Short() {
		long = 700 * time.Millisecond
	}
	reloads := func() uint64 { return uint64(r.Configuration().Reloads[admin.Reloaded]) }
	begun := time.Now()
	for time.Since(begun) < long || reloads() < 5 && time.Since(begun) < time.Minute {
		time.Sleep(10 * time.Millisecond)
		last = all[rng.IntN(len(all))]
		text := last
		switch rng.IntN(4) {
		case 0:
			text = text[:rng.IntN(len(text))]
		case 1: // as editors do
			if err := os.WriteFile(r.path+"~", []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(r.path+"~", r.path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		r.write(text)
	}
	r.write(last)
	r.until("the last file is in force", func() bool {
		c := r.Configuration()
		return c.Last != nil && (c.Last.Outcome == admin.Reloaded || c.Last.Outcome == admin.Unchanged) && string(r.good().Sources[r.path]) == last
	})
	if n := reloads(); n < 5 {
		t.Errorf("only %d reloads", n)
	}
	x.end()
	t.Logf("%d packets, %v, longest round %v", x.injected, r.Configuration().Reloads, x.longest)
}

func (r *rig) good() Loaded {
	r.shared.RLock()
	defer r.shared.RUnlock()
	return r.config.good
}

// TestReloadHeld: a reload that stands still before any of its steps is as safe as
// one that has ended, for packets, for orders and for whoever looks.
func TestReloadHeld(t *testing.T) {
	base := with("health \"tcp\" { interval = \"1h\" }")
	next := strings.Replace(variants(base)[1], "\"1h\"", "\"2h\"", 1)
	next = strings.Replace(next, `backend "web-2" {`, `backend "web-2" { drain = true `, 1)
	next = strings.Replace(next, "drain = true  address = \"10.0.1.2\"", "\n    drain   = true\n    address = \"10.0.1.2\"\n ", 1)
	next = strings.Replace(next, "graph \"edge\"", "health \"more\" {}\ngraph \"edge\"", 1)
	r := newRig(t, base)
	steps := []string{}
	r.latch = func(step string) error {
		steps = append(steps, step)
		x := r.traffic(flows(t, 200))
		time.Sleep(20 * time.Millisecond)
		// Whoever looks sees a world, old or new.
		s := admin.StatusOf(r.Daemon)
		if s.Healthy != "ok" || s.Ready != "ok" || len(s.Pools) != 1 || len(s.Pools[0].Backends) != 3 {
			t.Errorf("before %q: %s, %s, %+v", step, s.Healthy, s.Ready, s.Pools)
		}
		if err := r.ChangeBackend("web", "web-3", admin.Change{Weight: new(int)}); err != nil {
			t.Errorf("before %q: %v", step, err)
		}
		if err := r.ChangeBackend("web", "web-3", admin.Change{Restore: true}); err != nil {
			t.Errorf("before %q: %v", step, err)
		}
		x.end()
		return nil
	}
	r.write(next)
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded {
		t.Fatalf("%+v", got)
	}
	want := "addresses, rules, tunnel, build edge, control health tcp, control health more, state, graph edge, admission, end"
	if got := strings.Join(steps, ", "); got != want {
		t.Errorf("steps were %s, want %s", got, want)
	}
	r.latch = nil
	if r.Snapshot().Pools[1].Members[1].Drained != true || r.Stats()[0].Node("seen").Kind != "count" {
		t.Error("the new file is not in force")
	}
}

// TestReloadFails: a reload that fails at any of its steps leaves everything as it
// was: state, graph, controls; and the same reload works afterwards.
func TestReloadFails(t *testing.T) {
	base := with("health \"tcp\" { interval = \"1h\" }\nhealth \"goes\" {}")
	next := strings.Replace(variants(base)[1], "\"1h\"", "\"2h\"", 1)
	next = strings.Replace(next, "health \"goes\" {}", "health \"comes\" {}", 1)
	next = strings.Replace(next, "vip \"web\"", "vip \"more\" {\n  address = \"203.0.113.90\"\n  pool    = pool.web\n}\nvip \"web\"", 1)
	r := newRig(t, base)
	var steps []string
	r.latch = func(step string) error { steps = append(steps, step); return nil }
	world := func() string {
		s := r.Snapshot()
		var nodes []string
		for _, n := range r.Stats()[0].Nodes {
			nodes = append(nodes, n.Name)
		}
		var controls []string
		for _, c := range r.running() {
			controls = append(controls, c.key())
		}
		return fmt.Sprint(len(s.VIPs), nodes, controls)
	}
	was := world()
	r.write(next)
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded || world() == was {
		t.Fatalf("%+v", got)
	}
	is := world()
	r.write(base)
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded || world() != was {
		t.Fatalf("%+v: %s, want %s", got, world(), was)
	}
	steps = slices.Compact(slices.Sorted(slices.Values(steps)))
	if len(steps) < 8 {
		t.Fatalf("steps are %q", steps)
	}
	for _, at := range steps {
		r.latch = func(step string) error {
			if step == at {
				return errors.New("a test does not let it")
			}
			return nil
		}
		r.write(next)
		x := r.traffic(flows(t, 100))
		got := r.ReloadFile("test", false)
		x.end()
		if at == "control health goes" { // on the way back only
			if got.Outcome != admin.Reloaded {
				t.Fatalf("%+v", got)
			}
			r.latch = nil
			r.write(base)
			r.ReloadFile("test", false)
			continue
		}
		if got.Outcome != admin.Failed || !strings.Contains(got.Error, "does not let it") || world() != was {
			t.Errorf("at %q: %s %s; %s, want %s", at, got.Outcome, got.Error, world(), was)
		}
	}
	r.latch = nil
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded || world() != is {
		t.Errorf("%+v: %s, want %s", got, world(), is)
	}
}

// TestReloadThatTheSystemRefuses: a port that is taken, a file that cannot be made.
func TestReloadThatTheSystemRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := newRig(t, plain)
	for want, text := range map[string]string{
		"address already in use": with(fmt.Sprintf("metrics { listen = %q }", l.Addr())),
		"no such file":           strings.Replace(strings.Replace(plain, "gre, tx]", "gre, copy, tx]", 1), `  node "xdp-tx"`, "  node \"sample\" \"copy\" { file = \"/nowhere/x.pcap\" }\n  node \"xdp-tx\"", 1),
	} {
		r.write(text)
		x := r.traffic(flows(t, 100))
		got := r.ReloadFile("test", false)
		x.end()
		if got.Outcome != admin.Failed || !strings.Contains(got.Error, want) {
			t.Errorf("%+v, want %q", got, want)
		}
		if n := r.Configuration().Reloads[admin.Failed]; n == 0 {
			t.Error("it is not counted")
		}
	}
}

// TestReloadRefused: what needs a restart is named, with the safe order.
func TestReloadRefused(t *testing.T) {
	r := newRig(t, plain)
	r.write(strings.Replace(plain, "graph \"edge\" {", "graph \"edge\" {\n  rings = 4096", 1))
	got := r.ReloadFile("test", false)
	if got.Outcome != admin.Refused || !strings.Contains(got.Error, "rings changes from 2048 to 4096: drain the node, restart the daemon, undrain") || len(got.Plan) != 1 || got.Plan[0].Class != "restart" {
		t.Errorf("%+v", got)
	}
	if !r.logged("not reloaded", "rings changes") {
		t.Errorf("the log says %v", r.said())
	}
	// A plan alone says the same and counts nothing.
	if got := r.ReloadFile("test", true); got.Outcome != admin.Planned || len(got.Plan) != 1 {
		t.Errorf("%+v", got)
	}
	if c := r.Configuration(); c.Reloads[admin.Refused] != 1 || c.Last.Outcome != admin.Refused {
		t.Errorf("%+v", c)
	}
}

// TestWrongFile: a file that is wrong changes nothing; the log has the place, status
// and counts say so; and what was good is kept, and run when it is asked for.
func TestWrongFile(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "lib", "last-good.json")
	text := with(fmt.Sprintf("variable \"port\" { default = 80 }\nreload {\n  settle = \"10ms\"\n  cache  = %q\n}", cache))
	text = strings.Replace(text, "ports    = [80]", "ports    = [var.port, tonumber(file(\"port.txt\"))]", 1)
	port := func(r *rig, s string) {
		if err := os.WriteFile(filepath.Join(filepath.Dir(r.path), "port.txt"), []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("LBGRAPH_VAR_port", "8080")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "port.txt"), []byte("81"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, plain)
	port(r, "81")
	r.write(text)
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded {
		t.Fatalf("%+v", got)
	}
	info, err := os.Stat(cache)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info, err)
	}
	good := r.Snapshot().Generation

	bad := strings.Replace(text, "pool.web\n", "pool.wbe\n", 1)
	line := 1 + strings.Count(bad[:strings.Index(bad, "pool.wbe")], "\n")
	r.write(bad)
	at := fmt.Sprintf("%s:%d:14", r.path, line)
	r.until("the change is seen", func() bool { return r.Configuration().Reloads[admin.Wrong] == 1 })
	r.until("the log has it", func() bool {
		return r.logged("error", "Unknown name", at, "pool.wbe") && r.logged("not reloaded", "change of files", "wrong")
	})
	c := admin.StatusOf(r.Daemon).Configuration
	if c.Last.Outcome != admin.Wrong || len(c.Last.Messages) != 1 || c.Last.Messages[0].Line != line || c.Last.Messages[0].Column != 14 || !strings.HasPrefix(c.Last.Error, at) {
		t.Errorf("status says %+v", c.Last)
	}
	if r.Snapshot().Generation != good || r.Healthy() != nil || r.Ready() != nil {
		t.Error("a wrong file changed something")
	}
	// The same text again is no news.
	time.Sleep(50 * time.Millisecond)
	r.write(bad)
	time.Sleep(100 * time.Millisecond)
	if n := r.Configuration().Reloads[admin.Wrong]; n != 1 {
		t.Errorf("it was counted %d times", n)
	}

	// At a start the kept one has all that it was made of, whatever is there now.
	port(r, "nonsense")
	t.Setenv("LBGRAPH_VAR_port", "9999")
	if l := (Source{Path: r.path}).Load(); l.File != nil {
		t.Fatal("the file is right")
	}
	kept, err := LoadSaved(cache)
	if err != nil {
		t.Fatal(err, kept.Diags)
	}
	if p := fmt.Sprint(kept.File.Spec.VIPs[0].Ports); p != "[{8080 8080} {81 81}]" {
		t.Errorf("ports are %s", p)
	}
	second := newRig(t, plain, func(o *Options) {
		o.Loaded, o.LastGood = Source{Path: r.path}.Load(), &kept
	})
	c = second.Configuration()
	if !c.LastGood || c.Last == nil || c.Last.Outcome != admin.Wrong || len(c.Last.Messages) == 0 {
		t.Errorf("%+v", c)
	}
	second.t, second.path = t, r.path
	port(r, "82")
	second.write(text)
	second.until("the file is taken once it is right", func() bool { c := second.Configuration(); return !c.LastGood && c.Reloads[admin.Reloaded] == 1 })
	if p := fmt.Sprint(second.Snapshot().VIPs[0].Ports); p != "[{9999 9999} {82 82}]" {
		t.Errorf("ports are %s", p)
	}
	for path, text := range map[string]string{filepath.Join(dir, "none"): "", filepath.Join(dir, "no.json"): "{", filepath.Join(dir, "empty.json"): "{}"} {
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want := path + " is no configuration that was kept"
		if text == "" {
			want = "no such file"
		}
		if _, err := LoadSaved(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestLogOfAReloadIsBounded: a reload with a great many changes, or mistakes, writes some
// of them and says how many there are besides.
func TestLogOfAReloadIsBounded(t *testing.T) {
	many := func(pool string) string {
		var b strings.Builder
		for i := range mostLines + 7 {
			fmt.Fprintf(&b, "vip \"v%d\" {\n  address = \"203.0.113.%d\"\n  pool    = pool.%s\n}\n", i, 100+i, pool)
		}
		return with(b.String())
	}
	r := newRig(t, plain)
	r.write(many("none"))
	got := r.ReloadFile("test", false)
	if got.Outcome != admin.Wrong || len(got.Messages) != mostLines+7 {
		t.Fatalf("%s with %d messages", got.Outcome, len(got.Messages))
	}
	if n := r.logs.FilterMessage("Unknown name").Len(); n != mostLines || !r.logged("and 7 messages more on the file") {
		t.Errorf("%d messages are logged; the last lines are %v", n, r.said()[max(0, len(r.said())-2):])
	}
	r.write(many("web"))
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded || len(got.Plan) != mostLines+7 {
		t.Fatalf("%s with %d changes", got.Outcome, len(got.Plan))
	}
	if n := r.logs.FilterMessage("change").Len(); n != mostLines || !r.logged("and 7 changes more") || !r.logged("reloaded", fmt.Sprint("changes:", mostLines+7)) {
		t.Errorf("%d changes are logged; the last lines are %v", n, r.said()[max(0, len(r.said())-2):])
	}
}

// TestUnchangedIsNotCounted: a reload that finds nothing new has no outcome of its own on
// the page, also where it finds that the last good configuration is what the file says.
func TestUnchangedIsNotCounted(t *testing.T) {
	r := newRig(t, plain)
	since := r.Configuration().Since
	for range 2 {
		r.write(plain + "# more\n")
		if got := r.ReloadFile("test", false); got.Outcome != admin.Unchanged {
			t.Fatalf("%+v", got)
		}
	}
	if got := r.Configuration().Since; !got.Equal(since) {
		t.Errorf("what is in force since %v is now in force since %v", since, got)
	}
	again := newRig(t, plain, func(o *Options) {
		good := o.Loaded
		o.LastGood = &good
	})
	if c := again.Configuration(); !c.LastGood {
		t.Errorf("%+v", c)
	}
	if got := again.ReloadFile("test", false); got.Outcome != admin.Unchanged {
		t.Fatalf("%+v", got)
	}
	for _, x := range []*rig{r, again} {
		c := x.Configuration()
		if got := fmt.Sprint(c.Reloads); got != "map[failed:0 refused:0 reloaded:0 wrong:0]" || c.LastGood || c.Last.Outcome != admin.Unchanged {
			t.Errorf("%s, %+v", got, c)
		}
		if got := scrape(t, x.Daemon); got["lbgraph_configuration_valid"] != 1 || got["lbgraph_configuration_last_good"] != 0 {
			t.Errorf("valid is %v, last good %v", got["lbgraph_configuration_valid"], got["lbgraph_configuration_last_good"])
		}
	}
}

// TestInventory: pools and VIPs of a file beside it come and go with it, whatever way it is
// written, without a reload block; and all or nothing of both files.
func TestInventory(t *testing.T) {
	text := with("inventory \"racks\" {\n  file   = \"services.json\"\n  settle = \"10ms\"\n}")
	const one = `{"pool": {"api": {"backend": {"a": {"address": "10.0.9.1"}}}}, "vip": {"api": {"address": "203.0.113.90", "pool": "api"}}}`
	r := newRig(t, plain)
	services := filepath.Join(filepath.Dir(r.path), "services.json")
	put := func(s string) {
		t.Helper()
		if err := os.WriteFile(services+".new", []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(services+".new", services); err != nil {
			t.Fatal(err)
		}
	}
	put(one)
	r.write(text)
	x := r.traffic(flows(t, 100))
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded || len(r.Snapshot().VIPs) != 2 {
		t.Fatalf("%+v", got)
	}
	put(strings.Replace(one, "203.0.113.90", "203.0.113.91", 1))
	r.until("the inventory's change", func() bool { return r.Snapshot().VIPs[1].Prefix.Addr().String() == "203.0.113.91" })
	r.until("the log has it", func() bool {
		return r.logged("reloaded", `change of inventory "racks"`) && r.logged("change", "vip api", "203.0.113.91")
	})
	for name, bad := range map[string]string{
		"cut off":         one[:50],
		"a name of both":  strings.Replace(one, `"api": {"backend"`, `"web": {"backend"`, 1),
		"an unknown pool": strings.Replace(one, `"pool": "api"`, `"pool": "none"`, 1),
	} {
		n := r.Configuration().Reloads[admin.Wrong]
		put(bad)
		r.until(name, func() bool { return r.Configuration().Reloads[admin.Wrong] == n+1 })
		if m := r.Configuration().Last.Messages; len(m) == 0 || m[0].File != services {
			t.Errorf("%s: %+v", name, m)
		}
		if len(r.Snapshot().VIPs) != 2 {
			t.Errorf("%s: %d VIPs", name, len(r.Snapshot().VIPs))
		}
	}
	n := r.Configuration().Reloads[admin.Wrong]
	if err := os.Remove(services); err != nil {
		t.Fatal(err)
	}
	r.until("a file that is gone", func() bool { return r.Configuration().Reloads[admin.Wrong] == n+1 })
	put(one)
	r.until("a file that is back", func() bool { return r.Snapshot().VIPs[1].Prefix.Addr().String() == "203.0.113.90" })
	x.end()
}

// TestReloadOfControls: watching controls come, change and go, also by the reload that
// they cause themselves.
func TestReloadOfControls(t *testing.T) {
	block := func(settle string) string {
		return with(fmt.Sprintf("reload {\n  settle = %q\n  cache  = \"\"\n}\nlog { level = \"warn\" }", settle))
	}
	var levels []string
	r := newRig(t, block("10ms"), func(o *Options) {
		o.SetLog = func(format, level string) error { levels = append(levels, format+" "+level); return nil }
	})
	r.write(block("11ms"))
	r.until("its own change", func() bool { return r.Configuration().Reloads[admin.Reloaded] == 1 })
	r.write(plain)
	r.until("its own end", func() bool { return r.Configuration().Reloads[admin.Reloaded] == 2 })
	r.write(block("10ms"))
	time.Sleep(100 * time.Millisecond)
	if n := r.Configuration().Reloads[admin.Reloaded]; n != 2 {
		t.Errorf("%d reloads: it still watches", n)
	}
	if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded {
		t.Errorf("%+v", got)
	}
	r.background.Wait()
	if got := strings.Join(levels, ", "); got != "console warn, console info, console warn" {
		t.Errorf("the log was set to %s", got)
	}
}
