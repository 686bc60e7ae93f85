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
