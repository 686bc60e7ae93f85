package state

import (
	"cmp"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/lbgraph/lbgraph/io/packet"
)

// Verdict says how a destination is served.
type Verdict uint8

const (
	// NotVIP: no enabled VIP covers the address.
	NotVIP Verdict = iota
	// Served: the answered service takes it.
	Served
	// WrongPort: a VIP's address, but not its protocol or port; drop.
	WrongPort
	// Leave: as WrongPort, but the VIP leaves such packets to the kernel. Of
	// several VIPs on one address all must say so.
	Leave
)

// A Matcher finds the service of a destination. It is immutable once built, so
// any number of cores may read it.
//
// The exact tables answer nearly all packets with one look: services of one
// address, one protocol and one port. Behind them, every address and prefix has a
// destination: for TCP, UDP and the rest, disjoint runs of ports in order, into
// which all services of the address or prefix were resolved when it was built.
type Matcher struct {
	exact4    exact4Table
	exact     []exactEntry // of IPv6 addresses; open addressing, at most half full
	dests     []destEntry  // likewise, by masked address
	lens4     []uint8      // prefix lengths in use, longest first, in bits of packet.Addr
	lens6     []uint8
	runs      []portRun
	exactMask uint32
	destMask  uint32
}

// exact4Table is the services of single IPv4 addresses: open addressing, at most half
// full. It has a place or more.
type exact4Table struct {
	entries []exact4Entry
	mask    uint64 // of an offset in bytes
}

// exact4Entry is one service of a single IPv4 address, protocol and port; service 0
// marks a free place.
type exact4Entry struct {
	key     uint64 // see key4
	service uint32
}

const exact4Size = uint64(unsafe.Sizeof(exact4Entry{}))

// key4 is address, protocol and port in one word.
func key4(dst packet.Addr, proto uint8, port uint16) uint64 {
	return dst.Lo<<32 | uint64(proto)<<16 | uint64(port)
}

// at answers the offset in bytes of the first place where key may stand: bits of the
// product, to which those above them are added, for the highest depend on all of the key.
func (t *exact4Table) at(key uint64) uint64 {
	key *= permK0 | 1
	return (key ^ key>>32) >> 8 & t.mask
}

func (t *exact4Table) entry(at uint64) *exact4Entry {
	return (*exact4Entry)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(t.entries)), at))
}

// find answers the service of key, 0 if there is none.
func (t *exact4Table) find(key uint64) uint32 {
	for at := t.at(key); ; at = (at + exact4Size) & t.mask {
		if e := t.entry(at); e.key == key || e.service == 0 {
			return e.service
		}
	}
}

// add enters a service, unless key has one.
func (t *exact4Table) add(key uint64, service uint32) {
	at := t.at(key)
	for t.entry(at).service != 0 {
		if t.entry(at).key == key {
			return
		}
		at = (at + exact4Size) & t.mask
	}
	*t.entry(at) = exact4Entry{key, service}
}

// exactEntry is one service of a single IPv6 address, protocol and port; service 0
// marks a free place.
type exactEntry struct {
	addr    packet.Addr
	port    uint32 // proto<<16 | port
	service uint32
}

// destEntry is one address or prefix; bits 0 marks a free place (a prefix of no
// length is entered as 255).
type destEntry struct {
	addr  packet.Addr
	runs  [3]runSpan // by portClass
	bits  uint8
	leave bool
}

type runSpan struct{ at, n uint32 }

// portRun is a run of ports that one service takes.
type portRun struct {
	lo, hi  uint16
	service uint32
}

// portClass tells the lists of runs apart: TCP, UDP, others.
func portClass(proto uint8) int {
	switch proto {
	case packet.ProtoTCP:
		return 0
	case packet.ProtoUDP:
		return 1
	}
	return 2
}

// Match answers the service for a destination address, protocol and port; port is
// 0 for protocols without ports. The most specific address or prefix decides, and
// no other is asked: a wrong port never leads to another VIP. Within it the
// protocol goes before any, then the narrower range of ports before the wider, so
// one port before a range before all.
func (m *Matcher) Match(dst packet.Addr, proto uint8, port uint16) (service uint32, verdict Verdict) {
	if m == nil || len(m.dests) == 0 {
		return 0, NotVIP
	}
	if dst.Is4() {
		if s := m.exact4.find(key4(dst, proto, port)); s != 0 {
			return s, Served
		}
	} else if s := m.find6(dst, uint32(proto)<<16|uint32(port)); s != 0 {
		return s, Served
	}
	d := m.dest(dst)
	if d == nil {
		return 0, NotVIP
	}
	span := d.runs[portClass(proto)]
	runs := m.runs[span.at : span.at+span.n]
	for len(runs) > 0 {
		switch r := &runs[len(runs)/2]; {
		case port < r.lo:
			runs = runs[:len(runs)/2]
		case port > r.hi:
			runs = runs[len(runs)/2+1:]
		default:
			return r.service, Served
		}
	}
	if d.leave {
		return 0, Leave
	}
	return 0, WrongPort
}

