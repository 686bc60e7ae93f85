//go:build !purego

package encap

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/lbgraph/lbgraph/io/packet"
)

// hasLanes tells whether this processor runs gre4Lanes.
var hasLanes = cpu.X86.HasAVX2

// What the assembly knows of other packages. A change there changes it here.
const (
	vectorMem     = unsafe.Offsetof(packet.Vector{}.Mem)
	vectorStart   = unsafe.Offsetof(packet.Vector{}.Start)
	vectorLen     = unsafe.Offsetof(packet.Vector{}.Len)
	vectorTotal   = unsafe.Offsetof(packet.Vector{}.Total)
	vectorChain   = unsafe.Offsetof(packet.Vector{}.Chain)
	vectorL3      = unsafe.Offsetof(packet.Vector{}.L3)
	vectorIPLen   = unsafe.Offsetof(packet.Vector{}.IPLen)
	vectorFlags   = unsafe.Offsetof(packet.Vector{}.Flags)
	vectorBackend = unsafe.Offsetof(packet.Vector{}.Backend)
	etherLen      = packet.EtherLen
	v6, df        = packet.V6, packet.DF
	notInner      = ^(packet.Later | packet.ICMP)
)

// The assembly has MAC addresses in twelve bytes before the EtherType, multiplies by 64, and takes
// a NoFrame for all ones.
const (
	_ = uint(etherLen-14) + uint(14-etherLen)
	_ = uint(unsafe.Sizeof(template{})-64) + uint(64-unsafe.Sizeof(template{}))
	_ = uint(packet.NoFrame - ^uint32(0))
)

// gre4Lanes is gre4 for groups of eight lanes of which all are in in and none is left to
// write4. It answers the lanes that it has encapsulated.
//
//go:noescape
func gre4Lanes(v *packet.Vector, in packet.Lanes, ts []template, tosMask uint64) (done packet.Lanes)
