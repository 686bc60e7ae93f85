// Package daemon runs what a file declares: the state, an engine for every packet
// graph, and the controls beside them. It is what lbgraph run is; tests run it in
// their own process.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
	"github.com/lbgraph/lbgraph/io/umem"
	"github.com/lbgraph/lbgraph/runtime"
)

// Options is what a Daemon is given.
type Options struct {
	Version string
	Log     *zap.Logger
	// Drivers replaces or adds drivers by name; those of the package are "xdp",
	// "pcap" and "gen".
	Drivers map[string]runtime.Driver
	// Replace takes an XDP program of somebody else off the interfaces.
	Replace bool
}

// Daemon is a running file. Its methods may be called from any goroutine, but for
// Start, Reload and Stop, which exclude each other.
type Daemon struct {
	opts     Options
	log      *zap.Logger
	store    *state.Store
	paths    state.PathMTUs
	xdp      *xdpDriver
	engines  []*runtime.Engine
	controls []control
	started  time.Time
	stopping atomic.Bool
	ready    atomic.Bool

	mu   sync.Mutex // over a reload
	file *graph.File

	gateways atomic.Pointer[[]netip.Addr]

	watchers sync.Map // of func(), by a key of its own: called when targets of checks change
}

type control struct {
	inst *graph.Instance
	graph.Control
}

// staleAfter is how long a loop may be silent until the daemon counts as sick.
const staleAfter = time.Second

// New prepares f to run: state, ports, nodes. Nothing moves before Start. On error
// nothing stays behind.
func New(f *graph.File, o Options) (d *Daemon, err error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	d = &Daemon{opts: o, log: o.Log, file: f, store: state.NewStore()}
	defer func() {
		if err != nil {
			d.close()
			d = nil
		}
	}()
	d.paths.Store, d.paths.Keep = d.store, state.PathMTUKept
	if err = d.store.Apply(f.Spec); err != nil {
		return d, err
	}
	d.xdp = &xdpDriver{file: f, replace: o.Replace, log: o.Log}
	drivers := map[string]runtime.Driver{"xdp": d.xdp, "pcap": pcapDriver{}, "gen": genDriver{}}
	for name, driver := range o.Drivers {
		drivers[name] = driver
	}
	for _, g := range f.Graphs {
		if g.Plane != graph.PacketPlane {
			continue
		}
		e, err := runtime.New(g, runtime.Options{
			State: d.store.Cell(), Watch: d.store.Watch, Drivers: drivers, Log: o.Log, Host: d,
			Memory: func(frames, chunk int) (runtime.Memory, error) {
				return umem.New(frames, uint32(chunk), false)
			},
		})
		if err != nil {
			return d, err
		}
		d.engines = append(d.engines, e)
	}
	if err = d.lockedOut(f); err != nil {
		return d, err
	}
	d.findGateways(f)
	for _, c := range f.Controls {
		ctl, err := c.Kind.Control(c.Config, d.env(c))
		if err != nil {
			return d, fmt.Errorf("%s: %w", c.Kind.Name, err)
		}
		d.controls = append(d.controls, control{c, ctl})
	}
	return d, nil
}

func (d *Daemon) env(c *graph.Instance) *graph.Env {
	return &graph.Env{Node: c.Name, State: d.store.Cell(), Watch: func(f func(*state.Snapshot)) { d.store.Watch(f) }, Host: d, Log: d.log.Named(c.Kind.Name)}
}

// Start runs loops and controls. On error everything is closed again.
func (d *Daemon) Start(ctx context.Context) error {
	for _, e := range d.engines {
		if err := e.Start(); err != nil {
			d.close()
			return err
		}
		for _, p := range e.Ports() {
			i := p.Info()
			d.log.Info("port is open", zap.String("port", i.Name), zap.String("mode", i.Mode), zap.Int("queues", p.Queues()), zap.Int("cores", e.Cores()))
		}
	}
	for i, c := range d.controls {
		if err := c.Start(ctx); err != nil {
			d.stopControls(ctx, d.controls[:i])
			d.close()
			return err
		}
	}
	d.started = time.Now()
	d.ready.Store(true)
	return nil
}

// Stop ends controls in the reverse order of their start, then the loops, and
// closes all ports: nothing stays attached.
func (d *Daemon) Stop(ctx context.Context) error {
	d.stopping.Store(true)
	d.ready.Store(false)
	err := d.stopControls(ctx, d.controls)
	d.close()
	return err
}

