//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// The options of usual: what they are, apart from their values.
DATA usual<>+0(SB)/8, $0x00ffffff0000ffff  // kept of the first eight bytes, of Windows
DATA usual<>+8(SB)/8, $0x0003030100000402  // and what they are
DATA usual<>+16(SB)/8, $0xffffffff0000ffff // of Linux
DATA usual<>+24(SB)/8, $0x0a08020400000402
GLOBL usual<>(SB), RODATA|NOPTR, $32

// func clampLanes(v *packet.Vector, l packet.Lanes, mtus []int32) (rest packet.Lanes, clamped uint64)
//
// SI vector, DI memory, R8 lanes to do, R9 mtus, R10 their number, R14 rest, R15 clamped. In
// the loop CX is the lane, AX what limits it, BX its TCP header, DX bytes from there on, R11
// the length of the header, then the first option; R12 and R13 scratch.
TEXT ·clampLanes(SB), NOSPLIT, $0-56
	MOVQ v+0(FP), SI
	MOVQ l+8(FP), R8
	MOVQ mtus_base+16(FP), R9
	MOVQ mtus_len+24(FP), R10
	MOVQ const_vectorMem(SI), DI
	XORL R14, R14
	XORL R15, R15

loop:
	TESTQ R8, R8
	JEQ  done
	TZCNTQ R8, CX
	BLSRQ R8, R8
	MOVL const_vectorBackend(SI)(CX*4), AX
	CMPQ AX, R10
	JAE  other
	MOVL (R9)(AX*4), AX
	TESTW $const_unusual, const_vectorFlags(SI)(CX*2)
	JNE  other
	CMPW const_vectorL4(SI)(CX*2), $const_usualL4
	JNE  other
	CMPB const_vectorProto(SI)(CX*1), $const_tcp
	JNE  other
	MOVL const_vectorLen(SI)(CX*4), DX
	SUBL $const_usualL4, DX
	CMPL DX, $(const_tcpLen+const_optionLen)
	JLT  other
	MOVL const_vectorStart(SI)(CX*4), BX
	LEAQ const_usualL4(DI)(BX*1), BX
	MOVBLZX 12(BX), R11
	ANDL $0xf0, R11
	SHRL $2, R11
	CMPL R11, DX
	JGT  other
	CMPL R11, $40
	JEQ  linux
	CMPL R11, $32
	JEQ  windows
	CMPL R11, $(const_tcpLen+const_optionLen)
	JNE  other
	MOVL const_tcpLen(BX), R11
	CMPW R11, $const_mssFirst
	JNE  other

usual:
	// R11, in its lower half: kind, length, and the value as it stands there.
	SUBL $const_headers, AX
	JLT  other                   // no backend, or none that takes a segment
	SHRL $16, R11
	MOVL R11, R12
	ROLW $8, R12
	CMPL R12, AX
	JLE  loop

	// Update16, with the bytes of all words exchanged, as they stand in memory.
	ROLW $8, AX
	MOVWLZX 16(BX), R12
	MOVW AX, (const_tcpLen+2)(BX)
	XORL $0xffff, R12
	XORL $0xffff, R11
	ADDL R11, R12
	ADDL AX, R12
	MOVL R12, R13
	SHRL $16, R13
	MOVWLZX R12, R12
	ADDL R13, R12
	MOVL R12, R13
	SHRL $16, R13
	ADDL R13, R12
	NOTL R12
	MOVW R12, 16(BX)
	INCQ R15
	JMP  loop

done:
	MOVQ R14, rest+40(FP)
	MOVQ R15, clamped+48(FP)
	RET

linux:
	MOVQ const_tcpLen(BX), R11
	MOVQ R11, R12
	ANDQ usual<>+16(SB), R12
	CMPQ R12, usual<>+24(SB)
	JNE  other
	MOVL 36(BX), R12
	ANDL $0x00ffffff, R12
	CMPL R12, $0x00030301
	JNE  other
	JMP  usual

windows:
	MOVQ const_tcpLen(BX), R11
	MOVQ R11, R12
	ANDQ usual<>+0(SB), R12
	CMPQ R12, usual<>+8(SB)
	JNE  other
	CMPL 28(BX), $0x02040101
	JNE  other
	JMP  usual

other:
	BTSQ CX, R14
	JMP  loop
