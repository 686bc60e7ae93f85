package state

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/lbgraph/lbgraph/io/packet"
)

func backends(n int) []BackendSpec {
	bs := make([]BackendSpec, n)
	for i := range bs {
		bs[i] = BackendSpec{
			Name:    fmt.Sprintf("b%d", i+1),
			Address: netip.AddrFrom4([4]byte{10, 0, byte((i + 1) >> 8), byte(i + 1)}), Weight: 100,
		}
	}
	return bs
}

func vip(name, addr, pool string, port uint16) VIPSpec {
	a := netip.MustParseAddr(addr)
	v := VIPSpec{Name: name, Prefix: netip.PrefixFrom(a, a.BitLen()), Protocol: 6, Pool: pool}
	if port != 0 {
		v.Ports = []PortRange{{port, port}}
	}
	return v
}

func onePool(bs ...BackendSpec) Spec {
	return Spec{
		Pools: []PoolSpec{{Name: "web", TableSize: 1009, Backends: bs, Health: "http", RemovalGrace: 5 * time.Minute}},
		VIPs:  []VIPSpec{vip("web", "203.0.113.10", "web", 443)},
	}
}

func apply(t testing.TB, s *Store, spec Spec) *Snapshot {
	t.Helper()
	if err := s.Apply(spec); err != nil {
		t.Fatal(err)
	}
	return s.Cell().Load()
}

// named answers a pool's table by backends' names, which does not depend on slots.
func named(n *Snapshot, pool string) []string {
	for i := range n.Pools {
		if p := &n.Pools[i]; p.Name == pool {
			out := make([]string, len(p.Table))
			for c, s := range p.Table {
				out[c] = p.Members[s].Name
			}
			return out
		}
	}
	return nil
}

func poolNamed(t testing.TB, n *Snapshot, name string) *Pool {
	t.Helper()
	for i := range n.Pools {
		if n.Pools[i].Name == name {
			return &n.Pools[i]
		}
	}
	t.Fatalf("no pool %q", name)
	return nil
}

func webTarget(i int) Target {
	return Target{"http", netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 0}
}

// A1: the same set of usable backends gives the same table, whatever the order of
// the list and whatever happened before.
func TestTableDoesNotDependOnOrderOrHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := backends(12)
		for i := range bs {
			bs[i].Weight = 1 + i%3
		}
		plain, err := Build(onePool(bs...))
		if err != nil {
			t.Fatal(err)
		}
		s := NewStore()
		defer s.Close()
		r := rand.New(rand.NewPCG(1, 1))
		apply(t, s, onePool(bs[3:9]...))
		for range 5 {
			shuffled := slices.Clone(bs)
			r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			apply(t, s, onePool(shuffled[:4+r.IntN(8)]...))
			apply(t, s, onePool(shuffled...))
		}
		for i := range 12 {
			s.SetHealth(webTarget(i+1), Healthy)
		}
		time.Sleep(2 * Window)
		n := s.Cell().Load()
		if !slices.Equal(named(n, "web"), named(plain, "web")) {
			t.Error("tables differ")
		}
		a, b := poolNamed(t, n, "web"), poolNamed(t, plain, "web")
		if a.Digest != b.Digest || a.Digest == 0 {
			t.Errorf("digests %x and %x", a.Digest, b.Digest)
		}
		other, err := Build(onePool(bs[:11]...))
		if err != nil {
			t.Fatal(err)
		}
		if poolNamed(t, other, "web").Digest == b.Digest {
			t.Error("another set has the same digest")
		}
		seeded := onePool(bs...)
		seeded.Pools[0].HashSeed = 7
		if other, _ = Build(seeded); poolNamed(t, other, "web").Digest == b.Digest {
			t.Error("another seed has the same digest")
		}
	})
}

