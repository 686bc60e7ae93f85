// Package pcaptx is the kind "pcap-tx": it writes packets to a capture file.
package pcaptx

import (
	"errors"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of a pcap-tx.
type Config struct {
	File string `hcl:"file" doc:"capture to write: pcapng if the name ends in .pcapng, else pcap; an existing file is overwritten"`
}

func (c Config) spec() graph.PortSpec {
	return graph.PortSpec{Driver: "pcap", Name: c.File, Write: true}
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "pcap-tx",
		Summary: "writes packets to a capture file",
		Outputs: []graph.Output{
			txFull:      {Name: "tx_full", Else: graph.Drop, Doc: "there was no room in the ring to the file, or to the core that writes it"},
			writeFailed: {Name: "write_failed", Else: graph.Drop, Doc: "the file could not be written to before: no space, for one"},
		},
		Ports: func(c Config) []graph.PortSpec { return []graph.PortSpec{c.spec()} },
		Check: func(c Config) error {
			if c.File == "" {
				return errors.New("the file's name is empty")
			}
			return nil
		},
		Packets: func(c Config, env *graph.Env) (graph.Maker, error) {
			port, err := env.Port(c.spec())
			if err != nil {
				return nil, err
			}
			return func(core graph.Core) (graph.Node, error) {
				w := &worker{core: core, log: env.Log}
				if core.ID() == 0 {
					w.queue = port.Queue(0)
					w.file, _ = port.(file)
				}
				return w, nil
			}, nil
		},
	})
}

// Output numbers.
const (
	txFull = iota
	writeFailed
)

// file is what a port that is a file can do besides.
type file interface {
	// Sync writes what was sent and is still in memory.
	Sync()
	// Err answers what queue q could not write, or nil.
	Err(q int) error
}

// worker of core 0 writes the file; those of other cores pass on to it.
type worker struct {
	core   graph.Core
	queue  graph.Queue // nil on other cores
	file   file        // nil where the port is none
	failed bool
	log    *zap.Logger
}

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	_ = out[writeFailed]
	if w.queue == nil {
		for m := in; m != 0; m &= m - 1 {
			if i := m.Next(); !w.core.Pass(0, v, i, -1) {
				out[txFull] |= packet.Lane(i)
			}
		}
		return
	}
	taken := w.queue.Transmit(v, in)
	if left := in &^ taken; left != 0 {
		w.queue.Flush()
		taken |= w.queue.Transmit(v, left)
	}
	w.core.Sent(v, taken)
	if left := in &^ taken; left != 0 {
		w.look()
		if w.failed {
			out[writeFailed] = left
		} else {
			out[txFull] = left
		}
	}
}

// Tick is part of graph.Ticker: whoever looks at the file while the graph runs sees
// what was sent until now.
func (w *worker) Tick(int64) {
	if w.file != nil && !w.failed {
		w.file.Sync()
		w.look()
	}
}

// look finds out whether the file failed and says so once.
func (w *worker) look() {
	if w.failed || w.file == nil {
		return
	}
	if err := w.file.Err(0); err != nil {
		w.failed = true
		w.log.Error("the capture cannot be written", zap.Error(err))
	}
}
