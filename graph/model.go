package graph

import (
	"fmt"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/lbgraph/lbgraph/control/state"
)

// A File is what a configuration file says, resolved: references are followed,
// paths are edges. graph/lang loads it; Check judges it; the runtime compiles its
// graphs. It is not changed after loading.
type File struct {
	Path     string
	Sources  map[string][]byte // by file name, for diagnostics
	Spec     state.Spec
	Graphs   []*Graph
	Controls []*Instance
	// Places says where things of Spec stand: "pool.web", "vip.web",
	// "pool.web.web-1" (a backend); attributes with a further element, as in
	// "vip.web.address".
	Places map[string]hcl.Range
}

// A Graph is one graph or stream block.
type Graph struct {
	Name  string
	Plane Plane
	GraphConfig
	Nodes []*Instance // in the order of their first place in the file
	Range hcl.Range   // of the block's head
}

// GraphConfig is the arguments of a graph block.
type GraphConfig struct {
	// NetworkMTU is the largest IP packet that may leave, outer header included.
	NetworkMTU int `hcl:"network_mtu,optional" range:"1280,65535" doc:"largest IP packet that may leave, outer header included, in bytes"`
	// Cores is the number of loops; 0 is one for each receive queue.
	Cores int `hcl:"cores,optional" range:"0,64" doc:"number of loops, one a core; 0 is one for each receive queue"`
	// Pin lists the CPUs of the loops, in order; empty leaves them to the scheduler.
	Pin []int `hcl:"pin,optional" doc:"CPUs that the loops are pinned to, in order"`
	// Frames is the number of frames of a core beyond what rings and nodes reserve.
	Frames int `hcl:"frames,optional" range:"64,1048576" doc:"frames a core owns beyond what rings and nodes reserve"`
	// Chunk is the size of a frame.
	Chunk int `hcl:"chunk,optional" enum:"2048,4096" doc:"size of a frame in bytes, 256 of which stand in front of the packet"`
	// Rings is the size of each ring of a queue.
	Rings int `hcl:"rings,optional" range:"64,32768" doc:"entries of each ring of a queue, a power of two"`
	// Gather waits for fuller vectors. While it waits the loop does nothing else, so it
	// is short of what a loop may be silent.
	Gather time.Duration `hcl:"gather,optional" range:"0s,100ms" doc:"time to wait for a fuller vector; 0s runs what is there at once"`
}

// GraphDefaults are the values of a graph block that says nothing.
func GraphDefaults() GraphConfig {
	return GraphConfig{NetworkMTU: 1500, Frames: 1024, Chunk: 2048, Rings: 2048}
}

// An Instance is one node of a graph, or one control block.
type Instance struct {
	Kind    *Kind
	Name    string
	Config  any       // what Kind.NewConfig answered, filled in
	Range   hcl.Range // the block's head, or the first place in a path
	Outputs []Output  // Kind.OutputsOf(Config)
	Edges   []*Edge   // by output; nil where none is drawn
}

// An Edge leads from an output to a node.
type Edge struct {
	From   *Instance
	Output int
	To     *Instance
	Range  hcl.Range // the elements of the path, or the attribute, that draw it
}

// Failed answers what went wrong with a node of g when it was to start, with the node's
// place in the file.
func (g *Graph) Failed(n *Instance, err error) error {
	block := "graph"
	if g.Plane == StreamPlane {
		block = "stream"
	}
	err = fmt.Errorf("%s %s, node %s: %w", block, g.Name, n.Name, err)
	if n.Range.Filename == "" { // a graph that was made without a file
		return err
	}
	return fmt.Errorf("%s:%d: %w", n.Range.Filename, n.Range.Start.Line, err)
}

// Node answers the node of that name, or nil.
func (g *Graph) Node(name string) *Instance {
	for _, n := range g.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Output answers the index of the output of that name, or −1.
func (n *Instance) Output(name string) int {
	for i, o := range n.Outputs {
		if o.Name == name {
			return i
		}
	}
	return -1
}
