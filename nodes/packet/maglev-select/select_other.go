//go:build !amd64 || purego

package maglevselect

import (
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

const hasLanes = false

func selectLanes(*packet.Vector, packet.Lanes, *state.Snapshot) (chosen packet.Lanes) {
	panic("maglevselect: selectLanes without hasLanes")
}
