// Package xdprx is the kind "xdp-rx": it receives packets from the AF_XDP sockets of
// an interface.
package xdprx

import (
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of an xdp-rx.
type Config struct {
	Interface string `hcl:"interface" doc:"interface to receive from"`
	Queues    int    `hcl:"queues,optional" range:"0,64" doc:"receive queues to open, from the first on; 0 opens all"`
	Mode      string `hcl:"mode,optional" enum:"auto,native,generic" doc:"where the XDP program runs: in the driver (native), in the kernel's generic path, or the better of the two that works"`
}

// spec is the port that c asks for.
func (c Config) spec() graph.PortSpec {
	return graph.PortSpec{Driver: "xdp", Name: c.Interface, Queues: c.Queues, Mode: c.Mode}
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "xdp-rx",
		Summary: "receives packets from the AF_XDP sockets of an interface",
		Source:  true,
		Outputs: []graph.Output{
			{Name: "next", Doc: "frames as they came, one queue and up to 64 at a time"},
		},
		Interface: func(c Config) string { return c.Interface },
		Ports:     func(c Config) []graph.PortSpec { return []graph.PortSpec{c.spec()} },
		Defaults:  Config{Mode: "auto"},
		Packets: func(c Config, env *graph.Env) (graph.Maker, error) {
			port, err := env.Port(c.spec())
			if err != nil {
				return nil, err
			}
			return func(core graph.Core) (graph.Node, error) {
				w := &worker{}
				for q := core.ID(); q < port.Queues(); q += core.Cores() {
					w.queues = append(w.queues, port.Queue(q))
				}
				return w, nil
			}, nil
		},
	})
}

// worker receives from the queues of one core in turn.
type worker struct {
	queues []graph.Queue
	turn   int // the queue that is asked first
}

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, _ packet.Lanes, out []packet.Lanes) {
	for range w.queues {
		q := w.queues[w.turn]
		if w.turn++; w.turn == len(w.queues) {
			w.turn = 0
		}
		if n := q.Receive(v); n > 0 {
			out[0] = packet.All(n)
			return
		}
	}
}
