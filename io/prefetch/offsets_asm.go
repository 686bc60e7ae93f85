//go:build (amd64 || arm64) && !purego

package prefetch

import "unsafe"

// Offsets asks for the cache lines that hold the bytes at base + off, as Lines does for
// pointers: a column of offsets is used as it is.
//
//go:noescape
func Offsets(base unsafe.Pointer, off []uint32)

// Around is Offsets for each byte's line and the line before it: what a header stands in,
// and what is written in front of it. off is at least 64.
//
//go:noescape
func Around(base unsafe.Pointer, off []uint32)