// Backends at one address that differ by port keep slot, health and cells when one of
// them leaves the file, wherever it stood in it.
func TestPortsOfOneAddress(t *testing.T) {
	s := NewStore()
	defer s.Close()
	var bs []BackendSpec
	for i := range 10 {
		bs = append(bs, BackendSpec{Name: fmt.Sprintf("b%d", i), Address: netip.MustParseAddr("10.0.0.1"), Weight: 100, Port: 8000 + i})
	}
	before := apply(t, s, onePool(bs...))
	shuffled := slices.Clone(bs)
	rand.New(rand.NewPCG(17, 18)).Shuffle(len(bs), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	if n := apply(t, s, onePool(shuffled...)); !slices.Equal(named(n, "web"), named(before, "web")) || poolNamed(t, n, "web").Digest != poolNamed(t, before, "web").Digest {
		t.Error("the order of the file counts")
	}
	s.SetHealth(Target{"http", bs[4].Address, 8004}, Unhealthy)
	s.Flush()
	before = s.Cell().Load()
	after := apply(t, s, onePool(bs[1:]...))
	slots := func(n *Snapshot) map[string]int {
		all := map[string]int{}
		for i, m := range n.Pools[1].Members {
			if m.Backend != 0 {
				all[m.Name] = i
			}
		}
		return all
	}
	for name, slot := range slots(after) {
		if was := slots(before)[name]; slot != was {
			t.Errorf("%s was in slot %d, and is in %d", name, was, slot)
		}
		if _, st := after.PoolMember(1, uint32(slot)); (st == Up) == (name == "b0" || name == "b4") {
			t.Errorf("%s is %v", name, st)
		}
	}
	moved, others := 0, 0
	now := named(after, "web")
	for c, was := range named(before, "web") {
		if was == "b0" {
			continue
		}
		if others++; now[c] != was {
			moved++
		}
	}
	if moved*20 > others {
		t.Errorf("%d of %d cells of others moved", moved, others)
	}
	// One whose port changes stays who it is, and its cells follow the port.
	spec := onePool(bs...)
	spec.Pools[0].Health = ""
	before = apply(t, s, spec)
	bs[9].Port = 9000
	after = apply(t, s, spec)
	if slots(after)["b9"] != slots(before)["b9"] {
		t.Error("another port, and another backend")
	}
	plain, err := Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(named(after, "web"), named(plain, "web")) || slices.Equal(named(after, "web"), named(before, "web")) {
		t.Error("another port, and the table of before")
	}
}

func TestWeightZeroMovesNothing(t *testing.T) {
	bs := backends(8)
	before, _ := Build(onePool(bs[:7]...))
	bs[7].Weight = 0
	after, _ := Build(onePool(bs...))
	if !slices.Equal(named(before, "web"), named(after, "web")) {
		t.Error("a backend of weight 0 moved slots")
	}
	if _, st := after.Member(1, 7); st != Draining {
		t.Errorf("a backend of weight 0 is %s", st)
	}
}

func TestNumbersAreStable(t *testing.T) {
	s := NewStore()
	defer s.Close()
	bs := backends(5)
	spec := onePool(bs...)
	spec.VIPs = append(spec.VIPs, vip("dns", "203.0.113.11", "web", 53), vip("six", "2001:db8::1", "web", 0))
	spec.VIPs[0].Ports = []PortRange{{80, 80}, {443, 443}, {8000, 8099}}
	n := apply(t, s, spec)
	type id struct{ service, slot, backend uint32 }
	want := map[string]id{}
	for i, v := range n.Services[1:] {
		for j, m := range n.Pools[v.Pool].Members {
			want[fmt.Sprint(v.Prefix, v.Lo, m.Name)] = id{uint32(i + 1), uint32(j), m.Backend}
		}
	}
	if len(want) != 5*5 {
		t.Fatalf("%d pairs of service and backend", len(want))
	}
	slices.Reverse(spec.Pools[0].Backends)
	slices.Reverse(spec.VIPs)
	spec.VIPs[2].Ports = append([]PortRange{{22, 22}}, spec.VIPs[2].Ports...)
	n = apply(t, s, spec)
	for i, v := range n.Services[1:] {
		for j, m := range n.Pools[v.Pool].Members {
			got := id{uint32(i + 1), uint32(j), m.Backend}
			if w, ok := want[fmt.Sprint(v.Prefix, v.Lo, m.Name)]; ok && w != got {
				t.Errorf("%s %d %s: %v, was %v", v.Prefix, v.Lo, m.Name, got, w)
			}
			if b, st := n.Member(got.service, got.slot); b != m.Backend || st != Up {
				t.Errorf("Member(%d, %d) = %d %s", got.service, got.slot, b, st)
			}
		}
	}
	for _, v := range n.Services[1:] {
		if want := v.Prefix.Addr().Is4() && v.Lo == v.Hi; v.Compact != want {
			t.Errorf("%s %d-%d: compact %v", v.Prefix, v.Lo, v.Hi, v.Compact)
		}
	}
}

// B2: the packet plane sees a dead backend at once, the table follows after the
// window, in one snapshot for all changes.
func TestHealthIsSeenAtOnceAndRebuiltOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		before := apply(t, s, onePool(backends(4)...))
		for i := range 4 {
			s.SetHealth(webTarget(i+1), Healthy)
		}
		time.Sleep(2 * Window)
		gen := s.Cell().Load().Generation
		if gen != before.Generation+1 {
			t.Errorf("four results made %d snapshots", gen-before.Generation)
		}

		n := s.Cell().Load()
		s.SetHealth(webTarget(2), Unhealthy)
		s.SetHealth(webTarget(3), Unhealthy)
		if _, st := n.Member(1, 1); st != Down {
			t.Errorf("the failed backend is %s in the snapshot in use", st)
		}
		if st := n.StatusOf(s.Backend(webTarget(2).Addr)); st != Down {
			t.Errorf("StatusOf says %s", st)
		}
		time.Sleep(Window - time.Millisecond)
		if s.Cell().Load() != n {
			t.Error("rebuilt before the window was over")
		}
		for h := range uint64(500) {
			slot, b, ok := n.Choose(1, packet.FlowHash(packet.Addr4(uint32(h)), packet.Addr4(1), 1, 2, 6))
			if !ok || slot == 1 || slot == 2 || b == 0 {
				t.Fatalf("before the rebuild, Choose answers slot %d backend %d, %v", slot, b, ok)
			}
		}
		time.Sleep(2 * time.Millisecond)
		n = s.Cell().Load()
		if n.Generation != gen+1 {
			t.Errorf("generation %d after %d", n.Generation, gen)
		}
		if p := poolNamed(t, n, "web"); p.Usable != 2 || slices.Contains(p.Table, 1) || slices.Contains(p.Table, 2) {
			t.Error("the table still has the failed backends")
		}
		time.Sleep(time.Hour)
		if s.Cell().Load() != n {
			t.Error("published without a change")
		}
	})
}

func TestUnknownTakesTrafficAtStartOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		bs := backends(3)
		n := apply(t, s, onePool(bs[:2]...))
		if p := poolNamed(t, n, "web"); p.Usable != 2 || p.Healthy != 0 {
			t.Errorf("at start %d usable, %d healthy", p.Usable, p.Healthy)
		}
		n = apply(t, s, onePool(bs...))
		if _, st := n.Member(1, 2); st != Down {
			t.Errorf("added by reload and unknown: %s", st)
		}
		s.SetHealth(webTarget(3), Healthy)
		time.Sleep(2 * Window)
		n = s.Cell().Load()
		if p := poolNamed(t, n, "web"); p.Usable != 3 || p.Healthy != 1 {
			t.Errorf("after first success %d usable, %d healthy", p.Usable, p.Healthy)
		}
		if ts := n.Targets(); len(ts) != 3 {
			t.Errorf("targets %v", ts)
		}
	})
}

func TestFailOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := onePool(backends(3)...)
		spec.Pools[0].Backends[2].Drain = true
		for _, open := range []bool{false, true} {
			spec.Pools[0].FailOpen = open
			s := NewStore()
			apply(t, s, spec)
			for i := range 3 {
				s.SetHealth(webTarget(i+1), Unhealthy)
			}
			n := s.Cell().Load()
			_, _, ok := n.Choose(1, 12345)
			if _, st := n.Member(1, 0); ok != open || (st == Up) != open {
				t.Errorf("fail_open %v: at once, member is %s, chosen %v", open, st, ok)
			}
			time.Sleep(2 * Window)
			n = s.Cell().Load()
			p := poolNamed(t, n, "web")
			slot, _, ok := n.Choose(1, 12345)
			if ok != open || ok && (p.Usable != 2 || slot == 2) || !ok && p.Table != nil {
				t.Errorf("fail_open %v: %d usable, slot %d, %v", open, p.Usable, slot, ok)
			}
			s.Close()
		}
	})
}

