// Package reload is the control kind reload: it watches the files of the
// configuration and has the daemon read them again when they change.
package reload

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/watch"
)

// DefaultCache is where the last good configuration is kept.
const DefaultCache = "/var/lib/lbgraph/last-good.json"

// Config is the arguments of a reload block.
type Config struct {
	Watch  bool          `hcl:"watch,optional" doc:"whether changes to files take effect by themselves; SIGHUP and lbgraph reload work anyhow"`
	Settle time.Duration `hcl:"settle,optional" range:"10ms,1m" doc:"for how long nothing may happen to the files until they count as written"`
	Poll   time.Duration `hcl:"poll,optional" range:"1s,1h" doc:"how often the files are looked at even if the kernel tells of no change"`
	Cache  string        `hcl:"cache,optional" doc:"file in which the last good configuration is kept, for lbgraph run --last-good; empty keeps none"`
}

// Host is what the kind needs of the daemon. Its methods may be called from any
// goroutine.
type Host interface {
	// ConfigFiles are all files that the configuration was read from when it was read last.
	ConfigFiles() []string
	// FilesChanged says that they may have changed. It does not wait.
	FilesChanged(why string)
	// KeepLastGood has the configuration in force written to a file, and each that
	// follows; "" ends that.
	KeepLastGood(path string)
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "reload",
		Summary:  "has changes to the configuration's files take effect, and keeps the last good configuration",
		Single:   true,
		Live:     true,
		Defaults: Config{Watch: true, Settle: 75 * time.Millisecond, Poll: 10 * time.Second, Cache: DefaultCache},
		Control: func(c Config, e *graph.Env) (graph.Control, error) {
			h, ok := e.Host.(Host)
			if !ok {
				return nil, errors.New("reload has no daemon to tell")
			}
			return &control{cfg: c, host: h, log: e.Log}, nil
		},
	})
}

// control is a running reload block.
type control struct {
	cfg     Config
	host    Host
	log     *zap.Logger
	watcher *watch.Watcher // nil until something is watched
}

// Start keeps the configuration in force and begins to watch.
func (c *control) Start(context.Context) error {
	c.host.KeepLastGood(c.cfg.Cache)
	c.begin()
	return nil
}

func (c *control) begin() {
	if c.cfg.Watch {
		c.watcher = watch.Start(watch.Options{
			Files: c.host.ConfigFiles, Settle: c.cfg.Settle, Poll: c.cfg.Poll, Log: c.log,
			Changed: func() { c.host.FilesChanged("change of files") },
		})
	}
}

// Stop ends the watching. What was kept stays.
func (c *control) Stop(context.Context) error {
	c.end()
	c.host.KeepLastGood("")
	return nil
}

func (c *control) end() {
	if c.watcher != nil {
		c.watcher.Close()
	}
}

// Reconfigure takes a changed block.
func (c *control) Reconfigure(config any) error {
	next := *config.(*Config)
	if next.Cache != c.cfg.Cache {
		c.host.KeepLastGood(next.Cache)
	}
	c.end()
	c.cfg = next
	c.begin()
	return nil
}
