package xdptx

import (
	"bytes"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// newRig makes the node on so many cores, over memory ports with so many queues
// each. With a name, the node asks for the first port by it.
func newRig(t testing.TB, cores int, name string, queues ...int) (r *nodetest.Rig, ports []*mem.Port) {
	r = nodetest.New(t, "xdp-tx", func(c *Config) { c.Interface = name }, nodetest.Cores(cores), func(r *nodetest.Rig) {
		open := func(s graph.PortSpec, q int) *mem.Port {
			m, _ := r.Memory()
			p, err := mem.Open(mem.Config{Mem: m, Chunk: nodetest.Chunk, Rings: 64}, q, graph.PortInfo{Name: s.Name, MTU: 1500})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = p.Close() })
			ports = append(ports, p)
			return p
		}
		if name != "" {
			nodetest.WithPort(func(s graph.PortSpec) (graph.Port, error) {
				if want := (graph.PortSpec{Driver: "xdp", Name: name}); s != want {
					t.Errorf("asked for %+v, want %+v", s, want)
				}
				return open(s, queues[0]), nil
			})(r)
			return
		}
		r.Env.Ports = func() []graph.Port {
			if len(r.Ports) == 0 {
				for _, q := range queues {
					r.Ports = append(r.Ports, open(graph.PortSpec{}, q))
				}
			}
			return r.Ports
		}
	})
	return r, ports
}

func frame(n int, seed byte) []byte {
	b := bytes.Repeat([]byte{seed}, n)
	copy(b[12:], []byte{8, 0})
	return b
}

func frames(n int) (all [][]byte) {
	for i := range n {
		all = append(all, frame(60+i, byte(i)))
	}
	return all
}

// sent flushes and answers what queue q sent.
func sent(p *mem.Port, q int) (all [][]byte) {
	p.Queue(q).Flush()
	for _, s := range p.Sent(q) {
		all = append(all, s.Data)
	}
	return all
}

