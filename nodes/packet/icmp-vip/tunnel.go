package icmpvip

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// A path is what errors about the tunnel told of the way to one backend. All cores
// write it.
type path struct {
	key    packet.Addr
	addr   netip.Addr
	errors atomic.Uint64
	mtu    atomic.Uint32 // the smallest that the host was not told of yet; 0 is none
}

// shared is what the workers of all cores have in common.
type shared struct {
	env   *graph.Env
	host  Host
	paths atomic.Pointer[[]*path] // by key
	news  atomic.Bool             // some path has an MTU to tell of
	// seen is the backends that paths was made of: snapshots share them while they
	// stay the same.
	seen []state.Backend
}

// see finds the backends of a snapshot. Those that stay keep their path.
func (s *shared) see(snap *state.Snapshot) {
	if len(snap.Backends) > 0 && len(s.seen) == len(snap.Backends) && &s.seen[0] == &snap.Backends[0] {
		return
	}
	s.seen = snap.Backends
	old := s.paths.Load()
	paths := make([]*path, 0, len(snap.Backends))
	for i := range snap.Backends {
		if a := snap.Backends[i].Addr; a.IsValid() {
			p := &path{key: packet.AddrOf(a), addr: a}
			if old != nil {
				if was := find(*old, p.key); was != nil {
					p = was
				}
			}
			paths = append(paths, p)
		}
	}
	slices.SortFunc(paths, func(a, b *path) int { return compare(a.key, b.key) })
	s.paths.Store(&paths)
}

func compare(a, b packet.Addr) int {
	switch {
	case a == b:
		return 0
	case a.Hi < b.Hi, a.Hi == b.Hi && a.Lo < b.Lo:
		return -1
	}
	return 1
}

// find answers the path of key, nil if there is none.
func find(paths []*path, key packet.Addr) *path {
	lo, hi := 0, len(paths)
	for lo < hi {
		m := int(uint(lo+hi) >> 1)
		switch c := compare(paths[m].key, key); {
		case c == 0:
			return paths[m]
		case c < 0:
			lo = m + 1
		default:
			hi = m
		}
	}
	return nil
}

// tunnel takes note of an error in lane i that went to an address of ours that is no
// VIP, and answers its output.
func (w *worker) tunnel(v *packet.Vector, i int, b []byte) int {
	q, ok := v.TunnelError(i)
	if !ok {
		return pass
	}
	p := find(*w.paths.Load(), q.Dst)
	if p == nil {
		return pass
	}
	p.errors.Add(1)
	icmp := b[v.L4[i]:]
	var mtu uint32
	switch {
	case v.Flags[i]&packet.V6 != 0 && icmp[0] == packet.ICMP6TooBig:
		mtu = binary.BigEndian.Uint32(icmp[4:])
	case v.Flags[i]&packet.V6 == 0 && icmp[0] == packet.ICMPUnreachable && icmp[1] == packet.CodeFragNeeded:
		mtu = uint32(binary.BigEndian.Uint16(icmp[6:]))
	}
	// An error whose packet would have fit says nothing true. One without an MTU
	// (RFC 1191 §5) says nothing of use.
	if mtu == 0 || mtu >= q.Len || int(mtu) >= w.env.MTU {
		return tunnelError
	}
	w.Count(learned, 1)
	if old := p.mtu.Load(); old == 0 || mtu < old {
		p.mtu.Store(mtu)
		w.news.Store(true)
	}
	return tunnelError
}

// tellEvery is how often the host is told at most, in nanoseconds.
const tellEvery = 1e9

// Tick is part of graph.Ticker: it tells the host what was learned, on a goroutine of
// its own, for the host may block.
func (w *worker) Tick(now int64) {
	if w.ID() != 0 || w.host == nil || now-w.told < tellEvery || !w.news.Load() {
		return
	}
	w.told = now
	w.news.Store(false)
	go tell(w.host, *w.paths.Load())
}

func tell(h Host, paths []*path) {
	for _, p := range paths {
		if mtu := p.mtu.Swap(0); mtu != 0 {
			h.TunnelMTU(p.addr, int(mtu))
		}
	}
}

// Gauges answers the number of errors about the tunnel to each backend that had one.
func (w *worker) Gauges() map[string]float64 {
	all := map[string]float64{}
	if w.ID() != 0 {
		return all // the figures are those of all cores
	}
	for _, p := range *w.paths.Load() {
		if n := p.errors.Load(); n > 0 {
			all["tunnel_errors "+p.addr.String()] = float64(n)
		}
	}
	return all
}
