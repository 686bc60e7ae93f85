// Package ratelimit is the kind "rate-limit": it bounds how often somebody comes.
package ratelimit

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/stream"
)

// Config is the arguments of rate-limit.
type Config struct {
	Rate    float64 `hcl:"rate" range:"0.001,100000000" doc:"sessions a second, of each key"`
	Burst   int     `hcl:"burst,optional" range:"1,100000000" doc:"sessions at once beyond the rate"`
	Key     string  `hcl:"key,optional" doc:"whose sessions count together: client (by address; IPv6 by its first 64 bits), host, header:NAME, or all"`
	Entries int     `hcl:"entries,optional" range:"64,16777216" doc:"keys that are remembered; of more, those are forgotten that came least lately"`
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "rate-limit",
		Summary: "refuses sessions of a client, or another key, that come too often",
		Needs:   graph.Conn,
		Outputs: []graph.Output{
			next:    {Name: "next", Doc: "sessions within the limit"},
			limited: {Name: "limited", Else: graph.Drop, Status: 429, Doc: "sessions beyond it"},
		},
		Defaults: Config{Burst: 1, Key: "client", Entries: 65536},
		Check: func(c Config) error {
			name, isHeader := strings.CutPrefix(c.Key, "header:")
			if isHeader && http1.ValidName(name) || c.Key == "client" || c.Key == "host" || c.Key == "all" {
				return nil
			}
			return graph.BadArgument("key", "key = %q: write client, host, all or header:NAME", c.Key)
		},
		Streams: func(c Config, _ *graph.Env) (stream.Stage, error) {
			l := &limiter{c: c, table: newTable(c.Entries), step: int64(1e9 / c.Rate)}
			name, _ := strings.CutPrefix(c.Key, "header:")
			l.header = strings.ToLower(name)
			return l, nil
		},
	})
}

// Output numbers.
const (
	next = iota
	limited
)

type limiter struct {
	c      Config
	header string
	step   int64 // nanoseconds that one session costs
	table  *table
}

// Inherit is part of graph.StageInheritor.
func (l *limiter) Inherit(old stream.Stage) {
	if o := old.(*limiter); o.c.Key == l.c.Key && o.c.Entries == l.c.Entries {
		l.table = o.table
	}
}

// Serve is part of stream.Stage.
func (l *limiter) Serve(_ context.Context, s *stream.Session) (int, error) {
	if wait := l.table.take(l.key(s), stream.Now(), l.step, int64(l.c.Burst)*l.step); wait > 0 {
		s.RetryAfter = time.Duration(wait)
		return limited, nil
	}
	return next, nil
}

func (l *limiter) key(s *stream.Session) uint64 {
	switch {
	case l.c.Key == "all":
		return 1
	case s.Req == nil || l.c.Key == "client":
	case l.c.Key == "host":
		name, _ := http1.SplitHost(s.Req.Host.In(s.Req.Buf))
		return hash(name)
	default:
		for i := range s.Req.Fields {
			if f := &s.Req.Fields[i]; http1.EqualFold(f.Name(s.Req.Buf), l.header) {
				return hash(f.Text(s.Req.Buf))
			}
		}
	}
	a := s.Client.Remote.Addr()
	b := a.As16()
	if a.Is4() {
		return hash(b[:])
	}
	return hash(b[:8]) // what one customer has
}

// hash is never 0.
func hash(p []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, c := range p {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	return packet.Mix(h, 0x9e3779b97f4a7c15) | 1
}

// table remembers for each key the time at which its allowance will be whole again
// (the generic cell rate algorithm), in sets of ways entries. Two keys that come to
// one entry at the same moment may cost each other a session; no memory is taken
// for a key.
type table struct {
	sets [][ways]entry
	mask uint64
}

const ways = 8

type entry struct {
	key  atomic.Uint64
	full atomic.Int64
}

func newTable(entries int) *table {
	n := 1
	for n*ways < entries {
		n *= 2
	}
	return &table{make([][ways]entry, n), uint64(n - 1)}
}

// take takes step from the allowance of most; or answers how long until that can be.
func (t *table) take(key uint64, now, step, most int64) (wait int64) {
	set := &t.sets[key>>8&t.mask]
	e := &set[0]
	for i := range set {
		if set[i].key.Load() == key {
			e = &set[i]
			break
		}
		if set[i].full.Load() < e.full.Load() {
			e = &set[i]
		}
	}
	if old := e.key.Load(); old != key {
		if e.key.CompareAndSwap(old, key) {
			e.full.Store(0)
		}
	}
	for {
		full := e.full.Load()
		after := max(full, now) + step
		if after-now > most {
			return after - now - most
		}
		if e.full.CompareAndSwap(full, after) {
			return 0
		}
	}
}
