package daemon

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	"github.com/lbgraph/lbgraph/runtime"
)

// fragmented makes a datagram in two pieces, the first of n bytes.
func fragmented(t *testing.T, id uint16, n int) (first, rest []byte) {
	u := nodetest.UDP(t, nodetest.Client4, vip80, 4000+id, 7, make([]byte, 600)...)
	binary.BigEndian.PutUint16(u[14+4:], id)
	return inFragments(u, n)
}

// TestTraceWritesNothing: a node that writes every packet to a file writes none that is
// only asked about.
func TestTraceWritesNothing(t *testing.T) {
	samples := t.TempDir() + "/x.pcap"
	r := newRig(t, strings.Replace(full, `{ file = "SAMPLES" }`, fmt.Sprintf("{\n    file  = %q\n    every = 1\n  }", samples), 1))
	size := func() int64 {
		info, err := os.Stat(samples)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	for range 3 {
		x, err := r.Trace(admin.Flow{Protocol: "tcp", Source: netip.MustParseAddrPort("198.51.100.7:1"), Destination: netip.MustParseAddrPort("203.0.113.80:80"), SYN: true})
		if err != nil || x.Verdict != "sent" || !strings.Contains(way(x), " copy ") {
			t.Errorf("%s: %s, %v", x.Verdict, way(x), err)
		}
	}
	if n := size(); n > 0 {
		t.Errorf("asking wrote %d bytes", n)
	}
	r.put(flows(t, 1))
	r.until("what comes is written", func() bool { return size() > 0 })
}

// TestSampleHeld: a piece that came before the first is told as held, by the node that
// holds it, when the command ends; and as sent when the first came before that.
func TestSampleHeld(t *testing.T) {
	text := strings.Replace(strings.Replace(full, "SAMPLES", t.TempDir()+"/x.pcap", 1), `  node "sample"`, "  node \"frag-pin\" \"frag-pin\" { wait = \"10s\" }\n  node \"sample\"", 1)
	r := newRig(t, text)
	const early = "rx parse vip-classify frag-pin"
	_, stays := fragmented(t, 1, 304)
	first, late := fragmented(t, 2, 304)
	other := flows(t, 1)
	all, err := r.sample(admin.Filter{Count: 100}, func() {
		held := func(n uint64) func() bool { return func() bool { return r.Stats()[0].Held == n } }
		r.port.port.Inject(0, stays)
		r.until("one is held", held(1))
		r.port.port.Inject(0, late)
		r.until("two are held", held(2))
		r.port.port.Inject(0, first)
		r.until("one is held still", held(1))
		r.port.port.Inject(0, other...)
		r.until("all are sent", func() bool { return r.Stats()[0].Sent == 3 })
	})
	if err != nil || len(all) != 4 {
		t.Fatal(len(all), err)
	}
	seen := map[string]int{}
	for _, x := range all {
		switch {
		case bytes.Equal(x.Before, stays):
			seen["stays"]++
			if x.Verdict != "held" || x.Node != "frag-pin" || way(x) != early || x.Steps[3].Says != "later fragment, held" || len(x.After) != 0 || x.Backend != "" {
				t.Errorf("what is held: %+v", x)
			}
		case bytes.Equal(x.Before, late):
			seen["late"]++
			if x.Verdict != "sent" || x.Node != "tx" || way(x) != early+" mtu gre tx" || x.Steps[3].Says != "later fragment, held" || len(x.After) != 1 || x.Backend == "" {
				t.Errorf("what was held: %+v", x)
			}
			for i, s := range x.Steps {
				if i != 3 && strings.Contains(s.Says, "held") || s.Node == "tx" && s.Says != "" {
					t.Errorf("%s says %q", s.Node, s.Says)
				}
			}
		case bytes.Equal(x.Before, first):
			seen["first"]++
		case bytes.Equal(x.Before, other[0]):
			seen["other"]++
			if x.Verdict != "sent" {
				t.Errorf("another packet: %+v", x)
			}
		}
	}
	if len(seen) != 4 {
		t.Errorf("saw %v", seen)
	}
	// The filter is for what is held, too.
	_, more := fragmented(t, 3, 304)
	for verdict, want := range map[string]int{"held": 1, "sent": 0} {
		more[14+5]++ // another one
		binary.BigEndian.PutUint16(more[14+10:], 0)
		binary.BigEndian.PutUint16(more[14+10:], checksum(more[14:34]))
		was := r.Stats()[0].Held
		all, err := r.sample(admin.Filter{Count: 100, Verdict: verdict}, func() {
			r.port.port.Inject(0, more)
			r.until("another is held", func() bool { return r.Stats()[0].Held == was+1 })
		})
		if err != nil || len(all) != want {
			t.Errorf("%s: %+v, %v", verdict, all, err)
		}
	}
}

// TestSampleJumbo: a packet of several frames is taken down whole, as it came and as it
// left.
func TestSampleJumbo(t *testing.T) {
	d := &wideDriver{queues: 1, mtu: 9000}
	r := newRig(t, plain, func(o *Options) { o.Drivers = map[string]runtime.Driver{"xdp": d} })
	payload := make([]byte, 8000)
	for i := range payload {
		payload[i] = byte(i / 13)
	}
	long := nodetest.TCP(t, nodetest.Client4, vip80, 9, 80, func(h *layers.TCP) { h.ACK = true }, payload...)
	all, err := r.sample(admin.Filter{Count: 1}, func() {
		d.port.Inject(0, long)
		r.until("it is sent", func() bool { return r.Stats()[0].Sent == 1 })
	})
	if err != nil || len(all) != 1 || len(all[0].After) != 1 {
		t.Fatalf("%d packets, %v", len(all), err)
	}
	x := all[0]
	if x.Verdict != "sent" || !bytes.Equal(x.Before, long) || !bytes.Equal(x.After[0][14+24:], long[14:]) {
		t.Errorf("%s: %d bytes before, %d after, of %d", x.Verdict, len(x.Before), len(x.After[0]), len(long))
	}
}

// wideDriver is memDriver with more queues, or a longer MTU.
type wideDriver struct {
	memDriver
	queues, mtu int
}

func (d *wideDriver) Queues(graph.PortSpec) (int, error) { return d.queues, nil }

func (d *wideDriver) Open(s graph.PortSpec, m runtime.Memory, chunk, rings int) (graph.Port, error) {
	p, err := mem.Open(mem.Config{Mem: m.Bytes(), Chunk: chunk, Rings: rings}, d.queues, graph.PortInfo{
		Name: s.Name, MTU: d.mtu, MAC: [6]byte{2, 0, 0, 0, 0, 1}, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	})
	d.port = p
	return p, err
}

// TestSampleOverCores: a packet that goes on at another core is followed there.
func TestSampleOverCores(t *testing.T) {
	d := &wideDriver{queues: 2, mtu: 1500}
	r := newRig(t, strings.Replace(full, "SAMPLES", t.TempDir()+"/x.pcap", 1), func(o *Options) { o.Drivers = map[string]runtime.Driver{"xdp": d} })
	const n = 20
	all, err := r.sample(admin.Filter{Count: 2 * n}, func() {
		for i := range uint16(n) {
			first, rest := fragmented(t, 10+i, 304)
			d.port.Inject(0, first)
			r.until("the first is sent", func() bool { return r.Stats()[0].Sent == 2*uint64(i)+1 })
			d.port.Inject(0, rest)
			r.until("the rest is sent", func() bool { return r.Stats()[0].Sent == 2*uint64(i)+2 })
		}
	})
	if err != nil || len(all) != 2*n {
		t.Fatal(len(all), err)
	}
	crossed := 0
	for _, x := range all {
		if x.Verdict != "sent" || x.Backend == "" || len(x.After) != 1 {
			t.Errorf("%+v", x)
		}
		for i, s := range x.Steps {
			if i > 0 && s.Core != x.Steps[i-1].Core {
				crossed++
				if before := x.Steps[i-1]; before.Node != "frag-pin" || before.Says != fmt.Sprintf("later fragment, to core %d", s.Core) {
					t.Errorf("it went to core %d, and the step before is %+v", s.Core, before)
				}
			}
		}
	}
	if crossed == 0 {
		t.Error("no packet went to the other core")
	}
}

// TestSampleIsBounded: no more packets than so many are followed at the same time; when
// they have ended there is room for others.
func TestSampleIsBounded(t *testing.T) {
	source := &graph.Instance{Name: "rx", Kind: graph.Lookup("xdp-rx")}
	told := 0
	x := &tracer{graph: "edge", snap: newRig(t, plain).Snapshot, flight: map[uint32]*tracked{}, admit: func([]byte) bool { return true }, tell: func(admin.Traced) { told++ }}
	v := &packet.Vector{Mem: make([]byte, 2048)}
	for i := range packet.Size {
		v.Len[i], v.Chain[i] = 60, packet.NoFrame
	}
	receive := func(from uint32) {
		for i := range packet.Size {
			v.Frame[i] = from + uint32(i)
		}
		x.Received(0, source, v, packet.All(packet.Size))
	}
	for f := range uint32(3 * mostTracked / packet.Size) {
		receive(f * packet.Size)
	}
	if len(x.flight) != mostTracked || int(x.following.Load()) != mostTracked {
		t.Errorf("%d packets are followed, %d are counted", len(x.flight), x.following.Load())
	}
	// Frames that are known come again, as when their end was missed.
	end := func(f uint32) {
		x.Ended(0, source, &packet.Record{Frame: f, Chain: packet.NoFrame}, runtime.Dropped, "x")
	}
	for f := range uint32(packet.Size) {
		end(f)
	}
	receive(0)
	if len(x.flight) != mostTracked || told != packet.Size {
		t.Errorf("%d packets are followed after %d have ended", len(x.flight), told)
	}
	for f := range uint32(packet.Size) {
		end(packet.Size + f)
	}
	receive(0)
	if n := mostTracked - packet.Size; len(x.flight) != n || int(x.following.Load()) != n {
		t.Errorf("%d packets are followed after %d came again, %d are counted, want %d", len(x.flight), packet.Size, x.following.Load(), n)
	}
	for f := range uint32(3 * mostTracked) {
		end(f)
	}
	if len(x.flight) != 0 || x.following.Load() != 0 || told != mostTracked+packet.Size {
		t.Errorf("at the end %d packets are followed, %d are counted, %d were told", len(x.flight), x.following.Load(), told)
	}
}

// TestRest: what is held when a command ends is told as held, once; what was on its way
// between two nodes, or went on, is not told.
func TestRest(t *testing.T) {
	source, node := &graph.Instance{Name: "rx", Kind: graph.Lookup("xdp-rx")}, &graph.Instance{Name: "frag-pin", Kind: graph.Lookup("frag-pin")}
	var told []string
	x := &tracer{graph: "edge", snap: newRig(t, plain).Snapshot, flight: map[uint32]*tracked{}, admit: func([]byte) bool { return true },
		tell: func(p admin.Traced) { told = append(told, p.Verdict+" "+p.Node) }}
	v := &packet.Vector{Mem: make([]byte, 2048)}
	for i := range 4 {
		v.Frame[i], v.Len[i], v.Chain[i] = uint32(i), 60, packet.NoFrame
	}
	x.Received(0, source, v, packet.All(4))
	for _, f := range []uint32{1, 2, 3} {
		x.Held(0, node, &packet.Record{Frame: f})
	}
	x.Passed(0, 1, node, &packet.Record{Frame: 2})                                                     // it goes to another core
	x.Ended(0, node, &packet.Record{Frame: 3, Chain: packet.NoFrame}, runtime.Dropped, "frag_expired") // it was held for too long
	x.rest()
	x.rest()
	if got := strings.Join(told, ", "); got != "dropped frag-pin, held frag-pin" {
		t.Errorf("told were %s", got)
	}
	if len(x.flight) != 0 || x.following.Load() != 0 {
		t.Errorf("%d packets are followed still, %d are counted", len(x.flight), x.following.Load())
	}
}

// TestOwnFrameDecides: what becomes of a packet is what becomes of its own frame,
// whatever becomes of those that were made of it, in whatever order; and it is told once
// all have ended.
func TestOwnFrameDecides(t *testing.T) {
	rx, gre, tx := &graph.Instance{Name: "rx", Kind: graph.Lookup("xdp-rx")}, &graph.Instance{Name: "gre", Kind: graph.Lookup("gre-encap")}, &graph.Instance{Name: "tx", Kind: graph.Lookup("xdp-tx")}
	r := newRig(t, plain)
	for _, order := range [][]uint32{{1, 7}, {7, 1}} {
		var told []admin.Traced
		x := &tracer{engine: r.engine("edge"), graph: "edge", snap: r.Snapshot, flight: map[uint32]*tracked{}, admit: func([]byte) bool { return true }, tell: func(p admin.Traced) { told = append(told, p) }}
		v := &packet.Vector{Mem: make([]byte, 2048)}
		v.Frame[0], v.Len[0], v.Chain[0] = 1, 60, packet.NoFrame
		x.Received(0, rx, v, packet.All(1))
		x.Made(0, gre, &packet.Record{Frame: 7})
		x.Visited(0, gre, v, packet.All(1))
		for i, f := range order {
			if f == 1 {
				x.Ended(0, tx, &packet.Record{Frame: 1, Len: 60, Chain: packet.NoFrame}, runtime.Sent, "")
			} else {
				x.Ended(0, gre, &packet.Record{Frame: 7, Len: 60, Chain: packet.NoFrame}, runtime.Dropped, "why")
			}
			if len(told) != i {
				t.Fatalf("%v: %d were told when %d frames had ended", order, len(told), i+1)
			}
		}
		if p := told[0]; p.Verdict != "sent" || p.Node != "tx" || p.Reason != "" || len(p.After) != 1 {
			t.Errorf("%v: %s at %s, %q, %d frames", order, p.Verdict, p.Node, p.Reason, len(p.After))
		}
		if len(x.flight) != 0 || x.following.Load() != 0 {
			t.Errorf("%v: %d frames are followed still", order, len(x.flight))
		}
	}
}

// TestSampleLeaves: a command that has what it wanted watches no more. While it does,
// nodes that make packets process one at a time, and not a vector.
func TestSampleLeaves(t *testing.T) {
	r, _ := newFull(t)
	f := flows(t, 64)
	calls := func() (calls, vectors uint64) {
		s := r.Stats()[0]
		return s.Node("mtu").Calls, s.Passes
	}
	for _, c := range []admin.Filter{{Count: 1}, {Count: 100000, Protocol: "udp"}} { // it ends by count, and by itself
		c0, v0 := calls()
		if all, err := r.sample(c, func() { r.put(f) }); err != nil || len(all) > 1 {
			t.Fatal(len(all), err)
		}
		c1, v1 := calls()
		if c1-c0 <= v1-v0 && c.Count > 1 {
			t.Errorf("%+v: while it watches there are %d calls for %d vectors: this test shows nothing", c, c1-c0, v1-v0)
		}
		r.put(f)
		c2, v2 := calls()
		if c2-c1 > v2-v1 {
			t.Errorf("%+v: afterwards there are %d calls for %d vectors", c, c2-c1, v2-v1)
		}
	}
}

// TestSampleEndsWithTheDaemon: whoever samples does not keep it from stopping, and
// gets what was found.
func TestSampleEndsWithTheDaemon(t *testing.T) {
	r := newRig(t, plain)
	found := make(chan admin.Traced, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- r.Sample(t.Context(), admin.Filter{Count: 100}, func(x admin.Traced) { found <- x })
	}()
	f := flows(t, 1)
	for waiting := true; waiting; { // until it watches
		r.put(f)
		select {
		case <-found:
			waiting = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	go func() {
		for range found { // what was sent meanwhile
		}
	}()
	r.stopReading() // as Stop does first
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
	close(found)
	// The graph is not watched any more.
	r.put(f)
}
