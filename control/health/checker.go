package health

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/state"
)

// Checker is one health block at work.
type Checker struct {
	name    string
	host    Host
	log     *zap.Logger
	cancel  context.CancelFunc
	unwatch func()
	running sync.WaitGroup // the scheduler and the probes
	wake    chan struct{}

	mu      sync.Mutex
	prober  *prober
	targets map[state.Target]*target
	due     queue
	active  int
	again   bool // targets are to be found out again
}

// target is what is known about one target.
type target struct {
	state.Target
	vips   []netip.AddrPort // on it, to be asked through the tunnel; port 0 is not known
	health state.Health
	streak int // results in a row that speak against health, or for a first verdict
	last   bool
	probed bool
	at     time.Time // of the next probe
	index  int       // in the queue; −1 while a probe runs or the target is gone
	gone   bool
	err    error
	took   time.Duration
}

// Start probes all targets, the first time spread over the interval's beginning so
// that thousands are not asked in the same millisecond.
func (c *Checker) Start(context.Context) error {
	if err := c.prober.open(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.targets = map[state.Target]*target{}
	c.again = true
	c.unwatch = c.host.WatchTargets(func() {
		c.mu.Lock()
		c.again = true
		c.mu.Unlock()
		c.poke()
	})
	c.running.Add(1)
	go c.schedule(ctx)
	return nil
}

func (c *Checker) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// hurry makes all targets due soon.
func (c *Checker) hurry() {
	c.mu.Lock()
	for _, t := range c.targets {
		if t.index >= 0 {
			t.at = time.Now().Add(c.prober.first())
			heap.Fix(&c.due, t.index)
		}
	}
	c.mu.Unlock()
	c.poke()
}

func (c *Checker) schedule(ctx context.Context) {
	defer c.running.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(c.dispatch(ctx))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.wake:
		}
	}
}

// dispatch starts the probes that are due and answers how long nothing else is.
func (c *Checker) dispatch(ctx context.Context) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.again {
		c.again = false
		c.retarget()
	}
	now := time.Now()
	for len(c.due) > 0 && c.active < c.prober.cfg.Parallel {
		t := c.due[0]
		if wait := t.at.Sub(now); wait > 0 {
			return wait
		}
		heap.Pop(&c.due)
		c.active++
		c.running.Add(1)
		go c.probe(ctx, t, c.prober, t.vips)
	}
	// A probe that ends, or a change of targets, wakes the scheduler.
	return time.Hour
}

// retarget takes over the targets of the current snapshot: new ones are due soon,
// old ones keep their state and time.
func (c *Checker) retarget() {
	want, s := map[state.Target]bool{}, c.host.Snapshot()
	var vips map[state.Target][]netip.AddrPort
	if c.prober.tunnel != nil {
		vips = vipsOf(s, c.name)
	}
	for _, t := range s.Targets() {
		if t.Check != c.name {
			continue
		}
		want[t] = true
		if c.targets[t] == nil {
			n := &target{Target: t, at: time.Now().Add(c.prober.first())}
			c.targets[t] = n
			heap.Push(&c.due, n)
		}
		c.targets[t].vips = vips[t]
	}
	for k, t := range c.targets {
		if !want[k] {
			t.gone = true
			if t.index >= 0 {
				heap.Remove(&c.due, t.index)
			}
			delete(c.targets, k)
		}
	}
}

func (c *Checker) probe(ctx context.Context, t *target, p *prober, vips []netip.AddrPort) {
	defer c.running.Done()
	begun := time.Now()
	err := p.probe(ctx, t.Target, vips)
	took := time.Since(begun)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	now, changed, gone := t.health, false, t.gone
	if c.prober == p { // else it has changed meanwhile: what the old one found says nothing
		now, changed = t.judge(err, took, p.cfg.Rise, p.cfg.Fall)
	}
	c.mu.Unlock()
	if changed && !gone {
		f := []zap.Field{zap.String("health", c.name), zap.String("backend", t.where()), zap.Stringer("state", now)}
		if err != nil {
			f = append(f, zap.Error(err))
		}
		c.log.Info("a backend changes its state", f...)
	}
	// It is told each time, for the state may have forgotten: a reload that was taken
	// back, or two in a row, can take a target away and bring it again unseen.
	if now != state.Unknown && !gone {
		c.host.SetHealth(t.Target, now)
	}
	c.mu.Lock()
	c.active--
	if t.at = begun.Add(p.jittered()); c.prober != p {
		t.at = time.Now().Add(c.prober.first())
	}
	if !t.gone {
		heap.Push(&c.due, t) // only now, so that what is told comes in order
	}
	c.mu.Unlock()
	c.poke()
}

// where is the backend as the log names it: with its port where the file gives one.
func (t *target) where() string {
	if t.Port == 0 {
		return t.Addr.String()
	}
	return netip.AddrPortFrom(t.Addr, uint16(t.Port)).String()
}

// judge takes one result. The state changes after rise successes or fall failures
// in a row.
func (t *target) judge(err error, took time.Duration, rise, fall int) (now state.Health, changed bool) {
	ok := err == nil
	if !t.probed || ok != t.last {
		t.streak = 0
	}
	t.probed, t.last, t.err, t.took = true, ok, err, took
	t.streak++
	now = t.health
	switch {
	case ok && t.streak >= rise:
		now = state.Healthy
	case !ok && t.streak >= fall:
		now = state.Unhealthy
	}
	changed = now != t.health
	t.health = now
	return now, changed
}

// Result is what a checker knows about a target.
type Result struct {
	Target state.Target
	Health state.Health
	Probed bool
	Took   time.Duration // the last probe
	Err    error         // of the last probe
}

// Results answers what is known, in no order.
func (c *Checker) Results() []Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Result, 0, len(c.targets))
	for _, t := range c.targets {
		all = append(all, Result{t.Target, t.health, t.probed, t.took, t.err})
	}
	return all
}

// queue is a heap of targets by the time of their next probe.
type queue []*target

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *queue) Push(x any) { t := x.(*target); t.index = len(*q); *q = append(*q, t) }
func (q *queue) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	t.index = -1
	return t
}

// jittered is the interval, give or take a tenth.
func (p *prober) jittered() time.Duration {
	i := int64(p.cfg.Interval)
	return time.Duration(i - i/10 + rand.Int64N(i/5+1))
}

// first is the delay of a target's first probe: within a fifth of the interval, a
// second at most.
func (p *prober) first() time.Duration {
	return time.Duration(rand.Int64N(int64(min(p.cfg.Interval/5, time.Second)) + 1))
}
