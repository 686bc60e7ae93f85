package bench

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	_ "github.com/lbgraph/lbgraph/nodes/all"
	lbruntime "github.com/lbgraph/lbgraph/runtime"
)

func sampled(t testing.TB, l Load, batch int) *Engine {
	t.Helper()
	f, err := NewSample(l.Flows).Load()
	if err != nil {
		t.Fatal(err)
	}
	e, err := NewEngine(f, l, batch, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestOracle sends thousands of random flows through the graph and through the
// reference: from SYN to FIN, in sizes and vectors of any kind, some backends drained and
// down in between. What leaves is the same, byte by byte, in the same order.
func TestOracle(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	e := sampled(t, Load{Flows: 5000, NewFlows: 20}, packet.Size)
	s := NewReference(e.Store.Cell().Load(), info.Addrs[0].As4(), e.Graph.NetworkMTU, 131072)
	defer s.Close()
	var want, got [][]byte
	e.port.sent = func(b []byte) { got = append(got, bytes.Clone(b)) }

	room := make([]byte, 4096)
	flags := []byte{packet.ACK, packet.ACK, packet.ACK, packet.SYN, packet.SYN | packet.ACK, packet.FIN | packet.ACK, packet.RST, packet.ACK | packet.PSH}
	seen := map[[6]byte]bool{}
	for round := range 200 {
		if round%20 == 10 {
			member := fmt.Sprint("b-", rnd.IntN(100))
			if err := e.Store.Drain("pool-0", member, round%40 == 10, false); err != nil {
				t.Fatal(err)
			}
			e.Store.Flush()
			s.snap = e.Store.Cell().Load()
		}
		e.load.sizes = []uint32{uint32(60 + rnd.IntN(1400)), 60, uint32(60 + rnd.IntN(100))}
		e.load.turn = 0
		e.port.batch = 1 + rnd.IntN(packet.Size)
		e.port.Arm(e.load, false)
		for _, a := range e.port.ready {
			b := e.port.mem[a.frame*e.port.chunk+front:][:a.size]
			tcp := b[34:]
			if tcp[13] == packet.ACK {
				f := flags[rnd.IntN(len(flags))]
				sum := uint16(tcp[16])<<8 | uint16(tcp[17])
				sum = packet.Update16(sum, uint16(tcp[12])<<8|uint16(tcp[13]), uint16(tcp[12])<<8|uint16(f))
				tcp[13], tcp[16], tcp[17] = f, byte(sum>>8), byte(sum)
			}
			seen[[6]byte(append(slices.Clone(b[26:30]), tcp[0], tcp[1]))] = true
			copy(room[front:], b)
			start, size, ok := s.Packet(room, front, len(b), int64(time.Since(clock)))
			if !ok {
				t.Fatalf("the reference left %x", b)
			}
			want = append(want, bytes.Clone(room[start:start+size]))
		}
		e.run()
		if len(got) != len(want) {
			t.Fatalf("round %d: %d packets of %d", round, len(got), len(want))
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("round %d, packet %d:\ngraph     %x\nreference %x", round, i, got[i], want[i])
			}
		}
		want, got = want[:0], got[:0]
	}
	if len(seen) < 10000 || s.hits == 0 || s.misses == 0 {
		t.Errorf("%d flows, %d hits, %d misses", len(seen), s.hits, s.misses)
	}
	st := e.Stats()
	if err := st.CheckConservation(); err != nil {
		t.Error(err)
	}
	ct := st.Node("ct")
	if h := ct.Counter("hits"); h != s.hits {
		t.Errorf("%d hits, the reference had %d", h, s.hits)
	}
	for i, c := range s.perBackend {
		if g := st.PerBackend[i]; g.Packets != c.packets || g.Bytes != c.bytes {
			t.Errorf("backend %d: %v, the reference counted %v", i, g, c)
		}
	}
	for i, c := range s.perService {
		if g := st.PerService[i]; g.Packets != c.packets || g.Bytes != c.bytes {
			t.Errorf("service %d: %v, the reference counted %v", i, g, c)
		}
	}
}

// TestTraffic looks at packets by an independent decoder.
func TestTraffic(t *testing.T) {
	for _, echo := range []bool{false, true} {
		e, err := NewEngine(mixed(t), Load{Flows: 400, NewFlows: 30, Sizes: []int{60, 90, 1514}, Echo: echo}, packet.Size, false)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		kinds := map[string]int{}
		flows := map[string]bool{}
		b := make([]byte, 2048)
		for range 3000 {
			n := e.load.Next(b)
			p := gopacket.NewPacket(b[:n], layers.LayerTypeEthernet, gopacket.Default)
			if p.ErrorLayer() != nil {
				t.Fatal(p)
			}
			flows[fmt.Sprint(p.NetworkLayer().NetworkFlow(), p.TransportLayer())] = true
			sum := uint32(0)
			var l4 []byte
			if ip, ok := p.NetworkLayer().(*layers.IPv4); ok {
				if packet.Checksum(b[14:34]) != 0 {
					t.Fatalf("a wrong header checksum in %x", b[:n])
				}
				l4 = b[34:n]
				if !echo {
					sum = packet.PseudoSum(packet.Addr6(ip.SrcIP.To16()), packet.Addr6(ip.DstIP.To16()), uint8(ip.Protocol), uint32(len(l4)))
				}
			} else {
				l4 = b[54:n]
				sum = packet.PseudoSum(packet.Addr6(b[22:]), packet.Addr6(b[38:]), b[20], uint32(len(l4)))
			}
			if packet.Fold(sum+packet.Sum(l4)) != 0xffff {
				t.Fatalf("a wrong checksum in %x", b[:n])
			}
			name := p.Layers()[1].LayerType().String() + "/" + p.Layers()[2].LayerType().String()
			if tcp, ok := p.TransportLayer().(*layers.TCP); ok && tcp.SYN {
				name += "/SYN"
			}
			kinds[name]++
		}
		want := []string{"IPv4/TCP", "IPv4/TCP/SYN", "IPv6/TCP", "IPv6/TCP/SYN", "IPv4/UDP", "IPv6/UDP"}
		if echo {
			want = []string{"IPv4/ICMPv4", "IPv6/ICMPv6"}
		}
		for _, k := range want {
			if kinds[k] < 50 {
				t.Errorf("%d of %s: %v", kinds[k], k, kinds)
			}
		}
		if !echo && len(flows) < 1000 {
			t.Errorf("%d flows", len(flows))
		}
	}
}

// mixed is a file with services of all kinds.
func mixed(t *testing.T) *graph.File {
	t.Helper()
	s := NewSample(1).Text()
	at := strings.Index(s, "graph ")
	f, err := load(s[:at] + `
vip "v6" {
  address  = "2001:db8::1"
  protocol = "tcp"
  ports    = [80]
  pool     = pool.pool-0
}
vip "echo" {
  address  = "203.0.113.1"
  protocol = "udp"
  ports    = [7]
  pool     = pool.pool-0
}
vip "echo6" {
  address  = "2001:db8::1"
  protocol = "udp"
  ports    = [7]
  pool     = pool.pool-0
}
` + s[at:])
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestEveryKind: whatever packet kind is registered can be measured.
func TestEveryKind(t *testing.T) {
	for _, k := range graph.Kinds() {
		if k.Plane != graph.PacketPlane {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r, err := Run(Options{Kinds: []string{k.Name}, Load: Load{Flows: 1000}, Count: 1, Slice: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range r.Nodes {
				if n.Kind != k.Name || n.Packets == 0 || median(n.PerPacket) <= 0 {
					t.Errorf("%+v", n)
				}
			}
			if len(r.Nodes) == 0 {
				t.Error("no node")
			}
		})
	}
}

func TestReport(t *testing.T) {
	told := 0
	r, err := Run(Options{Load: Load{Flows: 500, NewFlows: 10, Sizes: []int{60, 576}}, Count: 2, Slice: 2 * time.Millisecond, Progress: func(done, of int, _ string) { told++ }})
	if err != nil {
		t.Fatal(err)
	}
	if told < 2 {
		t.Error("no progress")
	}
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`500 flows, 10 % of packets begin another, frames of 60 576 bytes, vectors of 64; medians of 2 runs`,
		`(?m)^ +parse +parse +156\d +64\.0 +\d+\.\d\d +\d+\.\d +\d+ %$`,
		`(?m)^the whole graph \d+\.\d\d ns/packet; its port costs \d+\.\d\d, which is taken off$`,
		`(?m)^the scalar reference \d+\.\d\d ns/packet: \d+\.\d\d times as much$`,
	} {
		if !regexp.MustCompile(want).MatchString(b.String()) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	b.Reset()
	if err := r.WriteLines(&b); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^Benchmark\S+ \d+ \d+\.\d+ ns/packet$`)
	if n := len(line.FindAllString(b.String(), -1)); n != 2*(3+len(r.Nodes)-1) { // icmp-vip has no packets
		t.Errorf("%d lines of benchmarks:\n%s", n, b.String())
	}
	if _, err := Run(Options{Load: Load{Flows: 0}}); err == nil {
		t.Error("no flows, no error")
	}
	if _, err := Run(Options{Load: Load{Flows: 1}, Kinds: []string{"nothing"}}); err == nil {
		t.Error("no such kind, no error")
	}
}

// TestNoAllocations: a slice of the graph allocates nothing, whatever flows come.
func TestNoAllocations(t *testing.T) {
	for _, percent := range []int{0, 10, 100} {
		e := sampled(t, Load{Flows: 5000, NewFlows: percent}, packet.Size)
		e.Warm()
		var before, after runtime.MemStats
		total := uint64(0)
		for range 100 {
			e.arm()
			runtime.ReadMemStats(&before)
			e.run()
			runtime.ReadMemStats(&after)
			total += after.Mallocs - before.Mallocs
		}
		if total > 2 { // the Go runtime's own
			t.Errorf("%d %% of new flows: %d allocations over %d packets", percent, total, 100*frames)
		}
	}
}

// vectors notes what sets of lanes nodes get.
type vectors map[string]map[packet.Lanes]int

func (x vectors) Received(_ int, n *graph.Instance, _ *packet.Vector, lanes packet.Lanes) {
	x.Visited(0, n, nil, lanes)
}
func (x vectors) Visited(_ int, n *graph.Instance, _ *packet.Vector, lanes packet.Lanes) {
	if x[n.Name] == nil {
		x[n.Name] = map[packet.Lanes]int{}
	}
	x[n.Name][lanes]++
}
func (vectors) Held(int, *graph.Instance, *packet.Record)                            {}
func (vectors) Made(int, *graph.Instance, *packet.Record)                            {}
func (vectors) Passed(int, int, *graph.Instance, *packet.Record)                     {}
func (vectors) Ended(int, *graph.Instance, *packet.Record, lbruntime.Ending, string) {}

// TestFullVectorsStayDense: where all packets go the same way, every node of the way
// gets vectors whose lanes are 0 to 63, which it processes by a loop that counts.
func TestFullVectorsStayDense(t *testing.T) {
	e := sampled(t, Load{Flows: 3000}, packet.Size)
	e.Warm()
	seen := vectors{}
	e.Observe(seen)
	for range 3 {
		e.arm()
		e.run()
	}
	e.Observe(nil)
	for _, name := range []string{"rx", "parse", "vip-classify", "frag-pin", "ct", "clamp", "gre", "tx"} {
		if n := seen[name]; len(n) != 1 || n[packet.All(packet.Size)] != 3*frames/packet.Size {
			t.Errorf("%s gets lanes %v", name, n)
		}
	}
	// One lane at a time while it is observed, for it may make packets.
	if n := seen["mtu"]; len(n) != packet.Size {
		t.Errorf("mtu gets lanes %v", n)
	}
}

// TestFlush: packets whose headers were taken out of the caches cost more to load.
func TestFlush(t *testing.T) {
	if !canFlush {
		t.Skip("missing: an instruction that takes lines out of the caches")
	}
	e := sampled(t, Load{Flows: 100}, packet.Size)
	load := func(cold bool) float64 {
		var all []float64
		for range 300 {
			e.port.Arm(e.load, cold)
			sum := byte(0)
			at := time.Now()
			for _, a := range e.port.ready {
				sum ^= e.port.mem[a.frame*e.port.chunk+front+uint32(sum&1)] // one after the other
			}
			all = append(all, float64(time.Since(at)))
			e.run()
		}
		return median(all)
	}
	if warm, cold := load(false), load(true); 2*cold < 3*warm {
		t.Errorf("%.0f ns with headers in the cache, %.0f without", warm, cold)
	}
}

// TestComparisons: everything that the table of figures is made of gives a figure.
func TestComparisons(t *testing.T) {
	const d = time.Millisecond
	each := func(name string, x []float64, err error) {
		if err != nil || len(x) != 2 {
			t.Errorf("%s: %v, %v", name, x, err)
		}
		for _, ns := range x {
			if ns <= 0 || ns > 1e5 {
				t.Errorf("%s: %v ns", name, x)
			}
		}
	}
	for _, cold := range []bool{false, canFlush} {
		c, err := Compare(Work{Load: Load{Flows: 1000}, Cold: cold, Entries: 8192}, 2, d)
		each("graph", c.Graph, err)
		each("reference", c.Reference, err)
	}
	x, err := LookUp(8192, 70, 1024, false, 2, d)
	each("look-up", x, err)
	x, err = LookUp(8192, 70, 0, true, 2, d)
	each("look-up that misses", x, err)
	x, err = Selection(2)
	each("selection", x, err)
	each("limiter", Limiter(true, packet.Size, 2), nil)
	each("limiter that denies", Limiter(false, 1, 2), nil)
	if x, err = Added(8, 2, d); err != nil || len(x) != 2 { // too little to be above zero for certain
		t.Errorf("added: %v, %v", x, err)
	}
	z, err := MeasureScale(Size{VIPs: 20, Pools: 3, Backends: 4, Flows: 500}, 1, d)
	if err != nil || z.Load <= 0 || z.Build <= 0 || z.Flap <= 0 || z.Match <= 0 || z.LookUp <= 0 {
		t.Errorf("%+v, %v", z, err)
	}
}

// TestMisses: packets that a look-up is to miss are entered by nobody.
func TestMisses(t *testing.T) {
	e := sampled(t, Load{Flows: 100}, packet.Size)
	e.Warm()
	ct := func() graph.NodeStats { s := e.Stats(); return s.Node("ct") }
	before := ct()
	e.load.lone = true
	n := e.arm()
	e.run()
	after := ct()
	if n != frames || after.Counter("misses")-before.Counter("misses") != frames || after.Counter("inserts") != before.Counter("inserts") {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
}

// BenchmarkGraph is the sample with established flows, as go test shows it.
func BenchmarkGraph(b *testing.B) {
	e := sampled(b, Load{Flows: 10000}, packet.Size)
	e.Warm()
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		e.arm()
		b.StartTimer()
		e.run()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/frames, "ns/packet")
}

// TestSlices: what a slice's time is divided by is the packets that went through, for
// the graph, the reference and the bare port alike.
func TestSlices(t *testing.T) {
	for _, batch := range []int{1, 7, packet.Size} {
		e := sampled(t, Load{Flows: 1000}, batch)
		s := newScalar(e, 8192, batch, false)
		defer s.Close()
		for range 3 {
			before := e.Stats()
			n := e.arm()
			e.run()
			after := e.Stats()
			if got := after.Sent - before.Sent; n != frames || got != frames {
				t.Errorf("vectors of %d: %d packets armed, %d sent by the graph", batch, n, got)
			}
			taken := s.hits + s.misses
			if n = s.arm(); n != frames {
				t.Errorf("vectors of %d: %d packets armed for the reference", batch, n)
			}
			s.run()
			if got := s.hits + s.misses - taken; got != frames || s.left != 0 {
				t.Errorf("vectors of %d: the reference took %d", batch, got)
			}
		}
	}
}
