// Package sample is the kind "sample": it copies every so many-th packet to a capture
// file and lets all of them pass.
package sample

import (
	"errors"
	"os"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of sample.
type Config struct {
	File  string `hcl:"file" doc:"capture to write: pcapng if the name ends in .pcapng, else pcap; an existing file is overwritten"`
	Every int    `hcl:"every,optional" range:"1,1000000000" doc:"one of how many packets is copied, on each core"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "sample",
		Summary: "copies one of so many packets to a capture file and lets all pass",
		Writes:  true,
		Outputs: []graph.Output{{Name: "next", Doc: "all packets"}},
		Counters: []graph.Counter{
			sampled: {Name: "sampled", Doc: "packets copied"},
			lost:    {Name: "lost", Doc: "packets not copied because the file was too slow, or failed"},
		},
		Defaults: Config{Every: 1000},
		Check: func(c Config) error {
			if c.File == "" {
				return errors.New("the file's name is empty")
			}
			return nil
		},
		Packets: func(c Config, env *graph.Env) (graph.Maker, error) {
			// The file is begun with the first sample: on a reload, the node that this one
			// follows may be writing it. That it can be written is known now.
			f, err := os.OpenFile(c.File, os.O_WRONLY|os.O_CREATE, 0o644)
			if err != nil {
				return nil, err
			}
			if err := f.Close(); err != nil {
				return nil, err
			}
			s := newSink(c.File, env.Cores, env.Log)
			return func(core graph.Core) (graph.Node, error) {
				s.users.Add(1)
				return &worker{core: core, sink: s, shelf: s.shelves[core.ID()], every: c.Every, left: c.Every - 1}, nil
			}, nil
		},
	})
}

// Counter numbers.
const (
	sampled = iota
	lost
)

type worker struct {
	core  graph.Core
	sink  *sink
	shelf *shelf
	every int
	left  int // packets to go by before the next sample
}

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	out[0] = in
	n := in.Count()
	for w.left < n {
		// The lane that w.left others of this set stand before.
		for range w.left {
			in &= in - 1
		}
		i := in.Next()
		in &= in - 1
		if w.shelf.put(v.Bytes(i), int(v.Total[i&63]), v.Now) {
			w.core.Count(sampled, 1)
		} else {
			w.core.Count(lost, 1)
		}
		n -= w.left + 1
		w.left = w.every - 1
	}
	w.left -= n
}

// Tick is part of graph.Ticker: it has written what lies on the shelves, on a goroutine of
// its own.
func (w *worker) Tick(int64) {
	if w.shelf.waiting() > 0 {
		w.sink.kick()
	}
}

// Inherit is part of graph.Inheritor: the same file is written on.
func (w *worker) Inherit(old graph.Node) {
	o := old.(*worker)
	if o.sink.name != w.sink.name {
		// Closing may wait for the disk.
		go func() { _ = o.Close() }()
		return
	}
	w.sink.release()
	w.sink, w.shelf = o.sink, o.shelf
}

// Close writes the rest, and closes the file with the last worker.
func (w *worker) Close() error {
	w.sink.drain()
	return w.sink.release()
}

// failed says once why the file is not written any more.
func (s *sink) failed(err error) {
	if err != nil && s.err == nil {
		s.err = err
		s.log.Error("samples cannot be written", zap.String("file", s.name), zap.Error(err))
	}
}
