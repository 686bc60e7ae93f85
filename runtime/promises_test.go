package runtime

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// where remembers on which CPUs each core's loop may run.
type where struct{ id int }

var (
	whereMu sync.Mutex
	whereOf map[int]unix.CPUSet
)

func (n where) Process(_ *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		whereMu.Lock()
		whereOf[n.id] = set
		whereMu.Unlock()
	}
	out[0] = in
}

// aside leads all lanes to an output that nobody draws, which is the kernel's.
type aside struct{}

func (aside) Process(_ *packet.Vector, in packet.Lanes, out []packet.Lanes) { out[1] = in }

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind: "test-where", Summary: "looks where it runs in tests", Outputs: []graph.Output{{Name: "next"}},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(c graph.Core) (graph.Node, error) { return where{c.ID()}, nil }, nil
		},
	})
	graph.Register(graph.Def[struct{}]{
		Kind: "test-aside", Summary: "leaves all to the kernel in tests", Outputs: []graph.Output{{Name: "next"}, {Name: "pass", Else: graph.Punt}},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(graph.Core) (graph.Node, error) { return aside{}, nil }, nil
		},
	})
}

// running starts an engine's loops on threads of their own.
func running(t *testing.T, g *graph.Graph, queues int) *rig {
	t.Helper()
	r := newRig(t, g, queues, func(o *Options) { o.Manual, o.Clock = false, nil })
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) sentWithin(n uint64, d time.Duration) bool {
	for end := time.Now().Add(d); r.port().SentPackets() < n; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// Loops run on the CPUs that pin lists, in order.
func TestPin(t *testing.T) {
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil {
		t.Fatal(err)
	}
	var cpus []int
	for c := 1023; c >= 0 && len(cpus) < 2; c-- {
		if mine.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	g := draw(t, len(cpus), "rx -> where", "where -> tx")
	g.Pin = cpus
	whereOf = map[int]unix.CPUSet{}
	r := running(t, g, len(cpus))
	for q := range cpus {
		r.port().Inject(q, frames("x0")...)
	}
	if !r.sentWithin(uint64(len(cpus)), 5*time.Second) {
		t.Fatal("nothing is sent")
	}
	r.Stop()
	for core, cpu := range cpus {
		set := whereOf[core]
		if set.Count() != 1 || !set.IsSet(cpu) {
			t.Errorf("core %d runs on %v, want CPU %d alone", core, set, cpu)
		}
	}
}

// What is there runs at once; gather then waits for more, but not for ever.
func TestGather(t *testing.T) {
	const more, patience = 40, 20 * time.Second
	begin := func(gather time.Duration) *rig {
		t.Helper()
		g := draw(t, 1, "rx -> tx")
		g.Gather = gather
		r := running(t, g, 1)
		r.port().Inject(0, frames("x0")...)
		if !r.sentWithin(1, patience) {
			t.Fatalf("gather %v: a packet waits although nothing came before it", gather)
		}
		return r
	}
	// vectors is in how many of them packets came that were put in one by one, and the
	// most that a loop can have made that gathers for so long after each.
	const gather = 50 * time.Millisecond
	vectors := func(gather, least time.Duration) (n, most uint64) {
		t.Helper()
		r := begin(gather)
		defer r.Stop()
		begun := time.Now()
		for range more {
			r.port().Inject(0, frames("x0")...)
			time.Sleep(2 * time.Millisecond)
		}
		if !r.sentWithin(1+more, patience) {
			t.Fatalf("gather %v: packets wait for ever", gather)
		}
		most = 2 + uint64(time.Since(begun)/least)
		return r.conserved().Passes, most
	}
	// On a machine that is too busy for packets to come fast, or for the loop to see them
	// come, a try tells nothing.
	const tries = 20
	apart, gathered := false, false
	for i := 0; i < tries && !apart; i++ {
		n, most := vectors(0, gather)
		apart = n > more/2 && n > most
	}
	if !apart {
		t.Errorf("without gather %d packets came in few vectors, %d times", 1+more, tries)
	}
	for i := 0; i < tries && !gathered; i++ {
		n, most := vectors(gather, gather)
		if n > most {
			t.Errorf("with gather %d packets came in %d vectors, want %d at most", 1+more, n, most)
		}
		gathered = most < more/2
	}
	if !gathered {
		t.Errorf("in %d tries %d packets did not come within %v", tries, more, gather*more/2)
	}
	if g := graph.GraphDefaults().Gather; g != 0 {
		t.Errorf("gather is %v by default", g)
	}
	// A loop that gathers still stops at once, and obeys.
	r := begin(time.Hour)
	begun := time.Now()
	r.conserved()
	r.Stop()
	if d := time.Since(begun); d > time.Minute {
		t.Errorf("it took %v to stop", d)
	}
}

// What an output leaves to the kernel goes there if there is a way, and else drops by
// a name of its own.
func TestNoPunt(t *testing.T) {
	for name, c := range map[string]struct {
		kernel func([]byte) bool
		drops  string
		passed uint64
	}{
		"no way":     {nil, "map[aside.no_punt:3]", 0},
		"it takes":   {func([]byte) bool { return true }, "map[]", 3},
		"it is full": {func([]byte) bool { return false }, "map[aside.no_punt:3]", 0},
	} {
		r := newRig(t, draw(t, 1, "rx -> aside", "aside -> tx"), 1, func(o *Options) { o.Kernel = c.kernel })
		r.port().Inject(0, frames("a0", "b0", "c0")...)
		r.settle()
		s := r.conserved()
		want(t, name+": drops", s.Drops(), c.drops)
		want(t, name+": to the kernel", s.Kernel, c.passed)
		want(t, name+": sent", fmt.Sprint(r.sent(0)), "[]")
	}
}
