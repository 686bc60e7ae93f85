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
	BadLength   // a chained packet ends before its last frame does
)

// A template is the outer header towards one backend: one cache line. Its words
// are the header's bytes as little-endian loads see them, with zeros where a
// packet's own values belong.
type template struct {
	// w is the IP header, 20 bytes of IPv4 or 40 of IPv6; in IPv4 the first four
	// bytes of the encapsulation follow.
	w    [5]uint64
	host uint64 // bits of the source that the flow hash fills: of w[1]>>32 (IPv4) or w[2]
	mac  uint64 // destination MAC in the low 48 bits; 0 is the sender's
	sum  uint32 // one's complement sum of the IPv4 header
	fail uint8  // output that lanes take, if not Next
	v6   uint8
}

// An Encap is one node of a graph, on all its cores. Update and Worker may be called
// from any goroutine.
type Encap struct {
	proto   Protocol
	cfg     Config
	hop     nextHop
	tosMask uint32
	strip   bool
	// By outer family.
	overhead, longest [2]uint32
	// By inner family: the next protocol, and the last four bytes of the encapsulation.
	next, tail [2]uint64
	ports      uint64 // GUE: UDP ports, source 0xc000

	table atomic.Pointer[[]template]

	mu      sync.Mutex // of what follows
	sources [2]netip.Prefix
	last    *state.Snapshot
}

// New makes an Encap of protocol p. c has passed its Check; port is the UDP
// destination port of GUE. No backend has a template before the first Update.
func New(p Protocol, c Config, port uint16) *Encap {
	e := &Encap{proto: p, cfg: c, tosMask: 0x03, strip: c.VLAN == "strip", sources: c.sources(nil)}
	e.hop, _ = parseNextHop(c.NextHop)
	if c.DSCP == "copy" {
		e.tosMask = 0xff
	}
	o4, o6 := p.Overhead()
	e.overhead = [2]uint32{uint32(o4), uint32(o6)}
	// The IPv6 payload length does not count its own header.
	e.longest = [2]uint32{65535 - uint32(o4), 65535 + packet.IPv6Len - uint32(o6)}
	switch p {
	case GRE:
		e.next = [2]uint64{packet.ProtoGRE, packet.ProtoGRE}
		e.tail = [2]uint64{0x0008 << 16, 0xdd86 << 16} // flags and version 0, EtherType
	case IPIP:
		e.next = [2]uint64{packet.ProtoIPIP, packet.ProtoIPv6}
	case GUE:
		e.next = [2]uint64{packet.ProtoUDP, packet.ProtoUDP}
		e.tail = [2]uint64{packet.ProtoIPIP << 8, packet.ProtoIPv6 << 8} // variant, C, length and flags 0
		e.ports = 0x00c0 | uint64(bits.ReverseBytes16(port))<<16
	}
	e.table.Store(new([]template))
	return e
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
	t.fail = NoRoute
	if b.ID == 0 || !b.Addr.IsValid() {
		return t
	}
	dst := b.Addr.Unmap()
	f := family(dst)
	src := e.sources[f]
	if !src.IsValid() {
		return t
	}
	t.v6, t.fail = uint8(f), Next
	mac, known := e.hop.mac, true
	switch {
	case e.hop.kernel:
		mac, known = b.MAC, b.HasMAC
	case e.hop.gateway.IsValid():
		mac, known = s.Neighbours[e.hop.gateway]
	}
	if !known {
		t.fail = NoNeighbour
	}
	var m [8]byte
	copy(m[:], mac[:])
	t.mac = binary.LittleEndian.Uint64(m[:])

	var h [40]byte
	bitsLeft := src.Addr().BitLen() - src.Bits()
	if f == 0 {
		h[0] = 0x45
		binary.BigEndian.PutUint16(h[6:], packet.IPv4DF) // an atomic datagram: its identification says nothing (RFC 6864 §4.1)
		h[8] = byte(e.cfg.TTL)
		s, d := src.Masked().Addr().As4(), dst.As4()
		copy(h[12:], s[:])
		copy(h[16:], d[:])
		binary.LittleEndian.PutUint32(h[20:], uint32(e.ports))
		for o := 0; o < packet.IPv4Len; o += 2 {
			t.sum += uint32(binary.LittleEndian.Uint16(h[o:]))
		}
		t.host = uint64(bits.ReverseBytes32(uint32(1<<bitsLeft - 1)))
	} else {
		h[0] = 0x60
		h[7] = byte(e.cfg.TTL)
		s, d := src.Masked().Addr().As16(), dst.As16()
		copy(h[8:], s[:])
		copy(h[24:], d[:])
		t.host = bits.ReverseBytes64(1<<bitsLeft - 1)
	}
	for i := range t.w {
		t.w[i] = binary.LittleEndian.Uint64(h[8*i:])
	}
	return t
}

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
	return &Worker{e, c}, nil
}

// A Worker is an Encap on one core. It is a graph.Node.
type Worker struct {
	e    *Encap
	core Core
}

