//go:build !purego

#include "textflag.h"

// SIXTEEN adds to DX the bits of sixteen lanes, from lane at on, whose value is above the limit,
// if one of them is asked for. Signed numbers are compared: X14 makes unsigned ones such.
#define SIXTEEN(at, skip) \
	TESTQ $0xffff, CX         \
	JEQ   skip                \
	MOVOU (4*at)(AX), X1      \
	MOVOU (4*at+16)(AX), X2   \
	MOVOU (4*at+32)(AX), X3   \
	MOVOU (4*at+48)(AX), X4   \
	PXOR  X14, X1             \
	PXOR  X14, X2             \
	PXOR  X14, X3             \
	PXOR  X14, X4             \
	PCMPGTL X0, X1            \
	PCMPGTL X0, X2            \
	PCMPGTL X0, X3            \
	PCMPGTL X0, X4            \
	PACKSSLW X2, X1           \
	PACKSSLW X4, X3           \
	PACKSSWB X3, X1           \
	PMOVMSKB X1, R8           \
	SHLQ  $at, R8             \
	ORQ   R8, DX

// func Above(column *[Size]uint32, limit uint32, in Lanes) (l Lanes)
//
// With SSE2, which all processors of the architecture have.
TEXT ·Above(SB), NOSPLIT, $0-32
	MOVQ column+0(FP), AX
	MOVL limit+8(FP), R9
	MOVQ in+16(FP), CX
	MOVL $0x80000000, R10
	XORL R10, R9
	MOVL R9, X0
	MOVL R10, X14
	PSHUFL $0, X0, X0
	PSHUFL $0, X14, X14
	XORL DX, DX
	SIXTEEN(0, from16)
from16:
	SHRQ $16, CX
	SIXTEEN(16, from32)
from32:
	SHRQ $16, CX
	SIXTEEN(32, from48)
from48:
	SHRQ $16, CX
	SIXTEEN(48, done)
done:
	ANDQ in+16(FP), DX
	MOVQ DX, l+24(FP)
	RET
