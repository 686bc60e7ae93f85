//go:build (amd64 || arm64) && !purego

// Package prefetch asks the processor for memory that will be read soon, so that
// the waits of many packets overlap. On amd64 and arm64 it is one instruction a
// line; elsewhere, and with the build tag purego, a plain load.
package prefetch

import "unsafe"

// Lines asks for the cache lines that hold the bytes at p. Each pointer must lead
// to readable memory. Eight to sixteen at once is right: a core keeps no more
// misses in flight, and what is beyond makes it wait.
//
//go:noescape
func Lines(p []unsafe.Pointer)
