package conntrack

import (
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Peek is part of graph.Peeker: what Process would do with a lane, by the clock of
// the last vector or tick.
func (n *node) Peek(v *packet.Vector, lane int) (output int, known bool) {
	i := lane & 63
	s := n.core.State()
	n.infos, n.words = s.Infos, s.Words
	service, prev := v.VIP[i], false
	if uint64(service) >= uint64(len(n.infos)) {
		return miss, false
	}
	w, ok := n.peek(v, i, service)
	if !ok {
		if service = n.infos[service].Prev; service == 0 || uint64(service) >= uint64(len(n.infos)) {
			return miss, false
		}
		if w, ok = n.peek(v, i, service); !ok {
			return miss, false
		}
		prev = true
	}
	backend, status := n.member(service, slotOf(w))
	if n.stale(n.kind(v.Proto[i], w), w, v.TCP[i], status, prev) {
		if status == state.Down {
			v.Flags[i] |= packet.Repinned
		}
		return miss, true
	}
	v.VIP[i], v.Backend[i], v.Slot[i] = service, backend, slotOf(w)
	return hit, true
}

// peek answers the state word of the lane's entry under a service number. Unlike
// locate it moves nothing.
func (n *node) peek(v *packet.Vector, i int, service uint32) (w uint32, ok bool) {
	for _, ts := range []*tables{n.cur, n.old} {
		if ts == nil {
			continue
		}
		id := n.ident(v, i, service, &ts.keys)
		t := ts.of(&id)
		if b, s := t.find(&id); s >= 0 {
			st, _ := t.bucket(b)
			return st[s], true
		}
	}
	return 0, false
}
