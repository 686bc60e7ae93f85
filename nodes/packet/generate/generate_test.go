package generate

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/gen"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// world has the services of one VIP, and a number that is free.
func world(proto uint8, addrs ...netip.Addr) *state.Snapshot {
	s := &state.Snapshot{Services: make([]state.Service, 2)}
	for i, a := range addrs {
		s.Services = append(s.Services, state.Service{
			ID: uint32(i) + 2, VIP: "web", Prefix: netip.PrefixFrom(a, a.BitLen()), Proto: proto, Lo: 443, Hi: 443,
		})
	}
	return s
}

func newRig(t testing.TB, cores int, s *state.Snapshot, change func(*Config)) *nodetest.Rig {
	var port *gen.Port
	r := nodetest.New(t, "generate", change, nodetest.Cores(cores), nodetest.WithState(s), func(r *nodetest.Rig) {
		nodetest.WithPort(func(s graph.PortSpec) (p graph.Port, err error) {
			var c gen.Config
			if err := json.Unmarshal([]byte(s.Args), &c); err != nil || s.Driver != "gen" {
				t.Fatalf("asked for %+v: %v", s, err)
			}
			m, _ := r.Memory()
			port, err = gen.Open(s.Name, c, s.Queues, mem.Config{Mem: m, Chunk: nodetest.Chunk, Rings: 256})
			return port, err
		})(r)
	})
	t.Cleanup(func() { _ = port.Close() })
	for q := range port.Queues() {
		w := r.Workers[q%cores]
		for range 128 {
			f, _ := w.Alloc()
			port.Queue(q).Refill([]uint32{f})
		}
	}
	return r
}

// turn receives a vector and gives the frames back.
func turn(w *nodetest.Worker) (all [][]byte) {
	w.Load()
	lanes := w.Process(0)["next"]
	for m := lanes; m != 0; m &= m - 1 {
		all = append(all, bytes.Clone(w.V.Bytes(m.Next())))
	}
	if q := w.ID(); len(all) > 0 {
		w.Ports[0].Queue(q).Refill(w.V.Frame[:len(all)])
	}
	return all
}

func TestPacketsGoToTheVIPs(t *testing.T) {
	r := newRig(t, 2, world(packet.ProtoTCP, nodetest.VIP4, nodetest.VIP6), func(c *Config) { c.Queues, c.Count, c.Sizes = 2, 1000, []int{100} })
	var v4, v6, syn int
	for _, w := range r.Workers {
		n := 0
		for fs := turn(w); len(fs) > 0; fs = turn(w) {
			n += len(fs)
			for _, b := range fs {
				d := nodetest.Decode(b)
				tcp, ok := d.TransportLayer().(*layers.TCP)
				if !ok || tcp.DstPort != 443 || len(b) != 100 {
					t.Fatal(d)
				}
				if tcp.SYN {
					syn++
				}
				switch d.NetworkLayer().NetworkFlow().Dst().String() {
				case nodetest.VIP4.String():
					v4++
				case nodetest.VIP6.String():
					v6++
				default:
					t.Fatal(d)
				}
			}
		}
		if n != 500 {
			t.Errorf("core %d received %d packets", w.ID(), n)
		}
	}
	if v4 < 300 || v6 < 300 || syn == 0 || syn == 1000 {
		t.Errorf("%d of IPv4, %d of IPv6, %d SYN", v4, v6, syn)
	}
}

func TestTargetsFollowTheSnapshot(t *testing.T) {
	r := newRig(t, 1, world(packet.ProtoUDP), func(c *Config) { c.Mix.V6 = 0 })
	w := r.Workers[0]
	if fs := turn(w); len(fs) != 0 {
		t.Errorf("%d packets towards nothing", len(fs))
	}
	other := netip.MustParseAddr("203.0.113.99")
	r.Publish(world(packet.ProtoUDP, other))
	for _, b := range turn(w) {
		if dst := nodetest.Decode(b).NetworkLayer().NetworkFlow().Dst().String(); dst != other.String() {
			t.Fatalf("a packet to %s", dst)
		}
	}
	r.Publish(world(packet.ProtoUDP, nodetest.VIP6))
	if fs := turn(w); len(fs) > 1 { // one was made before
		t.Errorf("%d packets against the mix", len(fs))
	}
}

