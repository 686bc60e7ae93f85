//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// WHERE finds lane R8+n: AX place of the packet, BX its template.
#define WHERE(n) \
	MOVL (const_vectorStart+4*n)(SI)(R8*4), AX    \
	MOVL (const_vectorBackend+4*n)(SI)(R8*4), BX  \
	SHLQ $6, BX                                   \
	ADDQ R11, BX

// LOOK leaves the group unless lane R8+n goes to a backend over IPv4, and gathers in R9 the
// first bytes of its MAC addresses. It asks for the line that will be written: where frames
// begin at multiples of 2 KB, what parse has asked for does not all stay in the first cache.
#define LOOK(n) \
	WHERE(n)                 \
	PREFETCHT0 (0-const_over4)(DI)(AX*1) \
	CMPB template_ip(BX), $4 \
	JNE  next                \
	ORL  (DI)(AX*1), R9      \
	ORL  6(DI)(AX*1), R9

// LANE writes the outer headers of lane R8+n: to, from and EtherType; version, ToS, length
// and DF; TTL and protocol; checksum and source; destination and GRE. Where packets begin with
// a line, as AF_XDP leaves them, no store is in two of them. CX, DX, R9 scratch.
#define LANE(n) \
	WHERE(n)                                \
	MOVQ (DI)(AX*1), CX                     \
	MOVQ 6(DI)(AX*1), DX                    \
	ANDQ R12, CX                            \
	ORQ  R13, CX                            \
	MOVQ DX, (0-const_over4)(DI)(AX*1)      \
	MOVQ CX, (6-const_over4)(DI)(AX*1)      \
	MOVBLZX (const_etherLen+1)(DI)(AX*1), CX \
	MOVL total-32+4*n(SP), DX               \
	ANDL R10, CX                            \
	SHLL $8, CX                             \
	MOVL template_sum(BX), R9               \
	ADDL CX, R9                             \
	ADDL DX, R9                             \
	SHLQ $16, DX                            \
	ORQ  R15, CX                            \
	ORQ  DX, CX                             \
	MOVQ CX, (14-const_over4)(DI)(AX*1)     \
	MOVL R9, DX                             \
	ROLL $16, DX                            \
	ADDL R9, DX                             \
	NOTL DX                                 \
	ANDL $0xffff0000, DX                    \
	ORQ  template_w(BX), DX                 \
	MOVW DX, (22-const_over4)(DI)(AX*1)     \
	SHRQ $16, DX                            \
	MOVQ DX, (24-const_over4)(DI)(AX*1)     \
	MOVQ (template_w+8)(BX), CX             \
	MOVQ CX, (30-const_over4)(DI)(AX*1)

// Bytes 1 and 0 of each dword, as a number.
DATA turned<>+0(SB)/8, $0x8080040580800001
DATA turned<>+8(SB)/8, $0x80800c0d80800809
DATA turned<>+16(SB)/8, $0x8080040580800001
DATA turned<>+24(SB)/8, $0x80800c0d80800809
GLOBL turned<>(SB), RODATA|NOPTR, $32

// Numbers that stand in all dwords or words, one behind the other.
#define NUMBERS(at, x) \
	DATA numbers<>+(at+0)(SB)/4, $x  \
	DATA numbers<>+(at+4)(SB)/4, $x  \
	DATA numbers<>+(at+8)(SB)/4, $x  \
	DATA numbers<>+(at+12)(SB)/4, $x \
	DATA numbers<>+(at+16)(SB)/4, $x \
	DATA numbers<>+(at+20)(SB)/4, $x \
	DATA numbers<>+(at+24)(SB)/4, $x \
	DATA numbers<>+(at+28)(SB)/4, $x
NUMBERS(0, const_over4)
NUMBERS(32, const_etherLen)
NUMBERS(64, const_etherLen*0x00010001)
NUMBERS(96, const_around)
NUMBERS(128, const_v6*0x00010001)
NUMBERS(160, const_notInner*0x00010001)
NUMBERS(192, const_df*0x00010001)
GLOBL numbers<>(SB), RODATA|NOPTR, $224
#define OVER numbers<>+0(SB)
#define ETHER numbers<>+32(SB)
#define L3 numbers<>+64(SB)
#define AROUND numbers<>+96(SB)
#define V6 numbers<>+128(SB)
#define NOTINNER numbers<>+160(SB)
#define DF numbers<>+192(SB)

