package state

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// A dead number rests for Quarantine, however soon all tables have forgotten it:
// packets on their way may still bear it.
func TestQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		bs := backends(4)
		with := func(which ...int) {
			t.Helper()
			spec := onePool()
			spec.Pools[0].RemovalGrace = 0
			for _, i := range which {
				spec.Pools[0].Backends = append(spec.Pools[0].Backends, bs[i])
			}
			apply(t, s, spec)
		}
		number := func(i int) uint32 { return s.Backend(bs[i].Address) }
		with(0, 1)
		dead := number(1)
		with(0)
		time.Sleep(Quarantine - time.Second)
		with(0, 2)
		if number(2) == dead {
			t.Errorf("number %d is given out again %v after it died", dead, Quarantine-time.Second)
		}
		time.Sleep(time.Second)
		with(0, 2, 3)
		if number(3) != dead {
			t.Errorf("after %v backend 3 has number %d, want %d, the lowest that is free", Quarantine, number(3), dead)
		}
	})
}

// What becomes of a backend while a snapshot is made is in it.
func TestStatusWhileASnapshotIsMade(t *testing.T) {
	s := NewStore()
	defer s.Close()
	bs := backends(2)
	apply(t, s, onePool(bs...))
	b := s.Backend(bs[0].Address)
	first := true
	stop := s.Watch(func(*Snapshot) {
		if first {
			first = false // the call with the current one
			return
		}
		done := make(chan struct{})
		go func() { s.SetStatus(b, Down); close(done) }()
		<-done
	})
	defer stop()
	n := apply(t, s, onePool(append(bs, backends(3)[2])...))
	if st := n.StatusOf(b); st != Down {
		t.Errorf("the backend is %v in the snapshot that was being made when it went down", st)
	}
	for i := range n.Words {
		if x, st := n.Words[i].Load(); x == b && st != Down {
			t.Errorf("word %d says %v", i, st)
		}
	}
}

// Of the tables that are remembered the one that was not asked for longest is
// forgotten first.
func TestMemoForgetsTheOldest(t *testing.T) {
	var m memo
	table := func(key string) { m.add(key, memoTable{table: make([]uint16, memoBytes/2/3)}) }
	for _, key := range []string{"a", "b", "c"} {
		table(key)
	}
	m.find("a")
	table("d")
	for key, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		if _, known := m.find(key); known != want {
			t.Errorf("table %s is remembered: %v, want %v", key, known, want)
		}
	}
	if want := 3 * 2 * (memoBytes / 2 / 3); m.bytes != want {
		t.Errorf("%d bytes are counted, want %d", m.bytes, want)
	}
}

// When the check of a pool changes, what the old one found out holds until the new
// one has decided.
func TestAnotherCheckKeepsWhatIsKnown(t *testing.T) {
	s := NewStore()
	defer s.Close()
	bs := backends(2)
	spec := onePool(bs...)
	apply(t, s, spec)
	s.SetHealth(Target{"http", bs[0].Address, 0}, Unhealthy)
	s.SetHealth(Target{"http", bs[1].Address, 0}, Healthy)
	spec.Pools[0].Health = "tcp"
	n := apply(t, s, spec)
	status := func() string {
		n := s.Cell().Load()
		return fmt.Sprint(n.StatusOf(s.Backend(bs[0].Address)), n.StatusOf(s.Backend(bs[1].Address)))
	}
	if got := status(); got != "down up" {
		t.Errorf("behind the change the backends are %s, want down up", got)
	}
	if p := poolNamed(t, n, "web"); p.Usable != 1 || p.Check != "tcp" {
		t.Errorf("%d usable by check %q", p.Usable, p.Check)
	}
	s.SetHealth(Target{"tcp", bs[0].Address, 0}, Healthy)
	if got := status(); got != "up up" {
		t.Errorf("when the new check has decided they are %s", got)
	}
}

// An error that tells of more than is known prolongs nothing.
func TestALargerMTUProlongsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		defer s.Close()
		a := netip.MustParseAddr("10.0.0.1")
		apply(t, s, onePool(backends(1)...))
		p := &PathMTUs{Store: s, Keep: PathMTUKept}
		defer p.Close()
		p.Learn(a, 1300)
		time.Sleep(PathMTUKept - time.Minute)
		p.Learn(a, 1400)
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if mtu := s.Cell().Load().Backends[s.Backend(a)].MTU; mtu != 0 {
			t.Errorf("MTU %d is believed for longer than %v", mtu, PathMTUKept)
		}
	})
}
