package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

// probes loads the program without attaching it.
func probes(t testing.TB) *Probe {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root: TC programs need it")
	}
	p, err := loadProbes()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// wrap answers what the program leaves of a frame with that mark, and the mark; nil
// if it drops it.
func (p *Probe) wrap(t testing.TB, frame []byte, mark uint32) ([]byte, uint32) {
	t.Helper()
	const markAt, size, redirect, shot = 8, 192, 7, 2 // of struct __sk_buff; TC_ACT_…
	in, out := make([]byte, size), make([]byte, size)
	binary.NativeEndian.PutUint32(in[markAt:], mark)
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+100), Context: in, ContextOut: out}
	action, err := p.objs.Programs[probeProgLbgraphProbe].Run(&o)
	if err != nil {
		t.Fatal(err)
	}
	switch action {
	case redirect:
		return o.DataOut, binary.NativeEndian.Uint32(out[markAt:])
	case shot:
		return nil, 0
	}
	t.Fatalf("action %d", action)
	return nil, 0
}

func way(v6 bool, kind Tunnels) Way {
	w := Way{Source: netip.MustParseAddr(remote4), Backend: netip.MustParseAddr(local4), Interface: 1, Tunnel: kind, GUEPort: GUEPort, TTL: 64}
	if v6 {
		w.Source, w.Backend = netip.MustParseAddr(remote6), netip.MustParseAddr(local6)
	}
	return w
}

// Every kind of tunnel over every pair of families is what a backend takes off again,
// byte for byte, and its mark is gone.
func TestProbeAllPairs(t *testing.T) {
	p, d := probes(t), decap(t, DecapOptions{Tunnels: AllTunnels})
	for i, kind := range []Tunnels{GRE, IPIP, GUE} {
		for pair := range 4 {
			v6out, v6in := pair&1 != 0, pair&2 != 0
			id := uint16(i*10 + pair)
			if err := p.Set(id, way(v6out, kind)); err != nil {
				t.Fatal(err)
			}
			for _, size := range []int{20, 101, 1240} {
				for _, ecn := range []byte{0, 2} {
					in := ether(0, kindOf(v6in), inner(v6in, 0x48|ecn, size))
					got, mark := p.wrap(t, in, ProbeMark|uint32(id))
					want := ether(0, kindOf(v6out), tunnelled(kind, v6out, v6in, ecn, inner(v6in, 0x48|ecn, size)))
					if !bytes.Equal(got, want) || mark != 0 {
						t.Errorf("%s, outer v6 %v, inner v6 %v: mark %#x,\n%x, want\n%x", kind, v6out, v6in, mark, got, want)
						continue
					}
					if back := d.run(t, "lbgraph_decap", got); !bytes.Equal(back, in) {
						t.Errorf("%s, outer v6 %v, inner v6 %v: a backend makes of it\n%x, want\n%x", kind, v6out, v6in, back, in)
					}
				}
			}
		}
	}
}

// What names no way goes nowhere.
func TestProbeDropsOthers(t *testing.T) {
	p := probes(t)
	if err := p.Set(7, way(false, GRE)); err != nil {
		t.Fatal(err)
	}
	in := ether(0, 0x0800, inner(false, 0, 20))
	for name, c := range map[string]struct {
		mark  uint32
		frame []byte
	}{
		"no mark":           {0, in},
		"a number alone":    {7, in},
		"another's mark":    {0x6c63<<16 | 7, in},
		"an unknown number": {ProbeMark | 8, in},
		"ARP":               {ProbeMark | 7, ether(0, 0x0806, make([]byte, 28))},
	} {
		if out, _ := p.wrap(t, c.frame, c.mark); out != nil {
			t.Errorf("%s: sent as %x", name, out)
		}
	}
	if out, _ := p.wrap(t, in, ProbeMark|7); out == nil {
		t.Error("what has a way drops")
	}
	for range 2 {
		if err := p.Remove(7); err != nil {
			t.Fatal(err)
		}
	}
	if out, _ := p.wrap(t, in, ProbeMark|7); out != nil {
		t.Errorf("after its way is gone: sent as %x", out)
	}
}

// The newest way counts; impossible ones are refused and change nothing.
func TestProbeWays(t *testing.T) {
	p := probes(t)
	in := ether(0, 0x0800, inner(false, 0, 20))
	for _, v6 := range []bool{false, true} {
		if err := p.Set(65535, way(v6, IPIP)); err != nil {
			t.Fatal(err)
		}
	}
	want, _ := p.wrap(t, in, ProbeMark|65535)
	if want == nil || want[12] != 0x86 {
		t.Errorf("sent as %x", want)
	}
	for name, change := range map[string]func(*Way){
		"mixed families": func(w *Way) { w.Source = netip.MustParseAddr(remote4) },
		"no source":      func(w *Way) { w.Source = netip.Addr{} },
		"no address":     func(w *Way) { w.Source, w.Backend = netip.Addr{}, netip.Addr{} },
		"no tunnel":      func(w *Way) { w.Tunnel = 0 },
		"two tunnels":    func(w *Way) { w.Tunnel = GRE | GUE },
		"another tunnel": func(w *Way) { w.Tunnel = 8 },
	} {
		w := way(true, IPIP)
		change(&w)
		if p.Set(65535, w) == nil {
			t.Errorf("%s is a way", name)
		}
	}
	if got, _ := p.wrap(t, in, ProbeMark|65535); !bytes.Equal(got, want) {
		t.Errorf("sent as %x, want %x", got, want)
	}
}
