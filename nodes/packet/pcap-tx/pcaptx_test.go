package pcaptx

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/pcap"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func newRig(t testing.TB, cores int, open func(name string, c mem.Config) (graph.Port, error)) (r *nodetest.Rig, name string) {
	name = filepath.Join(t.TempDir(), "out.pcapng")
	r = nodetest.New(t, "pcap-tx", func(c *Config) { c.File = name }, nodetest.Cores(cores), func(r *nodetest.Rig) {
		nodetest.WithPort(func(s graph.PortSpec) (graph.Port, error) {
			if want := (graph.PortSpec{Driver: "pcap", Name: name, Write: true}); s != want {
				t.Errorf("asked for %+v", s)
			}
			m, _ := r.Memory()
			return open(s.Name, mem.Config{Mem: m, Chunk: nodetest.Chunk, Rings: 128})
		})(r)
	})
	t.Cleanup(func() { _ = r.Ports[0].Close() })
	return r, name
}

func toFile(name string, c mem.Config) (graph.Port, error) { return pcap.OpenWrite(name, c) }

func read(t testing.TB, name string) (all []pcap.Packet) {
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcap.NewReader(bytes.NewReader(b))
	for err == nil {
		var p pcap.Packet
		if p, err = r.Next(); err == nil {
			p.Data = bytes.Clone(p.Data)
			all = append(all, p)
		}
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	return all
}

func TestPacketsAreWritten(t *testing.T) {
	r, name := newRig(t, 1, toFile)
	w := r.Workers[0]
	var want [][]byte
	for _, b := range nodetest.Cases(t) {
		want = append(want, b)
	}
	w.Clock = 1_700_000_000_000_000_001
	in := w.Load(want...)
	if ans := w.Process(in); len(ans) != 0 || w.Gone != in {
		t.Errorf("%v, sent %b", ans, w.Gone)
	}
	r.Ports[0].Queue(0).Flush()
	w.Node.(graph.Ticker).Tick(0)
	got := read(t, name) // while the port is open
	if len(got) != len(want) {
		t.Fatalf("%d packets of %d", len(got), len(want))
	}
	for i, p := range got {
		if !bytes.Equal(p.Data, want[i]) || p.Time != w.Clock {
			t.Errorf("packet %d: %d bytes at %d", i, len(p.Data), p.Time)
		}
	}
}

func TestOneCoreWrites(t *testing.T) {
	r, name := newRig(t, 3, toFile)
	for _, w := range r.Workers {
		w.Process(w.Load([]byte{byte(w.ID()), 1, 2}))
	}
	if p := r.Workers[2].Passed; len(p) != 1 || p[0].To != 0 || p[0].Output != "" {
		t.Errorf("%+v", p)
	}
	r.Deliver()
	r.Ports[0].Queue(0).Flush()
	for _, w := range r.Workers {
		w.Node.(graph.Ticker).Tick(0)
	}
	if got := read(t, name); len(got) != 3 {
		t.Errorf("%d packets", len(got))
	}
	w := r.Workers[1]
	w.RingFull = true
	if ans := w.Process(w.Load([]byte{1})); ans["tx_full"] != 1 {
		t.Errorf("%v", ans)
	}
}

// broken is a file that takes n packets.
type broken struct {
	*mem.Port
	q    *mem.Queue
	n    int
	sync int
}

func (b *broken) Queue(int) graph.Queue  { return b.q }
func (b *broken) Put([]byte, int64) bool { b.n--; return b.n >= 0 }
func (b *broken) Flushed()               {}
func (b *broken) Sync()                  { b.sync++ }
func (b *broken) Err(int) error {
	if b.n < 0 {
		return errors.New("no space left on device")
	}
	return nil
}

func TestAFullDiskIsToldOnceAndCounted(t *testing.T) {
	b := &broken{n: 3}
	core, logs := observer.New(zapcore.DebugLevel)
	r, _ := newRig(t, 1, func(name string, c mem.Config) (_ graph.Port, err error) {
		b.q = mem.NewQueue(c, nil, b)
		b.Port, err = mem.Open(c, 1, graph.PortInfo{})
		return b, err
	})
	w := r.Workers[0]
	w.Node.(*worker).log = zap.New(core)
	if ans := w.Process(w.Load(make([][]byte, 8)...)); len(ans) != 0 {
		t.Errorf("%v", ans)
	}
	b.q.Flush()
	for range 3 {
		if ans := w.Process(w.Load([]byte{1}, []byte{2})); ans["write_failed"] != 3 {
			t.Errorf("%v", ans)
		}
		w.Node.(graph.Ticker).Tick(0)
	}
	if logs.Len() != 1 || b.sync != 0 {
		t.Errorf("logged %v, synced %d times", logs.All(), b.sync)
	}
}

func TestAShortTransmitIsTriedAgainAndCounted(t *testing.T) {
	var port *mem.Port
	r, _ := newRig(t, 1, func(name string, c mem.Config) (_ graph.Port, err error) {
		port, err = mem.Open(c, 1, graph.PortInfo{})
		return port, err
	})
	w := r.Workers[0]
	port.Limit(7)
	if ans := w.Process(w.Load(make([][]byte, 20)...)); ans["tx_full"] != packet.All(20)&^packet.All(14) {
		t.Errorf("%v", ans)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	r, _ := newRig(t, 1, toFile)
	w := r.Workers[0]
	in := w.Load(make([]byte, 64), make([]byte, 1500))
	q, done := r.Ports[0].Queue(0), make([]uint32, 64)
	if a := testing.AllocsPerRun(1000, func() {
		w.Run(in)
		q.Flush()
		q.Reclaim(done)
	}); a != 0 {
		t.Errorf("%v allocations a vector", a)
	}
}

// FuzzWrite writes frames of any bytes at any time; what is in the file is them.
func FuzzWrite(f *testing.F) {
	f.Add([]byte("abc"), int64(1))
	f.Add([]byte{}, int64(-5))
	r, name := newRig(f, 1, toFile)
	m, _ := r.Memory()
	w := r.Workers[0]
	n := w.Node.(*worker)
	f.Fuzz(func(t *testing.T, b []byte, now int64) {
		r.T = t
		port, err := pcap.OpenWrite(name, mem.Config{Mem: m, Chunk: nodetest.Chunk, Rings: 64})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = port.Close() }()
		n.queue, n.file = port.Queue(0), port
		b = b[:min(len(b), nodetest.Chunk-nodetest.Front)]
		w.Clock = now
		w.Process(w.Load(b))
		w.Reuse()
		n.queue.Flush()
		n.Tick(now)
		if got := read(t, name); len(got) != 1 || !bytes.Equal(got[0].Data, b) || got[0].Time != max(now, 0) {
			t.Fatalf("%d packets", len(got))
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	r, _ := newRig(b, 1, func(_ string, c mem.Config) (graph.Port, error) { return pcap.OpenWrite(os.DevNull, c) })
	w := r.Workers[0]
	frames := make([][]byte, 64)
	for i := range frames {
		frames[i] = make([]byte, 64)
	}
	in := w.Load(frames...)
	q, done := r.Ports[0].Queue(0), make([]uint32, 64)
	b.ReportAllocs()
	for b.Loop() {
		w.Run(in)
		q.Flush()
		q.Reclaim(done)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
}
