package sample

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/pcapgo"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func rig(t testing.TB, file string, every int, opts ...nodetest.Option) *nodetest.Rig {
	return nodetest.New(t, "sample", func(c *Config) { c.File, c.Every = file, every }, opts...)
}

// frames makes n frames that tell their number.
func frames(t testing.TB, from, n int) (all [][]byte) {
	for i := range n {
		all = append(all, nodetest.UDP(t, nodetest.Client4, nodetest.VIP4, uint16(from+i), 4500, 1, 2, 3))
	}
	return all
}

type record struct {
	data []byte
	info gopacket.CaptureInfo
}

// read answers a capture's packets by an independent reader.
func read(t testing.TB, file string) (all []record) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, i, err := r.ReadPacketData()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, record{b, i})
	}
}

func closeAll(t testing.TB, r *nodetest.Rig) {
	t.Helper()
	for _, w := range r.Workers {
		if err := w.Node.(*worker).Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestEvery(t *testing.T) {
	for _, every := range []int{1, 2, 3, 7, 64, 65, 200} {
		file := filepath.Join(t.TempDir(), "x.pcap")
		r := rig(t, file, every)
		w := r.Workers[0]
		var want [][]byte
		n := 0
		for _, in := range []packet.Lanes{packet.All(10), 0xf0f0, 1 << 63, packet.All(64), 0, packet.All(1), packet.All(50)} {
			all := frames(t, n, 64)
			w.Reuse()
			w.Load(all...)
			if ans := w.Process(in); ans["next"] != in {
				t.Errorf("every %d: %b became %v", every, in, ans)
			}
			for l := in; l != 0; l &= l - 1 {
				if n++; n%every == 0 {
					want = append(want, all[l.Next()])
				}
			}
			w.Node.(*worker).sink.drain()
		}
		closeAll(t, r)
		if len(want) == 0 && every < n {
			t.Fatalf("every %d: nothing to expect", every)
		}
		if w.Counter("sampled") != uint64(len(want)) || w.Counter("lost") != 0 {
			t.Errorf("every %d: %v, want %d", every, w.Counters, len(want))
		}
		if len(want) == 0 {
			continue
		}
		got := read(t, file)
		if len(got) != len(want) {
			t.Fatalf("every %d: %d packets in the file, want %d", every, len(got), len(want))
		}
		for i := range got {
			if !bytes.Equal(got[i].data, want[i]) {
				t.Errorf("every %d: packet %d is %x, want %x", every, i, got[i].data, want[i])
			}
			if at := got[i].info.Timestamp; !at.Equal(time.Unix(0, 1e12)) {
				t.Errorf("every %d: time %v", every, at)
			}
		}
	}
}

// Ticks have it written while the graph runs.
func TestTick(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.pcap")
	r := rig(t, file, 1)
	w := r.Workers[0]
	w.Process(w.Load(frames(t, 0, 3)...))
	w.Node.(graph.Ticker).Tick(w.Clock)
	for end := time.Now().Add(5 * time.Second); w.Node.(*worker).shelf.waiting() > 0; {
		if time.Now().After(end) {
			t.Fatal("nothing is written")
		}
		time.Sleep(time.Millisecond)
	}
	closeAll(t, r)
	if n := len(read(t, file)); n != 3 {
		t.Errorf("%d packets", n)
	}
}

// What the file has no time for is counted and goes on all the same.
func TestLost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.pcap")
	r := rig(t, file, 1)
	w := r.Workers[0]
	for range 3 {
		w.Reuse()
		in := w.Load(frames(t, 0, 64)...)
		if ans := w.Process(in); ans["next"] != in {
			t.Errorf("%v", ans)
		}
	}
	if w.Counter("sampled") != slots || w.Counter("lost") != 192-slots {
		t.Errorf("%v", w.Counters)
	}
	closeAll(t, r)
	if n := len(read(t, file)); n != slots {
		t.Errorf("%d packets", n)
	}
}

// Cores write one file, in the order of time; a packet of several frames keeps its length.
func TestCores(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.pcap")
	r := rig(t, file, 1, nodetest.Cores(3))
	for round := range 4 {
		for i, w := range r.Workers {
			w.Clock = 1e12 + int64(round*10+i)
			w.Reuse()
			in := w.Load(frames(t, round*10+i, 1)...)
			w.V.Total[0] = 9000
			w.Process(in)
		}
	}
	closeAll(t, r)
	got := read(t, file)
	if len(got) != 12 {
		t.Fatalf("%d packets", len(got))
	}
	for k, p := range got {
		want := k/3*10 + k%3
		if !bytes.Equal(p.data, frames(t, want, 1)[0]) || p.info.Length != 9000 || p.info.Timestamp.UnixNano() != 1e12+int64(want) {
			t.Errorf("packet %d: %v %x", k, p.info, p.data)
		}
	}
}

// A reload that leaves the file's name goes on in the same file; another name begins another.
func TestInherit(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.pcap"), filepath.Join(dir, "b.pcap")
	run := func(r *nodetest.Rig) {
		w := r.Workers[0]
		w.Process(w.Load(frames(t, 0, 2)...))
	}
	first := rig(t, a, 1)
	run(first)
	first.Workers[0].Node.(*worker).sink.drain()
	second := rig(t, a, 1)
	second.Workers[0].Node.(graph.Inheritor).Inherit(first.Workers[0].Node)
	run(second)
	third := rig(t, b, 2)
	old := second.Workers[0].Node.(*worker).sink
	third.Workers[0].Node.(graph.Inheritor).Inherit(second.Workers[0].Node)
	run(third)
	closeAll(t, third)
	for end := time.Now().Add(5 * time.Second); old.users.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the old file is not closed")
		}
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	if n := len(read(t, a)); n != 4 || old.file != nil {
		t.Errorf("%d packets in the file of two generations", n)
	}
	if n := len(read(t, b)); n != 1 {
		t.Errorf("%d packets in the new file", n)
	}
}

