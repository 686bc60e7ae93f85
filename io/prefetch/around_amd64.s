//go:build !purego

#include "textflag.h"

// func Around(base unsafe.Pointer, off []uint32)
TEXT ·Around(SB), NOSPLIT, $0-32
	MOVQ base+0(FP), DI
	MOVQ off_base+8(FP), SI
	MOVQ off_len+16(FP), CX
	TESTQ CX, CX
	JZ done
loop:
	MOVL (SI), AX
	PREFETCHT0 (DI)(AX*1)
	PREFETCHT0 -64(DI)(AX*1)
	ADDQ $4, SI
	DECQ CX
	JNZ loop
done:
	RET
