// Package neigh is the control kind neigh: it follows the kernel's routes and
// neighbours and tells the state at which hardware address backends and gateways
// are reached, for nodes whose next_hop is kernel or a gateway.
//
// The packet plane sends past the kernel, which therefore sees no traffic to the
// neighbours and would let their entries grow old. So this kind also asks for what
// is not known, and for what is known now and then.
package neigh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// Config is the arguments of a neigh block.
type Config struct {
	Interface string        `hcl:"interface,optional" doc:"interface that frames leave by; by default the one that the route to each backend names"`
	Probe     time.Duration `hcl:"probe,optional" range:"0s,10m" doc:"how often a next hop is asked whether it is still there; 0s leaves that to the kernel"`
}

// Host is what the kind needs of the daemon. Its methods may be called from any
// goroutine.
type Host interface {
	// Snapshot is the current state, whose backends are looked for.
	Snapshot() *state.Snapshot
	// Gateways are the addresses that next_hop arguments name.
	Gateways() []netip.Addr
	// SetNeighbour takes the hardware address by which a backend or gateway is
	// reached; ok is false when there is none.
	SetNeighbour(addr netip.Addr, mac [6]byte, ok bool)
	// SetRoute takes whether the kernel has a way to a backend.
	SetRoute(addr netip.Addr, ok bool)
	// WatchTargets calls f after a reload, until stop.
	WatchTargets(f func()) (stop func())
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "neigh",
		Summary:  "follows the kernel's routes and neighbours to find the next hops of backends and gateways",
		Single:   true,
		Live:     true,
		Defaults: Config{Probe: 5 * time.Second},
		Control: func(c Config, e *graph.Env) (graph.Control, error) {
			h, ok := e.Host.(Host)
			if !ok {
				return nil, errors.New("neigh has no daemon to tell")
			}
			return &control{cfg: c, host: h, watch: e.Watch, log: e.Log, wake: make(chan struct{}, 1), fresh: make(chan Config)}, nil
		},
	})
}

// control is a running neigh block. One goroutine follows and tells.
type control struct {
	cfg   Config
	host  Host
	watch func(func(*state.Snapshot))
	log   *zap.Logger

	wake   chan struct{} // targets may have changed
	fresh  chan Config
	cancel context.CancelFunc
	done   chan struct{}
	stop   func()
}

// Start subscribes to the kernel's tables in the network namespace of the calling
// thread, reads them, and follows them from then on.
func (c *control) Start(context.Context) error {
	k, err := openKernel()
	if err != nil {
		return fmt.Errorf("neigh: the kernel's tables cannot be followed: %w", err)
	}
	f := newFollower(k, c.cfg, c.host, c.log)
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.done = cancel, make(chan struct{})
	poke := func() {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	c.watch(func(*state.Snapshot) { poke() })
	c.stop = c.host.WatchTargets(poke)
	go func() {
		defer close(c.done)
		defer k.close()
		c.run(ctx, k, f)
	}()
	return nil
}

// Stop ends the following. What the state knows of neighbours stays.
func (c *control) Stop(ctx context.Context) error {
	if c.done == nil {
		return nil
	}
	c.stop()
	c.cancel()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reconfigure takes a changed block.
func (c *control) Reconfigure(config any) error {
	select {
	case c.fresh <- *config.(*Config):
	case <-c.done:
	}
	return nil
}

func (c *control) run(ctx context.Context, k *kernel, f *follower) {
	at := time.Now().Add(tickEvery) // of the next work
	timer := time.NewTimer(tickEvery)
	defer timer.Stop()
	for {
		heard, due := true, false
		select {
		case <-ctx.Done():
			return
		case f.cfg = <-c.fresh:
			f.routesChanged()
		case <-c.wake:
			f.setTargets(targets(c.host))
		case e, ok := <-k.neighbours:
			if heard = ok; ok {
				if u, ok := read(&e); ok {
					f.neighbour(u)
				}
			}
		case _, heard = <-k.routes:
			f.routesChanged()
		case _, heard = <-k.links:
			f.routesChanged()
		case <-timer.C:
			heard, due = k.neighbours != nil, true
		}
		if !heard {
			// The kernel had more to say than we took, or refused to begin: all is read
			// again.
			k.unsubscribe()
			if err := k.subscribe(); err != nil {
				c.log.Error("the kernel's tables cannot be followed", zap.Error(err))
			}
			f.routesChanged()
		}
		now := time.Now()
		at = f.turn(now, at, due)
		if k.neighbours == nil {
			at = now.Add(tickEvery)
		}
		timer.Reset(max(0, at.Sub(now)))
	}
}

// tickEvery gathers changes of routes, and is the least time between two looks at what
// is due.
const tickEvery = 50 * time.Millisecond

// targets are all addresses that need a hardware address.
func targets(h Host) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, b := range h.Snapshot().Backends {
		if b.ID != 0 && b.Addr.IsValid() {
			all[b.Addr.Unmap()] = true
		}
	}
	for _, g := range h.Gateways() {
		all[g.Unmap()] = true
	}
	return all
}
