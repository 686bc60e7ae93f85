//go:build !amd64 || purego

package conntrack

import (
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

const hasPlain = false

func formPlain(*batch, *table, *packet.Vector, []state.ServiceInfo, int, int) (bad packet.Lanes) {
	panic("conntrack: formPlain without hasPlain")
}

func decidePlain(*batch, *table, *packet.Vector, []state.Word, *clock, int, int) (hits, left packet.Lanes) {
	panic("conntrack: decidePlain without hasPlain")
}

func enterPlain(*batch, *table, *packet.Vector, packet.Lanes, packet.Lanes, *clock, int) (entered int, later, rest packet.Lanes) {
	panic("conntrack: enterPlain without hasPlain")
}
