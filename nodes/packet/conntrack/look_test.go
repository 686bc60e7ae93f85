package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// A flow is entered under the key that it has when it is sent, also by a vector whose
// lanes were not looked up, or were looked up as something else.
func TestEntersLanesThatWereNotLookedUp(t *testing.T) {
	for _, plain := range []bool{hasPlain, false} {
		t.Run(fmt.Sprint("assembly ", plain), func(t *testing.T) { entersLanesThatWereNotLookedUp(t, plain) })
	}
}

func entersLanesThatWereNotLookedUp(t *testing.T, plain bool) {
	r := newRig(t, nil)
	r.node().plain = plain
	r.load(0, flowTo(web, 1), syn, 0)
	r.pass(1)
	f := flowTo(web, 2)
	r.load(0, f, syn, 0)
	s := r.State()
	slot, b, _ := s.Choose(s.Services[r.V.VIP[0]].Pool, r.V.Hash[0])
	r.V.Backend[0], r.V.Slot[0], r.V.Flags[0] = b, slot, packet.Chosen
	r.node().AfterSend(&r.V, 1)
	if got := r.want("a lane that came past look", f, ack, true); got != b {
		t.Errorf("backend %d after %d", got, b)
	}
	r.want("the flow before it", flowTo(web, 1), ack, true)
	if r.entries() != 2 {
		t.Errorf("%d entries", r.entries())
	}
}

// A service that leads to another pool since its packet was looked up takes its flow
// over from the number that it had.
func TestEntersWhatIsNotPlainAnyMore(t *testing.T) {
	for _, plain := range []bool{hasPlain, false} {
		t.Run(fmt.Sprint("assembly ", plain), func(t *testing.T) { entersWhatIsNotPlainAnyMore(t, plain) })
	}
}

func entersWhatIsNotPlainAnyMore(t *testing.T, plain bool) {
	r := newRig(t, nil)
	r.node().plain = plain
	f := flowTo(web, 1)
	was, _ := r.State().Match(packet.AddrOf(flowTo(green, 1).dst), 6, 443)
	r.load(0, f, syn, 0)
	is := r.V.VIP[0]
	r.V.VIP[0] = was
	r.pass(1)
	r.load(0, f, syn, 0)
	if r.Process(1)["miss"] != 1 || r.entries() != 1 {
		t.Fatalf("hits, or %d entries", r.entries())
	}
	s := r.State()
	next := &state.Snapshot{Services: s.Services, Pools: s.Pools, Backends: s.Backends, Words: s.Words, Infos: slices.Clone(s.Infos)}
	next.Infos[is].Prev, next.Infos[is].Plain = was, 0
	r.r.Publish(next)
	r.V.Backend[0], r.V.Slot[0], r.V.Flags[0] = 1, 0, packet.Chosen
	r.node().AfterSend(&r.V, 1)
	if r.entries() != 1 || r.Counter("inserts") != 2 {
		t.Errorf("%d entries, %d inserts: the entry under the number before is still there", r.entries(), r.Counter("inserts"))
	}
}

// The low bits of a wide flow may be what stands for no key at all: service 65536, no
// source port, an address that ends in ::1. It is a flow like others.
func TestWideFlowWhoseLowBitsAreNoKey(t *testing.T) {
	for _, plain := range []bool{hasPlain, false} {
		r := newRig(t, nil)
		r.node().plain = plain
		s := r.State()
		f := flowTo(six, 1)
		f.src, f.sport = netip.MustParseAddr("2001:db8:9::1"), 0
		r.load(0, f, syn, 0)
		const service = 1 << 16
		infos := slices.Grow(slices.Clone(s.Infos), service+1)[:service+1]
		infos[service] = s.Infos[r.V.VIP[0]]
		backend, _ := s.Words[infos[service].Base].Load()
		r.r.Publish(&state.Snapshot{Services: s.Services, Pools: s.Pools, Backends: s.Backends, Words: s.Words, Infos: infos})
		for i, want := range []packet.Lanes{0, 1, 1} {
			r.load(0, f, ack, 0)
			r.V.VIP[0] = service
			if hits := r.Process(1)["hit"]; hits != want || hits != 0 && r.V.Backend[0] != backend {
				t.Errorf("assembly %v, packet %d: hits %x, backend %d", plain, i, hits, r.V.Backend[0])
			}
			if want == 0 {
				r.V.Backend[0], r.V.Flags[0] = backend, r.V.Flags[0]|packet.Chosen
			}
			r.node().AfterSend(&r.V, 1)
		}
		checkTables(t, r.node())
	}
}

