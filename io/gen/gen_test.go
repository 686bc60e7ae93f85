package gen_test

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/gen"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
)

const chunk = 2048

var targets = []gen.Target{
	{Prefix: netip.MustParsePrefix("203.0.113.80/32"), Proto: packet.ProtoTCP, Lo: 443, Hi: 443},
	{Prefix: netip.MustParsePrefix("203.0.113.80/32"), Proto: packet.ProtoUDP, Lo: 8000, Hi: 8099},
	{Prefix: netip.MustParsePrefix("2001:db8::/64"), Proto: 0, Lo: 9000, Hi: 9000},
}

func config() gen.Config {
	return gen.Config{Flows: 1000, Count: 2000, TCP: 2, UDP: 1, ICMP: 1, V4: 1, V6: 1, Seed: 1, Sizes: []int{64, 300, 1514}}
}

func open(t testing.TB, c gen.Config, queues int) (*gen.Port, []byte) {
	t.Helper()
	m := make([]byte, 256*chunk)
	p, err := gen.Open("g", c, queues, mem.Config{Mem: m, Chunk: chunk, Rings: 256})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, m
}

// all receives what a queue makes, at most most packets.
func all(t testing.TB, q graph.Queue, m []byte, most int) (out [][]byte) {
	t.Helper()
	v := &packet.Vector{Mem: m, Links: make([]packet.Link, len(m)/chunk)}
	fill := make([]uint32, 64)
	for i := range fill {
		fill[i] = uint32(i)
	}
	for len(out) < most {
		fill = fill[q.Refill(fill):]
		n := q.Receive(v)
		if n == 0 {
			break
		}
		for i := range n {
			out = append(out, bytes.Clone(v.Bytes(i)))
			fill = append(fill, v.Frame[i])
		}
	}
	return out
}

type tuple struct {
	net, transport gopacket.Flow
}

func TestPacketsAreWellFormed(t *testing.T) {
	p, m := open(t, config(), 1)
	if n := p.Aim(targets); n != 6 { // tcp4, udp4, icmp4, tcp6, udp6, icmp6
		t.Errorf("%d kinds of packets", n)
	}
	got := all(t, p.Queue(0), m, 1e6)
	if len(got) != 2000 || !p.Queue(0).Idle() {
		t.Fatalf("%d packets, idle %v", len(got), p.Queue(0).Idle())
	}
	kinds := map[string]int{}
	sizes := map[int]int{}
	seen := map[tuple]bool{}
	for i, b := range got {
		sizes[len(b)]++
		d := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
		if d.ErrorLayer() != nil {
			t.Fatalf("packet %d: %v", i, d.ErrorLayer().Error())
		}
		if bad, errs := checksums(d); bad {
			t.Fatalf("packet %d: %v\n%s", i, errs, d.Dump())
		}
		dst := netip.AddrFrom16([16]byte(append(bytes.Repeat([]byte{0}, 16-len(d.NetworkLayer().NetworkFlow().Dst().Raw())), d.NetworkLayer().NetworkFlow().Dst().Raw()...)))
		f := tuple{net: d.NetworkLayer().NetworkFlow()}
		if tl := d.TransportLayer(); tl != nil {
			f.transport = tl.TransportFlow()
		}
		v6 := d.Layer(layers.LayerTypeIPv6) != nil
		if v6 && !netip.MustParsePrefix("2001:db8::/64").Contains(dst) {
			t.Fatalf("packet %d goes to %s", i, dst)
		}
		name := "4"
		if v6 {
			name = "6"
		}
		switch l := d.Layers()[2].(type) {
		case *layers.TCP:
			name = "tcp" + name
			if l.SYN == seen[f] {
				t.Fatalf("packet %d: SYN %v, and the flow began %v", i, l.SYN, seen[f])
			}
			if want := map[bool]layers.TCPPort{false: 443, true: 9000}[v6]; l.DstPort != want {
				t.Fatalf("packet %d goes to port %d", i, l.DstPort)
			}
		case *layers.UDP:
			name = "udp" + name
			if !v6 && (l.DstPort < 8000 || l.DstPort > 8099) {
				t.Fatalf("packet %d goes to port %d", i, l.DstPort)
			}
		case *layers.ICMPv4:
			name = "icmp" + name
			if l.TypeCode.Type() != layers.ICMPv4TypeEchoRequest {
				t.Fatalf("packet %d: %v", i, l.TypeCode)
			}
		case *layers.ICMPv6:
			name = "icmp" + name
			if l.TypeCode.Type() != layers.ICMPv6TypeEchoRequest {
				t.Fatalf("packet %d: %v", i, l.TypeCode)
			}
		default:
			t.Fatalf("packet %d is %s", i, d.String())
		}
		kinds[name]++
		seen[f] = true
	}
	for _, k := range []string{"tcp4", "udp4", "icmp4", "tcp6", "udp6", "icmp6"} {
		if kinds[k] < 100 {
			t.Errorf("%d packets of %s in %v", kinds[k], k, kinds)
		}
	}
	if kinds["tcp4"] < kinds["udp4"] {
		t.Errorf("weights are not kept: %v", kinds)
	}
	for _, s := range []int{300, 1514} {
		if sizes[s] < 500 {
			t.Errorf("sizes %v", sizes)
		}
	}
}

