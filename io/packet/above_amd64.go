//go:build !purego

package packet

import "golang.org/x/sys/cpu"

var hasAbove = cpu.X86.HasAVX2

// aboveLanes is Above.
//
//go:noescape
func aboveLanes(column *[Size]uint32, limit uint32) Lanes
