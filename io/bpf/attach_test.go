package bpf

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/vishvananda/netlink"

	"github.com/lbgraph/lbgraph/io/netnstest"
)

func pair(t *testing.T, mtu int) *netnstest.NS {
	a, b := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(netnstest.End{NS: a, Name: "a0", MTU: mtu}, netnstest.End{NS: b, Name: "b0", MTU: mtu})
	return b
}

func attachIn(ns *netnstest.NS, a *Admission, o AttachOptions) (x *Attachment, err error) {
	o.Interface = ns.Index("b0")
	ns.Do(func() { x, err = a.Attach(o) })
	return x, err
}

// Before Linux 5.18 there is no program for frames of several buffers, and native
// mode refuses a large MTU.
func TestAttachWithoutFrags(t *testing.T) {
	ns, k := pair(t, 9000), newKernel(t)
	k.a.frags = nil
	for _, jumbo := range []bool{false, true} {
		if _, err := attachIn(ns, k.a, AttachOptions{Mode: Native, Jumbo: jumbo}); !errors.Is(err, ErrMTU) {
			t.Errorf("native: %v", err)
		}
		x, err := attachIn(ns, k.a, AttachOptions{Mode: Auto, Jumbo: jumbo})
		if err != nil {
			t.Fatal(err)
		}
		if x.Mode != Generic || !errors.Is(x.Refused, ErrMTU) || !x.Alive() {
			t.Errorf("auto: %s, %v", x.Mode, x.Refused)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A program that was attached without a link, as ip link does, is told and replaced
// too.
func TestForeignWithoutLink(t *testing.T) {
	ns, k := pair(t, 1500), newKernel(t)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "somebody", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	for _, flags := range []int{unix.XDP_FLAGS_DRV_MODE, unix.XDP_FLAGS_SKB_MODE} {
		dev, err := ns.Link.LinkByName("b0")
		if err != nil {
			t.Fatal(err)
		}
		ns.Do(func() { err = netlink.LinkSetXdpFdWithFlags(dev, prog.FD(), flags) })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := attachIn(ns, k.a, AttachOptions{Mode: Auto}); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "(somebody)") {
			t.Errorf("%v", err)
		}
		x, err := attachIn(ns, k.a, AttachOptions{Mode: Auto, Replace: true})
		if err != nil {
			t.Fatal(err)
		}
		if x.Mode != Native {
			t.Errorf("%s, %v", x.Mode, x.Refused)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Whether the program still stands shows.
func TestAlive(t *testing.T) {
	ns, k := pair(t, 1500), newKernel(t)
	x, err := attachIn(ns, k.a, AttachOptions{Mode: Auto})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if !x.Alive() {
		t.Error("not alive at first")
	}
	dev, err := ns.Link.LinkByName("b0")
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Link.LinkDel(dev); err != nil {
		t.Fatal(err)
	}
	if x.Alive() {
		t.Error("alive without interface")
	}
}

func TestModes(t *testing.T) {
	for s, want := range map[string]Mode{"": Auto, "auto": Auto, "native": Native, "generic": Generic} {
		if m, err := ParseMode(s); m != want || err != nil {
			t.Errorf("%q: %s, %v", s, m, err)
		}
	}
	if _, err := ParseMode("fast"); err == nil {
		t.Error("fast is a mode")
	}
}
