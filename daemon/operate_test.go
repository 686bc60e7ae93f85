package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/control/bgp"
	"github.com/lbgraph/lbgraph/control/metrics"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// put sends frames through the rig and answers what came out, once all did.
func (r *rig) put(frames [][]byte) (backends map[uint16]netip.Addr) {
	r.t.Helper()
	r.port.port.Inject(0, frames...)
	backends = map[uint16]netip.Addr{}
	n := 0
	r.until(fmt.Sprintf("%d packets come out", len(frames)), func() bool {
		for _, p := range r.port.port.Sent(0) {
			b, port := gone(p.Data)
			backends[port] = b
			n++
		}
		return n == len(frames)
	})
	return backends
}

var web1, web2 = netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("10.0.1.2")

func on(m map[uint16]netip.Addr, b netip.Addr) (n int) {
	for _, x := range m {
		if x == b {
			n++
		}
	}
	return n
}

// TestBackendOrders: old flows stay, new ones go elsewhere; orders are in force when
// they return, and survive a reload by choice.
func TestBackendOrders(t *testing.T) {
	r := newRig(t, plain)
	order := func(c admin.Change) {
		t.Helper()
		if err := r.ChangeBackend("web", "web-1", c); err != nil {
			t.Fatal(err)
		}
	}
	fresh := flows(t, 1500)
	old := fresh[:300]
	was := r.put(old)
	if on(was, web1) == 0 {
		t.Fatal("no flow went to web-1")
	}
	order(admin.Change{Drain: true})
	if is := r.put(old); on(is, web1) != on(was, web1) {
		t.Errorf("%d of %d flows stayed on a backend that is drained", on(is, web1), on(was, web1))
	}
	if is := r.put(fresh[300:600]); on(is, web1) != 0 {
		t.Errorf("%d new flows went to a backend that is drained", on(is, web1))
	}
	// The order outlives a reload, unless it was given until then.
	r.ReloadFile("test", false)
	if m := r.Snapshot().Pools[1].Members[0]; !m.Drained {
		t.Error("a reload ended the drain")
	}
	order(admin.Change{Restore: true})
	order(admin.Change{Drain: true, UntilReload: true})
	r.write(plain + "# more\n")
	r.ReloadFile("test", false)
	if m := r.Snapshot().Pools[1].Members[0]; m.Drained {
		t.Error("a reload did not end the drain")
	}
	if is := r.put(fresh[600:900]); on(is, web1) == 0 {
		t.Error("no new flow goes to web-1 again")
	}
	// Weight.
	order(admin.Change{Weight: new(int)})
	if is := r.put(fresh[900:1200]); on(is, web1) != 0 {
		t.Errorf("%d new flows went to a backend of weight 0", on(is, web1))
	}
	// Flush: what was there selects again, and web-1 takes none.
	order(admin.Change{Flush: true})
	if is := r.put(old); on(is, web1) != 0 {
		t.Errorf("%d flows stayed on a backend that was flushed", on(is, web1))
	}
	// Enable is stronger than the file.
	r.write(strings.Replace(plain, `backend "web-1" { address = "10.0.1.1" }`, "backend \"web-1\" {\n    address = \"10.0.1.1\"\n    drain   = true\n  }", 1))
	order(admin.Change{Restore: true})
	r.ReloadFile("test", false)
	if m := r.Snapshot().Pools[1].Members[0]; !m.Drained {
		t.Error("drain in the file does nothing")
	}
	order(admin.Change{Enable: true})
	if m := r.Snapshot().Pools[1].Members[0]; m.Drained {
		t.Error("enable does nothing")
	}
	// Weight in the file.
	order(admin.Change{Restore: true})
	r.write(strings.Replace(plain, `backend "web-1" { address = "10.0.1.1" }`, "backend \"web-1\" {\n    address = \"10.0.1.1\"\n    weight  = 0\n  }", 1))
	r.ReloadFile("test", false)
	if is := r.put(fresh[1200:]); on(is, web1) != 0 || on(is, web2) == 0 {
		t.Errorf("%d new flows went to a backend of weight 0 in the file, %d to one of 100", on(is, web1), on(is, web2))
	}
	for _, c := range []struct{ pool, name, want string }{
		{"web", "web-9", `pool "web" has no backend "web-9". It has web-1, web-2, web-3`},
		{"wbe", "web-1", `there is no pool "wbe". There are web`},
	} {
		err := r.ChangeBackend(c.pool, c.name, admin.Change{Drain: true})
		var none admin.NotFound
		if !errors.As(err, &none) || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	if !r.logged("a backend is changed by command", "web/web-1", "drained") {
		t.Errorf("the log says %v", r.said())
	}
}

// TestDrain: by command and by file, each with its own end; what comes is forwarded.
func TestDrain(t *testing.T) {
	r := newRig(t, plain)
	ready := func(want string) {
		t.Helper()
		err := r.Ready()
		if got := fmt.Sprint(err); got != want {
			t.Errorf("ready: %s, want %s", got, want)
		}
		if r.Healthy() != nil {
			t.Error(r.Healthy())
		}
		r.put(flows(t, 10))
	}
	ready("<nil>")
	r.SetDrained(true)
	ready("drained by command")
	r.write(with("drain {}"))
	r.ReloadFile("test", false)
	ready("drained by command, file")
	r.SetDrained(false)
	ready("drained by file")
	r.write(with("drain { enabled = false }"))
	r.ReloadFile("test", false)
	ready("<nil>")
	r.write(with("drain {}"))
	r.ReloadFile("test", false)
	ready("drained by file")
	r.write(plain)
	r.ReloadFile("test", false)
	r.background.Wait()
	ready("<nil>")
	// What changes is told, not who joins in.
	for words, want := range map[string]int{"the node is drained": 2, "the node is drained no more": 2} {
		if n := r.logs.FilterMessage(words).Len(); n != want {
			t.Errorf("%q was said %d times, want %d: %v", words, n, want, r.said())
		}
	}
}

// TestStartUndoes: when a control does not start, those that did are stopped, nothing
// runs on, and what was open is free for the next.
func TestStartUndoes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	text := with(fmt.Sprintf("metrics { listen = %q }\nadmin { socket = %q }", address, filepath.Join(dir, "file", "sock")))
	r := &rig{t: t, path: filepath.Join(dir, "lb.hcl")}
	r.write(text)
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	load := Source{Path: r.path}.Load()
	d, err := New(load.File, Options{Loaded: load, Drivers: driversOf(&memDriver{})})
	if err != nil {
		t.Fatal(err)
	}
	conserved(t, d)
	if err := d.Start(t.Context()); err == nil {
		t.Fatal("a socket below a file was opened")
	}
	if c, err := net.Dial("tcp", address); err == nil {
		c.Close()
		t.Error("a control that had started runs on")
	}
	if d.Ready() == nil {
		t.Error("it is ready")
	}
	if got := d.ReloadFile("test", false); got.Outcome != admin.Failed {
		t.Errorf("a reload: %+v", got)
	}
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			b := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, there were %d:\n%s", runtime.NumGoroutine(), before, b[:runtime.Stack(b, true)])
		}
	}
}

