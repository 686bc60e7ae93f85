package state

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/io/packet"
)

// textbook is the definition in docs/selection.md, word by word.
func textbook(m int, set []candidate) []uint16 {
	table := make([]uint16, m)
	for i := range table {
		table[i] = NoSlot
	}
	order := make([]int, len(set))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(set[b].weight) - int(set[a].weight) })
	top := set[order[0]].weight
	offset, skip, next := make([]uint64, len(set)), make([]uint64, len(set)), make([]uint64, len(set))
	taken := make([]uint32, len(set))
	for i := range set {
		o, s := permutation(set[i].addr, set[i].port, uint32(m))
		offset[i], skip[i] = uint64(o), uint64(s)
	}
	for round, filled := uint32(1), 0; ; round++ {
		for _, i := range order {
			// By the end of a round a backend has taken round·weight/top slots,
			// rounded half up.
			if (2*round*set[i].weight+top)/(2*top) == taken[i] {
				continue
			}
			taken[i]++
			for {
				c := (offset[i] + next[i]*skip[i]) % uint64(m)
				next[i]++
				if table[c] == NoSlot {
					table[c] = set[i].slot
					break
				}
			}
			if filled++; filled == m {
				return table
			}
		}
	}
}

func equalSet(n int) []candidate {
	set := make([]candidate, n)
	for i := range set {
		set[i] = candidate{addr: packet.Addr4(0x0a000001 + uint32(i)), slot: uint16(i), weight: 100}
	}
	return set
}

func randomSet(r *rand.Rand, n int, weights int) []candidate {
	set := make([]candidate, n)
	for i := range set {
		a := packet.Addr4(r.Uint32())
		if r.IntN(3) == 0 {
			a = packet.Addr{Hi: 0x20010db8 << 32, Lo: r.Uint64()}
		}
		set[i] = candidate{addr: a, slot: uint16(i), weight: uint32(1 + r.IntN(weights))}
		if r.IntN(2) == 0 {
			set[i].port = uint16(r.Uint32())
		}
	}
	sortCandidates(set)
	for i := range set {
		set[i].slot = uint16(i)
	}
	return set
}

// scattered gives set slots that are not its ranks, as in a pool that has lost members.
func scattered(r *rand.Rand, set []candidate) []candidate {
	for i, slot := range r.Perm(2 * len(set))[:len(set)] {
		set[i].slot = uint16(slot)
	}
	return set
}

func shares(table []uint16, n int) []int {
	c := make([]int, n)
	for _, r := range table {
		c[r]++
	}
	return c
}

func TestFillEqualsTextbook(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	sizes := []int{251, 257, 509, 1009, 4099, 65537}
	for i := range 120 {
		m := sizes[i%len(sizes)]
		if testing.Short() && m > 5000 {
			continue
		}
		set := scattered(r, randomSet(r, 1+r.IntN(min(300, 2*m)), []int{1, 3, 1000}[r.IntN(3)]))
		table := make([]uint16, m)
		fillTable(table, set)
		if !slices.Equal(table, textbook(m, set)) {
			t.Fatalf("m=%d n=%d: tables differ", m, len(set))
		}
	}
	set := randomSet(r, 7, 1000)
	table := make([]uint16, MaxTable)
	fillTable(table, set)
	if !slices.Equal(table, textbook(MaxTable, set)) {
		t.Fatal("largest table differs")
	}
}

// Where a build changes its ways: one backend, backends whose blocks are short, one
// heavy backend among many, and sizes about the number of slots that the tail begins at.
func TestFillAtItsEdges(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	check := func(m int, set []candidate) {
		t.Helper()
		table := make([]uint16, m)
		fillTable(table, set)
		if !slices.Equal(table, textbook(m, set)) {
			t.Errorf("m=%d n=%d: tables differ", m, len(set))
		}
	}
	for _, n := range []int{1, 2, 4*blockSize - 1, 4 * blockSize, 4*blockSize + 1, turnsSize - 1, turnsSize, turnsSize + 1, 2000} {
		for _, m := range []int{251, 257, 769, 16411} {
			check(m, randomSet(r, n, 1))
			check(m, randomSet(r, n, 1000))
		}
	}
	for _, n := range []int{3, 60} {
		set := randomSet(r, n, 1)
		set[n/2].weight = 1000
		check(4099, set)
	}
	if !testing.Short() {
		check(MaxTable, randomSet(r, 700, 3))
	}
}

func TestFillMoreBackendsThanSlots(t *testing.T) {
	set := randomSet(rand.New(rand.NewPCG(3, 4)), 1000, 1)
	table := make([]uint16, 251)
	fillTable(table, set)
	if !slices.Equal(table, textbook(251, set)) {
		t.Fatal("tables differ")
	}
}

