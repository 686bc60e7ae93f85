// Package encap writes outer headers: GRE, IP-in-IP and GUE over IPv4 and IPv6. The
// kinds gre-encap, ipip-encap and gue-encap are one Encap each, with a Worker on
// every core.
//
// Most of an outer header is the same for all packets to a backend. It is laid out
// once for each snapshot, one cache line a backend, with the sum of its words; a
// packet adds its length, its ECN and what depends on its flow.
package encap

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Protocol is an encapsulation.
type Protocol uint8

// The encapsulations.
const (
	GRE  Protocol = iota // RFC 2784, without checksum
	IPIP                 // RFC 2003, RFC 4213 §3, RFC 2473
	GUE                  // Generic UDP Encapsulation, variant 0, without UDP checksum
)

// String answers the protocol's usual name.
func (p Protocol) String() string { return [...]string{"GRE", "IP-in-IP", "GUE"}[p] }

// Overhead answers the bytes that the encapsulation puts in front of the inner IP
// header, by the family of the outer one.
func (p Protocol) Overhead() (v4, v6 int) {
	n := [...]int{GRE: 4, IPIP: 0, GUE: packet.UDPLen + 4}[p]
	return packet.IPv4Len + n, packet.IPv6Len + n
}

// The outputs of an encapsulation, in the order that Process answers them.
const (
	Next        = iota
	NoNeighbour // the hardware address of the next hop is not known
	NoRoute     // there is no way to the backend
	TooLong     // the outer length field would wrap
	BadLength   // a packet in several frames ends before the last of them
)

// A template is the outer header towards one backend: one cache line. Its words
// are the header's bytes as little-endian loads see them, with zeros where a
// packet's own values belong.
type template struct {
	// IPv4, by the inner packet's family: TTL, protocol and source; destination and
	// the first four bytes behind the IP header. IPv6: source; destination.
	w    [2][2]uint64
	sum  [2]uint32 // IPv4: one's complement sum of the header
	host uint64    // bits that the flow hash fills, of the source as it stands in w
	mac  uint64    // next hop's, low 48 bits; 1 if it is not known
	ip   uint8     // 4 or 6; 0 if there is no way to the backend
}

// An Encap is one node of a graph, on all its cores. Update and Worker may be called
// from any goroutine.
type Encap struct {
	proto   Protocol
	sender  bool   // the next hop is the sender
	spread  bool   // a source has host bits
	tosMask uint64 // of the inner ToS or traffic class
	strip   bool   // VLAN tags
	fast    bool   // gre4 does for most packets
	lanes   bool   // gre4Lanes does for most groups of them
	hop     nextHop
	// By outer family.
	overhead, longest [2]uint32
	// By inner family: the first eight bytes of an IPv6 header, and the last four bytes
	// of the encapsulation.
	w0, tail [2]uint64
	ports    uint64 // GUE: destination, and the upper two bits of a source

	table atomic.Pointer[[]template]

	cfg     Config
	mu      sync.Mutex // of what follows
	sources [2]netip.Prefix
	last    *state.Snapshot
}

// New makes an Encap of protocol p. c has passed its Check; port is the UDP
// destination port of GUE. No backend has a template before the first Update.
func New(p Protocol, c Config, port uint16) *Encap {
	e := &Encap{proto: p, cfg: c, tosMask: 0x03, strip: c.VLAN == "strip", sender: c.NextHop == "sender", sources: c.sources(nil)}
	e.hop, _ = parseNextHop(c.NextHop)
	if c.DSCP == "copy" {
		e.tosMask = 0xff
	}
	for _, s := range e.sources {
		e.spread = e.spread || s.IsValid() && !s.IsSingleIP()
	}
	o4, o6 := p.Overhead()
	e.overhead = [2]uint32{uint32(o4), uint32(o6)}
	// The IPv6 payload length does not count its own header.
	e.longest = [2]uint32{65535 - uint32(o4), 65535 + packet.IPv6Len - uint32(o6)}
	switch p {
	case GRE:
		e.tail = [2]uint64{0x0008 << 16, 0xdd86 << 16} // flags and version 0, EtherType
	case GUE:
		e.tail = [2]uint64{packet.ProtoIPIP << 8, packet.ProtoIPv6 << 8} // variant, C, length and flags 0
		e.ports = 0x00c0 | uint64(bits.ReverseBytes16(port))<<16
	}
	for inner := range e.w0 {
		e.w0[inner] = 0x60 | uint64(p.next(inner))<<48 | uint64(c.TTL)<<56
	}
	e.fast = p == GRE && e.sender && !e.spread
	e.lanes = e.fast && hasLanes
	e.table.Store(new([]template))
	return e
}

