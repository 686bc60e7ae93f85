package state

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lbgraph/lbgraph/io/packet"
)

// statuses answers those of a pool's members, in the order of their slots.
func statuses(t testing.TB, n *Snapshot, name string) string {
	t.Helper()
	p := poolNamed(t, n, name)
	var all []string
	for slot := range p.Members {
		_, st := n.PoolMember(p.ID, uint32(slot))
		all = append(all, st.String())
	}
	return strings.Join(all, " ")
}

// A pool that fails open does so only while none of its members is up, and opens
// neither what the file or a command drains, nor what has no weight or is removed.
func TestFailOpenIsTheLastResort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		spec := onePool(backends(6)...)
		spec.Pools[0].FailOpen = true
		spec.Pools[0].Backends[4].Weight = 0
		apply(t, s, spec)
		spec.Pools[0].Backends = spec.Pools[0].Backends[:5]
		apply(t, s, spec)
		if err := s.Drain("web", "b4", true, true); err != nil {
			t.Fatal(err)
		}
		s.SetStatus(s.Backend(webTarget(3).Addr), Draining)
		s.SetHealth(webTarget(1), Unhealthy)
		s.SetHealth(webTarget(2), Healthy)
		if got, want := statuses(t, s.Cell().Load(), "web"), "down up draining draining draining draining"; got != want {
			t.Errorf("one is up: %s, want %s", got, want)
		}
		s.SetHealth(webTarget(2), Unhealthy)
		if got, want := statuses(t, s.Cell().Load(), "web"), "up up draining draining draining draining"; got != want {
			t.Errorf("none is up: %s, want %s", got, want)
		}
		s.SetHealth(webTarget(1), Healthy)
		if got, want := statuses(t, s.Cell().Load(), "web"), "up down draining draining draining draining"; got != want {
			t.Errorf("one is up again: %s, want %s", got, want)
		}
	})
}

// A backend that was added by a reload and never was healthy takes nothing until it
// is; what it gained because its pool failed open it keeps while it drains.
func TestUnknownThatFailedOpenDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		spec := onePool(backends(2)...)
		spec.Pools[0].FailOpen = true
		apply(t, s, onePool(backends(1)...))
		n := apply(t, s, spec)
		if got := statuses(t, n, "web"); got != "up down" {
			t.Errorf("added by a reload: %s", got)
		}
		s.SetHealth(webTarget(1), Unhealthy)
		if got := statuses(t, s.Cell().Load(), "web"); got != "up up" {
			t.Errorf("fails open: %s", got)
		}
		spec.Pools[0].Backends = spec.Pools[0].Backends[:1]
		if got := statuses(t, apply(t, s, spec), "web"); got != "up draining" {
			t.Errorf("removed: %s", got)
		}
	})
}

// A check that changes, or comes, takes the flows of no backend that had them, and
// gives none to a backend that never was healthy.
func TestUnknownByAnotherCheck(t *testing.T) {
	for _, c := range []struct {
		name    string
		before  string // the check of the pool when the backend is added to it
		said    Health // by that check
		after   string // the check of the pool then
		known   bool   // another pool has the backend by that check, and nobody has asked yet
		want    Status
		healthy int
	}{
		{"was healthy", "http", Healthy, "tcp", false, Up, 1},
		{"was unhealthy", "http", Unhealthy, "tcp", false, Down, 0},
		{"was never asked", "http", Unknown, "tcp", false, Down, 0},
		{"was healthy, and the other check does not know", "http", Healthy, "tcp", true, Up, 0},
		{"was unhealthy, and the other check does not know", "http", Unhealthy, "tcp", true, Down, 0},
		{"had no check", "", Unknown, "tcp", false, Up, 1},
		{"has none any more", "http", Unhealthy, "", false, Up, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewStore()
			defer s.Close()
			spec := Spec{Pools: []PoolSpec{{Name: "web", TableSize: 251, Health: c.before}, {Name: "api", TableSize: 251, Health: "tcp"}}}
			if c.known {
				spec.Pools[1].Backends = backends(1)
			}
			apply(t, s, spec)
			spec.Pools[0].Backends = backends(1)
			apply(t, s, spec)
			if c.said != Unknown {
				s.SetHealth(Target{c.before, webTarget(1).Addr, 0}, c.said)
			}
			spec.Pools[0].Health = c.after
			n := apply(t, s, spec)
			p := poolNamed(t, n, "web")
			if _, st := n.PoolMember(p.ID, 0); st != c.want || p.Healthy != c.healthy || (p.Usable == 1) != (st == Up) {
				t.Errorf("%v, %d healthy, %d usable; want %v, %d", st, p.Healthy, p.Usable, c.want, c.healthy)
			}
		})
	}
}

