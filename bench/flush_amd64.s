//go:build !purego

#include "textflag.h"

// func flush(p unsafe.Pointer)
TEXT ·flush(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	CLFLUSH (AX)
	RET

// func fence()
TEXT ·fence(SB), NOSPLIT, $0-0
	MFENCE
	RET
