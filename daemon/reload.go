package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
	"github.com/lbgraph/lbgraph/runtime"
)

// reloadTime bounds the start and stop of controls in a reload.
const reloadTime = 10 * time.Second

// A step is one part of a reload: what is done, and how that is undone when a later
// step fails; nil where nothing is left to be undone.
type step struct {
	name     string
	do, undo func() error
}

// Reload changes over to f. What it answers is the plan, carried out unless there
// is an error: then nothing has changed.
//
// What can fail for reasons of its own comes first, beside what runs: rules and
// graphs are built, new controls started, changed ones told. Then the state is
// published, so that new VIPs are known to the nodes before their packets are let
// in; the loops change over; and the XDP programs follow. Each step leaves what is
// safe to run with for however long.
func (d *Daemon) Reload(f *graph.File) (runtime.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	plan := Diff(d.file, f)
	if d.leaving.Load() || d.stopping.Load() {
		return plan, errors.New("the daemon stops")
	}
	if plan.Class() == runtime.Restart {
		return plan, &runtime.ErrRestart{Plan: plan}
	}
	controls, removed, steps, cancel := d.controlSteps(f)
	defer cancel()
	steps = append(d.graphSteps(f, steps), step{"admission", func() error { return d.xdp.update(f) }, func() error {
		return errors.Join(d.xdp.prepare(d.file), d.xdp.update(d.file))
	}})
	if err := d.walk(append(steps, step{name: "end", do: func() error { return nil }})); err != nil {
		return plan, err
	}
	d.install(controls)
	d.file = f
	d.findGateways(f)
	d.watchers.Range(func(_, f any) bool { f.(func())(); return true })
	// Whoever asked for the reload may be a request in the hands of a control that
	// goes; so nobody waits here.
	d.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), reloadTime)
		defer cancel()
		if err := d.stopControls(ctx, removed); err != nil {
			d.log.Warn("a control did not stop", zap.Error(err))
		}
	})
	return plan, nil
}

// walk takes the steps, and goes back if one fails.
func (d *Daemon) walk(steps []step) error {
	for i, s := range steps {
		err := d.hold(s.name)
		if err == nil {
			err = s.do()
		}
		if err == nil {
			continue
		}
		for j := i - 1; j >= 0; j-- {
			if steps[j].undo == nil {
				continue
			}
			if back := steps[j].undo(); back != nil {
				d.log.Error("a step of a reload that failed is not undone", zap.String("step", steps[j].name), zap.Error(back))
			}
		}
		return err
	}
	return nil
}

// hold lets tests stop a reload before a step, and let the step fail.
func (d *Daemon) hold(before string) error {
	if d.latch == nil {
		return nil
	}
	return d.latch(before)
}

// graphSteps puts the steps of state and graphs around those of controls.
func (d *Daemon) graphSteps(f *graph.File, controls []step) []step {
	old := d.file
	steps := []step{
		{"addresses", func() error { return d.lockedOut(f) }, nil},
		{"rules", func() error { return d.xdp.prepare(f) }, nil},
		{"tunnel", func() error { return d.followTunnel(f) }, func() error { return d.followTunnel(old) }},
	}
	var commits []step
	for _, g := range packetGraphs(f) {
		e := d.engine(g.Name)
		var c *runtime.Change
		taken := false
		steps = append(steps, step{"build " + g.Name, func() (err error) {
			c, err = e.Prepare(g)
			return err
		}, func() error {
			if !taken {
				c.Abort()
			}
			return nil
		}})
		commits = append(commits, step{"graph " + g.Name, func() error {
			taken = true
			return c.Commit()
		}, func() error {
			for _, was := range packetGraphs(old) {
				if was.Name == g.Name {
					return e.Swap(was)
				}
			}
			return nil
		}})
	}
	steps = append(steps, controls...)
	steps = append(steps, step{"state", func() error { return d.store.Apply(f.Spec) }, func() error { return d.store.Apply(old.Spec) }})
	steps = append(steps, commits...)
	return append(steps, d.streamSteps(f, old)...)
}

// controlSteps answers the controls of f, those that go, and the steps to get there.
// Controls that do not change keep running.
func (d *Daemon) controlSteps(f *graph.File) (next, removed []control, steps []step, cancel func()) {
	ctx, cancel := context.WithTimeout(context.Background(), reloadTime)
	running := map[string]control{}
	for _, c := range d.controls {
		running[c.key()] = c
	}
	for _, inst := range f.Controls {
		c, had := running[control{inst: inst}.key()]
		if had {
			delete(running, c.key())
			if !conf.Equal(c.inst.Config, inst.Config) {
				was := c.inst.Config
				steps = append(steps, step{"control " + c.key(), func() error {
					return c.wrap(c.Control.(graph.Reconfigurer).Reconfigure(inst.Config))
				}, func() error { return c.wrap(c.Control.(graph.Reconfigurer).Reconfigure(was)) }})
			}
			next = append(next, control{inst, c.Control})
			continue
		}
		at := len(next)
		next = append(next, control{inst: inst})
		steps = append(steps, step{"control " + next[at].key(), func() (err error) {
			if next[at], err = d.build(inst); err == nil {
				err = next[at].wrap(next[at].Start(ctx))
			}
			return err
		}, func() error { return next[at].Stop(ctx) }})
	}
	for _, c := range d.controls {
		if _, gone := running[c.key()]; gone {
			removed = append(removed, c)
		}
	}
	return next, removed, steps, cancel
}

// install makes controls those that run. Whoever drained the node, or ended that, while
// they were being made told only those of before: so all are told again.
func (d *Daemon) install(controls []control) {
	d.draining.Lock()
	defer d.draining.Unlock()
	d.shared.Lock()
	d.controls = controls
	is := len(d.drained) > 0
	d.shared.Unlock()
	for _, c := range controls {
		if s, ok := c.Control.(drainable); ok {
			s.SetDrained(is)
		}
	}
}

// build makes a control, and tells it what the node was told.
func (d *Daemon) build(inst *graph.Instance) (control, error) {
	c := control{inst: inst}
	ctl, err := inst.Kind.Control(inst.Config, d.env(inst))
	if err != nil {
		return c, c.wrap(err)
	}
	c.Control = ctl
	if s, ok := ctl.(drainable); ok && len(d.Drained()) > 0 {
		s.SetDrained(true)
	}
	return c, nil
}

// key tells the control blocks of a file apart. Where a file can have one of a kind, its
// name makes no difference.
func (c control) key() string {
	if c.inst.Kind.Single || c.inst.Name == c.inst.Kind.Name {
		return c.inst.Kind.Name
	}
	return c.inst.Kind.Name + " " + c.inst.Name
}

func (c control) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", c.key(), err)
}
