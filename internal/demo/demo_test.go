package demo

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/bgp"
	"github.com/lbgraph/lbgraph/control/metrics"
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// serve runs a backend on free ports of the loopback.
func serve(t *testing.T) (httpAt, udpAt netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	httpAt = l.Addr().(*net.TCPAddr).AddrPort()
	udpAt = httpAt
	_ = l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- (&Backend{Name: "b-1", HTTP: []netip.AddrPort{httpAt}, UDP: []netip.AddrPort{udpAt}}).Serve(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for range 100 {
		if c, err := net.Dial("tcp", httpAt.String()); err == nil {
			_ = c.Close()
			return httpAt, udpAt
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the backend does not listen")
	return
}

func TestBackend(t *testing.T) {
	at, udp := serve(t)
	base := "http://" + at.String()
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Body.Close() }()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
	if code, body := get("/"); code != 200 || body != "b-1\n" {
		t.Errorf("/: %d %q", code, body)
	}
	want, err := io.ReadAll(Bytes(10000))
	if err != nil {
		t.Fatal(err)
	}
	if code, body := get("/bytes/10000"); code != 200 || body != string(want) {
		t.Errorf("/bytes/10000: %d, %d bytes", code, len(body))
	}
	for _, path := range []string{"/bytes/-1", "/bytes/x", "/bytes/2000000000", "/bytes/99999999999999999999"} {
		if code, _ := get(path); code != 400 {
			t.Errorf("%s: %d", path, code)
		}
	}
	r, err := http.Post(base+"/upload", "application/octet-stream", Bytes(10000))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	if b, err := io.ReadAll(r.Body); err != nil || string(b) != fmt.Sprintf("b-1 10000 %x\n", sha256.Sum256(want)) {
		t.Errorf("/upload: %q, %v", b, err)
	}

	var out strings.Builder
	for _, size := range []int{0, 64, 4000} {
		if err := Ask(t.Context(), &out, udp, 2, size); err != nil {
			t.Errorf("%d bytes over UDP: %v", size, err)
		}
	}
	if out.String() != strings.Repeat("b-1\n", 6) {
		t.Errorf("who answered over UDP: %q", &out)
	}
}

// A port that is taken is an error at once, and the other listeners are closed.
func TestBackendPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	err = (&Backend{Name: "b-1", HTTP: []netip.AddrPort{at}}).Serve(t.Context())
	if err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("%v", err)
	}
}

// On the loopback nothing is too big, so the path takes what the device does.
func TestPathMTU(t *testing.T) {
	_, udp := serve(t)
	if mtu, err := PathMTU(t.Context(), udp, 1500); err != nil || mtu < 1500 {
		t.Errorf("%d, %v", mtu, err)
	}
}