// A backend that is removed drains for its grace, then is dead; its slot and its
// number are given out again only when every table was swept.
func TestRemovalDrainSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		bs := backends(4)
		n := apply(t, s, onePool(bs[:3]...))
		sweeper := s.Cell().Sweeper()
		old := n.Pools[1].Members[1].Backend
		n = apply(t, s, onePool(bs[0], bs[2]))
		if b, st := n.Member(1, 1); b != old || st != Draining {
			t.Fatalf("removed: backend %d, %s", b, st)
		}
		if p := poolNamed(t, n, "web"); p.Usable != 2 || slices.Contains(p.Table, 1) || !p.Members[1].Removed {
			t.Error("the removed backend gets new flows")
		}
		time.Sleep(5*time.Minute - time.Second)
		if _, st := s.Cell().Load().Member(1, 1); st != Draining {
			t.Fatalf("before its grace is over: %s", st)
		}
		time.Sleep(2 * time.Second)
		n = s.Cell().Load()
		if b, st := n.Member(1, 1); b != 0 || st != Down {
			t.Fatalf("after its grace: backend %d, %s", b, st)
		}
		died := n.Generation

		time.Sleep(time.Hour)
		n = apply(t, s, onePool(bs[0], bs[2], bs[3]))
		if slot := slotOf(t, n, "b4"); slot != 3 {
			t.Fatalf("a slot that no table was swept of was given out: %d", slot)
		}
		if n.Pools[1].Members[3].Backend == old {
			t.Fatal("a number that no table was swept of was given out")
		}
		sweeper.Swept(died - 1)
		more := append(backends(3)[:1], BackendSpec{Name: "b9", Address: netip.MustParseAddr("10.9.9.9"), Weight: 1})
		n = apply(t, s, onePool(append(more, bs[2], bs[3])...))
		if slot := slotOf(t, n, "b9"); slot != 4 {
			t.Fatalf("slot %d was given out", slot)
		}
		sweeper.Swept(died)
		more = append(more, BackendSpec{Name: "b8", Address: netip.MustParseAddr("10.8.8.8"), Weight: 1})
		n = apply(t, s, onePool(append(more, bs[2], bs[3])...))
		if slot := slotOf(t, n, "b8"); slot != 1 {
			t.Errorf("the swept slot was not given out: %d", slot)
		}
		if got := n.Pools[1].Members[1].Backend; got != old {
			t.Errorf("the swept number %d was not given out: %d", old, got)
		}
	})
}

func slotOf(t testing.TB, n *Snapshot, name string) uint32 {
	t.Helper()
	_, slot, ok := n.Find("web", name)
	if !ok {
		t.Fatalf("no backend %q", name)
	}
	return slot
}

func TestRemovedAndBackKeepsItsSlotAndFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		bs := backends(3)
		apply(t, s, onePool(bs...))
		for i := range 3 {
			s.SetHealth(webTarget(i+1), Healthy)
		}
		apply(t, s, onePool(bs[:2]...))
		time.Sleep(time.Minute)
		n := apply(t, s, onePool(bs...))
		if _, st := n.Member(1, 2); st != Up {
			t.Errorf("back within its grace: %s", st)
		}
		time.Sleep(time.Hour)
		if _, st := s.Cell().Load().Member(1, 2); st != Up {
			t.Errorf("the old grace killed it: %s", st)
		}
	})
}

func TestNoGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		spec := onePool(backends(3)...)
		apply(t, s, spec)
		spec = onePool(backends(2)...)
		spec.Pools[0].RemovalGrace = 0
		if b, st := apply(t, s, spec).Member(1, 2); b != 0 || st != Down {
			t.Errorf("removed without grace: %d %s", b, st)
		}
	})
}

func TestRemovedPoolAndServiceDieAndComeFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		spec := onePool(backends(3)...)
		apply(t, s, spec)
		n := apply(t, s, Spec{})
		if _, v := n.Match(packet.AddrOf(netip.MustParseAddr("203.0.113.10")), 6, 443); v != NotVIP {
			t.Errorf("verdict %d for a removed VIP", v)
		}
		if b, _ := n.Member(1, 0); b != 0 {
			t.Error("the removed service still has members")
		}
		if n.Pools[1].Name != "web" {
			t.Error("the removed pool does not drain")
		}
		time.Sleep(10 * time.Minute)
		if n = s.Cell().Load(); n.Pools[1].ID != 0 || n.Backends[1].ID != 0 {
			t.Error("the removed pool and its backends live on")
		}
		time.Sleep(10 * time.Minute)
		spec.Pools[0].Name, spec.VIPs[0].Pool = "new", "new"
		spec.Pools[0].Backends = []BackendSpec{{Name: "x", Address: netip.MustParseAddr("10.7.7.7"), Weight: 1}}
		n = apply(t, s, spec)
		if n.Pools[1].Name != "new" || n.Services[1].VIP != "web" || n.Backends[1].Addr != netip.MustParseAddr("10.7.7.7") {
			t.Errorf("dead numbers were not given out again: %+v", n.Pools)
		}
	})
}

// An address that leads to another pool gets a new service number; the old one is
// remembered while its flows may stay.
func TestServiceLedToAnotherPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		spec := onePool(backends(2)...)
		spec.Pools = append(spec.Pools, PoolSpec{Name: "green", TableSize: 251, Backends: backends(4)[2:], RemovalGrace: time.Minute})
		n := apply(t, s, spec)
		dst := packet.AddrOf(netip.MustParseAddr("203.0.113.10"))
		blue, _ := n.Match(dst, 6, 443)
		spec.VIPs[0].Pool = "green"
		n = apply(t, s, spec)
		green, v := n.Match(dst, 6, 443)
		if v != Served || green == blue {
			t.Fatalf("service %d after %d", green, blue)
		}
		if n.Infos[green].Prev != blue || n.Infos[blue].Base == 0 {
			t.Error("the old service is forgotten at once")
		}
		n = apply(t, s, spec)
		if n.Infos[green].Prev != blue {
			t.Error("a reload forgets the old service")
		}
		time.Sleep(6 * time.Minute)
		n = s.Cell().Load()
		if n.Infos[green].Prev != 0 || n.Infos[blue].Base != 0 {
			t.Error("the old service outlives its grace")
		}
		spec.VIPs[0].Pool = "web" // and back: the number of before, still in quarantine
		n = apply(t, s, spec)
		if again, _ := n.Match(dst, 6, 443); again != blue || n.Infos[blue].Prev != green || n.Infos[green].Prev != 0 {
			t.Errorf("back to the first pool: service %d, infos %+v", again, n.Infos)
		}
		time.Sleep(50 * time.Second)
		if n = s.Cell().Load(); n.Infos[blue].Prev != green || n.Infos[green].Base == 0 {
			t.Errorf("forgotten within the second pool's grace: infos %+v", n.Infos)
		}
		time.Sleep(time.Minute)
		if n = s.Cell().Load(); n.Infos[blue].Prev != 0 || n.Infos[green].Base != 0 {
			t.Errorf("remembered past the second pool's grace: infos %+v", n.Infos)
		}
	})
}

// Where the pool has no grace, the first snapshot after the change forgets the old
// service, and no other follows.
func TestServiceLedToAnotherPoolWithoutGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		spec := onePool(backends(2)...)
		spec.Pools[0].RemovalGrace = 0
		spec.Pools = append(spec.Pools, PoolSpec{Name: "green", TableSize: 251, Backends: backends(4)[2:]})
		n := apply(t, s, spec)
		dst := packet.AddrOf(netip.MustParseAddr("203.0.113.10"))
		blue, _ := n.Match(dst, 6, 443)
		var seen []*Snapshot
		defer s.Watch(func(n *Snapshot) { seen = append(seen, n) })()
		spec.VIPs[0].Pool = "green"
		apply(t, s, spec)
		time.Sleep(time.Second)
		if len(seen) != 2 {
			t.Fatalf("%d snapshots; those before and after the change are 2", len(seen))
		}
		green, v := seen[1].Match(dst, 6, 443)
		if v != Served || green == blue || seen[1].Infos[green].Prev != 0 || seen[1].Infos[blue].Base != 0 {
			t.Errorf("service %d after %d, infos %+v", green, blue, seen[1].Infos)
		}
	})
}

func TestEqualPoolsShareTablesAndAFlapIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		spec := onePool(backends(5)...)
		other := spec.Pools[0]
		other.Name, other.HashSeed, other.Backends = "api", 9, slices.Clone(other.Backends)
		slices.Reverse(other.Backends)
		spec.Pools = append(spec.Pools, other)
		n := apply(t, s, spec)
		a, b := poolNamed(t, n, "web"), poolNamed(t, n, "api")
		if unsafe.SliceData(a.Table) != unsafe.SliceData(b.Table) {
			t.Error("equal pools have tables of their own")
		}
		if a.Digest == b.Digest {
			t.Error("pools of different seeds have one digest")
		}
		s.SetHealth(webTarget(1), Unhealthy)
		time.Sleep(2 * Window)
		down := poolNamed(t, s.Cell().Load(), "web")
		if down.Usable != 4 {
			t.Fatalf("%d usable", down.Usable)
		}
		s.SetHealth(webTarget(1), Healthy)
		time.Sleep(2 * Window)
		if up := poolNamed(t, s.Cell().Load(), "web"); unsafe.SliceData(up.Table) != unsafe.SliceData(a.Table) || up.Digest != a.Digest {
			t.Error("a flap built a table again")
		}
	})
}

func TestCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		spec := onePool(backends(3)...)
		apply(t, s, spec)
		if err := s.Drain("web", "b9", true, false); err == nil {
			t.Error("drained a backend that is not there")
		}
		if err := s.Drain("nope", "b1", true, false); err == nil {
			t.Error("drained in a pool that is not there")
		}
		if err := s.SetWeight("web", "b1", 1001, false); err == nil {
			t.Error("weight 1001")
		}
		if err := s.Drain("web", "b1", true, false); err != nil {
			t.Fatal(err)
		}
		if _, st := s.Cell().Load().Member(1, 0); st != Draining {
			t.Errorf("drained by command: %s", st)
		}
		if err := s.SetWeight("web", "b2", 300, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * Window)
		p := poolNamed(t, s.Cell().Load(), "web")
		if c := shares(p.Table, 3); c[0] != 0 || c[1] < 700 || p.Members[1].Weight != 300 {
			t.Errorf("shares %v", c)
		}
		n := apply(t, s, spec)
		p = poolNamed(t, n, "web")
		if _, st := n.Member(1, 0); st != Up || p.Members[1].Weight != 300 {
			t.Errorf("after reload: b1 %s, weight of b2 %d", st, p.Members[1].Weight)
		}
		if err := s.Restore("web", "b2"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * Window)
		if c := shares(poolNamed(t, s.Cell().Load(), "web").Table, 3); c[1] > 400 {
			t.Errorf("restored: shares %v", c)
		}
		b := s.Backend(netip.MustParseAddr("10.0.0.3"))
		s.SetStatus(b, Down)
		if _, st := s.Cell().Load().Member(1, 2); st != Down {
			t.Errorf("held down: %s", st)
		}
		s.SetStatus(b, Up)
		if _, st := s.Cell().Load().Member(1, 2); st != Up {
			t.Errorf("let go: %s", st)
		}
		s.SetStatus(999, Down)
	})
}

func TestOneCheckPerBackendSharedByPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		spec := onePool(backends(2)...)
		same, other := spec.Pools[0], spec.Pools[0]
		same.Name, other.Name, other.Health = "same", "other", "tcp"
		spec.Pools = append(spec.Pools, same, other)
		n := apply(t, s, spec)
		if ts := n.Targets(); len(ts) != 4 {
			t.Errorf("targets %v", ts)
		}
		s.SetHealth(webTarget(1), Unhealthy)
		time.Sleep(2 * Window)
		n = s.Cell().Load()
		for name, usable := range map[string]int{"web": 1, "same": 1, "other": 2} {
			if got := poolNamed(t, n, name).Usable; got != usable {
				t.Errorf("pool %s: %d usable, want %d", name, got, usable)
			}
		}
		if st := n.StatusOf(s.Backend(webTarget(1).Addr)); st != Up {
			t.Errorf("best status is %s", st)
		}
	})
}

