package packet

// EtherTypes (IEEE 802.3 §3.2.6, 802.1Q §9.6).
const (
	EtherIPv4 = 0x0800
	EtherIPv6 = 0x86dd
	EtherVLAN = 0x8100 // 802.1Q customer tag
	EtherQinQ = 0x88a8 // 802.1ad service tag
)

// Lengths of headers in bytes, without options.
const (
	EtherLen = 14
	TagLen   = 4
	IPv4Len  = 20
	IPv6Len  = 40
	TCPLen   = 20
	UDPLen   = 8
	ICMPLen  = 8
)

// IPv6 extension headers (RFC 8200 §4) that are looked through on the way to
// layer 4. Encrypted and authenticated payloads are not: they count as protocols
// without ports.
const (
	ProtoHopByHop = 0
	ProtoRouting  = 43
	ProtoFragment = 44
	ProtoDestOpts = 60
)

// Bits of the IPv4 word that holds flags and offset (RFC 791 §3.1); the offset,
// in units of 8 bytes, is what IPv4Offset masks.
const (
	IPv4DF     = 0x4000
	IPv4MF     = 0x2000
	IPv4Offset = 0x1fff
)

// SwapMACs exchanges destination and source of the Ethernet header at b, which
// holds at least 12 bytes: what a reply in the same frame begins with.
func SwapMACs(b []byte) {
	p := (*[12]byte)(b)
	d, s := *(*[6]byte)(p[0:6]), *(*[6]byte)(p[6:12])
	*(*[6]byte)(p[0:6]), *(*[6]byte)(p[6:12]) = s, d
}

// Swap exchanges source and destination of lane i's flow columns.
func (v *Vector) Swap(i int) {
	i &= 63
	v.Src[i], v.Dst[i] = v.Dst[i], v.Src[i]
	v.SPort[i], v.DPort[i] = v.DPort[i], v.SPort[i]
}

// FlowHash4 is FlowHash for IPv4 addresses, small enough to be inlined where most
// packets pass. p is both ports as they stand in a header and the protocol:
// sport<<32 | dport<<16 | proto.
func FlowHash4(src, dst uint32, p uint64) uint64 {
	s := Mix(p^HashK0, uint64(src)^v4mapped^HashK1)
	return Mix(s^HashK4, Mix(HashK2, uint64(dst)^v4mapped^HashK3)^HashK5)
}
