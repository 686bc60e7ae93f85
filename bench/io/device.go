package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/daemon"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/io/umem"
	"github.com/lbgraph/lbgraph/io/xsk"
)

// A device is what packets are sent to: it stands behind a veth pair, in a namespace of
// its own, and sends them back by the interface they came from. Devices that nothing is
// sent to sleep, so all of a part stand ready at the same time.
type device struct {
	name  string
	loops int // and queues
	space *space
	port  string // the source's interface
	index int
	mac   [6]byte // of the device's interface
	gre   bool    // what comes back is in a tunnel
	lost  func() map[string]uint64
	fd    int // of the first socket of a reflector
	close func() error
	graph *daemon.Daemon // nil for others
}

const uplink = "eth0" // of every device, as in lb.hcl

// plug makes a device without anything in it.
func (l *lab) plug(name string, loops int) (*device, error) {
	d := &device{name: name, loops: loops, port: fmt.Sprintf("g%d", len(l.devices)), lost: func() map[string]uint64 { return nil }}
	var err error
	if d.space, err = newSpace(); err != nil {
		return nil, err
	}
	l.devices = append(l.devices, d) // to be closed with the others
	if err := pair(l.space, d.port, d.space, uplink, "192.0.2.1/24", loops); err != nil {
		return nil, err
	}
	if d.index, _, _, err = l.space.device(d.port); err != nil {
		return nil, err
	}
	if _, d.mac, _, err = d.space.device(uplink); err != nil {
		return nil, err
	}
	return d, l.wire.listen(d.index)
}

// balancer is a device that runs f, whose first graph's queues, loops and rings it sets.
// batch is the size of its vectors at most.
func (l *lab) balancer(name string, f *graph.File, loops, rings, batch int) (*device, error) {
	d, err := l.plug(name, loops)
	if err != nil {
		return nil, err
	}
	d.gre = true
	file := l.fit(f, loops, rings)
	err = d.space.do(func() error {
		n, err := daemon.New(file, daemon.Options{Version: "bench", Batch: batch})
		if err != nil {
			return err
		}
		d.graph = n
		d.close = func() error { return n.Stop(context.Background()) }
		return n.Start(context.Background())
	})
	if err != nil {
		d.close = nil
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d.lost = func() map[string]uint64 {
		s := d.graph.Stats()[0]
		all := map[string]uint64{}
		for _, of := range s.Lost {
			for k, n := range of {
				all[k] += n
			}
		}
		for k, n := range s.Drops() {
			all[k] += n
		}
		return all
	}
	return d, nil
}

// fit answers f with its first graph as a measurement wants it.
func (l *lab) fit(f *graph.File, loops, rings int) *graph.File {
	file, g := *f, *f.Graphs[0]
	g.Pin = nil
	for i := range loops {
		g.Pin = append(g.Pin, l.places.loop(i))
	}
	if rings != 0 {
		g.Rings = rings
	}
	file.Graphs = append([]*graph.Graph{&g}, f.Graphs[1:]...)
	file.Controls = nil
	file.Spec.Pools = append([]state.PoolSpec(nil), f.Spec.Pools...)
	for i := range file.Spec.Pools {
		file.Spec.Pools[i].Health = "" // nobody answers checks
	}
	return &file
}

// port is a port with the program in front of it.
type port struct {
	*xsk.Port
	program *bpf.Admission
}

// Close is part of graph.Port.
func (p *port) Close() error { return errors.Join(p.Port.Close(), p.program.Close()) }

// openPort opens a port that takes what belongs to the VIPs of s.
func openPort(s state.Spec, o xsk.Options) (*port, error) {
	rules, err := bpf.RulesOf(s, nil)
	if err != nil {
		return nil, err
	}
	p := &port{}
	if p.program, err = bpf.NewAdmission(); err != nil {
		return nil, err
	}
	if err = p.program.Update(rules); err == nil {
		o.Program, o.Mode = p.program, bpf.Native
		p.Port, err = xsk.Open(o)
	}
	if err != nil {
		return nil, errors.Join(err, p.program.Close())
	}
	return p, nil
}

// Ways to wait for packets.
const (
	adaptive = iota // spin for 50 µs, then sleep: what a graph's loops do
	sleeping        // sleep in poll whenever there is nothing
	busy            // have the kernel's receive side run on this core (SO_PREFER_BUSY_POLL); sleep as adaptive does
	spinning        // never sleep while there is traffic
	ways
)

var wayNames = [ways]string{"adaptive", "poll", "busy poll", "spinning"}

const (
	spinFor = 50 * time.Microsecond // how long an adaptive loop spins, as in runtime
	restFor = 20 * time.Millisecond // when a spinning one leaves the processor to the next device
)

// reflector is the least that can be done with AF_XDP: a loop a queue that exchanges
// MAC addresses and sends everything back.
func (l *lab) reflector(name string, loops, batch, way int) (*device, error) {
	d, err := l.plug(name, loops)
	if err != nil {
		return nil, err
	}
	const rings = 2048
	const each = 2*rings + 4*packet.Size
	mem, err := umem.New(loops*each, 2048, false)
	if err != nil {
		return nil, err
	}
	var p *port
	err = d.space.do(func() (err error) {
		p, err = openPort(l.file.Spec, xsk.Options{Interface: uplink, Ring: rings, Batch: batch, Memory: mem, Later: true})
		return err
	})
	if err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	var stop atomic.Bool
	var running sync.WaitGroup
	d.close = func() error {
		stop.Store(true)
		running.Wait()
		return errors.Join(p.Close(), mem.Close())
	}
	d.lost, d.fd = p.Lost, p.Queue(0).FD()
	ready := make(chan error, loops)
	for i := range loops {
		q := p.Queue(i)
		if way == busy {
			if err := busyPoll(q.FD(), max(batch, 8)); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		free := make([]uint32, each)
		for f := range free {
			free[f] = uint32(i*each + f)
		}
		running.Go(func() {
			runtime.LockOSThread() // for good
			err := pin(l.places.loop(i))
			free = free[q.Refill(free[:rings]):]
			ready <- err
			if err == nil {
				turn(q, mem, free, way, &stop)
			}
		})
	}
	for range loops {
		if err := <-ready; err != nil {
			return nil, err
		}
	}
	return d, d.space.do(p.Start)
}

// busyPoll has a socket's receive side driven by whoever asks it for packets.
func busyPoll(fd, budget int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL, 20),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL_BUDGET, budget),
	)
}