// A backend that comes back after its grace begins anew: nothing is known of it.
func TestRemovedAndBackAfterItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		bs := backends(2)
		apply(t, s, onePool(bs...))
		for i := range 2 {
			s.SetHealth(webTarget(i+1), Healthy)
		}
		n := apply(t, s, onePool(bs[:1]...))
		if ts, p := n.Targets(), poolNamed(t, n, "web"); len(ts) != 1 || p.Healthy != 1 || !p.Members[1].Removed {
			t.Errorf("while it drains: targets %v, %d healthy, %+v", ts, p.Healthy, p.Members)
		}
		if _, _, ok := n.Find("web", "b2"); ok {
			t.Error("what is removed is found")
		}
		time.Sleep(5*time.Minute + time.Second)
		n = s.Cell().Load()
		if b := s.Backend(bs[1].Address); b != 0 || poolNamed(t, n, "web").Members[1].Backend != 0 || len(n.Targets()) != 1 {
			t.Errorf("dead: number %d, %+v, targets %v", b, poolNamed(t, n, "web").Members, n.Targets())
		}
		n = apply(t, s, onePool(bs...))
		b := s.Backend(bs[1].Address)
		if got := statuses(t, n, "web"); got != "up down" || b == 0 || n.Backends[b].Addr != bs[1].Address || len(n.Targets()) != 2 {
			t.Errorf("back: %s, backend %+v, targets %v", got, n.Backends[b], n.Targets())
		}
		s.SetHealth(webTarget(2), Healthy)
		if got := statuses(t, s.Cell().Load(), "web"); got != "up up" {
			t.Errorf("back and healthy: %s", got)
		}
	})
}

// Without a check and without grace a backend is in the table as long as it is in the
// file.
func TestInTheTableAsInTheFile(t *testing.T) {
	s := NewStore()
	defer s.Close()
	for i, n := range []int{3, 2, 3, 1, 3} {
		spec := onePool(backends(n)...)
		spec.Pools[0].Health, spec.Pools[0].RemovalGrace = "", 0
		p := poolNamed(t, apply(t, s, spec), "web")
		used := slices.Compact(slices.Sorted(slices.Values(p.Table)))
		if len(used) != n || int(used[n-1]) != n-1 {
			t.Errorf("file %d has %d backends, its table the slots %v", i, n, used)
		}
	}
}

// Each removed backend has the grace that its pool had, and what came back ends for no
// old timer.
func TestGracesEndOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		spec := Spec{}
		for i, grace := range []time.Duration{time.Minute, 3 * time.Minute, 2 * time.Minute} {
			spec.Pools = append(spec.Pools, PoolSpec{Name: fmt.Sprint("p", i), TableSize: 251, Backends: backends(2), RemovalGrace: grace})
		}
		apply(t, s, spec)
		less := Spec{Pools: slices.Clone(spec.Pools)}
		for i := range less.Pools {
			less.Pools[i].Backends = less.Pools[i].Backends[:1]
		}
		apply(t, s, less)
		at := published(s)
		drains := func() (all string) {
			n := s.Cell().Load()
			for i := range spec.Pools {
				all += strings.Fields(statuses(t, n, fmt.Sprint("p", i)))[1] + " "
			}
			return all
		}
		for _, want := range []string{"draining draining draining ", "down draining draining ", "down draining down ", "down down down "} {
			if got := drains(); got != want {
				t.Errorf("behind %v: %s, want %s", at(), got, want)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if got := at(); !slices.Equal(got, []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute}) {
			t.Errorf("published at %v", got)
		}
		// Away and back again.
		time.Sleep(time.Hour)
		apply(t, s, spec)
		apply(t, s, less)
		time.Sleep(30 * time.Second)
		n := apply(t, s, spec)
		time.Sleep(time.Hour)
		if s.Cell().Load() != n {
			t.Error("the grace of what came back has ended something")
		}
	})
}

