// Package maglevselect is the kind "maglev-select": it selects the backend of a
// new flow from its pool's Maglev table.
package maglevselect

import (
	"fmt"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind:    "maglev-select",
		Summary: "selects a backend from the Maglev table of the service's pool",
		Needs:   graph.Flow | graph.VIP,
		Forbids: graph.Backend | graph.Sent,
		Outputs: []graph.Output{
			next:      {Name: "next", Gives: graph.Backend, Doc: "packets with a backend"},
			noBackend: {Name: "no_backend", Else: graph.Drop, Doc: "no backend of the pool is usable"},
		},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(c graph.Core) (graph.Node, error) { return &worker{core: c}, nil }, nil
		},
	})
}

// Output numbers.
const (
	next = iota
	noBackend
)

type worker struct{ core graph.Core }

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	_ = out[noBackend]
	s := w.core.State()
	var chosen packet.Lanes
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		id := v.VIP[i]
		if int(id) >= len(s.Services) {
			continue
		}
		sv := &s.Services[id]
		hash := v.Hash[i]
		if sv.Affinity {
			hash = packet.AffinityHash(v.Src[i])
		}
		if slot, backend, ok := s.Choose(sv.Pool, hash); ok {
			v.Backend[i], v.Slot[i] = backend, slot
			v.Flags[i] |= packet.Chosen
			chosen |= packet.Lane(i)
		}
	}
	out[next], out[noBackend] = chosen, in&^chosen
}

// Trace is part of graph.Tracer.
func (w *worker) Trace(v *packet.Vector, lane int) string {
	i, s := lane&63, w.core.State()
	id, b := v.VIP[i], v.Backend[i]
	if int(id) >= len(s.Services) || b == 0 || int(b) >= len(s.Backends) {
		return "no backend is usable"
	}
	p := &s.Pools[s.Services[id].Pool]
	name := s.Backends[b].Addr.String()
	if int(v.Slot[i]) < len(p.Members) {
		name = p.Members[v.Slot[i]].Name
	}
	return fmt.Sprintf("backend %s/%s, hash %016x", p.Name, name, v.Hash[i])
}
