//go:build !purego

#include "textflag.h"

// SIXTEEN puts a bit for each of sixteen values from byte at on that is above the limit into
// the lowest bits of r. Signed numbers are compared: X14 makes unsigned ones such.
#define SIXTEEN(at, r) \
	MOVOU at(AX), X1      \
	MOVOU (at+16)(AX), X2 \
	MOVOU (at+32)(AX), X3 \
	MOVOU (at+48)(AX), X4 \
	PXOR  X14, X1         \
	PXOR  X14, X2         \
	PXOR  X14, X3         \
	PXOR  X14, X4         \
	PCMPGTL X0, X1        \
	PCMPGTL X0, X2        \
	PCMPGTL X0, X3        \
	PCMPGTL X0, X4        \
	PACKSSLW X2, X1       \
	PACKSSLW X4, X3       \
	PACKSSWB X3, X1       \
	PMOVMSKB X1, r

// func Above(column *[Size]uint32, limit uint32) Lanes
//
// With SSE2, which all processors of the architecture have.
TEXT ·Above(SB), NOSPLIT, $0-24
	MOVQ column+0(FP), AX
	MOVL limit+8(FP), CX
	MOVL $0x80000000, DX
	XORL DX, CX
	MOVL CX, X0
	MOVL DX, X14
	PSHUFL $0, X0, X0
	PSHUFL $0, X14, X14
	SIXTEEN(0, R8)
	SIXTEEN(64, R9)
	SIXTEEN(128, R10)
	SIXTEEN(192, R11)
	SHLQ $16, R9
	SHLQ $32, R10
	SHLQ $48, R11
	ORQ  R8, R9
	ORQ  R10, R11
	ORQ  R9, R11
	MOVQ R11, ret+16(FP)
	RET
