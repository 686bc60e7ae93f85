//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// KEY makes of the service in service the key of a lane, with source port and source address, as
// keyOf does. place may be key; service does not stay.
#define KEY(lane, service, key, place) \
	SHLQ $48, service                         \
	MOVWLZX const_vectorSPort(SI)(lane*2), key \
	SHLQ $32, key                             \
	ORQ  key, service                         \
	MOVQ lane, place                          \
	SHLQ $4, place                            \
	MOVL const_vectorSrc(SI)(place*1), key    \
	ORQ  service, key

// func formPlain(b *batch, t *table, v *packet.Vector, infos []state.ServiceInfo, from, to int) (bad packet.Lanes)
//
// BX batch, SI vector, DI infos, R8 their number, R9 lane, R10 end, R11 keys, R12 lines,
// R13 number of lines, R14 bad lanes. AX, CX, DX, R15 scratch.
TEXT ·formPlain(SB), NOSPLIT, $0-72
	MOVQ b+0(FP), BX
	MOVQ t+8(FP), AX
	MOVQ v+16(FP), SI
	MOVQ infos_base+24(FP), DI
	MOVQ infos_len+32(FP), R8
	MOVQ from+48(FP), R9
	MOVQ to+56(FP), R10
	MOVQ table_keys(AX), R11
	MOVQ table_lines(AX), R12
	MOVQ (table_lines+8)(AX), R13
	XORL R14, R14
	CMPQ R9, R10
	JGE  done

loop:
	MOVL const_vectorVIP(SI)(R9*4), CX
	CMPQ CX, R8
	JAE  none
	LEAQ (CX)(CX*2), AX
	MOVQ const_infoPlain(DI)(AX*8), DX
	TESTQ DX, DX
	JZ   none
	MOVBLZX const_vectorTCP(SI)(R9*1), AX
	ANDL $const_tcpFlags, AX
	SHLL $4, AX
	ORQ  AX, DX
	MOVQ DX, batch_about(BX)(R9*8)

	KEY(R9, CX, AX, R15)

home:
	MOVQ AX, batch_key(BX)(R9*8)

	// hashCompact, and its line.
	XORQ (R11), AX
	MULQ 8(R11)
	XORQ DX, AX
	IMULQ 16(R11), AX
	SHRQ $32, AX
	IMULQ R13, AX
	SHRQ $32, AX
	SHLL $6, AX
	MOVL AX, batch_home(BX)(R9*4)
	PREFETCHT0 (R12)(AX*1)

	INCQ R9
	CMPQ R9, R10
	JLT  loop

done:
	MOVQ R14, bad+64(FP)
	RET

none:
	BTSQ R9, R14
	MOVL $const_noKey, AX
	JMP  home

// func decidePlain(b *batch, t *table, v *packet.Vector, words []state.Word, clk *clock, from, to int) (hits, left packet.Lanes)
//
// BX batch, SI vector, DI words, R8 their number, R9 lane, R10 lines, R11 clock, R14 hits,
// R15 left, Y2 zero. AX, CX, DX, R12, R13 scratch.
TEXT ·decidePlain(SB), NOSPLIT, $0-88
	MOVQ b+0(FP), BX
	MOVQ t+8(FP), AX
	MOVQ v+16(FP), SI
	MOVQ words_base+24(FP), DI
	MOVQ words_len+32(FP), R8
	MOVQ clk+48(FP), R11
	MOVQ from+56(FP), R9
	MOVQ table_lines(AX), R10
	XORL R14, R14
	XORL R15, R15
	VPXOR Y2, Y2, Y2
	CMPQ R9, to+64(FP)
	JGE  done

loop:
	MOVL batch_home(BX)(R9*4), R12
	ADDQ R10, R12 // the line
	MOVQ batch_key(BX)(R9*8), AX
	VPBROADCASTQ batch_key(BX)(R9*8), Y0
	VPCMPEQQ line_key(R12), Y0, Y1
	VMOVMSKPD Y1, DX
	XORL CX, CX
	CMPQ AX, (line_key+32)(R12)
	SETEQ CX
	SHLL $4, CX
	ORL  $32, CX
	ORL  CX, DX
	TZCNTL DX, DX
	CMPL DX, $5
	JEQ  absent
	MOVB DX, batch_place(BX)(R9*1)

	LEAQ line_st(R12)(DX*4), R12 // the state word
	MOVL (R12), DX
	MOVQ batch_about(BX)(R9*8), AX
	MOVQ AX, R13
	SHRQ $8, R13
	MOVL DX, CX
	SHRL $16, CX
	ANDL $0x3fff, CX             // the slot
	ADDQ CX, R13
	CMPQ R13, R8
	JAE  odd
	MOVL (DI)(R13*4), R13        // backend and status

	// Established, and no packet that would change that; the backend up.
	MOVL DX, CX
	SHRL $30, CX
	ORL  CX, AX                  // class and state
	MOVL AX, CX
	XORL $const_established, CX
	ANDL $0x73, CX
	TESTL $3, R13
	JNZ  odd
	TESTL CX, CX
	JNZ  odd

	// Not over.
	ANDL $15, AX
	MOVWLZX clock_now(R11)(AX*2), CX
	SUBL DX, CX
	MOVWLZX CX, CX               // the age
	CMPW CX, clock_ttl(R11)(AX*2)
	JHI  odd
	TESTL CX, CX
	JNZ  stamp

