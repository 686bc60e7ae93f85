package hugeheap

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping answers what the kernel says of the mapping that p stands in.
func mapping(t *testing.T, p unsafe.Pointer) map[string]string {
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	head := regexp.MustCompile(`^([0-9a-f]+)-([0-9a-f]+) `)
	var found map[string]string
	for line := range strings.Lines(string(b)) {
		if m := head.FindStringSubmatch(line); m != nil {
			from, _ := strconv.ParseUint(m[1], 16, 64)
			to, _ := strconv.ParseUint(m[2], 16, 64)
			if found != nil {
				break
			}
			if a := uint64(uintptr(p)); from <= a && a < to {
				found = map[string]string{}
			}
		} else if k, v, ok := strings.Cut(line, ":"); ok && found != nil {
			found[k] = strings.TrimSpace(v)
		}
	}
	return found
}

// What is allocated behind Reserve stands on huge pages, and Reserve took none. Each
// case is a process of its own: a process asks once.
func TestReserve(t *testing.T) {
	if size := os.Getenv("LBGRAPH_HUGEHEAP"); size != "" {
		inProcess(t, size)
		return
	}
	setting, err := os.ReadFile(enabled)
	if err != nil || !asks(setting) {
		t.Skipf("kernel: huge pages are not given to who asks: %s %v", setting, err)
	}
	for _, c := range []struct{ name, size, limit string }{
		{"reserved", "256", "unlimited"},
		{"not reserved", "0", "unlimited"},
		{"no addresses left", "4096", "3000000"}, // KiB
	} {
		t.Run(c.name, func(t *testing.T) {
			p := exec.Command("sh", "-c", `ulimit -v $LIMIT; exec "$0" -test.run '^TestReserve$' -test.v`, os.Args[0])
			p.Env = append(os.Environ(), "LBGRAPH_HUGEHEAP="+c.size, "LIMIT="+c.limit)
			if out, err := p.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestReserve")) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

var kept [][]byte

func inProcess(t *testing.T, size string) {
	mb, _ := strconv.Atoi(size)
	before := resident(t)
	if mb > 0 {
		Reserve(mb << 20)
		Reserve(1 << 50) // does nothing
	}
	if grown := resident(t) - before; grown > 16<<20 {
		t.Errorf("reserving took %d MB", grown>>20)
	}
	for range 2000 {
		b := make([]byte, 16<<10)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		kept = append(kept, b)
	}
	huge := false
	for i := len(kept) / 2; i < len(kept); i += 100 {
		b := kept[i]
		m := mapping(t, unsafe.Pointer(&b[0]))
		kb, _ := strconv.Atoi(strings.TrimSuffix(m["AnonHugePages"], " kB"))
		huge = huge || strings.Contains(" "+m["VmFlags"]+" ", " hg ") && kb >= 2048
	}
	if want := mb == 256; huge != want {
		t.Errorf("huge pages: %v", huge)
	}
}

// resident answers the process's memory in bytes.
func resident(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return n * unix.Getpagesize()
}
