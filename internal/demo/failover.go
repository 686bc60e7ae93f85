package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// each is how many flows the client keeps to each VIP.
const each = 12

// failover takes a balancer and a backend away, and brings them back, while the
// client's flows go on.
func (d *demo) failover(ctx context.Context) error {
	c, err := d.hold(ctx, each)
	if err != nil {
		return err
	}
	defer c.hangUp()
	for _, step := range []func(context.Context, *crowd) error{d.killBalancer, d.returnBalancer, d.reload, d.killBackend} {
		if err := step(ctx, c); err != nil {
			return err
		}
	}
	return d.conserved(ctx)
}

// count answers how many flows are connections, and how many are datagrams' flows.
func count(flows []seen, which func(i int) bool) (tcp, udp int) {
	for i, f := range flows {
		switch {
		case !which(i):
		case f.udp:
			udp++
		default:
			tcp++
		}
	}
	return tcp, udp
}

// undisturbed states that flows went on since before, each on its backend.
func (d *demo) undisturbed(before, after []seen, which func(i int) bool, where string) {
	var broken, moved, lost, asked int
	var longest time.Duration
	for i, f := range after {
		if !which(i) {
			continue
		}
		if f.err != nil {
			broken++
		}
		if f.name != before[i].name || f.moves != before[i].moves {
			moved++
		}
		if f.longest > before[i].longest {
			longest = max(longest, f.longest)
		}
		lost += f.lost - before[i].lost
		asked += f.answers - before[i].answers
	}
	tcp, udp := count(after, which)
	words := fmt.Sprintf("%d connections", tcp)
	if udp > 0 {
		words += fmt.Sprintf(" and %d UDP flows", udp)
	}
	tail := ""
	if longest > 100*time.Millisecond {
		tail += fmt.Sprintf("; the longest waited %.1f s", longest.Seconds())
	}
	if lost > 0 {
		tail += fmt.Sprintf("; %d datagrams were lost", lost)
	}
	if moved > 0 {
		tail += fmt.Sprintf("; %d changed their backend", moved)
	}
	d.fact(broken == 0 && asked > 0, "%s went on%s: %d requests answered, %d connections broken%s", words, where, asked, broken, tail)
	d.fact(moved == 0, "each stayed on its backend")
}

