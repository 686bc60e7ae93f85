//go:build (amd64 || arm64) && !purego

package bench

import "unsafe"

// canFlush tells that flush takes a line out of all caches.
const canFlush = true

// flush takes the cache line that holds the byte at p out of all caches.
//
//go:noescape
func flush(p unsafe.Pointer)

// fence waits for all flushes.
func fence()
