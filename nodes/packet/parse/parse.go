// Package parse is the kind "parse": it reads the headers of received frames into
// the vector's columns and refuses those that are truncated, lie or are corrupt.
package parse

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/prefetch"
)

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind:    "parse",
		Summary: "reads Ethernet, VLAN, IP and transport headers and drops what is truncated, lies or is corrupt",
		Forbids: graph.L3,
		Outputs: []graph.Output{
			next:     {Name: "next", Gives: graph.L3 | graph.L4 | graph.Flow, Doc: "IP packets that are whole, or the first fragment of one; not ICMP"},
			fragment: {Name: "fragment", Gives: graph.L3 | graph.Fragment, Else: graph.Drop, Doc: "fragments that are not the first"},
			icmp:     {Name: "icmp", Gives: graph.L3 | graph.ICMP, Else: graph.Punt, Doc: "ICMP over IPv4, ICMPv6 over IPv6"},
			other:    {Name: "other", Else: graph.Punt, Doc: "frames that carry neither IPv4 nor IPv6"},

			truncated:   {Name: "truncated", Else: graph.Drop, Doc: "the frame ends inside a header"},
			badVersion:  {Name: "bad_version", Else: graph.Drop, Doc: "the IP version is not the one the EtherType names"},
			badLength:   {Name: "bad_length", Else: graph.Drop, Doc: "a length field contradicts the frame or another header"},
			badChecksum: {Name: "bad_checksum", Else: graph.Drop, Doc: "the IPv4 header checksum is wrong"},
			badHeader:   {Name: "bad_header", Else: graph.Drop, Doc: "a header is too short, out of its place or not whole in the packet, or a first fragment lacks its transport header"},
			badTag:      {Name: "bad_tag", Else: graph.Drop, Doc: "more than two VLAN tags"},
		},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(graph.Core) (graph.Node, error) { return &worker{lanes: hasLanes}, nil }, nil
		},
	})
}

// Output numbers.
const (
	next = iota
	fragment
	icmp
	other
	truncated
	badVersion
	badLength
	badChecksum
	badHeader
	badTag
)

// maxHeaders bounds the walk over IPv6 extension headers.
const maxHeaders = 8

// dfShift brings the Don't Fragment bit from its place in the header to its place
// in the lane's flags.
const (
	dfShift = 10
	_       = uint(packet.IPv4DF>>dfShift-packet.DF) + uint(packet.DF-packet.IPv4DF>>dfShift)
)

type worker struct {
	lanes bool // many lanes are parsed at once
	wait  int  // so many vectors, for those before were of another kind
}

// waits is how many vectors are parsed lane by lane after one that was mostly not for groups:
// trying costs a third of a packet.
const waits = 31

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	_ = out[badTag]
	slow := in
	if n, ok := in.Dense(); ok {
		slow = w.dense(v, n)
		out[next] = in &^ slow
	}
	for ; slow != 0; slow &= slow - 1 {
		i := slow.Next() & 63
		out[whole(v, i)] |= packet.Lane(i)
	}
}

// dense parses those of lanes 0 … n−1 that are what most packets are, and answers the
// others, to be parsed by whole.
func (w *worker) dense(v *packet.Vector, n int) (others packet.Lanes) {
	ask(v, 0, n)
	from := 0
	switch {
	case w.wait > 0:
		w.wait--
	case w.lanes && n >= group:
		odd := plainLanes(v, n)
		from = n &^ (group - 1)
		if 2*odd.Count() > from {
			w.wait = waits
		}
		if odd == packet.All(from) { // all of a kind that is not for groups
			others = plain(v, 0, from)
			odd = 0
		}
		for ; odd != 0; odd &= odd - 1 {
			i := odd.Next()
			others |= plain(v, i, i+1)
		}
	}
	if from == n {
		return others
	}
	most(v, from, n)
	for i := from; i < n; i += ahead {
		ask(v, i+ahead, n)
		others |= plain(v, i, min(i+ahead, n))
	}
	return others
}

// group is how many lanes are parsed at once, shortest how many bytes each of them must
// have: up to the end of the longer transport header.
const (
	group    = 8
	shortest = packet.EtherLen + packet.IPv4Len + packet.TCPLen
)

// ahead is how many packets' headers are on their way from memory while as many are
// parsed: this kind is the first to touch them.
const ahead = 16

// ask prefetches the first line of up to ahead lanes from lane from on, but not lane n,
// and the line before it, which encapsulation will write: by then it has come.
func ask(v *packet.Vector, from, n int) {
	if from < n {
		prefetch.Around(unsafe.Pointer(unsafe.SliceData(v.Mem)), v.Start[from:min(from+ahead, n)])
	}
}

