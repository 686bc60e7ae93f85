//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// func selectLanes(v *packet.Vector, in packet.Lanes, s *state.Snapshot) (chosen packet.Lanes)
//
// First the cells of all lanes are asked for, then they are read: where tables have left the
// fast caches, more are on their way at once than by chunks, and waited for no longer.
//
// SI vector, DI snapshot, R8 lanes not yet looked at, R11 lanes with a cell, R13 selectK, R14
// chosen, CX lane; R9 and R10 are services and pools first, then infos and words.
TEXT ·selectLanes(SB), NOSPLIT, $512-32
	MOVQ v+0(FP), SI
	MOVQ in+8(FP), R8
	MOVQ s+16(FP), DI
	MOVQ $const_selectK, R13
	XORL R14, R14
	MOVQ R8, R11
	MOVQ const_services(DI), R9
	MOVQ const_pools(DI), R10

ask:
	TESTQ R8, R8
	JEQ  asked
	TZCNTQ R8, CX
	BLSRQ R8, R8
	MOVL const_vectorVIP(SI)(CX*4), AX
	CMPQ AX, (const_services+8)(DI)
	JAE  other
	IMUL3Q $const_serviceSize, AX, AX
	CMPB const_serviceAffinity(R9)(AX*1), $0
	JNE  other
	MOVL const_servicePool(R9)(AX*1), AX
	CMPQ AX, (const_pools+8)(DI)
	JAE  other
	IMUL3Q $const_poolSize, AX, AX
	ADDQ R10, AX

	// The cell: Reduce(Mix(hash ^ seed, selectK), cells).
	MOVQ const_vectorHash(SI)(CX*8), DX
	XORQ const_poolSeed(AX), DX
	MULXQ R13, BX, DX
	XORQ BX, DX
	SHRQ $32, DX
	MOVQ (const_poolTable+8)(AX), BX
	TESTQ BX, BX
	JEQ  other
	IMULQ BX, DX
	SHRQ $32, DX
	MOVQ const_poolTable(AX), BX
	LEAQ (BX)(DX*2), BX
	PREFETCHT0 (BX)
	MOVQ BX, cells-512(SP)(CX*8)
	JMP  ask

asked:
	MOVQ const_infos(DI), R9
	MOVQ const_words(DI), R10

take:
	TESTQ R11, R11
	JEQ  taken
	TZCNTQ R11, CX
	BLSRQ R11, R11
	MOVQ cells-512(SP)(CX*8), BX
	MOVL const_vectorVIP(SI)(CX*4), AX
	MOVWLZX (BX), BX
	CMPQ AX, (const_infos+8)(DI)
	JAE  take
	LEAQ (AX)(AX*2), AX
	MOVL const_infoBase(R9)(AX*8), AX
	TESTL AX, AX
	JEQ  take
	ADDQ BX, AX
	CMPQ AX, (const_words+8)(DI)
	JAE  take
	MOVL (R10)(AX*4), AX          // backend and status, which is 0 for up
	TESTL $3, AX
	JNE  take
	SHRL $2, AX
	MOVL AX, const_vectorBackend(SI)(CX*4)
	MOVL BX, const_vectorSlot(SI)(CX*4)
	ORW  $const_isChosen, const_vectorFlags(SI)(CX*2)
	BTSQ CX, R14
	JMP  take

taken:
	MOVQ R14, chosen+24(FP)
	RET

other:
	BTRQ CX, R11
	JMP  ask
