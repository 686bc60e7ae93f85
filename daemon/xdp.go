package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/umem"
	"github.com/lbgraph/lbgraph/io/xsk"
	"github.com/lbgraph/lbgraph/runtime"
)

// xdpDriver opens interfaces, each with an admission program of its own, and keeps
// their rules.
type xdpDriver struct {
	replace bool
	batch   int // 0: packet.Size
	log     *zap.Logger

	mu    sync.Mutex
	file  *graph.File
	ports []*xdpPort
}

type xdpPort struct {
	*xsk.Port
	program *bpf.Admission
	rules   *bpf.Rules // prepared and not yet in force
}

// Start is part of graph.Starter.
func (p *xdpPort) Start() error { return remedy(p.Port.Start()) }

// Close closes the sockets, and the program after them.
func (p *xdpPort) Close() error { return errors.Join(p.Port.Close(), p.program.Close()) }

// Queues is part of runtime.Driver.
func (d *xdpDriver) Queues(s graph.PortSpec) (int, error) {
	n, err := xsk.Queues(s.Name)
	if err != nil {
		return 0, remedy(err)
	}
	if s.Queues > 0 {
		n = s.Queues
	}
	return n, nil
}

// Open is part of runtime.Driver.
func (d *xdpDriver) Open(s graph.PortSpec, m runtime.Memory, _, rings int) (graph.Port, error) {
	mem, ok := m.(*umem.Memory)
	if !ok {
		return nil, fmt.Errorf("interface %s: frames must stand in memory that the kernel can share", s.Name)
	}
	mode, err := bpf.ParseMode(s.Mode)
	if err != nil {
		return nil, err
	}
	program, err := bpf.NewAdmission()
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", s.Name, remedy(err))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// The rules stand before the program does.
	addrs, err := xsk.Addresses(s.Name)
	if err == nil {
		var rules *bpf.Rules
		if rules, err = rulesOf(d.file, addrs); err == nil {
			err = program.Update(rules)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", s.Name, errors.Join(err, program.Close()))
	}
	p, err := xsk.Open(xsk.Options{
		Interface: s.Name, Queues: s.Queues, Mode: mode, Ring: rings, Batch: d.batch, Memory: mem, Program: program, Replace: d.replace, Later: true, Log: d.log,
	})
	if err != nil {
		return nil, errors.Join(remedy(err), program.Close())
	}
	x := &xdpPort{Port: p, program: program}
	d.ports = append(d.ports, x)
	return x, nil
}

// remedies say what to do about an interface that cannot be opened, where the error
// does not.
var remedies = []struct {
	err  error
	what string
}{
	{xsk.ErrNoInterface, "name one that `ip link` shows"},
	{xsk.ErrForeign, "--replace-xdp says so"},
	{xsk.ErrBusy, "end the other process (ss --xdp -ap names it), or leave the queue to it"},
	{xsk.ErrNoXDP, "take another interface, or leave mode = \"native\" out; the kernel needs CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL"},
	{xsk.ErrMTU, "lower it: ip link set INTERFACE mtu 1500"},
	{xsk.ErrMemory, "raise it, or lower frames and rings"},
}

// remedy adds to an error of an interface what to do about it.
func remedy(err error) error {
	for _, r := range remedies {
		if errors.Is(err, r.err) {
			return fmt.Errorf("%w: %s", err, r.what)
		}
	}
	return err
}

// rulesOf builds the rules of an interface with the addresses addrs. Errors about
// tunnels are ours whatever interface the tunnel's packets left by.
func rulesOf(f *graph.File, addrs []netip.Addr) (*bpf.Rules, error) {
	var tunnels []netip.Prefix
	var gue []uint16
	for _, a := range addrs {
		tunnels = append(tunnels, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, g := range packetGraphs(f) {
		for _, n := range g.Nodes {
			sources, udp := n.Kind.Tunnel(n.Config)
			tunnels = append(tunnels, sources...)
			if udp != 0 {
				gue = append(gue, udp)
			}
		}
	}
	return bpf.RulesOf(f.Spec, tunnels, gue...)
}

// prepare builds the rules of a new file, so that what is wrong with them shows
// before anything changes.
func (d *xdpDriver) prepare(f *graph.File) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.ports {
		r, err := rulesOf(f, p.Info().Addrs)
		if err != nil {
			return err
		}
		p.rules = r
	}
	return nil
}

// update brings the prepared rules of f into force.
func (d *xdpDriver) update(f *graph.File) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.file = f
	var errs []error
	for _, p := range d.ports {
		if err := p.program.Update(p.rules); err != nil {
			errs = append(errs, fmt.Errorf("interface %s: %w", p.Info().Name, err))
		}
	}
	return errors.Join(errs...)
}

// attached is nil while every interface is up and has its program.
func (d *xdpDriver) attached() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.ports {
		if !p.Attached() {
			return fmt.Errorf("interface %s: the XDP program is gone", p.Info().Name)
		}
		if !p.Up() {
			return fmt.Errorf("interface %s: the link is down", p.Info().Name)
		}
	}
	return nil
}

// addTo adds what the XDP programs dropped to the counts of the graph whose ports
// they are: the reason's output of the first node that has it, else of the source.
func (d *xdpDriver) addTo(s *graph.Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, info := range s.Ports {
		for _, p := range d.ports {
			if p.Info().Name != info.Name {
				continue
			}
			c, err := p.program.Counts()
			if err != nil {
				d.log.Warn("the XDP program does not answer", zap.String("interface", info.Name), zap.Error(err))
				continue
			}
			for reason, n := range c.Dropped {
				if n.Packets > 0 {
					addDrop(s, reason.String(), n)
				}
			}
		}
	}
}

func addDrop(s *graph.Stats, reason string, n bpf.Count) {
	s.Received += n.Packets
	s.ReceivedBytes += n.Bytes
	s.Dropped += n.Packets
	for i := range s.Nodes {
		for o := range s.Nodes[i].Outputs {
			if out := &s.Nodes[i].Outputs[o]; out.Drop && out.Name == reason {
				out.Packets += n.Packets
				out.Bytes += n.Bytes
				return
			}
		}
	}
	if len(s.Nodes) > 0 {
		s.Nodes[0].Outputs = append(s.Nodes[0].Outputs, graph.OutputStats{Name: reason, Drop: true, Packets: n.Packets, Bytes: n.Bytes})
	}
}

// close forgets the ports; the engines have closed them.
func (d *xdpDriver) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ports = nil
}