hit:
	SHRL $16, DX
	ANDL $0x3fff, DX
	SHRL $2, R13
	MOVL R13, const_vectorBackend(SI)(R9*4)
	MOVL DX, const_vectorSlot(SI)(R9*4)
	BTSQ R9, R14

next:
	INCQ R9
	CMPQ R9, to+64(FP)
	JLT  loop

done:
	VZEROUPPER
	MOVQ R14, hits+72(FP)
	MOVQ R15, left+80(FP)
	RET

stamp:
	MOVWLZX clock_now(R11)(AX*2), CX
	MOVW CX, (R12)
	JMP  hit

absent:
	VPCMPEQQ line_key(R12), Y2, Y1
	VMOVMSKPD Y1, DX
	XORL CX, CX
	CMPQ (line_key+32)(R12), $0
	SETEQ CX
	SHLL $4, CX
	ORL  $32, CX
	ORL  CX, DX
	TZCNTL DX, DX
	ADDL $5, DX
	MOVB DX, batch_place(BX)(R9*1)

	// Only where keys went on from the line is there something to find.
	MOVL line_over(R12), CX
	TESTL CX, CX
	JZ   next
	CMPQ AX, $const_noKey
	JEQ  next

odd:
	BTSQ R9, R15
	JMP  next

// func enterPlain(b *batch, t *table, v *packet.Vector, lanes, looked packet.Lanes, clk *clock, room int) (entered int, later, rest packet.Lanes)
//
// BX batch, SI vector, R8 lanes left, R9 room left, R10 lines, R11 clock, R13 looked, R14 later,
// R15 entered; CX lane, DI its line, AX key, DX slot, R12 scratch, then the place.
TEXT ·enterPlain(SB), NOSPLIT, $0-80
	MOVQ b+0(FP), BX
	MOVQ t+8(FP), AX
	MOVQ v+16(FP), SI
	MOVQ lanes+24(FP), R8
	MOVQ looked+32(FP), R13
	MOVQ clk+40(FP), R11
	MOVQ room+48(FP), R9
	MOVQ table_lines(AX), R10
	XORL R14, R14
	XORL R15, R15

loop:
	TESTQ R8, R8
	JEQ  done
	TZCNTQ R8, CX
	MOVWLZX const_vectorFlags(SI)(CX*2), AX
	ANDL $const_newFlow, AX
	CMPL AX, $const_isChosen
	JNE  next
	TESTB $const_tcpOver, const_vectorTCP(SI)(CX*1)
	JNE  next
	MOVL const_vectorSlot(SI)(CX*4), DX
	CMPL DX, $const_maxSlots
	JAE  next

	// What the look-up found out is of this flow.
	MOVL const_vectorVIP(SI)(CX*4), R12
	KEY(CX, R12, AX, AX)
	CMPQ AX, batch_key(BX)(CX*8)
	JNE  later
	CMPQ AX, $const_noKey
	JEQ  later
	BTQ  CX, R13
	JCC  later
	MOVBLZX batch_place(BX)(CX*1), R12
	SUBL $5, R12
	CMPL R12, $5
	JAE  later
	MOVL batch_home(BX)(CX*4), DI
	ADDQ R10, DI
	CMPQ line_key(DI)(R12*8), $0
	JNE  later
	CMPQ R15, R9
	JEQ  later
	CMPL line_over(DI), $0
	JNE  done                    // to be looked at more closely

	MOVQ AX, line_key(DI)(R12*8)
	MOVQ batch_about(BX)(CX*8), AX
	ORL  $const_handshake, AX
	ANDL $15, AX
	MOVWLZX clock_now(R11)(AX*2), AX
	SHLL $16, DX
	ORL  DX, AX
	ORL  $(const_handshake<<30), AX
	MOVL AX, line_st(DI)(R12*4)
	INCQ R15

next:
	BLSRQ R8, R8
	JMP  loop

later:
	BTSQ CX, R14
	BLSRQ R8, R8
	JMP  loop

done:
	MOVQ R15, entered+56(FP)
	MOVQ R14, later+64(FP)
	MOVQ R8, rest+72(FP)
	RET
