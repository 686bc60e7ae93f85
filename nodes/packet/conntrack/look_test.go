package conntrack

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Assembly finds and decides what the plain Go code does: two nodes with the same keys, of
// which one does without, answer the same and keep the same table, over vectors of all
// sizes, with holes, of all kinds of flows, states, times and backends.
func TestPlainIsWhatDecideIs(t *testing.T) {
	if !hasPlain {
		t.Skip("no assembly on this processor: GOARCH is not amd64, or AVX2 or BMI1 is missing")
	}
	rnd := rand.New(rand.NewPCG(7, 7))
	shrunk := func(c *Config) { c.Entries = 1024 }
	fast, slow := newRig(t, shrunk), newRig(t, shrunk)
	slow.node().cur.keys = fast.node().cur.keys
	slow.node().plain = false
	both := []*rigged{fast, slow}
	hits, away := 0, 0
	for step := range 6000 {
		if rnd.IntN(10) == 0 {
			d := []time.Duration{time.Millisecond, 20 * time.Millisecond, time.Second, 6 * time.Second, 65 * time.Second}[min(rnd.IntN(5), rnd.IntN(5))]
			for _, r := range both {
				r.wait(d)
			}
		}
		if rnd.IntN(20) == 0 {
			i, s := 1+rnd.IntN(4), []state.Status{state.Up, state.Up, state.Draining, state.Down}[rnd.IntN(4)]
			for _, r := range both {
				r.store.SetStatus(r.store.Backend(backendAddr(i)), s)
				r.sync()
			}
		}
		n := 1 + rnd.IntN(packet.Size)
		in := packet.All(n)
		if rnd.IntN(3) == 0 {
			in &= packet.Lanes(rnd.Uint64() | rnd.Uint64())
		}
		odd := rnd.IntN(3) == 0 // else the vector is what the assembly is for
		for i := range n {
			service := web
			var flags packet.Flags
			if odd && rnd.IntN(4) == 0 {
				service += rnd.IntN(5)
			}
			if odd && rnd.IntN(20) == 0 {
				flags = packet.Related
			}
			if !odd && rnd.IntN(8) == 0 {
				service = dns
			}
			f := flowTo(service, rnd.IntN(700))
			tcp := []uint8{syn, ack, ack, ack, ack, ack | packet.PSH, ack, fin, rst}[rnd.IntN(9)]
			for _, r := range both {
				r.load(i, f, tcp, flags)
				if step%50 == 0 && i == 3 {
					r.V.VIP[i] = 1 << 20 // a number that no service has
				}
			}
		}
		h := fast.pass(in)
		if g := slow.pass(in); g != h {
			t.Fatalf("step %d, lanes %x: hits %x, without assembly %x", step, in, h, g)
		}
		if fast.V.Backend != slow.V.Backend || fast.V.Slot != slow.V.Slot || fast.V.VIP != slow.V.VIP || fast.V.Flags != slow.V.Flags {
			t.Fatalf("step %d, lanes %x: columns differ", step, in)
		}
		hits += h.Count()
		if step%100 == 0 {
			for b := range fast.node().cur.compact.lines {
				x, y := fast.node().cur.compact.lines[b], slow.node().cur.compact.lines[b]
				if x != y {
					t.Fatalf("step %d: line %d is %+v, without assembly %+v", step, b, x, y)
				}
				if x.over != 0 {
					away++
				}
			}
		}
	}
	checkTables(t, fast.node())
	for c, x := range fast.Counters {
		if y := slow.Counters[c]; x != y {
			t.Errorf("counter %v is %d, without assembly %d", c, x, y)
		}
	}
	if hits < 50000 || away == 0 {
		t.Errorf("%d hits, %d lines whose keys are elsewhere", hits, away)
	}
}

