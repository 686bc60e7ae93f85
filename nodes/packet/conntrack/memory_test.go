package conntrack

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/lbgraph/lbgraph/io/packet"
)

// mapping answers what /proc/self/smaps tells of the mapping that address is in: its
// bounds, and its flags (proc_pid_smaps(5)).
func mapping(t *testing.T, address uintptr) (lo, hi uintptr, flags string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	in := false
	for line := range strings.Lines(string(text)) {
		first, _, _ := strings.Cut(line, " ")
		if a, b, ok := strings.Cut(first, "-"); ok {
			x, err := strconv.ParseUint(a, 16, 64)
			y, err2 := strconv.ParseUint(b, 16, 64)
			if err == nil && err2 == nil {
				in = uintptr(x) <= address && address < uintptr(y)
				lo, hi = uintptr(x), uintptr(y)
			}
		}
		if rest, ok := strings.CutPrefix(line, "VmFlags:"); ok && in {
			return lo, hi, rest
		}
	}
	t.Fatalf("%x is in no mapping", address)
	return 0, 0, ""
}

// TestMemoryIsNotTheCollectors: a table of 8 million entries stands beside the heap, in
// memory for which huge pages are asked; what nobody touched costs nothing; and it is
// given back. Two cores' tables share no page.
func TestMemoryIsNotTheCollectors(t *testing.T) {
	const entries = 8 << 20
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	one, err := newTables(entries)
	if err != nil {
		t.Fatal(err)
	}
	two, err := newTables(1024)
	if err != nil {
		t.Fatal(err)
	}
	size := uint64(len(one.mem))
	if want := uint64(entries * 10 / 35 * 64); size < want {
		t.Fatalf("%d bytes for %d entries", size, entries)
	}
	if after := heap(); after > before+1<<20 {
		t.Errorf("the heap has grown by %d bytes", after-before)
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(one.mem)))
	lo, hi, flags := mapping(t, at)
	if lo > at || hi < at+uintptr(size) {
		t.Errorf("the table is at %x to %x, its mapping from %x to %x", at, at+uintptr(size), lo, hi)
	}
	if !strings.Contains(flags, " hg") {
		if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err == nil {
			t.Errorf("huge pages are not asked for: the mapping's flags are %s", flags)
		}
	}
	page := uintptr(os.Getpagesize())
	if other := uintptr(unsafe.Pointer(unsafe.SliceData(two.mem))); at%page != 0 || other%page != 0 {
		t.Errorf("tables at %x and %x, pages of %d bytes", at, other, page)
	}
	two.free()
	one.free()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), fmt.Sprintf("%x-", at)) {
		t.Errorf("%x is still mapped", at)
	}
}

// TestPlacesAreSecret: where a flow stands depends on a key of the table's own, so
// nobody who knows the program can send flows that meet in one place. Two tables place
// the same flows differently, and flows that meet in one do not in the other.
func TestPlacesAreSecret(t *testing.T) {
	const entries, flows = 70_000, 20_000
	var all [2]*tables
	for i := range all {
		ts, err := newTables(entries)
		if err != nil {
			t.Fatal(err)
		}
		defer ts.free()
		all[i] = ts
	}
	for i := range all[0].keys {
		if all[0].keys[i] == all[1].keys[i] || all[0].keys[i] == 0 {
			t.Errorf("key %d is %x in both tables", i, all[0].keys[i])
		}
	}
	for _, wide := range []bool{false, true} {
		home := func(ts *tables, n int) uint32 {
			if wide {
				k := wideKey{src: packet.Addr4(uint32(n)), dst: packet.Addr4(7), rest: 80 << 32}
				return ts.full.home(hashWide(&ts.keys, &k))
			}
			return ts.compact.home(hashCompact(&ts.keys, uint64(n)|1<<48))
		}
		size := all[0].of(&ident{wide: wide}).size()
		same, met, again := 0, 0, 0
		first := map[uint32]int{}
		for n := range flows {
			h := home(all[0], n)
			if h == home(all[1], n) {
				same++
			}
			if m, ok := first[h]; ok {
				met++
				if home(all[1], n) == home(all[1], m) {
					again++
				}
			} else {
				first[h] = n
			}
		}
		// By chance flows/size of all are at the same place, and as many of those that
		// meet meet again.
		if most := 10 + 8*flows/int(size); same > most {
			t.Errorf("wide %v: %d of %d flows stand at the same of %d places in both tables", wide, same, flows, size)
		}
		if met < 100 || again > 10+8*met/int(size) {
			t.Errorf("wide %v: of %d flows that meet another %d meet it in both tables", wide, met, again)
		}
	}
}
