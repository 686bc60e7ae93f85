package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// ProbeMark is the upper half of the mark of what health checks send through
// tunnels; the lower half, beneath ProbeMask, is the number of a Way.
const (
	ProbeMark = 0x6c62 << 16
	ProbeMask = 0xffff << 16
)

// ProbeOptions say where probes are wrapped.
type ProbeOptions struct {
	Interface int // its index, in the namespace of the calling thread; all else that leaves there drops

	clsact bool // in tests: as before Linux 6.6
}

// A Way leads to one backend through a tunnel.
type Way struct {
	Source, Backend netip.Addr // of one family
	Interface       int        // by which packets leave
	Tunnel          Tunnels    // one kind
	GUEPort         uint16
	TTL             uint8
}

// A Probe wraps packets that carry a mark in the tunnel to a backend. It ends with
// Close or with the process, but before Linux 6.6 with its interface. Its methods may
// be called from any goroutine, Close last.
type Probe struct {
	objs *ebpf.Collection
	tc   *tcHook
}

// ErrBusy says that a living process already wraps probes there.
var ErrBusy = errors.New("another process sends health checks by this interface")

// AttachProbe loads the program and attaches it to TC's egress hook. Before Linux 6.6
// it does not see others that stand there, and takes their place.
func AttachProbe(o ProbeOptions) (*Probe, error) {
	if ProbeBusy(o.Interface) {
		return nil, ErrBusy
	}
	p, err := loadProbes()
	if err != nil {
		return nil, fmt.Errorf("loading the program of probes: %w", explain(err))
	}
	if p.tc, err = attachTC(p.objs.Programs[probeProgLbgraphProbe], probeProgLbgraphProbe, o.Interface, true, o.clsact); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("attaching to TC: %w", explain(err))
	}
	return p, nil
}

// ProbeBusy tells whether a living process has its Probe on an interface. Before
// Linux 6.6 nobody knows.
func ProbeBusy(index int) bool { return tcxOurs(index) }

func loadProbes() (*Probe, error) {
	_ = rlimit.RemoveMemlock()
	spec, err := loadProbe()
	if err != nil {
		return nil, err
	}
	p := &Probe{}
	p.objs, err = ebpf.NewCollection(spec)
	return p, err
}

// Set makes w the way of packets with the mark ProbeMark | id.
func (p *Probe) Set(id uint16, w Way) error {
	if w.Source.BitLen() != w.Backend.BitLen() || !w.Source.IsValid() || bits.OnesCount32(uint32(w.Tunnel)) != 1 || w.Tunnel&^AllTunnels != 0 {
		return fmt.Errorf("there is no way from %s to %s by %q", w.Source, w.Backend, w.Tunnel)
	}
	v := probeWay{
		Src: words(w.Source), Dst: words(w.Backend), Ifindex: uint32(w.Interface),
		V6: uint8(b2u(w.Backend.Is6())), Kind: uint8(bits.TrailingZeros32(uint32(w.Tunnel))), Ttl: w.TTL,
	}
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], w.GUEPort)
	v.Port = binary.NativeEndian.Uint16(port[:])
	return p.objs.Maps[probeMapWays].Put(uint32(id), &v)
}

// Remove makes an end of a way; what carries its mark drops.
func (p *Probe) Remove(id uint16) error {
	err := p.objs.Maps[probeMapWays].Delete(uint32(id))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// Alive tells whether the program still stands on its interface.
func (p *Probe) Alive() bool { return p.tc.alive() }

// Close takes the program off.
func (p *Probe) Close() error {
	var err error
	if p.tc != nil {
		err = p.tc.close()
	}
	p.objs.Close()
	return err
}

// words is an address as the programs keep it: IPv4-mapped, in network order.
func words(a netip.Addr) (w [4]uint32) {
	b := a.As16()
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return w
}
