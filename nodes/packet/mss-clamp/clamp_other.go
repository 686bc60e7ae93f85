//go:build !amd64 || purego

package mssclamp

import "github.com/lbgraph/lbgraph/io/packet"

const hasLanes = false

func clampLanes(*packet.Vector, packet.Lanes, []int32) (rest packet.Lanes, clamped uint64) {
	panic("mssclamp: clampLanes without hasLanes")
}
