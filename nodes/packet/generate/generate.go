// Package generate is the kind "generate": it makes up packets towards the VIPs.
package generate

import (
	"encoding/json"
	"fmt"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/gen"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of a generate.
type Config struct {
	Flows    int    `hcl:"flows,optional" range:"1,67108864" doc:"flows that packets belong to, at random"`
	Rate     uint64 `hcl:"rate,optional" range:"0,1000000000" doc:"packets a second, of all cores together; 0 is as many as the graph takes"`
	Count    uint64 `hcl:"count,optional" doc:"packets to make, of all cores together; 0 is without end"`
	Sizes    []int  `hcl:"sizes,optional" range:"60,9018" doc:"lengths of frames in bytes, each as likely as any; none is the shortest there can be"`
	Mix      Mix    `hcl:"mix,block" doc:"weights of protocols and families"`
	SYNFlood bool   `hcl:"syn_flood,optional" doc:"makes every TCP packet a SYN of a new flow"`
	Seed     uint64 `hcl:"seed,optional" doc:"the same seed makes the same packets"`
	Queues   int    `hcl:"queues,optional" range:"1,64" doc:"queues to receive from, each with flows of its own"`
}

// Mix is the weights of what is made, among what the VIPs serve.
type Mix struct {
	TCP  int `hcl:"tcp,optional" range:"0,1000" doc:"weight of TCP"`
	UDP  int `hcl:"udp,optional" range:"0,1000" doc:"weight of UDP"`
	ICMP int `hcl:"icmp,optional" range:"0,1000" doc:"weight of echo requests"`
	V4   int `hcl:"v4,optional" range:"0,1000" doc:"weight of IPv4"`
	V6   int `hcl:"v6,optional" range:"0,1000" doc:"weight of IPv6"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "generate",
		Summary: "makes up packets towards the VIPs: flows, sizes, protocols, a rate, a SYN flood",
		Source:  true,
		Outputs: []graph.Output{
			{Name: "next", Doc: "frames as clients of the VIPs would send them"},
		},
		Ports:    func(c Config) []graph.PortSpec { return []graph.PortSpec{c.spec()} },
		Defaults: Config{Flows: 1000, Mix: Mix{TCP: 1, UDP: 1, V4: 1, V6: 1}, Queues: 1},
		Check: func(c Config) error {
			g := c.traffic()
			return g.Check()
		},
		Packets: build,
	})
}

// traffic is c as the port wants it.
func (c Config) traffic() gen.Config {
	return gen.Config{
		Flows: c.Flows, Rate: c.Rate, Count: c.Count, Sizes: c.Sizes,
		TCP: c.Mix.TCP, UDP: c.Mix.UDP, ICMP: c.Mix.ICMP, V4: c.Mix.V4, V6: c.Mix.V6,
		Flood: c.SYNFlood, Seed: c.Seed,
	}
}

// spec is the port that c asks for: what is made stands in Args, as JSON of
// gen.Config.
func (c Config) spec() graph.PortSpec {
	args, err := json.Marshal(c.traffic())
	if err != nil {
		panic(err) // a struct of numbers
	}
	return graph.PortSpec{Driver: "gen", Name: "generate", Queues: c.Queues, Args: string(args)}
}

func build(c Config, env *graph.Env) (graph.Maker, error) {
	port, err := env.Port(c.spec())
	if err != nil {
		return nil, err
	}
	aimed, ok := port.(interface{ Aim([]gen.Target) int })
	if !ok {
		return nil, fmt.Errorf("the port %q makes no packets", port.Info().Name)
	}
	env.Watch(func(s *state.Snapshot) {
		if aimed.Aim(targets(s)) == 0 {
			env.Log.Warn("there is nothing to make packets for: no VIP serves what mix asks for", zap.Uint64("generation", s.Generation))
		}
	})
	return func(core graph.Core) (graph.Node, error) {
		w := &worker{}
		for q := core.ID(); q < port.Queues(); q += core.Cores() {
			w.queues = append(w.queues, port.Queue(q))
		}
		return w, nil
	}, nil
}

// targets are what the VIPs serve.
func targets(s *state.Snapshot) (all []gen.Target) {
	for i := range s.Services {
		v := &s.Services[i]
		if i == 0 || v.ID == 0 {
			continue // 0 stands for none; others may be free
		}
		all = append(all, gen.Target{Prefix: v.Prefix, Proto: v.Proto, Lo: v.Lo, Hi: v.Hi})
	}
	return all
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