// MatchAddr tells whether an enabled VIP covers dst.
func (m *Matcher) MatchAddr(dst packet.Addr) bool {
	return m != nil && len(m.dests) != 0 && m.dest(dst) != nil
}

// find6 answers the service of an IPv6 address, protocol and port, 0 if there is none.
func (m *Matcher) find6(dst packet.Addr, port uint32) uint32 {
	for i := exactHash(dst, port); ; i++ {
		e := &m.exact[i&m.exactMask&uint32(len(m.exact)-1)]
		if e.addr == dst && e.port == port || e.service == 0 {
			return e.service
		}
	}
}

// dest answers the most specific destination that covers dst, or nil.
func (m *Matcher) dest(dst packet.Addr) *destEntry {
	lens := m.lens6
	if dst.Is4() {
		lens = m.lens4
	}
	for _, bits := range lens {
		a := mask(dst, bits)
		for i := destHash(a, bits); ; i++ {
			d := &m.dests[i&m.destMask&uint32(len(m.dests)-1)]
			if d.bits == 0 {
				break
			}
			if d.bits == bits && d.addr == a {
				return d
			}
		}
	}
	return nil
}

// Any keys do: what an attacker can choose is the port, and the tables are at
// most half full.
func exactHash(a packet.Addr, port uint32) uint32 {
	return uint32(packet.Mix(a.Hi^permK0^uint64(port)<<32, a.Lo^permK1^uint64(port)) >> 20)
}

func destHash(a packet.Addr, bits uint8) uint32 {
	return uint32(packet.Mix(a.Hi^permK2, a.Lo^permK3^uint64(bits)<<40) >> 20)
}

// mask answers the prefix of length bits (1 to 128, or 255 for none) of a.
func mask(a packet.Addr, bits uint8) packet.Addr {
	switch {
	case bits == 128:
		return a
	case bits == 255:
		return packet.Addr{}
	case bits > 64:
		return packet.Addr{Hi: a.Hi, Lo: a.Lo &^ (^uint64(0) >> (bits - 64))}
	}
	return packet.Addr{Hi: a.Hi &^ (^uint64(0) >> bits)}
}

// prefixOf answers p's address and its length in bits of packet.Addr; an IPv4
// prefix of no length still has the 96 bits of the mapped form.
func prefixOf(p netip.Prefix) (packet.Addr, uint8) {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	if bits == 0 {
		bits = 255
	}
	return mask(packet.AddrOf(p.Addr()), uint8(bits)), uint8(bits)
}

// rule is what the matcher is built of: one service, and whether its VIP leaves
// what does not fit.
type rule struct {
	prefix  netip.Prefix
	proto   uint8 // 0 is any
	lo, hi  uint16
	service uint32
	leave   bool
}

// newMatcher builds the matcher of all rules. Of two rules that say the same the
// earlier wins.
func newMatcher(rules []rule) *Matcher {
	m := &Matcher{}
	if len(rules) == 0 {
		return m
	}
	// Most specific first, within one destination by precedence.
	rules = slices.Clone(rules)
	slices.SortStableFunc(rules, func(a, b rule) int {
		x, xb := prefixOf(a.prefix)
		y, yb := prefixOf(b.prefix)
		return cmp.Or(cmp.Compare(yb, xb), cmp.Compare(x.Hi, y.Hi), cmp.Compare(x.Lo, y.Lo),
			cmp.Compare(min(1, b.proto), min(1, a.proto)), cmp.Compare(a.hi-a.lo, b.hi-b.lo), cmp.Compare(a.lo, b.lo))
	})
	singles4, singles6, dests := 0, 0, 0
	for i := range rules {
		if r := &rules[i]; r.exact() {
			if r.prefix.Addr().Is4() {
				singles4++
			} else {
				singles6++
			}
		}
		if i == 0 || rules[i].prefix.Masked() != rules[i-1].prefix.Masked() {
			dests++
		}
	}
	if singles4 <= 4096 {
		// A table that stays in the cache anyway has room, so that hardly any key is
		// behind another.
		singles4 = max(64, 4*singles4)
	}
	m.exact4.entries = make([]exact4Entry, tableSize(singles4))
	m.exact4.mask = uint64(len(m.exact4.entries)-1) * exact4Size
	m.exact = make([]exactEntry, tableSize(singles6))
	m.dests = make([]destEntry, tableSize(dests))
	m.exactMask, m.destMask = uint32(len(m.exact)-1), uint32(len(m.dests)-1)
	for len(rules) > 0 {
		n := 1
		for n < len(rules) && rules[n].prefix.Masked() == rules[0].prefix.Masked() {
			n++
		}
		m.addDest(rules[:n])
		rules = rules[n:]
	}
	// 255, the prefix of no length, is the shortest.
	for _, lens := range []*[]uint8{&m.lens4, &m.lens6} {
		slices.SortFunc(*lens, func(a, b uint8) int { return cmp.Compare(b+1, a+1) })
		*lens = slices.Compact(*lens)
	}
	return m
}