// next is the protocol number of what follows the outer IP header, by the family of
// the inner one.
func (p Protocol) next(inner int) uint8 {
	switch {
	case p == GRE:
		return packet.ProtoGRE
	case p == GUE:
		return packet.ProtoUDP
	case inner == 1:
		return packet.ProtoIPv6
	}
	return packet.ProtoIPIP
}

// Update lays out the templates of all backends of s.
func (e *Encap) Update(s *state.Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = s
	e.build()
}

func (e *Encap) build() {
	ts := make([]template, len(e.last.Backends))
	for i := range ts {
		ts[i] = e.template(e.last, &e.last.Backends[i])
	}
	e.table.Store(&ts)
}

func (e *Encap) template(s *state.Snapshot, b *state.Backend) (t template) {
	if b.ID == 0 || !b.Addr.IsValid() {
		return t
	}
	dst := b.Addr.Unmap()
	src := e.sources[family(dst)]
	if !src.IsValid() || e.hop.kernel && b.NoRoute {
		return t
	}
	mac, known := e.hop.mac, true
	switch {
	case e.hop.kernel:
		mac, known = b.MAC, b.HasMAC
	case e.hop.gateway.IsValid():
		mac, known = s.Neighbours[e.hop.gateway.Unmap().WithZone("")]
	}
	t.mac = 1
	if known {
		t.mac = binary.LittleEndian.Uint64(append(mac[:], 0, 0))
	}

	hostBits := src.Addr().BitLen() - src.Bits()
	if dst.Is6() {
		t.ip = 6
		s, d := src.Masked().Addr().As16(), dst.As16()
		t.w[0] = [2]uint64{binary.LittleEndian.Uint64(s[:]), binary.LittleEndian.Uint64(s[8:])}
		t.w[1] = [2]uint64{binary.LittleEndian.Uint64(d[:]), binary.LittleEndian.Uint64(d[8:])}
		t.host = bits.ReverseBytes64(1<<hostBits - 1)
		return t
	}
	t.ip = 4
	t.host = uint64(bits.ReverseBytes32(1<<hostBits - 1))
	for inner := range t.w {
		h := [packet.IPv4Len]byte{8: byte(e.cfg.TTL), 9: e.proto.next(inner)}
		binary.LittleEndian.PutUint64(h[:], first4)
		s, d := src.Masked().Addr().As4(), dst.As4()
		copy(h[12:], s[:])
		copy(h[16:], d[:])
		t.sum[inner] = uint32(bits.ReverseBytes16(uint16(packet.Sum(h[:]))))
		behind := e.tail[inner] // GRE
		if e.proto == GUE {
			behind = e.ports
		}
		t.w[inner][0] = binary.LittleEndian.Uint64(h[8:])
		t.w[inner][1] = uint64(binary.LittleEndian.Uint32(h[16:])) | behind<<32
	}
	return t
}

// first4 is the first eight bytes of an IPv4 header: version and length, and DF. A
// datagram that is never fragmented has an identification that says nothing, here 0
// (RFC 6864 §4.1).
const first4 = 0x45 | 0x0040<<48

// Core is what a Worker asks of its core; see graph.Core.
type Core interface {
	Unchain(v *packet.Vector, lane int)
}

// Worker answers the worker of one core. addrs are the addresses of the graph's
// interfaces: sources where the configuration names none. It fails when that leaves
// a backend without a source of its family.
func (e *Encap) Worker(c Core, addrs []netip.Addr) (*Worker, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if src := e.cfg.sources(addrs); src != e.sources {
		e.sources = src
		if e.last != nil {
			e.build()
		}
	}
	if e.last != nil {
		for _, b := range e.last.Backends {
			if b.ID != 0 && b.Addr.IsValid() && !e.sources[family(b.Addr.Unmap())].IsValid() {
				return nil, fmt.Errorf("there is no %s address to send from to backend %s: no interface has one, and source names none",
					[...]string{"IPv4", "IPv6"}[family(b.Addr.Unmap())], b.Addr)
			}
		}
	}
	return &Worker{e: e, core: c}, nil
}

// A Worker is an Encap on one core. It is a graph.Node.
type Worker struct {
	e     *Encap
	core  Core
	sent  packet.Lanes // of the last vector, for Trace
	aside [packet.Size]aside
}

// aside is what plain keeps of a lane.
type aside struct {
	chain, first uint32 // next frame; length of the first, without tags
	n            uint32 // bytes of tags
	tags         [2 * packet.TagLen]byte
}

