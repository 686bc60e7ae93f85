package bpf

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// GUEPort is the UDP port of Generic UDP Encapsulation (draft-ietf-intarea-gue §6).
const GUEPort = 6080

// maxGUEPorts is the number of UDP ports that our tunnels may lead to.
const maxGUEPorts = 4

// maxRanges is the number of port ranges of one address or prefix that the XDP
// program looks through; what is beyond stands port by port.
const maxRanges = 16

// maxPorts is how many services the ranges beyond maxRanges may become.
const maxPorts = 16384

// Rules says what traffic is ours. It does not change once it is built, and may
// be used from any number of goroutines.
type Rules struct {
	// VIPs names the VIPs; number n of a verdict is VIPs[n−1].
	VIPs []string

	targets  []target
	services []service // all of them, no two alike
	tunnels  []netip.Prefix
	gue      [maxGUEPorts]uint16 // 0 for none

	byAddr  table[addrKey]
	byPort  table[uint64]
	lens    [2][]uint8 // prefix lengths in use, longest first: IPv4, IPv6
	tunnel  table[addrKey]
	tunLens [2][]uint8
}

// target is what is known of a VIP address or prefix.
type target struct {
	prefix netip.Prefix
	vip    uint32 // of the first VIP block that names it: for what has no port
	leave  bool   // all its VIPs leave a wrong port to the kernel
	any    bool   // it has services without protocol
	ranges []portRange
}

// portRange is ports that a target serves: the more specific stand first.
type portRange struct {
	lo, hi uint16
	proto  uint8 // 0 is any
	vip    uint32
}

// service is one port of a target.
type service struct {
	target uint32
	port   uint16
	proto  uint8
	vip    uint32
}

func (s *service) key() uint64 { return portKey(s.target, s.proto, s.port) }

func portKey(target uint32, proto uint8, port uint16) uint64 {
	return uint64(target)<<32 | uint64(port)<<16 | uint64(proto)
}

// addrKey is a prefix: the masked address, its length in bits of its own family,
// and whether that is IPv6.
type addrKey struct {
	addr packet.Addr
	bits uint8
	v6   uint8
}

// RulesOf builds the rules for the enabled VIPs of spec. tunnels are the addresses
// that our tunnels' outer packets come from: ICMP errors about those packets are
// ours too. gue are the UDP ports that GUE tunnels lead to, GUEPort if there are
// none.
//
// Of two VIPs that serve the same port of the same prefix the first is counted.
func RulesOf(spec state.Spec, tunnels []netip.Prefix, gue ...uint16) (*Rules, error) {
	r := &Rules{}
	if len(gue) == 0 {
		gue = []uint16{GUEPort}
	}
	gue = slices.Sorted(slices.Values(gue))
	if gue = slices.Compact(gue); len(gue) > maxGUEPorts {
		return nil, fmt.Errorf("%d UDP ports of tunnels; %d is the most", len(gue), maxGUEPorts)
	}
	copy(r.gue[:], gue)
	index := map[netip.Prefix]uint32{}
	for i := range spec.VIPs {
		v := &spec.VIPs[i]
		r.VIPs = append(r.VIPs, v.Name)
		if v.Disabled {
			continue
		}
		p := v.Prefix.Masked()
		if !p.IsValid() {
			return nil, fmt.Errorf("VIP %q has no address", v.Name)
		}
		if p.Addr().Is4In6() {
			return nil, fmt.Errorf("VIP %q: %s is an IPv4 address in IPv6 form", v.Name, p)
		}
		t, ok := index[p]
		if !ok {
			t = uint32(len(r.targets))
			index[p] = t
			r.targets = append(r.targets, target{prefix: p, vip: uint32(i) + 1, leave: true})
		}
		to := &r.targets[t]
		to.leave = to.leave && v.Leave
		ports := v.Ports
		if ports == nil {
			ports = []state.PortRange{{Lo: 0, Hi: 65535}}
		}
		for _, ports := range ports {
			x := portRange{ports.Lo, ports.Hi, v.Protocol, uint32(i) + 1}
			if x.lo == x.hi {
				r.serve(t, x)
			} else {
				to.ranges = append(to.ranges, x)
			}
		}
	}
	for t := range r.targets {
		if err := r.sortRanges(uint32(t)); err != nil {
			return nil, err
		}
	}
	r.build(tunnels)
	return r, nil
}

// serve enters every port of x as a service of target t.
func (r *Rules) serve(t uint32, x portRange) {
	for port := int(x.lo); port <= int(x.hi); port++ {
		r.services = append(r.services, service{t, uint16(port), x.proto, x.vip})
	}
	r.targets[t].any = r.targets[t].any || x.proto == 0
}