func equal(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func TestPacketsLeaveInOrder(t *testing.T) {
	for _, name := range []string{"", "eth1"} {
		r, ports := newRig(t, 1, name, 1)
		w := r.Workers[0]
		fs := frames(20)
		in := w.Load(fs...)
		if ans := w.Process(in); len(ans) != 0 || w.Gone != in {
			t.Errorf("answers %v, sent %b", ans, w.Gone)
		}
		if !equal(sent(ports[0], 0), fs) {
			t.Error("not as they came")
		}
		// Not dense.
		in = w.Load(fs...) &^ 0b1010
		w.V.Port = [64]uint16{}
		if ans := w.Process(in); len(ans) != 0 || w.Gone != in {
			t.Errorf("answers %v, sent %b", ans, w.Gone)
		}
		if got := sent(ports[0], 0); len(got) != 18 || !bytes.Equal(got[1], fs[2]) {
			t.Errorf("%d sent", len(got))
		}
	}
}

func TestPacketsLeaveByThePortThatReceivedThem(t *testing.T) {
	r, ports := newRig(t, 1, "", 1, 1, 1)
	w := r.Workers[0]
	fs := frames(9)
	in := w.Load(fs...)
	for i := range fs {
		w.V.Port[i] = uint16(i % 3)
	}
	w.Process(in)
	for p := range 3 {
		if got := sent(ports[p], 0); !equal(got, [][]byte{fs[p], fs[p+3], fs[p+6]}) {
			t.Errorf("port %d sent %d packets, or wrong ones", p, len(got))
		}
	}
}

func TestACoreWithoutAQueuePassesOn(t *testing.T) {
	r, ports := newRig(t, 4, "", 2)
	for id, w := range r.Workers {
		w.Process(w.Load(frames(2)...))
		if id < 2 {
			if len(w.Passed) != 0 || len(sent(ports[0], id)) != 2 {
				t.Errorf("core %d passed %d", id, len(w.Passed))
			}
			continue
		}
		if len(w.Passed) != 2 || w.Passed[0].To != id-2 || w.Passed[0].Output != "" {
			t.Errorf("core %d passed %+v", id, w.Passed)
		}
	}
	if ans := r.Deliver(); len(ans) != 4 {
		t.Errorf("%d arrivals", len(ans))
	}
	for q := range 2 {
		if got := sent(ports[0], q); len(got) != 2 {
			t.Errorf("queue %d sent %d packets of another core", q, len(got))
		}
	}
	w := r.Workers[3]
	w.RingFull = true
	if ans := w.Process(w.Load(frames(2)...)); ans["tx_full"] != 3 {
		t.Errorf("%v with full rings", ans)
	}
}

func TestAShortTransmitIsTriedAgainAndCounted(t *testing.T) {
	r, ports := newRig(t, 1, "", 1)
	w := r.Workers[0]
	ports[0].Limit(7)
	in := w.Load(frames(64)...)
	ans := w.Process(in)
	if want := packet.All(64) &^ packet.All(14); ans["tx_full"] != want || w.Gone != packet.All(14) {
		t.Errorf("%b dropped, want %b", ans["tx_full"], want)
	}
	if got := sent(ports[0], 0); !equal(got, frames(14)) {
		t.Errorf("%d sent", len(got))
	}
	// A full ring whose kernel was only asleep loses nothing.
	r, ports = newRig(t, 1, "", 1) // rings of 64
	w = r.Workers[0]
	for range 2 {
		if ans := w.Process(w.Load(frames(40)...)); ans["tx_full"] != 0 {
			t.Errorf("%v", ans)
		}
		ports[0].Queue(0).Flush()
		ports[0].Queue(0).Reclaim(make([]uint32, 64))
	}
	ports[0].Stop()
	if ans := w.Process(w.Load(frames(64)...)); len(ans) != 0 {
		t.Errorf("a port that has just stopped: %v", ans)
	}
	if ans := w.Process(w.Load(frames(3)...)); ans["tx_full"] != 7 {
		t.Errorf("a stopped port whose ring is full: %v", ans)
	}
}

func TestTheNextQueueTakesWhatOneHasNoRoomFor(t *testing.T) {
	r, ports := newRig(t, 1, "", 2)
	w := r.Workers[0]
	ports[0].Limit(20)
	if ans := w.Process(w.Load(frames(64)...)); len(ans) != 0 {
		t.Errorf("%v", ans)
	}
	if a, b := len(sent(ports[0], 0)), len(sent(ports[0], 1)); a != 40 || b != 24 {
		t.Errorf("%d and %d", a, b)
	}
}

func TestWhatTheInterfaceWouldNotCarryDrops(t *testing.T) {
	tagged := func(n int, kinds ...byte) []byte {
		b := frame(n, 1)
		for i, k := range kinds {
			copy(b[12+4*i:], []byte{k, map[byte]byte{0x81: 0, 0x88: 0xa8}[k], 0, 100, 8, 0})
		}
		return b
	}
	for _, c := range []struct {
		b    []byte
		want string
	}{
		{frame(1514, 1), ""},
		{frame(1515, 1), "tx_too_long"},
		{tagged(1518, 0x81), ""},
		{tagged(1519, 0x81), "tx_too_long"},
		{tagged(1522, 0x88, 0x81), ""},
		{tagged(1523, 0x88, 0x81), "tx_too_long"},
		{frame(1518, 1), "tx_too_long"},
	} {
		r, _ := newRig(t, 1, "", 1)
		w := r.Workers[0]
		in := w.Load(frame(60, 0), c.b, frame(60, 0))
		if got := w.Only(w.Process(in), 1); got != c.want {
			t.Errorf("%d bytes, type %x: %q, want %q", len(c.b), c.b[12:14], got, c.want)
		}
		if got := w.Only(w.Process(w.Load(frame(60, 0), c.b)&2), 1); got != c.want {
			t.Errorf("%d bytes alone: %q, want %q", len(c.b), got, c.want)
		}
		in = w.Load(frame(60, 0), c.b, frame(60, 0))
		for name, lanes := range w.Process(in &^ 2) {
			if lanes != 0 {
				t.Errorf("%d bytes beside: lanes %x leave by %q", len(c.b), lanes, name)
			}
		}
	}
}

// The length of a packet in several frames is that of the whole.
func TestWhatTheInterfaceWouldNotCarryInSeveralFramesDrops(t *testing.T) {
	for total, want := range map[uint32]string{1514: "", 1515: "tx_too_long"} {
		r, _ := newRig(t, 1, "", 1)
		w := r.Workers[0]
		in := w.Load(frame(60, 0), frame(1000, 1), frame(60, 0))
		w.V.Total[1] = total
		if got := w.Only(w.Process(in), 1); got != want {
			t.Errorf("%d bytes, 1000 of them in the first frame: %q, want %q", total, got, want)
		}
	}
}

func TestAGraphWithoutInterfaces(t *testing.T) {
	k := graph.Lookup("xdp-tx")
	mk, err := k.Packets(k.NewConfig(), &graph.Env{Ports: func() []graph.Port { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	w := nodetest.New(t, "xdp-tx", func(c *Config) { c.Interface = "eth0" }, nodetest.WithPort(func(s graph.PortSpec) (graph.Port, error) {
		return mem.Open(mem.Config{Mem: make([]byte, 4096), Chunk: 2048}, 1, graph.PortInfo{})
	})).Workers[0]
	if _, err := mk(w); err == nil || !strings.Contains(err.Error(), "interface = ") {
		t.Errorf("%v", err)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	r, ports := newRig(t, 1, "", 1)
	w := r.Workers[0]
	ports[0].Discard()
	in := w.Load(frames(64)...)
	done := make([]uint32, 64)
	if a := testing.AllocsPerRun(1000, func() {
		w.Run(in)
		ports[0].Queue(0).Flush()
		ports[0].Queue(0).Reclaim(done)
	}); a != 0 {
		t.Errorf("%v allocations a vector", a)
	}
}

// FuzzSend sends frames of any bytes and length over ports of any number: all are
// sent as they are, or dropped with a reason.
func FuzzSend(f *testing.F) {
	f.Add([]byte{0x81, 0, 0, 1, 8, 0}, uint16(1518), uint8(1))
	f.Add([]byte{8, 0}, uint16(1514), uint8(0))
	r, ports := newRig(f, 1, "", 1, 1)
	w := r.Workers[0]
	f.Fuzz(func(t *testing.T, head []byte, n uint16, port uint8) {
		r.T = t
		b := make([]byte, max(1, min(int(n), nodetest.Chunk-nodetest.Front)))
		copy(b[min(12, len(b)):], head)
		in := w.Load(b, b)
		w.V.Port[0], w.V.Port[1] = uint16(port&1), uint16(port>>1&1)
		ans := w.Process(in)
		var got int
		for _, p := range ports {
			for _, s := range sent(p, 0) {
				got++
				if !bytes.Equal(s, b) {
					t.Fatal("bytes changed")
				}
			}
			p.Queue(0).Reclaim(make([]uint32, 64))
		}
		if got+(ans["tx_too_long"]|ans["tx_full"]).Count() != 2 || len(b) <= 1514 && got != 2 {
			t.Fatalf("%d of %d bytes sent, %v", got, len(b), ans)
		}
		w.Reuse()
	})
}

func BenchmarkSend(b *testing.B) {
	r, ports := newRig(b, 1, "", 1)
	w := r.Workers[0]
	ports[0].Discard()
	in := w.Load(frames(64)...)
	done := make([]uint32, 64)
	b.ReportAllocs()
	for b.Loop() {
		w.Run(in)
		ports[0].Queue(0).Flush()
		ports[0].Queue(0).Reclaim(done)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
}
