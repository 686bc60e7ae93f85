package graph

import "github.com/lbgraph/lbgraph/control/state"

// The least MTU that a path over IPv4 (RFC 1191 §3) or IPv6 (RFC 8200 §5) is believed
// to have; what an error claims below it is a mistake or an attack.
const (
	minMTU4 = 576
	minMTU6 = 1280
)

// InnerMTU answers the bytes of the largest IP packet that can go to backend b in one
// piece behind the encapsulation that follows this node: the graph's network_mtu, or
// the path's if errors about the tunnel told of a smaller one, less the overhead of
// the backend's family. It may be called from any goroutine.
func (e *Env) InnerMTU(b *state.Backend) int {
	mtu, least, overhead := e.MTU, minMTU4, e.Overhead4
	if !b.Addr.Is4() {
		least, overhead = minMTU6, e.Overhead6
	}
	if b.MTU != 0 {
		mtu = min(mtu, max(int(b.MTU), least))
	}
	return mtu - overhead
}
