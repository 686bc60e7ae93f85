package daemon

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
	"github.com/lbgraph/lbgraph/runtime"
)

// Diff plans the change from one file to another: VIPs and pools, controls, then
// graphs. It needs no host.
func Diff(old, to *graph.File) (p runtime.Plan) {
	p = append(p, named("pool", old.Spec.Pools, to.Spec.Pools, func(x state.PoolSpec) string { return x.Name }, poolChanges)...)
	p = append(p, named("vip", old.Spec.VIPs, to.Spec.VIPs, func(x state.VIPSpec) string { return x.Name }, vipChanges)...)
	p = append(p, named("control", old.Controls, to.Controls,
		func(x *graph.Instance) string { return control{inst: x}.key() },
		func(a, b *graph.Instance) []string { return conf.Changes(a.Config, b.Config) })...)
	for i := range p {
		// Most controls do not change while they run.
		if name, ok := strings.CutPrefix(p[i].What, "control "); ok && p[i].Class == runtime.Live {
			name, _, _ = strings.Cut(name, " ")
			if !graph.Lookup(name).Live {
				p[i].Class = runtime.Restart
			}
		}
	}
	for _, g := range to.Graphs {
		if i := slices.IndexFunc(old.Graphs, func(o *graph.Graph) bool { return o.Name == g.Name && o.Plane == g.Plane }); i >= 0 {
			p = append(p, runtime.Diff(old.Graphs[i], g)...)
		} else {
			p = append(p, runtime.Action{Class: comesAndGoes(g), What: "graph " + g.Name, Why: "is added"})
		}
	}
	for _, g := range old.Graphs {
		if !slices.ContainsFunc(to.Graphs, func(o *graph.Graph) bool { return o.Name == g.Name && o.Plane == g.Plane }) {
			p = append(p, runtime.Action{Class: comesAndGoes(g), What: "graph " + g.Name, Why: "is removed"})
		}
	}
	return p
}

// comesAndGoes tells whether a graph can be added and removed while others run:
// streams can.
func comesAndGoes(g *graph.Graph) runtime.Class {
	if g.Plane == graph.StreamPlane {
		return runtime.Live
	}
	return runtime.Restart
}

// named plans the change of a list of things that have names.
func named[T any](kind string, old, to []T, name func(T) string, changes func(a, b T) []string) (p runtime.Plan) {
	for _, n := range to {
		what := kind + " " + name(n)
		i := slices.IndexFunc(old, func(o T) bool { return name(o) == name(n) })
		if i < 0 {
			p = append(p, runtime.Action{Class: runtime.Live, What: what, Why: "is added"})
		} else if ch := changes(old[i], n); len(ch) > 0 {
			p = append(p, runtime.Action{Class: runtime.Live, What: what, Why: strings.Join(ch, ", ")})
		} else {
			p = append(p, runtime.Action{Class: runtime.Keep, What: what})
		}
	}
	for _, o := range old {
		if !slices.ContainsFunc(to, func(n T) bool { return name(n) == name(o) }) {
			p = append(p, runtime.Action{Class: runtime.Live, What: kind + " " + name(o), Why: "is removed"})
		}
	}
	return p
}

func poolChanges(a, b state.PoolSpec) (ch []string) {
	field := func(name string, x, y any) {
		if x != y {
			ch = append(ch, fmt.Sprintf("%s: %v -> %v", name, x, y))
		}
	}
	field("table_size", a.TableSize, b.TableSize)
	field("hash_seed", a.HashSeed, b.HashSeed)
	field("health", a.Health, b.Health)
	field("fail_open", a.FailOpen, b.FailOpen)
	field("removal_grace", a.RemovalGrace, b.RemovalGrace)
	for _, act := range named("backend", a.Backends, b.Backends, func(x state.BackendSpec) string { return x.Name }, func(x, y state.BackendSpec) (ch []string) {
		for _, f := range []struct {
			name string
			x, y any
		}{{"address", x.Address, y.Address}, {"weight", x.Weight, y.Weight}, {"port", x.Port, y.Port}, {"drain", x.Drain, y.Drain}} {
			if f.x != f.y {
				ch = append(ch, fmt.Sprintf("%s: %v -> %v", f.name, f.x, f.y))
			}
		}
		return ch
	}) {
		if act.Class != runtime.Keep {
			ch = append(ch, act.What+" "+act.Why)
		}
	}
	return ch
}

func vipChanges(a, b state.VIPSpec) (ch []string) {
	for _, f := range []struct {
		name string
		x, y any
	}{
		{"address", a.Prefix, b.Prefix},
		{"protocol", a.Protocol, b.Protocol},
		{"ports", fmt.Sprint(a.Ports), fmt.Sprint(b.Ports)},
		{"pool", a.Pool, b.Pool},
		{"affinity", a.Affinity, b.Affinity},
		{"leave", a.Leave, b.Leave},
		{"disabled", a.Disabled, b.Disabled},
		{"allow", fmt.Sprint(a.Allow), fmt.Sprint(b.Allow)},
		{"deny", fmt.Sprint(a.Deny), fmt.Sprint(b.Deny)},
		{"unlisted", a.Unlisted, b.Unlisted},
		{"require", a.Require, b.Require},
		{"quorum", a.Quorum, b.Quorum},
		{"optional", a.Optional, b.Optional},
	} {
		if f.x == f.y {
			continue
		}
		// A list of a million prefixes says no more than that it changes.
		if x, y := fmt.Sprint(f.x), fmt.Sprint(f.y); len(x)+len(y) < 200 {
			ch = append(ch, fmt.Sprintf("%s: %s -> %s", f.name, x, y))
		} else {
			ch = append(ch, f.name+" changes")
		}
	}
	return ch
}