// A flow is entered under the key that it has when it is sent, also by a vector whose
// lanes were not looked up, or were looked up as something else.
func TestEntersLanesThatWereNotLookedUp(t *testing.T) {
	r := newRig(t, nil)
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

// Assembly reads nothing behind the end of what it is given, though more stands there.
func TestPlainStaysWithinItsSlices(t *testing.T) {
	if !hasPlain {
		t.Skip("no assembly on this processor: GOARCH is not amd64, or AVX2 or BMI1 is missing")
	}
	r := newRig(t, nil)
	f := flowTo(web, 1)
	r.want("SYN", f, syn, false)
	r.want("ACK", f, ack, true)
	r.load(0, f, ack, 0)
	n, vip := r.node(), int(r.V.VIP[0])
	n.begin(r.Clock)
	if bad := formPlain(&n.batch, &n.cur.compact, &r.V, n.infos[:vip], 0, 1); bad != 1 || n.batch.key[0] != noKey {
		t.Errorf("service %d of %d has key %x", vip, vip, n.batch.key[0])
	}
	if bad := formPlain(&n.batch, &n.cur.compact, &r.V, n.infos[:vip+1], 0, 1); bad != 0 || n.batch.key[0] != keyOf(&r.V, 0) {
		t.Errorf("service %d of %d has key %x", vip, vip+1, n.batch.key[0])
	}
	hits, left := decidePlain(&n.batch, &n.cur.compact, &r.V, n.words, &n.clk, 0, 1)
	if hits != 1 || left != 0 {
		t.Fatalf("hits %x, left %x", hits, left)
	}
	word := int(n.infos[vip].Base + r.V.Slot[0])
	r.V.Backend[0] = 0
	if hits, left = decidePlain(&n.batch, &n.cur.compact, &r.V, n.words[:word], &n.clk, 0, 1); hits != 0 || left != 1 || r.V.Backend[0] != 0 {
		t.Errorf("word %d of %d: hits %x, left %x, backend %d", word, word, hits, left, r.V.Backend[0])
	}
	if hits, left = decidePlain(&n.batch, &n.cur.compact, &r.V, n.words, &n.clk, 1, 1); hits != 0 || left != 0 {
		t.Errorf("no lanes: hits %x, left %x", hits, left)
	}
	if bad := formPlain(&n.batch, &n.cur.compact, &r.V, n.infos, 1, 1); bad != 0 || n.batch.key[1] != 0 {
		t.Errorf("no lanes: bad %x, key %x", bad, n.batch.key[1])
	}
}

// A service that leads to another pool since its packet was looked up takes its flow
// over from the number that it had.
func TestEntersWhatIsNotPlainAnyMore(t *testing.T) {
	r := newRig(t, nil)
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

// A slot that an entry has no bits for is not entered.
func TestSlotThatFitsNoEntry(t *testing.T) {
	for _, service := range []int{web, six} {
		for _, slot := range []uint32{state.MaxSlots, state.MaxSlots + 1, 1 << 20} {
			r := newRig(t, nil)
			r.load(0, flowTo(service, 1), syn, 0)
			r.Process(1)
			r.V.Backend[0], r.V.Slot[0], r.V.Flags[0] = 1, slot, r.V.Flags[0]|packet.Chosen
			r.node().AfterSend(&r.V, 1)
			if r.entries() != 0 {
				t.Errorf("service %d: slot %d was entered", service, slot)
			}
		}
	}
}

// A flow whose service went away while its packet was on the way is not entered.
func TestDeadServiceIsNotEntered(t *testing.T) {
	for _, service := range []int{web, six} {
		r := newRig(t, nil)
		r.load(0, flowTo(service, 1), syn, 0)
		r.Process(1)
		s := r.State()
		next := &state.Snapshot{Services: s.Services, Pools: s.Pools, Backends: s.Backends, Words: s.Words, Infos: slices.Clone(s.Infos)}
		next.Infos[r.V.VIP[0]] = state.ServiceInfo{}
		r.r.Publish(next)
		r.V.Backend[0], r.V.Flags[0] = 1, r.V.Flags[0]|packet.Chosen
		r.node().AfterSend(&r.V, 1)
		if r.entries() != 0 {
			t.Errorf("service %d: %d entries", service, r.entries())
		}
	}
}

// What a vector's look-up found to be free is not what it was once flows were entered: no
// flow is entered twice.
func TestEntersNoFlowTwice(t *testing.T) {
	r := newRig(t, nil)
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
		t.Fatalf("%d entries", r.entries())
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
