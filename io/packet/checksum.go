package packet

import (
	"encoding/binary"
	"math/bits"
)

// The Internet checksum (RFC 1071) is the complement of the one's complement sum
// of all 16-bit words. Partial sums are kept as uint32 here, not complemented, so
// that up to 65537 of them can be added before Fold.

// Sum answers the one's complement sum of b, folded: 0 … 0xffff. An odd byte at the
// end counts as the upper half of a word. What begins at an odd offset of the
// whole enters its sum with the two bytes exchanged (RFC 1071 §2).
func Sum(b []byte) uint32 {
	// The sum does not mind the order of bytes but for its own (RFC 1071 §2), so words
	// are read as they lie and the result is turned.
	// Two sums: an addition with carry waits for the one before.
	var s, t, c uint64
	le := binary.LittleEndian
	for len(b) >= 64 {
		w := (*[64]byte)(b)
		s, c = bits.Add64(s, le.Uint64(w[0:]), 0)
		s, c = bits.Add64(s, le.Uint64(w[8:]), c)
		s, c = bits.Add64(s, le.Uint64(w[16:]), c)
		s, c = bits.Add64(s, le.Uint64(w[24:]), c)
		s += c
		t, c = bits.Add64(t, le.Uint64(w[32:]), 0)
		t, c = bits.Add64(t, le.Uint64(w[40:]), c)
		t, c = bits.Add64(t, le.Uint64(w[48:]), c)
		t, c = bits.Add64(t, le.Uint64(w[56:]), c)
		t += c
		b = b[64:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, le.Uint64(b), 0)
		s += c
		b = b[8:]
	}
	var last uint64
	if len(b) >= 4 {
		last = uint64(le.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		last += uint64(le.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		last += uint64(b[0])
	}
	return uint32(bits.ReverseBytes16(fold64(s, last, t)))
}

// Fold folds a partial sum to 16 bits.
func Fold(s uint32) uint16 { return fold32(s) }

// Checksum is the Internet checksum of b, over the checksum field as it stands:
// 0 when a right one is in b already.
func Checksum(b []byte) uint16 { return ^uint16(Sum(b)) }

// PseudoSum is the partial sum of the pseudo-header of TCP, UDP and ICMPv6
// (RFC 9293 §3.1, RFC 8200 §8.1); n is the length of what follows the IP headers.
func PseudoSum(src, dst Addr, proto uint8, n uint32) uint32 {
	// The 0xffff that a mapped IPv4 address brings along is a zero of this sum.
	s := src.Hi>>32 + src.Hi&0xffffffff + src.Lo>>32 + src.Lo&0xffffffff +
		dst.Hi>>32 + dst.Hi&0xffffffff + dst.Lo>>32 + dst.Lo&0xffffffff + uint64(proto) + uint64(n)
	s = s>>32 + s&0xffffffff
	return uint32(fold32(uint32(s>>32 + s&0xffffffff)))
}

// Update16 answers checksum c after one 16-bit word it covers changed from
// old to new (RFC 1624 §3, equation 3). A word at an odd offset is given with its
// bytes exchanged.
func Update16(c, old, new uint16) uint16 {
	return ^fold32(uint32(^c) + uint32(^old) + uint32(new))
}

// Update32 is Update16 for two adjacent words.
func Update32(c uint16, old, new uint32) uint16 {
	return ^fold32(uint32(^c) + uint32(uint16(^(old >> 16))) + uint32(uint16(^old)) + new>>16 + new&0xffff)
}

// AddSum answers checksum c after words of the partial sum s were added to what
// it covers.
func AddSum(c uint16, s uint32) uint16 { return ^fold32(uint32(^c) + s&0xffff + s>>16) }

// fold32 adds both halves of s with the carry: the upper half of the sum of s and s turned
// by 16 bits.
func fold32(s uint32) uint16 { return uint16((s + bits.RotateLeft32(s, 16)) >> 16) }

// fold64 is the folded one's complement sum of three words.
func fold64(a, b, c uint64) uint16 {
	s := add64(a, b, c)
	t, up := bits.Add32(uint32(s), uint32(s>>32), 0)
	return fold32(t + up)
}

// IPv4OK tells whether an IPv4 header without options, given as its three words, has a
// right checksum (and is not all zero): the sum of its 16-bit words is then a multiple of 0xffff, and no
// folding is needed to see that, for 2¹⁶ leaves 1 when divided by 0xffff.
func IPv4OK(a, b uint64, c uint32) bool { return add64(a, b, uint64(c))%0xffff == 0 }

func add64(a, b, c uint64) uint64 {
	s, carry := bits.Add64(a, b, 0)
	s, carry = bits.Add64(s, c, carry)
	s, _ = bits.Add64(s, 0, carry)
	return s
}