func TestErrorsChangeNothing(t *testing.T) {
	s := NewStore()
	defer s.Close()
	n := apply(t, s, onePool(backends(2)...))
	for name, change := range map[string]func(*Spec){
		"prime":    func(s *Spec) { s.Pools[0].TableSize = 1000 },
		"twice":    func(s *Spec) { s.Pools = append(s.Pools, s.Pools[0]) },
		"weight":   func(s *Spec) { s.Pools[0].Backends[0].Weight = 1001 },
		"address":  func(s *Spec) { s.Pools[0].Backends[0].Address = netip.Addr{} },
		"no pool":  func(s *Spec) { s.VIPs[0].Pool = "nope" },
		"no vip":   func(s *Spec) { s.VIPs[0].Prefix = netip.Prefix{} },
		"too many": func(s *Spec) { s.Pools[0].Backends = backends(MaxSlots + 1) },
		"too many with those that drain": func(s *Spec) {
			s.Pools[0].Backends = backends(MaxSlots + 1)[2:]
			s.Pools[0].Backends = append(s.Pools[0].Backends, BackendSpec{Name: "x", Address: netip.MustParseAddr("10.99.99.99")})[:MaxSlots]
		},
	} {
		spec := onePool(backends(2)...)
		change(&spec)
		if err := s.Apply(spec); err == nil {
			t.Errorf("%s: no error", name)
		}
		if s.Cell().Load() != n {
			t.Errorf("%s: published", name)
		}
	}
}

func TestWatchersSeeSnapshotsBeforeTheyArePublished(t *testing.T) {
	s := NewStore()
	defer s.Close()
	var got []uint64
	stop := s.Watch(func(n *Snapshot) {
		got = append(got, n.Generation)
		if len(got) > 1 && s.Cell().Load().Generation >= n.Generation {
			t.Error("published before the watcher was called")
		}
	})
	apply(t, s, onePool(backends(2)...))
	apply(t, s, onePool(backends(3)...))
	stop()
	apply(t, s, onePool(backends(2)...))
	if !slices.Equal(got, []uint64{0, 1, 2}) {
		t.Errorf("the watcher saw %v", got)
	}
}

func TestNeighbours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		apply(t, s, onePool(backends(2)...))
		b, gw := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1")
		s.SetNeighbour(b, [6]byte{2, 0, 0, 0, 0, 1}, true)
		s.SetNeighbour(gw, [6]byte{2, 0, 0, 0, 0, 2}, true)
		s.SetMTU(b, 1400)
		time.Sleep(2 * Window)
		n := s.Cell().Load()
		k := n.Backends[s.Backend(b)]
		if !k.HasMAC || k.MAC[5] != 1 || k.MTU != 1400 || n.Neighbours[gw] != [6]byte{2, 0, 0, 0, 0, 2} {
			t.Errorf("backend %+v, neighbours %v", k, n.Neighbours)
		}
		s.SetNeighbour(b, [6]byte{}, false)
		time.Sleep(2 * Window)
		if s.Cell().Load().Backends[s.Backend(b)].HasMAC || !k.HasMAC {
			t.Error("a neighbour that is gone stays, or an old snapshot changed")
		}
	})
}

// Many goroutines at once: what comes out at the end is what was said last.
func TestConcurrentChanges(t *testing.T) {
	s := NewStore()
	defer s.Close()
	spec := onePool(backends(20)...)
	for i := range 10 {
		p := spec.Pools[0]
		p.Name = fmt.Sprint("p", i)
		spec.Pools = append(spec.Pools, p)
	}
	apply(t, s, spec)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 0))
			for range 200 {
				s.SetHealth(webTarget(1+g*5+r.IntN(5)), Health(r.IntN(3)))
				n := s.Cell().Load()
				n.Choose(1, r.Uint64())
				n.Member(1, uint32(r.IntN(20)))
			}
			for i := range 5 {
				s.SetHealth(webTarget(1+g*5+i), []Health{Healthy, Unhealthy}[i%2])
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			if err := s.Apply(spec); err != nil {
				t.Error(err)
			}
			s.Flush()
		}
	})
	wg.Wait()
	s.SetHealth(webTarget(1), Unhealthy)
	s.Flush()
	n := s.Cell().Load()
	for i := range n.Pools[1:] {
		p := &n.Pools[i+1]
		used := map[uint16]bool{}
		for _, c := range p.Table {
			used[c] = true
		}
		for slot, m := range p.Members {
			want := slot%5%2 == 0 && slot != 0
			if used[uint16(slot)] != want || (m.Status == Up) != want {
				t.Errorf("pool %s slot %d: in table %v, %s; want %v", p.Name, slot, used[uint16(slot)], m.Status, want)
			}
			if b, st := n.Member(1, uint32(slot)); b != m.Backend || (st == Up) != want {
				t.Errorf("slot %d: Member says %d %s", slot, b, st)
			}
		}
	}
}

