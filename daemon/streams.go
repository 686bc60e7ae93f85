package daemon

import (
	"context"
	"slices"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/runtime/hugeheap"
	"github.com/lbgraph/lbgraph/runtime/streams"
)

// hugeHeap is how much of the heap is on huge pages where there are streams: some 20 000
// busy connections.
const hugeHeap = 256 << 20

func isStream(g *graph.Graph) bool { return g.Plane == graph.StreamPlane }

// openStreams prepares the stream blocks of f; Start of the engine opens their
// sockets.
func (d *Daemon) openStreams(f *graph.File) (err error) {
	if slices.ContainsFunc(f.Graphs, isStream) {
		hugeheap.Reserve(hugeHeap)
	}
	d.streams, err = streams.New(f.Graphs, streams.Options{State: d.store.Cell(), Watch: d.store.Watch, Host: d, Log: d.log})
	return err
}

// streamSteps are the steps of a reload that take over the stream blocks of f, if
// there are any: they change while they run, and their sockets stay open.
func (d *Daemon) streamSteps(f, old *graph.File) []step {
	if !slices.ContainsFunc(f.Graphs, isStream) && !slices.ContainsFunc(old.Graphs, isStream) {
		return nil
	}
	hugeheap.Reserve(hugeHeap) // the first file may have had none
	return []step{{"streams", func() error { return d.streams.Swap(f.Graphs) }, func() error { return d.streams.Swap(old.Graphs) }}}
}

// stopStreams stops accepting connections, and lets what is in flight end for as
// long as streams.StopTime. Only its first call does.
func (d *Daemon) stopStreams(ctx context.Context) {
	d.streamsOnce.Do(func() {
		if d.streams == nil {
			return
		}
		// A time of their own: clients are waiting.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), streams.StopTime)
		defer cancel()
		if err := d.streams.Stop(ctx); err != nil {
			d.log.Warn("the streams did not end in time", zap.Error(err))
		}
	})
}

// StreamStats answers the counts of every stream block.
func (d *Daemon) StreamStats() []graph.StreamStats { return d.streams.Stats() }

// Streams is what runs the stream blocks.
func (d *Daemon) Streams() *streams.Engine { return d.streams }
