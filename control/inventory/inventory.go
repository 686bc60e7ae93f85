// Package inventory is the control kind inventory: a file with more pools and VIPs,
// which other tools write. It is read with the configuration, as if its blocks stood
// there, and watched: a change to it is a reload.
package inventory

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/watch"
)

// Config is the arguments of an inventory block.
type Config struct {
	File   string        `hcl:"file" doc:"the file, relative to the configuration; JSON if its name ends in .json, else HCL"`
	Settle time.Duration `hcl:"settle,optional" range:"10ms,1m" doc:"for how long nothing may happen to the file until it counts as written"`
	Poll   time.Duration `hcl:"poll,optional" range:"1s,1h" doc:"how often the file is looked at even if the kernel tells of no change"`
}

// Host is what the kind needs of the daemon. Its methods may be called from any
// goroutine.
type Host interface {
	// ConfigPath is the path of the configuration file.
	ConfigPath() string
	// FilesChanged says that the file may have changed. It does not wait.
	FilesChanged(why string)
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "inventory",
		Summary:  "adds the pools and VIPs of a file that other tools write, and follows its changes",
		Live:     true,
		Defaults: Config{Settle: 75 * time.Millisecond, Poll: 10 * time.Second},
		Check: func(c Config) error {
			if c.File == "" {
				return errors.New("file is empty; name the inventory")
			}
			return nil
		},
		Includes: func(c Config) []string { return []string{c.File} },
		Control: func(c Config, e *graph.Env) (graph.Control, error) {
			h, ok := e.Host.(Host)
			if !ok {
				return nil, errors.New("inventory has no daemon to tell")
			}
			return &control{cfg: c, name: e.Node, host: h, log: e.Log}, nil
		},
	})
}

// control is a running inventory block.
type control struct {
	cfg     Config
	name    string
	host    Host
	log     *zap.Logger
	watcher *watch.Watcher
}

// Start begins to watch; the file was read already.
func (c *control) Start(context.Context) error {
	path := c.cfg.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(c.host.ConfigPath()), path)
	}
	c.watcher = watch.Start(watch.Options{
		Files: func() []string { return []string{path} }, Settle: c.cfg.Settle, Poll: c.cfg.Poll, Log: c.log,
		Changed: func() { c.host.FilesChanged(fmt.Sprintf("change of inventory %q", c.name)) },
	})
	return nil
}

// Stop ends the watching.
func (c *control) Stop(context.Context) error {
	if c.watcher != nil {
		c.watcher.Close()
	}
	return nil
}

// Reconfigure takes a changed block.
func (c *control) Reconfigure(config any) error {
	_ = c.Stop(context.Background())
	c.cfg = *config.(*Config)
	return c.Start(context.Background())
}
