//go:build !purego

#include "textflag.h"

// func Around(base unsafe.Pointer, off []uint32)
TEXT ·Around(SB), NOSPLIT, $0-32
	MOVD base+0(FP), R3
	MOVD off_base+8(FP), R0
	MOVD off_len+16(FP), R1
	CBZ R1, done
loop:
	MOVWU.P 4(R0), R2
	ADD R3, R2, R2
	PRFM (R2), PLDL1KEEP
	SUB $64, R2, R2
	PRFM (R2), PLDL1KEEP
	SUBS $1, R1, R1
	BNE loop
done:
	RET
