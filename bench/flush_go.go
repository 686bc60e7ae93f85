//go:build !(amd64 || arm64) || purego

package bench

import "unsafe"

const canFlush = false

func flush(unsafe.Pointer) {}

func fence() {}
