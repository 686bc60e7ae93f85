//go:build !purego

package conntrack

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// hasPlain tells whether this processor runs formPlain and decidePlain: the latter compares
// a line's keys with AVX2, and counts zeros with BMI1, where bsf takes six steps.
var hasPlain = cpu.X86.HasAVX2 && cpu.X86.HasBMI1

// What the assembly reads of other packages' structures. A change there changes it here.
const (
	vectorVIP     = unsafe.Offsetof(packet.Vector{}.VIP)
	vectorSPort   = unsafe.Offsetof(packet.Vector{}.SPort)
	vectorSrc     = unsafe.Offsetof(packet.Vector{}.Src) + unsafe.Offsetof(packet.Addr{}.Lo)
	vectorTCP     = unsafe.Offsetof(packet.Vector{}.TCP)
	vectorBackend = unsafe.Offsetof(packet.Vector{}.Backend)
	vectorSlot    = unsafe.Offsetof(packet.Vector{}.Slot)
	infoPlain     = unsafe.Offsetof(state.ServiceInfo{}.Plain)
	infoSize      = unsafe.Sizeof(state.ServiceInfo{})
	vectorFlags   = unsafe.Offsetof(packet.Vector{}.Flags)
	tcpFlags      = packet.FIN | packet.SYN | packet.RST
	tcpOver       = packet.FIN | packet.RST
	isChosen      = packet.Chosen
	newFlow       = packet.Chosen | packet.Related
	maxSlots      = state.MaxSlots
)

// The assembly multiplies by 24, has the flags in the lowest three bits, and takes a Word
// apart as Word.Load does.
const (
	_ = uint(infoSize-24) + uint(24-infoSize)
	_ = uint(tcpFlags-7) + uint(7-tcpFlags)
	_ = uint(unsafe.Sizeof(state.Word{})-4) + uint(4-unsafe.Sizeof(state.Word{}))
)

// formPlain is form and aim for lanes from … to−1, all of which are to be looked up and carry
// no related packet. It answers the lanes whose service is none or not plain: their key is
// noKey.
//
//go:noescape
func formPlain(b *batch, t *table, v *packet.Vector, infos []state.ServiceInfo, from, to int) (bad packet.Lanes)

// decidePlain is decide for lanes from … to−1 while no table moves, as far as an entry
// is established, alive and of a packet that changes nothing but its stamp: those are
// the hits. left are lanes that decide has to look at; all others have no entry.
//
//go:noescape
func decidePlain(b *batch, t *table, v *packet.Vector, words []state.Word, clk *clock, from, to int) (hits, left packet.Lanes)

// enterPlain is AfterSend for lanes up to the first that would be entered in a line from which
// keys went on: it and those behind it are the rest. Of the others it enters what the look-up
// found a place for, room of them at most; later are lanes that learn has to look at.
//
//go:noescape
func enterPlain(b *batch, t *table, v *packet.Vector, lanes, looked packet.Lanes, clk *clock, room int) (entered int, later, rest packet.Lanes)
