// Package drain is the control kind drain: while its block stands in the file, the
// node is drained.
package drain

import (
	"context"
	"errors"

	"github.com/lbgraph/lbgraph/graph"
)

// Config is the arguments of a drain block.
type Config struct {
	Enabled bool `hcl:"enabled,optional" doc:"whether the node is drained"`
}

// Host is what the kind needs of the daemon.
type Host interface {
	// HoldDrained drains the node for who, or ends that.
	HoldDrained(who string, on bool)
}

func init() {
	graph.Register(graph.Def[Config]{
		Kind:     "drain",
		Summary:  "drains the node while it stands in the file: no routes, not ready, forwarding all the same",
		Single:   true,
		Live:     true,
		Defaults: Config{Enabled: true},
		Control: func(c Config, e *graph.Env) (graph.Control, error) {
			h, ok := e.Host.(Host)
			if !ok {
				return nil, errors.New("drain has no daemon to tell")
			}
			return &control{c, h}, nil
		},
	})
}

// by is who drains, as status says it.
const by = "file"

type control struct {
	cfg  Config
	host Host
}

// Start drains the node.
func (c *control) Start(context.Context) error {
	c.host.HoldDrained(by, c.cfg.Enabled)
	return nil
}

// Stop ends that.
func (c *control) Stop(context.Context) error {
	c.host.HoldDrained(by, false)
	return nil
}

// Reconfigure takes a changed block.
func (c *control) Reconfigure(config any) error {
	c.cfg = *config.(*Config)
	return c.Start(context.Background())
}