// Process writes the outer header in front of every lane and moves the Ethernet
// header in front of that. L3, IPLen, DF and V6 speak of the outer header then;
// the flow columns stay those of the client's flow.
func (w *Worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	ts := *w.e.table.Load()
	// The line in front of a packet, which is written here, parse has asked for.
	rest := in
	if w.e.lanes && in.Count() >= group {
		rest &^= gre4Lanes(v, rest, ts, w.e.tosMask)
	}
	if w.e.fast && rest != 0 {
		rest = gre4(v, rest, ts, w.e.tosMask)
	}
	if rest != 0 {
		rest = w.write4(v, rest, ts)
	}
	if rest != 0 {
		rest = w.write6(v, rest, ts)
	}
	if rest != 0 {
		odd := w.plain(v, rest, ts, out)
		if left := w.write6(v, w.write4(v, odd, ts), ts); left != 0 {
			out[BadLength] |= left
			odd &^= left
		}
		w.restore(v, odd)
		in = in&^rest | odd
	}
	w.sent = in
	out[Next] = in
}

// first4, ether4 and ether6 where the compiler cannot see which bytes are constant: it would
// write those one by one.
var first4word, ether4word, ether6word uint64 = first4, ether4, ether6

// group is how many lanes gre4Lanes does at once.
const group = 8

// over4 is what GRE over IPv4 puts in front of the inner packet.
const over4 = packet.IPv4Len + 4

// gre4 is write4 for what most packets are: IPv4 in GRE, back to the sender.
func gre4(v *packet.Vector, in packet.Lanes, ts []template, tosMask uint64) (rest packet.Lanes) {
	const over = over4
	mem, limit := unsafe.Pointer(unsafe.SliceData(v.Mem)), uint64(len(v.Mem))-2*around
	for i, end := in.Next(), in.End(); i < end; i++ {
		i := i & 63
		if !in.Has(i) {
			continue
		}
		b, start := v.Backend[i], v.Start[i]
		if uint(b) >= uint(len(ts)) || v.L3[i] != packet.EtherLen || v.Chain[i] != packet.NoFrame || v.Flags[i]&packet.V6 != 0 || uint64(start)-around > limit {
			rest |= packet.Lane(i)
			continue
		}
		t := &ts[b]
		p := unsafe.Add(mem, start)
		x, to := get64(p, 0), get64(p, 6)
		if t.ip != 4 || (x|to)&1 != 0 {
			rest |= packet.Lane(i)
			continue
		}
		// What is done with comes first, so that the rest has registers.
		put64(p, -over, to) // and two bytes that the next eight replace
		put64(p, 6-over, x<<16>>16|ether4word)
		tos := uint64(*(*uint8)(unsafe.Add(p, packet.EtherLen+1))) & tosMask << 8
		n := v.IPLen[i] + over // a single frame: it does not wrap
		total := uint64(bits.ReverseBytes16(uint16(n)))
		put64(p, 14-over, first4word|tos|total<<16)
		sum := t.sum[0] + uint32(tos) + uint32(total)
		sum += bits.RotateLeft32(sum, 16) // folded, in the upper half
		put64(p, 22-over, t.w[0][0]|uint64(^sum&0xffff0000))
		put64(p, 30-over, t.w[0][1])
		v.Start[i] = start - over
		v.IPLen[i] = n
		n += packet.EtherLen
		v.Len[i], v.Total[i] = n, n // Ethernet padding stays behind
		v.Flags[i] = v.Flags[i]&^(packet.Later|packet.ICMP) | packet.DF
	}
	return rest
}