// sortRanges brings a target's ranges in their order of precedence: with protocol
// before without, the narrower before the wider.
func (r *Rules) sortRanges(i uint32) error {
	t := &r.targets[i]
	width := func(x portRange) int { return int(x.hi) - int(x.lo) }
	slices.SortStableFunc(t.ranges, func(a, b portRange) int {
		return cmp.Or(cmp.Compare(min(1, b.proto), min(1, a.proto)), cmp.Compare(width(a), width(b)), cmp.Compare(a.lo, b.lo))
	})
	// The narrowest become single ports, which they precede like those.
	for room := maxPorts; len(t.ranges) > maxRanges; {
		at := 0
		for k, x := range t.ranges {
			if width(x) < width(t.ranges[at]) {
				at = k
			}
		}
		x := t.ranges[at]
		if room -= width(x) + 1; room < 0 {
			return fmt.Errorf("%s has more port ranges than fit: %d and %d single ports", t.prefix, maxRanges, maxPorts)
		}
		r.serve(i, x)
		t.ranges = slices.Delete(t.ranges, at, at+1)
	}
	return nil
}

func (r *Rules) build(tunnels []netip.Prefix) {
	r.byPort = newTable[uint64](len(r.services))
	kept := r.services[:0]
	for _, s := range r.services {
		if r.byPort.put(s.key(), hashPort(s.key()), s.vip) {
			kept = append(kept, s)
		}
	}
	r.services = kept
	r.byAddr = newTable[addrKey](len(r.targets))
	for i := range r.targets {
		k := keyOf(r.targets[i].prefix)
		r.byAddr.put(k, k.hash(), uint32(i)+1)
		r.lens[k.v6] = append(r.lens[k.v6], k.bits)
	}
	r.tunnel = newTable[addrKey](len(tunnels))
	for _, p := range tunnels {
		p = p.Masked()
		k := keyOf(p)
		if r.tunnel.put(k, k.hash(), 1) {
			r.tunnels = append(r.tunnels, p)
			r.tunLens[k.v6] = append(r.tunLens[k.v6], k.bits)
		}
	}
	for _, l := range []*[]uint8{&r.lens[0], &r.lens[1], &r.tunLens[0], &r.tunLens[1]} {
		slices.Sort(*l)
		*l = slices.Compact(*l)
		slices.Reverse(*l)
	}
}

func keyOf(p netip.Prefix) addrKey {
	k := addrKey{addr: packet.AddrOf(p.Addr()), bits: uint8(p.Bits())}
	if p.Addr().Is6() {
		k.v6 = 1
	}
	return k
}

// find answers the value under the longest prefix of the table that covers a, 0
// if there is none. lens are the lengths in use.
func find(t *table[addrKey], lens []uint8, a packet.Addr, v6 uint8) uint32 {
	for _, bits := range lens {
		k := addrKey{masked(a, bits, v6), bits, v6}
		if x := t.get(k, k.hash()); x != 0 {
			return x
		}
	}
	return 0
}

// masked clears what of a lies behind the first bits, counted in a's family.
func masked(a packet.Addr, bits, v6 uint8) packet.Addr {
	if v6 == 0 {
		bits += 96
	}
	if bits <= 64 {
		return packet.Addr{Hi: a.Hi &^ (^uint64(0) >> bits)}
	}
	return packet.Addr{Hi: a.Hi, Lo: a.Lo &^ (^uint64(0) >> (bits - 64))}
}

func (k addrKey) hash() uint64 {
	return packet.Mix(k.addr.Hi^0x9e3779b97f4a7c15, k.addr.Lo^0xbf58476d1ce4e5b9^uint64(k.bits)<<48)
}

func hashPort(k uint64) uint64 { return packet.Mix(k^0x94d049bb133111eb, 0x9e3779b97f4a7c15) }

// A table maps keys to numbers above 0 by open addressing, at most half full.
type table[K comparable] struct {
	slots []struct {
		key   K
		value uint32
	}
}

func newTable[K comparable](n int) (t table[K]) {
	size := 2
	for size < 2*n {
		size *= 2
	}
	t.slots = make([]struct {
		key   K
		value uint32
	}, size)
	return t
}

// put enters key unless it is there already.
func (t *table[K]) put(key K, hash uint64, value uint32) bool {
	mask := uint64(len(t.slots) - 1)
	for i := hash; ; i++ {
		switch s := &t.slots[i&mask]; {
		case s.value == 0:
			s.key, s.value = key, value
			return true
		case s.key == key:
			return false
		}
	}
}

func (t *table[K]) get(key K, hash uint64) uint32 {
	if len(t.slots) == 0 {
		return 0
	}
	mask := uint64(len(t.slots) - 1)
	for i := hash; ; i++ {
		if s := &t.slots[i&mask]; s.value == 0 || s.key == key {
			return s.value
		}
	}
}
