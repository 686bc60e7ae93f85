package packet

import (
	"math/rand/v2"
	"testing"
)

func TestAbove(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 2))
	odd := []uint32{0, 1, 2, 1<<31 - 1, 1 << 31, 1<<31 + 1, ^uint32(0) - 1, ^uint32(0)}
	var column [Size]uint32
	for range 2000 {
		for i := range column {
			column[i] = rnd.Uint32()
			if rnd.IntN(2) == 0 {
				column[i] = odd[rnd.IntN(len(odd))]
			}
		}
		limit := odd[rnd.IntN(len(odd))]
		if rnd.IntN(2) == 0 {
			limit = column[rnd.IntN(Size)]
		}
		for i := range column { // which bit makes the difference
			if rnd.IntN(8) == 0 {
				column[i] = limit ^ 1<<rnd.IntN(32)
			}
		}
		in := [...]Lanes{All(Size), Lane(rnd.IntN(Size)), All(rnd.IntN(Size + 1)), Lanes(rnd.Uint64() & rnd.Uint64()), 0}[rnd.IntN(5)]
		want := Lanes(0)
		for i, x := range column {
			if x > limit && in.Has(i) {
				want |= Lane(i)
			}
		}
		if got := Above(&column, limit, in); got != want {
			t.Fatalf("above %d of %d, lanes %x: %x, want %x", limit, column, in, got, want)
		}
		if got := above(&column, limit, in); got != want {
			t.Fatalf("above %d of %d, lanes %x, in Go: %x, want %x", limit, column, in, got, want)
		}
	}
}

func BenchmarkAbove(b *testing.B) {
	var column [Size]uint32
	for i := range column {
		column[i] = uint32(i)
	}
	var l Lanes
	for b.Loop() {
		l |= Above(&column, 60, All(Size))
	}
	if l != 7<<61 {
		b.Fatalf("%x", l)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/Size, "ns/packet")
}