// polls tells whether the kernel knows which NAPI instance fills the socket of d, which
// has received packets: else there is nothing that busy polling could run. So it is with
// veth in Linux 6.18.
func (d *device) polls() bool {
	id, err := unix.GetsockoptInt(d.fd, unix.SOL_SOCKET, unix.SO_INCOMING_NAPI_ID)
	return err == nil && id != 0
}

// turn reflects packets until it is to stop.
func turn(q graph.Queue, mem *umem.Memory, free []uint32, way int, stop *atomic.Bool) {
	v := &packet.Vector{Mem: mem.Bytes(), Links: make([]packet.Link, mem.Frames())}
	var done [packet.Size]uint32
	poll := []unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}
	var since time.Time // of the last packets, as a graph's loop counts: before they were dealt with
	limit := spinFor
	if way == spinning {
		limit = restFor
	}
	for !stop.Load() {
		for n := q.Reclaim(done[:]); n > 0; n = q.Reclaim(done[:]) {
			free = append(free, done[:n]...)
		}
		if n := q.Refill(free[max(0, len(free)-packet.Size):]); n > 0 {
			at := max(0, len(free)-packet.Size)
			free = free[:at+copy(free[at:], free[at+n:])]
		}
		if way == busy {
			// This is what runs the driver.
			_, _, _ = unix.Recvfrom(q.FD(), nil, unix.MSG_DONTWAIT)
		}
		n := q.Receive(v)
		if n == 0 {
			q.Flush()
			if way != sleeping && time.Since(since) < limit {
				continue
			}
			_, _ = unix.Poll(poll, 100)
			since = time.Now()
			continue
		}
		since = time.Now()
		for i := range n {
			packet.SwapMACs(v.Bytes(i))
		}
		taken := q.Transmit(v, packet.All(n))
		q.Flush()
		if left := packet.All(n) &^ taken; left != 0 {
			more := q.Transmit(v, left) // the kernel has made room
			for m := left &^ more; m != 0; m &= m - 1 {
				free = append(free, v.Frame[m.Next()&63])
			}
			q.Flush()
		}
	}
}

// kernelOwn is the kernel's own way: an XDP program in native mode that answers XDP_TX.
// It runs on the processor of the source, for veth's receive side does.
func (l *lab) kernelOwn(name string, loops int) (*device, error) {
	d, err := l.plug(name, loops)
	if err != nil {
		return nil, err
	}
	var index int
	if index, _, _, err = d.space.device(uplink); err == nil {
		err = l.wire.attach(d.space, wireProgLbgraphBack, index)
	}
	return d, err
}
