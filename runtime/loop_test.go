package runtime

import (
	goruntime "runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/packet"
)

// TestOneLoopACore: a graph becomes as many loops as there are queues, or as the
// file says, each with nodes of its own and queues of its own.
func TestOneLoopACore(t *testing.T) {
	for _, c := range []struct{ cores, queues, want int }{{0, 3, 3}, {0, 1, 1}, {2, 3, 2}, {4, 2, 4}} {
		r := newRig(t, draw(t, c.cores, "rx -> spread", "spread -> tx"), c.queues, nil)
		want(t, "loops", r.Cores(), c.want)
		nodes := map[graph.Node]bool{}
		for core := range r.Cores() {
			for i := range r.loops[core].nodes {
				nodes[r.loops[core].nodes[i].Node] = true
			}
		}
		want(t, "nodes", len(nodes), 3*c.want)
		for q := range c.queues {
			r.port().Inject(q, frames("x0")...)
		}
		for core := range r.Cores() {
			for r.Step(core) {
			}
			mine := uint64(0) // packets that core has to have brought by now
			for q := range c.queues {
				if q%c.want <= core {
					mine++
				}
			}
			want(t, "sent once a core has run", r.port().SentPackets(), mine)
		}
		r.conserved()
	}
	// What does not check does not compile.
	if _, err := New(draw(t, 1, "rx -> spread"), Options{Drivers: map[string]Driver{"mem": &memDriver{queues: 1}}}); err == nil {
		t.Error("a dead end compiles")
	}
}

// slow spends time on each vector.
type slow struct{}

const slowness = 20 * time.Microsecond

func (slow) Process(_ *packet.Vector, in packet.Lanes, out []packet.Lanes) {
	for end := time.Now().Add(slowness); time.Now().Before(end); {
	}
	out[0] = in
}

func init() {
	graph.Register(graph.Def[struct{}]{
		Kind: "test-slow", Summary: "takes its time in tests",
		Outputs: []graph.Output{{Name: "next"}},
		Packets: func(struct{}, *graph.Env) (graph.Maker, error) {
			return func(graph.Core) (graph.Node, error) { return slow{}, nil }, nil
		},
	})
}

// TestNodeFigures: of every node its vectors, its packets, and the cycles of those
// that were timed, one vector in 64 or all.
func TestNodeFigures(t *testing.T) {
	r := newRig(t, draw(t, 1, "rx -> count", "count -> slow", "slow -> tx"), 1, nil)
	r.port().Discard()
	r.port().Inject(0, numbered("x0", 130*64)...)
	r.settle()
	s := r.conserved()
	for _, name := range []string{"count", "slow", "tx"} {
		n := s.Node(name)
		want(t, name+": calls", n.Calls, 130)
		want(t, name+": packets", n.Packets, 130*64)
		want(t, name+": timed", n.Timed, 3*64)
		if n.Cycles == 0 {
			t.Errorf("%s: no cycles", name)
		}
	}
	per := func(name string) float64 { // nanoseconds a vector
		n := s.Node(name)
		return float64(n.Cycles) / float64(n.Timed) * 64 / s.CyclesPerNanosecond
	}
	if least := 0.8 * float64(slowness); per("slow") < least || per("count") > least {
		t.Errorf("%.0f ns a vector for the slow node and %.0f for the other, where the slow one waits %v", per("slow"), per("count"), slowness)
	}
	r.TimeAll(true)
	r.port().Inject(0, numbered("x0", 10*64)...)
	r.settle()
	s = r.conserved()
	want(t, "timed with all vectors timed", s.Node("slow").Timed, 13*64)
}

// TestAdaptiveIdle: a loop spins while work is near, sleeps when there has been
// none for a while, and is woken by the next packet. The clock stands still but
// for what the test lets go by.
func TestAdaptiveIdle(t *testing.T) {
	var clock atomic.Int64
	clock.Store(1e9)
	r := newRig(t, draw(t, 1, "rx -> tx"), 1, func(o *Options) { o.Manual, o.Clock = false, clock.Load })
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	l := r.loops[0]
	spins := func(when string) {
		t.Helper()
		for range 200 {
			if l.sleeping.Load() {
				t.Fatalf("%s the loop sleeps", when)
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	sleeps := func() {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); !l.sleeping.Load(); time.Sleep(100 * time.Microsecond) {
			if time.Now().After(end) {
				t.Fatal("without work the loop does not sleep")
			}
		}
	}
	spins("at the beginning")
	clock.Add(spinFor - 1)
	spins("a moment after the last packet")
	const rounds = 20
	var waited time.Duration
	for i := range uint64(rounds) {
		clock.Add(spinFor + 1)
		sleeps()
		at := time.Now()
		r.port().Inject(0, frames("x0")...)
		for r.port().SentPackets() <= i && time.Since(at) < 5*time.Second {
			time.Sleep(50 * time.Microsecond)
		}
		waited += time.Since(at)
	}
	want(t, "sent", r.port().SentPackets(), rounds)
	// A loop that nothing wakes looks again after sleepMost milliseconds.
	if most := rounds * sleepMost * time.Millisecond / 2; waited > most {
		t.Errorf("%d packets found a sleeping loop and took %v, more than %v: nobody wakes it", rounds, waited, most)
	}
	spins("after a packet")
	// Once it sleeps, it looks now and then, and does not spin for that.
	clock.Add(spinFor + 1)
	sleeps()
	awake := 0
	for range 100 {
		time.Sleep(sleepMost * time.Millisecond / 50)
		if !l.sleeping.Load() {
			awake++
		}
	}
	if awake > 50 {
		t.Errorf("without work it was awake %d times of 100", awake)
	}
	// And its sleep costs nothing, though the clock goes on.
	clock.Add(spinFor + 1)
	sleeps()
	before := cpuTime(t)
	for range 300 {
		time.Sleep(time.Millisecond)
		clock.Add(1e6)
	}
	if used := cpuTime(t) - before; used > 100*time.Millisecond {
		t.Errorf("an idle loop used %v of 300 ms", used)
	}
	r.conserved()
}

// A thread that sleeps is woken by what it sleeps for, not by the signals that Go's
// runtime sends it.
func TestSignalsWakeNoLoop(t *testing.T) {
	w, err := newWaker()
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	// signalled polls for ms milliseconds on a thread that gets signals all the while,
	// and calls during before each.
	signalled := func(ms int, during func(signals int)) (woken bool, took time.Duration) {
		t.Helper()
		thread, done := make(chan int), make(chan bool)
		begun := time.Now()
		go func() {
			goruntime.LockOSThread()
			defer goruntime.UnlockOSThread()
			thread <- unix.Gettid()
			done <- pollFDs([]int{w.fd()}, ms)
		}()
		tid := <-thread
		for n := 0; ; n++ {
			select {
			case woken = <-done:
				return woken, time.Since(begun)
			case <-time.After(time.Millisecond):
				during(n)
				if err := unix.Tgkill(unix.Getpid(), tid, unix.SIGURG); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	const ms = 100
	if woken, took := signalled(ms, func(int) {}); woken || took < ms*time.Millisecond {
		t.Errorf("asleep for %v of %d ms, woken: %v", took, ms, woken)
	}
	asked := 0
	if woken, _ := signalled(60_000, func(n int) {
		if asked = n; n == 20 {
			w.wake()
		}
	}); !woken || asked < 20 {
		t.Errorf("woken: %v, after %d signals; it was to be by what came with the 20th", woken, asked)
	}
}

// cpuTime is what the process has used of all processors.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
