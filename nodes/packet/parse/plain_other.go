//go:build !amd64 || purego

package parse

import "github.com/lbgraph/lbgraph/io/packet"

const hasLanes = false

func plainLanes(*packet.Vector, int) (others packet.Lanes) {
	panic("parse: plainLanes without hasLanes")
}
