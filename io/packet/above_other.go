//go:build !amd64 || purego

package packet

const hasAbove = false

func aboveLanes(*[Size]uint32, uint32) Lanes { panic("packet: aboveLanes without hasAbove") }
