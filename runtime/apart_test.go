package runtime

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// span is memory that a core writes.
type span struct {
	core   int
	lo, hi uintptr
	what   string
}

func spanOf[T any](core int, what string, s []T) span {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(s)))
	return span{core, lo, lo + uintptr(cap(s))*unsafe.Sizeof(*new(T)), what}
}

// written answers what loop l writes while packets pass.
func written(l *Loop) (all []span) {
	at := uintptr(unsafe.Pointer(l))
	// Up to the room at its end.
	all = append(all, span{l.id, at, at + unsafe.Sizeof(*l) - line, "loop"})
	nodes := spanOf(l.id, "nodes", l.nodes)
	nodes.hi = nodes.lo + uintptr(len(l.nodes))*unsafe.Sizeof(node{})
	all = append(all, nodes)
	for i := range l.nodes {
		n := &l.nodes[i]
		name := func(s string) string { return n.inst.Name + " " + s }
		all = append(all, spanOf(l.id, name("out"), n.out), spanOf(l.id, name("outs"), n.outs), spanOf(l.id, name("outBytes"), n.outBytes), spanOf(l.id, name("counters"), n.counters))
	}
	return append(all, spanOf(l.id, "per service", l.perService), spanOf(l.id, "per backend", l.perBackend),
		spanOf(l.id, "free", l.free), spanOf(l.id, "holds", l.holds), spanOf(l.id, "entries", l.entries.ring))
}

// TestCoresShareNoLine: what cores write while packets pass stands in different cache
// lines, at the start and after many changes of the graph, for which memory is found
// among what others have given back.
func TestCoresShareNoLine(t *testing.T) {
	const cores = 4
	short := draw(t, cores, "rx -> count", "count -> tx")
	long := draw(t, cores, "rx -> spread", "spread -> keeper", "keeper -> count", "count -> tx", "keeper.late -> tx")
	cell := new(state.Cell)
	r := newRig(t, short, cores, func(o *Options) { o.State = cell })
	var small [][]uint64 // holes of all sizes
	for round := range 20 {
		n := 1 + round%5
		cell.Publish(&state.Snapshot{Services: make([]state.Service, n), Backends: make([]state.Backend, 2*n)})
		for c := range cores {
			r.Step(c)
		}
		var all []span
		for _, l := range r.loops {
			all = append(all, written(l)...)
		}
		if len(all) < cores*10 {
			t.Fatalf("%d spans", len(all))
		}
		const size = 64
		owner := map[uintptr]span{}
		for _, s := range all {
			if s.lo == s.hi {
				continue
			}
			for at := s.lo / size; at <= (s.hi-1)/size; at++ {
				if o, ok := owner[at]; ok && o.core != s.core {
					t.Fatalf("round %d: core %d writes %s at %x, core %d %s at %x, in one line", round, o.core, o.what, o.lo, s.core, s.what, s.lo)
				}
				owner[at] = s
			}
		}
		for range 200 {
			small = append(small, make([]uint64, 1+len(small)%12))
		}
		if len(small) > 1000 {
			small = slices.Delete(small, 0, 700)
		}
		g := long
		if round%2 == 1 {
			g = short
		}
		if err := r.Swap(g); err != nil {
			t.Fatal(err)
		}
	}
}

func TestApart(t *testing.T) {
	for n := range 40 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			words, lanes, traffic := apart[uint64](n), apart[packet.Lanes](n), apart[Traffic](n)
			if len(words) != n || len(lanes) != n || len(traffic) != n || cap(traffic) != n {
				t.Fatalf("%d, %d, %d of %d", len(words), len(lanes), len(traffic), n)
			}
			for _, s := range []span{spanOf(0, "", words), spanOf(0, "", lanes), spanOf(0, "", traffic)} {
				if s.lo%line != 0 {
					t.Errorf("begins at %x", s.lo)
				}
			}
		})
	}
}