// most writes to lanes from … n−1 what is the same for most packets. A column at a time
// it costs next to nothing; by packet, each would be a store to another line.
func most(v *packet.Vector, from, n int) {
	n = min(n, packet.Size)
	copy(v.L3[from:n], plainL3[:])
	copy(v.L4[from:n], plainL4[:])
	clear(v.VIP[from:n])
	clear(v.Backend[from:n])
}

// plainL3 and plainL4 are the columns of packets without tags and with an IPv4 header
// without options.
var plainL3, plainL4 = func() (l3, l4 [packet.Size]uint16) {
	for i := range l3 {
		l3[i], l4[i] = packet.EtherLen, packet.EtherLen+packet.IPv4Len
	}
	return
}()

// plain parses those of lanes from … n−1 that are what most packets are: untagged TCP or
// UDP, unfragmented, without IP options or extension headers, in one frame, and
// faultless. most has written to them. It answers the others, to be parsed by whole.
func plain(v *packet.Vector, from, n int) (others packet.Lanes) {
	be := binary.BigEndian
	n = min(n, packet.Size)
	for i := max(from, 0); i < n; i++ {
		// No byte below is read before size vouches for it.
		p := (*[packet.EtherLen + packet.IPv4Len + packet.TCPLen]byte)(v.Ptr(i, 0))
		size := uint64(v.Len[i])
		if size < packet.EtherLen+packet.IPv4Len+packet.UDPLen {
			others |= packet.Lane(i)
			continue
		}
		if be.Uint16(p[12:]) != packet.EtherIPv4 {
			if !plain6(v, i) {
				others |= packet.Lane(i)
			}
			continue
		}
		// a: version, IHL, ToS, length, ID, flags and offset
		// b: TTL, protocol, checksum, source
		// c: ports; sequence number, or length and checksum
		a, b, dst, c := be.Uint64(p[14:]), be.Uint64(p[22:]), be.Uint32(p[30:]), be.Uint64(p[34:])
		total := a >> 32 & 0xffff
		if a>>56 != 0x45 || a&(packet.IPv4MF|packet.IPv4Offset) != 0 || !packet.IPv4OK(a, b, dst) || total+packet.EtherLen > size {
			others |= packet.Lane(i)
			continue
		}
		proto := b >> 48 & 0xff
		tcp := uint64(0)
		if proto == packet.ProtoTCP && total >= packet.IPv4Len+packet.TCPLen {
			tcp = uint64(be.Uint16(p[46:]))
			if n := tcp >> 12 * 4; n < packet.TCPLen || n+packet.IPv4Len > total {
				others |= packet.Lane(i)
				continue
			}
		} else if n := c >> 16 & 0xffff; proto != packet.ProtoUDP || n < packet.UDPLen || n+packet.IPv4Len > total {
			others |= packet.Lane(i)
			continue
		}
		v.IPLen[i] = uint32(total)
		v.Flags[i], v.Proto[i], v.TCP[i] = packet.Flags(a>>dfShift)&packet.DF, uint8(proto), uint8(tcp)
		v.SPort[i], v.DPort[i] = uint16(c>>48), uint16(c>>32)
		v.Src[i], v.Dst[i] = packet.Addr4(uint32(b)), packet.Addr4(dst)
		v.Hash[i] = packet.FlowHash4(uint32(b), dst, c>>32<<16|proto)
	}
	return others
}

// plain6 is plain for a lane of at least 42 bytes that may be IPv6.
func plain6(v *packet.Vector, i int) (ok bool) {
	i &= 63
	be := binary.BigEndian
	p := (*[packet.EtherLen + packet.IPv6Len + packet.TCPLen]byte)(v.Ptr(i, 0))
	size := uint64(v.Len[i])
	a := be.Uint64(p[14:]) // version, class, label, payload length, next header, hop limit
	rest := a >> 16 & 0xffff
	if be.Uint16(p[12:]) != packet.EtherIPv6 || a>>60 != 6 || rest < packet.UDPLen || packet.EtherLen+packet.IPv6Len+rest > size {
		return false
	}
	c := be.Uint64(p[54:])
	proto := uint8(a >> 8)
	tcp := uint64(0)
	if proto == packet.ProtoTCP && rest >= packet.TCPLen {
		tcp = uint64(be.Uint16(p[66:]))
		if n := tcp >> 12 * 4; n < packet.TCPLen || n > rest {
			return false
		}
	} else if n := c >> 16 & 0xffff; proto != packet.ProtoUDP || n < packet.UDPLen || n > rest {
		return false
	}
	src, dst := packet.Addr6(p[22:]), packet.Addr6(p[38:])
	v.L4[i] = packet.EtherLen + packet.IPv6Len
	v.IPLen[i] = uint32(rest + packet.IPv6Len)
	v.Flags[i], v.Proto[i], v.TCP[i] = packet.V6|packet.DF, proto, uint8(tcp)
	v.SPort[i], v.DPort[i] = uint16(c>>48), uint16(c>>32)
	v.Src[i], v.Dst[i] = src, dst
	v.Hash[i] = packet.FlowHash(src, dst, uint16(c>>48), uint16(c>>32), proto)
	return true
}