// An entry whose slot the snapshot has no word for is no hit.
func TestSlotPastTheSnapshot(t *testing.T) {
	for _, plain := range []bool{hasPlain, false} {
		for _, service := range []int{web, six} {
			r := newRig(t, nil)
			r.node().plain = plain
			f := flowTo(service, 1)
			r.want("SYN", f, syn, false)
			r.want("ACK", f, ack, true)
			s := r.State()
			end := s.Infos[r.V.VIP[0]].Base + r.V.Slot[0]
			for n, want := range map[uint32]packet.Lanes{end: 0, end + 1: 1} {
				r.r.Publish(&state.Snapshot{Services: s.Services, Pools: s.Pools, Backends: s.Backends, Words: s.Words[:n], Infos: s.Infos})
				r.load(0, f, ack, 0)
				r.V.VIP[0], _ = s.Match(packet.AddrOf(f.dst), f.proto, f.dport)
				if hits := r.Process(1)["hit"]; hits != want || (r.V.Backend[0] != 0) != (want != 0) {
					t.Errorf("service %d, assembly %v, word %d of %d: hits %x, backend %d", service, plain, end, n, hits, r.V.Backend[0])
				}
			}
		}
	}
}

// A slot that an entry has no bits for is not entered; the last that it has bits for is, and
// stands there.
func TestSlotThatFitsNoEntry(t *testing.T) {
	for _, plain := range []bool{hasPlain, false} {
		for _, service := range []int{web, six} {
			for slot, want := range map[uint32]int{state.MaxSlots - 1: 1, state.MaxSlots: 0, state.MaxSlots + 1: 0, 1 << 20: 0, 1 << 31: 0, 1<<32 - 1: 0} {
				r := newRig(t, nil)
				n := r.node()
				n.plain = plain
				r.load(0, flowTo(service, 1), syn, 0)
				r.Process(1)
				r.V.Backend[0], r.V.Slot[0], r.V.Flags[0] = 1, slot, r.V.Flags[0]|packet.Chosen
				n.AfterSend(&r.V, 1)
				if r.entries() != want {
					t.Errorf("service %d, assembly %v: %d entries of slot %d", service, plain, r.entries(), slot)
				}
				checkTables(t, n)
				id := n.ident(&r.V, 0, r.V.VIP[0], &n.cur.keys)
				table := n.cur.of(&id)
				if b, s := table.find(&id); s >= 0 {
					if st, _ := table.bucket(b); slotOf(st[s]) != slot || stateOf(st[s]) != handshake {
						t.Errorf("service %d, assembly %v: slot %d was entered as %d in state %d", service, plain, slot, slotOf(st[s]), stateOf(st[s]))
					}
				}
			}
		}
	}
}

// A flow whose service went away while its packet was on the way is not entered.
func TestDeadServiceIsNotEntered(t *testing.T) {
	for _, plain := range []bool{hasPlain, false} {
		t.Run(fmt.Sprint("assembly ", plain), func(t *testing.T) { deadServiceIsNotEntered(t, plain) })
	}
}

func deadServiceIsNotEntered(t *testing.T, plain bool) {
	for _, service := range []int{web, six} {
		r := newRig(t, nil)
		r.node().plain = plain
		r.load(0, flowTo(service, 1), syn, 0)
		r.Process(1)
		s := r.State()
		next := &state.Snapshot{Services: s.Services, Pools: s.Pools, Backends: s.Backends, Words: s.Words, Infos: slices.Clone(s.Infos)}
		next.Infos[r.V.VIP[0]] = state.ServiceInfo{}
		shorter := &state.Snapshot{Services: s.Services, Pools: s.Pools, Backends: s.Backends, Words: s.Words, Infos: s.Infos[:r.V.VIP[0]]}
		for _, s := range []*state.Snapshot{next, shorter} {
			r.r.Publish(s)
			r.V.Backend[0], r.V.Flags[0] = 1, r.V.Flags[0]|packet.Chosen
			r.node().AfterSend(&r.V, 1)
			if r.entries() != 0 {
				t.Errorf("service %d: %d entries", service, r.entries())
			}
		}
	}
}

// What a vector's look-up found to be free is not what it was once flows were entered: no
// flow is entered twice.
func TestEntersNoFlowTwice(t *testing.T) {
	for _, plain := range []bool{hasPlain, false} {
		t.Run(fmt.Sprint("assembly ", plain), func(t *testing.T) { entersNoFlowTwice(t, plain) })
	}
}

