package packet

import "encoding/binary"

// A Quote is what an ICMP error tells of the packet that it is about.
type Quote struct {
	Src, Dst     Addr
	SPort, DPort uint16 // 0 where the protocol has none
	Proto        uint8
	Later        bool   // a fragment that is not the first: ports are not known
	Len          uint32 // of the whole quoted packet, as its header says
}

// quoteLen is what an error must quote of layer 4 at least (RFC 792).
const quoteLen = 8

// maxQuoted bounds the walk over quoted extension headers.
const maxQuoted = 8

// ParseQuote reads the quoted packet that b begins with, IPv6 or IPv4. IP options
// and extension headers are stepped over; 8 bytes of layer 4 are enough. ok is false when
// there is less, or no such packet.
func ParseQuote(b []byte, v6 bool) (q Quote, ok bool) {
	be := binary.BigEndian
	off := IPv6Len
	if !v6 {
		if len(b) < IPv4Len || b[0]>>4 != 4 || b[0]&0xf < IPv4Len/4 {
			return q, false
		}
		off = int(b[0]&0xf) * 4
		q.Src, q.Dst = Addr4(be.Uint32(b[12:])), Addr4(be.Uint32(b[16:]))
		q.Proto, q.Len = b[9], uint32(be.Uint16(b[2:]))
		q.Later = be.Uint16(b[6:])&IPv4Offset != 0
	} else {
		if len(b) < IPv6Len || b[0]>>4 != 6 {
			return q, false
		}
		q.Src, q.Dst = Addr6(b[8:]), Addr6(b[24:])
		q.Proto, q.Len = b[6], IPv6Len+uint32(be.Uint16(b[4:]))
		for n := 0; !q.Later; n++ {
			size := 8
			switch q.Proto {
			case ProtoHopByHop, ProtoRouting, ProtoDestOpts:
				if off+8 > len(b) {
					return q, false
				}
				size = (int(b[off+1]) + 1) * 8
			case ProtoFragment:
				if off+8 > len(b) {
					return q, false
				}
				q.Later = be.Uint16(b[off+2:])&^7 != 0
			default:
				size = 0
			}
			if size == 0 {
				break
			}
			if n == maxQuoted {
				return q, false
			}
			q.Proto = b[off]
			off += size
		}
	}
	if q.Later {
		return q, true
	}
	if off+quoteLen > len(b) {
		return q, false
	}
	if q.Proto == ProtoTCP || q.Proto == ProtoUDP {
		q.SPort, q.DPort = be.Uint16(b[off:]), be.Uint16(b[off+2:])
	}
	return q, true
}

// Errs tells whether lane i, which has facts l3 and icmp, holds an ICMP or ICMPv6 error
// that relates to a flow, and answers the quote's bytes: destination unreachable, time exceeded,
// parameter problem, packet too big. An error that is fragmented holds none.
func (v *Vector) Errs(i int) (quote []byte, ok bool) {
	i &= 63
	b, at := v.Bytes(i), int(v.L4[i])
	end := min(int(v.L3[i])+int(v.IPLen[i]), len(b))
	if v.Flags[i]&(First|Later) != 0 || at+ICMPLen > end {
		return nil, false
	}
	switch typ := b[at]; {
	case v.Flags[i]&V6 != 0:
		ok = ICMP6Unreachable <= typ && typ <= ICMP6Parameter
	default:
		ok = typ == ICMPUnreachable || typ == ICMPTimeExceeded || typ == ICMPParameter
	}
	return b[at+ICMPLen : end : end], ok
}

// TunnelError tells whether lane i, which has facts l3 and icmp, holds an error about a
// packet that its destination sent into a tunnel: GRE, IP in IP, or UDP. Whether that
// tunnel is ours shows in the quote's destination.
func (v *Vector) TunnelError(i int) (q Quote, ok bool) {
	i &= 63
	b, ok := v.Errs(i)
	if !ok {
		return q, false
	}
	if q, ok = ParseQuote(b, v.Flags[i]&V6 != 0); !ok || q.Later || q.Src != v.Dst[i] {
		return q, false
	}
	switch q.Proto {
	case ProtoGRE, ProtoIPIP, ProtoIPv6, ProtoUDP:
		return q, true
	}
	return q, false
}
