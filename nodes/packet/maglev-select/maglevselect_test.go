package maglevselect

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func spec(backends int) state.Spec {
	p := state.PoolSpec{Name: "web", HashSeed: 42}
	for i := range backends {
		p.Backends = append(p.Backends, state.BackendSpec{
			Name: fmt.Sprint("b", i), Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Weight: 100,
		})
	}
	vip := netip.PrefixFrom(nodetest.VIP4, 32)
	return state.Spec{
		Pools: []state.PoolSpec{p, {Name: "empty"}},
		VIPs: []state.VIPSpec{
			{Name: "web", Prefix: vip, Protocol: 6, Ports: []state.PortRange{{Lo: 443, Hi: 443}}, Pool: "web"},
			{Name: "sticky", Prefix: vip, Protocol: 6, Ports: []state.PortRange{{Lo: 80, Hi: 80}}, Pool: "web", Affinity: true},
			{Name: "none", Prefix: vip, Protocol: 6, Ports: []state.PortRange{{Lo: 22, Hi: 22}}, Pool: "empty"},
		},
	}
}

// Services in the order of the file.
const (
	web = iota + 1
	sticky
	none
)

func store(t testing.TB, backends int) *state.Store {
	t.Helper()
	s := state.NewStore()
	t.Cleanup(s.Close)
	if err := s.Apply(spec(backends)); err != nil {
		t.Fatal(err)
	}
	return s
}

func rig(t testing.TB, s *state.Store) *nodetest.Worker {
	return nodetest.New[struct{}](t, "maglev-select", nil, nodetest.WithState(s.Cell().Load())).Workers[0]
}

// load makes lane i a packet of client number c, source port sport.
func load(w *nodetest.Worker, i int, service uint32, c uint32, sport uint16) {
	v := &w.V
	v.Src[i], v.Dst[i] = packet.Addr4(0xc6336400+c), packet.AddrOf(nodetest.VIP4)
	v.SPort[i], v.DPort[i], v.Proto[i], v.VIP[i] = sport, 443, 6, service
	v.Hash[i] = packet.FlowHash(v.Src[i], v.Dst[i], sport, 443, 6)
	v.Backend[i], v.Slot[i], v.Flags[i] = 0, 0, 0
}

func TestSelectsByTheTable(t *testing.T) {
	s := store(t, 10)
	w := rig(t, s)
	p := &s.Cell().Load().Pools[1]
	seen := map[uint32]int{}
	for round := range uint32(20) {
		for i := range packet.Size {
			load(w, i, web, round, uint16(i))
		}
		if ans := w.Process(packet.All(packet.Size)); ans["next"] != packet.All(packet.Size) {
			t.Fatalf("answers %v", ans)
		}
		for i := range packet.Size {
			slot, _ := p.Select(w.V.Hash[i])
			if w.V.Slot[i] != slot || w.V.Backend[i] != p.Members[slot].Backend || w.V.Flags[i]&packet.Chosen == 0 {
				t.Fatalf("lane %d: slot %d backend %d flags %x, want slot %d", i, w.V.Slot[i], w.V.Backend[i], w.V.Flags[i], slot)
			}
			seen[slot]++
		}
	}
	if len(seen) != 10 {
		t.Errorf("%d of 10 backends were selected", len(seen))
	}
}

func TestSourceAffinity(t *testing.T) {
	w := rig(t, store(t, 50))
	slots := map[uint32]bool{}
	for c := range uint32(32) {
		load(w, 2*int(c), sticky, c, uint16(c))
		load(w, 2*int(c)+1, sticky, c, uint16(40000+c))
	}
	w.Process(packet.All(packet.Size))
	for i := 0; i < packet.Size; i += 2 {
		if w.V.Slot[i] != w.V.Slot[i+1] {
			t.Errorf("client %d has backends %d and %d", i/2, w.V.Slot[i], w.V.Slot[i+1])
		}
		slots[w.V.Slot[i]] = true
	}
	if len(slots) < 16 {
		t.Errorf("32 clients on %d backends", len(slots))
	}
}

func TestNoBackendIsNeverBackendZero(t *testing.T) {
	w := rig(t, store(t, 3))
	load(w, 0, none, 1, 1)
	load(w, 1, web, 1, 1)
	load(w, 2, 9999, 1, 1) // a number that nothing stands behind
	load(w, 3, 0, 1, 1)
	ans := w.Process(packet.All(4))
	if ans["no_backend"] != 0b1101 || ans["next"] != 0b10 {
		t.Errorf("answers %v", ans)
	}
	if w.V.Backend[0] != 0 || w.V.Flags[0]&packet.Chosen != 0 {
		t.Error("no backend, and yet one was set")
	}
}