// write4 encapsulates untagged packets of one frame in IPv4, and answers the lanes
// that are something else.
func (w *Worker) write4(v *packet.Vector, in packet.Lanes, ts []template) (rest packet.Lanes) {
	e := w.e
	mem, limit := unsafe.Pointer(unsafe.SliceData(v.Mem)), uint64(len(v.Mem))-2*around
	over, longest := e.overhead[0], e.longest[0]
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		b, n, start := v.Backend[i], v.IPLen[i], v.Start[i]
		if uint(b) >= uint(len(ts)) || v.L3[i] != packet.EtherLen || v.Chain[i] != packet.NoFrame || n > longest || uint64(start)-around > limit {
			rest |= packet.Lane(i)
			continue
		}
		t := &ts[b]
		p := unsafe.Add(mem, start)
		ours, to := get64(p, 0)<<16>>16, t.mac
		if e.sender {
			to = get64(p, 4) >> 16
		}
		if t.ip != 4 || (ours|to)&1 != 0 {
			rest |= packet.Lane(i)
			continue
		}
		flags := v.Flags[i]
		inner := flags & packet.V6 // bit 0
		tos := uint64(get16(p, packet.EtherLen)>>(4*inner)) & e.tosMask
		n += over
		total := uint64(bits.ReverseBytes16(uint16(n)))
		sum := uint64(t.sum[inner]) + tos<<8 + total
		w1 := t.w[inner][0]
		if e.spread {
			host := v.Hash[i] & t.host
			sum += host&0xffff + host>>16
			w1 |= host << 32
		}
		sum = sum&0xffff + sum>>16
		sum += sum >> 16
		q := unsafe.Add(p, -int(over))
		put64(q, 0, to)
		put64(q, 6, ours|ether4word)
		put64(q, 14, first4word|tos<<8|total<<16)
		put64(q, 22, w1|uint64(^uint16(sum))<<16)
		if e.proto == GRE {
			put64(q, 30, t.w[inner][1])
		} else {
			put32(q, 30, uint32(t.w[inner][1]))
			if e.proto == GUE {
				w.gue(q, 34, v.Hash[i], n-packet.IPv4Len, int(inner))
			}
		}
		v.Start[i] = start - over
		v.IPLen[i] = n
		v.Len[i], v.Total[i] = n+packet.EtherLen, n+packet.EtherLen // Ethernet padding stays behind
		v.Flags[i] = flags&^(packet.V6|packet.Later|packet.ICMP) | packet.DF
	}
	return rest
}

// write6 is write4 for IPv6.
func (w *Worker) write6(v *packet.Vector, in packet.Lanes, ts []template) (rest packet.Lanes) {
	e := w.e
	mem, limit := unsafe.Pointer(unsafe.SliceData(v.Mem)), uint64(len(v.Mem))-2*around
	over, longest := e.overhead[1], e.longest[1]
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		b, n, start := v.Backend[i], v.IPLen[i], v.Start[i]
		if uint(b) >= uint(len(ts)) || v.L3[i] != packet.EtherLen || v.Chain[i] != packet.NoFrame || n > longest || uint64(start)-around > limit {
			rest |= packet.Lane(i)
			continue
		}
		t := &ts[b]
		p := unsafe.Add(mem, start)
		ours, to := get64(p, 0)<<16>>16, t.mac
		if e.sender {
			to = get64(p, 4) >> 16
		}
		if t.ip != 6 || (ours|to)&1 != 0 {
			rest |= packet.Lane(i)
			continue
		}
		flags, hash := v.Flags[i], v.Hash[i]
		inner := flags & packet.V6 // bit 0
		tos := uint64(get16(p, packet.EtherLen)>>(4*inner)) & e.tosMask
		n += over
		length := n - packet.IPv6Len
		first := bits.ReverseBytes32(uint32(tos<<20 | hash>>44)) // the label is 20 bits of the hash
		q := unsafe.Add(p, -int(over))
		put64(q, 0, to)
		put64(q, 6, ours|ether6word)
		put64(q, 14, e.w0[inner]|uint64(first)|uint64(bits.ReverseBytes16(uint16(length)))<<32)
		put64(q, 22, t.w[0][0])
		put64(q, 30, t.w[0][1]|hash&t.host)
		put64(q, 38, t.w[1][0])
		put64(q, 46, t.w[1][1])
		switch e.proto {
		case GRE:
			put32(q, 54, uint32(e.tail[inner]))
		case GUE:
			w.gue(q, 54, hash, length, int(inner))
		}
		v.Start[i] = start - over
		v.IPLen[i] = n
		v.Len[i], v.Total[i] = n+packet.EtherLen, n+packet.EtherLen
		v.Flags[i] = flags&^(packet.Later|packet.ICMP) | packet.V6 | packet.DF
	}
	return rest
}

// gue writes the 12 bytes of UDP and GUE headers; n is the UDP length. The source
// port is 14 bits of the flow hash in the dynamic range (RFC 6335 §6); the checksum is
// 0, which IPv6 allows tunnels (RFC 6935 §5).
func (w *Worker) gue(q unsafe.Pointer, off int, hash uint64, n uint32, inner int) {
	put32(q, off, uint32(w.e.ports|hash&0xff3f))
	put64(q, off+4, uint64(bits.ReverseBytes16(uint16(n)))|w.e.tail[inner&1]<<32)
}

// around is how many bytes on both sides of a packet's first byte write4 and write6
// may touch. Memory has more than twice as many, as each of its chunks has.
const around = packet.MaxHeadroom

