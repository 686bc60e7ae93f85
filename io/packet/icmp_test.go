package packet

import (
	"bytes"
	"testing"
)

// An error that does not fit behind its packet's beginning quotes less: nothing is
// written behind the chunk.
func TestMakeErrorStaysInItsChunk(t *testing.T) {
	for _, six := range []bool{false, true} {
		head, flags := uint32(IPv4Len+ICMPLen), Flags(0)
		if six {
			head, flags = IPv6Len+ICMPLen, V6
		}
		const start, size = 256, 400
		mem := bytes.Repeat([]byte{0xee}, start+1000)
		v := &Vector{Mem: mem}
		v.Start[0], v.Len[0], v.Total[0], v.Chain[0] = start, size, size, NoFrame
		v.L3[0], v.IPLen[0], v.Flags[0] = EtherLen, size-EtherLen, flags
		const room = size + 10 // less than head more
		v.MakeError(0, 3, 4, 1400, 1, room)
		if v.Len[0] != room || v.IPLen[0] != room-EtherLen || v.Total[0] != room {
			t.Errorf("IPv6 %v: %d bytes, IP packet %d, in a room of %d", six, v.Len[0], v.IPLen[0], room)
		}
		if int(v.L4[0]) != EtherLen+int(head)-ICMPLen {
			t.Errorf("IPv6 %v: layer 4 at %d", six, v.L4[0])
		}
		for i, b := range mem[start+room:] {
			if b != 0xee {
				t.Fatalf("IPv6 %v: byte %d behind the chunk was written", six, i)
			}
		}
	}
}
