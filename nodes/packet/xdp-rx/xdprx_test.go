package xdprx

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// newRig makes the node over a memory port of so many queues.
func newRig(t testing.TB, cores, queues int) (*nodetest.Rig, *mem.Port) {
	var port *mem.Port
	r := nodetest.New(t, "xdp-rx", func(c *Config) { c.Interface = "eth0" }, nodetest.Cores(cores), func(r *nodetest.Rig) {
		nodetest.WithPort(func(s graph.PortSpec) (p graph.Port, err error) {
			if want := (graph.PortSpec{Driver: "xdp", Name: "eth0", Mode: "auto"}); s != want {
				t.Errorf("asked for %+v, want %+v", s, want)
			}
			m, _ := r.Memory()
			port, err = mem.Open(mem.Config{Mem: m, Chunk: nodetest.Chunk, Rings: 1024}, queues, graph.PortInfo{Name: s.Name})
			return port, err
		})(r)
	})
	t.Cleanup(func() { _ = port.Close() })
	// The rig's cores own frames of their own; each queue gets those of its core.
	for q := range queues {
		w := r.Workers[q%cores]
		frames := make([]uint32, 128)
		for i := range frames {
			f, ok := w.Alloc()
			if !ok {
				t.Fatal("no frame")
			}
			frames[i] = f
		}
		if n := port.Queue(q).Refill(frames); n != len(frames) {
			t.Fatal(n)
		}
	}
	return r, port
}

// frames answers n frames that say where they are injected.
func frames(q, n int) (all [][]byte) {
	for i := range n {
		all = append(all, fmt.Appendf(nil, "queue %d packet %03d", q, i))
	}
	return all
}

func TestQueuesBelongToCores(t *testing.T) {
	for _, c := range []struct{ cores, queues int }{{1, 1}, {1, 3}, {2, 4}, {3, 2}, {4, 4}} {
		r, port := newRig(t, c.cores, c.queues)
		for q := range c.queues {
			port.Inject(q, frames(q, 3)...)
		}
		for id, w := range r.Workers {
			var got []int
			for {
				w.Load()
				lanes := w.Process(0)["next"]
				if lanes == 0 {
					break
				}
				if lanes != packet.All(3) {
					t.Errorf("lanes %b", lanes)
				}
				var q, n int
				if _, err := fmt.Sscanf(string(w.V.Bytes(0)), "queue %d packet %d", &q, &n); err != nil || n != 0 {
					t.Fatalf("%q: %v", w.V.Bytes(0), err)
				}
				got = append(got, q)
			}
			var want []int
			for q := id; q < c.queues; q += c.cores {
				want = append(want, q)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%d cores, %d queues: core %d receives from %v, want %v", c.cores, c.queues, id, got, want)
			}
		}
	}
}

func TestABusyQueueDelaysTheOthersByOneVector(t *testing.T) {
	r, port := newRig(t, 1, 3)
	w := r.Workers[0]
	port.Inject(0, frames(0, 120)...)
	port.Inject(2, frames(2, 1)...)
	var order []string
	for {
		w.Load()
		lanes := w.Process(0)["next"]
		if lanes == 0 {
			break
		}
		order = append(order, fmt.Sprintf("%c×%d", w.V.Bytes(0)[6], lanes.Count()))
	}
	if want := []string{"0×64", "2×1", "0×56"}; fmt.Sprint(order) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", order, want)
	}
}

func TestFramesStandAsTheyCame(t *testing.T) {
	r, port := newRig(t, 1, 1)
	w := r.Workers[0]
	cases := nodetest.Cases(t)
	for name, b := range cases {
		port.Inject(0, b)
		w.Load()
		if lanes := w.Process(0)["next"]; lanes != 1 {
			t.Fatalf("%s: lanes %b", name, lanes)
		}
		if !bytes.Equal(w.V.Bytes(0), b) || w.V.Total[0] != uint32(len(b)) {
			t.Errorf("%s changed", name)
		}
		port.Queue(0).Refill([]uint32{w.V.Frame[0]})
	}
}

func TestAPortThatDoesNotOpen(t *testing.T) {
	k := graph.Lookup("xdp-rx")
	want := errors.New("no such interface")
	c := k.NewConfig()
	c.(*Config).Interface = "nowhere0"
	if _, err := k.Packets(c, &graph.Env{Port: func(graph.PortSpec) (graph.Port, error) { return nil, want }}); !errors.Is(err, want) {
		t.Errorf("%v", err)
	}
	if s := k.Ports(c); len(s) != 1 || s[0].Name != "nowhere0" || k.Interface(c) != "nowhere0" {
		t.Errorf("%v", s)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	r, port := newRig(t, 1, 2)
	w := r.Workers[0]
	port.Repeat(0, 1<<40, frames(0, 3)...)
	port.Repeat(1, 1<<40, frames(1, 3)...)
	q := 0
	if a := testing.AllocsPerRun(1000, func() {
		w.Run(0)
		port.Queue(q).Refill(w.V.Frame[:w.Out(0).Count()])
		q ^= 1
	}); a != 0 {
		t.Errorf("%v allocations a vector", a)
	}
}

// FuzzReceive receives frames of any bytes and length.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("x"), uint16(1))
	f.Add([]byte{0, 1, 2}, uint16(9000))
	r, port := newRig(f, 1, 1)
	w := r.Workers[0]
	f.Fuzz(func(t *testing.T, b []byte, n uint16) {
		r.T = t
		if len(b) == 0 {
			return
		}
		frame := bytes.Repeat(b, int(n)/len(b)+1)[:max(1, int(n))]
		port.Inject(0, frame)
		w.Load()
		lanes := w.Process(0)["next"]
		if lanes != 1 {
			t.Fatalf("lanes %b for %d bytes", lanes, len(frame))
		}
		used := []uint32{w.V.Frame[0]}
		got := bytes.Clone(w.V.Bytes(0))
		for c := w.V.Chain[0]; c != packet.NoFrame; c = w.V.Links[c].Next {
			l := w.V.Links[c]
			got = append(got, w.V.Mem[l.Start:l.Start+l.Len]...)
			used = append(used, c)
		}
		port.Queue(0).Refill(used)
		if !bytes.Equal(got, frame) || w.V.Total[0] != uint32(len(frame)) {
			t.Fatalf("%d bytes of %d", len(got), len(frame))
		}
	})
}

func BenchmarkReceive(b *testing.B) {
	r, port := newRig(b, 1, 1)
	w := r.Workers[0]
	port.Repeat(0, 1<<40, make([]byte, 64))
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		w.Run(0)
		k := w.Out(0).Count()
		port.Queue(0).Refill(w.V.Frame[:k])
		n += k
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/packet")
}