// TestDrainIsPassedOn: routes are withdrawn while the node is drained, and only then.
func TestDrainIsPassedOn(t *testing.T) {
	r := newRig(t, everything(t))
	for _, on := range []bool{false, true, false} {
		r.SetDrained(on)
		if s, ok := admin.StatusOf(r.Daemon).Details["bgp"].(bgp.Status); !ok || s.Drained != on {
			t.Errorf("drained %v: bgp says %+v", on, s)
		}
	}
}

// TestDrainReachesNewControls: a reload that brings bgp and a drain together has bgp hear
// of the drain, in whichever order they stand; so does bgp that comes while the node is
// drained by command.
func TestDrainReachesNewControls(t *testing.T) {
	const bare = "bgp {\n  asn       = 65001\n  router_id = \"192.0.2.1\"\n  peer \"tor\" {\n    address = \"127.0.0.9\"\n    asn     = 65002\n    port    = 1\n  }\n}\n"
	for _, c := range []struct{ adds, by string }{
		{bare + "drain {}\n", "file"}, {"drain {}\n" + bare, "file"}, {bare, "command"}, {bare + "drain { enabled = false }\n", ""},
	} {
		t.Run("", func(t *testing.T) { // there is one speaker a process
			r := newRig(t, plain)
			if c.by == "command" {
				r.SetDrained(true)
			}
			r.write(with(c.adds))
			if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded {
				t.Fatalf("%+v", got)
			}
			if s, ok := admin.StatusOf(r.Daemon).Details["bgp"].(bgp.Status); !ok || s.Drained != (c.by != "") {
				t.Errorf("drained by %q, with %q: bgp says %+v", c.by, c.adds, s)
			}
		})
	}
}

