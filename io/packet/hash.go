package packet

import "math/bits"

// The keys of the selection hash. They are the first 64-bit words of the
// fractional part of pi and will never change: every node
// of every version must pick the same backend for the same flow.
const (
	HashK0 = 0x243f6a8885a308d3
	HashK1 = 0x13198a2e03707345
	HashK2 = 0xa4093822299f31d1
	HashK3 = 0x082efa98ec4e6c89
	HashK4 = 0x452821e638d01377
	HashK5 = 0xbe5466cf34e90c6d
)

// Mix folds the 128-bit product of a and b to 64 bits. It is the step of the
// selection hash; a zero argument gives zero.
func Mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// FlowHash is the selection hash of a flow: fixed, keyless and independent of the
// architecture. With Mix as above, K0 … K5 the keys above and words read big-endian,
//
//	p = sport<<32 | dport<<16 | proto
//	s = Mix(src.Hi ^ p ^ K0, src.Lo ^ K1)
//	d = Mix(dst.Hi ^ K2, dst.Lo ^ K3)
//	FlowHash = Mix(s ^ K4, d ^ K5)
//
// Every input goes through two multiplications, so that flows that differ in a port
// alone are even in any few bits of it. Ports are 0 for protocols without ports.
// docs/selection.md has test vectors.
func FlowHash(src, dst Addr, sport, dport uint16, proto uint8) uint64 {
	p := uint64(sport)<<32 | uint64(dport)<<16 | uint64(proto)
	s := Mix(src.Hi^p^HashK0, src.Lo^HashK1)
	d := Mix(dst.Hi^HashK2, dst.Lo^HashK3)
	return Mix(s^HashK4, d^HashK5)
}

// AffinityHash is the selection hash of a VIP with source affinity: the client's
// address alone counts. It equals Mix(Mix(src.Hi ^ K0, src.Lo ^ K1) ^ K4, K5).
func AffinityHash(src Addr) uint64 {
	return Mix(Mix(src.Hi^HashK0, src.Lo^HashK1)^HashK4, HashK5)
}

// Reduce maps a hash to 0 … n−1 by multiply-shift, without division. It uses the
// hash's upper half.
func Reduce(h uint64, n uint32) uint32 {
	return uint32((h >> 32) * uint64(n) >> 32)
}
