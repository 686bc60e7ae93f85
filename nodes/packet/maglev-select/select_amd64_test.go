//go:build !purego

package maglevselect

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

func needLanes(t *testing.T) {
	t.Helper()
	if !hasLanes {
		t.Skipf("kernel: this machine's processor lacks what the assembly needs: BMI1 is %v, BMI2 is %v; CI runs it emulated", cpu.X86.HasBMI1, cpu.X86.HasBMI2)
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

// Numbers of services, pools, members and backends may be as large as their columns hold, and a
// table may end before its array does.
func TestLanesOfLargeNumbers(t *testing.T) {
	needLanes(t)
	rnd := rand.New(rand.NewPCG(5, 7))
	const service, pool, base = 70000, 66000, 200000
	s := &state.Snapshot{
		Services: make([]state.Service, service+1),
		Pools:    make([]state.Pool, pool+1),
		Infos:    make([]state.ServiceInfo, service+1),
		Words:    make([]state.Word, base+state.NoSlot),
	}
	s.Services[service].Pool, s.Infos[service].Base = pool, base
	for i := range s.Words { // as Word.Load reads them
		*(*uint32)(unsafe.Pointer(&s.Words[i])) = uint32(1<<30-1-i) << 2
	}
	table := make([]uint16, 2*state.MinTable)
	p := &s.Pools[pool]
	p.Seed, p.Table = rnd.Uint64(), table[:state.MinTable]
	var v packet.Vector
	for range 100 {
		for i := range table {
			table[i] = uint16(rnd.IntN(state.NoSlot))
		}
		for i := range packet.Size {
			v.VIP[i], v.Hash[i] = service, rnd.Uint64()
		}
		if got := selectLanes(&v, packet.All(packet.Size), s); got != packet.All(packet.Size) {
			t.Fatalf("selects for lanes %x", got)
		}
		for i := range packet.Size {
			if slot, _ := p.Select(v.Hash[i]); v.Slot[i] != slot || v.Backend[i] != 1<<30-1-(base+slot) {
				t.Fatalf("hash %x has slot %d and backend %d, want slot %d and backend %d", v.Hash[i], v.Slot[i], v.Backend[i], slot, 1<<30-1-(base+slot))
			}
		}
	}
	// A member behind the end of the words, and one that is not up, by any of the bits that say so.
	for i := range table {
		table[i] = state.NoSlot
	}
	if got := selectLanes(&v, packet.All(packet.Size), s); got != 0 {
		t.Errorf("behind the end of the members: selects for lanes %x", got)
	}
	for status := range uint32(4) {
		for i := range s.Words {
			*(*uint32)(unsafe.Pointer(&s.Words[i])) = 5<<2 | status
		}
		for i := range table {
			table[i] = uint16(i)
		}
		want := packet.Lanes(0)
		if state.Status(status) == state.Up {
			want = packet.All(packet.Size)
		}
		if got := selectLanes(&v, packet.All(packet.Size), s); got != want {
			t.Errorf("status %d: selects for lanes %x", status, got)
		}
	}
}
