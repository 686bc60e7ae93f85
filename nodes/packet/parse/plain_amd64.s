//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// Each constant stands in all eight lanes, or in both halves of a shuffle.
#define LANES(name, x) \
	DATA name<>+0(SB)/4, $x  \
	DATA name<>+4(SB)/4, $x  \
	DATA name<>+8(SB)/4, $x  \
	DATA name<>+12(SB)/4, $x \
	DATA name<>+16(SB)/4, $x \
	DATA name<>+20(SB)/4, $x \
	DATA name<>+24(SB)/4, $x \
	DATA name<>+28(SB)/4, $x \
	GLOBL name<>(SB), RODATA|NOPTR, $32

#define WORDS(name, x) \
	DATA name<>+0(SB)/8, $x  \
	DATA name<>+8(SB)/8, $x  \
	DATA name<>+16(SB)/8, $x \
	DATA name<>+24(SB)/8, $x \
	GLOBL name<>(SB), RODATA|NOPTR, $32

#define HALVES(name, x, y) \
	DATA name<>+0(SB)/8, $x  \
	DATA name<>+8(SB)/8, $y  \
	DATA name<>+16(SB)/8, $x \
	DATA name<>+24(SB)/8, $y \
	GLOBL name<>(SB), RODATA|NOPTR, $32

LANES(shortest, const_shortest-1)
LANES(octet, 0xff)
LANES(octet1, 0xff00)
LANES(low16, 0xffff)
LANES(sign16, 0x80008000)
LANES(one16, 0x00010001)
LANES(signs, 10*0x8000)
LANES(ether4, 0x0008)
LANES(version, 0x45)
LANES(fragBits, 0xff3f0000)
LANES(dfBit, 0x00400000)
LANES(etherLen, const_etherLen)
LANES(ip4Len, const_ip4Len)
LANES(udpLen, const_udpLen)
LANES(tcpMore, const_tcpLen-const_udpLen)
LANES(offsetBits, 0x3c)
LANES(tcp, const_tcp)
LANES(udp, const_udp)
LANES(mapped, 0xffff)
LANES(l3, const_etherLen*0x00010001)
LANES(l4, (const_etherLen+const_ip4Len)*0x00010001)
WORDS(k0, const_k0)
WORDS(k1, const_k1)
WORDS(k3, const_k3)

// Bytes 3 and 2, or 1 and 0, of each lane as a number; all four turned around.
HALVES(upperBE, 0x8080060780800203, 0x80800e0f80800a0b)
HALVES(lowerBE, 0x8080040580800001, 0x80800c0d80800809)
HALVES(allBE, 0x0405060700010203, 0x0c0d0e0f08090a0b)
// Ports: the first of four lanes, then the second.
HALVES(portsBE, 0x0c0d080904050001, 0x0e0f0a0b06070203)
// Of four lanes, byte 0, then byte 1, then bytes 2 and 3.
HALVES(split, 0x0d0905010c080400, 0x0f0e0b0a07060302)
// Byte 0 of eight lanes, then byte 1, then bytes 2 and 3.
DATA join<>+0(SB)/4, $0
DATA join<>+4(SB)/4, $4
DATA join<>+8(SB)/4, $1
DATA join<>+12(SB)/4, $5
DATA join<>+16(SB)/4, $2
DATA join<>+20(SB)/4, $3
DATA join<>+24(SB)/4, $6
DATA join<>+28(SB)/4, $7
GLOBL join<>(SB), RODATA|NOPTR, $32

// HASH writes lane n's flow hash, whose three words stand at place at.
#define HASH(n, at) \
	MOVQ  ports-192+at(SP), DX      \
	MULXQ src-128+at(SP), AX, BX    \
	XORQ  BX, AX                    \
	XORQ  R11, AX                   \
	MOVQ  dst-64+at(SP), DX         \
	MULXQ R10, CX, R13              \
	XORQ  R13, CX                   \
	XORQ  R12, CX                   \
	MOVQ  AX, DX                    \
	MULXQ CX, AX, BX                \
	XORQ  BX, AX                    \
	MOVQ  AX, (const_vectorHash+8*n)(SI)(R8*8)

