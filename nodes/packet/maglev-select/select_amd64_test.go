//go:build !purego

package maglevselect

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

func needLanes(t *testing.T) {
	t.Helper()
	if !hasLanes {
		t.Skipf("kernel: this machine's processor lacks what the assembly needs: BMI1 is %v, BMI2 is %v", cpu.X86.HasBMI1, cpu.X86.HasBMI2)
	}
}

// Assembly selects what the plain Go code selects: over vectors with services of all kinds and
// numbers that nothing stands behind, while backends go down, drain and come back.
func TestLanesAreWhatChooseIs(t *testing.T) {
	needLanes(t)
	rnd := rand.New(rand.NewPCG(1, 9))
	s := store(t, 12)
	fast, slow := rig(t, s), rig(t, s)
	slow.Node.(*worker).lanes = false
	lanes, left := 0, 0
	for step := range 5000 {
		if rnd.IntN(30) == 0 {
			b := netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + rnd.IntN(12))})
			s.SetStatus(s.Backend(b), []state.Status{state.Up, state.Up, state.Draining, state.Down}[rnd.IntN(4)])
		}
		if rnd.IntN(40) == 0 { // until then, the table is older than the status
			snap := s.Cell().Load()
			fast.Publish(snap)
			slow.Publish(snap)
		}
		in := packet.All(rnd.IntN(packet.Size + 1))
		if rnd.IntN(3) == 0 {
			in = packet.Lanes(rnd.Uint64() & rnd.Uint64())
		}
		rare := 1 + rnd.IntN(40)
		for i := range packet.Size {
			service := uint32(web)
			if rnd.IntN(rare) == 0 {
				service = []uint32{0, web, sticky, none, none + 1, 1 << 20, ^uint32(0)}[rnd.IntN(7)]
			}
			c, port := rnd.Uint32()&0xff, uint16(rnd.Uint32())
			load(fast, i, service, c, port)
			load(slow, i, service, c, port)
			fast.V.Flags[i], slow.V.Flags[i] = packet.DF|packet.V6, packet.DF|packet.V6
		}
		a, b := fast.Process(in), slow.Process(in)
		if a["next"] != b["next"] || a["no_backend"] != b["no_backend"] {
			t.Fatalf("step %d, lanes %x: answers %v, without assembly %v", step, in, a, b)
		}
		if fast.V.Backend != slow.V.Backend || fast.V.Slot != slow.V.Slot || fast.V.Flags != slow.V.Flags {
			t.Fatalf("step %d, lanes %x: columns differ", step, in)
		}
		done := selectLanes(&fast.V, in, fast.State())
		if done&^in != 0 {
			t.Fatalf("step %d: selected for lanes %x of %x", step, done, in)
		}
		for i := range packet.Size {
			if done.Has(i) && fast.V.VIP[i] != web {
				t.Fatalf("step %d: selected for service %d", step, fast.V.VIP[i])
			}
		}
		lanes += done.Count()
		left += (in &^ done).Count()
	}
	if lanes < 50000 || left < 10000 {
		t.Errorf("assembly selected for %d packets and left %d", lanes, left)
	}
}

// Assembly reads nothing behind the end of a slice of the snapshot, though more stands there.
func TestLanesStayWithinTheSlices(t *testing.T) {
	needLanes(t)
	st := store(t, 5)
	w := rig(t, st)
	load(w, 0, web, 1, 1)
	whole := st.Cell().Load()
	word := whole.Infos[web].Base
	if got := selectLanes(&w.V, 1, whole); got != 1 {
		t.Fatalf("selects for lanes %x", got)
	}
	word += w.V.Slot[0]
	for _, c := range []struct {
		what string
		snap state.Snapshot
		want packet.Lanes
	}{
		{"service", state.Snapshot{Services: whole.Services[:web], Pools: whole.Pools, Infos: whole.Infos, Words: whole.Words}, 0},
		{"pool", state.Snapshot{Services: whole.Services, Pools: whole.Pools[:1], Infos: whole.Infos, Words: whole.Words}, 0},
		{"info", state.Snapshot{Services: whole.Services, Pools: whole.Pools, Infos: whole.Infos[:web], Words: whole.Words}, 0},
		{"word", state.Snapshot{Services: whole.Services, Pools: whole.Pools, Infos: whole.Infos, Words: whole.Words[:word]}, 0},
		{"none", state.Snapshot{Services: whole.Services[:web+1], Pools: whole.Pools[:2], Infos: whole.Infos[:web+1], Words: whole.Words[:word+1]}, 1},
	} {
		load(w, 0, web, 1, 1)
		if got := selectLanes(&w.V, 1, &c.snap); got != c.want || got == 0 && w.V.Backend[0] != 0 {
			t.Errorf("behind the end stands the %s: selects for lanes %x, backend %d", c.what, got, w.V.Backend[0])
		}
	}
	dead := *whole
	dead.Infos = append([]state.ServiceInfo(nil), whole.Infos...)
	dead.Infos[web].Base = 0
	load(w, 0, web, 1, 1)
	if got := selectLanes(&w.V, 1, &dead); got != 0 || w.V.Backend[0] != 0 {
		t.Errorf("a number that is dead: selects for lanes %x, backend %d", got, w.V.Backend[0])
	}
}