// whole parses any lane and answers its output. All header and flow columns are
// set, also where the answer is a reason, as far as the headers could be read.
func whole(v *packet.Vector, i int) (output int) {
	i &= 63
	v.L3[i], v.L4[i], v.IPLen[i] = 0, 0, 0 // ID says nothing but of fragments
	v.Flags[i], v.Proto[i], v.TCP[i] = 0, 0, 0
	v.Src[i], v.Dst[i], v.SPort[i], v.DPort[i], v.Hash[i] = packet.Addr{}, packet.Addr{}, 0, 0, 0
	v.VIP[i], v.Backend[i] = 0, 0

	b := v.Bytes(i)
	if len(b) < packet.EtherLen {
		return truncated
	}
	l3 := packet.EtherLen
	kind := binary.BigEndian.Uint16(b[12:])
	for kind == packet.EtherVLAN || kind == packet.EtherQinQ {
		if l3 == packet.EtherLen+2*packet.TagLen {
			return badTag
		}
		if len(b) < l3+packet.TagLen {
			return truncated
		}
		kind = binary.BigEndian.Uint16(b[l3+2:])
		l3 += packet.TagLen
		v.Flags[i] = packet.Tagged
	}
	v.L3[i] = uint16(l3)
	switch kind {
	case packet.EtherIPv4:
		return ip4(v, i, b, l3)
	case packet.EtherIPv6:
		return ip6(v, i, b, l3)
	}
	return other
}

func ip4(v *packet.Vector, i int, b []byte, l3 int) int {
	h := b[l3:]
	switch {
	case len(h) < 1:
		return truncated
	case h[0]>>4 != 4:
		return badVersion
	case len(h) < packet.IPv4Len:
		return truncated
	}
	size := int(h[0]&0xf) * 4
	if size < packet.IPv4Len {
		return badHeader
	}
	total := int(binary.BigEndian.Uint16(h[2:]))
	if total < size || l3+total > int(v.Total[i]) {
		return badLength
	}
	if size > len(h) {
		return truncated
	}
	if packet.Sum(h[:size]) != 0xffff {
		return badChecksum
	}
	word := binary.BigEndian.Uint16(h[6:])
	v.IPLen[i], v.Proto[i] = uint32(total), h[9]
	v.Src[i], v.Dst[i] = packet.Addr4(binary.BigEndian.Uint32(h[12:])), packet.Addr4(binary.BigEndian.Uint32(h[16:]))
	if word&packet.IPv4DF != 0 {
		v.Flags[i] |= packet.DF
	}
	if h[9] == packet.ProtoICMP {
		v.Flags[i] |= packet.ICMP
	}
	if word&(packet.IPv4MF|packet.IPv4Offset) != 0 {
		v.ID[i] = uint32(binary.BigEndian.Uint16(h[4:]))
		return fragmented(v, i, b, l3+size, int(word&packet.IPv4Offset)*8, size)
	}
	return transport(v, i, b, l3+size)
}

// fragmented goes on with a fragment whose data begins at off; at is its place in the
// whole packet, size the length of the headers that the whole packet keeps.
func fragmented(v *packet.Vector, i int, b []byte, off, at, size int) int {
	v.L4[i] = uint16(off)
	data := int(v.L3[i]) + int(v.IPLen[i]) - off
	// What would end behind byte 65535 of the whole packet can only harm a host.
	if data == 0 || at+data+size > 65535 {
		return badLength
	}
	if at == 0 {
		v.Flags[i] |= packet.First
		if v.Flags[i]&packet.V6 == 0 {
			return transport(v, i, b, off)
		}
		return next
	}
	v.Flags[i] |= packet.Later
	v.Hash[i] = packet.FlowHash(v.Src[i], v.Dst[i], 0, 0, v.Proto[i])
	return fragment
}

