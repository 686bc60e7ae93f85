package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/lbgraph/lbgraph/control/reload"
)

// copy puts the file and all that it includes where the balancers run.
func (d *demo) copy() error {
	for path, text := range d.Sources {
		rel, err := filepath.Rel(filepath.Dir(d.File.Path), path)
		if err != nil || !filepath.IsLocal(rel) {
			return fmt.Errorf("%s: the demo runs a copy of the file, so what it includes must be beside it, not at %s", d.File.Path, path)
		}
		to := filepath.Join(d.net.conf(), rel)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// watched says whether the file has itself read again when it changes.
func (d *demo) watched() bool {
	for _, c := range d.File.Controls {
		if r, ok := c.Config.(*reload.Config); ok {
			return r.Watch
		}
	}
	return false
}

// reload adds a VIP to the file under the flows, then makes the file wrong.
func (d *demo) reload(ctx context.Context, c *crowd) error {
	name := filepath.Base(d.File.Path)
	how := "it is watched"
	if !d.watched() {
		how = "SIGHUP"
	}
	d.say("\nThe file is changed, at both balancers (%s): port %d of %s comes in", how, d.added.Port(), d.added.Addr())
	before := c.look()
	text := string(d.Sources[d.File.Path])
	vip := fmt.Sprintf("\nvip \"demo\" {\n  address  = %q\n  protocol = \"tcp\"\n  ports    = [%d]\n  pool     = pool.%s\n}\n", d.added.Addr(), d.added.Port(), d.pool)
	if err := d.write(text + vip); err != nil {
		return err
	}
	began := time.Now()
	if err := d.reloaded(ctx, "reloaded"); err != nil {
		return err
	}
	d.fact(true, "both had it in force within %.1f s", time.Since(began).Seconds())
	if err := d.fresh(ctx, d.added, d.everybody()); err != nil {
		return err
	}
	d.say("Then %s is cut in the middle of a line", name)
	if err := d.write(text + vip[:len(vip)-5]); err != nil {
		return err
	}
	if err := d.reloaded(ctx, "wrong"); err != nil {
		return err
	}
	d.fact(true, "both refused it")
	if err := d.fresh(ctx, d.added, d.everybody()); err != nil {
		return err
	}
	if err := d.write(text + vip); err != nil {
		return err
	}
	if err := c.answered(ctx, 5, all); err != nil {
		return err
	}
	d.undisturbed(before, c.look(), all, " meanwhile")
	return nil
}

// write replaces the balancers' copy of the file.
func (d *demo) write(text string) error {
	file := filepath.Join(d.net.conf(), filepath.Base(d.File.Path))
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	if d.watched() {
		return nil
	}
	for _, b := range balancers {
		i, err := d.net.find(b, "balancer")
		if err != nil {
			return err
		}
		if err := d.net.procs[i].cmd.Process.Signal(syscall.SIGHUP); err != nil {
			return err
		}
	}
	return nil
}

// reloaded waits until both balancers count a reload of this outcome.
func (d *demo) reloaded(ctx context.Context, outcome string) error {
	return d.net.until(ctx, 10*time.Second, func() error {
		for _, b := range balancers {
			all, err := d.samples(ctx, b)
			if err != nil {
				return err
			}
			n := 0.0
			for _, s := range all {
				if s.name == "lbgraph_reloads_total" && s.labels["outcome"] == outcome {
					n += s.value
				}
			}
			if n == 0 {
				return fmt.Errorf("%s counts no reload that is %s", b, outcome)
			}
		}
		return nil
	})
}
