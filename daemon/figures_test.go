package daemon

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// figures demands values of series.
func (r *rig) figures(want map[string]float64) {
	r.t.Helper()
	got := scrape(r.t, r.Daemon)
	for series, v := range want {
		if x, ok := got[series]; !ok || x != v {
			r.t.Errorf("%s is %v (%t), want %v", series, x, ok, v)
		}
	}
}

func event(node, name string) string {
	return fmt.Sprintf(`lbgraph_node_events_total{event=%q,graph="edge",node=%q}`, name, node)
}

func value(node, name string) string {
	return fmt.Sprintf(`lbgraph_node_value{graph="edge",node=%q,value=%q}`, node, name)
}

// segments makes a segment of each of n flows.
func segments(t *testing.T, n int, change func(*layers.TCP)) (all [][]byte) {
	for i := range n {
		all = append(all, nodetest.TCP(t, netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), vip80, uint16(1024+i), 80, change))
	}
	return all
}

// TestFlowTableFigures: hits, misses, inserts, transitions, entries led elsewhere and
// evictions are counted each on its own, and the table tells its size and fill.
func TestFlowTableFigures(t *testing.T) {
	r := newRig(t, plain)
	r.put(segments(t, 200, func(h *layers.TCP) { h.SYN = true }))
	r.figures(map[string]float64{
		event("ct", "misses"): 200, event("ct", "hits"): 0, event("ct", "inserts"): 200, event("ct", "established"): 0,
		value("ct", "entries"): 200, value("ct", "handshake"): 200, value("ct", "established"): 0, value("ct", "closing"): 0, value("ct", "size"): 131072,
	})
	ack := segments(t, 200, func(h *layers.TCP) { h.ACK = true })
	was := r.put(ack)
	r.figures(map[string]float64{
		event("ct", "misses"): 200, event("ct", "hits"): 200, event("ct", "established"): 200, event("ct", "closed"): 0,
		value("ct", "handshake"): 0, value("ct", "established"): 200,
	})
	r.put(segments(t, 200, func(h *layers.TCP) { h.ACK, h.FIN = true, true })[:50])
	r.figures(map[string]float64{
		event("ct", "hits"): 250, event("ct", "closed"): 50, value("ct", "established"): 150, value("ct", "closing"): 50, value("ct", "entries"): 200,
		event("ct", "repinned"): 0, event("ct", "evicted_handshake"): 0, event("ct", "evicted_closing"): 0, event("ct", "full"): 0,
	})
	dead := 0
	for i := range 150 {
		if was[uint16(1024+50+i)] == web1 {
			dead++
		}
	}
	if dead == 0 {
		t.Fatal("no flow is on web-1")
	}
	r.Store().SetStatus(r.Store().Backend(web1), state.Down)
	r.put(ack[50:])
	r.figures(map[string]float64{event("ct", "repinned"): float64(dead), value("ct", "entries"): 200, event("ct", "inserts"): 200})

	// More flows than there is room for.
	r = newRig(t, strings.Replace(plain, `"conntrack" "ct" {}`, `"conntrack" "ct" { entries = 1024 }`, 1))
	for i := range 8 {
		r.put(segments(t, 4000, func(h *layers.TCP) { h.SYN = true })[500*i : 500*(i+1)])
	}
	got := scrape(t, r.Daemon)
	if got[event("ct", "evicted_handshake")] == 0 || got[event("ct", "misses")] != 4000 || got[value("ct", "size")] != 1024 || got[value("ct", "entries")] < 512 {
		t.Errorf("a table of 1024 after 4000 flows: %v evictions, %v misses, %v of %v entries", got[event("ct", "evicted_handshake")], got[event("ct", "misses")], got[value("ct", "entries")], got[value("ct", "size")])
	}
	left := got[event("ct", "inserts")] - got[event("ct", "evicted_handshake")] - got[event("ct", "evicted_closing")] - got[event("ct", "expired")]
	if left != got[value("ct", "entries")] || got[event("ct", "inserts")]+got[event("ct", "full")] != 4000 {
		t.Errorf("%v inserts, %v full: %v entries should be left, %v are", got[event("ct", "inserts")], got[event("ct", "full")], left, got[value("ct", "entries")])
	}
}

