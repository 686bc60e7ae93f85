//go:build !amd64 || purego

package encap

import "github.com/lbgraph/lbgraph/io/packet"

const hasLanes = false

func gre4Lanes(*packet.Vector, packet.Lanes, []template, uint64) (done packet.Lanes) {
	panic("encap: gre4Lanes without hasLanes")
}
