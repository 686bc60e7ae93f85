package bpf

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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

// TestNothingNewerThanLinux510: no program of the repository calls a helper, uses a
// kind of map or an instruction that Linux 5.10 lacks. What of the kernel's later gifts
// is used (buffers of several pages, TCX) has a way without, which other tests take.
func TestNothingNewerThanLinux510(t *testing.T) {
	for _, path := range objects(t) {
		name := filepath.Base(path)
		spec, err := ebpf.LoadCollectionSpec(path)
		if err != nil {
			t.Fatal(err)
		}
		for m, s := range spec.Maps {
			if s.Type > lastMap510 {
				t.Errorf("%s: map %s is of type %v", name, m, s.Type)
			}
		}
		instructions := 0
		for p, s := range spec.Programs {
			if s.Flags&unix.BPF_F_XDP_HAS_FRAGS != 0 {
				// Linux 5.18 takes it, else its twin without is loaded.
				if spec.Programs[p[:len(p)-1]] == nil {
					t.Errorf("%s: %s has no twin for older kernels", name, p)
				}
				continue
			}
			for i := range s.Instructions {
				instructions++
				if what := newer(&s.Instructions[i]); what != "" {
					t.Errorf("%s: %s has %s: %v", name, p, what, s.Instructions[i])
				}
			}
		}
		if instructions == 0 {
			t.Errorf("%s: no instruction was found", name)
		}
	}
}

// objects answers all BPF objects of the repository, and fails the test if a program
// may be loaded that is in none of them.
func objects(t *testing.T) (paths []string) {
	t.Helper()
	generated := 0
	other := regexp.MustCompile(`\bebpf\.(NewProgram\(|NewProgramWithOptions\(|ProgramSpec\{)`)
	if err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && e.Name() == ".git":
			return filepath.SkipDir
		case strings.HasSuffix(path, "_bpfel.o"):
			paths = append(paths, path)
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			generated += strings.Count(string(b), "\n//go:generate go tool bpf2go ")
			if use := other.Find(b); use != nil {
				t.Errorf("%s: %s loads a program that is not seen here", path, use)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(paths) < 3 || len(paths) != generated {
		t.Errorf("%d objects are made, and found are %s", generated, paths)
	}
	return paths
}

// newer says what of an instruction Linux 5.10 lacks, "" if nothing.
func newer(ins *asm.Instruction) string {
	op := ins.OpCode
	switch class := op.Class(); {
	case ins.IsKfuncCall():
		return "a call of a function of the kernel (Linux 5.13)"
	case ins.IsBuiltinCall() && ins.Constant > lastHelper510:
		return fmt.Sprintf("a call of helper %d", ins.Constant)
	case class.IsStore() && op.Mode() == asm.AtomicMode && op.AtomicOp() != asm.AddAtomic:
		return "an atomic operation other than an addition without answer (Linux 5.12)"
	case class.IsLoad() && op.Mode() == asm.MemSXMode:
		return "a load that extends the sign (Linux 6.6)"
	case class.IsALU() && op.ALUOp() > 0xff:
		return "a signed division or a move that extends the sign (Linux 6.6)"
	case class == asm.ALU64Class && op.ALUOp() == asm.Swap:
		return "an exchange of bytes whatever the machine's order (Linux 6.6)"
	case class == asm.Jump32Class && op.JumpOp() == asm.Ja:
		return "a far jump (Linux 6.6)"
	}
	return ""
}

// TestNewer: what newer finds, and what it lets pass.
func TestNewer(t *testing.T) {
	for _, c := range []struct {
		ins  asm.Instruction
		want string
	}{
		{asm.Mov.Imm(asm.R0, 2), ""},
		{asm.Div.Imm(asm.R0, 2), ""},
		{asm.FnMapLookupElem.Call(), ""},
		{asm.FnRedirectPeer.Call(), ""},
		{asm.LoadMem(asm.R0, asm.R1, 4, asm.Word), ""},
		{asm.StoreMem(asm.R1, 4, asm.R0, asm.Word), ""},
		{asm.HostTo(asm.BE, asm.R0, asm.Half), ""},
		{asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0), ""},
		{asm.Ja.Label("x"), ""},
		{asm.JEq.Imm32(asm.R0, 1, "x"), ""},
		{asm.Return(), ""},
		{asm.FnForEachMapElem.Call(), "helper 164"},
		{asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall, Constant: 1}, "5.13"},
		{asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, 0), "5.12"},
		{asm.Xchg.Mem(asm.R0, asm.R1, asm.DWord, 0), "5.12"},
		{asm.LoadMemSX(asm.R0, asm.R1, 4, asm.Half), "extends the sign"},
		{asm.SDiv.Imm(asm.R0, 2), "extends the sign"},
		{asm.MovSX32.Reg(asm.R0, asm.R1), "extends the sign"},
		{asm.LongJump("x"), "far jump"},
		{asm.BSwap(asm.R0, asm.Word), "exchange"},
	} {
		if got := newer(&c.ins); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%v: %q, want %q", c.ins, got, c.want)
		}
	}
}
