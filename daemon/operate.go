package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/control/bgp"
	"github.com/lbgraph/lbgraph/control/health"
	"github.com/lbgraph/lbgraph/control/metrics"
)

// drainable is a control that has traffic go elsewhere while the node is drained.
type drainable interface{ SetDrained(bool) }

// Drained says who drains the node; nobody is nil.
func (d *Daemon) Drained() []string {
	d.shared.RLock()
	defer d.shared.RUnlock()
	return slices.Sorted(maps.Keys(d.drained))
}

// SetDrained drains the node by command, or ends that: routes are withdrawn, the
// node is not ready, and what comes is forwarded all the same.
func (d *Daemon) SetDrained(on bool) { d.HoldDrained("command", on) }

// HoldDrained is SetDrained for whoever has a reason of his own; the node is drained
// while anybody wants it.
func (d *Daemon) HoldDrained(who string, on bool) {
	d.draining.Lock()
	defer d.draining.Unlock()
	d.shared.Lock()
	was := len(d.drained) > 0
	if on {
		d.drained[who] = true
	} else {
		delete(d.drained, who)
	}
	is := len(d.drained) > 0
	controls := d.controls
	d.shared.Unlock()
	if was == is {
		return
	}
	for _, c := range controls {
		if s, ok := c.Control.(drainable); ok {
			s.SetDrained(is)
		}
	}
	if is {
		d.log.Info("the node is drained", zap.String("by", who))
	} else {
		d.log.Info("the node is drained no more", zap.String("by", who))
	}
}

// ChangeBackend carries out an order of an operator. What it changes is in force when
// it returns.
func (d *Daemon) ChangeBackend(pool, name string, c admin.Change) error {
	snap := d.Snapshot()
	p, slot, ok := snap.Find(pool, name)
	if !ok {
		return d.noBackend(pool, name)
	}
	var err error
	what := ""
	switch {
	case c.Drain:
		what, err = "drained", d.store.Drain(pool, name, true, !c.UntilReload)
	case c.Enable:
		what, err = "enabled", d.store.Drain(pool, name, false, !c.UntilReload)
	case c.Weight != nil:
		what, err = fmt.Sprintf("weight %d", *c.Weight), d.store.SetWeight(pool, name, *c.Weight, !c.UntilReload)
	case c.Restore:
		what, err = "as the file says", d.store.Restore(pool, name)
	case c.Flush:
		what = "flows forgotten"
		for _, e := range d.engines {
			e.Flush(p.Members[slot].Backend)
		}
	default:
		err = errors.New("there is no order")
	}
	if err != nil {
		return err
	}
	d.store.Flush()
	d.log.Info("a backend is changed by command", zap.String("backend", pool+"/"+name), zap.String("to", what), zap.Bool("until reload", c.UntilReload))
	return nil
}

// noBackend says what there is instead.
func (d *Daemon) noBackend(pool, name string) error {
	var pools, members []string
	for i := range d.Snapshot().Pools {
		p := &d.Snapshot().Pools[i]
		if p.ID == 0 {
			continue
		}
		pools = append(pools, p.Name)
		for _, m := range p.Members {
			if p.Name == pool && m.Backend != 0 && !m.Removed {
				members = append(members, m.Name)
			}
		}
	}
	if members != nil {
		return admin.NotFound(fmt.Sprintf("pool %q has no backend %q. It has %s", pool, name, some(members)))
	}
	return admin.NotFound(fmt.Sprintf("there is no pool %q. There are %s", pool, some(pools)))
}

// some lists the first of many names.
func some(names []string) string {
	const most = 10
	slices.Sort(names)
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Details is what control blocks say of themselves, by kind and name.
func (d *Daemon) Details() map[string]any {
	all := map[string]any{}
	for _, c := range d.running() {
		switch x := c.Control.(type) {
		case *bgp.Control:
			all[c.key()] = x.Status()
		case *health.Checker:
			all[c.key()] = probes(x.Results())
		}
	}
	return all
}

// Probe is what a health check knows of a backend.
type Probe struct {
	Address string  `json:"address"`
	Port    int     `json:"port,omitempty"`
	Health  string  `json:"health"`
	Probed  bool    `json:"probed"`
	Seconds float64 `json:"seconds"` // that the last probe took
	Error   string  `json:"error,omitempty"`
}

func probes(results []health.Result) []Probe {
	all := make([]Probe, 0, len(results))
	for _, r := range results {
		p := Probe{Address: r.Target.Addr.String(), Port: r.Target.Port, Health: r.Health.String(), Probed: r.Probed, Seconds: r.Took.Seconds()}
		if r.Err != nil {
			p.Error = r.Err.Error()
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Probe) int { return cmp.Or(cmp.Compare(a.Address, b.Address), a.Port-b.Port) })
	return all
}

// Collectors are the controls that count for themselves, and the daemon's own counts.
func (d *Daemon) Collectors() []prometheus.Collector {
	all := []prometheus.Collector{collector{d}}
	for _, c := range d.running() {
		if x, ok := c.Control.(prometheus.Collector); ok {
			all = append(all, x)
		}
	}
	return all
}

// Described answers collectors that describe every metric that a daemon can have; they
// have nothing to collect from.
func Described() []prometheus.Collector {
	return []prometheus.Collector{metrics.Collector(nil), collector{}, (*bgp.Control)(nil)}
}

func (d *Daemon) running() []control {
	d.shared.RLock()
	defer d.shared.RUnlock()
	return d.controls
}

// SetLog changes the form and level of log lines. A daemon that stops says its last
// lines as it said all others.
func (d *Daemon) SetLog(format, level string) error {
	if d.opts.SetLog == nil || d.stopping.Load() {
		return nil
	}
	return d.opts.SetLog(format, level)
}