func ip6(v *packet.Vector, i int, b []byte, l3 int) int {
	h := b[l3:]
	switch {
	case len(h) < 1:
		return truncated
	case h[0]>>4 != 6:
		return badVersion
	case len(h) < packet.IPv6Len:
		return truncated
	}
	payload := int(binary.BigEndian.Uint16(h[4:]))
	if l3+packet.IPv6Len+payload > int(v.Total[i]) {
		return badLength
	}
	v.Flags[i] |= packet.V6 | packet.DF
	v.IPLen[i] = uint32(packet.IPv6Len + payload)
	v.Src[i], v.Dst[i] = packet.Addr6(h[8:]), packet.Addr6(h[24:])
	off := l3 + packet.IPv6Len
	end := min(off+payload, len(b))
	seen := false // a fragment header
	proto := h[6]
	for n := 0; ; n++ {
		v.Proto[i], v.L4[i] = proto, uint16(off)
		switch proto {
		case packet.ProtoHopByHop:
			// RFC 8200 §4.1: directly behind the IPv6 header and nowhere else.
			if n != 0 {
				return badHeader
			}
		case packet.ProtoRouting, packet.ProtoDestOpts:
		case packet.ProtoFragment:
			if seen || off+8 > end {
				return badHeader
			}
			seen = true
			proto = b[off]
			word := binary.BigEndian.Uint16(b[off+2:])
			id := binary.BigEndian.Uint32(b[off+4:])
			off += 8
			// An atomic fragment (RFC 6946) is a whole packet.
			if word&^0x6 == 0 {
				continue
			}
			v.ID[i], v.Proto[i] = id, proto
			if proto == packet.ProtoICMPv6 {
				v.Flags[i] |= packet.ICMP
			}
			// RFC 8200 §4.5: all fragments but the last hold a multiple of 8 bytes.
			if word&1 != 0 && (l3+int(v.IPLen[i])-off)%8 != 0 {
				return badLength
			}
			if o := fragmented(v, i, b, off, int(word&^0x7), off-8-l3-packet.IPv6Len); o != next {
				return o
			}
			continue
		default:
			if proto == packet.ProtoICMPv6 {
				v.Flags[i] |= packet.ICMP
			}
			return transport(v, i, b, off)
		}
		if n == maxHeaders || off+8 > end {
			return badHeader
		}
		size := (int(b[off+1]) + 1) * 8
		if off+size > end {
			return badHeader
		}
		proto = b[off]
		off += size
	}
}

// transport reads the transport header at off, which the IP headers say is
// there: all of it must stand in this packet, be it a first fragment (RFC 1858 §3,
// RFC 7112 §5).
func transport(v *packet.Vector, i int, b []byte, off int) int {
	v.L4[i] = uint16(off)
	end := int(v.L3[i]) + int(v.IPLen[i])
	h := b[off:min(end, len(b))]
	proto, flags := v.Proto[i], v.Flags[i]
	output := next
	switch {
	case proto == packet.ProtoTCP:
		if len(h) < packet.TCPLen {
			return badHeader
		}
		if size := int(h[12]>>4) * 4; size < packet.TCPLen || size > len(h) {
			return badHeader
		}
		v.TCP[i] = h[13]
		v.SPort[i], v.DPort[i] = binary.BigEndian.Uint16(h), binary.BigEndian.Uint16(h[2:])
	case proto == packet.ProtoUDP:
		if len(h) < packet.UDPLen {
			return badHeader
		}
		// What an IP packet holds behind the datagram is no lie (RFC 9868 §7). The
		// length of a first fragment is that of the whole datagram.
		n := int(binary.BigEndian.Uint16(h[4:]))
		if n < packet.UDPLen || flags&packet.First == 0 && n > end-off {
			return badLength
		}
		v.SPort[i], v.DPort[i] = binary.BigEndian.Uint16(h), binary.BigEndian.Uint16(h[2:])
	case flags&packet.ICMP != 0:
		if len(h) < packet.ICMPLen {
			return badHeader
		}
		output = icmp
	}
	v.Hash[i] = packet.FlowHash(v.Src[i], v.Dst[i], v.SPort[i], v.DPort[i], proto)
	return output
}

// Trace is part of graph.Tracer.
func (*worker) Trace(v *packet.Vector, i int) string {
	i &= 63
	if v.L3[i] == 0 || v.IPLen[i] == 0 {
		return fmt.Sprintf("%d bytes, no IP packet", v.Total[i])
	}
	s := fmt.Sprintf("protocol %d, %v to %v, %d bytes", v.Proto[i], end(v.Src[i], v.SPort[i]), end(v.Dst[i], v.DPort[i]), v.IPLen[i])
	if v.Flags[i]&(packet.First|packet.Later) != 0 {
		s += fmt.Sprintf(", fragment of %#x", v.ID[i])
	}
	return s
}

func end(a packet.Addr, port uint16) any {
	if port == 0 {
		return a.Netip()
	}
	return netip.AddrPortFrom(a.Netip(), port)
}