// PAIR writes two lanes' addresses, words at and at+1 of y, from lane n of a column on.
#define PAIR(pick, y, column, n) \
	VPERMQ   $pick, y, Y7              \
	VPBLENDD $0xcc, Y7, Y14, Y7        \
	VMOVDQU  Y7, (column+16*n)(SI)(R9*1)

// ASK prefetches the header of lane R9+n, and the line before it.
#define ASK(n) \
	MOVL (const_vectorStart+4*n)(SI)(R9*4), AX \
	PREFETCHT0 (DI)(AX*1)                      \
	PREFETCHT0 -64(DI)(AX*1)

// COLUMNS puts the four dwords from byte at on of all eight packets into a, b, c and d, whose
// lower halves are xa … xd, a dword of all to a register; e … h are scratch.
#define COLUMNS(at, xa, xb, xc, xd, a, b, c, d, e, f, g, h) \
	VMOVDQU at(DI)(AX*1), xa \
	VMOVDQU at(DI)(BX*1), xb \
	VMOVDQU at(DI)(CX*1), xc \
	VMOVDQU at(DI)(DX*1), xd \
	VINSERTI128 $1, at(DI)(R10*1), a, a \
	VINSERTI128 $1, at(DI)(R11*1), b, b \
	VINSERTI128 $1, at(DI)(R12*1), c, c \
	VINSERTI128 $1, at(DI)(R13*1), d, d \
	VPUNPCKLDQ b, a, e \
	VPUNPCKHDQ b, a, f \
	VPUNPCKLDQ d, c, g \
	VPUNPCKHDQ d, c, h \
	VPUNPCKLQDQ g, e, a \
	VPUNPCKHQDQ g, e, b \
	VPUNPCKLQDQ h, f, c \
	VPUNPCKHQDQ h, f, d

// func plainLanes(v *packet.Vector, n int) (others packet.Lanes)
//
// Eight lanes at a time: dword k of their headers, from the two bytes before the EtherType
// on, goes to one register for all. What a test finds wrong leaves bits in Y15.
//
// SI vector, DI memory, R8 lane, R14 others, Y14 zero. In the loop AX … DX and R10 … R13
// are the places of the eight packets, then scratch of the hashes; R9 is 16 times the lane.
TEXT ·plainLanes(SB), NOSPLIT, $192-24
	MOVQ v+0(FP), SI
	MOVQ const_vectorMem(SI), DI
	XORL R8, R8
	XORL R14, R14
	VPXOR Y14, Y14, Y14

loop:
	LEAQ const_ahead(R8), R9
	CMPQ R9, n+8(FP)
	JGE  asked
	ASK(0)
	ASK(1)
	ASK(2)
	ASK(3)
	ASK(4)
	ASK(5)
	ASK(6)
	ASK(7)

