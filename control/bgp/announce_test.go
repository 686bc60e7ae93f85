package bgp

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/control/state"
)

// snapshot answers a snapshot of pools; a name with its state is as in "a:2" (two
// healthy backends) or "a:1/3 open" (one healthy, three take flows, fails open) or
// "a:0/2 unchecked".
func snapshot(t *testing.T, pools string, vips ...state.VIPSpec) *state.Snapshot {
	t.Helper()
	s := &state.Snapshot{VIPs: vips, Pools: make([]state.Pool, 1)}
	for i, text := range strings.Split(pools, ", ") {
		name, rest, _ := strings.Cut(text, ":")
		numbers, word, _ := strings.Cut(rest, " ")
		p := state.Pool{ID: uint32(i + 1), Name: name, Check: "http"}
		if n, _ := fmt.Sscanf(numbers, "%d/%d", &p.Healthy, &p.Usable); n == 1 {
			p.Usable = p.Healthy
		}
		switch word {
		case "open":
			p.FailOpen = true
		case "unchecked":
			p.Check = ""
		case "":
		default:
			t.Fatalf("what is %q?", word)
		}
		s.Pools = append(s.Pools, p)
	}
	return s
}

func TestDecide(t *testing.T) {
	const a4, b4, six = "203.0.113.1", "203.0.113.2", "2001:db8::1"
	with := func(v state.VIPSpec, change func(*state.VIPSpec)) state.VIPSpec {
		change(&v)
		return v
	}
	quorum := func(n int) func(*state.VIPSpec) { return func(v *state.VIPSpec) { v.Quorum = n } }
	any := func(v *state.VIPSpec) { v.Require = "any" }
	optional := func(v *state.VIPSpec) { v.Optional = true }
	disabled := func(v *state.VIPSpec) { v.Disabled = true }
	for _, c := range []struct {
		name  string
		pools string
		vips  []state.VIPSpec
		want  string // announced prefixes, and "!" with others
		why   string // part of the reason of the first that is not
	}{
		{"one healthy", "p:1", []state.VIPSpec{vip("a", a4, "p")}, a4 + "/32", ""},
		{"none healthy, all unknown or down", "p:0/3", []state.VIPSpec{vip("a", a4, "p")}, "!" + a4 + "/32", `vip "a": pool "p" has 0 healthy backends and needs 1`},
		{"quorum met", "p:2", []state.VIPSpec{with(vip("a", a4, "p"), quorum(2))}, a4 + "/32", ""},
		{"quorum lost", "p:2/5", []state.VIPSpec{with(vip("a", a4, "p"), quorum(3))}, "!" + a4 + "/32", "has 2 healthy backends and needs 3"},
		{"no quorum set is one", "p:0", []state.VIPSpec{with(vip("a", a4, "p"), quorum(0))}, "!" + a4 + "/32", "needs 1"},
		{"fails open", "p:0/3 open", []state.VIPSpec{with(vip("a", a4, "p"), quorum(3))}, a4 + "/32", ""},
		{"fails open into nothing", "p:0/0 open", []state.VIPSpec{vip("a", a4, "p")}, "!" + a4 + "/32", "takes new flows"},
		{"without a check", "p:0/1 unchecked", []state.VIPSpec{with(vip("a", a4, "p"), quorum(2))}, a4 + "/32", ""},
		{"without a check and all drained", "p:1/0 unchecked", []state.VIPSpec{vip("a", a4, "p")}, "!" + a4 + "/32", "takes new flows"},
		{"no such pool", "p:1", []state.VIPSpec{vip("a", a4, "q")}, "!" + a4 + "/32", `no pool "q"`},
		{"all of two", "p:1, q:1", []state.VIPSpec{vip("a", a4, "p"), vip("b", a4, "q")}, a4 + "/32", ""},
		{"one of two, and all are required", "p:1, q:0", []state.VIPSpec{vip("a", a4, "p"), vip("b", a4, "q")}, "!" + a4 + "/32", `vip "b"`},
		{"one of two, and any will do", "p:0, q:1", []state.VIPSpec{with(vip("a", a4, "p"), any), with(vip("b", a4, "q"), any)}, a4 + "/32", ""},
		{"none of two, and any would do", "p:0, q:0", []state.VIPSpec{with(vip("a", a4, "p"), any), with(vip("b", a4, "q"), any)}, "!" + a4 + "/32", `vip "a": pool "p" has 0 healthy backends and needs 1; vip "b"`},
		{"who requires all prevails", "p:0, q:1", []state.VIPSpec{with(vip("a", a4, "p"), any), vip("b", a4, "q")}, "!" + a4 + "/32", `vip "a"`},
		{"an optional service is sick", "p:1, q:0", []state.VIPSpec{vip("a", a4, "p"), with(vip("b", a4, "q"), optional)}, a4 + "/32", ""},
		{"an optional service is no help", "p:0, q:1", []state.VIPSpec{with(vip("a", a4, "p"), any), with(vip("b", a4, "q"), optional)}, "!" + a4 + "/32", `vip "a"`},
		{"an optional service requires nothing", "p:0, q:1, r:1", []state.VIPSpec{with(vip("a", a4, "p"), any), with(vip("b", a4, "q"), any), with(vip("c", a4, "r"), optional)}, a4 + "/32", ""},
		{"only optional services", "p:0", []state.VIPSpec{with(vip("a", a4, "p"), optional)}, a4 + "/32", ""},
		{"disabled", "p:1", []state.VIPSpec{with(vip("a", a4, "p"), disabled)}, "", ""},
		{"one of two is disabled and sick", "p:1, q:0", []state.VIPSpec{vip("a", a4, "p"), with(vip("b", a4, "q"), disabled)}, a4 + "/32", ""},
		{"two ports of one pool", "p:1", []state.VIPSpec{vip("a", a4, "p"), vip("b", a4, "p")}, a4 + "/32", ""},
		{"addresses apart, in order", "p:1, q:0", []state.VIPSpec{vip("c", six, "p"), vip("b", b4, "p"), vip("a", a4, "q")}, "!" + a4 + "/32 " + b4 + "/32 " + six + "/128", `vip "a"`},
		{"prefixes", "p:1", []state.VIPSpec{vip("a", "198.51.100.77/24", "p"), vip("b", "2001:db8:5::9/48", "p")}, "198.51.100.0/24 2001:db8:5::/48", ""},
		{"one prefix written in two ways", "p:1, q:0", []state.VIPSpec{vip("a", "198.51.100.77/24", "p"), vip("b", "::ffff:198.51.100.0/120", "q")}, "!198.51.100.0/24", `vip "b"`},
		{"a default route", "p:1", []state.VIPSpec{vip("a", "0.0.0.0/0", "p")}, "!0.0.0.0/0", "default route"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			why := ""
			for _, d := range Decide(snapshot(t, c.pools, c.vips...)) {
				word := d.Prefix.String()
				if !d.Announce {
					word = "!" + word
					if why == "" {
						why = d.Why
					}
				} else if d.Why != "" {
					t.Errorf("%s is announced, and not because %s", d.Prefix, d.Why)
				}
				got = append(got, word)
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%s, want %s", s, c.want)
			}
			if !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
				t.Errorf("why: %q, want %q", why, c.why)
			}
		})
	}
}

