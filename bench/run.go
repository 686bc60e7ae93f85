package bench

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// Options says what Run measures.
type Options struct {
	// File is what is measured; nil is the sample.
	File *graph.File
	// Kinds are the kinds whose nodes are reported; nil is all. A kind that the sample
	// has no node of is put into it.
	Kinds []string
	Load  Load
	Cold  bool // headers are in no cache when packets are received
	Batch int  // packets a vector at most; 0 is 64
	Count int  // runs; 0 is 5
	// Slice is how long each part of a run takes; 0 is 50 ms.
	Slice time.Duration
	// Progress is told what is done and how much of all that is, if not nil.
	Progress func(done, of int, what string)
}

// A Result is what Run measured. All times are nanoseconds a packet, one a run.
type Result struct {
	Graph      string
	Load       Load
	Cold       bool
	Batch      int
	Sample     bool
	PerPacket  []float64 // of the whole graph, engine included
	Port       []float64 // of the measurement itself, which is taken off
	Reference  []float64 // of the scalar pipeline; sample alone
	CyclesRate float64   // cycles a nanosecond
	Nodes      []NodeResult
	Drops      map[string]uint64
}

// NodeResult is one node of a Result.
type NodeResult struct {
	Name, Kind string
	Calls      uint64 // of a hundred thousand packets that were received
	Packets    uint64
	PerPacket  []float64
}

// ErrUse is an error of whoever filled in the Options.
type ErrUse struct{ error }