func (d *Daemon) stopControls(ctx context.Context, controls []control) error {
	var errs []error
	for i := len(controls) - 1; i >= 0; i-- {
		if err := controls[i].Stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", controls[i].inst.Kind.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (d *Daemon) close() {
	for _, e := range d.engines {
		e.Stop()
	}
	if d.xdp != nil {
		d.xdp.close()
	}
	d.store.Close()
}

// Run starts the daemon, says so, and stops it when ctx ends.
func (d *Daemon) Run(ctx context.Context) error {
	if err := d.Start(ctx); err != nil {
		return err
	}
	d.log.Info("running", zap.Int("graphs", len(d.engines)))
	<-ctx.Done()
	d.log.Info("stopping")
	// A deadline of its own: ctx has ended.
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := d.Stop(end)
	d.log.Info("stopped")
	return err
}

// Reload changes over to f. What it answers is the plan, carried out unless there
// is an error: then nothing has changed.
func (d *Daemon) Reload(f *graph.File) (runtime.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	plan := Diff(d.file, f)
	if plan.Class() == runtime.Restart {
		return plan, &runtime.ErrRestart{Plan: plan}
	}
	if err := d.lockedOut(f); err != nil {
		return plan, err
	}
	if err := d.xdp.prepare(f); err != nil {
		return plan, err
	}
	// New VIPs are known to the nodes before their packets are let in, old ones
	// are forgotten after.
	if err := d.store.Apply(f.Spec); err != nil {
		return plan, err
	}
	for i, g := range packetGraphs(f) {
		if err := d.engines[i].Swap(g); err != nil {
			// Engines before this one run their new graph; state and files agree
			// again by going back to the old file.
			for j, old := range packetGraphs(d.file)[:i] {
				if back := d.engines[j].Swap(old); back != nil {
					d.log.Error("a graph did not go back", zap.String("graph", old.Name), zap.Error(back))
				}
			}
			if back := d.store.Apply(d.file.Spec); back != nil {
				d.log.Error("the state did not go back", zap.Error(back))
			}
			return plan, err
		}
	}
	if err := d.xdp.update(f); err != nil {
		return plan, err
	}
	if err := d.reloadControls(f); err != nil {
		return plan, err
	}
	d.file = f
	d.findGateways(f)
	d.watchers.Range(func(_, f any) bool { f.(func())(); return true })
	return plan, nil
}

// reloadControls changes, starts and stops controls. Those that do not change keep
// running.
func (d *Daemon) reloadControls(f *graph.File) error {
	var next []control
	var errs []error
	ctx, cancel := context.WithTimeout(context.Background(), reloadTime)
	defer cancel()
	running := map[string]control{}
	for _, c := range d.controls {
		running[c.inst.Kind.Name+" "+c.inst.Name] = c
	}
	for _, inst := range f.Controls {
		key := inst.Kind.Name + " " + inst.Name
		if c, ok := running[key]; ok {
			delete(running, key)
			if !conf.Equal(c.inst.Config, inst.Config) {
				if err := c.Control.(graph.Reconfigurer).Reconfigure(inst.Config); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", key, err))
					inst = c.inst
				}
			}
			next = append(next, control{inst, c.Control})
			continue
		}
		ctl, err := inst.Kind.Control(inst.Config, d.env(inst))
		if err == nil {
			err = ctl.Start(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
			continue
		}
		next = append(next, control{inst, ctl})
	}
	for key, c := range running {
		if err := c.Stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	d.controls = next
	return errors.Join(errs...)
}

// reloadTime bounds the start and stop of controls in a reload.
const reloadTime = 10 * time.Second

func packetGraphs(f *graph.File) (gs []*graph.Graph) {
	for _, g := range f.Graphs {
		if g.Plane == graph.PacketPlane {
			gs = append(gs, g)
		}
	}
	return gs
}

// Stats answers the counts of every packet graph. What the XDP program dropped
// counts as received and dropped, under the reasons' names.
func (d *Daemon) Stats() []graph.Stats {
	all := make([]graph.Stats, len(d.engines))
	for i, e := range d.engines {
		all[i] = e.Stats()
		d.xdp.addTo(&all[i])
	}
	return all
}

// Snapshot is the current state.
func (d *Daemon) Snapshot() *state.Snapshot { return d.store.Cell().Load() }

// Store is what the state is kept in.
func (d *Daemon) Store() *state.Store { return d.store }

// SetHealth takes what a check found out.
func (d *Daemon) SetHealth(t state.Target, h state.Health) { d.store.SetHealth(t, h) }

// WatchTargets calls f whenever the targets of checks may have changed, until stop.
func (d *Daemon) WatchTargets(f func()) (stop func()) {
	key := new(int)
	d.watchers.Store(key, f)
	return func() { d.watchers.Delete(key) }
}

// TunnelMTU takes what an ICMP error told of the path to a backend.
func (d *Daemon) TunnelMTU(backend netip.Addr, mtu int) { d.paths.Learn(backend, uint32(mtu)) }

// Version is the program's version.
func (d *Daemon) Version() string { return d.opts.Version }

// Healthy is nil while every loop passes.
func (d *Daemon) Healthy() error {
	if d.stopping.Load() {
		return errors.New("stopping")
	}
	for _, e := range d.engines {
		if t := e.LastPass(); t > staleAfter {
			return fmt.Errorf("a loop has not passed for %v", t.Round(time.Millisecond))
		}
	}
	return d.xdp.attached()
}

// Ready is nil while traffic may come.
func (d *Daemon) Ready() error {
	if !d.ready.Load() {
		return errors.New("not ready: starting or stopping")
	}
	return d.Healthy()
}
