// Package handoff is the kind handoff: packets change cores by the hash of their flow.
package handoff

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of the kind.
type Config struct {
	Cores []int `hcl:"cores" range:"0,63" doc:"cores that the packets go on, each flow on one of them"`
	Ring  int   `hcl:"ring,optional" range:"64,65536" doc:"packets that can wait on their way from one core to another, a power of two"`
}

// Outputs.
const (
	next = iota
	ringFull
)

// passed counts lanes that left this core.
const passed = 0

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "handoff",
		Summary: "moves packets to other cores by the hash of their flow",
		Needs:   graph.L3,
		Outputs: []graph.Output{
			next:     {Name: "next", Doc: "all packets, on the core of their flow"},
			ringFull: {Name: "ring_full", Else: graph.Drop, Doc: "the core of the flow does not keep up"},
		},
		Counters: []graph.Counter{passed: {Name: "passed", Doc: "packets that went to another core"}},
		Defaults: Config{Ring: 2048},
		Cores:    func(c Config) int { return slices.Max(append([]int{0}, c.Cores...)) + 1 },
		Ring:     func(c Config) int { return c.Ring },
		Check:    check,
		Packets: func(c Config, _ *graph.Env) (graph.Maker, error) {
			return func(core graph.Core) (graph.Node, error) {
				w := &worker{core: core, self: uint32(core.ID())}
				for _, to := range c.Cores {
					w.cores = append(w.cores, uint32(to))
				}
				return w, nil
			}, nil
		},
	})
}

func check(c Config) error {
	if len(c.Cores) == 0 {
		return errors.New("cores is empty; name at least one core")
	}
	if c.Ring&(c.Ring-1) != 0 {
		return fmt.Errorf("ring is a power of two, not %d", c.Ring)
	}
	seen := map[int]bool{}
	for _, n := range c.Cores {
		if seen[n] {
			return fmt.Errorf("core %d is named twice", n)
		}
		seen[n] = true
	}
	return nil
}

type worker struct {
	core  graph.Core
	self  uint32
	cores []uint32
}

// Process leaves the lanes whose core this is and passes the others, in their order.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	if len(w.cores) == 1 && w.cores[0] == w.self {
		out[next] = in
		return
	}
	here, full := packet.Lanes(0), packet.Lanes(0)
	n := uint32(len(w.cores))
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		switch to := w.cores[packet.Reduce(v.Hash[i], n)]; {
		case to == w.self:
			here |= packet.Lane(i)
		case !w.core.Pass(int(to), v, i, next):
			full |= packet.Lane(i)
		}
	}
	out[next], out[ringFull] = here, full
	w.core.Count(passed, uint64((in &^ here &^ full).Count()))
}

// Trace tells which core a packet's flow belongs to.
func (w *worker) Trace(v *packet.Vector, i int) string {
	return fmt.Sprintf("core %d", w.cores[packet.Reduce(v.Hash[i&63], uint32(len(w.cores)))])
}
