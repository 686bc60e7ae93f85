//go:build !purego

package mssclamp

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/lbgraph/lbgraph/io/packet"
)

// hasLanes tells whether this processor runs clampLanes, which walks over lanes with BMI1.
var hasLanes = cpu.X86.HasBMI1

// What the assembly knows of other packages. A change there changes it here.
const (
	vectorMem     = unsafe.Offsetof(packet.Vector{}.Mem)
	vectorStart   = unsafe.Offsetof(packet.Vector{}.Start)
	vectorLen     = unsafe.Offsetof(packet.Vector{}.Len)
	vectorL4      = unsafe.Offsetof(packet.Vector{}.L4)
	vectorFlags   = unsafe.Offsetof(packet.Vector{}.Flags)
	vectorProto   = unsafe.Offsetof(packet.Vector{}.Proto)
	vectorBackend = unsafe.Offsetof(packet.Vector{}.Backend)
	tcp           = packet.ProtoTCP
	tcpLen        = packet.TCPLen
	headers       = packet.IPv4Len + packet.TCPLen
	mssFirst      = optionLen<<8 | kindMSS // as they stand in memory
)

// clampLanes is plain, for backends of which mtus, by number, has what they take. It answers
// the lanes that it leaves, and how many SYNs it lowered.
//
//go:noescape
func clampLanes(v *packet.Vector, l packet.Lanes, mtus []int32) (rest packet.Lanes, clamped uint64)