asked:
	// What is the same for most packets.
	VMOVDQU l3<>(SB), X0
	VMOVDQU X0, const_vectorL3(SI)(R8*2)
	VMOVDQU l4<>(SB), X0
	VMOVDQU X0, const_vectorL4(SI)(R8*2)
	VMOVDQU Y14, const_vectorVIP(SI)(R8*4)
	VMOVDQU Y14, const_vectorBackend(SI)(R8*4)

	// Nothing is read before all eight are known to be long enough for all of it.
	VMOVDQU  const_vectorLen(SI)(R8*4), Y0
	VPCMPGTD shortest<>(SB), Y0, Y0
	VMOVMSKPS Y0, AX
	CMPL AX, $0xff
	JNE  short

	MOVL const_vectorStart(SI)(R8*4), AX
	MOVL (const_vectorStart+4)(SI)(R8*4), BX
	MOVL (const_vectorStart+8)(SI)(R8*4), CX
	MOVL (const_vectorStart+12)(SI)(R8*4), DX
	MOVL (const_vectorStart+16)(SI)(R8*4), R10
	MOVL (const_vectorStart+20)(SI)(R8*4), R11
	MOVL (const_vectorStart+24)(SI)(R8*4), R12
	MOVL (const_vectorStart+28)(SI)(R8*4), R13

	// Bytes 10 … 25: Y0 EtherType, Y1 version to length, Y2 ID and fragment, Y3 TTL to checksum.
	// Bytes 26 … 41: Y4 source, Y5 destination, Y6 ports, Y7 UDP length.
	COLUMNS(10, X0, X1, X2, X3, Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7)
	COLUMNS(26, X4, X5, X6, X7, Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11)

	// Bytes 46 … 49: Y8 TCP offset and flags.
	VMOVD 46(DI)(AX*1), X8
	VMOVD 46(DI)(R10*1), X9
	VPINSRD $1, 46(DI)(BX*1), X8, X8
	VPINSRD $1, 46(DI)(R11*1), X9, X9
	VPINSRD $2, 46(DI)(CX*1), X8, X8
	VPINSRD $2, 46(DI)(R12*1), X9, X9
	VPINSRD $3, 46(DI)(DX*1), X8, X8
	VPINSRD $3, 46(DI)(R13*1), X9, X9
	VINSERTI128 $1, X9, Y8, Y8

	// EtherType, version and header length, no fragment.
	VPSRLD $16, Y0, Y0
	VPXOR  ether4<>(SB), Y0, Y15
	VPAND  octet<>(SB), Y1, Y9
	VPXOR  version<>(SB), Y9, Y9
	VPOR   Y9, Y15, Y15
	VPAND  fragBits<>(SB), Y2, Y9
	VPOR   Y9, Y15, Y15

	// The header's checksum: the sum of ten words, which are multiplied by one as signed
	// numbers, is folded once and must be 0xffff.
	VMOVDQU sign16<>(SB), Y12
	VMOVDQU one16<>(SB), Y13
	VPXOR Y12, Y1, Y9
	VPXOR Y12, Y2, Y10
	VPXOR Y12, Y3, Y11
	VPMADDWD Y13, Y9, Y9
	VPMADDWD Y13, Y10, Y10
	VPMADDWD Y13, Y11, Y11
	VPADDD Y10, Y9, Y9
	VPXOR Y12, Y4, Y10
	VPXOR Y12, Y5, Y12
	VPMADDWD Y13, Y10, Y10
	VPMADDWD Y13, Y12, Y12
	VPADDD Y11, Y9, Y9
	VPADDD Y12, Y10, Y10
	VPADDD Y10, Y9, Y9
	VPADDD signs<>(SB), Y9, Y9
	VMOVDQU low16<>(SB), Y13
	VPSRLD $16, Y9, Y10
	VPAND  Y13, Y9, Y9
	VPADDD Y10, Y9, Y9
	VPXOR  Y13, Y9, Y9
	VPOR   Y9, Y15, Y15

	// Y9 is the IP length: it ends in the frame.
	VPSHUFB  upperBE<>(SB), Y1, Y9
	VPADDD   etherLen<>(SB), Y9, Y10
	VPCMPGTD const_vectorLen(SI)(R8*4), Y10, Y10
	VPOR     Y10, Y15, Y15
	VMOVDQU  Y9, const_vectorIPLen(SI)(R8*4)

	// Y10 is the protocol, Y11 TCP, Y12 either.
	VPSRLD $8, Y3, Y10
	VPAND  octet<>(SB), Y10, Y10
	VPCMPEQD tcp<>(SB), Y10, Y11
	VPCMPEQD udp<>(SB), Y10, Y12
	VPOR     Y11, Y12, Y12
	VPCMPEQD Y14, Y12, Y12
	VPOR     Y12, Y15, Y15

	// Y13 is the length of the TCP header or the UDP datagram: its least, and it ends in the packet.
	VPSRLD    $2, Y8, Y13
	VPAND     offsetBits<>(SB), Y13, Y13
	VPSHUFB   lowerBE<>(SB), Y7, Y7
	VPBLENDVB Y11, Y13, Y7, Y13
	VPAND     tcpMore<>(SB), Y11, Y7
	VPADDD    udpLen<>(SB), Y7, Y7
	VPCMPGTD  Y13, Y7, Y7
	VPOR      Y7, Y15, Y15
	VPADDD    ip4Len<>(SB), Y13, Y13
	VPCMPGTD  Y9, Y13, Y13
	VPOR      Y13, Y15, Y15
	VPCMPEQD  Y14, Y15, Y15
	VMOVMSKPS Y15, AX
	XORL $0xff, AX
	MOVL R8, CX
	SHLQ CX, AX
	ORQ  AX, R14

	// Protocol, TCP flags and DF.
	VPAND  dfBit<>(SB), Y2, Y2
	VPSRLD $2, Y2, Y2
	VPAND  octet1<>(SB), Y8, Y8
	VPAND  Y11, Y8, Y8
	VPOR   Y8, Y2, Y2
	VPOR   Y10, Y2, Y2
	VPSHUFB split<>(SB), Y2, Y2
	VMOVDQU join<>(SB), Y13
	VPERMD Y2, Y13, Y2
	VMOVQ  X2, const_vectorProto(SI)(R8*1)
	VPEXTRQ $1, X2, const_vectorTCP(SI)(R8*1)
	VEXTRACTI128 $1, Y2, const_vectorFlags(SI)(R8*2)

	// Ports.
	VPSHUFB portsBE<>(SB), Y6, Y13
	VPERMQ $0xd8, Y13, Y13
	VMOVDQU X13, const_vectorSPort(SI)(R8*2)
	VEXTRACTI128 $1, Y13, const_vectorDPort(SI)(R8*2)

	// The hash's word of ports and protocol, lanes 0, 1, 4, 5 and 2, 3, 6, 7.
	VPSHUFB allBE<>(SB), Y6, Y6
	VPSLLD  $16, Y6, Y0
	VPSRLD  $16, Y6, Y6
	VPOR    Y10, Y0, Y0
	VPUNPCKLDQ Y6, Y0, Y1
	VPUNPCKHDQ Y6, Y0, Y2
	VPXOR   k0<>(SB), Y1, Y1
	VPXOR   k0<>(SB), Y2, Y2
	VMOVDQU Y1, ports-192(SP)
	VMOVDQU Y2, ports-160(SP)

	// Addresses, and the hash's words of them.
	MOVQ R8, R9
	SHLQ $4, R9
	VMOVDQU mapped<>(SB), Y13
	VMOVDQU allBE<>(SB), Y12
	VPSHUFB Y12, Y4, Y4
	VPUNPCKLDQ Y13, Y4, Y0
	VPUNPCKHDQ Y13, Y4, Y1
	PAIR(0x50, Y0, const_vectorSrc, 0)
	PAIR(0x50, Y1, const_vectorSrc, 2)
	PAIR(0xfa, Y0, const_vectorSrc, 4)
	PAIR(0xfa, Y1, const_vectorSrc, 6)
	VPXOR   k1<>(SB), Y0, Y0
	VPXOR   k1<>(SB), Y1, Y1
	VMOVDQU Y0, src-128(SP)
	VMOVDQU Y1, src-96(SP)
	VPSHUFB Y12, Y5, Y5
	VPUNPCKLDQ Y13, Y5, Y0
	VPUNPCKHDQ Y13, Y5, Y1
	PAIR(0x50, Y0, const_vectorDst, 0)
	PAIR(0x50, Y1, const_vectorDst, 2)
	PAIR(0xfa, Y0, const_vectorDst, 4)
	PAIR(0xfa, Y1, const_vectorDst, 6)
	VPXOR   k3<>(SB), Y0, Y0
	VPXOR   k3<>(SB), Y1, Y1
	VMOVDQU Y0, dst-64(SP)
	VMOVDQU Y1, dst-32(SP)

	MOVQ $const_k2, R10
	MOVQ $const_k4, R11
	MOVQ $const_k5, R12
	HASH(0, 0)
	HASH(1, 8)
	HASH(2, 32)
	HASH(3, 40)
	HASH(4, 16)
	HASH(5, 24)
	HASH(6, 48)
	HASH(7, 56)

next:
	ADDQ $8, R8
	LEAQ 8(R8), R9
	CMPQ R9, n+8(FP)
	JLE  loop
	VZEROUPPER
	MOVQ R14, others+16(FP)
	RET

short:
	MOVL $0xff, AX
	MOVL R8, CX
	SHLQ CX, AX
	ORQ  AX, R14
	JMP  next
