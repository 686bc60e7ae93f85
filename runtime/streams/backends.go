package streams

import (
	"net/netip"
	"slices"
	"sync"
	"weak"

	"github.com/lbgraph/lbgraph/io/stream"
)

// registry knows every backend by its address and port as long as a node or a
// session does: its counts survive reloads, and go with it.
type registry struct {
	mu sync.Mutex
	at map[netip.AddrPort]weak.Pointer[stream.Backend]
}

func (r *registry) init() { r.at = map[netip.AddrPort]weak.Pointer[stream.Backend]{} }

func (r *registry) get(a netip.AddrPort) *stream.Backend {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.at[a].Value(); b != nil {
		return b
	}
	for k, w := range r.at {
		if w.Value() == nil {
			delete(r.at, k)
		}
	}
	b := &stream.Backend{Addr: a}
	r.at[a] = weak.Make(b)
	return b
}

func (r *registry) all() (all []*stream.Backend) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.at {
		if b := w.Value(); b != nil {
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b *stream.Backend) int { return a.Addr.Compare(b.Addr) })
	return all
}