// checksums verifies all of them: an independent encoder, given what an
// independent decoder found, must make the same bytes.
func checksums(d gopacket.Packet) (bad bool, why []string) {
	buf := gopacket.NewSerializeBuffer()
	var ls []gopacket.SerializableLayer
	var ip gopacket.NetworkLayer
layers:
	for _, l := range d.Layers() {
		switch l := l.(type) {
		case *layers.ICMPv6Echo: // it loses what is behind its head
			ls = append(ls, gopacket.Payload(ls[len(ls)-1].(*layers.ICMPv6).Payload))
			break layers
		case *layers.IPv4:
			ip = l
		case *layers.IPv6:
			ip = l
		case *layers.TCP:
			_ = l.SetNetworkLayerForChecksum(ip)
		case *layers.UDP:
			_ = l.SetNetworkLayerForChecksum(ip)
		case *layers.ICMPv6:
			_ = l.SetNetworkLayerForChecksum(ip)
		}
		s, ok := l.(gopacket.SerializableLayer)
		if !ok {
			return true, append(why, l.LayerType().String()+" cannot be serialised")
		}
		ls = append(ls, s)
	}
	data := d.Data()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true}, ls...); err != nil {
		return true, append(why, err.Error())
	}
	if got := buf.Bytes(); !bytes.Equal(got, data[:min(len(got), len(data))]) {
		return true, append(why, "bytes differ when checksums are computed anew")
	}
	return bad, why
}

func TestTheSameSeedMakesTheSamePackets(t *testing.T) {
	run := func(seed uint64) []byte {
		c := config()
		c.Seed = seed
		p, m := open(t, c, 1)
		p.Aim(targets)
		return bytes.Join(all(t, p.Queue(0), m, 1e6), nil)
	}
	if !bytes.Equal(run(7), run(7)) {
		t.Error("two runs differ")
	}
	if bytes.Equal(run(7), run(8)) {
		t.Error("the seed does nothing")
	}
}

func TestQueuesShareFlowsAndPackets(t *testing.T) {
	c := config()
	c.ICMP, c.Count, c.Flows = 0, 1001, 50
	p, m := open(t, c, 4)
	p.Aim(targets)
	owner, total := map[tuple]int{}, 0
	for q := range 4 {
		got := all(t, p.Queue(q), m, 1e6)
		total += len(got)
		for _, b := range got {
			d := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
			f := tuple{d.NetworkLayer().NetworkFlow(), d.TransportLayer().TransportFlow()}
			if o, ok := owner[f]; ok && o != q {
				t.Fatalf("queues %d and %d both have %v", o, q, f)
			}
			owner[f] = q
		}
	}
	if total != 1001 || len(owner) != 50 {
		t.Errorf("%d packets of %d flows", total, len(owner))
	}
}

func TestAFloodIsNewFlowsOnly(t *testing.T) {
	c := config()
	c.Flood, c.Flows, c.UDP, c.ICMP, c.Sizes, c.Count = true, 1, 0, 0, nil, 5000
	p, m := open(t, c, 1)
	p.Aim(targets)
	seen := map[tuple]bool{}
	for _, b := range all(t, p.Queue(0), m, 1e6) {
		d := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
		tcp, ok := d.TransportLayer().(*layers.TCP)
		if !ok || !tcp.SYN || tcp.ACK {
			t.Fatal(d)
		}
		seen[tuple{d.NetworkLayer().NetworkFlow(), tcp.TransportFlow()}] = true
	}
	if len(seen) != 5000 {
		t.Errorf("%d flows", len(seen))
	}
}

