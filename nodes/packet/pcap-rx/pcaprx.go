// Package pcaprx is the kind "pcap-rx": it receives packets from capture files.
package pcaprx

import (
	"errors"
	"strings"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of a pcap-rx.
type Config struct {
	File string   `hcl:"file" doc:"capture to receive from: pcap or pcapng, of Ethernet frames"`
	More []string `hcl:"more,optional" doc:"captures of further queues, in their order"`
}

// spec is the port that c asks for: the further files stand in Args, a line each.
func (c Config) spec() graph.PortSpec {
	return graph.PortSpec{Driver: "pcap", Name: c.File, Args: strings.Join(c.More, "\n")}
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "pcap-rx",
		Summary: "receives packets from capture files",
		Source:  true,
		Outputs: []graph.Output{
			{Name: "next", Doc: "frames as they were captured, one file and one time at a time"},
		},
		Ports: func(c Config) []graph.PortSpec { return []graph.PortSpec{c.spec()} },
		Check: func(c Config) error {
			for _, name := range append([]string{c.File}, c.More...) {
				if name == "" || strings.Contains(name, "\n") {
					return errors.New("a file's name is empty, or has a line break")
				}
			}
			return nil
		},
		Packets: func(c Config, env *graph.Env) (graph.Maker, error) {
			port, err := env.Port(c.spec())
			if err != nil {
				return nil, err
			}
			return func(core graph.Core) (graph.Node, error) {
				w := &worker{log: env.Log}
				for q := core.ID(); q < port.Queues(); q += core.Cores() {
					w.files = append(w.files, file{Queue: port.Queue(q), port: port, q: q})
				}
				return w, nil
			}, nil
		},
	})
}

// worker receives from the files of one core in turn.
type worker struct {
	files []file
	turn  int // the file that is asked first
	log   *zap.Logger
}

type file struct {
	graph.Queue
	port graph.Port
	q    int
	told bool
}

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, _ packet.Lanes, out []packet.Lanes) {
	for range w.files {
		f := &w.files[w.turn]
		if w.turn++; w.turn == len(w.files) {
			w.turn = 0
		}
		if n := f.Receive(v); n > 0 {
			out[0] = packet.All(n)
			return
		}
		if !f.told && f.Idle() {
			f.tell(w.log)
		}
	}
}

// tell says once how the file ended.
func (f *file) tell(log *zap.Logger) {
	f.told = true
	var err error
	if p, ok := f.port.(interface{ Err(q int) error }); ok {
		err = p.Err(f.q)
	}
	name := zap.String("file", f.port.Info().Name)
	if err != nil {
		log.Error("the capture cannot be read to its end", name, zap.Int("queue", f.q), zap.Error(err))
		return
	}
	log.Info("the capture is at its end", name, zap.Int("queue", f.q))
}