// Process writes the outer header in front of every lane and moves the Ethernet
// header in front of that. L3, IPLen, DF and V6 speak of the outer header then;
// the flow columns stay those of the client's flow.
func (w *Worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	e, mem := w.e, v.Mem
	ts := *e.table.Load()
	sent := in
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		b := v.Backend[i]
		if uint(b) >= uint(len(ts)) {
			out[NoRoute] |= packet.Lane(i)
			sent &^= packet.Lane(i)
			continue
		}
		t := &ts[b]
		flags, n, hash := v.Flags[i], v.IPLen[i], v.Hash[i]
		outer := t.v6 & 1
		inner := flags & packet.V6 // V6 is bit 0
		bad := t.fail
		if n > e.longest[outer] {
			bad = TooLong
		}
		if v.Chain[i] != packet.NoFrame && bad == 0 && !w.trim(v, i) {
			bad = BadLength
		}
		if bad != 0 {
			out[bad] |= packet.Lane(i)
			sent &^= packet.Lane(i)
			continue
		}

		// Layer 2.
		start, l3, over := v.Start[i], uint32(v.L3[i]), e.overhead[outer]
		ip := start + l3
		old := (*[16]byte)(mem[start : start+16])
		ours := binary.LittleEndian.Uint64(old[0:]) & (1<<48 - 1)
		to := t.mac
		if to == 0 {
			to = binary.LittleEndian.Uint64(old[4:]) >> 16
		}
		if (ours|to)&1 != 0 { // no host sends from a group address (IEEE 802.3 §3.2.3)
			out[NoNeighbour] |= packet.Lane(i)
			sent &^= packet.Lane(i)
			continue
		}
		tos := uint32(binary.LittleEndian.Uint16(mem[ip:]))
		if inner == 0 {
			tos >>= 8
		} else {
			tos = tos<<4&0xf0 | tos>>12
		}
		tos &= e.tosMask // normal mode of RFC 6040 §4.1: ECN is copied
		l2 := l3
		if l3 != packet.EtherLen {
			if e.strip {
				l2 = packet.EtherLen
			} else {
				copy(mem[ip-over-l2+12:ip-over-2], mem[start+12:ip-2])
			}
		}
		start = ip - over - l2
		eth := (*[14]byte)(mem[start : start+14])
		binary.LittleEndian.PutUint64(eth[0:], to|ours<<48)
		binary.LittleEndian.PutUint32(eth[8:], uint32(ours>>16))
		binary.LittleEndian.PutUint16(mem[ip-over-2:], etherTypes[outer])

		// Layer 3 and what follows.
		o := (*[32]byte)(mem[ip-over:])
		if outer == 0 {
			total := uint32(bits.ReverseBytes16(uint16(n + over)))
			host := uint32(hash & t.host)
			next := e.next[inner] << 8
			sum := t.sum + tos<<8 + total + uint32(next) + host&0xffff + host>>16
			sum = sum&0xffff + sum>>16
			sum += sum >> 16
			binary.LittleEndian.PutUint64(o[0:], t.w[0]|uint64(tos<<8|total<<16))
			binary.LittleEndian.PutUint64(o[8:], t.w[1]|next|uint64(^uint16(sum))<<16|uint64(host)<<32)
			switch e.proto {
			case GRE:
				binary.LittleEndian.PutUint64(o[16:], t.w[2]|e.tail[inner]<<32)
			case IPIP:
				binary.LittleEndian.PutUint32(o[16:], uint32(t.w[2]))
			case GUE:
				binary.LittleEndian.PutUint64(o[16:], t.w[2]|hash&0xff3f<<32)
				binary.LittleEndian.PutUint64(o[24:], uint64(bits.ReverseBytes16(uint16(n+12)))|e.tail[inner]<<32)
			}
		} else {
			o := (*[52]byte)(mem[ip-over:])
			first := bits.ReverseBytes32(tos<<20 | uint32(hash>>44))
			length := bits.ReverseBytes16(uint16(n + over - packet.IPv6Len))
			binary.LittleEndian.PutUint64(o[0:], t.w[0]|uint64(first)|uint64(length)<<32|e.next[inner]<<48)
			binary.LittleEndian.PutUint64(o[8:], t.w[1])
			binary.LittleEndian.PutUint64(o[16:], t.w[2]|hash&t.host)
			binary.LittleEndian.PutUint64(o[24:], t.w[3])
			binary.LittleEndian.PutUint64(o[32:], t.w[4])
			switch e.proto {
			case GRE:
				binary.LittleEndian.PutUint32(o[40:], uint32(e.tail[inner]))
			case GUE:
				binary.LittleEndian.PutUint64(o[40:], e.ports|hash&0xff3f|uint64(length)<<32)
				binary.LittleEndian.PutUint32(o[48:], uint32(e.tail[inner]))
			}
		}

		size := l2 + over + n // Ethernet padding stays behind
		v.Start[i], v.L3[i], v.IPLen[i], v.Total[i] = start, uint16(l2), n+over, size
		if v.Chain[i] != packet.NoFrame {
			size = v.Len[i] + l2 - l3 + over
		}
		v.Len[i] = size
		flags = flags&^(packet.V6|packet.Later|packet.ICMP) | packet.DF | packet.Flags(outer)
		if l2 == packet.EtherLen {
			flags &^= packet.Tagged
		}
		v.Flags[i] = flags
	}
	out[Next] = sent
}

// trim cuts off what follows the IP packet of lane i in its chain of frames; false
// when it ends before the last frame but not in the first.
func (w *Worker) trim(v *packet.Vector, i int) bool {
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

// Trace tells the addresses of the outer header.
func (w *Worker) Trace(v *packet.Vector, lane int) string {
	b := v.Bytes(lane)[v.L3[lane&63]:]
	src, dst := b[12:16], b[16:20]
	if v.Flags[lane&63]&packet.V6 != 0 {
		src, dst = b[8:24], b[24:40]
	}
	s, _ := netip.AddrFromSlice(src)
	d, _ := netip.AddrFromSlice(dst)
	return fmt.Sprintf("%s %s > %s", w.e.proto, s, d)
}

var etherTypes = [2]uint16{bits.ReverseBytes16(packet.EtherIPv4) & 0xffff, bits.ReverseBytes16(packet.EtherIPv6) & 0xffff}
