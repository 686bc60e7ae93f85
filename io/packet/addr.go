package packet

import (
	"encoding/binary"
	"net/netip"
)

// Addr is an IPv4 or IPv6 address as two big-endian words, so that it is compared
// and hashed without a loop. An IPv4 address is its IPv4-mapped form
// (RFC 4291 §2.5.5.2): Hi is 0 and Lo is 0x0000ffff_aabbccdd.
type Addr struct{ Hi, Lo uint64 }

const v4mapped = 0xffff << 32

// Addr4 makes the address of 4 bytes in network order, read as a big-endian word.
func Addr4(a uint32) Addr { return Addr{Lo: v4mapped | uint64(a)} }

// Addr6 makes the address of the 16 bytes at b.
func Addr6(b []byte) Addr {
	_ = b[15]
	return Addr{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}
}

// AddrOf converts a; the zone is left out.
func AddrOf(a netip.Addr) Addr {
	b := a.As16()
	return Addr6(b[:])
}

// Is4 tells whether a is an IPv4 address.
func (a Addr) Is4() bool { return a.Hi == 0 && a.Lo>>32 == 0xffff }

// V4 answers the IPv4 address as a big-endian word; its value is only
// meaningful when Is4.
func (a Addr) V4() uint32 { return uint32(a.Lo) }

// Netip converts a for printing and for interfaces outside the packet path.
func (a Addr) Netip() netip.Addr {
	var b [16]byte
	a.Put16(b[:])
	return netip.AddrFrom16(b).Unmap()
}

// Put16 writes the 16 bytes of a in network order.
func (a Addr) Put16(b []byte) {
	_ = b[15]
	binary.BigEndian.PutUint64(b, a.Hi)
	binary.BigEndian.PutUint64(b[8:], a.Lo)
}

// String prints the address in its usual form.
func (a Addr) String() string { return a.Netip().String() }