// scrape answers all series by name and labels, as the page has them.
func scrape(t *testing.T, d *Daemon) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	q := httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
	metrics.Handler(d).ServeHTTP(w, q)
	if w.Code != http.StatusOK {
		t.Fatal(w.Body.String())
	}
	all := map[string]float64{}
	for line := range strings.Lines(w.Body.String()) {
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			t.Fatal(line)
		}
		all[line[:at]] = v
	}
	return all
}

// TestCountsAreExact: what the page says of VIPs, backends, nodes and reloads is what
// was sent and done.
func TestCountsAreExact(t *testing.T) {
	text := strings.Replace(plain, `vip "web"`, "vip \"more\" {\n  address  = \"203.0.113.81\"\n  protocol = \"udp\"\n  ports    = [\"7-9\"]\n  pool     = pool.web\n}\nvip \"web\"", 1)
	r := newRig(t, text)
	frames := flows(t, 700)
	for i := range 300 {
		frames = append(frames, nodetest.UDP(t, nodetest.Client4, netip.MustParseAddr("203.0.113.81"), uint16(2000+i), 8, 1, 2, 3, 4))
	}
	bad := nodetest.TCP(t, nodetest.Client4, vip80, 9, 81, func(h *layers.TCP) { h.ACK = true })
	r.port.port.Inject(0, bad, bad, bad, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	backends, bytes := map[netip.Addr]int{}, 0
	in := 3*len(bad) + 16
	for _, f := range frames {
		in += len(f)
	}
	n, vips, backendBytes := 0, map[string]int{}, map[netip.Addr]int{}
	r.until("the bad ones are dropped", func() bool { s := r.Stats()[0]; return s.Received == 4 && s.CheckConservation() == nil })
	known := scrape(t, r.Daemon)
	r.port.port.Inject(0, frames...)
	r.until("all come out", func() bool {
		for _, p := range r.port.port.Sent(0) {
			b, _ := gone(p.Data)
			backends[b]++
			backendBytes[b] += len(p.Data)
			bytes += len(p.Data)
			vips[map[byte]string{80: "web", 81: "more"}[p.Data[14+24+19]]] += len(p.Data)
			n++
		}
		return n == len(frames)
	})
	got := scrape(t, r.Daemon)
	want := map[string]int{
		`lbgraph_received_packets_total{graph="edge"}`:                                        1004,
		`lbgraph_received_bytes_total{graph="edge"}`:                                          in,
		`lbgraph_sent_packets_total{graph="edge"}`:                                            1000,
		`lbgraph_sent_bytes_total{graph="edge"}`:                                              bytes,
		`lbgraph_dropped_packets_total{graph="edge",node="vip-classify",reason="wrong_port"}`: 3,
		`lbgraph_dropped_bytes_total{graph="edge",node="vip-classify",reason="wrong_port"}`:   3 * len(bad),
		`lbgraph_vip_sent_packets_total{port="80",protocol="tcp",vip="web"}`:                  700,
		`lbgraph_vip_sent_bytes_total{port="80",protocol="tcp",vip="web"}`:                    vips["web"],
		`lbgraph_vip_sent_packets_total{port="7-9",protocol="udp",vip="more"}`:                300,
		`lbgraph_vip_sent_bytes_total{port="7-9",protocol="udp",vip="more"}`:                  vips["more"],
		`lbgraph_node_events_total{event="inserts",graph="edge",node="ct"}`:                   1000,
		`lbgraph_node_events_total{event="misses",graph="edge",node="ct"}`:                    1000,
		`lbgraph_node_value{graph="edge",node="ct",value="entries"}`:                          1000,
		`lbgraph_node_packets_total{graph="edge",kind="gre-encap",node="gre"}`:                1000,
		`lbgraph_reloads_total{outcome="reloaded"}`:                                           0,
		`lbgraph_table_builds_total`:                                                          1,
		`lbgraph_configuration_valid`:                                                         1,
		`lbgraph_drained`:                                                                     0,
		`lbgraph_pool_backends{pool="web",status="up"}`:                                       3,
		`lbgraph_vector_packets_sum{graph="edge"}`:                                            1004,
		`lbgraph_node_output_packets_total{graph="edge",node="parse",output="next"}`:          1003,
		`lbgraph_node_events_total{event="hits",graph="edge",node="ct"}`:                      0,
	}
	for b, n := range backends {
		want[fmt.Sprintf("lbgraph_backend_sent_packets_total{backend=%q}", b)] = n
		want[fmt.Sprintf("lbgraph_backend_sent_bytes_total{backend=%q}", b)] = backendBytes[b]
	}
	for series, v := range want {
		if x, ok := got[series]; !ok || x != float64(v) {
			t.Errorf("%s is %v (%t), want %d", series, x, ok, v)
		}
	}
	// What a thousand clients send makes no new series.
	for series := range got {
		if _, ok := known[series]; !ok {
			t.Errorf("%s is new", series)
		}
	}
	if got["lbgraph_table_build_seconds_total"] <= 0 {
		t.Error("building the table took no time")
	}
	// Reloads, of each outcome.
	r.write("x")
	r.ReloadFile("test", false)
	got = scrape(t, r.Daemon)
	if got[`lbgraph_reloads_total{outcome="wrong"}`] != 1 || got["lbgraph_configuration_valid"] != 0 {
		t.Error("a wrong file does not show")
	}
	r.write(strings.Replace(text, "backend \"web-3\" {", "backend \"web-9\" {", 1) + "\n")
	r.ReloadFile("test", false)
	got = scrape(t, r.Daemon)
	if got[`lbgraph_reloads_total{outcome="reloaded"}`] != 1 || got["lbgraph_configuration_valid"] != 1 {
		t.Error("a reload does not show")
	}
	// Counts go on over a reload.
	if got[`lbgraph_vip_sent_packets_total{port="80",protocol="tcp",vip="web"}`] != 700 || got[`lbgraph_sent_packets_total{graph="edge"}`] != 1000 {
		t.Error("a reload lost counts")
	}
}

// everything is a file with all control blocks that count.
func everything(t *testing.T) string {
	dir := t.TempDir()
	return strings.Replace(with(fmt.Sprintf(`
health "http" {
  type     = "tcp"
  port     = 1
  interval = "1h"
  timeout  = "100ms"
}
bgp {
  asn       = 65001
  router_id = "192.0.2.1"
  peer "tor" {
    address = "127.0.0.9"
    asn     = 65002
    port    = 1
  }
}
reload { cache = %q }
admin { socket = %q }
metrics { listen = "127.0.0.1:0" }
`, filepath.Join(dir, "good"), filepath.Join(dir, "sock"))), `pool "web" {`, "pool \"web\" {\n  health = health.http", 1)
}

// TestConventions: all metrics of a daemon with every block keep to what Prometheus
// demands of names and help.
func TestConventions(t *testing.T) {
	r := newRig(t, everything(t))
	reg, err := metrics.Registry(r.Daemon)
	if err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	s := admin.StatusOf(r.Daemon)
	if _, ok := s.Details["bgp"]; !ok || len(s.Details) != 2 {
		t.Errorf("details are %v", s.Details)
	}
	if probes, ok := s.Details["health http"].([]Probe); !ok || len(probes) != 3 {
		t.Errorf("probes are %+v", s.Details["health http"])
	}
}

// TestTop: the figures of a busy moment add up.
func TestTop(t *testing.T) {
	r := newRig(t, plain)
	x := r.traffic(flows(t, 100))
	top, err := r.Top(t.Context(), 50*time.Millisecond)
	x.end()
	if err != nil {
		t.Fatal(err)
	}
	g := top.Graphs[0]
	share := 0.0
	for _, n := range g.Nodes {
		share += n.Share
		if n.Node == "maglev-select" {
			continue // flows are known
		}
		if n.Packets == 0 || n.Calls == 0 || n.Nanos <= 0 || n.Nanos > 1e6 {
			t.Errorf("%+v", n)
		}
	}
	if top.Seconds < 0.05 || len(g.Nodes) != 7 || g.Sent == 0 || share < 0.999 || share > 1.001 {
		t.Errorf("%+v", top)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Top(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if r.timing != 0 {
		t.Error("every vector is timed for ever")
	}
}

// TestNotify: what systemd is told, and in which order; signs of life end when a
// loop does not pass.
func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hear := func() string {
		t.Helper()
		b := make([]byte, 4096)
		if err := l.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := l.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "300000")
	t.Setenv("WATCHDOG_PID", "")
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "lb.hcl"), port: &memDriver{}}
	r.write(plain)
	loaded := Source{Path: r.path}.Load()
	d, err := New(loaded.File, Options{Loaded: loaded, Drivers: driversOf(r.port)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	if s := hear(); !strings.HasPrefix(s, "READY=1\nSTATUS=running ") {
		t.Fatalf("first %q", s)
	}
	if s := hear(); s != "WATCHDOG=1" {
		t.Errorf("then %q", s)
	}
	d.ReloadFile("test", false)
	want := []string{"RELOADING=1\nMONOTONIC_USEC=", "READY=1"}
	for len(want) > 0 {
		if s := hear(); strings.HasPrefix(s, want[0]) {
			want = want[1:]
		} else if s != "WATCHDOG=1" {
			t.Fatalf("%q", s)
		}
	}
	// A loop that does not pass. It is held by a command that does not return.
	held, let := make(chan struct{}), make(chan struct{})
	go d.engine("edge").Look("parse", nodeHolder(held, let))
	<-held
	time.Sleep(staleAfter + 50*time.Millisecond)
	for { // what was said before
		_ = l.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := l.Read(make([]byte, 4096)); err != nil {
			break
		}
	}
	_ = l.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if n, err := l.Read(make([]byte, 4096)); err == nil {
		t.Errorf("a sign of life of %d bytes from a loop that stands still", n)
	}
	close(let)
	if s := hear(); s != "WATCHDOG=1" {
		t.Errorf("%q", s)
	}
	atRest(t, d)
	cancel()
	var said []string
	for s := ""; s != "STATUS=stopping"; {
		if s = hear(); s != "WATCHDOG=1" && !strings.HasPrefix(s, "EXTEND") {
			said = append(said, s)
		}
	}
	if got := strings.Join(said, "; "); got != "STOPPING=1\nSTATUS=draining; STATUS=stopping" {
		t.Errorf("at the end %q", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestNotifyEnvironment: who is to be told, and how often.
func TestNotifyEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	abstract := "@lbgraph-test-" + strconv.Itoa(int(time.Now().UnixNano()))
	a, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: abstract, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, c := range []struct {
		socket, usec, pid string
		connected         bool
		every             time.Duration
	}{
		{"", "1000", "", false, 0}, {path, "", "", true, 0}, {path, "2000000", "", true, 2 * time.Second}, {path, "2000000", "7", true, 2 * time.Second},
		{path, "2000000", "8", true, 0}, {path, "x", "", true, 0}, {path, "-1", "", true, 0}, {abstract, "5", "", true, 5 * time.Microsecond},
	} {
		n, err := newNotifier(func(k string) string {
			return map[string]string{"NOTIFY_SOCKET": c.socket, "WATCHDOG_USEC": c.usec, "WATCHDOG_PID": c.pid}[k]
		}, 7)
		if err != nil || (n.conn != nil) != c.connected || n.watchdog != c.every {
			t.Errorf("%+v: %v, %v", c, n, err)
		}
		n.say("READY=1")
		n.close()
	}
	if _, err := newNotifier(func(string) string { return "/nowhere/notify" }, 7); err == nil {
		t.Error("a socket that is not there was reached")
	}
	_ = a.SetReadDeadline(time.Now().Add(time.Second))
	if b, err := io.ReadAll(io.LimitReader(a, 7)); err != nil || string(b) != "READY=1" {
		t.Errorf("%q, %v", b, err)
	}
}
