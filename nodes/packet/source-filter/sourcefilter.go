// Package sourcefilter is the kind "source-filter": it refuses clients that the lists of a
// VIP do not admit.
package sourcefilter

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of source-filter.
type Config struct {
	Unlisted string `hcl:"unlisted,optional" enum:"allow,deny" doc:"what becomes of clients on no list, where the VIP does not say"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "source-filter",
		Summary: "refuses clients by the allow and deny lists of their VIP",
		Needs:   graph.L3 | graph.VIP,
		Forbids: graph.Sent,
		Outputs: []graph.Output{
			next:   {Name: "next", Doc: "packets of admitted clients, and those whose service is not known yet"},
			denied: {Name: "denied", Else: graph.Drop, Doc: "the longest prefix that covers the client denies it"},
		},
		Defaults: Config{Unlisted: "allow"},
		Packets: func(c Config, env *graph.Env) (graph.Maker, error) {
			f := &filters{unlisted: c.Unlisted == "deny"}
			env.Watch(f.see)
			return func(graph.Core) (graph.Node, error) { return &worker{filters: f}, nil }, nil
		},
	})
}

// Output numbers.
const (
	next = iota
	denied
)

// filters is the lists of all services, shared by all cores.
type filters struct {
	unlisted  bool
	byService atomic.Pointer[[]*trie] // nil for services that admit everyone

	// What the lists were made of, for snapshots that share it. One goroutine at a
	// time calls see.
	services []state.Service
	vips     []state.VIPSpec
	made     map[uint64][]*list
}

// A list is what one or several VIPs say, and the trie made of it.
type list struct {
	allow, deny []netip.Prefix
	unlisted    bool
	trie        *trie
}

// see makes the lists of a snapshot. Those that were there before, whoever has them now,
// are not made again: a large one takes a good part of a second.
func (f *filters) see(s *state.Snapshot) {
	if f.made != nil && same(f.services, s.Services) && same(f.vips, s.VIPs) {
		return
	}
	f.services, f.vips = s.Services, s.VIPs
	made := map[uint64][]*list{}
	byVIP := make([]*trie, len(s.VIPs))
	for i := range s.VIPs {
		byVIP[i] = f.make(&s.VIPs[i], made)
	}
	f.made = made
	byService := make([]*trie, len(s.Services))
	for i := range s.Services {
		if v := s.Services[i].Spec; i > 0 && v >= 0 && v < len(byVIP) {
			byService[i] = byVIP[v]
		}
	}
	f.byService.Store(&byService)
}

func same[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

var seed = maphash.MakeSeed()

// make answers the trie of a VIP's lists: one that is there, or a new one; nil where everyone is
// admitted.
func (f *filters) make(v *state.VIPSpec, made map[uint64][]*list) *trie {
	unlisted := f.unlisted
	if v.Unlisted != "" {
		unlisted = v.Unlisted == "deny"
	}
	if len(v.Deny) == 0 && !unlisted {
		return nil
	}
	var h maphash.Hash
	h.SetSeed(seed)
	for _, p := range v.Allow {
		maphash.WriteComparable(&h, p)
	}
	_ = h.WriteByte(0)
	for _, p := range v.Deny {
		maphash.WriteComparable(&h, p)
	}
	key := h.Sum64()
	for _, from := range []map[uint64][]*list{made, f.made} {
		for _, l := range from[key] {
			if l.unlisted == unlisted && slices.Equal(l.allow, v.Allow) && slices.Equal(l.deny, v.Deny) {
				if !slices.Contains(made[key], l) {
					made[key] = append(made[key], l)
				}
				return l.trie
			}
		}
	}
	l := &list{v.Allow, v.Deny, unlisted, build(v.Allow, v.Deny, unlisted)}
	made[key] = append(made[key], l)
	return l.trie
}

type worker struct {
	filters *filters
	search  search
}

// Process is part of graph.Node.
func (w *worker) Process(v *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	byService := *w.filters.byService.Load()
	var asked packet.Lanes
	for l := in; l != 0; l &= l - 1 {
		i := l.Next() & 63
		if s := uint(v.VIP[i]); s < uint(len(byService)) && byService[s] != nil {
			w.search.start(i, byService[s], v.Src[i], v.Flags[i]&packet.V6 != 0)
			asked |= packet.Lane(i)
		}
	}
	refused := w.search.run(asked)
	out[next], out[denied] = in&^refused, refused
}