func TestPicture(t *testing.T) {
	out := func(names ...string) (all []graph.Output) {
		for _, n := range names {
			all = append(all, graph.Output{Name: n})
		}
		return all
	}
	source, sink := &graph.Kind{Source: true}, &graph.Kind{}
	rx := &graph.Instance{Name: "rx", Kind: source, Outputs: out("next")}
	parse := &graph.Instance{Name: "parse", Kind: sink, Outputs: out("next", "fragment")}
	ct := &graph.Instance{Name: "ct", Kind: sink, Outputs: out("hit", "miss")}
	choose := &graph.Instance{Name: "select", Kind: sink, Outputs: out("next")}
	tx := &graph.Instance{Name: "tx", Kind: sink}
	edge := func(from *graph.Instance, output int, to *graph.Instance) {
		for len(from.Edges) < len(from.Outputs) {
			from.Edges = append(from.Edges, nil)
		}
		from.Edges[output] = &graph.Edge{From: from, Output: output, To: to}
	}
	edge(rx, 0, parse)
	edge(parse, 0, ct)
	edge(ct, 0, tx)
	edge(ct, 1, choose)
	edge(choose, 0, tx)
	want := `    rx ──► parse ──► ct ──► tx
    ct.miss ──► select ──► tx
`
	if got := Picture(&graph.Graph{Nodes: []*graph.Instance{rx, parse, ct, choose, tx}}); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// What a file must have for the demo is said before anything is made.
func TestReadRefuses(t *testing.T) {
	web := state.VIPSpec{Name: "web", Prefix: netip.MustParsePrefix("203.0.113.80/32"), Protocol: 6, Ports: []state.PortRange{{Lo: 80, Hi: 80}}}
	four := state.PoolSpec{Backends: []state.BackendSpec{{Name: "b", Address: netip.MustParseAddr("10.0.0.1")}}}
	six := state.PoolSpec{Backends: []state.BackendSpec{{Name: "b", Address: netip.MustParseAddr("2001:db8::1")}}}
	router := &bgp.Config{Peers: []bgp.Peer{{Address: netip.MustParseAddr("192.0.2.1"), Port: 179, Enabled: true}}}
	for _, c := range []struct {
		spec state.Spec
		ok   bool
	}{
		{state.Spec{VIPs: []state.VIPSpec{web}, Pools: []state.PoolSpec{four}}, true},
		{state.Spec{VIPs: []state.VIPSpec{web}, Pools: []state.PoolSpec{four, four}}, true},
		{state.Spec{VIPs: []state.VIPSpec{web}}, false},
		{state.Spec{Pools: []state.PoolSpec{four}}, false},
		{state.Spec{VIPs: []state.VIPSpec{web}, Pools: []state.PoolSpec{six}}, false},
	} {
		d := &demo{Config: Config{File: &graph.File{Spec: c.spec, Controls: []*graph.Instance{{Config: &metrics.Config{Listen: "127.0.0.1:9109"}}, {Config: router}}}}}
		if err := d.read(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.spec, err)
		}
		if c.ok && len(d.backends) != 1 {
			t.Errorf("%d backends of one address", len(d.backends))
		}
		if c.ok {
			d.File.Path = "lb.json"
			if err := d.read(); err == nil {
				t.Error("a JSON file is taken")
			}
			d.File.Path = ""
			router := d.File.Controls[1]
			for _, other := range []*bgp.Config{
				{},
				{Peers: []bgp.Peer{{Address: netip.MustParseAddr("2001:db8::1"), Port: 179, Enabled: true}}},
				{Peers: []bgp.Peer{{Address: netip.MustParseAddr("192.0.2.1"), Port: 179, Enabled: true, PasswordEnv: "SECRET"}}},
			} {
				router.Config = other
				if err := d.read(); err == nil {
					t.Errorf("%+v is a router to it", other)
				}
			}
		}
	}
}

