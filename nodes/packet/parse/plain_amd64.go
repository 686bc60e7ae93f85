//go:build !purego

package parse

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/lbgraph/lbgraph/io/packet"
)

// hasLanes tells whether this processor runs plainLanes: AVX2, and mulx of BMI2.
var hasLanes = cpu.X86.HasAVX2 && cpu.X86.HasBMI2

// What the assembly knows of other packages. A change there changes it here.
const (
	vectorMem                        = unsafe.Offsetof(packet.Vector{}.Mem)
	vectorStart                      = unsafe.Offsetof(packet.Vector{}.Start)
	vectorLen                        = unsafe.Offsetof(packet.Vector{}.Len)
	vectorL3                         = unsafe.Offsetof(packet.Vector{}.L3)
	vectorL4                         = unsafe.Offsetof(packet.Vector{}.L4)
	vectorIPLen                      = unsafe.Offsetof(packet.Vector{}.IPLen)
	vectorFlags                      = unsafe.Offsetof(packet.Vector{}.Flags)
	vectorProto                      = unsafe.Offsetof(packet.Vector{}.Proto)
	vectorTCP                        = unsafe.Offsetof(packet.Vector{}.TCP)
	vectorSrc                        = unsafe.Offsetof(packet.Vector{}.Src)
	vectorDst                        = unsafe.Offsetof(packet.Vector{}.Dst)
	vectorSPort                      = unsafe.Offsetof(packet.Vector{}.SPort)
	vectorDPort                      = unsafe.Offsetof(packet.Vector{}.DPort)
	vectorVIP                        = unsafe.Offsetof(packet.Vector{}.VIP)
	vectorBackend                    = unsafe.Offsetof(packet.Vector{}.Backend)
	vectorHash                       = unsafe.Offsetof(packet.Vector{}.Hash)
	etherLen, ip4Len, tcpLen, udpLen = packet.EtherLen, packet.IPv4Len, packet.TCPLen, packet.UDPLen
	tcp, udp                         = packet.ProtoTCP, packet.ProtoUDP
	k0, k1                           = packet.HashK0, packet.HashK1
	k2, k3                           = packet.HashK2, packet.HashK3
	k4, k5                           = packet.HashK4, packet.HashK5
)

// The assembly reads headers at fixed places, stores an Addr as Hi, Lo, and DF as bit 4.
const (
	_ = uint(etherLen-14) + uint(14-etherLen)
	_ = uint(ip4Len-20) + uint(20-ip4Len)
	_ = uint(unsafe.Offsetof(packet.Addr{}.Lo)-8) + uint(8-unsafe.Offsetof(packet.Addr{}.Lo))
	_ = uint(packet.DF-1<<4) + uint(1<<4-packet.DF)
)

// plainLanes is most and plain for lanes 0 … n−1 as far as they fill groups, one at least, all
// lanes of which have to be at least shortest bytes for any to be parsed. Unlike plain it
// writes to the columns of lanes that it answers as others. It asks for the headers of lanes
// from ahead on.
//
//go:noescape
func plainLanes(v *packet.Vector, n int) (others packet.Lanes)
