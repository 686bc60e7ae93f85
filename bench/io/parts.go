package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lbgraph/lbgraph/bench/cputime"
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// trio makes the three that are compared, of so many loops.
func (l *lab) trio(loops int) (all []*device, err error) {
	name := func(s string) string { return fmt.Sprintf("%s, %d", s, loops) }
	g, err := l.balancer(name("graph"), l.file, loops, 0, 0)
	if err != nil {
		return nil, err
	}
	r, err := l.reflector(name("reflector"), loops, 64, adaptive)
	if err != nil {
		return nil, err
	}
	x, err := l.kernelOwn(name("XDP_TX"), loops)
	return []*device{g, r, x}, err
}

// rates is how many packets a second come back, of the graph and of what it is compared
// with.
func (c *config) rates(ctx context.Context, l *lab, r *report) error {
	devices, err := l.trio(1)
	if err != nil {
		return err
	}
	if l.places.cpus > 1 {
		two, err := l.trio(2)
		if err != nil {
			return err
		}
		devices = append(devices, two...)
	}
	all, err := l.rounds(ctx, "rate", c.rounds, devices, func(d *device) (sample, error) {
		return l.take(ctx, d, c.closed(), c.time, nil)
	})
	if err != nil {
		return err
	}
	c.maximum = median(each(all[0], rateOf))
	rows := [][]string{{"to reflector", "by processor time", "to XDP_TX", "packets/s", "processor ns a packet", "processors", "source idle", "bytes back", "lost", "refused", "what, loops"}}
	for i, d := range devices {
		base := i / 3 * 3
		rate := median(each(all[i], rateOf))
		toReflector, toKernel := ratio(all[i], all[base+1], rateOf), ratio(all[i], all[base+2], rateOf)
		cpu, source := median(each(all[i], func(s *sample) float64 { return s.cpu })), median(each(all[i], func(s *sample) float64 { return s.source }))
		byTime, own := "", ""
		if i%3 != 2 { // the source's processor does all of the kernel's own
			byTime, own = times2(ratio(all[base+1], all[i], costOf)), fmt.Sprintf("%.0f", median(each(all[i], costOf)))
		}
		rows = append(rows, []string{times2(toReflector), byTime, times2(toKernel), thousands(rate), own, times2(cpu), percent(source),
			fmt.Sprintf("%.0f", median(each(all[i], func(s *sample) float64 { return s.size }))), fmt.Sprint(sum(all[i], lostOf)), fmt.Sprint(sum(all[i], refusedOf)), d.name})
		r.line(fmt.Sprintf("rate/%s", d.name), rate, "packets/s", toReflector, "to-reflector", ratio(all[base+1], all[i], costOf), "to-reflector-by-time", toKernel, "to-XDP_TX")
	}
	note := "Each loop and the source have a processor each."
	if l.places.shared(2) {
		note = "One loop and the source have a processor each; two loops share two with their sources, which yield to them."
	}
	if err := r.table("Packets a second of which each comes back, "+fmt.Sprint(c.window)+" under way. "+note+
		"\nThe graph on one loop is wanted at 0.9 of the reflector. By processor time, which a busy machine disturbs less, is the reflector's"+
		"\nprocessor time a packet to the graph's. XDP_TX runs on the source's processor.", rows); err != nil {
		return err
	}
	return r.nodes(devices[0].name, &devices[0].graph.Stats()[0])
}