// exact tells whether the rule is one address, protocol and port.
func (r *rule) exact() bool { return r.prefix.IsSingleIP() && r.proto != 0 && r.lo == r.hi }

// tableSize answers a power of two of which n entries are at most half.
func tableSize(n int) int {
	size := 2
	for size < 2*n {
		size *= 2
	}
	return size
}

// addDest enters the rules of one destination, in their precedence.
func (m *Matcher) addDest(rules []rule) {
	a, bits := prefixOf(rules[0].prefix)
	d := destEntry{addr: a, bits: bits, leave: true}
	for class := range d.runs {
		var runs []portRun
		for i := range rules {
			if r := &rules[i]; r.proto == 0 || portClass(r.proto) == class {
				runs = fillRuns(runs, portRun{r.lo, r.hi, r.service})
			}
		}
		d.runs[class] = runSpan{uint32(len(m.runs)), uint32(len(runs))}
		m.runs = append(m.runs, runs...)
	}
	for i := range rules {
		r := &rules[i]
		d.leave = d.leave && r.leave
		switch {
		case !r.exact():
		case a.Is4():
			m.exact4.add(key4(a, r.proto, r.lo), r.service)
		default:
			m.addExact(exactEntry{a, uint32(r.proto)<<16 | uint32(r.lo), r.service})
		}
	}
	i := destHash(a, bits)
	for m.dests[i&m.destMask].bits != 0 {
		i++
	}
	m.dests[i&m.destMask] = d
	if rules[0].prefix.Addr().Is4() {
		m.lens4 = append(m.lens4, bits)
	} else {
		m.lens6 = append(m.lens6, bits)
	}
}

func (m *Matcher) addExact(e exactEntry) {
	i := exactHash(e.addr, e.port)
	for ; m.exact[i&m.exactMask].service != 0; i++ {
		if o := &m.exact[i&m.exactMask]; o.addr == e.addr && o.port == e.port {
			return
		}
	}
	m.exact[i&m.exactMask] = e
}

// fillRuns puts r into the gaps of runs, which are in order and disjoint.
func fillRuns(runs []portRun, r portRun) []portRun {
	i, _ := slices.BinarySearchFunc(runs, r.lo, func(x portRun, lo uint16) int { return cmp.Compare(x.hi, lo) })
	if i == len(runs) || runs[i].lo > r.hi {
		return slices.Insert(runs, i, r)
	}
	out := slices.Clone(runs[:i])
	lo := int(r.lo)
	for ; i < len(runs) && runs[i].lo <= r.hi; i++ {
		if lo < int(runs[i].lo) {
			out = append(out, portRun{uint16(lo), runs[i].lo - 1, r.service})
		}
		out = append(out, runs[i])
		lo = int(runs[i].hi) + 1
	}
	if lo <= int(r.hi) {
		out = append(out, portRun{uint16(lo), r.hi, r.service})
	}
	return append(out, runs[i:]...)
}

// MatchDense matches lanes 0 … n−1 of v that carry a flow of their own (no later
// fragments, no ICMP, no IPv6 packets to the mapped form of an IPv4 address), enters
// their services in v.VIP and answers them. All others keep their VIP column.
func (m *Matcher) MatchDense(v *packet.Vector, n int) (served packet.Lanes) {
	if len(m.dests) == 0 {
		return 0
	}
	n = min(n, packet.Size)
	for i := range n {
		f := v.Flags[i]
		if f&(packet.V6|packet.Later|packet.ICMP) == 0 {
			key := key4(v.Dst[i], v.Proto[i], v.DPort[i])
			if e := m.exact4.entry(m.exact4.at(key)); e.key == key && e.service != 0 {
				v.VIP[i] = e.service
				served |= packet.Lane(i)
				continue
			}
		} else if f&(packet.Later|packet.ICMP) != 0 || v.Dst[i].Is4() {
			continue
		}
		if s, verdict := m.Match(v.Dst[i], v.Proto[i], v.DPort[i]); verdict == Served {
			v.VIP[i] = s
			served |= packet.Lane(i)
		}
	}
	return served
}