func TestMadeByHand(t *testing.T) {
	n := &Snapshot{Backends: []Backend{{}, {ID: 1}}}
	if _, v := n.Match(packet.Addr4(1), 6, 80); v != NotVIP || n.MatchAddr(packet.Addr4(1)) {
		t.Error("matches")
	}
	if b, st := n.Member(1, 1); b != 0 || st != Down || n.StatusOf(1) != Down {
		t.Error("a member out of nothing")
	}
	if _, _, ok := n.Choose(1, 1); ok {
		t.Error("chose from nothing")
	}
	var c Cell
	if n := c.Load(); n.StatusOf(0) != Up && n.StatusOf(0) != Down {
		t.Error("empty cell")
	}
}

func manyPools(pools, backendsEach int, shared bool) Spec {
	var spec Spec
	for i := range pools {
		p := PoolSpec{Name: fmt.Sprint("p", i), TableSize: 65537, Health: "http"}
		for j := range backendsEach {
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(j + 1)})
			if j > 0 && !shared { // the first is in all pools
				a = netip.AddrFrom4([4]byte{10, 1 + byte(j), byte(i >> 8), byte(i)})
			}
			p.Backends = append(p.Backends, BackendSpec{Name: fmt.Sprint("b", j), Address: a, Weight: 100})
		}
		spec.Pools = append(spec.Pools, p)
	}
	return spec
}

// One backend of all pools fails, and comes back: the work from the check's result
// to the published snapshot, the window left out. On one core, tables are built one after
// the other, and only the collector of garbage may use another.
func BenchmarkFlap(b *testing.B) {
	for _, pools := range []int{10, 50, 100, 200} {
		s := NewStore()
		apply(b, s, manyPools(pools, 20, false))
		flap := func(h Health) {
			s.SetHealth(webTarget(1), h)
			s.Flush()
		}
		fail := func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s.memo = memo{}
				b.StartTimer()
				flap(Unhealthy)
				b.StopTimer()
				flap(Healthy)
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(pools), "ns/pool")
		}
		b.Run(fmt.Sprintf("pools=%d/fail", pools), fail)
		b.Run(fmt.Sprintf("pools=%d/fail,one_core", pools), func(b *testing.B) {
			s.builders = 1
			fail(b)
			s.builders = 0
		})
		flap(Unhealthy)
		b.Run(fmt.Sprintf("pools=%d/back", pools), func(b *testing.B) {
			for b.Loop() {
				flap(Healthy)
				b.StopTimer()
				flap(Unhealthy)
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(pools), "ns/pool")
		})
		s.Close()
	}
}

// 20 backends fail at once in 50 pools of 40.
func BenchmarkRackFails(b *testing.B) {
	s := NewStore()
	defer s.Close()
	spec := manyPools(50, 40, true)
	for i := range spec.Pools { // tables that cannot be shared
		spec.Pools[i].Backends[39].Address = netip.AddrFrom4([4]byte{10, 9, 0, byte(i)})
	}
	apply(b, s, spec)
	for b.Loop() {
		b.StopTimer()
		for i := range 20 {
			s.SetHealth(webTarget(i+1), Healthy)
		}
		s.Flush()
		s.memo = memo{}
		b.StartTimer()
		for i := range 20 {
			s.SetHealth(webTarget(i+1), Unhealthy)
		}
		s.Flush()
	}
}

func BenchmarkSelect(b *testing.B) {
	n, err := Build(Spec{Pools: []PoolSpec{{Name: "web", Backends: backends(20)}}})
	if err != nil {
		b.Fatal(err)
	}
	p, sum := &n.Pools[1], uint32(0)
	h := uint64(0)
	b.Run("Pool.Select", func(b *testing.B) {
		for b.Loop() {
			h += 0x9e3779b97f4a7c15
			slot, _ := p.Select(h)
			sum += slot
		}
	})
	b.Run("Snapshot.Choose", func(b *testing.B) {
		for b.Loop() {
			h += 0x9e3779b97f4a7c15
			slot, _, _ := n.Choose(1, h)
			sum += slot
		}
	})
	_ = sum
}
