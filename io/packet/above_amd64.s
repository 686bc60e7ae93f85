//go:build !purego

#include "textflag.h"

// EIGHT puts a bit for each of eight values from byte at on that is not above the limit
// into the lowest bits of r.
#define EIGHT(at, r) \
	VMOVDQU  at(AX), Y1  \
	VPMINUD  Y0, Y1, Y2  \
	VPCMPEQD Y1, Y2, Y2  \
	VMOVMSKPS Y2, r

// func aboveLanes(column *[Size]uint32, limit uint32) Lanes
TEXT ·aboveLanes(SB), NOSPLIT, $0-24
	MOVQ column+0(FP), AX
	MOVL limit+8(FP), CX
	VMOVD CX, X0
	VPBROADCASTD X0, Y0
	EIGHT(0, R8)
	EIGHT(32, R9)
	EIGHT(64, R10)
	EIGHT(96, R11)
	EIGHT(128, R12)
	EIGHT(160, R13)
	EIGHT(192, CX)
	EIGHT(224, DX)
	SHLQ $8, R9
	SHLQ $16, R10
	SHLQ $24, R11
	SHLQ $32, R12
	SHLQ $40, R13
	SHLQ $48, CX
	SHLQ $56, DX
	ORQ  R8, R9
	ORQ  R10, R11
	ORQ  R12, R13
	ORQ  CX, DX
	ORQ  R9, R11
	ORQ  R13, DX
	ORQ  R11, DX
	NOTQ DX
	VZEROUPPER
	MOVQ DX, ret+16(FP)
	RET