// batches is what vectors of several sizes and ways to wait are worth.
func (c *config) batches(ctx context.Context, l *lab, r *report) error {
	type kind struct {
		batch int
		way   string
	}
	var devices []*device
	var kinds []kind
	polled := false
	for _, n := range []int{1, 4, 16, 64} {
		g, err := l.balancer(fmt.Sprintf("graph, %d, adaptive", n), l.file, 1, 0, n)
		if err != nil {
			return err
		}
		devices, kinds = append(devices, g), append(kinds, kind{n, "graph, adaptive"})
		for way := range ways {
			d, err := l.reflector(fmt.Sprintf("reflector, %d, %s", n, wayNames[way]), 1, n, way)
			if err != nil {
				return err
			}
			devices, kinds = append(devices, d), append(kinds, kind{n, "reflector, " + wayNames[way]})
			if way != busy {
				continue
			}
			if _, err := l.take(ctx, d, c.open(c.modest), 20*time.Millisecond, nil); err != nil {
				return err
			}
			polled = d.polls()
		}
	}
	rounds := max(1, c.rounds/2)
	slice := c.time / 2
	// veth holds 256 packets that its receive side has not looked at.
	few := c.closed()
	few.window = min(few.window, 192)
	full, err := l.rounds(ctx, "batch, as many as come back", rounds, devices, func(d *device) (sample, error) {
		return l.take(ctx, d, few, slice, nil)
	})
	if err != nil {
		return err
	}
	some, err := l.rounds(ctx, "batch, at a rate", rounds, devices, func(d *device) (sample, error) {
		return l.take(ctx, d, c.open(c.modest), slice, nil)
	})
	if err != nil {
		return err
	}
	rows := [][]string{{"to 64, same", "packets/s", "processors", fmt.Sprintf("processors at %s/s", thousands(c.modest)), "p50 µs there", "p99 µs there", "lost", "refused", "batch", "what"}}
	for i := range devices {
		k := kinds[i]
		at64 := len(devices) - len(devices)/4 + i%(len(devices)/4)
		cpu := func(s *sample) float64 { return s.cpu }
		rate, used, less := median(each(full[i], rateOf)), median(each(full[i], cpu)), median(each(some[i], cpu))
		t := together(some[i])
		to := ratio(full[i], full[at64], rateOf)
		rows = append(rows, []string{times2(to), thousands(rate), times2(used), times2(less), micro(t.quantile(0.5)), micro(t.quantile(0.99)),
			fmt.Sprint(sum(full[i], lostOf) + sum(some[i], lostOf)), fmt.Sprint(sum(full[i], refusedOf) + sum(some[i], refusedOf)), fmt.Sprint(k.batch), k.way})
		r.line(fmt.Sprintf("batch/%s/batch=%d", k.way, k.batch), rate, "packets/s", to, "to-64", used, "processors", less, "processors-at-rate")
	}
	note := "Busy polling runs the kernel's receive side on the loop's processor (interrupts are not deferred), the others leave it to the source's."
	if !polled {
		note = "Busy polling is asked for and not to be had: this kernel names no NAPI instance for veth's sockets. It is adaptive with a call more."
	}
	return r.table(fmt.Sprintf("Vectors of so many packets at most, and ways to wait for packets, on one loop; %d under way.\n%s", few.window, note), rows)
}

// latencies is how long packets are under way at some rates.
func (c *config) latencies(ctx context.Context, l *lab, r *report) error {
	devices, err := l.trio(1)
	if err != nil {
		return err
	}
	if err := c.know(ctx, l, devices[0]); err != nil {
		return err
	}
	rows := [][]string{{"p50 to reflector", "p99.9", "p50 µs", "p90", "p99", "p99.9", "packets/s", "left out", "lost", "no room", "refused", "of the most", "what, loops"}}
	for _, share := range []float64{0.1, 0.5, 0.9} {
		all, err := l.rounds(ctx, fmt.Sprintf("latency at %.0f %%", 100*share), c.rounds, devices, func(d *device) (sample, error) {
			return l.take(ctx, d, c.open(share*c.maximum), c.time, nil)
		})
		if err != nil {
			return err
		}
		for i, d := range devices {
			t := together(all[i])
			at := func(q float64) func(*sample) float64 { return func(s *sample) float64 { return s.times.quantile(q) } }
			half, tail := ratio(all[i], all[1], at(0.5)), ratio(all[i], all[1], at(0.999))
			rate := median(each(all[i], rateOf))
			row := []string{times2(half), times2(tail)}
			line := []any{half, "p50-to-reflector", tail, "p99.9-to-reflector"}
			for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
				row = append(row, micro(t.quantile(q)))
				line = append(line, t.quantile(q), fmt.Sprintf("p%g-ns", 100*q))
			}
			rows = append(rows, append(row, thousands(rate), thousands(float64(sum(all[i], func(s *sample) uint64 { return s.behind }))),
				fmt.Sprint(sum(all[i], lostOf)), fmt.Sprint(sum(all[i], lateOf)), fmt.Sprint(sum(all[i], refusedOf)), percent(share), d.name))
			r.line(fmt.Sprintf("latency/%s/at=%.0f%%", d.name, 100*share), append(line, rate, "packets/s")...)
		}
	}
	return r.table(fmt.Sprintf("Microseconds from the source to the sink, at shares of the %s packets a second of the graph on one loop."+
		"\nThe source hands over up to %d packets together; what it could not send in time it leaves out.", thousands(c.maximum), batch), rows)
}