func entersNoFlowTwice(t *testing.T, plain bool) {
	// A minute sweeps all of a small table more than once, whichever line it is.
	r := newRig(t, func(c *Config) { c.Entries = 1024 })
	r.node().plain = plain
	n := r.node()
	home := func(f flow) uint32 {
		r.load(0, f, syn, 0)
		return n.cur.compact.home(hashCompact(n.cur.compact.keys, keyOf(&r.V, 0)))
	}
	f := flowTo(web, 0)
	before := f
	for i := 1; home(before) != home(f) || before == f; i++ {
		before = flowTo(web, i)
	}
	r.want("the first of the line", before, syn, false)
	r.want("the second", f, syn, false)
	r.wait(time.Minute)
	if r.entries() != 0 {
		t.Fatalf("%d entries are left of flows that are over", r.entries())
	}
	// The same flow in another lane and then in its own, past look.
	for _, lane := range []int{1, 0} {
		r.load(lane, f, syn, packet.Chosen)
		r.V.Backend[lane] = 1
		n.AfterSend(&r.V, packet.Lane(lane))
	}
	if r.entries() != 1 {
		t.Errorf("%d entries", r.entries())
	}
	checkTables(t, n)
}

// inOneLine answers flows whose home is one line, the first with source 0.0.0.0: the lower
// half of its key is 0.
func (r *rigged) inOneLine(count int) (flows []flow) {
	n := r.node()
	first := flowTo(web, 1)
	first.src = netip.IPv4Unspecified()
	home := func(f flow) uint32 {
		r.load(0, f, syn, 0)
		return n.cur.compact.home(hashCompact(n.cur.compact.keys, keyOf(&r.V, 0)))
	}
	flows = append(flows, first)
	for i, at := 0, home(first); len(flows) < count; i++ {
		if f := flowTo(web, i); home(f) == at {
			flows = append(flows, f)
		}
	}
	return flows
}

// New flows of one vector for which the look-up found one place are all entered, whatever
// the key of the one that got it.
func TestNewFlowsOfOneLine(t *testing.T) {
	for _, plain := range []bool{hasPlain, false} {
		r := newRig(t, func(c *Config) { c.Entries = 1024 })
		n := r.node()
		n.plain = plain
		flows := r.inOneLine(7)
		for i, f := range flows {
			r.load(i, f, syn, 0)
		}
		if hits := r.pass(packet.All(len(flows))); hits != 0 || r.entries() != len(flows) {
			t.Errorf("assembly %v: hits %x, %d entries of %d flows", plain, hits, r.entries(), len(flows))
		}
		checkTables(t, n)
		for i, f := range flows {
			r.want("a flow of the line", f, ack, true)
			if t.Failed() {
				t.Fatalf("assembly %v, flow %d", plain, i)
			}
		}
	}
}

// A line that the look-up found full has no place for it, also when it is empty by the time
// the flow is entered: then it is looked at again.
func TestLineIsFullAtLookUpOnly(t *testing.T) {
	for _, plain := range []bool{hasPlain, false} {
		r := newRig(t, func(c *Config) { c.Entries = 1024 })
		n := r.node()
		n.plain = plain
		flows := r.inOneLine(6)
		for _, f := range flows[:5] {
			r.want("a flow of the line", f, syn, false)
		}
		f := flows[5]
		r.load(0, f, syn, 0)
		r.Process(1)
		if p := n.batch.place[0]; p != 10 {
			t.Fatalf("assembly %v: place %d in a full line", plain, p)
		}
		n.Flush(0)
		r.V.Backend[0], r.V.Flags[0] = 1, packet.Chosen
		n.AfterSend(&r.V, 1)
		if r.entries() != 1 {
			t.Errorf("assembly %v: %d entries", plain, r.entries())
		}
		checkTables(t, n)
		r.want("the flow that was entered", f, ack, true)
	}
}

