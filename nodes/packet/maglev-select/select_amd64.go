//go:build !purego

package maglevselect

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// hasLanes tells whether this processor runs selectLanes: mulx is of BMI2, and bsf, which stands
// where there is no tzcnt of BMI1, takes six steps on some.
var hasLanes = cpu.X86.HasBMI1 && cpu.X86.HasBMI2

// What the assembly knows of other packages. A change there changes it here.
const (
	vectorFlags     = unsafe.Offsetof(packet.Vector{}.Flags)
	vectorHash      = unsafe.Offsetof(packet.Vector{}.Hash)
	vectorVIP       = unsafe.Offsetof(packet.Vector{}.VIP)
	vectorBackend   = unsafe.Offsetof(packet.Vector{}.Backend)
	vectorSlot      = unsafe.Offsetof(packet.Vector{}.Slot)
	services        = unsafe.Offsetof(state.Snapshot{}.Services)
	pools           = unsafe.Offsetof(state.Snapshot{}.Pools)
	infos           = unsafe.Offsetof(state.Snapshot{}.Infos)
	words           = unsafe.Offsetof(state.Snapshot{}.Words)
	serviceSize     = unsafe.Sizeof(state.Service{})
	servicePool     = unsafe.Offsetof(state.Service{}.Pool)
	serviceAffinity = unsafe.Offsetof(state.Service{}.Affinity)
	poolSize        = unsafe.Sizeof(state.Pool{})
	poolTable       = unsafe.Offsetof(state.Pool{}.Table)
	poolSeed        = unsafe.Offsetof(state.Pool{}.Seed)
	infoSize        = unsafe.Sizeof(state.ServiceInfo{})
	infoBase        = unsafe.Offsetof(state.ServiceInfo{}.Base)
	isChosen        = packet.Chosen
	selectK         = state.SelectK
)

// The assembly multiplies by 24, and takes a Word apart as Word.Load does.
const (
	_ = uint(infoSize-24) + uint(24-infoSize)
	_ = uint(unsafe.Sizeof(state.Word{})-4) + uint(4-unsafe.Sizeof(state.Word{}))
	_ = uint(-state.Up)
)

// selectLanes selects for those lanes of in whose service selects by flow, has a pool and there
// a member that is up where the table says, and answers them.
//
//go:noescape
func selectLanes(v *packet.Vector, in packet.Lanes, s *state.Snapshot) (chosen packet.Lanes)
