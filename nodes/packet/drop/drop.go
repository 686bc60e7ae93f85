// Package drop is the kind "drop": packets end there, under a reason of the operator's.
package drop

import (
	"errors"
	"regexp"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Config is the arguments of drop.
type Config struct {
	Reason string `hcl:"reason,optional" doc:"name under which the packets are counted"`
}

var name = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

func init() {
	graph.Register(graph.Def[Config]{
		Kind:    "drop",
		Summary: "drops packets under a reason that the file names",
		OutputsOf: func(c Config) []graph.Output {
			return []graph.Output{{Name: c.Reason, Else: graph.Drop, Doc: "all packets"}}
		},
		Defaults: Config{Reason: "dropped"},
		Check: func(c Config) error {
			if !name.MatchString(c.Reason) {
				return errors.New("a reason is small letters, digits and underscores, begins with a letter and has 32 characters at most")
			}
			return nil
		},
		Packets: func(Config, *graph.Env) (graph.Maker, error) {
			return func(graph.Core) (graph.Node, error) { return worker{}, nil }, nil
		},
	})
}

type worker struct{}

// Process is part of graph.Node.
func (worker) Process(_ *packet.Vector, in packet.Lanes, out []packet.Lanes) { out[0] = in }
