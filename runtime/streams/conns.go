package streams

import (
	"sync"
	"sync/atomic"

	"github.com/lbgraph/lbgraph/io/stream"
)

// A conn is a client's connection while it is served.
type conn struct {
	client stream.Client
	engine *Engine
	block  *block
	*listening
	phase atomic.Int32
	shard *shard
}

// Phases of a connection.
const (
	busy    int32 = iota
	idle          // waits for a request
	hurried       // waits, and Interrupt was called for it
)

// conns is all connections. It is parted so that accepting cores do not meet.
type conns struct {
	shards [16]shard
	next   atomic.Uint32
}

type shard struct {
	mu  sync.Mutex
	all map[*conn]struct{}
}

func (c *conns) init() {
	for i := range c.shards {
		c.shards[i].all = map[*conn]struct{}{}
	}
}

func (c *conns) add(k *conn) {
	k.shard = &c.shards[c.next.Add(1)%uint32(len(c.shards))]
	k.shard.mu.Lock()
	k.shard.all[k] = struct{}{}
	k.shard.mu.Unlock()
}

func (c *conn) forget() {
	c.shard.mu.Lock()
	delete(c.shard.all, c)
	c.shard.mu.Unlock()
}

// hurry wakes all connections that wait for a request, so that they see that the
// engine stops.
func (c *conns) hurry() {
	c.each(func(k *conn) {
		if k.phase.CompareAndSwap(idle, hurried) {
			k.client.Interrupt()
		}
	})
}

// cut closes all connections and answers how many there were.
func (c *conns) cut() (n int) {
	c.each(func(k *conn) {
		n++
		k.client.Reset()
	})
	return n
}

func (c *conns) each(f func(*conn)) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for k := range s.all {
			f(k)
		}
		s.mu.Unlock()
	}
}
