package streams

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/stream"
)

// A listener is sockets on one address.
type listener struct {
	sockets []*net.TCPListener
	target  atomic.Pointer[target]
	started bool
	loops   sync.WaitGroup
}

// target is the node that the connections of a listener come to.
type target struct {
	block *block
	node  string
	*listening
}

func (l *listener) bound() netip.AddrPort { return l.sockets[0].Addr().(*net.TCPAddr).AddrPort() }

// close stops accepting. What the kernel has accepted already is served.
func (l *listener) close() {
	for _, s := range l.sockets {
		// The loop takes what is in the queue, then closes: a socket that is closed
		// over a full queue resets the clients in it.
		_ = s.SetDeadline(time.Unix(1, 0))
	}
	if !l.started {
		for _, s := range l.sockets {
			_ = s.Close()
		}
	}
	l.loops.Wait()
}

// open opens the sockets that programs need and that are not open yet. They accept
// nothing before listen.
func (e *Engine) open(progs []*program) error {
	var opened []graph.Listen
	for _, p := range progs {
		for _, n := range p.nodes {
			for _, want := range n.inst.Kind.Listens(n.inst.Config) {
				if e.listeners[want] != nil {
					continue
				}
				l, err := bind(want)
				if err != nil {
					for _, k := range opened {
						e.listeners[k].close()
						delete(e.listeners, k)
					}
					return p.graph.Failed(n.inst, err)
				}
				e.listeners[want] = l
				opened = append(opened, want)
			}
		}
	}
	return nil
}

// listen has every socket that programs need accept for its node, and closes the
// others.
func (e *Engine) listen(progs []*program) error {
	if err := e.open(progs); err != nil {
		return err
	}
	used := map[graph.Listen]bool{}
	for _, p := range progs {
		for _, n := range p.nodes {
			for _, want := range n.inst.Kind.Listens(n.inst.Config) {
				used[want] = true
				l := e.listeners[want]
				came, at := p.block.listen(n.inst.Name), l.bound()
				came.bound.Store(&at)
				l.target.Store(&target{p.block, n.inst.Name, came})
				if l.started {
					continue
				}
				l.started = true
				e.log.Info("listening", zap.String("stream", p.graph.Name), zap.String("node", n.inst.Name), zap.Stringer("address", l.bound()))
				for _, s := range l.sockets {
					l.loops.Add(1)
					go e.accept(l, s)
				}
			}
		}
	}
	for key, l := range e.listeners {
		if !used[key] {
			e.log.Info("no longer listening", zap.Stringer("address", l.bound()))
			l.close()
			delete(e.listeners, key)
		}
	}
	return nil
}

func bind(want graph.Listen) (*listener, error) {
	c := net.ListenConfig{KeepAlive: -1} // deadlines take its place, at no cost per connection
	if want.Sockets > 0 {
		c.Control = func(_, _ string, raw syscall.RawConn) error {
			var err error
			if cerr := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}); cerr != nil {
				return cerr
			}
			return err
		}
	}
	network := "tcp4"
	if want.Address.Addr().Is6() {
		network = "tcp6"
	}
	l := &listener{}
	address := want.Address
	for range max(1, want.Sockets) {
		s, err := c.Listen(context.Background(), network, address.String())
		if err != nil {
			for _, s := range l.sockets {
				_ = s.Close()
			}
			return nil, remedy(want.Address, err)
		}
		l.sockets = append(l.sockets, s.(*net.TCPListener))
		address = l.bound() // the port that the kernel chose, if it did
	}
	return l, nil
}

// remedy says what to do about an address that cannot be listened on.
func remedy(a netip.AddrPort, err error) error {
	var what string
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		what = "something else listens there (ss -ltnp names it). End that, or take another port"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		what = "this machine does not have the address. Add it to an interface, or take another one"
	case errors.Is(err, syscall.EACCES):
		what = "ports below 1024 need root or CAP_NET_BIND_SERVICE. Run as root, or take another port"
	default:
		return err
	}
	return fmt.Errorf("%s: %w: %s", a, errors.Unwrap(err), what)
}

// accept accepts connections of one socket until it is closed.
func (e *Engine) accept(l *listener, s *net.TCPListener) {
	defer l.loops.Done()
	defer s.Close()
	pause := time.Duration(0)
	var closing time.Time // when it is over at the latest
	for {
		c, err := s.Accept()
		switch {
		case err == nil:
			pause = 0
			e.admit(l, c)
		case stream.IsTimeout(err) && (closing.IsZero() || waiting(s) && time.Now().Before(closing)):
			// Closing: take what is in the queue, without waiting for more. On a busy
			// machine the deadline may pass before Accept has looked.
			if closing.IsZero() {
				closing = time.Now().Add(closeTime)
			}
			_ = s.SetDeadline(time.Now().Add(time.Millisecond))
		case errors.Is(err, net.ErrClosed) || stream.IsTimeout(err):
			return
		default:
			// No descriptors, or a client that left: go on, but not in a frenzy.
			l.target.Load().refused.Add(1)
			pause = min(max(2*pause, time.Millisecond), 100*time.Millisecond)
			e.log.Warn("accept", zap.Error(err), zap.Duration("pause", pause))
			time.Sleep(pause)
		}
	}
}

// closeTime is how long connections are accepted at most by a socket that closes, while
// ever more of them come.
const closeTime = time.Second

// waiting tells whether a connection waits to be accepted.
func waiting(s *net.TCPListener) (yes bool) {
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		yes = err == nil && n > 0
	})
	return yes
}

// admit has a new connection served.
func (e *Engine) admit(l *listener, nc net.Conn) {
	t := l.target.Load()
	c := &conn{engine: e, block: t.block, listening: t.listening}
	c.client.Conn = stream.NewConn(nc)
	c.client.Listener = t.node
	e.conns.add(c)
	e.serving.Add(1)
	n := t.accepted.Add(1)
	t.connections.Add(1)
	c.client.Measure(&t.bytes[n%meters])
	go c.serve()
}