// know finds out what a device can do, if that is not known.
func (c *config) know(ctx context.Context, l *lab, d *device) error {
	if c.maximum > 0 {
		return nil
	}
	all, err := l.rounds(ctx, "the most", 3, []*device{d}, func(d *device) (sample, error) { return l.take(ctx, d, c.closed(), c.time, nil) })
	if err != nil {
		return err
	}
	c.maximum = median(each(all[0], rateOf))
	return nil
}

// Storms are of so many pools and backends each.
const stormPools, stormBackends = 20, 50

// many gives f more pools and backends.
func many(f *graph.File) *graph.File {
	out := *f
	spec := f.Spec
	spec.Pools, spec.VIPs = nil, append([]state.VIPSpec(nil), f.Spec.VIPs...)
	for i := range max(stormPools, len(f.Spec.Pools)) {
		p := f.Spec.Pools[0]
		if i < len(f.Spec.Pools) {
			p = f.Spec.Pools[i]
		} else {
			p.Name = fmt.Sprintf("storm-%d", i)
			v := f.Spec.VIPs[0]
			v.Name, v.Pool, v.Prefix = p.Name, p.Name, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 114, byte(i)}), 32)
			spec.VIPs = append(spec.VIPs, v)
		}
		p.Backends = nil
		for b := range stormBackends {
			p.Backends = append(p.Backends, state.BackendSpec{Name: fmt.Sprintf("b-%d", b), Address: netip.AddrFrom4([4]byte{10, 7, byte(i), byte(b)}), Weight: 1})
		}
		spec.Pools = append(spec.Pools, p)
	}
	out.Spec = spec
	return &out
}

// longer has the first path of lb.hcl count packets before they leave.
func longer(text string) (string, error) {
	s := strings.Replace(text, "gre, tx]", "gre, leaving, tx]", 1)
	s = strings.Replace(s, "  node \"xdp-tx\"", "  node \"count\" \"leaving\" {}\n  node \"xdp-tx\"", 1)
	if strings.Count(s, "leaving") != 2 {
		return "", errors.New("its main path does not end with gre, tx")
	}
	return s, nil
}