// EtherTypes as the last two of eight bytes.
const ether4, ether6 = 0x0008 << 48, 0xdd86 << 48

// plain prepares lanes that write4 and write6 left: it takes tags out, and cuts off what
// follows the IP packet in the last frame of a chain. Lanes that cannot be sent go to
// their output; the others are answered.
func (w *Worker) plain(v *packet.Vector, in packet.Lanes, ts []template, out []packet.Lanes) (odd packet.Lanes) {
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		if bad := w.judge(v, i, ts); bad != Next {
			out[bad] |= packet.Lane(i)
			continue
		}
		odd |= packet.Lane(i)
		a, b := &w.aside[i], v.Bytes(i)
		a.n = uint32(v.L3[i]) - packet.EtherLen
		copy(a.tags[:a.n], b[12:])
		copy(b[a.n:], b[:12])
		v.Start[i] += a.n
		v.L3[i] = packet.EtherLen
		a.first = v.Len[i] - a.n
		a.chain, v.Chain[i] = v.Chain[i], packet.NoFrame
	}
	return odd
}

// judge answers the output of a lane, and trims it if that is Next.
func (w *Worker) judge(v *packet.Vector, i int, ts []template) int {
	if int64(v.Backend[i]) >= int64(len(ts)) || ts[v.Backend[i]].ip == 0 {
		return NoRoute
	}
	t := &ts[v.Backend[i]]
	if v.IPLen[i] > w.e.longest[t.ip>>1&1] {
		return TooLong
	}
	if v.L3[i]-packet.EtherLen > 2*packet.TagLen || v.Len[i] < uint32(v.L3[i])+packet.IPv4Len {
		return BadLength
	}
	b := v.Bytes(i)
	to := byte(t.mac)
	if w.e.sender {
		to = b[6]
	}
	if (b[0]|to)&1 != 0 { // nobody sends from a group address
		return NoNeighbour
	}
	if !w.trim(v, i) {
		return BadLength
	}
	return Next
}

// restore undoes plain where that is wanted: it puts tags back and tells the first
// frame of a chain from the whole.
func (w *Worker) restore(v *packet.Vector, in packet.Lanes) {
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		a := &w.aside[i]
		if a.chain != packet.NoFrame {
			v.Chain[i] = a.chain
			v.Len[i] = a.first + w.e.overhead[v.Flags[i]&packet.V6]
		}
		if a.n == 0 {
			continue
		}
		if w.e.strip {
			v.Flags[i] &^= packet.Tagged
			continue
		}
		b := v.Push(i, a.n)
		copy(b[:12], b[a.n:])
		copy(b[12:], a.tags[:a.n])
		v.L3[i] += uint16(a.n)
	}
}

// trim cuts off what follows the IP packet of lane i in its chain of frames; false
// when it ends before the last frame but not in the first.
func (w *Worker) trim(v *packet.Vector, i int) bool {
	if v.Chain[i] == packet.NoFrame {
		return true
	}
	first := v.Len[i] - uint32(v.L3[i])
	if v.IPLen[i] <= first {
		w.core.Unchain(v, i)
		return true
	}
	rest := v.IPLen[i] - first
	for f := v.Chain[i]; f != packet.NoFrame; f = v.Links[f].Next {
		k := &v.Links[f]
		if rest <= k.Len {
			k.Len = rest
			return k.Next == packet.NoFrame
		}
		rest -= k.Len
	}
	return false
}

func get16(p unsafe.Pointer, off int) uint16 {
	return binary.BigEndian.Uint16((*[2]byte)(unsafe.Add(p, off))[:])
}

func get64(p unsafe.Pointer, off int) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(p, off))[:])
}

func put64(p unsafe.Pointer, off int, x uint64) {
	binary.LittleEndian.PutUint64((*[8]byte)(unsafe.Add(p, off))[:], x)
}

func put32(p unsafe.Pointer, off int, x uint32) {
	binary.LittleEndian.PutUint32((*[4]byte)(unsafe.Add(p, off))[:], x)
}

// Trace tells the addresses of the outer header.
func (w *Worker) Trace(v *packet.Vector, lane int) string {
	if !w.sent.Has(lane) {
		return ""
	}
	b := v.Bytes(lane)[v.L3[lane&63]:]
	src, dst := b[12:16], b[16:20]
	if v.Flags[lane&63]&packet.V6 != 0 {
		src, dst = b[8:24], b[24:40]
	}
	s, _ := netip.AddrFromSlice(src)
	d, _ := netip.AddrFromSlice(dst)
	return fmt.Sprintf("%s %s > %s", w.e.proto, s, d)
}