// Two queues keep a rate together, however often they are asked. What a late loop
// missed is made up for, but not when that is more than 50 ms: then it begins anew.
func TestTheRateIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config()
		c.Rate, c.Count = 20000, 0
		p, m := open(t, c, 2)
		if n := len(all(t, p.Queue(0), m, 1)); n != 0 {
			t.Errorf("%d packets towards nothing", n)
		}
		p.Aim(targets)
		due := func() (n int) {
			for q := range 2 {
				n += len(all(t, p.Queue(q), m, 1<<20))
			}
			return n
		}
		for _, turn := range []struct {
			turns int
			each  time.Duration
			want  int
		}{
			{1, 0, 2}, // the first of each queue
			{200, time.Millisecond, 4000},
			{2000, 10 * time.Microsecond, 400},
			{5, 49 * time.Millisecond, 4900},
			{3, time.Second, 3 * 2},
			{100, time.Millisecond, 2000},
		} {
			n := 0
			for range turn.turns {
				time.Sleep(turn.each)
				n += due()
			}
			if n != turn.want {
				t.Errorf("%d packets in %d turns of %v, want %d", n, turn.turns, turn.each, turn.want)
			}
		}
		if p.Queue(0).FD() < 0 {
			t.Error("nothing would wake a sleeping loop")
		}
	})
}

// A sum that comes out as 0 is sent as 0xffff: 0 would say that there is none.
func TestNoUDPChecksumIsZero(t *testing.T) {
	const many = 400_000
	p, m := open(t, gen.Config{Flows: many, Count: many, UDP: 1, V4: 1, Seed: 4}, 1)
	p.Aim(targets)
	ones := 0
	for i, b := range all(t, p.Queue(0), m, many) {
		switch c := [2]byte(b[14+20+6:]); c {
		case [2]byte{}:
			t.Fatalf("packet %d has checksum 0", i)
		case [2]byte{0xff, 0xff}:
			ones++
		}
	}
	if ones == 0 {
		t.Errorf("no sum of %d packets is 0; take another seed", many)
	}
}

// What a late loop makes up for has a bound.
func TestALateLoopDoesNotBurst(t *testing.T) {
	c := config()
	c.Rate, c.Count = 10_000, 0
	p, m := open(t, c, 1)
	p.Aim(targets)
	all(t, p.Queue(0), m, 1)
	time.Sleep(300 * time.Millisecond)
	// Fifty milliseconds are made up for, of more than that nothing.
	begun := time.Now()
	n := len(all(t, p.Queue(0), m, 3000))
	if most := 600 + int(time.Since(begun).Seconds()*float64(c.Rate)); n > most {
		t.Errorf("after 0.3 s at 10000 a second it makes %d packets at once", n)
	}
}

func TestCheckRefuses(t *testing.T) {
	for want, change := range map[string]func(*gen.Config){
		"flows":     func(c *gen.Config) { c.Flows = 0 },
		"bytes":     func(c *gen.Config) { c.Sizes = []int{59} },
		"9018":      func(c *gen.Config) { c.Sizes = []int{9019} },
		"families":  func(c *gen.Config) { c.V4, c.V6 = 0, 0 },
		"protocols": func(c *gen.Config) { c.TCP, c.UDP, c.ICMP = 0, 0, 0 },
		"negative":  func(c *gen.Config) { c.TCP = -1 },
	} {
		c := config()
		change(&c)
		if _, err := gen.Open("g", c, 1, mem.Config{Chunk: chunk}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	p, m := open(t, config(), 1)
	if n := p.Aim([]gen.Target{{}, {Prefix: targets[0].Prefix, Lo: 2, Hi: 1}}); n != 0 || len(all(t, p.Queue(0), m, 1)) != 0 {
		t.Error("targets that are none are aimed at")
	}
}

func TestNothingIsAllocated(t *testing.T) {
	c := config()
	c.Count = 0
	p, m := open(t, c, 1)
	p.Aim(targets)
	q := p.Queue(0)
	v := &packet.Vector{Mem: m, Links: make([]packet.Link, len(m)/chunk)}
	fill := make([]uint32, 64)
	for i := range fill {
		fill[i] = uint32(i)
	}
	if a := testing.AllocsPerRun(1000, func() {
		q.Refill(fill)
		n := q.Receive(v)
		copy(fill, v.Frame[:n])
	}); a != 0 {
		t.Errorf("%v allocations a vector", a)
	}
}

func BenchmarkGenerate(b *testing.B) {
	c := config()
	c.Count, c.Sizes = 0, nil
	p, m := open(b, c, 1)
	p.Aim(targets)
	q := p.Queue(0)
	v := &packet.Vector{Mem: m, Links: make([]packet.Link, len(m)/chunk)}
	fill := make([]uint32, 64)
	for i := range fill {
		fill[i] = uint32(i)
	}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		q.Refill(fill)
		k := q.Receive(v)
		copy(fill, v.Frame[:k])
		n += k
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/packet")
}