// Slots do not enter the digest: nodes that number members differently agree.
func TestDigestIsOfRanks(t *testing.T) {
	r := rand.New(rand.NewPCG(19, 20))
	for _, m := range []int{251, 1009, 65537} {
		set := randomSet(r, 40, 3)
		table := make([]uint16, m)
		fillTable(table, set)
		want := digest(table, set)
		fillTable(table, scattered(r, set))
		if got := digest(table, set); got != want {
			t.Errorf("m=%d: %016x with slots scattered, %016x by rank", m, got, want)
		}
		set[0].slot, set[1].slot = set[1].slot, set[0].slot
		if digest(table, set) == want {
			t.Errorf("m=%d: the digest does not see whose cells are whose", m)
		}
	}
}

// A1: removing 1 of 100 equal backends moves at most 2 % of the other slots.
func TestDisruption(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	before, after := make([]uint16, 65537), make([]uint16, 65537)
	sum, worst := 0.0, 0.0
	const sets = 20
	for range sets {
		set := randomSet(r, 100, 1)
		fillTable(before, set)
		gone := r.IntN(100)
		fillTable(after, slices.Delete(slices.Clone(set), gone, gone+1))
		others, moved := 0, 0
		for c, was := range before {
			if was == set[gone].slot {
				continue
			}
			others++
			if after[c] != was {
				moved++
			}
		}
		share := float64(moved) / float64(others)
		sum, worst = sum+share, max(worst, share)
		if share > 0.02 {
			t.Fatalf("%.2f %% of the other slots moved", 100*share)
		}
	}
	t.Logf("moved: %.2f %% on average, %.2f %% at most", 100*sum/sets, 100*worst)
}

// Members that have an address in common and ports of their own are told apart: one
// that leaves moves as few of the others' slots as if it had its own address.
func TestDisruptionByPort(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	before, after := make([]uint16, 65537), make([]uint16, 65537)
	for _, hosts := range []int{1, 5, 50} {
		for range 5 {
			first := 1024 + r.IntN(60000)
			var set []candidate
			for i := range 100 {
				set = append(set, candidate{addr: packet.Addr4(0x0a000001 + uint32(i%hosts)), port: uint16(first + i/hosts), slot: uint16(i), weight: 100})
			}
			sortCandidates(set)
			fillTable(before, set)
			gone := r.IntN(100)
			fillTable(after, slices.Delete(slices.Clone(set), gone, gone+1))
			others, moved := 0, 0
			for c, was := range before {
				if was == set[gone].slot {
					continue
				}
				others++
				if after[c] != was {
					moved++
				}
			}
			if share := float64(moved) / float64(others); share > 0.02 {
				t.Errorf("%d addresses: %.2f %% of the other slots moved", hosts, 100*share)
			}
		}
	}
}

// A1: weights are honoured within 3 % or one slot while M ≥ 100·Σ/min.
func TestWeightPrecision(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	worst := 0.0
	for tried := 0; tried < 60; {
		set := randomSet(r, 2+r.IntN(60), []int{2, 10, 1000}[r.IntN(3)])
		total, least := 0, 1000
		for i := range set {
			total += int(set[i].weight)
			least = min(least, int(set[i].weight))
		}
		if 65537*least < 100*total {
			continue
		}
		tried++
		table := make([]uint16, 65537)
		fillTable(table, set)
		for i, got := range shares(table, len(set)) {
			ideal := 65537 * float64(set[i].weight) / float64(total)
			off := float64(got) - ideal
			if off < 0 {
				off = -off
			}
			if off > max(1, 0.03*ideal) {
				t.Fatalf("weight %d of %d: %d slots, ideal %.1f", set[i].weight, total, got, ideal)
			}
			worst = max(worst, off/ideal)
		}
	}
	t.Logf("worst deviation %.2f %%", 100*worst)
}

func TestOnlyProportionsOfWeightsCount(t *testing.T) {
	a, b := equalSet(10), equalSet(10)
	for i := range a {
		a[i].weight, b[i].weight = uint32(1+i%3), uint32(100*(1+i%3))
	}
	ta, tb := make([]uint16, 4099), make([]uint16, 4099)
	fillTable(ta, a)
	fillTable(tb, b)
	if !slices.Equal(ta, tb) {
		t.Fatal("weights 1,2,3 and 100,200,300 give different tables")
	}
}

func TestInverse(t *testing.T) {
	for _, m := range []uint32{251, 65537, 1000003} {
		for _, a := range []uint32{1, 2, 3, 100, m / 2, m - 1} {
			if uint64(a)*uint64(inverse(a, m))%uint64(m) != 1 {
				t.Errorf("inverse(%d, %d)", a, m)
			}
		}
	}
}

func TestValidTable(t *testing.T) {
	for m, want := range map[int]bool{0: false, 2: false, 241: false, 251: true, 253: false, 65536: false, 65537: true, 1000003: true, 1000033: false} {
		if ValidTable(m) != want {
			t.Errorf("ValidTable(%d) = %v", m, !want)
		}
	}
}

// vectors answers the rows of the table in docs/selection.md whose first heading
// is head.
func vectors(t *testing.T, head string) [][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/selection.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	in := false
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case !strings.HasPrefix(line, "|"):
			in = false
		case cells[0] == head:
			in = true
		case in && !strings.HasPrefix(cells[0], "--"):
			rows = append(rows, cells)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("docs/selection.md has no table that begins with %q", head)
	}
	return rows
}

