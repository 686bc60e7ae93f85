//go:build !purego

#include "textflag.h"

// func flush(p unsafe.Pointer)
TEXT ·flush(SB), NOSPLIT, $0-8
	MOVD p+0(FP), R0
	WORD $0xd50b7e20 // DC CIVAC, R0
	RET

// func fence()
TEXT ·fence(SB), NOSPLIT, $0-0
	DMB $0xf
	RET
