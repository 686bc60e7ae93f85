//go:build !purego

package encap

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

type noCore struct{}

func (noCore) Unchain(v *packet.Vector, lane int) {
	v.Chain[lane], v.Total[lane] = packet.NoFrame, v.Len[lane]
}

func needLanes(t *testing.T) {
	t.Helper()
	if !hasLanes {
		t.Skipf("kernel: this machine's processor lacks what the assembly needs: AVX2 is %v; CI runs it emulated", cpu.X86.HasAVX2)
	}
}

// Assembly encapsulates as the plain Go code does: the same lanes, with the same columns and
// the same bytes of memory, whatever stands in the lanes between those that it is for.
func TestLanesAreWhatGre4Is(t *testing.T) {
	needLanes(t)
	rnd := rand.New(rand.NewPCG(3, 3))
	s := &state.Snapshot{Backends: []state.Backend{{}}}
	for i := 1; i < 9; i++ {
		b := state.Backend{ID: uint32(i), Addr: netip.AddrFrom4([4]byte{10, byte(rnd.Uint32()), byte(rnd.Uint32()), byte(i)})}
		if i == 8 {
			b.Addr = netip.MustParseAddr("2001:db8:1::1")
		}
		s.Backends = append(s.Backends, b)
	}
	const chunk = 2048
	var a, b packet.Vector
	a.Mem, b.Mem = make([]byte, chunk*packet.Size), make([]byte, chunk*packet.Size)
	done := 0
	for _, dscp := range []string{"0", "copy"} {
		c := Defaults()
		c.TTL, c.DSCP = 1+rnd.IntN(255), dscp
		e := New(GRE, c, 0)
		e.Update(s)
		w, err := e.Worker(noCore{}, []netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8::77")})
		if err != nil {
			t.Fatal(err)
		}
		ts := *e.table.Load()
		for step := range 4000 {
			in := packet.All(packet.Size)
			switch rnd.IntN(6) {
			case 0:
				in = packet.All(rnd.IntN(packet.Size + 1))
			case 1:
				in = packet.Lanes(rnd.Uint64() | rnd.Uint64() | rnd.Uint64())
			}
			for i := range a.Mem[:64] {
				a.Mem[rnd.IntN(len(a.Mem))] = uint8(i * step)
			}
			rare := []int{3, 20, 200, 100000}[rnd.IntN(4)]
			for i := range packet.Size {
				start := uint32(chunk*((i+step)%packet.Size) + 128 + rnd.IntN(256))
				a.Start[i], a.L3[i], a.Chain[i], a.Flags[i] = start, packet.EtherLen, packet.NoFrame, packet.Flags(rnd.Uint32())&^packet.V6
				a.IPLen[i] = uint32(20 + rnd.IntN(1481))
				a.Len[i] = a.IPLen[i] + packet.EtherLen + uint32(rnd.IntN(9))
				a.Total[i], a.Hash[i], a.Backend[i] = a.Len[i], rnd.Uint64(), uint32(1+rnd.IntN(7))
				a.Mem[start] &^= 1
				a.Mem[start+6] &^= 1
				a.Mem[start+14] = 0x45
				a.Mem[start+15] = uint8(rnd.Uint32())
				if rnd.IntN(rare) != 0 {
					continue
				}
				switch rnd.IntN(8) {
				case 0:
					a.L3[i] += packet.TagLen
				case 1:
					a.Backend[i] = []uint32{0, 8, 9, 1 << 31, ^uint32(0)}[rnd.IntN(5)]
				case 2:
					a.Mem[start] |= 1
				case 3:
					a.Mem[start+6] |= 1
				case 4:
					a.Flags[i] |= packet.V6
				case 5:
					a.Start[i] = uint32(rnd.IntN(around)) // too near to the beginning of the memory
				case 6:
					a.Start[i] = uint32(len(a.Mem) - 1 - rnd.IntN(around)) // or to its end
				case 7:
					a.Chain[i], a.Total[i] = 0, a.Len[i]+100
				}
			}
			mem := b.Mem
			b = a
			b.Mem = mem
			copy(b.Mem, a.Mem)

			was := a
			d := gre4Lanes(&a, in, ts, e.tosMask)
			for from := 0; from < packet.Size; from += 8 {
				group := packet.All(8) << from
				want := group
				for i := from; i < from+8; i++ {
					start := int(was.Start[i])
					if !in.Has(i) || was.L3[i] != packet.EtherLen || was.Chain[i] != packet.NoFrame || was.Flags[i]&packet.V6 != 0 || was.Backend[i]-1 > 6 ||
						start < around || start > len(a.Mem)-around || (b.Mem[start]|b.Mem[start+6])&1 != 0 {
						want = 0
						break
					}
				}
				if d&group != want {
					t.Fatalf("step %d: of group %x of %x it does %x", step, group, in, d&group)
				}
			}
			if left := gre4(&b, d, ts, e.tosMask); left != 0 {
				t.Fatalf("step %d: of %x gre4 leaves %x", step, d, left)
			}
			if !bytes.Equal(a.Mem, b.Mem) {
				t.Fatalf("step %d: the memory differs", step)
			}
			if a.Start != b.Start || a.IPLen != b.IPLen || a.Len != b.Len || a.Total != b.Total || a.Flags != b.Flags {
				t.Fatalf("step %d: columns differ", step)
			}
			done += d.Count()

			// As a node does it, with what is left.
			for i := range packet.Size {
				if st := was.Start[i]; st < chunk || st > uint32(len(a.Mem)-chunk) {
					in &^= packet.Lane(i)
				}
				if was.Chain[i] != packet.NoFrame {
					in &^= packet.Lane(i)
				}
			}
			a, b = was, was
			b.Mem = mem
			copy(b.Mem, a.Mem)
			x, y := make([]packet.Lanes, BadLength+1), make([]packet.Lanes, BadLength+1)
			w.Process(&a, in, x)
			e.lanes = false
			w.Process(&b, in, y)
			e.lanes = true
			for o := range x {
				if x[o] != y[o] {
					t.Fatalf("step %d: output %d has %x, without assembly %x", step, o, x[o], y[o])
				}
			}
			if !bytes.Equal(a.Mem, b.Mem) || a.Start != b.Start || a.IPLen != b.IPLen || a.Flags != b.Flags {
				t.Fatalf("step %d: what a node does differs", step)
			}
		}
	}
	if done < 100000 {
		t.Errorf("assembly encapsulated %d packets", done)
	}
}

// A full vector leaves as write4 alone would have it leave, whatever the encapsulation, the next
// hop and the source are: assembly is for GRE back to the sender from one address.
func TestLanesAreForGREToTheSender(t *testing.T) {
	needLanes(t)
	rnd := rand.New(rand.NewPCG(6, 6))
	s := &state.Snapshot{Backends: []state.Backend{{}}}
	for i := 1; i < 9; i++ {
		s.Backends = append(s.Backends, state.Backend{ID: uint32(i), Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}, HasMAC: true})
	}
	const chunk = 2048
	for _, p := range []Protocol{GRE, IPIP, GUE} {
		for _, hop := range []string{"sender", "kernel", "02:00:00:00:00:99"} {
			for _, source := range []string{"192.0.2.77/32", "192.0.2.0/24"} {
				c := Defaults()
				c.NextHop, c.Source = hop, netip.MustParsePrefix(source)
				e := New(p, c, 6080)
				e.Update(s)
				w, err := e.Worker(noCore{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				a := packet.Vector{Mem: make([]byte, chunk*packet.Size)}
				for i := range packet.Size {
					a.Start[i], a.L3[i], a.Chain[i], a.Flags[i] = uint32(chunk*i+256), packet.EtherLen, packet.NoFrame, packet.DF
					a.IPLen[i], a.Hash[i], a.Backend[i] = uint32(20+rnd.IntN(1481)), rnd.Uint64(), uint32(1+rnd.IntN(8))
					a.Len[i] = a.IPLen[i] + packet.EtherLen
					a.Total[i] = a.Len[i]
					f := a.Mem[a.Start[i]:][:64]
					for j := range f {
						f[j] = uint8(rnd.Uint32())
					}
					f[0], f[6], f[14] = 2, 2, 0x45
				}
				b := a
				b.Mem = bytes.Clone(a.Mem)
				x, y := make([]packet.Lanes, BadLength+1), make([]packet.Lanes, BadLength+1)
				w.Process(&a, packet.All(packet.Size), x)
				e.lanes, e.fast = false, false
				w.Process(&b, packet.All(packet.Size), y)
				if x[Next] != packet.All(packet.Size) || y[Next] != x[Next] {
					t.Errorf("%s to %s from %s: %x leave, without assembly %x", p, hop, source, x[Next], y[Next])
				}
				if !bytes.Equal(a.Mem, b.Mem) || a.Start != b.Start || a.IPLen != b.IPLen || a.Len != b.Len || a.Total != b.Total || a.Flags != b.Flags {
					t.Errorf("%s to %s from %s: packets differ from those without assembly", p, hop, source)
				}
			}
		}
	}
}

// Memory may have more bytes than a number of 32 bits counts: packets are where they are, and
// those too near to its beginning or end are left.
func TestLanesOfMuchMemory(t *testing.T) {
	needLanes(t)
	page := unix.Getpagesize()
	// What is in front of the memory, and behind it, is looked at as well.
	all, err := unix.Mmap(-1, 0, 1<<32+3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(all)
	ts := []template{{}, {ip: 4, sum: [2]uint32{0x1234}, w: [2][2]uint64{{1, 2}}}}
	for _, c := range []struct {
		size  int
		start uint32
		want  packet.Lanes
	}{
		{1 << 31, 1<<31 - around, 0xff},
		{1 << 31, 1<<31 - around + 1, 0},
		{1 << 31, 1 << 31, 0},
		{1 << 31, around - 1, 0},
		{1<<31 + 2*around, 1 << 31, 0xff},
		{1 << 32, 1<<32 - around, 0xff},
		{1 << 32, 1<<32 - around + 1, 0},
		{1 << 32, around, 0xff},
		{1 << 32, around - 1, 0},
		{1<<32 + around - 2, 1<<32 - 1, 0},
		{1<<32 + around - 1, 1<<32 - 1, 0xff},
		{1<<32 + around, 0, 0},
		{1<<32 + around, around - 1, 0},
		{1<<32 + 2*around - 1, 0, 0},
		{1<<32 + 2*around - 1, around - 1, 0},
		{1<<32 + 2*around, around - 1, 0},
		{1<<32 + 2*around, around, 0xff},
		{1<<32 + page, 10, 0},
		{1<<32 + page, 1<<32 - 1, 0xff},
	} {
		for lane := range 8 {
			v := &packet.Vector{Mem: all[page:][:c.size]}
			at := func(i int) []byte { return all[page+int(v.Start[i])-around:][:2*around] }
			var was, is [8][]byte
			for i := range 8 {
				v.Start[i], v.Chain[i], v.L3[i], v.IPLen[i], v.Backend[i] = uint32(page*(i+2)), packet.NoFrame, packet.EtherLen, 100, 1
				if i == lane {
					v.Start[i] = c.start
				}
				for j, b := range at(i) {
					at(i)[j] = (b + uint8(i+j)) &^ 1
				}
				was[i] = bytes.Clone(at(i))
			}
			slow := *v
			if done := gre4Lanes(v, 0xff, ts, 3); done != c.want {
				t.Fatalf("%d bytes, lane %d at %d: it does %x, want %x", c.size, lane, c.start, done, c.want)
			}
			for i := range 8 {
				if c.want != 0 {
					v.Start[i] += over4
				}
				is[i] = bytes.Clone(at(i))
				copy(at(i), was[i])
			}
			if left := gre4(&slow, c.want, ts, 3); left != 0 {
				t.Fatalf("%d bytes, lane %d at %d: gre4 leaves %x", c.size, lane, c.start, left)
			}
			for i := range 8 {
				if !bytes.Equal(is[i], at(i)) {
					t.Fatalf("%d bytes, lane %d at %d: lane %d has\n%x, want\n%x", c.size, lane, c.start, i, is[i], at(i))
				}
			}
		}
	}
}

// Backends are those that there are, though more templates stand behind the end of the slice.
func TestLanesStayWithinTheTemplates(t *testing.T) {
	needLanes(t)
	ts := make([]template, 9)
	for i := range ts {
		ts[i].ip = 4
	}
	v := &packet.Vector{Mem: make([]byte, packet.Size*2*around)}
	for n := range len(ts) + 1 {
		for lane := range packet.Size {
			for i := range packet.Size {
				v.Start[i], v.Chain[i], v.L3[i], v.IPLen[i], v.Backend[i] = uint32(2*around*i+around), packet.NoFrame, packet.EtherLen, 100, 0
			}
			for b := range uint32(len(ts)) {
				v.Backend[lane] = b
				want := packet.All(packet.Size)
				switch {
				case n == 0:
					want = 0
				case int(b) >= n:
					want &^= packet.All(8) << (lane &^ 7)
				}
				was := *v
				clear(v.Mem)
				if done := gre4Lanes(v, ^packet.Lanes(0), ts[:n], 3); done != want {
					t.Fatalf("%d backends, number %d in lane %d: it does %x, want %x", n, b, lane, done, want)
				}
				*v = was
			}
		}
	}
}

// Lane 63 is the last, also where what stands behind each column looks like a packet.
func TestLanesEndWithTheLast(t *testing.T) {
	needLanes(t)
	v := &packet.Vector{Mem: make([]byte, packet.Size*2*around)}
	for i := range packet.Size {
		start := uint32(2*around*i + around)
		v.Start[i], v.Chain[i], v.L3[i], v.IPLen[i], v.Backend[i] = start, packet.NoFrame, packet.EtherLen, 100, 0
		v.Len[i], v.Port[i], v.L4[i], v.Slot[i] = start, 0xffff, packet.EtherLen, 0
	}
	want := *v
	for i := range packet.Size {
		want.Start[i] -= over4
		want.IPLen[i] += over4
		want.Len[i], want.Total[i], want.Flags[i] = want.IPLen[i]+packet.EtherLen, want.IPLen[i]+packet.EtherLen, packet.DF
	}
	if done := gre4Lanes(v, ^packet.Lanes(0), []template{{ip: 4}}, 3); done != ^packet.Lanes(0) {
		t.Errorf("it does %x", done)
	}
	for _, c := range []struct {
		name string
		same bool
	}{
		{"Start", v.Start == want.Start}, {"Len", v.Len == want.Len}, {"Total", v.Total == want.Total}, {"Chain", v.Chain == want.Chain},
		{"Port", v.Port == want.Port}, {"L3", v.L3 == want.L3}, {"L4", v.L4 == want.L4}, {"IPLen", v.IPLen == want.IPLen},
		{"Flags", v.Flags == want.Flags}, {"Proto", v.Proto == want.Proto}, {"TCP", v.TCP == want.TCP},
		{"Backend", v.Backend == want.Backend}, {"Slot", v.Slot == want.Slot},
	} {
		if !c.same {
			t.Errorf("%s is not what it should be", c.name)
		}
	}
}
