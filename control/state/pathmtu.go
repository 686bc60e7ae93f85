package state

import (
	"net/netip"
	"sync"
	"time"
)

// PathMTUKept is how long a path MTU that an error told of is believed (RFC 1191 §6.3).
const PathMTUKept = 10 * time.Minute

// PathMTUs lowers the MTU of backends for a while. The zero value with Store and Keep
// set is ready; its methods may be called from any goroutine.
type PathMTUs struct {
	Store *Store
	Keep  time.Duration

	mu     sync.Mutex
	timers map[netip.Addr]*learnedMTU
}

type learnedMTU struct {
	timer *time.Timer
	mtu   uint32
}

// Learn says that the way to a backend carries IP packets of mtu bytes only. It holds for
// Keep from the last time that this, or less, was said. What is no backend is
// passed over.
func (p *PathMTUs) Learn(backend netip.Addr, mtu uint32) {
	backend = backend.Unmap()
	if p.Store.Backend(backend) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.timers[backend]; l != nil {
		if mtu > l.mtu {
			return
		}
		if l.timer.Stop() {
			l.mtu = mtu
			l.timer.Reset(p.Keep)
			p.Store.SetMTU(backend, mtu)
			return
		}
	}
	if p.timers == nil {
		p.timers = map[netip.Addr]*learnedMTU{}
	}
	l := &learnedMTU{mtu: mtu}
	l.timer = time.AfterFunc(p.Keep, func() { p.forget(backend, l) })
	p.timers[backend] = l
	p.Store.SetMTU(backend, mtu)
}

func (p *PathMTUs) forget(backend netip.Addr, l *learnedMTU) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timers[backend] == l {
		delete(p.timers, backend)
		p.Store.SetMTU(backend, 0)
	}
}

// Close stops all timers; what was learned stays.
func (p *PathMTUs) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, l := range p.timers {
		l.timer.Stop()
		delete(p.timers, a)
	}
}