func number(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSelectionVectors(t *testing.T) {
	for _, v := range vectors(t, "source") {
		src, dst := packet.AddrOf(netip.MustParseAddr(v[0])), packet.AddrOf(netip.MustParseAddr(v[2]))
		h := packet.FlowHash(src, dst, uint16(number(t, v[1])), uint16(number(t, v[3])), uint8(number(t, v[4])))
		p := Pool{Table: make([]uint16, 65537)}
		plain, _ := p.cell(h)
		p.Seed = 42
		seeded, _ := p.cell(h)
		got := []string{fmt.Sprintf("%016x", h), fmt.Sprintf("%016x", packet.AffinityHash(src)), fmt.Sprint(plain), fmt.Sprint(seeded)}
		if !slices.Equal(got, v[5:]) {
			t.Errorf("%v: %v", v, got)
		}
	}
	for _, v := range vectors(t, "address") {
		o, s := permutation(packet.AddrOf(netip.MustParseAddr(v[0])), 0, uint32(number(t, v[1])))
		if got := []string{fmt.Sprint(o), fmt.Sprint(s)}; !slices.Equal(got, v[2:]) {
			t.Errorf("%v: %v", v, got)
		}
	}
	for _, v := range vectors(t, "address and port") {
		a := netip.MustParseAddrPort(v[0])
		o, s := permutation(packet.AddrOf(a.Addr()), a.Port(), uint32(number(t, v[1])))
		if got := []string{fmt.Sprint(o), fmt.Sprint(s)}; !slices.Equal(got, v[2:]) {
			t.Errorf("%v: %v", v, got)
		}
	}
	for _, v := range vectors(t, "ports") {
		spec := Spec{Pools: []PoolSpec{{Name: "web", TableSize: int(number(t, v[1]))}}}
		for i, port := range strings.Fields(v[0]) {
			spec.Pools[0].Backends = append(spec.Pools[0].Backends, BackendSpec{
				Name: fmt.Sprint(i), Address: netip.AddrFrom4([4]byte{10, 0, 0, 1}), Weight: 100, Port: int(number(t, port)),
			})
		}
		n, err := Build(spec)
		if err != nil {
			t.Fatal(err)
		}
		p := n.Pools[1]
		join := func(s string) string { return strings.Trim(s, "[]") }
		if got := []string{join(fmt.Sprint(p.Table[:20])), join(fmt.Sprint(shares(p.Table, 3))), fmt.Sprintf("%016x", p.Digest)}; !slices.Equal(got, v[2:]) {
			t.Errorf("%v: %v", v, got)
		}
	}
	for _, v := range vectors(t, "weights") {
		for _, seed := range []uint64{0, 42} {
			spec := Spec{Pools: []PoolSpec{{Name: "web", TableSize: int(number(t, v[1])), HashSeed: seed}}}
			for i, w := range strings.Fields(v[0]) {
				spec.Pools[0].Backends = append(spec.Pools[0].Backends, BackendSpec{
					Name: fmt.Sprint(i), Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Weight: int(number(t, w)),
				})
			}
			n, err := Build(spec)
			if err != nil {
				t.Fatal(err)
			}
			p := n.Pools[1]
			join := func(s string) string { return strings.Trim(s, "[]") }
			got := []string{join(fmt.Sprint(p.Table[:20])), join(fmt.Sprint(shares(p.Table, 3))), fmt.Sprintf("%016x", p.Digest)}
			want := []string{v[2], v[3], v[4]}
			if seed != 0 {
				want[2] = v[5]
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, seed %d: %v", v, seed, got)
			}
		}
	}
}

func BenchmarkMaglevBuild(b *testing.B) {
	weighted := equalSet(20)
	for i := range weighted {
		weighted[i].weight = uint32(5 + 37*i%100)
	}
	b.Run("weights=20/fill", func(b *testing.B) {
		table := make([]uint16, 65537)
		for b.Loop() {
			fillTable(table, weighted)
		}
	})
	for _, n := range []int{5, 20, 100, 200} {
		set := equalSet(n)
		b.Run(fmt.Sprintf("backends=%d/fill", n), func(b *testing.B) {
			table := make([]uint16, 65537)
			b.ReportAllocs()
			for b.Loop() {
				fillTable(table, set)
			}
		})
		b.Run(fmt.Sprintf("backends=%d/textbook", n), func(b *testing.B) {
			for b.Loop() {
				textbook(65537, set)
			}
		})
	}
}

func BenchmarkDigest(b *testing.B) {
	set := equalSet(100)
	table := make([]uint16, 65537)
	fillTable(table, set)
	for b.Loop() {
		digest(table, set)
	}
}

// A pool without a usable member selects none, and says so.
func TestSelectOfAnEmptyPool(t *testing.T) {
	none := &Pool{Table: []uint16{NoSlot, NoSlot, NoSlot}}
	for _, p := range []*Pool{{}, none} {
		if slot, ok := p.Select(12345); ok || slot != NoSlot {
			t.Errorf("table %v: slot %d, %v", p.Table, slot, ok)
		}
	}
}