// A packet that nothing is selected for has none of what the vector's packets before it
// had, in all its lanes, also where the pool of a service is none of the snapshot's.
func TestNoBackendInAllLanes(t *testing.T) {
	s := store(t, 3)
	w := rig(t, s)
	was := s.Cell().Load()
	lost := *was
	lost.Services = slices.Clone(was.Services)
	lost.Services[sticky].Pool = uint32(len(was.Pools))
	w.Rig.Publish(&lost)
	for gap := range packet.Size {
		for _, service := range []uint32{none, 9999, 0, sticky} {
			for i := range packet.Size {
				load(w, i, web, uint32(i), 1)
			}
			w.V.VIP[gap] = service
			ans := w.Process(packet.All(packet.Size))
			if ans["no_backend"] != packet.Lane(gap) || ans["next"] != packet.All(packet.Size)&^packet.Lane(gap) {
				t.Fatalf("service %d in lane %d: answers %v", service, gap, ans)
			}
			if w.V.Backend[gap] != 0 || w.V.Flags[gap]&packet.Chosen != 0 {
				t.Fatalf("service %d in lane %d has backend %d", service, gap, w.V.Backend[gap])
			}
		}
	}
}

// Between a failure and the next table the failed backend gets nothing, and
// everybody else keeps what they have.
func TestFailedBackendIsPassedOverAtOnce(t *testing.T) {
	s := store(t, 4)
	w := rig(t, s)
	for i := range packet.Size {
		load(w, i, web, 1, uint16(i))
	}
	w.Process(packet.All(packet.Size))
	before := w.V.Slot
	s.SetStatus(s.Backend(netip.MustParseAddr("10.0.0.2")), state.Down)
	s.SetStatus(s.Backend(netip.MustParseAddr("10.0.0.3")), state.Draining)
	for i := range packet.Size {
		load(w, i, web, 1, uint16(i))
	}
	w.Process(packet.All(packet.Size))
	moved := 0
	for i, slot := range w.V.Slot {
		switch {
		case slot == 1 || slot == 2:
			t.Errorf("lane %d goes to slot %d", i, slot)
		case before[i] != 1 && before[i] != 2 && slot != before[i]:
			t.Errorf("lane %d moved from %d to %d", i, before[i], slot)
		case slot != before[i]:
			moved++
		}
	}
	if moved == 0 {
		t.Error("nothing was on the failed backends")
	}
	for i := range 4 {
		s.SetStatus(s.Backend(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})), state.Down)
	}
	load(w, 0, web, 1, 1)
	if ans := w.Process(1); ans["no_backend"] != 1 {
		t.Errorf("with all backends down: %v", ans)
	}
}

func TestTrace(t *testing.T) {
	w := rig(t, store(t, 1))
	load(w, 0, web, 1, 1)
	load(w, 1, none, 1, 1)
	w.Process(3)
	tr := w.Node.(*worker)
	if got, want := tr.Trace(&w.V, 0), fmt.Sprintf("backend web/b0, hash %016x", w.V.Hash[0]); got != want {
		t.Errorf("trace says %q", got)
	}
	if got := tr.Trace(&w.V, 1); got != "no backend is usable" {
		t.Errorf("trace says %q", got)
	}
}

func TestAllocatesNothing(t *testing.T) {
	w := rig(t, store(t, 3))
	for i := range packet.Size {
		load(w, i, uint32(web+i%3), 1, uint16(i))
	}
	if n := testing.AllocsPerRun(100, func() { w.Run(packet.All(packet.Size)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkProcess(b *testing.B) {
	w := rig(b, store(b, 20))
	for i := range packet.Size {
		load(w, i, web, 1, uint16(i))
	}
	x := uint64(1)
	for b.Loop() {
		for i := range packet.Size {
			x += 0x9e3779b97f4a7c15
			w.V.Hash[i] = x
		}
		w.Run(packet.All(packet.Size))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
}

func FuzzProcess(f *testing.F) {
	w := rig(f, store(f, 3))
	f.Add(uint32(1), uint64(0), uint64(0), uint64(0), uint64(1))
	f.Add(uint32(2), ^uint64(0), ^uint64(0), uint64(7), ^uint64(0))
	f.Fuzz(func(t *testing.T, service uint32, hash, hi, lo, in uint64) {
		w.T = t
		for i := range packet.Size {
			w.V.VIP[i], w.V.Hash[i], w.V.Src[i] = service+uint32(i)%4, hash*uint64(i), packet.Addr{Hi: hi, Lo: lo ^ uint64(i)}
			w.V.Backend[i] = 0
		}
		ans := w.Process(packet.Lanes(in))
		for l := ans["next"]; l != 0; l &= l - 1 {
			if i := l.Next() & 63; w.V.Backend[i] == 0 || w.V.Slot[i] > 2 {
				t.Fatalf("backend %d slot %d", w.V.Backend[i], w.V.Slot[i])
			}
		}
	})
}

// hash_seed changes which backend a flow gets, and nothing else.
func TestHashSeed(t *testing.T) {
	slots := func(seed uint64) (all [packet.Size]uint32) {
		s, sp := state.NewStore(), spec(10)
		defer s.Close()
		sp.Pools[0].HashSeed = seed
		if err := s.Apply(sp); err != nil {
			t.Fatal(err)
		}
		w := rig(t, s)
		for i := range packet.Size {
			load(w, i, web, 1, uint16(i))
		}
		w.Process(packet.All(packet.Size))
		return w.V.Slot
	}
	a, b := slots(1), slots(2)
	same := 0
	for i := range a {
		if a[i] == b[i] {
			same++
		}
	}
	if same > 20 || a != slots(1) {
		t.Errorf("%d of 64 flows have the same backend under another seed", same)
	}
}