// Files that the copy could not reach are refused.
func TestCopyRefuses(t *testing.T) {
	d := &demo{net: &network{dir: t.TempDir()}, Config: Config{File: &graph.File{Path: "conf/lb.hcl"}}}
	d.Sources = map[string][]byte{"conf/lb.hcl": []byte("a"), "conf/more/services.json": []byte("b")}
	if err := d.copy(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"lb.hcl": "a", "more/services.json": "b"} {
		if b, err := os.ReadFile(filepath.Join(d.net.conf(), path)); string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	for _, path := range []string{"other/services.json", "/etc/hostname"} {
		d.Sources[path] = nil
		if err := d.copy(); err == nil {
			t.Errorf("%s is copied", path)
		}
		delete(d.Sources, path)
	}
}

func TestSamples(t *testing.T) {
	got := samples("# HELP x y\nlbgraph_a_total{graph=\"g\",node=\"rx\"} 12\nlbgraph_b 1.5e+06\nnonsense\n")
	if len(got) != 2 || got[0].name != "lbgraph_a_total" || got[0].labels["node"] != "rx" || got[0].value != 12 || got[1].value != 1.5e6 {
		t.Errorf("%+v", got)
	}
}

// A fact that does not hold is remembered, and said.
func TestFacts(t *testing.T) {
	var said strings.Builder
	d := &demo{Config: Config{Out: &said}}
	d.fact(true, "%d is 1", 1)
	d.fact(false, "%d is 2", 1)
	if d.facts != 2 || len(d.broken) != 1 || d.broken[0] != "1 is 2" || !strings.Contains(said.String(), "WRONG 1 is 2") {
		t.Errorf("%d facts, broken %q\n%s", d.facts, d.broken, said.String())
	}
}

// TestWrongFigures: a figure that contradicts what is stated is marked, and what it
// shows stands behind it.
func TestWrongFigures(t *testing.T) {
	before := []seen{{name: "a", answers: 3}, {name: "b", answers: 3, longest: time.Second}, {udp: true, name: "b", moves: 1, answers: 3}}
	// flows answers what is known later of flows that went on well, but for what
	// change does.
	flows := func(change func(f []seen)) []seen {
		f := slices.Clone(before)
		for i := range f {
			f[i].answers += 5
		}
		change(f)
		return f
	}
	on := func(which func(i int) bool, change func(f []seen)) func(d *demo) {
		return func(d *demo) { d.undisturbed(before, flows(change), which, " here") }
	}
	const stay = "    ok    each stayed on its backend\n"
	for name, c := range map[string]struct {
		state func(d *demo)
		want  string
	}{
		"all went on": {on(all, func([]seen) {}), "    ok    2 connections and 1 UDP flows went on here: 15 requests answered, 0 connections broken\n" + stay},
		"one broke": {on(all, func(f []seen) { f[1].err = io.EOF }),
			"    WRONG 2 connections and 1 UDP flows went on here: 15 requests answered, 1 connections broken\n" + stay},
		"none is answered": {on(all, func(f []seen) { copy(f, before) }),
			"    WRONG 2 connections and 1 UDP flows went on here: 0 requests answered, 0 connections broken\n" + stay},
		"one is on another": {on(all, func(f []seen) { f[0].name = "b" }),
			"    ok    2 connections and 1 UDP flows went on here: 15 requests answered, 0 connections broken; 1 changed their backend\n    WRONG each stayed on its backend\n"},
		"one was on another meanwhile": {on(all, func(f []seen) { f[2].moves += 2 }),
			"    ok    2 connections and 1 UDP flows went on here: 15 requests answered, 0 connections broken; 1 changed their backend\n    WRONG each stayed on its backend\n"},
		"others do not count": {on(func(i int) bool { return i == 0 }, func(f []seen) { f[1].err, f[2].name = io.EOF, "a" }),
			"    ok    1 connections went on here: 5 requests answered, 0 connections broken\n" + stay},
		"one waited, some were lost": {on(all, func(f []seen) { f[0].longest, f[2].lost = 1500*time.Millisecond, 4 }),
			"    ok    2 connections and 1 UDP flows went on here: 15 requests answered, 0 connections broken; the longest waited 1.5 s; 4 datagrams were lost\n" + stay},
		"past the balancers":     {func(d *demo) { d.past(100 << 10) }, "    ok    it went past the balancers, which saw 100 KB of acknowledgements\n"},
		"by the balancers":       {func(d *demo) { d.past(bulk) }, "    WRONG it went past the balancers, which saw 20480 KB of acknowledgements\n"},
		"all are accounted for":  {func(d *demo) { d.accounted("b1", 7, 7) }, "    ok    b1: received + made 7 = sent + dropped + to the kernel + held 7\n"},
		"one is not":             {func(d *demo) { d.accounted("b1", 7, 6) }, "    WRONG b1: received + made 7 = sent + dropped + to the kernel + held 6\n"},
		"there are none":         {func(d *demo) { d.accounted("b1", 0, 0) }, "    WRONG b1: received + made 0 = sent + dropped + to the kernel + held 0\n"},
		"all answer":             {func(d *demo) { d.answered(map[string]int{"a": 3, "b": 1}, 4, nil) }, "    ok    4 of 4 answered: a 3, b 1\n    ok    all 2 backends answered\n"},
		"one answer is missing":  {func(d *demo) { d.answered(map[string]int{"a": 2, "b": 1}, 4, io.EOF) }, "    WRONG 3 of 4 answered: a 2, b 1; EOF\n    ok    all 2 backends answered\n"},
		"one backend is missing": {func(d *demo) { d.answered(map[string]int{"a": 4}, 4, nil) }, "    ok    4 of 4 answered: a 4\n    WRONG all 2 backends answered\n"},
	} {
		var said strings.Builder
		d := &demo{Config: Config{Out: &said}, backends: make([]state.BackendSpec, 2)}
		c.state(d)
		if said.String() != c.want || len(d.broken) != strings.Count(c.want, "WRONG") {
			t.Errorf("%s: broken %q, and it says\n%swant\n%s", name, d.broken, &said, c.want)
		}
	}
	text := ""
	for i, name := range []string{"received_packets_total", "made_packets_total", "sent_packets_total", "dropped_packets_total", "kernel_packets_total", "held_packets"} {
		text += fmt.Sprintf("lbgraph_%s{core=\"0\"} %d\nlbgraph_%s{core=\"1\"} 100\n", name, 1<<i, name)
	}
	if got, gone := account(samples(text)); got != 203 || gone != 460 {
		t.Errorf("%.0f came and %.0f went, of 203 and 460", got, gone)
	}
}
