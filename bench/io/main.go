// Io measures the packet plane together with the kernel's part of it: packets a second
// and latency of a whole graph on AF_XDP, through veth pairs in namespaces that it makes
// and that are gone with it: `make bench-io`. Beside the graph, in the same run, it
// measures a plain AF_XDP reflector and the kernel's own XDP_TX. It needs root, Linux 5.18
// and nothing else.
//
//	io [-only REGEXP] [-rounds N] [-time D] [-file FILE] [-lbgraph FILE] [-nice N]
//
// The source is in the kernel: an XDP program that the kernel runs over and over on
// frames of its own (BPF_PROG_RUN with live frames), each of which it makes a TCP segment
// of 60 bytes, 64 with the checksum, with the time in it, and redirects to the veth
// device. An XDP program on the same device counts what comes back, reads the time and
// drops it. How long the source waited for packets to come back is in the tables: as
// long as it does wait, it is not what holds anything up. veth's receive side, up to the
// copy into the sockets' memory, runs on the source's processor; all else on the
// device's.
//
// The parts, by the names that -only matches:
//
//	rate     packets a second, as many as come back: one and two loops
//	batch    vectors of 1 to 64 packets, and ways to wait for packets
//	latency  percentiles at 10, 50 and 90 % of what the graph can do
//	reload   packets lost, and latency added, by reloads and by storms of health
//	idle     processor time of a daemon that has nothing to do
//
// Devices take turns in rounds; a ratio is the median over the rounds of the ratio in one
// round. The rest are medians over the rounds, and times are of all rounds together.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	goruntime "runtime"
	"syscall"
	"time"

	_ "github.com/lbgraph/lbgraph/control/all"
	_ "github.com/lbgraph/lbgraph/nodes/all"
)

// config is what is measured, and for how long.
type config struct {
	file    string
	binary  string
	only    *regexp.Regexp
	rounds  int
	time    time.Duration // of one device in one round
	idle    time.Duration
	window  int
	flows   int
	modest  float64 // packets a second at which processor time is compared
	reloads time.Duration
	maximum float64 // packets a second of the graph on one loop, once it is known
}

func main() {
	c := config{}
	priority := flag.Int("nice", -15, "priority of all of it, so that a machine with other work disturbs less; 0 leaves it")
	only := flag.String("only", "", "parts whose name matches this: rate, batch, latency, reload, idle")
	flag.StringVar(&c.file, "file", "lb.hcl", "the file whose first graph is measured; its VIP is 203.0.113.80, TCP port 80")
	flag.StringVar(&c.binary, "lbgraph", "bin/lbgraph", "the binary that idles")
	flag.IntVar(&c.rounds, "rounds", 7, "rounds of each part")
	flag.DurationVar(&c.time, "time", 500*time.Millisecond, "time of a device in a round")
	flag.DurationVar(&c.idle, "idle", 10*time.Second, "time over which idleness is measured")
	flag.IntVar(&c.window, "window", 512, "packets under way, of each loop, where the rate is what comes back")
	flag.IntVar(&c.flows, "flows", 10000, "flows of each loop, at most 64000")
	flag.Float64Var(&c.modest, "modest", 50_000, "packets a second at which processor time is compared")
	flag.DurationVar(&c.reloads, "every", 20*time.Millisecond, "time between two reloads, and between two turns of health")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	back := func() {}
	if *priority != 0 {
		back = prefer(*priority)
	}
	var err error
	if c.only, err = regexp.Compile(*only); err == nil {
		err = c.run(ctx, os.Stdout)
	}
	back()
	if err != nil {
		fmt.Fprintln(os.Stderr, "io:", err)
		stop()
		os.Exit(1)
	}
}

// run runs the parts that are wanted.
func (c *config) run(ctx context.Context, out io.Writer) (err error) {
	switch {
	case c.rounds < 1 || c.time < 10*time.Millisecond:
		return errors.New("-rounds is at least 1, -time 10ms")
	case c.flows < 1 || c.flows > 64000:
		return errors.New("-flows is 1 to 64000")
	case c.window < 1 || c.window > 2048:
		return errors.New("-window is 1 to 2048: more do not fit the rings")
	}
	l, err := newLab(c.file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	// Loops spin, and lanes of the source are in the kernel.
	goruntime.GOMAXPROCS(max(goruntime.GOMAXPROCS(0), 4))
	aside(1, l.places.cpus)
	r := &report{out: out}
	fmt.Fprintf(out, "%s; %d rounds of %v; frames of %d bytes\n", machine(l.places.cpus), c.rounds, c.time, frame)
	for _, p := range []struct {
		name string
		run  func(context.Context, *lab, *report) error
	}{{"rate", c.rates}, {"batch", c.batches}, {"latency", c.latencies}, {"reload", c.disturbed}, {"idle", c.idles}} {
		if !c.only.MatchString(p.name) {
			continue
		}
		err := p.run(ctx, l, r)
		if err = errors.Join(err, l.clear()); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return r.flush()
}

func (c *config) closed() load { return load{window: c.window, flows: c.flows} }

func (c *config) open(rate float64) load { return load{rate: rate, flows: c.flows} }
