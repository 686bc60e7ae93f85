//go:build !(amd64 || arm64) || purego

package prefetch

import (
	"runtime"
	"unsafe"
)

// Offsets asks for the cache lines that hold the bytes at base + off, as Lines does for
// pointers: a column of offsets is used as it is.
func Offsets(base unsafe.Pointer, off []uint32) {
	var sum byte
	for _, o := range off {
		sum ^= *(*byte)(unsafe.Add(base, o))
	}
	runtime.KeepAlive(sum)
}

// Around is Offsets for each byte's line and the line before it: what a header stands in,
// and what is written in front of it. off is at least 64.
func Around(base unsafe.Pointer, off []uint32) {
	var sum byte
	for _, o := range off {
		sum ^= *(*byte)(unsafe.Add(base, o)) ^ *(*byte)(unsafe.Add(base, o-64))
	}
	runtime.KeepAlive(sum)
}
