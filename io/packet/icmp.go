package packet

import "encoding/binary"

// Types of ICMP (RFC 792, IANA) and ICMPv6 (RFC 4443) messages. All ICMPv6 types below
// ICMP6Echo are errors.
const (
	ICMPEchoReply    = 0
	ICMPUnreachable  = 3
	ICMPEcho         = 8
	ICMPTimeExceeded = 11
	ICMPParameter    = 12

	ICMP6Unreachable  = 1
	ICMP6TooBig       = 2
	ICMP6TimeExceeded = 3
	ICMP6Parameter    = 4
	ICMP6Echo         = 128
	ICMP6EchoReply    = 129
)

// CodeFragNeeded of ICMPUnreachable: fragmentation needed and DF set (RFC 1191 §4).
const CodeFragNeeded = 4

// How much of an error message's packet may be filled with the quote: the whole IP packet
// must not be longer (RFC 1812 §4.3.2.3, RFC 4443 §2.4(c)).
const (
	maxError4 = 576
	maxError6 = 1280
)

// OwnTTL is the TTL or hop limit of packets of our own (RFC 1700), errorToS the precedence
// "internetwork control" (RFC 1812 §4.3.2.5).
const (
	OwnTTL   = 64
	errorToS = 0xc0
)

// FromHost tells whether lane i, which has fact l3, came from one host and was not sent to
// a group of the link layer: what any answer needs (RFC 1122 §3.2.2, RFC 1812 §4.3.2.7,
// RFC 4443 §2.4(e)).
func (v *Vector) FromHost(i int) bool {
	i &= 63
	if v.Len[i] < EtherLen || v.Bytes(i)[0]&1 != 0 {
		return false
	}
	s := v.Src[i]
	if v.Flags[i]&V6 != 0 {
		// The unspecified address, loopback and mapped IPv4 lie in ::/64.
		return s.Hi != 0 && s.Hi>>56 != 0xff
	}
	// Not this network, loopback, multicast and beyond.
	a := s.V4() >> 24
	return a != 0 && a != 127 && a < 224
}

// Answerable tells whether an error may be sent about lane i: it is FromHost, and neither
// ICMP (the kinds that ask see only errors of it) nor a later fragment nor a packet whose flow
// columns are not its own.
func (v *Vector) Answerable(i int) bool {
	return v.Flags[i&63]&(ICMP|Later|Related) == 0 && v.FromHost(i)
}

// MakeError turns lane i, which is Answerable and not chained, into the ICMP or ICMPv6
// error of the given type and code about the packet it was, from that packet's destination to its
// source, in the same frame: MAC addresses exchanged, VLAN tags kept, as much quoted as may be.
// rest is the word behind the checksum: an MTU or 0. id is the IPv4 identification. room is
// the number of bytes from Start to the end of the chunk.
//
// The columns are those of the error afterwards; service and backend are none.
func (v *Vector) MakeError(i int, typ, code uint8, rest uint32, id uint16, room uint32) {
	i &= 63
	be := binary.BigEndian
	l3 := uint32(v.L3[i])
	six := v.Flags[i]&V6 != 0
	head, limit := uint32(IPv4Len+ICMPLen), uint32(maxError4)
	if six {
		head, limit = IPv6Len+ICMPLen, maxError6
	}
	quote := min(v.IPLen[i], v.Len[i]-l3, limit-head, room-l3-head)
	v.Len[i] = l3 + head + quote
	v.Total[i] = v.Len[i]
	v.IPLen[i] = head + quote
	b := v.Bytes(i)
	copy(b[l3+head:], b[l3:l3+quote])
	SwapMACs(b)
	v.Swap(i)
	v.SPort[i], v.DPort[i], v.TCP[i] = 0, 0, 0
	v.VIP[i], v.Backend[i], v.Slot[i] = 0, 0, 0
	v.L4[i] = uint16(l3 + head - ICMPLen)

	ip, icmp := b[l3:l3+head-ICMPLen], b[l3+head-ICMPLen:]
	icmp[0], icmp[1], icmp[2], icmp[3] = typ, code, 0, 0
	be.PutUint32(icmp[4:], rest)
	sum := Sum(icmp)
	if six {
		v.Proto[i] = ProtoICMPv6
		sum += PseudoSum(v.Src[i], v.Dst[i], ProtoICMPv6, uint32(len(icmp)))
		be.PutUint32(ip[0:], 6<<28|errorToS<<20)
		be.PutUint16(ip[4:], uint16(len(icmp)))
		ip[6], ip[7] = ProtoICMPv6, OwnTTL
		v.Src[i].Put16(ip[8:])
		v.Dst[i].Put16(ip[24:])
		v.Flags[i] = v.Flags[i]&Tagged | V6 | DF | ICMP
	} else {
		v.Proto[i] = ProtoICMP
		be.PutUint32(ip[0:], 0x45<<24|errorToS<<16|v.IPLen[i])
		be.PutUint32(ip[4:], uint32(id)<<16)
		be.PutUint32(ip[8:], OwnTTL<<24|ProtoICMP<<16)
		be.PutUint32(ip[12:], v.Src[i].V4())
		be.PutUint32(ip[16:], v.Dst[i].V4())
		be.PutUint16(ip[10:], Checksum(ip))
		v.Flags[i] = v.Flags[i]&Tagged | ICMP
	}
	be.PutUint16(icmp[2:], ^Fold(sum))
	v.Hash[i] = FlowHash(v.Src[i], v.Dst[i], 0, 0, v.Proto[i])
}