func TestUnwritable(t *testing.T) {
	k := graph.Lookup("sample")
	c := k.NewConfig().(*Config)
	if k.CheckConfig(c) == nil {
		t.Error("a file without a name is taken")
	}
	c.File = filepath.Join(t.TempDir(), "no", "such", "x.pcap")
	if _, err := k.Packets(c, &graph.Env{Cores: 1}); err == nil {
		t.Error("a folder that is not there is taken")
	}
	// A file that fails later is told of once, and packets go on.
	file := filepath.Join(t.TempDir(), "x.pcap")
	r := rig(t, file, 1)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o755); err != nil {
		t.Fatal(err)
	}
	w := r.Workers[0]
	in := w.Load(frames(t, 0, 2)...)
	for range 200 {
		if ans := w.Process(in); ans["next"] != in {
			t.Fatalf("%v", ans)
		}
		w.Node.(*worker).sink.drain()
	}
	if w.Node.(*worker).sink.err == nil {
		t.Error("no error")
	}
	closeAll(t, r)
}

// Samples are every n-th packet whatever the vectors are.
func FuzzSample(f *testing.F) {
	f.Add(uint64(0xffff), uint64(1), uint16(3))
	file := filepath.Join(f.TempDir(), "x.pcap")
	f.Fuzz(func(t *testing.T, a, b uint64, every uint16) {
		w := rig(t, file, int(every)%100+1).Workers[0]
		w.Load(frames(t, 0, 1)...)
		n := 0
		for _, in := range []packet.Lanes{packet.Lanes(a), packet.Lanes(b), packet.Lanes(a ^ b)} {
			for i := 1; i < packet.Size; i++ {
				w.V.Start[i], w.V.Len[i], w.V.Total[i] = w.V.Start[0], w.V.Len[0], w.V.Total[0]
			}
			w.Process(in)
			n += in.Count()
		}
		if got := w.Counter("sampled") + w.Counter("lost"); got != uint64(n/(int(every)%100+1)) {
			t.Fatalf("%d of %d packets", got, n)
		}
	})
}

func TestNoAllocation(t *testing.T) {
	w := rig(t, filepath.Join(t.TempDir(), "x.pcap"), 5).Workers[0]
	in := w.Load(frames(t, 0, 64)...)
	if n := testing.AllocsPerRun(100, func() { w.Run(in) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkSample reports nanoseconds a packet at one sample in a thousand.
func BenchmarkSample(b *testing.B) {
	w := rig(b, filepath.Join(b.TempDir(), "x.pcap"), 1000).Workers[0]
	in := w.Load(frames(b, 0, 64)...)
	shelf := w.Node.(*worker).shelf
	b.ReportAllocs()
	for b.Loop() {
		w.Run(in)
		shelf.head.Store(shelf.tail.Load()) // as if written
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
}
