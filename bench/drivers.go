package bench

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/gen"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/pcap"
	"github.com/lbgraph/lbgraph/runtime"
)

// genDriver opens the ports of the kind generate.
type genDriver struct{}

// Queues is part of runtime.Driver.
func (genDriver) Queues(s graph.PortSpec) (int, error) { return max(1, s.Queues), nil }

// Open is part of runtime.Driver.
func (genDriver) Open(s graph.PortSpec, m runtime.Memory, chunk, rings int) (graph.Port, error) {
	var c gen.Config
	if err := json.Unmarshal([]byte(s.Args), &c); err != nil {
		return nil, fmt.Errorf("traffic of %s: %w", s.Name, err)
	}
	return gen.Open(s.Name, c, max(1, s.Queues), mem.Config{Mem: m.Bytes(), Chunk: chunk, Rings: rings})
}

// pcapDriver opens captures.
type pcapDriver struct{}

func captures(s graph.PortSpec) []string {
	if s.Args == "" {
		return []string{s.Name}
	}
	return append([]string{s.Name}, strings.Split(s.Args, "\n")...)
}

// Queues is part of runtime.Driver.
func (pcapDriver) Queues(s graph.PortSpec) (int, error) { return len(captures(s)), nil }

// Open is part of runtime.Driver.
func (pcapDriver) Open(s graph.PortSpec, m runtime.Memory, chunk, rings int) (graph.Port, error) {
	cfg := mem.Config{Mem: m.Bytes(), Chunk: chunk, Rings: rings}
	if s.Write {
		p, err := pcap.OpenWrite(s.Name, cfg)
		if err != nil {
			return nil, fmt.Errorf("capture: %w", err)
		}
		return p, nil
	}
	p, err := pcap.OpenRead(captures(s), cfg)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return p, nil
}
