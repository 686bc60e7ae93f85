package daemon

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/runtime"
)

// planOf answers what a plan does, a line each.
func planOf(p runtime.Plan) string {
	var all []string
	for _, a := range p {
		if a.Class != runtime.Keep {
			all = append(all, fmt.Sprintf("%s %s: %s", a.Class, a.What, a.Why))
		}
	}
	return strings.Join(all, "\n")
}

// TestDiff: each argument of a pool, a backend and a VIP shows with what it was and is.
func TestDiff(t *testing.T) {
	spec := func(change func(*state.PoolSpec, *state.VIPSpec)) *graph.File {
		p := state.PoolSpec{Name: "web", TableSize: 251, Backends: []state.BackendSpec{{Name: "one", Address: netip.MustParseAddr("10.0.0.1"), Weight: 100}}}
		v := state.VIPSpec{Name: "web", Prefix: netip.MustParsePrefix("203.0.113.80/32"), Pool: "web"}
		change(&p, &v)
		return &graph.File{Spec: state.Spec{Pools: []state.PoolSpec{p}, VIPs: []state.VIPSpec{v}}}
	}
	long := func(n byte) (all []netip.Prefix) {
		for i := range 20 {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100, n, byte(i)}), 32))
		}
		return all
	}
	old := spec(func(*state.PoolSpec, *state.VIPSpec) {})
	for want, change := range map[string]func(*state.PoolSpec, *state.VIPSpec){
		"":                                        func(*state.PoolSpec, *state.VIPSpec) {},
		"live pool web: table_size: 251 -> 509":   func(p *state.PoolSpec, _ *state.VIPSpec) { p.TableSize = 509 },
		"live pool web: hash_seed: 0 -> 7":        func(p *state.PoolSpec, _ *state.VIPSpec) { p.HashSeed = 7 },
		"live pool web: health:  -> up":           func(p *state.PoolSpec, _ *state.VIPSpec) { p.Health = "up" },
		"live pool web: fail_open: false -> true": func(p *state.PoolSpec, _ *state.VIPSpec) { p.FailOpen = true },
		"live pool web: removal_grace: 0s -> 1µs": func(p *state.PoolSpec, _ *state.VIPSpec) { p.RemovalGrace = 1000 },
		"live pool web: backend one address: 10.0.0.1 -> 10.0.0.9, weight: 100 -> 50, port: 0 -> 80, drain: false -> true": func(p *state.PoolSpec, _ *state.VIPSpec) {
			p.Backends[0] = state.BackendSpec{Name: "one", Address: netip.MustParseAddr("10.0.0.9"), Weight: 50, Port: 80, Drain: true}
		},
		"live pool web: backend two is added, backend one is removed": func(p *state.PoolSpec, _ *state.VIPSpec) { p.Backends[0].Name = "two" },
		"live vip web: address: 203.0.113.80/32 -> 203.0.113.0/24, protocol: 0 -> 6, ports: [] -> [{1 2}], pool: web -> other, affinity: false -> true, leave: false -> true, disabled: false -> true": func(_ *state.PoolSpec, v *state.VIPSpec) {
			v.Prefix, v.Protocol, v.Ports, v.Pool, v.Affinity, v.Leave, v.Disabled = netip.MustParsePrefix("203.0.113.0/24"), 6, []state.PortRange{{Lo: 1, Hi: 2}}, "other", true, true, true
		},
		"live vip web: allow: [] -> [10.0.0.0/8], unlisted:  -> deny, require:  -> any, quorum: 0 -> 3, optional: false -> true": func(_ *state.PoolSpec, v *state.VIPSpec) {
			v.Allow, v.Unlisted, v.Require, v.Quorum, v.Optional = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, "deny", "any", 3, true
		},
		"live vip web: deny changes":                       func(_ *state.PoolSpec, v *state.VIPSpec) { v.Deny = long(1) },
		"live vip new: is added\nlive vip web: is removed": func(_ *state.PoolSpec, v *state.VIPSpec) { v.Name = "new" },
	} {
		if got := planOf(Diff(old, spec(change))); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestDiffForgetsNothing: whatever is changed of a pool, a backend or a VIP is a change.
func TestDiffForgetsNothing(t *testing.T) {
	// other makes a value another than it is.
	other := func(v reflect.Value) {
		switch x := v.Addr().Interface().(type) {
		case *netip.Addr:
			*x = netip.MustParseAddr("10.9.9.9")
		case *netip.Prefix:
			*x = netip.MustParsePrefix("10.9.9.0/24")
		default:
			switch {
			case v.Kind() == reflect.Bool:
				v.SetBool(true)
			case v.Kind() == reflect.String:
				v.SetString("another")
			case v.CanInt():
				v.SetInt(99)
			case v.CanUint():
				v.SetUint(99)
			case v.Kind() == reflect.Slice:
				v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			default:
				t.Fatalf("a field is a %s", v.Type())
			}
		}
	}
	old := state.Spec{Pools: []state.PoolSpec{{Name: "a", Backends: []state.BackendSpec{{Name: "a"}}}}, VIPs: []state.VIPSpec{{Name: "a"}}}
	for _, part := range []func(*state.Spec) any{
		func(s *state.Spec) any { return &s.Pools[0] }, func(s *state.Spec) any { return &s.Pools[0].Backends[0] }, func(s *state.Spec) any { return &s.VIPs[0] },
	} {
		typ := reflect.TypeOf(part(&old)).Elem()
		for i := range typ.NumField() {
			to := state.Spec{Pools: []state.PoolSpec{{Name: "a", Backends: []state.BackendSpec{{Name: "a"}}}}, VIPs: []state.VIPSpec{{Name: "a"}}}
			other(reflect.ValueOf(part(&to)).Elem().Field(i))
			if p := Diff(&graph.File{Spec: old}, &graph.File{Spec: to}); p.Class() != runtime.Live {
				t.Errorf("a change of %s.%s is none", typ.Name(), typ.Field(i).Name)
			}
		}
	}
}

// Kinds of controls that change while they run, and that do not.
func init() {
	type config struct {
		N int `hcl:"n,optional"`
	}
	for _, live := range []bool{false, true} {
		graph.Register(graph.Def[config]{
			Kind: fmt.Sprintf("test-live-%t", live), Summary: "does nothing", Live: live,
			Control: func(config, *graph.Env) (graph.Control, error) { return nil, nil },
		})
	}
}

// TestDiffOfControls: a kind that does not change while it runs needs a restart where a
// block of it changes, comes or goes.
func TestDiffOfControls(t *testing.T) {
	parse := func(text string) *graph.File {
		t.Helper()
		f, diags := lang.LoadBytes("lb.hcl", []byte(text), lang.Options{})
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		return f
	}
	text := func(kind string, n int) *graph.File {
		return parse(fmt.Sprintf("%s \"a\" { n = %d }", kind, n))
	}
	for kind, want := range map[string]string{"test-live-false": "restart", "test-live-true": "live"} {
		if got := planOf(Diff(text(kind, 1), text(kind, 2))); got != want+" control "+kind+" a: n: 1 -> 2" {
			t.Errorf("%s changes: %s", kind, got)
		}
		if got := planOf(Diff(parse(""), text(kind, 2))); got != want+" control "+kind+" a: is added" {
			t.Errorf("%s comes: %s", kind, got)
		}
		if got := planOf(Diff(text(kind, 2), parse(""))); got != want+" control "+kind+" a: is removed" {
			t.Errorf("%s goes: %s", kind, got)
		}
	}
}

// TestDiffOfGraphs: streams come and go while others run, packet graphs do not; a name
// that goes over to the other plane is one that goes and one that comes.
func TestDiffOfGraphs(t *testing.T) {
	file := func(gs ...*graph.Graph) *graph.File { return &graph.File{Graphs: gs} }
	p, s := &graph.Graph{Name: "x", Plane: graph.PacketPlane}, &graph.Graph{Name: "x", Plane: graph.StreamPlane}
	for _, c := range []struct {
		old, to *graph.File
		want    string
	}{
		{file(), file(p), "restart graph x: is added"}, {file(p), file(), "restart graph x: is removed"}, {file(), file(s), "live graph x: is added"}, {file(s), file(), "live graph x: is removed"},
		{file(p), file(s), "live graph x: is added\nrestart graph x: is removed"},
	} {
		if got := planOf(Diff(c.old, c.to)); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

// TestAddDrop: what the XDP program dropped counts as received and dropped, at the node
// that has the reason, or at the first where none has: packets add up.
func TestAddDrop(t *testing.T) {
	s := graph.Stats{Received: 10, ReceivedBytes: 100, Dropped: 1, Sent: 9, Nodes: []graph.NodeStats{
		{Name: "rx", Outputs: []graph.OutputStats{{Name: "next"}}},
		{Name: "classify", Outputs: []graph.OutputStats{{Name: "wrong_port"}, {Name: "wrong_port", Drop: true, Packets: 1, Bytes: 7}}},
		{Name: "later", Outputs: []graph.OutputStats{{Name: "wrong_port", Drop: true}}},
	}}
	addDrop(&s, "wrong_port", bpf.Count{Packets: 5, Bytes: 50})
	addDrop(&s, "no_socket", bpf.Count{Packets: 3, Bytes: 30})
	if got := fmt.Sprintf("%d %d %d %v", s.Received, s.ReceivedBytes, s.Dropped, s.Drops()); got != "18 180 9 map[classify.wrong_port:6 rx.no_socket:3]" {
		t.Errorf("got %s", got)
	}
	if o := s.Nodes[1].Outputs[1]; o.Bytes != 57 {
		t.Errorf("%+v", o)
	}
	if o := s.Nodes[0].Outputs[1]; o.Bytes != 30 || !o.Drop {
		t.Errorf("%+v", o)
	}
	addDrop(&graph.Stats{}, "wrong_port", bpf.Count{Packets: 5, Bytes: 50}) // of a graph without nodes
}