// disturbed is what reloads and storms of health lose, and what they add to latency.
func (c *config) disturbed(ctx context.Context, l *lab, r *report) error {
	other, err := read(c.file, longer)
	if err != nil {
		return err
	}
	// Rings for a while: what is to be seen is what reloads lose, not what a machine
	// does that is too busy to run the loop.
	const rings = 16384
	d, err := l.balancer("graph", many(l.file), 1, rings, 0)
	if err != nil {
		return err
	}
	files := []*graph.File{l.fit(many(other), 1, rings), l.fit(many(l.file), 1, rings)}
	if err := c.know(ctx, l, d); err != nil {
		return err
	}
	var reloads, turns atomic.Int64
	reload := func(ctx context.Context) error {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := d.graph.Reload(files[i%2]); err != nil {
				return err
			}
			reloads.Add(1)
			sleep(ctx, c.reloads)
		}
		return nil
	}
	store := d.graph.Store()
	rnd := rand.New(rand.NewPCG(1, 2))
	var backends []uint32
	for _, p := range files[0].Spec.Pools {
		for _, b := range p.Backends {
			backends = append(backends, store.Backend(b.Address))
		}
	}
	// A third of all backends changes its mind at a time; the first of each pool never
	// goes, so that there is always one.
	storm := func(ctx context.Context) error {
		for ctx.Err() == nil {
			for i, b := range backends {
				if i%stormBackends != 0 && rnd.IntN(3) == 0 {
					store.SetStatus(b, []state.Status{state.Up, state.Down}[rnd.IntN(2)])
				}
			}
			turns.Add(1)
			sleep(ctx, c.reloads)
		}
		return nil
	}
	states := []struct {
		name string
		do   func(context.Context) error
	}{{"at rest", nil}, {"reloads", reload}, {"storms", storm}}
	all := make([][]sample, len(states))
	before, _ := store.Builds()
	for round := range c.rounds {
		fmt.Fprintf(os.Stderr, "reload: round %d of %d\n", round+1, c.rounds)
		for i := range states {
			at := (i + round) % len(states)
			s, err := l.take(ctx, d, c.open(c.maximum/2), 2*c.time, states[at].do)
			if err != nil {
				return fmt.Errorf("%s: %w", states[at].name, err)
			}
			all[at] = append(all[at], s)
			for _, b := range backends {
				store.SetStatus(b, state.Up)
			}
			store.Flush()
		}
	}
	after, _ := store.Builds()
	rows := [][]string{{"lost", "no room", "p99.9 added, µs", "p50 µs", "p99", "p99.9", "longest", "packets", "packets/s", "left out", "refused", "what"}}
	for i := range states {
		t := together(all[i])
		var added []float64
		for n := range all[i] {
			added = append(added, all[i][n].times.quantile(0.999)-all[0][n].times.quantile(0.999))
		}
		more := median(added)
		sign := ""
		if more < 0 {
			sign, more = "-", -more
		}
		rate, lost, late := median(each(all[i], rateOf)), sum(all[i], lostOf), sum(all[i], lateOf)
		rows = append(rows, []string{fmt.Sprint(lost), fmt.Sprint(late), sign + micro(more), micro(t.quantile(0.5)), micro(t.quantile(0.99)), micro(t.quantile(0.999)), micro(t.quantile(1)),
			thousands(float64(sum(all[i], func(s *sample) uint64 { return s.sent }))), thousands(rate), thousands(float64(sum(all[i], func(s *sample) uint64 { return s.behind }))),
			fmt.Sprint(sum(all[i], refusedOf)), states[i].name})
		r.line("reload/"+states[i].name, lost, "lost", late, "no-room", median(added), "p99.9-added-ns", t.quantile(0.999), "p99.9-ns", rate, "packets/s")
	}
	return r.table(fmt.Sprintf("While the graph is reloaded (%d times: a node comes and goes) and while health turns (%d times, a third of %d backends in %d pools each time, %d tables built),"+
		"\nat half of %s packets a second, with rings of %d. Lost is to be 0; no room is how many the sockets had none for, because the loop got no processor for long.", reloads.Load(), turns.Load(), len(backends), stormPools, after-before, thousands(c.maximum), rings), rows)
}

// idles is what a daemon costs that has nothing to do.
func (c *config) idles(ctx context.Context, l *lab, r *report) (err error) {
	if _, err := exec.LookPath(c.binary); err != nil {
		return fmt.Errorf("%w: make build, or -lbgraph", err)
	}
	d, err := l.plug("daemon", 1)
	if err != nil {
		return err
	}
	// /run and /var/lib are its own, where the file places the admin socket and the
	// last good configuration.
	p := exec.Command("sh", "-c", `mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib && exec "$@"`, "sh", c.binary, "run", c.file)
	p.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	var log strings.Builder
	p.Stderr, p.Stdout = &log, &log
	if err := d.space.do(p.Start); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	defer func() {
		_ = p.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(15*time.Second, func() { _ = p.Process.Kill() })
		<-ended
		kill.Stop()
	}()
	const settle = 3 * time.Second // until it has started, and its first checks have failed
	fmt.Fprintf(os.Stderr, "idle: %v\n", settle+c.idle)
	wait := func(t time.Duration) error {
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("the daemon ended: %w\n%s", err, log.String())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(t):
			return nil
		}
	}
	if err := wait(settle); err != nil {
		return err
	}
	was, err := cputime.Process(p.Process.Pid)
	begun := time.Now()
	if err = errors.Join(err, wait(c.idle)); err != nil {
		return err
	}
	is, err := cputime.Process(p.Process.Pid)
	if err != nil {
		return err
	}
	took := time.Since(begun)
	share := float64(is-was) / float64(took.Nanoseconds())
	r.line("idle", share, "processors")
	return r.table("A daemon without traffic, its health checks and BGP trying.", [][]string{
		{"to 1 %", "of a processor", "processor time", "in"},
		{times2(share / 0.01), fmt.Sprintf("%.2f %%", 100*share), (is - was).Round(100 * time.Microsecond).String(), took.Round(time.Millisecond).String()},
	})
}