// Run measures a graph.
func Run(o Options) (*Result, error) {
	o.Batch = orDefault(o.Batch, packet.Size)
	o.Count = orDefault(o.Count, 5)
	if o.Slice == 0 {
		o.Slice = 50 * time.Millisecond
	}
	if err := o.Load.Check(); err != nil {
		return nil, ErrUse{err}
	}
	if o.Cold && !canFlush {
		return nil, ErrUse{errors.New("this machine cannot take lines out of its caches")}
	}
	for _, k := range o.Kinds {
		if kind := graph.Lookup(k); kind == nil || kind.Plane != graph.PacketPlane {
			return nil, ErrUse{fmt.Errorf("there is no packet kind %q", k)}
		}
	}
	if o.File != nil {
		return measure(&o, o.File, nil)
	}
	sample := NewSample(o.Load.Flows)
	inside, err := sample.Load()
	if err != nil {
		return nil, err
	}
	missing := slices.DeleteFunc(slices.Clone(o.Kinds), func(k string) bool { return hasKind(inside, k) })
	if len(missing) == 0 {
		return measure(&o, inside, &sample)
	}
	var all *Result
	for _, k := range missing {
		if k == "pcap-rx" {
			if err := writeCapture(o.Load, inside); err != nil {
				return nil, err
			}
			defer os.Remove(captureName)
		}
		f, err := sample.with(k)
		if err != nil {
			return nil, err
		}
		one := o
		one.Kinds = []string{k}
		r, err := measure(&one, f, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		if all == nil {
			all = r
		} else {
			all.Nodes = append(all.Nodes, r.Nodes...)
		}
	}
	if len(missing) < len(o.Kinds) {
		o.Kinds = slices.DeleteFunc(slices.Clone(o.Kinds), func(k string) bool { return slices.Contains(missing, k) })
		r, err := measure(&o, inside, &sample)
		if err != nil {
			return nil, err
		}
		r.Nodes = append(r.Nodes, all.Nodes...)
		all = r
	}
	return all, nil
}

func orDefault(n, value int) int {
	if n == 0 {
		return value
	}
	return n
}

func hasKind(f *graph.File, kind string) bool {
	for _, g := range f.Graphs {
		if g.Plane == graph.PacketPlane {
			return slices.ContainsFunc(g.Nodes, func(n *graph.Instance) bool { return n.Kind.Name == kind })
		}
	}
	return false
}

// measure measures one file. A kind asked for whose nodes no packet visits gets
// another load: new flows, or echo requests.
func measure(o *Options, f *graph.File, s *Sample) (r *Result, err error) {
	for _, k := range o.Kinds {
		if !hasKind(f, k) {
			return nil, ErrUse{fmt.Errorf("%s has no node of kind %q in its first graph", f.Path, k)}
		}
	}
	loads := []Load{o.Load}
	if len(o.Kinds) > 0 {
		fresh, echo := o.Load, o.Load
		fresh.NewFlows, echo.Echo = 100, true
		loads = append(loads, fresh, echo)
	}
	quiet(func() {
		for i, l := range loads {
			var x *Result
			if x, err = measureLoad(o, l, f, s); err != nil {
				return
			}
			if i == 0 {
				r = x
			}
			all := true
			for j := range x.Nodes {
				n := &r.Nodes[j]
				if n.Packets == 0 {
					*n = x.Nodes[j]
				}
				all = all && n.Packets > 0
			}
			if all {
				return
			}
		}
	})
	return r, err
}

// parts is how many measurements a run has.
const parts = 4

func measureLoad(o *Options, l Load, f *graph.File, s *Sample) (*Result, error) {
	e, err := NewEngine(f, l, o.Batch, o.Cold)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	tell := func(done int, what string) {
		if o.Progress != nil {
			o.Progress(done, parts*o.Count, what)
		}
	}
	r := &Result{Graph: e.Graph.Name, Load: l, Cold: o.Cold, Batch: o.Batch, Sample: s != nil}
	for _, n := range e.Stats().Nodes {
		if len(o.Kinds) == 0 || slices.Contains(o.Kinds, n.Kind) {
			r.Nodes = append(r.Nodes, NodeResult{Name: n.Name, Kind: n.Kind})
		}
	}
	tell(0, "making flows known")
	e.Warm()
	warm := e.Stats()
	base := newBare(e.traffic(), o.Batch, o.Cold)
	var ref *scalar
	if s != nil {
		ref = newScalar(e, s.Entries, o.Batch, o.Cold)
		defer ref.Close()
	}
	for i := range o.Count {
		tell(i*parts, "graph")
		r.PerPacket = append(r.PerPacket, run(e, o.Slice))
		tell(i*parts+1, "nodes")
		e.nodes(r, o.Slice)
		tell(i*parts+2, "port")
		r.Port = append(r.Port, run(base, o.Slice/5))
		if ref != nil {
			tell(i*parts+3, "reference")
			r.Reference = append(r.Reference, run(ref, o.Slice))
		}
	}
	tell(parts*o.Count, "")
	for i := range r.PerPacket {
		if e.port == nil { // a source of its own: nothing was waiting in frames
			r.Port[i] = 0
		}
		r.PerPacket[i] -= r.Port[i]
		if ref != nil {
			r.Reference[i] -= r.Port[i]
		}
	}
	st := e.Stats()
	r.CyclesRate, r.Drops = st.CyclesPerNanosecond, st.Drops()
	for i := range r.Nodes {
		n, was := st.Node(r.Nodes[i].Name), warm.Node(r.Nodes[i].Name)
		if received := float64(st.Received - warm.Received); received > 0 {
			r.Nodes[i].Calls = uint64(math.Round(float64(n.Calls-was.Calls) / received * 1e5))
			r.Nodes[i].Packets = uint64(math.Round(float64(n.Packets-was.Packets) / received * 1e5))
		}
	}
	return r, nil
}

// traffic makes the packets of the engine's load once more.
func (e *Engine) traffic() *Traffic {
	t := *e.load
	t.flow, t.fresh = 0, 0
	return &t
}

// nodes measures every node of r for the time d.
func (e *Engine) nodes(r *Result, d time.Duration) {
	e.TimeAll(true)
	defer e.TimeAll(false)
	per := make([][]float64, len(r.Nodes))
	before := e.Stats()
	for end, k := time.Now().Add(d), 0; k < least || time.Now().Before(end); k++ {
		for range 2 {
			e.arm()
			e.run()
		}
		after := e.Stats()
		for i := range r.Nodes {
			a, b := after.Node(r.Nodes[i].Name), before.Node(r.Nodes[i].Name)
			if a.Timed > b.Timed {
				per[i] = append(per[i], float64(a.Cycles-b.Cycles)/float64(a.Timed-b.Timed)/after.CyclesPerNanosecond)
			}
		}
		before = after
	}
	for i := range r.Nodes {
		r.Nodes[i].PerPacket = append(r.Nodes[i].PerPacket, median(per[i]))
	}
}

// Describe says in a few words what was measured.
func (r *Result) Describe() string {
	s := fmt.Sprintf("%d flows", r.Load.Flows)
	switch {
	case r.Load.Echo:
		s = "echo requests"
	case r.Load.NewFlows == 100:
		s = fmt.Sprintf("every packet a new flow, of %d", r.Load.Flows)
	case r.Load.NewFlows > 0:
		s += fmt.Sprintf(", %d %% of packets begin another", r.Load.NewFlows)
	}
	sizes := strings.Trim(fmt.Sprint(r.Load.Sizes), "[]")
	if len(r.Load.Sizes) == 0 {
		sizes = "60"
	}
	s += fmt.Sprintf(", frames of %s bytes, vectors of %d", sizes, r.Batch)
	if r.Cold {
		return s + ", headers cold"
	}
	return s
}