// What the store makes of health is what the policy goes by: unknown and drained
// backends and those of weight 0 do not count.
func TestDecideOnAStore(t *testing.T) {
	s := state.NewStore()
	defer s.Close()
	spec := state.Spec{Pools: []state.PoolSpec{pool("p", "10.0.0.1", "10.0.0.2", "10.0.0.3")}, VIPs: []state.VIPSpec{vip("a", "203.0.113.1", "p")}}
	spec.VIPs[0].Quorum = 2
	spec.Pools[0].Backends[2].Weight = 0
	set := func(addr string, h state.Health) {
		s.SetHealth(state.Target{Check: "http", Addr: spec.Pools[0].Backends[addr[len(addr)-1]-'1'].Address}, h)
	}
	expect := func(what string, announce bool, waitsFor string) {
		t.Helper()
		s.Flush()
		snap := s.Cell().Load()
		if d := Decide(snap); d[0].Announce != announce {
			t.Errorf("%s: %+v", what, d[0])
		}
		if got := undecided(snap); got != waitsFor {
			t.Errorf("%s: waiting for %q, want %q", what, got, waitsFor)
		}
	}
	if err := s.Apply(spec); err != nil {
		t.Fatal(err)
	}
	expect("all unknown", false, "p/p-1")
	set("10.0.0.3", state.Healthy)
	set("10.0.0.1", state.Healthy)
	expect("one known, and one without weight", false, "p/p-2")
	set("10.0.0.2", state.Healthy)
	expect("two", true, "")
	set("10.0.0.1", state.Unhealthy)
	expect("one down", false, "")
	set("10.0.0.1", state.Healthy)
	if err := s.Drain("p", "p-2", true, false); err != nil {
		t.Fatal(err)
	}
	expect("one drained", false, "")
	spec.Pools[0].FailOpen = true
	if err := s.Apply(spec); err != nil {
		t.Fatal(err)
	}
	set("10.0.0.1", state.Unhealthy)
	set("10.0.0.2", state.Unhealthy)
	expect("all down, and open", true, "")
}

func BenchmarkDecide(b *testing.B) {
	s := &state.Snapshot{Pools: make([]state.Pool, 1)}
	for i := range 1000 {
		name := fmt.Sprintf("p%d", i)
		s.Pools = append(s.Pools, state.Pool{ID: uint32(i + 1), Name: name, Check: "http", Healthy: i % 3, Usable: 3})
		s.VIPs = append(s.VIPs, vip(name, fmt.Sprintf("10.0.%d.%d", i/200, i%200), name))
	}
	b.ReportAllocs()
	for b.Loop() {
		if len(Decide(s)) != 1000 {
			b.Fatal("not all decided")
		}
	}
}
