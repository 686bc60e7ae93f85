package fragpin

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// backends is the number of backends in the tests' world.
const backends = 4

// world is a pool of the backends 1 … backends, in slots from 0 on, and one VIP.
func world(t testing.TB) *state.Store {
	pool := state.PoolSpec{Name: "web", TableSize: 251}
	for b := range byte(backends) {
		pool.Backends = append(pool.Backends, state.BackendSpec{Name: fmt.Sprint(b), Address: netip.AddrFrom4([4]byte{10, 0, 1, b}), Weight: 100})
	}
	s := state.NewStore()
	t.Cleanup(s.Close)
	err := s.Apply(state.Spec{
		Pools: []state.PoolSpec{pool},
		VIPs:  []state.VIPSpec{{Name: "web", Prefix: netip.PrefixFrom(nodetest.VIP4, 32), Pool: "web"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for b := uint32(1); b <= backends; b++ {
		if got, _ := s.Cell().Load().Member(service, b-1); got != b {
			t.Fatalf("slot %d is backend %d", b-1, got)
		}
	}
	return s
}

// service is the number of the world's VIP.
const service = 1

func rig(t testing.TB, configure func(*Config), opts ...nodetest.Option) *nodetest.Rig {
	r, _ := rigAndStore(t, configure, opts...)
	return r
}

func rigAndStore(t testing.TB, configure func(*Config), opts ...nodetest.Option) (*nodetest.Rig, *state.Store) {
	s := world(t)
	opts = append([]nodetest.Option{nodetest.WithState(s.Cell().Load())}, opts...)
	return nodetest.New(t, "frag-pin", configure, opts...), s
}

// set holds a backend at a status.
func set(r *nodetest.Rig, s *state.Store, b uint32, st state.Status) {
	s.SetStatus(b, st)
	s.Flush()
	r.Publish(s.Cell().Load())
}

// feed sends one case through the node of w. A first fragment goes to backend b and
// counts as sent.
func feed(t testing.TB, w *nodetest.Worker, frame []byte, b uint32) (output string) {
	t.Helper()
	in := w.Load(frame)
	w.Parse(in)
	output = w.Only(w.Process(in), 0)
	if output == "next" {
		sent(w, b)
	}
	return output
}

// sent lets lane 0 be chosen a backend and sent.
func sent(w *nodetest.Worker, b uint32) {
	w.V.Backend[0], w.V.VIP[0], w.V.Slot[0] = b, service, b-1
	// Encapsulation leaves the flags of the outer header.
	w.V.Flags[0] = w.V.Flags[0]&^packet.V6 | packet.DF
	w.Node.(graph.AfterSender).AfterSend(&w.V, packet.Lane(0))
}

var pairs = []struct{ first, later string }{{"frag1", "frag2"}, {"v6-frag1", "v6-frag2"}}

// followed checks that r is a later fragment with the flow of first, sent to b.
func followed(t *testing.T, r *packet.Record, first *packet.Record, b uint32) {
	t.Helper()
	if r.Backend != b || r.VIP != service || r.Slot != b-1 || r.Hash != first.Hash || r.SPort != first.SPort || r.DPort != first.DPort ||
		r.Proto != first.Proto || r.Src != first.Src || r.Dst != first.Dst {
		t.Errorf("the later fragment goes as %+v, its first as %+v", r, first)
	}
	if r.Flags&(packet.Later|packet.Pinned) != packet.Later|packet.Pinned {
		t.Errorf("flags %b", r.Flags)
	}
}

func TestInOrder(t *testing.T) {
	cases := nodetest.Cases(t)
	for _, p := range pairs {
		w := rig(t, nil).Workers[0]
		if out := feed(t, w, cases[p.first], 3); out != "next" {
			t.Fatalf("%s leaves by %q", p.first, out)
		}
		var first, later packet.Record
		w.V.Save(0, &first)
		if first.SPort != 5001 && first.SPort != 5000 {
			t.Fatalf("ports of the first: %d", first.SPort)
		}
		for range 2 { // and any number of them
			if out := feed(t, w, cases[p.later], 0); out != "pinned" {
				t.Fatalf("%s leaves by %q", p.later, out)
			}
			w.V.Save(0, &later)
			followed(t, &later, &first, 3)
		}
		if w.Counter("pins") != 1 || w.Counter("held") != 0 {
			t.Errorf("counters %v", w.Counters)
		}
	}
}

// Both pieces in one vector, whichever stands first.
func TestOneVector(t *testing.T) {
	cases := nodetest.Cases(t)
	for _, order := range [][]string{{"frag1", "frag2", "data", "frag2"}, {"frag2", "data", "frag2", "frag1"}} {
		w := rig(t, nil).Workers[0]
		var frames [][]byte
		for _, n := range order {
			frames = append(frames, cases[n])
		}
		in := w.Load(frames...)
		w.Parse(in)
		ans := w.Process(in)
		for i, n := range order {
			want := map[string]string{"frag1": "next", "data": "next", "frag2": ""}[n]
			if out := w.Only(ans, i); out != want {
				t.Errorf("%v: lane %d leaves by %q", order, i, out)
			}
			w.V.Backend[i], w.V.VIP[i], w.V.Slot[i] = 2, service, 1
		}
		w.Node.(graph.AfterSender).AfterSend(&w.V, ans["next"])
		if len(w.Entered) != 2 || w.Entered[0].Output != "pinned" || w.Entered[1].Record.Backend != 2 {
			t.Errorf("%v: %+v", order, w.Entered)
		}
	}
}

func TestOutOfOrder(t *testing.T) {
	cases := nodetest.Cases(t)
	for _, p := range pairs {
		w := rig(t, nil).Workers[0]
		var came []uint32
		for range 3 {
			if out := feed(t, w, cases[p.later], 0); out != "" {
				t.Fatalf("%s alone leaves by %q", p.later, out)
			}
			came = append(came, w.V.Frame[0])
		}
		other := map[string]string{"frag1": "v6-frag1", "v6-frag1": "frag1"}[p.first]
		feed(t, w, cases[other], 1)
		if len(w.Entered) != 0 {
			t.Fatalf("the first of another packet released %v", w.Entered)
		}
		feed(t, w, cases[p.first], 4)
		var first packet.Record
		w.V.Save(0, &first)
		var left []uint32
		for i := range w.Entered {
			if w.Entered[i].Output != "pinned" {
				t.Errorf("released behind %q", w.Entered[i].Output)
			}
			followed(t, &w.Entered[i].Record, &first, 4)
			left = append(left, w.Entered[i].Record.Frame)
		}
		if !slices.Equal(came, left) {
			t.Errorf("frames %v came, %v left", came, left)
		}
		if len(w.HeldFrames()) != 0 || w.Counter("held") != 3 || w.Counter("released") != 3 {
			t.Errorf("still held %v, counters %v", w.HeldFrames(), w.Counters)
		}
	}
}

// A first fragment that was chosen a backend and then not sent pins nothing.
func TestNotSent(t *testing.T) {
	cases := nodetest.Cases(t)
	w := rig(t, nil).Workers[0]
	in := w.Load(cases["frag1"])
	w.Parse(in)
	w.Process(in)
	w.V.Backend[0] = 1
	if out := feed(t, w, cases["frag2"], 0); out != "" {
		t.Errorf("a later fragment leaves by %q", out)
	}
}

func TestWaitAndTTL(t *testing.T) {
	cases := nodetest.Cases(t)
	w := rig(t, nil).Workers[0]
	tick := w.Node.(graph.Ticker).Tick
	feed(t, w, cases["frag2"], 0)
	w.Clock += int64(199 * time.Millisecond)
	tick(w.Clock)
	if len(w.Dropped) != 0 {
		t.Fatal("dropped before its time")
	}
	feed(t, w, cases["v6-frag2"], 0)
	w.Clock += int64(time.Millisecond)
	tick(w.Clock)
	if len(w.Dropped) != 1 || w.Dropped[0].Output != "frag_expired" || !w.Dropped[0].Record.Src.Is4() {
		t.Fatalf("after 200 ms: %+v", w.Dropped)
	}
	feed(t, w, cases["frag1"], 1)
	if len(w.Entered) != 0 {
		t.Error("a dropped fragment was released")
	}
	w.Clock += int64(10*time.Second) - 1
	tick(w.Clock)
	if out := feed(t, w, cases["frag2"], 0); out != "pinned" {
		t.Errorf("just before 10 s: leaves by %q", out)
	}
	w.Clock++
	if out := feed(t, w, cases["frag2"], 0); out != "" {
		t.Errorf("after 10 s: leaves by %q", out)
	}
	if got := w.Node.(graph.Gauger).Gauges(); got["held"] != 1 || got["pins"] != 1 || got["held_limit"] != 256 || got["pins_room"] < 8192 {
		t.Errorf("gauges %v", got)
	}
	for range 200 { // the sweep comes round
		tick(w.Clock)
	}
	if got := w.Node.(graph.Gauger).Gauges(); got["pins"] != 0 {
		t.Errorf("gauges %v", got)
	}
}

// Held fragments are bounded in number.
func TestFull(t *testing.T) {
	cases := nodetest.Cases(t)
	for hold := range 4 {
		w := rig(t, func(c *Config) { c.Hold = hold }).Workers[0]
		for n := range 6 {
			want := ""
			if n >= hold {
				want = "frag_full"
			}
			if out := feed(t, w, cases["frag2"], 0); out != want {
				t.Errorf("hold %d, fragment %d: leaves by %q", hold, n, out)
			}
		}
		feed(t, w, cases["frag1"], 1)
		if len(w.Entered) != hold {
			t.Errorf("hold %d: %d released", hold, len(w.Entered))
		}
		if out := feed(t, w, cases["frag2"], 1); out != "pinned" {
			t.Errorf("hold %d: the next leaves by %q", hold, out)
		}
	}
}

func TestICMP(t *testing.T) {
	w := rig(t, nil).Workers[0]
	for i, c := range []struct {
		src, dst netip.Addr
		proto    uint8
		out      string
	}{
		{nodetest.Client4, nodetest.VIP4, packet.ProtoICMP, "frag_icmp"},
		{nodetest.Client6, nodetest.VIP6, packet.ProtoICMPv6, "frag_icmp"},
		{nodetest.Client4, nodetest.VIP4, packet.ProtoICMPv6, ""}, // no ICMP in IPv4
		{nodetest.Client6, nodetest.VIP6, packet.ProtoICMP, ""},
		{nodetest.Client4, nodetest.VIP4, 132, ""},
	} {
		in := later(w, c.src, c.dst, c.proto, 9)
		if out := w.Only(w.Process(in), 0); out != c.out {
			t.Errorf("case %d leaves by %q, want %q", i, out, c.out)
		}
	}
}

// later loads a later fragment made of columns alone; first a first one.
func later(w *nodetest.Worker, src, dst netip.Addr, proto uint8, id uint32) packet.Lanes {
	in := w.Load(make([]byte, 60))
	v := &w.V
	v.L3[0], v.Src[0], v.Dst[0], v.Proto[0], v.ID[0] = 14, packet.AddrOf(src), packet.AddrOf(dst), proto, id
	v.Flags[0] = packet.Later
	if src.Is6() {
		v.Flags[0] |= packet.V6
	}
	v.Hash[0] = packet.FlowHash(v.Src[0], v.Dst[0], 0, 0, proto)
	return in
}

func first(w *nodetest.Worker, src, dst netip.Addr, proto uint8, id uint32) packet.Lanes {
	in := later(w, src, dst, proto, id)
	w.V.Flags[0] ^= packet.Later | packet.First
	w.V.SPort[0], w.V.DPort[0] = 5000, 443
	w.V.Hash[0] = packet.FlowHash(w.V.Src[0], w.V.Dst[0], 5000, 443, proto)
	return in
}

// Identifications overlap between addresses and, over IPv4, protocols. Over IPv6 later
// fragments may name another header than the first (RFC 8200 §4.5).
func TestKeys(t *testing.T) {
	w := rig(t, nil).Workers[0]
	c4, c4b, v4, v4b := nodetest.Client4, netip.MustParseAddr("198.51.100.8"), nodetest.VIP4, netip.MustParseAddr("203.0.113.11")
	for b, k := range []struct {
		src, dst netip.Addr
		proto    uint8
		id       uint32
	}{1: {c4, v4, 17, 5}, 2: {c4, v4, 6, 5}, 3: {c4b, v4, 17, 5}, 4: {c4, v4b, 17, 5}} {
		if b == 0 {
			continue
		}
		w.Process(first(w, k.src, k.dst, k.proto, k.id))
		sent(w, uint32(b))
		in := later(w, k.src, k.dst, k.proto, k.id)
		if out := w.Only(w.Process(in), 0); out != "pinned" || w.V.Backend[0] != uint32(b) {
			t.Errorf("key %d: leaves by %q to %d", b, out, w.V.Backend[0])
		}
	}
	for b, proto := range []uint8{1: 17, 2: 6} {
		if b == 0 {
			continue
		}
		if out := w.Only(w.Process(later(w, c4, v4, proto, 5)), 0); out != "pinned" || w.V.Backend[0] != uint32(b) {
			t.Errorf("protocol %d: %q to %d", proto, out, w.V.Backend[0])
		}
	}
	if out := w.Only(w.Process(later(w, c4, v4, 17, 6)), 0); out != "" {
		t.Errorf("another identification leaves by %q", out)
	}
	w.Process(first(w, nodetest.Client6, nodetest.VIP6, 17, 5))
	sent(w, 3)
	in := later(w, nodetest.Client6, nodetest.VIP6, packet.ProtoDestOpts, 5)
	if out := w.Only(w.Process(in), 0); out != "pinned" || w.V.Proto[0] != packet.ProtoUDP || w.V.Backend[0] != 3 {
		t.Errorf("IPv6: %q to %d as protocol %d", out, w.V.Backend[0], w.V.Proto[0])
	}
	// An identification that comes again belongs to the new first.
	w.Process(first(w, c4, v4, 17, 5))
	sent(w, 4)
	if w.Process(later(w, c4, v4, 17, 5)); w.V.Backend[0] != 4 || w.Counter("pins_replaced") != 1 {
		t.Errorf("after a second first: to %d, counters %v", w.V.Backend[0], w.Counters)
	}
}

func TestDeadBackend(t *testing.T) {
	cases := nodetest.Cases(t)
	r, s := rigAndStore(t, nil)
	w := r.Workers[0]
	feed(t, w, cases["frag1"], 2)
	set(r, s, 2, state.Draining)
	if out := feed(t, w, cases["frag2"], 0); out != "pinned" {
		t.Errorf("to a draining backend: %q", out)
	}
	set(r, s, 2, state.Down)
	if out := feed(t, w, cases["frag2"], 0); out != "" || w.Counter("dead_backend") != 1 {
		t.Errorf("to a dead backend: %q", out)
	}
	feed(t, w, cases["frag1"], 3)
	if len(w.Entered) != 1 || w.Entered[0].Record.Backend != 3 {
		t.Errorf("the new first released %+v", w.Entered)
	}
	w.Node.(graph.Flusher).Flush(1)
	if out := feed(t, w, cases["frag2"], 0); out != "pinned" {
		t.Errorf("after another backend's flush: %q", out)
	}
	w.Node.(graph.Flusher).Flush(3)
	if out := feed(t, w, cases["frag2"], 0); out != "" {
		t.Errorf("after a flush: %q", out)
	}
}

// Each piece on its own core, in both orders, on any pair of cores: the one in charge
// hears of the first and holds the others.
func TestAcrossCores(t *testing.T) {
	cases := nodetest.Cases(t)
	for _, p := range pairs {
		for a := range 3 {
			for b := range 3 {
				for _, order := range []string{"in order", "out of order"} {
					t.Run(fmt.Sprintf("%s/%d-%d/%s", p.first, a, b, order), func(t *testing.T) {
						r := rig(t, nil, nodetest.Cores(3))
						one, two := r.Workers[a], r.Workers[b]
						var arrived []map[string]packet.Lanes
						step := func(w *nodetest.Worker, name string) string {
							out := feed(t, w, cases[name], 2)
							arrived = append(arrived, r.Deliver()...)
							return out
						}
						var out string
						if order == "in order" {
							step(one, p.first)
							out = step(two, p.later)
						} else {
							out = step(two, p.later)
							step(one, p.first)
						}
						ends := 0
						if out == "pinned" {
							ends++
						}
						for _, ans := range arrived {
							if ans["pinned"] != 0 {
								ends++
							}
						}
						for _, w := range r.Workers {
							for _, e := range w.Entered {
								if e.Output != "pinned" || e.Record.Backend != 2 {
									t.Errorf("%+v", e)
								}
								ends++
							}
							if len(w.HeldFrames()) != 0 {
								t.Errorf("core %d still holds %v", w.ID(), w.HeldFrames())
							}
						}
						if ends != 1 {
							t.Errorf("the later fragment went on %d times", ends)
						}
					})
				}
			}
		}
	}
}

// With full rings a later fragment drops with a reason, and a pin is told later.
func TestRingFull(t *testing.T) {
	cases := nodetest.Cases(t)
	r := rig(t, nil, nodetest.Cores(8))
	w := r.Workers[0]
	in := w.Load(cases["frag1"])
	w.Parse(in)
	k, hash := keyOf(&w.V, 0)
	owner := r.Workers[packet.Reduce(hash, 8)]
	if owner == w {
		w = r.Workers[1]
	}
	w.RingFull = true
	if out := feed(t, w, cases["frag2"], 0); out != "frag_full" {
		t.Errorf("later fragment leaves by %q", out)
	}
	feed(t, w, cases["frag1"], 2)
	w.RingFull = false
	w.Node.(graph.Ticker).Tick(w.Clock)
	r.Deliver()
	if e := owner.Node.(*worker).table.find(&k, hash, w.Clock); e == nil || e.backend() != 2 {
		t.Error("the core in charge never heard of the first")
	}
	w.RingFull = true
	for range 70 {
		feed(t, w, cases["frag1"], 2)
		w.Reuse()
	}
	w.Node.(graph.Ticker).Tick(w.Clock)
	if w.Counter("pins_lost") != 6 {
		t.Errorf("%d pins lost", w.Counter("pins_lost"))
	}
	// A ring that stays full is tried again at every tick, also by the node that follows
	// after a reload.
	heard := func(w *nodetest.Worker) int {
		w.Told = nil
		w.RingFull = false
		w.Node.(graph.Ticker).Tick(w.Clock)
		w.RingFull = true
		return len(w.Told)
	}
	for range 3 {
		w.Node.(graph.Ticker).Tick(w.Clock)
	}
	next := rig(t, nil, nodetest.Cores(8)).Workers[w.ID()]
	next.Node.(graph.Inheritor).Inherit(w.Node)
	if n := heard(next); n != 64 {
		t.Errorf("%d of 64 late pins were told in the end", n)
	}
	if n := heard(next); n != 0 {
		t.Errorf("%d pins were told twice", n)
	}
}

// A flood of first fragments costs older pins, never memory or more than one set's
// search; the newest is always found.
func TestFlood(t *testing.T) {
	w := rig(t, func(c *Config) { c.Entries = 64 }).Workers[0]
	was := len(w.Node.(*worker).table.tags)
	for id := range uint32(5000) {
		w.Reuse()
		w.Clock++
		w.Process(first(w, nodetest.Client6, nodetest.VIP6, 17, id))
		sent(w, 1)
		if out := w.Only(w.Process(later(w, nodetest.Client6, nodetest.VIP6, 17, id)), 0); out != "pinned" {
			t.Fatalf("identification %d: leaves by %q", id, out)
		}
	}
	tab := w.Node.(*worker).table
	if w.Counter("pins") != 5000 || w.Counter("pins_evicted") != uint64(5000-tab.used) || len(tab.tags) != was || tab.used > was {
		t.Errorf("%d pins, %d evicted, %d of %d used", w.Counter("pins"), w.Counter("pins_evicted"), tab.used, len(tab.tags))
	}
}

func TestInherit(t *testing.T) {
	cases := nodetest.Cases(t)
	for _, c := range []struct{ entries, hold, kept int }{{8192, 256, 3}, {16, 256, 3}, {8192, 2, 2}, {100000, 500, 3}} {
		r := rig(t, nil)
		w := r.Workers[0]
		feed(t, w, cases["frag1"], 2)
		for range 3 {
			feed(t, w, cases["v6-frag2"], 0)
		}
		cfg := r.Kind.NewConfig().(*Config)
		cfg.Entries, cfg.Hold = c.entries, c.hold
		mk, err := r.Kind.Packets(cfg, r.Env)
		if err != nil {
			t.Fatal(err)
		}
		n, err := mk(w)
		if err != nil {
			t.Fatal(err)
		}
		n.(graph.Inheritor).Inherit(w.Node)
		w.Node = n
		if out := feed(t, w, cases["frag2"], 0); out != "pinned" || w.V.Backend[0] != 2 {
			t.Errorf("%+v: a pin is lost: %q", c, out)
		}
		feed(t, w, cases["v6-frag1"], 3)
		if len(w.Entered) != c.kept || len(w.Dropped) != 3-c.kept || len(w.HeldFrames()) != 0 {
			t.Errorf("%+v: %d released, %d dropped, still held %v", c, len(w.Entered), len(w.Dropped), w.HeldFrames())
		}
		w.Clock += int64(10 * time.Second)
		w.Node.(graph.Ticker).Tick(w.Clock)
		if w.Node.(*worker).old != nil {
			t.Errorf("%+v: the old table is kept for ever", c)
		}
	}
}

// Numbers that die are free again when the pins that hold them are expired, and not
// before; a reload forgets no pin.
func TestSweeper(t *testing.T) {
	r := rig(t, nil)
	w := r.Workers[0]
	tick := func(d time.Duration) {
		w.Clock += int64(d)
		w.Node.(graph.Ticker).Tick(w.Clock)
	}
	publish := func(generation uint64) {
		s := *w.State()
		s.Generation = generation
		r.Publish(&s)
	}
	n := w.Node.(*worker)
	var swept told
	n.sweeper = &swept
	tick(0)
	publish(5)
	feed(t, w, nodetest.Cases(t)["frag1"], 1)
	tick(11 * time.Second) // notes 5
	publish(9)
	feed(t, w, nodetest.Cases(t)["frag1"], 1)
	tick(10 * time.Second)
	if slices.Contains(swept, 5) {
		t.Error("5 is called swept while a pin may hold its numbers")
	}
	tick(time.Second)
	if !slices.Contains(swept, 5) || slices.Contains(swept, 9) {
		t.Errorf("swept %v, want 5 and not yet 9", swept)
	}
	other := rig(t, nil).Workers[0].Node.(*worker)
	if other.Inherit(n); other.sweeper != n.sweeper || other.noted != 9 || other.notedFor != n.notedFor {
		t.Error("a reload forgets what was to be swept")
	}
}

type told []uint64

func (t *told) Swept(generation uint64) { *t = append(*t, generation) }

// model is frag-pin as maps: what every fragment's end must be.
type model struct {
	pins map[pin]struct {
		backend uint32
		expires int64
	}
	held map[int][]modelHeld // by core in charge, in order of arrival
}

type modelHeld struct {
	key   pin
	frame uint32
	since int64
}

// A random walk of firsts, laters, time, deaths and flushes on three cores agrees with
// the model at every step; no frame is lost or doubled.
func TestModel(t *testing.T) {
	const cores, hold = 3, 20
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		r, s := rigAndStore(t, func(c *Config) { c.Hold = hold; c.Entries = 4096 }, nodetest.Cores(cores))
		m := model{held: map[int][]modelHeld{}}
		m.pins = map[pin]struct {
			backend uint32
			expires int64
		}{}
		free := func(f uint32) { r.Workers[0].Free(f) }
		for step := range 3000 {
			w := r.Workers[rnd.IntN(cores)]
			src, dst := nodetest.Client4, nodetest.VIP4
			if rnd.IntN(2) == 0 {
				src, dst = nodetest.Client6, nodetest.VIP6
			}
			proto, id := []uint8{6, 17}[rnd.IntN(2)], rnd.Uint32N(8)
			fail := func(format string, args ...any) {
				t.Helper()
				t.Fatalf("seed %d, step %d: %s", seed, step, fmt.Sprintf(format, args...))
			}
			switch rnd.IntN(10) {
			case 0, 1, 2: // a first fragment
				b := rnd.Uint32N(backends) + 1
				in := first(w, src, dst, proto, id)
				k, hash := keyOf(&w.V, 0)
				k[4] &^= 0xff
				frame := w.V.Frame[0]
				if out := w.Only(w.Process(in), 0); out != "next" {
					fail("a first leaves by %q", out)
				}
				sent(w, b)
				r.Deliver()
				owner := int(packet.Reduce(hash, cores))
				m.pins[k] = struct {
					backend uint32
					expires int64
				}{b, w.Clock + int64(10*time.Second)}
				var want, got, keep []uint32
				var left []modelHeld
				for _, h := range m.held[owner] {
					if h.key == k {
						want = append(want, h.frame)
					} else {
						left = append(left, h)
						keep = append(keep, h.frame)
					}
				}
				m.held[owner] = left
				for _, e := range r.Workers[owner].Entered {
					if e.Output != "pinned" || e.Record.Backend != b || e.Record.SPort != 5000 {
						fail("released %+v", e)
					}
					got = append(got, e.Record.Frame)
				}
				r.Workers[owner].Entered = nil
				slices.Sort(keep)
				if !slices.Equal(want, got) || !slices.Equal(keep, r.Workers[owner].HeldFrames()) {
					fail("released %v of %v, holding %v of %v", got, want, r.Workers[owner].HeldFrames(), keep)
				}
				for _, f := range append(got, frame) {
					free(f)
				}
			case 3, 4, 5, 6, 7: // a later fragment
				in := later(w, src, dst, proto, id)
				k, hash := keyOf(&w.V, 0)
				k[4] &^= 0xff
				frame := w.V.Frame[0]
				owner := int(packet.Reduce(hash, cores))
				want := ""
				if p, ok := m.pins[k]; ok && p.expires > w.Clock && r.Workers[0].State().StatusOf(p.backend) != state.Down {
					want = "pinned"
				} else if len(m.held[owner]) == hold {
					want = "frag_full"
				} else {
					m.held[owner] = append(m.held[owner], modelHeld{k, frame, w.Clock})
				}
				got := w.Only(w.Process(in), 0)
				at := w
				if arrived := r.Deliver(); owner != w.ID() {
					at = r.Workers[owner]
					if got != "" || len(arrived) != 1 {
						fail("a fragment of core %d's leaves core %d by %q", owner, w.ID(), got)
					}
					got = at.Only(arrived[0], 0)
				}
				if got != want {
					fail("a later leaves by %q, want %q", got, want)
				}
				if want == "pinned" && at.V.Backend[0] != m.pins[k].backend {
					fail("to backend %d, want %d", at.V.Backend[0], m.pins[k].backend)
				}
				if want != "" {
					free(frame)
				}
			case 8: // time passes
				by := []int64{1, int64(50 * time.Millisecond), int64(3 * time.Second)}[rnd.IntN(3)]
				for _, w := range r.Workers {
					w.Clock += by
					w.Node.(graph.Ticker).Tick(w.Clock)
					var want, got []uint32
					left := m.held[w.ID()][:0]
					for _, h := range m.held[w.ID()] {
						if w.Clock-h.since >= int64(200*time.Millisecond) {
							want = append(want, h.frame)
						} else {
							left = append(left, h)
						}
					}
					m.held[w.ID()] = left
					for _, e := range w.Dropped {
						if e.Output != "frag_expired" {
							fail("dropped as %q", e.Output)
						}
						got = append(got, e.Record.Frame)
					}
					w.Dropped = nil
					if !slices.Equal(want, got) {
						fail("expired %v, want %v", got, want)
					}
				}
			case 9:
				b := rnd.Uint32N(backends) + 1
				if rnd.IntN(2) == 0 {
					set(r, s, b, state.Status(rnd.Uint32N(3)))
					break
				}
				for _, w := range r.Workers {
					w.Node.(graph.Flusher).Flush(b)
				}
				for k, p := range m.pins {
					if p.backend == b {
						delete(m.pins, k)
					}
				}
			}
		}
	}
}

func TestAllocations(t *testing.T) {
	cases := nodetest.Cases(t)
	w := rig(t, nil, nodetest.Cores(2)).Workers[0]
	tell := &deaf{Core: w}
	n := w.Node.(*worker)
	n.core = tell
	frames := [][]byte{cases["data"]}
	for range 10 {
		frames = append(frames, cases["frag1"], cases["frag2"])
	}
	in := w.Load(frames...)
	w.Parse(in)
	for i := range frames {
		w.V.ID[i] = uint32(i+1) / 2
	}
	was := w.V
	for i := range frames {
		w.V.Backend[i], w.V.VIP[i], w.V.Slot[i] = 1, service, 0
	}
	with := w.V
	out := make([]packet.Lanes, fragICMP+1)
	if a := testing.AllocsPerRun(100, func() {
		w.V = with
		n.AfterSend(&w.V, in)
		w.V = was
		clear(out)
		n.Process(&w.V, in, out)
		n.Tick(w.Clock)
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
	if tell.told == 0 || tell.passed == 0 || out[pinned] == 0 {
		t.Errorf("told %d, passed %d, pinned %b: not all ways were gone", tell.told, tell.passed, out[pinned])
	}
}

// deaf counts what would go to other cores, and keeps nothing.
type deaf struct {
	graph.Core
	told, passed int
}

func (d *deaf) Tell(int, *graph.Message) bool           { d.told++; return true }
func (d *deaf) Pass(int, *packet.Vector, int, int) bool { d.passed++; return true }

func BenchmarkProcess(b *testing.B) {
	cases := nodetest.Cases(b)
	for _, c := range []struct{ name, frame string }{{"unfragmented", "data"}, {"pinned", "frag2"}} {
		b.Run(c.name, func(b *testing.B) {
			w := rig(b, nil).Workers[0]
			feed(b, w, cases["frag1"], 1)
			frames := make([][]byte, packet.Size)
			for i := range frames {
				frames[i] = cases[c.frame]
			}
			in := w.Load(frames...)
			w.Parse(in)
			for n := 0; n < b.N; n += packet.Size {
				w.Run(in)
			}
			if w.Out(next)|w.Out(pinned) != in {
				b.Fatal("not all lanes went on")
			}
		})
	}
}

// FuzzShelf checks that the shelf is a list by arrival and by key, whatever comes and
// goes.
func FuzzShelf(f *testing.F) {
	f.Add([]byte{0, 1, 2, 0x81, 3, 0x40, 0x82})
	f.Fuzz(func(t *testing.T, ops []byte) {
		s := newShelf(7)
		type item struct {
			key   pin
			frame uint32
		}
		var want []item
		for n, op := range ops {
			k := pin{4: uint64(op&0x3f) << 32}
			h := uint64(op & 3) // few buckets: keys share them
			switch {
			case op&0x80 != 0:
				var got, exp []uint32
				s.take(&k, h, func(f uint32) { got = append(got, f) })
				left := want[:0:0]
				for _, w := range want {
					if w.key == k {
						exp = append(exp, w.frame)
					} else {
						left = append(left, w)
					}
				}
				want = left
				if !slices.Equal(got, exp) {
					t.Fatalf("took %v, want %v", got, exp)
				}
			case !s.full():
				s.put(&k, h, uint32(n), int64(n))
				want = append(want, item{k, uint32(n)})
			default:
				if len(want) != 7 {
					t.Fatalf("full with %d", len(want))
				}
			}
			f, _, ok := s.oldest()
			if ok != (len(want) > 0) || ok && f != want[0].frame || s.n != len(want) {
				t.Fatalf("oldest %d %v, %d held, want %v", f, ok, s.n, want)
			}
		}
	})
}
