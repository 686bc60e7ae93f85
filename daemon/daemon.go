// Package daemon runs what a file declares: the state, an engine for every packet
// graph, and the controls beside them. It is what lbgraph run is; tests run it in
// their own process.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/umem"
	"github.com/lbgraph/lbgraph/runtime"
	"github.com/lbgraph/lbgraph/runtime/streams"
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
	// Batch is the most packets that a queue of an interface gives at once; 0 is
	// packet.Size.
	Batch int
	// Loaded is what the file that New gets was read from, to be read again; with
	// LastGood it is what was wrong with it, and LastGood what New gets instead.
	// Without it nothing is read again.
	Loaded   Loaded
	LastGood *Loaded
	// SetLog changes the form and level of log lines; nil leaves them.
	SetLog func(format, level string) error
}

// Daemon is a running file. Its methods may be called from any goroutine, but for
// Start, which comes first.
type Daemon struct {
	opts     Options
	log      *zap.Logger
	store    *state.Store
	paths    state.PathMTUs
	xdp      *xdpDriver
	engines  []graphEngine
	started  time.Time
	leaving  atomic.Bool // drains in order to stop
	stopping atomic.Bool
	stopped  sync.Once

	streams     *streams.Engine
	streamsOnce sync.Once // over its stop

	ready      atomic.Bool
	notify     notifier
	background sync.WaitGroup          // what a reload left to be done
	latch      func(step string) error // of tests
	sampling   sync.Mutex              // while a command samples packets
	following  sync.Mutex              // while one samples sessions

	mu   sync.Mutex // over a reload, and over the stop
	file *graph.File

	draining sync.Mutex   // over SetDrained
	shared   sync.RWMutex // guards what follows
	controls []control
	drained  map[string]bool // by whom
	timing   int             // how many want every vector timed
	config   configuration

	gateways atomic.Pointer[[]netip.Addr]
	tunnel   tunnel

	watchers sync.Map // of func(), by a key of its own: called when targets of checks change
}

type graphEngine struct {
	name string
	*runtime.Engine
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
	d = &Daemon{opts: o, log: o.Log, file: f, store: state.NewStore(), drained: map[string]bool{}}
	d.begin()
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
	d.xdp = &xdpDriver{file: f, replace: o.Replace, batch: o.Batch, log: o.Log}
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
		d.engines = append(d.engines, graphEngine{g.Name, e})
	}
	if err = d.openStreams(f); err != nil {
		return d, err
	}
	if err = d.lockedOut(f); err != nil {
		return d, err
	}
	d.findGateways(f)
	if err = d.followTunnel(f); err != nil {
		return d, err
	}
	for _, inst := range f.Controls {
		c, err := d.build(inst)
		if err != nil {
			return d, err
		}
		d.controls = append(d.controls, c)
	}
	return d, nil
}

// engine answers the engine that runs the graph of that name.
func (d *Daemon) engine(name string) *runtime.Engine {
	for _, e := range d.engines {
		if e.name == name {
			return e.Engine
		}
	}
	return nil
}

func (d *Daemon) env(c *graph.Instance) *graph.Env {
	return &graph.Env{Node: c.Name, State: d.store.Cell(), Watch: func(f func(*state.Snapshot)) { d.store.Watch(f) }, Host: d, Log: d.log.Named(c.Kind.Name)}
}

// Start runs loops and controls. On error everything is closed again.
func (d *Daemon) Start(ctx context.Context) error {
	d.started = time.Now() // before controls, which tell it
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
	if err := d.streams.Start(); err != nil {
		d.close()
		return err
	}
	d.config.reading.Go(d.read)
	for i, c := range d.controls {
		if err := c.Start(ctx); err != nil {
			d.stopReading()
			d.stopControls(ctx, d.controls[:i])
			d.close()
			return err
		}
	}
	d.ready.Store(true)
	return nil
}

func (d *Daemon) stopReading() {
	d.stopped.Do(func() { close(d.config.quit) })
	d.config.reading.Wait()
}

// Stop ends controls in the reverse order of their start, then the loops, and
// closes all ports: nothing stays attached. A reload in hand is waited for.
func (d *Daemon) Stop(ctx context.Context) error {
	d.stopping.Store(true)
	d.ready.Store(false)
	d.stopReading()
	d.mu.Lock() // reloads that a program asked for
	defer d.mu.Unlock()
	d.background.Wait()
	d.stopStreams(ctx)
	err := d.stopControls(ctx, d.running())
	d.close()
	return err
}

// Drain has all controls send traffic elsewhere, for good, and answers when none is
// expected any more. Loops go on forwarding.
func (d *Daemon) Drain(ctx context.Context) error {
	d.leaving.Store(true)
	d.ready.Store(false)
	all := d.running()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, c := range all {
		if x, ok := c.Control.(graph.Drainer); ok {
			wg.Go(func() { errs[i] = c.wrap(x.Drain(ctx)) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
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
	d.stopStreams(context.Background())
	for _, e := range d.engines {
		e.Stop()
	}
	if d.xdp != nil {
		d.xdp.close()
	}
	d.store.Close()
}

// stopTime bounds the stop of controls.
const stopTime = 10 * time.Second

// Run starts the daemon, says so, and drains and stops it when ctx ends. It keeps
// the service manager informed, if the process has one.
func (d *Daemon) Run(ctx context.Context) (err error) {
	if d.notify, err = newNotifier(os.Getenv, os.Getpid()); err != nil {
		d.log.Warn("running without a service manager", zap.Error(err))
	}
	defer d.notify.close()
	path := d.file.Path // a reload may come as soon as it has started
	if err := d.Start(ctx); err != nil {
		return err
	}
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		d.watch(stop)
	}()
	defer func() {
		close(stop)
		<-watched
	}()
	d.log.Info("running", zap.String("file", path), zap.Int("graphs", len(d.engines)), zap.Int("streams", len(d.StreamStats())), zap.Int("controls", len(d.running())))
	d.say("READY=1", "STATUS=running "+path)
	<-ctx.Done()
	d.log.Info("stopping: traffic is sent elsewhere first")
	d.say("STOPPING=1", "STATUS=draining")
	// Contexts of their own: ctx has ended. Draining takes as long as the file says; a
	// second signal ends the process.
	if err := d.Drain(context.Background()); err != nil {
		d.log.Warn("the node is not drained", zap.Error(err))
	}
	d.say("STATUS=stopping")
	d.stopStreams(context.Background())
	end, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if err := d.Stop(end); err != nil {
		// Everything is closed all the same, or ends with the process.
		d.log.Warn("not everything stopped in time", zap.Error(err))
	}
	d.log.Info("stopped")
	return nil
}

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

// WatchTargets calls f whenever the targets of checks may have changed, until stop:
// nothing but a reload changes them.
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
	if err := d.passing(); err != nil {
		return err
	}
	return d.xdp.attached()
}

// passing is nil while every loop passes.
func (d *Daemon) passing() error {
	for _, e := range d.engines {
		if t := e.LastPass(); t > staleAfter {
			return fmt.Errorf("a loop has not passed for %v", t.Round(time.Millisecond))
		}
	}
	return nil
}

// Ready is nil while traffic may come.
func (d *Daemon) Ready() error {
	if !d.ready.Load() {
		return errors.New("not ready: starting or stopping")
	}
	if by := d.Drained(); len(by) > 0 {
		return fmt.Errorf("drained by %s", strings.Join(by, ", "))
	}
	return d.Healthy()
}
