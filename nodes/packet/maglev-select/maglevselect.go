// Package maglevselect is the kind "maglev-select": it selects the backend of a
// new flow from its pool's Maglev table.
package maglevselect

import (
	"fmt"
	"unsafe"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/prefetch"
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
			return func(c graph.Core) (graph.Node, error) { return &worker{core: c, lanes: hasLanes}, nil }, nil
		},
	})
}

// Output numbers.
const (
	next = iota
	noBackend
)

type worker struct {
	core  graph.Core
	lanes bool // selectLanes does for most packets
}

// chunk is how many lanes have their cells asked for at once.
const chunk = 16

// noCell stands for the cell of a pool without a usable member.
var noCell uint16 = state.NoSlot

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	_ = out[noBackend]
	s := w.core.State()
	var chosen packet.Lanes
	if w.lanes {
		chosen = selectLanes(v, in, s)
	}
	if rest := in &^ chosen; rest != 0 {
		chosen |= choose(v, rest, s)
	}
	out[next], out[noBackend] = chosen, in&^chosen
}

// choose selects for lanes in, and answers those that got a backend.
func choose(v *packet.Vector, in packet.Lanes, s *state.Snapshot) (chosen packet.Lanes) {
	services, pools := s.Services, s.Pools
	var at [chunk]unsafe.Pointer
	var of [chunk]*state.Pool
	for rest := in; rest != 0; {
		now, k := rest, 0
		for ; rest != 0 && k < chunk; rest &= rest - 1 {
			i, j := rest.Next()&63, k&(chunk-1)
			k++
			at[j], of[j] = unsafe.Pointer(&noCell), nil
			id := uint64(v.VIP[i])
			if id >= uint64(len(services)) {
				continue
			}
			sv := &services[id]
			if uint64(sv.Pool) >= uint64(len(pools)) {
				continue
			}
			p := &pools[sv.Pool]
			if c := p.Cell(hash(v, i, sv)); c != nil {
				at[j], of[j] = unsafe.Pointer(c), p
			}
		}
		prefetch.Lines(at[:k])
		for j := range k {
			i := now.Next() & 63
			now &= now - 1
			p := of[j&(chunk-1)]
			if p == nil {
				continue
			}
			slot := uint32(*(*uint16)(at[j&(chunk-1)]))
			backend, status := s.Of(p, slot)
			if status != state.Up {
				// The table is a moment older than the status.
				var ok bool
				if slot, backend, ok = s.Choose(p.ID, hash(v, i, &s.Services[v.VIP[i]])); !ok {
					continue
				}
			}
			v.Backend[i], v.Slot[i] = backend, slot
			v.Flags[i] |= packet.Chosen
			chosen |= packet.Lane(i)
		}
	}
	return chosen
}

// hash answers what selects the backend of lane i.
func hash(v *packet.Vector, i int, sv *state.Service) uint64 {
	if sv.Affinity {
		return packet.AffinityHash(v.Src[i&63])
	}
	return v.Hash[i&63]
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