// killBalancer kills the first balancer under the flows, an upload and a download.
func (d *demo) killBalancer(ctx context.Context, c *crowd) error {
	victim := balancers[0]
	sum := sha256.New()
	if _, err := io.Copy(sum, Bytes(bulk)); err != nil {
		return err
	}
	samples, err := d.samples(ctx, victim)
	if err != nil {
		return err
	}
	had := total(samples, "lbgraph_received_bytes_total")
	moving := []*transfer{{upload: true}, {}}
	for _, t := range moving {
		if t.flow, err = d.through(ctx, victim); err != nil {
			return err
		}
		defer func() { _ = t.conn.Close() }()
	}
	carried := map[string]int{}
	for _, f := range c.flows {
		carried[f.by]++
	}
	d.say("\nA balancer is killed (kill -9 %s), while connections are open", victim)
	d.say("    %d flows: %d go by %s, %d by %s; and an upload and a download of %d MB by %s",
		len(c.flows), carried[victim], victim, carried[balancers[1]], balancers[1], bulk>>20, victim)
	c.begin(ctx)
	for _, t := range moving {
		t.start(fmt.Sprintf("%d %x", bulk, sum.Sum(nil)))
	}
	if err := d.net.until(ctx, patience, func() error {
		for _, t := range moving {
			if t.moved.Load() < bulk/8 {
				return errors.New("an upload or a download does not move")
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if samples, err = d.samples(ctx, victim); err != nil {
		return err
	}
	// All of the upload passed it so far; what else it received since is little.
	passed := total(samples, "lbgraph_received_bytes_total") - had
	under := passed >= bulk/8
	for _, t := range moving {
		under = under && t.moved.Load() < bulk*7/8
	}
	before := c.look()
	if err := d.net.kill(victim, "balancer"); err != nil {
		return err
	}
	began := time.Now()
	if err := d.ways(ctx, len(balancers)-1); err != nil {
		return err
	}
	d.fact(under && carried[victim] > 0 && carried[balancers[1]] > 0, "it carried them until then, %.1f MB; the router took its ways out within %d ms", passed/(1<<20), time.Since(began).Milliseconds())
	if err := c.answered(ctx, 5, all); err != nil {
		return err
	}
	d.undisturbed(before, c.look(), all, " by "+balancers[1])
	for i, what := range []string{"upload", "download"} {
		close(moving[i].fast)
		var err error
		select {
		case err = <-moving[i].done:
		case <-ctx.Done():
			return ctx.Err()
		}
		d.fact(err == nil, "the %s on a connection by %s arrived whole by %s%s", what, victim, balancers[1], from("", err))
	}
	return d.fresh(ctx, d.http, d.everybody())
}

// returnBalancer starts it again.
func (d *demo) returnBalancer(ctx context.Context, c *crowd) error {
	d.say("\nIt comes back, with an empty connection table and the same Maglev tables")
	before := c.look()
	if err := d.balance(0); err != nil {
		return err
	}
	began := time.Now()
	if err := d.ways(ctx, len(balancers)); err != nil {
		return err
	}
	d.fact(true, "the router has %d ways to each VIP again, after %.1f s", len(balancers), time.Since(began).Seconds())
	if err := c.answered(ctx, 5, all); err != nil {
		return err
	}
	d.undisturbed(before, c.look(), all, " by both")
	samples, err := d.samples(ctx, balancers[0])
	got := total(samples, "lbgraph_received_packets_total")
	d.fact(err == nil && got > 0, "%s carries flows again: %.0f packets%s", balancers[0], got, from("", err))
	return nil
}

// killBackend kills the servers of the backend that has the most flows, if there are
// others.
func (d *demo) killBackend(ctx context.Context, c *crowd) error {
	if len(d.everybody()) < 2 {
		return nil
	}
	before := c.look()
	has := map[string]int{}
	for _, f := range before {
		has[f.name]++
	}
	victim := d.backends[0]
	for _, b := range d.backends {
		if has[b.Name] > has[victim.Name] {
			victim = b
		}
	}
	on := func(i int) bool { return before[i].name == victim.Name }
	others := func(i int) bool { return !on(i) }
	tcp, udp := count(before, on)
	d.say("\nA backend dies (kill -9 of %s's servers, which %d connections and %d UDP flows are on)", victim.Name, tcp, udp)
	if err := d.net.kill(victim.Name, "server"); err != nil {
		return err
	}
	began := time.Now()
	left := d.everybody()
	delete(left, victim.Name)
	// Health checks find out, at either balancer in its own time.
	if err := d.net.until(ctx, 20*time.Second, func() error {
		for i, f := range c.look() {
			if on(i) && f.udp && f.name == victim.Name {
				return fmt.Errorf("a UDP flow stays on %s", victim.Name)
			}
		}
		_, err := d.who(ctx, d.http)
		return err
	}); err != nil {
		return err
	}
	d.fact(true, "after %.1f s its %d UDP flows are on others, and new connections too", time.Since(began).Seconds(), udp)
	if err := c.answered(ctx, 5, others); err != nil {
		return err
	}
	d.undisturbed(before, c.look(), others, " on the others")
	if err := d.fresh(ctx, d.http, left); err != nil {
		return err
	}

	d.say("\nIt comes back")
	before = c.look()
	if err := d.serve(victim); err != nil {
		return err
	}
	began = time.Now()
	if err := d.net.until(ctx, 20*time.Second, func() error {
		who, err := d.who(ctx, d.http)
		if err == nil && who[victim.Name] == 0 {
			err = fmt.Errorf("%s answers nobody", victim.Name)
		}
		return err
	}); err != nil {
		return err
	}
	d.fact(true, "after %.1f s it answers new connections", time.Since(began).Seconds())
	alive := func(i int) bool { return before[i].err == nil }
	if err := c.answered(ctx, 5, alive); err != nil {
		return err
	}
	d.undisturbed(before, c.look(), alive, "")
	return nil
}

// everybody is the names of backends that take flows.
func (d *demo) everybody() map[string]bool {
	names := map[string]bool{}
	for _, b := range d.backends {
		if b.Weight > 0 && !b.Drain {
			names[b.Name] = true
		}
	}
	return names
}

// who asks on new connections, one after the other, and answers how often who
// answered.
func (d *demo) who(ctx context.Context, at netip.AddrPort) (who map[string]int, err error) {
	who = map[string]int{}
	for range requests {
		f, err := d.dial(ctx, "tcp", at)
		if err != nil {
			return who, err
		}
		name, err := f.once()
		_ = f.conn.Close()
		if err != nil {
			return who, err
		}
		who[name]++
	}
	return who, nil
}

// fresh states that new connections to an address and port are answered by these backends.
func (d *demo) fresh(ctx context.Context, at netip.AddrPort, by map[string]bool) error {
	who, err := d.who(ctx, at)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	n, wrong := 0, 0
	for name, k := range who {
		n += k
		if !by[name] {
			wrong++
		}
	}
	d.fact(err == nil && n == requests && wrong == 0 && len(who) == len(by), "%d of %d new connections to %s answered: %s%s", n, requests, at, tally(who), from("", err))
	return nil
}