// A flow that went on from its line is found before it is entered, also when the line has room
// again: no flow is entered twice, whichever bit of the line's word over names it.
func TestEntersNoFlowTwiceThatWentOn(t *testing.T) {
	for _, plain := range []bool{hasPlain, false} {
		for _, bits := range []uint32{0xff, 0xff00, 0xfff0000} {
			r := newRig(t, func(c *Config) { c.Entries = 1024 })
			n := r.node()
			n.plain = plain
			flows := r.inOneLine(5)
			for _, f := range flows {
				r.want("a flow of the line", f, syn, false)
			}
			l := &n.cur.compact
			r.load(0, flows[0], syn, 0)
			home := l.home(hashCompact(l.keys, keyOf(&r.V, 0)))
			var gone flow
			for i := 0; ; i++ {
				gone = flowTo(web, i)
				r.load(0, gone, syn, 0)
				if h := hashCompact(l.keys, keyOf(&r.V, 0)); l.home(h) == home && overBit(h)&bits != 0 && !slices.Contains(flows, gone) {
					break
				}
			}
			was := r.want("a flow that goes on", gone, syn, false)
			if over := l.lines[home].over; over&bits == 0 {
				t.Fatalf("assembly %v: over is %x", plain, over)
			}
			n.wipe(n.cur, l, home, 2)
			r.store.SetStatus(was, state.Down)
			r.sync()
			if is := r.want("a flow whose backend is down", gone, ack, false); is == was {
				t.Errorf("assembly %v: backend %d again", plain, is)
			}
			if r.entries() != 5 || r.Counter("repinned") != 1 {
				t.Errorf("assembly %v, bits %x: %d entries, %d repinned", plain, bits, r.entries(), r.Counter("repinned"))
			}
			checkTables(t, n)
		}
	}
}

// A vector with more new flows than there is room for fills the table and no more, also where
// lines that keys went on from have room: the same by both ways.
func TestRoomEndsWithinAVector(t *testing.T) {
	set := func(c *Config) { c.Entries, c.Timeouts.TCPHandshake = 1024, time.Hour }
	fast, slow := newRig(t, set), newRig(t, set)
	slow.node().plain = false
	slow.node().cur.keys = fast.node().cur.keys
	const entries = 1024
	next := 0
	for round := range 40 {
		from := next
		for _, r := range []*rigged{fast, slow} {
			n := r.node()
			next = from
			for ; n.cur.used() < entries; next++ {
				r.send(flowTo(web, next), syn)
			}
			// Places that no sweep has seen yet, also in lines that are spoken of as full.
			l := &n.cur.compact
			for b, free := uint32(0), 0; free < 20+round%20; b += 3 {
				if st, over := l.bucket(b % l.size()); st[round%5] != 0 && (*over != 0 || b >= l.size()) {
					n.wipe(n.cur, l, b%l.size(), round%5)
					free++
				}
			}
			for i := range packet.Size {
				r.load(i, flowTo(web, next+i), syn, 0)
			}
			next += packet.Size
			r.pass(packet.All(packet.Size))
			if used := n.cur.used(); used != entries {
				t.Fatalf("round %d, assembly %v: %d entries of %d", round, n.plain, used, entries)
			}
			checkTables(t, n)
		}
		if !slices.Equal(fast.node().cur.compact.lines, slow.node().cur.compact.lines) {
			t.Fatalf("round %d: the table differs with assembly", round)
		}
	}
	for c, x := range fast.Counters {
		if y := slow.Counters[c]; x != y {
			t.Errorf("counter %v is %d, without assembly %d", c, x, y)
		}
	}
}

// An entry begins with the time of its protocol's class, whose clocks tick apart.
func TestEntersWithTheClockOfItsClass(t *testing.T) {
	for _, plain := range []bool{hasPlain, false} {
		for class, proto := range []uint8{tcp: packet.ProtoTCP, udp: packet.ProtoUDP, other: packet.ProtoGRE} {
			r := newRig(t, func(c *Config) {
				c.Timeouts.TCPHandshake, c.Timeouts.UDP, c.Timeouts.Other = 5*time.Second, 10*time.Minute, 10*time.Hour
			})
			n := r.node()
			n.plain = plain
			r.Clock += int64(time.Hour)
			r.load(0, flowTo(web, 1), syn, 0)
			s := r.State()
			next := &state.Snapshot{Services: s.Services, Pools: s.Pools, Backends: s.Backends, Words: s.Words, Infos: slices.Clone(s.Infos)}
			info := &next.Infos[r.V.VIP[0]]
			info.Proto, info.Plain = proto, uint64(info.Base)<<8|uint64(class)<<2
			r.r.Publish(next)
			r.V.Proto[0] = proto
			if hits := r.pass(1); hits != 0 || r.entries() != 1 {
				t.Fatalf("assembly %v, class %d: hits %x, %d entries", plain, class, hits, r.entries())
			}
			id := n.ident(&r.V, 0, r.V.VIP[0], &n.cur.keys)
			b, p := n.cur.compact.find(&id)
			if w := n.cur.compact.lines[b].st[p]; uint16(w) != n.clk.now[class<<2|handshake] {
				t.Errorf("assembly %v, class %d: stamp %d, clocks %d", plain, class, uint16(w), n.clk.now)
			}
		}
	}
}