// func gre4Lanes(v *packet.Vector, in packet.Lanes, ts []template, tosMask uint64) (done packet.Lanes)
//
// SI vector, DI memory, R8 lane, R10 tosMask, R11 templates, R12 the bits of a MAC address,
// R13 EtherType, R14 done, R15 the first word of an IPv4 header. Y8 number of templates, Y9
// last place behind which there is room, less what is before it.
TEXT ·gre4Lanes(SB), NOSPLIT, $32-56
	MOVQ v+0(FP), SI
	MOVQ const_vectorMem(SI), DI
	MOVQ (const_vectorMem+8)(SI), AX
	SUBQ $(2*const_around), AX
	MOVL $(0xffffffff-const_around), CX
	CMPQ AX, CX
	CMOVQGT CX, AX
	VMOVD AX, X9
	VPBROADCASTD X9, Y9
	MOVQ ts_base+16(FP), R11
	MOVQ ts_len+24(FP), AX
	VMOVD AX, X8
	VPBROADCASTD X8, Y8
	MOVQ tosMask+40(FP), R10
	MOVQ $0xffffffffffff, R12
	MOVQ $const_ether4, R13
	MOVQ $const_first4, R15
	XORL R14, R14
	XORL R8, R8

loop:
	MOVQ in+8(FP), AX
	MOVL R8, CX
	SHRQ CX, AX
	CMPB AX, $0xff
	JNE  next

	// Untagged packets of one frame with IPv4 in it, room on both sides of their first byte,
	// to backends that there are. What of that does not hold leaves bits in Y2.
	VMOVDQU  const_vectorChain(SI)(R8*4), Y0
	VPCMPEQD Y1, Y1, Y1
	VPXOR    Y1, Y0, Y2
	VMOVDQU  const_vectorBackend(SI)(R8*4), Y0
	VPMAXUD  Y8, Y0, Y1
	VPCMPEQD Y0, Y1, Y1
	VPOR     Y1, Y2, Y2
	VMOVDQU  const_vectorStart(SI)(R8*4), Y0
	VPSUBD   AROUND, Y0, Y0
	VPMINUD  Y9, Y0, Y1
	VPXOR    Y0, Y1, Y1
	VPOR     Y1, Y2, Y2
	VMOVDQU  const_vectorFlags(SI)(R8*2), X3
	VPAND    V6, X3, X0
	VMOVDQU  const_vectorL3(SI)(R8*2), X1
	VPXOR    L3, X1, X1
	VPOR     X1, X0, X0
	VPOR     Y0, Y2, Y2
	VPTEST   Y2, Y2
	JNE  next
	XORL R9, R9
	LOOK(0)
	LOOK(1)
	LOOK(2)
	LOOK(3)
	LOOK(4)
	LOOK(5)
	LOOK(6)
	LOOK(7)
	TESTL $1, R9
	JNE  next

	// Y4 is the new IP length.
	VMOVDQU const_vectorIPLen(SI)(R8*4), Y4
	VPADDD  OVER, Y4, Y4
	VPSHUFB turned<>(SB), Y4, Y0
	VMOVDQU Y0, total-32(SP)
	LANE(0)
	LANE(1)
	LANE(2)
	LANE(3)
	LANE(4)
	LANE(5)
	LANE(6)
	LANE(7)

	VMOVDQU Y4, const_vectorIPLen(SI)(R8*4)
	VPADDD  ETHER, Y4, Y4         // padding stays behind
	VMOVDQU Y4, const_vectorLen(SI)(R8*4)
	VMOVDQU Y4, const_vectorTotal(SI)(R8*4)
	VMOVDQU const_vectorStart(SI)(R8*4), Y0
	VPSUBD  OVER, Y0, Y0
	VMOVDQU Y0, const_vectorStart(SI)(R8*4)
	VPAND   NOTINNER, X3, X3
	VPOR    DF, X3, X3
	VMOVDQU X3, const_vectorFlags(SI)(R8*2)
	MOVL $0xff, AX
	MOVL R8, CX
	SHLQ CX, AX
	ORQ  AX, R14

next:
	ADDL $8, R8
	CMPL R8, $64
	JLT  loop
	VZEROUPPER
	MOVQ R14, done+48(FP)
	RET
