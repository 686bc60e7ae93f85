package proxy

import (
	"sync"
	"time"

	"github.com/lbgraph/lbgraph/io/stream"
)

// upstreams is the idle connections to backends.
type upstreams struct {
	mu     sync.RWMutex
	of     map[*stream.Backend]*stack
	most   int
	time   int64
	closed bool
	users  int // stages that hold it
	sweep  *time.Timer
}

// A stack is the idle connections to one backend: the one used last is used next,
// so that those that are too many grow old.
type stack struct {
	mu    sync.Mutex
	conns []*stream.Conn
}

func newUpstreams(most int, age time.Duration) *upstreams {
	return &upstreams{of: map[*stream.Backend]*stack{}, most: most, time: int64(age), users: 1}
}

// hold is for a stage that takes over from another, which closes later.
func (u *upstreams) hold(most int, age time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.most, u.time = most, int64(age)
	u.users++
}

// close lets go; the last one to do so closes the connections.
func (u *upstreams) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.users--; u.users > 0 {
		return
	}
	u.closed = true
	if u.sweep != nil {
		u.sweep.Stop()
	}
	for b, s := range u.of {
		s.drop(stream.Never)
		delete(u.of, b)
	}
}

func (u *upstreams) stack(b *stream.Backend) (s *stack, most int, age int64) {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.of[b], u.most, u.time
}

// get answers an idle connection to b, nil if there is none. Whether the backend has
// closed it, or sent something by it, is for the caller to see.
func (u *upstreams) get(b *stream.Backend, now int64) *stream.Conn {
	s, _, age := u.stack(b)
	if s == nil {
		return nil
	}
	oldest := now - age
	for {
		s.mu.Lock()
		n := len(s.conns)
		if n == 0 {
			s.mu.Unlock()
			return nil
		}
		c := s.conns[n-1]
		s.conns[n-1] = nil
		s.conns = s.conns[:n-1]
		s.mu.Unlock()
		if c.Since >= oldest {
			return c
		}
		_ = c.Close()
	}
}

// put keeps an idle connection to b, or closes it.
func (u *upstreams) put(b *stream.Backend, c *stream.Conn, now int64) {
	c.Release()
	c.Since = now
	s, most, _ := u.stack(b)
	if s == nil {
		if s = u.enter(b); s == nil {
			_ = c.Close()
			return
		}
	}
	s.mu.Lock()
	if len(s.conns) < most {
		s.conns = append(s.conns, c)
		c = nil
	}
	s.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
}

func (u *upstreams) enter(b *stream.Backend) *stack {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed || u.most == 0 {
		return nil
	}
	s := u.of[b]
	if s == nil {
		s = new(stack)
		u.of[b] = s
	}
	if u.sweep == nil {
		u.sweep = time.AfterFunc(u.period(), u.clean)
	}
	return s
}

func (u *upstreams) period() time.Duration {
	return max(time.Duration(u.time)/4, 10*time.Millisecond)
}

// clean closes what has been idle too long, and forgets backends without any.
func (u *upstreams) clean() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return
	}
	oldest := stream.Now() - u.time
	for b, s := range u.of {
		if s.drop(oldest) == 0 && b.Active.Load() == 0 {
			delete(u.of, b)
		}
	}
	if len(u.of) > 0 {
		u.sweep.Reset(u.period())
	} else {
		u.sweep = nil
	}
}

// drop closes what has been idle since before oldest, and answers what is left.
func (s *stack) drop(oldest int64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < len(s.conns) && s.conns[n].Since < oldest {
		_ = s.conns[n].Close()
		n++
	}
	s.conns = append(s.conns[:0], s.conns[n:]...)
	return len(s.conns)
}

func (u *upstreams) count() (n int) {
	u.mu.RLock()
	defer u.mu.RUnlock()
	for _, s := range u.of {
		s.mu.Lock()
		n += len(s.conns)
		s.mu.Unlock()
	}
	return n
}
