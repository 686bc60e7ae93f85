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
