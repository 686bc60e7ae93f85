//go:build amd64 || arm64

package runtime

// cycles reads the time-stamp counter: RDTSC on amd64, the virtual count register
// on arm64. Its unit is found by CyclesPerNanosecond.
func cycles() uint64