// An old service stays for the grace of its pool, and the pool's number with it, also
// if the pool has nothing to drain.
func TestServiceOfAPoolThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		spec := onePool()
		spec.Pools[0].RemovalGrace = time.Hour
		n := apply(t, s, spec)
		dst := packet.AddrOf(netip.MustParseAddr("203.0.113.10"))
		old, _ := n.Match(dst, 6, 443)
		spec.Pools[0] = PoolSpec{Name: "new", TableSize: 251, Backends: backends(2)}
		spec.VIPs[0].Pool = "new"
		apply(t, s, spec)
		time.Sleep(time.Hour - time.Minute)
		spec.Pools = append(spec.Pools, PoolSpec{Name: "more", TableSize: 251, Backends: backends(3)})
		n = apply(t, s, spec)
		now, _ := n.Match(dst, 6, 443)
		if now == old || n.Infos[now].Prev != old || poolNamed(t, n, "more").ID == n.Services[old].Pool {
			t.Errorf("services %+v, infos %+v", n.Services, n.Infos)
		}
		time.Sleep(2 * time.Minute)
		if n = s.Cell().Load(); n.Infos[now].Prev != 0 || n.Services[old].ID != 0 {
			t.Errorf("behind the grace: services %+v, infos %+v", n.Services, n.Infos)
		}
	})
}

// The size and the seed of a table follow the file, and the size is 65537 if it says
// none.
func TestTableFollowsTheFile(t *testing.T) {
	s := NewStore()
	defer s.Close()
	spec := onePool(backends(3)...)
	p := *poolNamed(t, apply(t, s, spec), "web")
	spec.Pools[0].HashSeed = 7
	seeded := *poolNamed(t, apply(t, s, spec), "web")
	if seeded.Digest == p.Digest || seeded.Seed != 7 || len(seeded.Table) != 1009 {
		t.Errorf("seed %d, digest %x of %d slots, was %x", seeded.Seed, seeded.Digest, len(seeded.Table), p.Digest)
	}
	spec.Pools[0].TableSize = 251
	if p := poolNamed(t, apply(t, s, spec), "web"); len(p.Table) != 251 {
		t.Errorf("%d slots, want 251", len(p.Table))
	}
	spec.Pools[0].TableSize = 0
	if p := poolNamed(t, apply(t, s, spec), "web"); len(p.Table) != 65537 {
		t.Errorf("%d slots, want 65537", len(p.Table))
	}
}

// A pool takes MaxSlots backends, removed ones included, and not one more.
func TestFullPool(t *testing.T) {
	s := NewStore()
	defer s.Close()
	bs := backends(MaxSlots + 2)
	apply(t, s, onePool(bs[:2]...))
	if err := s.Apply(onePool(bs[1 : MaxSlots+1]...)); err == nil {
		t.Error("one more than there are slots was taken")
	}
	apply(t, s, onePool(bs[1:MaxSlots]...))
}

// Between a failure and the next table the flows of a failed backend are spread over
// all the others, and the last one that is up is found among many.
func TestChoosePassesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		n := apply(t, s, onePool(backends(5)...))
		s.SetHealth(webTarget(2), Unhealthy)
		took, all := map[uint32]int{}, 0
		for h := range uint64(20000) {
			h = packet.Mix(h, 0x9e3779b97f4a7c15)
			if was, _ := n.Pools[1].Select(h); was == 1 {
				slot, _, _ := n.Choose(1, h)
				took[slot]++
				all++
			}
		}
		for _, slot := range []uint32{0, 2, 3, 4} {
			if took[slot] < all/8 {
				t.Errorf("of %d flows of a failed backend slot %d took %d: %v", all, slot, took[slot], took)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		n := apply(t, s, onePool(backends(200)...))
		for i := range 200 {
			if i != 77 {
				s.SetHealth(webTarget(i+1), Unhealthy)
			}
		}
		for h := range uint64(1000) {
			if slot, b, ok := n.Choose(1, packet.Mix(h, 1)); !ok || slot != 77 || b != n.Pools[1].Members[77].Backend {
				t.Fatalf("chose slot %d, backend %d, %v; only slot 77 is up", slot, b, ok)
			}
		}
	})
}
