package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// What Linux 5.10 knows: the last helper is bpf_redirect_peer, the last type of map
// BPF_MAP_TYPE_INODE_STORAGE (include/uapi/linux/bpf.h of v5.10).
const (
	lastHelper510 = 155
	lastMap510    = ebpf.MapType(28)
)

// TestNothingNewerThanLinux510: the programs call no helper, use no kind of map and
// no instruction that Linux 5.10 lacks. What of the kernel's later gifts is used (buffers
// of several pages, TCX) has a way without, which other tests take.
func TestNothingNewerThanLinux510(t *testing.T) {
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){"admission": loadAdmission, "decap": loadDecap} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for m, s := range spec.Maps {
			if s.Type > lastMap510 {
				t.Errorf("%s: map %s is of type %v", name, m, s.Type)
			}
		}
		calls := 0
		for p, s := range spec.Programs {
			if s.Flags&unix.BPF_F_XDP_HAS_FRAGS != 0 {
				// Linux 5.18 takes it, else its twin without is loaded.
				if spec.Programs[p[:len(p)-1]] == nil {
					t.Errorf("%s: %s has no twin for older kernels", name, p)
				}
				continue
			}
			for i := range s.Instructions {
				ins := &s.Instructions[i]
				switch {
				case ins.IsKfuncCall():
					t.Errorf("%s: %s calls a function of the kernel (Linux 5.13)", name, p)
				case ins.IsBuiltinCall():
					if calls++; ins.Constant > lastHelper510 {
						t.Errorf("%s: %s calls helper %d", name, p, ins.Constant)
					}
				case ins.OpCode.Class().IsStore() && ins.OpCode.Mode() == asm.AtomicMode && ins.Constant != 0:
					t.Errorf("%s: %s has an atomic operation other than an addition without answer (Linux 5.12)", name, p)
				}
			}
		}
		if calls == 0 {
			t.Errorf("%s: no call of a helper was found", name)
		}
	}
}
