//go:build !purego

#include "textflag.h"

// func Lines(p []unsafe.Pointer)
TEXT ·Lines(SB), NOSPLIT, $0-24
	MOVD p_base+0(FP), R0
	MOVD p_len+8(FP), R1
	CBZ R1, done
loop:
	MOVD.P 8(R0), R2
	PRFM (R2), PLDL1KEEP
	SUBS $1, R1, R1
	BNE loop
done:
	RET