// inFragments makes fragments of a frame's IPv4 packet: the first has n bytes behind
// its header, n being a multiple of 8.
func inFragments(frame []byte, n int) (first, rest []byte) {
	const ip = 14
	piece := func(offset int, more bool, data []byte) []byte {
		f := append(append([]byte{}, frame[:ip+20]...), data...)
		binary.BigEndian.PutUint16(f[ip+2:], uint16(20+len(data)))
		at := uint16(offset / 8)
		if more {
			at |= 0x2000
		}
		binary.BigEndian.PutUint16(f[ip+6:], at)
		f[ip+10], f[ip+11] = 0, 0
		sum := uint32(0)
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(f[ip+i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(f[ip+10:], ^uint16(sum))
		return f
	}
	return piece(0, true, frame[ip+20:ip+20+n]), piece(n, false, frame[ip+20+n:])
}

// whole is lb.hcl's graph without its control blocks.
const whole = `graph "edge" {
  path {
    main      = [rx, parse, vip-classify, frag-pin, ct.hit, clamp, mtu, gre, tx]
    new_flow  = [ct.miss, maglev-select, clamp]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
`

// TestFragmentMSSAndICMPFigures: fragments, lowered MSS options and ICMP messages are
// counted, as many as there were.
func TestFragmentMSSAndICMPFigures(t *testing.T) {
	text := strings.Replace(plain[:strings.Index(plain, "graph")], `"tcp"`, `"any"`, 1) + whole
	r := newRig(t, strings.Replace(text, "  ports    = [80]\n", "", 1))
	var frames [][]byte
	for i := range 5 { // with an option that is too large, one that is not, and none
		frames = append(frames, nodetest.SYN(t, nodetest.Client4, vip80, uint16(1000+i), 80, 1460))
	}
	for i := range 3 {
		frames = append(frames, nodetest.SYN(t, nodetest.Client4, vip80, uint16(2000+i), 80, 1000))
	}
	for i := range 2 {
		frames = append(frames, nodetest.TCP(t, nodetest.Client4, vip80, uint16(3000+i), 80, func(h *layers.TCP) { h.SYN = true }))
	}
	for i := range 4 {
		u := nodetest.UDP(t, nodetest.Client4, vip80, uint16(4000+i), 53, make([]byte, 600)...)
		binary.BigEndian.PutUint16(u[14+4:], uint16(700+i)) // identification
		first, rest := inFragments(u, 304)
		frames = append(frames, first, rest)
	}
	echo := nodetest.Frame(t, nodetest.Ether(false), nodetest.IP(nodetest.Client4, vip80, layers.IPProtocolICMPv4),
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 1, Seq: 1})
	stray := nodetest.Frame(t, nodetest.Ether(false), nodetest.IP(nodetest.Client4, vip80, layers.IPProtocolICMPv4),
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeTimestampRequest, 0), Id: 1, Seq: 1})
	frames = append(frames, echo, echo, echo)
	r.port.port.Inject(0, stray)
	r.put(frames)
	out := func(node, output string) string {
		return fmt.Sprintf(`lbgraph_node_output_packets_total{graph="edge",node=%q,output=%q}`, node, output)
	}
	r.figures(map[string]float64{
		event("clamp", "clamped"): 5, event("clamp", "no_mss"): 2, event("clamp", "malformed"): 0, event("clamp", "inserted"): 0,
		out("parse", "fragment"): 4, event("frag-pin", "pins"): 4, out("frag-pin", "pinned"): 4, event("frag-pin", "pins_evicted"): 0,
		out("parse", "icmp"): 4, out("icmp-vip", "reply"): 3, event("icmp-vip", "learned"): 0,
		`lbgraph_dropped_packets_total{graph="edge",node="icmp-vip",reason="icmp_type"}`: 1,
	})
}

// TestToldApartFigures: packets to an address that is no VIP, and to a port that a VIP
// does not have, are counted apart, at the node that found out.
func TestToldApartFigures(t *testing.T) {
	other := netip.MustParseAddr("8.8.8.8")
	r := newRig(t, plain)
	for i := range uint16(3) {
		r.port.port.Inject(0, nodetest.TCP(t, nodetest.Client4, other, 1000+i, 80, nil))
	}
	for i := range uint16(2) {
		r.port.port.Inject(0, nodetest.TCP(t, nodetest.Client4, vip80, 2000+i, 81, nil))
	}
	r.put(flows(t, 4))
	out := func(output string) string {
		return fmt.Sprintf(`lbgraph_node_output_packets_total{graph="edge",node="vip-classify",output=%q}`, output)
	}
	dropped := func(reason string) string {
		return fmt.Sprintf(`lbgraph_dropped_packets_total{graph="edge",node="vip-classify",reason=%q}`, reason)
	}
	// A memory port leads to no kernel, to which what is for no VIP would go.
	r.figures(map[string]float64{out("next"): 4, out("not_vip"): 3, dropped("wrong_port"): 2, dropped("no_punt"): 3})
	if got := scrape(t, r.Daemon); got[out("wrong_port")] > 2 {
		t.Errorf("%v by wrong_port", got[out("wrong_port")])
	}
}

// TestVectorDurations: the time of one vector in 64 is in the histogram.
func TestVectorDurations(t *testing.T) {
	r := newRig(t, plain)
	frames := flows(t, 1)
	for range 64 * 5 {
		r.put(frames)
	}
	const name = `lbgraph_vector_duration_seconds`
	got := scrape(t, r.Daemon)
	n, vectors := got[name+`_count{graph="edge"}`], got[`lbgraph_vectors_total{graph="edge"}`]
	if vectors < 64*5 || n < vectors/64-1 || n > vectors/64+1 {
		t.Errorf("%v of %v vectors were timed", n, vectors)
	}
	if sum := got[name+`_sum{graph="edge"}`]; sum <= 0 || sum > n {
		t.Errorf("%v vectors took %v s", n, sum)
	}
	buckets, least := 0, n
	for series, v := range got {
		if strings.HasPrefix(series, name+"_bucket{") {
			buckets++
			least = min(least, v)
		}
	}
	if buckets < 8 || least > 0 || got[name+`_bucket{graph="edge",le="+Inf"}`] != n {
		t.Errorf("%d buckets, the least has %v of %v", buckets, least, n)
	}
}
