package packet

import "unsafe"

// NoFrame in a Chain column, or as an answer, means that there is no frame.
const NoFrame = ^uint32(0)

// Flags tell what parse and the nodes behind it found out about a lane.
type Flags uint16

const (
	// V6 is set when the header at L3 is IPv6, clear when it is IPv4.
	V6 Flags = 1 << iota
	// Later is set on a fragment that is not the first: it has no layer-4 header.
	Later
	// First is set on the first of several fragments.
	First
	// ICMP is set on ICMP over IPv4 and ICMPv6 over IPv6.
	ICMP
	// DF is the IPv4 Don't Fragment bit; it is set on all IPv6.
	DF
	// Related marks an ICMP error whose flow columns hold the quoted flow,
	// reversed to the direction client → VIP.
	Related
	// Tagged is set when one or more VLAN tags stand before L3.
	Tagged
	// Pinned marks a later fragment whose flow columns were restored from its
	// first fragment.
	Pinned
	// Chosen marks a lane whose backend was selected afresh in this vector and
	// not found in the connection table.
	Chosen
	// Repinned marks a lane whose connection entry named a backend that may not
	// be used any more.
	Repinned
	// Malformed marks a lane with TCP options that do not parse.
	Malformed
)

// TCP flag bits as they stand in byte 13 of the header (RFC 9293 §3.1).
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// IP protocol numbers that the packet plane knows by name.
const (
	ProtoICMP   = 1
	ProtoIPIP   = 4
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoIPv6   = 41
	ProtoGRE    = 47
	ProtoICMPv6 = 58
)

// A Vector is one batch of up to Size packets on one core, as columns of Size
// values. Lane i of every column speaks of the same packet. A lane's bytes are
// Mem[Start : Start+Len]; Start is the first byte of the Ethernet header.
//
// A packet longer than one frame is a chain: Frame, Start and Len speak of its
// first frame, Total is the length of the whole, and Chain names the next frame,
// whose own length and successor stand in the Link table. Nodes touch the first
// frame only.
type Vector struct {
	Mem   []byte // the memory that all frames are chunks of
	Links []Link // by frame number: how a frame's packet goes on
	Now   int64  // this vector's clock in nanoseconds, the same for all lanes

	// Frame columns, set on receive. Total stands at a multiple of 8 bytes, for Octets.
	Frame [Size]uint32 // number of the chunk
	Start [Size]uint32 // offset into Mem of the packet's first byte
	Len   [Size]uint32 // bytes in the first frame
	Total [Size]uint32 // bytes of the whole packet
	Chain [Size]uint32 // next frame, or NoFrame
	Port  [Size]uint16 // index of the port that received it

	// Header columns, valid once fact l3 holds; offsets count from Start. Flags stands at a
	// multiple of 8 bytes, for AnyFlag.
	L3    [Size]uint16 // offset of the outermost IP header
	L4    [Size]uint16 // offset of what follows all IP headers (also of a later fragment's data)
	IPLen [Size]uint32 // bytes of the IP packet from L3; Ethernet padding lies behind
	Flags [Size]Flags
	Proto [Size]uint8  // of the flow: TCP, UDP, …; of the packet before flow holds
	TCP   [Size]uint8  // TCP flag bits; 0 for other protocols
	ID    [Size]uint32 // fragment identification; valid with First and Later

	// Flow columns: of the packet itself once l3 holds, of the client's flow
	// once flow holds. Hash is FlowHash of the five; on a later fragment that is
	// not pinned, FlowHash with ports 0.
	Src, Dst     [Size]Addr
	SPort, DPort [Size]uint16
	Hash         [Size]uint64

	// Decision columns.
	VIP     [Size]uint32 // service number in the snapshot; 0 is none
	Backend [Size]uint32 // backend number in the snapshot; 0 is none
	Slot    [Size]uint32 // member index within the service's pool, with Backend
}

// A Link says how the packet of a frame goes on behind that frame.
type Link struct {
	Next  uint32 // next frame, or NoFrame
	Start uint32 // offset into Mem of this frame's first byte
	Len   uint32 // bytes in this frame
}

// Begin sets what packets have when port has received them, in lanes 0 … n−1: no service and
// no backend. Of many lanes all are set, with a few wide stores.
func (v *Vector) Begin(n int, port uint16) {
	if n <= 8 {
		for i := range n {
			i := i & 63
			v.VIP[i], v.Backend[i], v.Slot[i], v.Port[i] = 0, 0, 0, port
		}
		return
	}
	v.VIP, v.Backend, v.Slot = [Size]uint32{}, [Size]uint32{}, [Size]uint32{}
	four := uint64(port) * 0x0001_0001_0001_0001
	ports := (*[Size / 4]uint64)(unsafe.Pointer(&v.Port))
	for i := range ports {
		ports[i] = four
	}
}

// Bytes answers the first frame of lane i, length Len. The slice is valid until
// the lane leaves its node.
func (v *Vector) Bytes(i int) []byte {
	s := v.Start[i&63]
	return v.Mem[s : s+v.Len[i&63] : s+v.Len[i&63]]
}

// Ptr answers a pointer to byte off of lane i's first frame. The caller has
// checked off and what it reads behind it against Len.
func (v *Vector) Ptr(i int, off uint32) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(v.Mem)), uintptr(v.Start[i&63]+off))
}

// AnyFlag tells whether a lane has any of the flags f, also a lane that holds no
// packet: where no lane has, which 16 words tell, a node need not look at each.
func (v *Vector) AnyFlag(f Flags) bool {
	var all uint64
	for _, w := range (*[Size / 4]uint64)(unsafe.Pointer(&v.Flags)) {
		all |= w
	}
	return all&(uint64(f)*0x0001_0001_0001_0001) != 0
}

// Octets answers the bytes of lanes 0 … n−1, the sum of their Total, n from 0 to Size. It
// adds two lanes at a time, in two sums: one after the other each would wait for the one
// before. No sum of 32 packets needs more than 32 bits.
func (v *Vector) Octets(n int) uint64 {
	n = min(n, Size)
	var a, b uint64
	i := 0
	for ; i+8 <= n; i += 8 {
		p := (*[4]uint64)(unsafe.Pointer(&v.Total[i&(Size-8)]))
		a += p[0] + p[2]
		b += p[1] + p[3]
	}
	sum := a&0xffffffff + a>>32 + b&0xffffffff + b>>32
	for ; i < n; i++ {
		sum += uint64(v.Total[i&63])
	}
	return sum
}

// OneService tells whether lanes 0 … n−1 have one value of VIP, n from 0 to Size.
func (v *Vector) OneService(n int) bool {
	n = min(n, Size)
	first := uint64(v.VIP[0]) * 0x0000_0001_0000_0001
	others := uint64(0)
	for _, w := range (*[Size / 2]uint64)(unsafe.Pointer(&v.VIP))[:n/2] {
		others |= w ^ first
	}
	return others == 0 && v.VIP[max(n-1, 0)] == v.VIP[0]
}

// Push makes n bytes of room in front of lane i and answers the lane's bytes,
// new room included. The room is there by the Headroom that kinds declare.
func (v *Vector) Push(i int, n uint32) []byte {
	i &= 63
	v.Start[i] -= n
	v.Len[i] += n
	v.Total[i] += n
	return v.Bytes(i)
}