func TestAFlood(t *testing.T) {
	r := newRig(t, 1, world(packet.ProtoTCP, nodetest.VIP4), func(c *Config) { c.SYNFlood, c.Flows = true, 1 })
	seen := map[string]bool{}
	n := 0
	for range 50 {
		for _, b := range turn(r.Workers[0]) {
			d := nodetest.Decode(b)
			if !d.TransportLayer().(*layers.TCP).SYN {
				t.Fatal(d)
			}
			seen[d.NetworkLayer().NetworkFlow().String()+d.TransportLayer().TransportFlow().String()] = true
			n++
		}
	}
	if n == 0 || len(seen) != n {
		t.Errorf("%d flows of %d SYNs", len(seen), n)
	}
}

func TestCheckRefuses(t *testing.T) {
	k := graph.Lookup("generate")
	c := k.NewConfig().(*Config)
	if err := k.CheckConfig(c); err != nil {
		t.Error(err)
	}
	c.Mix = Mix{}
	if err := k.CheckConfig(c); err == nil {
		t.Error("a mix of nothing passes")
	}
	if a, b := k.Ports(c)[0], k.Ports(&Config{Flows: 2, Queues: 1})[0]; a == b {
		t.Error("two configurations are one port")
	}
	if _, err := k.Packets(c, &graph.Env{Port: func(graph.PortSpec) (graph.Port, error) {
		return mem.Open(mem.Config{Mem: make([]byte, 4096), Chunk: 2048}, 1, graph.PortInfo{Name: "m0"})
	}}); err == nil {
		t.Error("a port that makes nothing is taken")
	}
}

func TestNothingIsAllocated(t *testing.T) {
	r := newRig(t, 1, world(packet.ProtoTCP, nodetest.VIP4), nil)
	w := r.Workers[0]
	w.Load()
	if a := testing.AllocsPerRun(1000, func() {
		w.Run(0)
		r.Ports[0].Queue(0).Refill(w.V.Frame[:w.Out(0).Count()])
	}); a != 0 {
		t.Errorf("%v allocations a vector", a)
	}
}

// FuzzConfig makes packets by any configuration that Check lets pass.
func FuzzConfig(f *testing.F) {
	f.Add(1000, 64, 1, 1, 0, 1, 1, false, uint64(0))
	f.Add(1, 9018, 0, 0, 5, 0, 1, true, uint64(1<<63))
	f.Fuzz(func(t *testing.T, flows, size, tcp, udp, icmp, v4, v6 int, flood bool, seed uint64) {
		c := Config{Flows: flows & 0xffff, Sizes: []int{size}, Mix: Mix{tcp, udp, icmp, v4, v6}, SYNFlood: flood, Seed: seed, Queues: 1, Count: 100}
		g := c.traffic()
		if max(tcp, udp, icmp, v4, v6) > 1000 || g.Check() != nil {
			return
		}
		m := make([]byte, 1024*2048)
		p, err := gen.Open("g", g, 1, mem.Config{Mem: m, Chunk: 2048, Rings: 1024})
		if err != nil {
			t.Fatal(err)
		}
		aimed := p.Aim(targets(world(0, nodetest.VIP4, nodetest.VIP6)))
		w := &worker{queues: []graph.Queue{p.Queue(0)}}
		v := &packet.Vector{Mem: m, Links: make([]packet.Link, 1024)}
		for i := range uint32(1024) {
			p.Queue(0).Refill([]uint32{i})
		}
		n := 0
		for out := make([]packet.Lanes, 1); ; clear(out) {
			w.Process(v, 0, out)
			if out[0] == 0 {
				break
			}
			for i := range out[0].Count() {
				if int(v.Total[i]) < size {
					t.Fatalf("%d bytes, want %d", v.Total[i], size)
				}
				n++
			}
		}
		if aimed > 0 && n != 100 && size < 1700 {
			t.Fatalf("%d packets", n)
		}
	})
}

func BenchmarkGenerate(b *testing.B) {
	r := newRig(b, 1, world(packet.ProtoTCP, nodetest.VIP4, nodetest.VIP6), nil)
	w := r.Workers[0]
	w.Load()
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		w.Run(0)
		k := w.Out(0).Count()
		r.Ports[0].Queue(0).Refill(w.V.Frame[:k])
		n += k
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/packet")
}
