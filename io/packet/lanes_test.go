package packet

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unsafe"
)

// Lanes are a set of 0 … 63: every answer is that of a plain list.
func TestLanes(t *testing.T) {
	if Size != 64 || unsafe.Sizeof(Lanes(0))*8 != Size {
		t.Fatalf("%d lanes in a word of %d bits", Size, unsafe.Sizeof(Lanes(0))*8)
	}
	for n := -1; n <= Size; n++ {
		all := All(n)
		if d, ok := all.Dense(); !ok || d != max(n, 0) || all.Count() != max(n, 0) {
			t.Errorf("All(%d) is %b: %d lanes, dense %v with %d", n, all, all.Count(), ok, d)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var set Lanes
		var want, got []int
		for i := range Size {
			if r.IntN(Size) < r.IntN(Size) {
				set |= Lane(i)
				want = append(want, i)
			}
		}
		for i := range Size {
			if set.Has(i) != slices.Contains(want, i) {
				t.Fatalf("%v holds %d: %v", want, i, set.Has(i))
			}
		}
		end := 0
		if len(want) > 0 {
			end = want[len(want)-1] + 1
		}
		if set.End() != end {
			t.Fatalf("%v ends at %d", want, set.End())
		}
		for l := set; l != 0; l &= l - 1 {
			got = append(got, l.Next())
		}
		n, dense := set.Dense()
		if !slices.Equal(got, want) || set.Count() != len(want) || n != len(want) || dense != (len(want) == 0 || want[len(want)-1] == len(want)-1) {
			t.Fatalf("%v: walked as %v, %d lanes, dense %v with %d", want, got, set.Count(), dense, n)
		}
	}
	if n := Lanes(0).Next(); n != Size {
		t.Errorf("the empty set goes on with %d", n)
	}
}

// Every column of a vector has a value a lane; lanes are slices of one memory,
// whose bytes nobody reaches beyond the lane's length.
func TestVectorColumns(t *testing.T) {
	for v, i := reflect.TypeFor[Vector](), 0; i < v.NumField(); i++ {
		switch f := v.Field(i); f.Name {
		case "Mem", "Links", "Now":
		default:
			if f.Type.Kind() != reflect.Array || f.Type.Len() != Size {
				t.Errorf("column %s is %v", f.Name, f.Type)
			}
		}
	}
	mem := make([]byte, 4096)
	for i := range mem {
		mem[i] = byte(i)
	}
	v := &Vector{Mem: mem}
	for i := range Size {
		v.Start[i], v.Len[i], v.Total[i] = uint32(32+60*i), 50, 70
	}
	whole := slices.Clone(mem)
	for i := range Size {
		at := 32 + 60*i
		if b := v.Bytes(i); !bytes.Equal(b, whole[at:at+50]) || cap(b) != 50 {
			t.Fatalf("lane %d is %d bytes of %d, from %d", i, len(b), cap(b), b[0])
		}
		if p := (*byte)(v.Ptr(i, 7)); p != &mem[at+7] {
			t.Fatalf("lane %d: byte 7 is not where it belongs", i)
		}
		b := v.Push(i, 4)
		if !bytes.Equal(b, whole[at-4:at+50]) || v.Start[i] != uint32(at-4) || v.Len[i] != 54 || v.Total[i] != 74 {
			t.Fatalf("lane %d with room in front: %d bytes from %d, Len %d, Total %d", i, len(b), v.Start[i], v.Len[i], v.Total[i])
		}
	}
	if !bytes.Equal(mem, whole) {
		t.Error("room in front of a lane changes the memory")
	}
	defer func() {
		if recover() == nil {
			t.Error("a lane beyond the memory can be read")
		}
	}()
	v.Start[3], v.Len[3] = 4090, 50
	v.Bytes(3)
}

// A record keeps all of a lane: what is loaded from it, into whatever lane, is what
// was saved.
func TestRecordKeepsTheLane(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	fill := func(v *Vector) {
		x := reflect.ValueOf(v).Elem()
		for i := range x.NumField() {
			if f := x.Field(i); f.Kind() == reflect.Array {
				for j := range f.Len() {
					if e := f.Index(j); e.CanUint() {
						e.SetUint(r.Uint64() >> (64 - e.Type().Bits()))
					} else { // an Addr
						for k := range e.NumField() {
							e.Field(k).SetUint(r.Uint64())
						}
					}
				}
			}
		}
	}
	from, to := &Vector{Mem: make([]byte, 64)}, &Vector{}
	fill(from)
	fill(to)
	var rec Record
	from.Save(17, &rec)
	to.Load(40, &rec)
	a, b := reflect.ValueOf(from).Elem(), reflect.ValueOf(to).Elem()
	for i := range a.NumField() {
		if f := a.Field(i); f.Kind() == reflect.Array && f.Index(17).Interface() != b.Field(i).Index(40).Interface() {
			t.Errorf("column %s is lost: %v, want %v", a.Type().Field(i).Name, b.Field(i).Index(40), f.Index(17))
		}
	}
}

// BenchmarkWalk adds up a column of a full vector: by a loop that counts, which dense
// sets of lanes permit, and by the walk over bits that any other set needs.
func BenchmarkWalk(b *testing.B) {
	v := &Vector{}
	for i := range Size {
		v.Total[i] = uint32(i)
	}
	in, sum := All(Size), uint32(0)
	b.Run("dense", func(b *testing.B) {
		for b.Loop() {
			if n, ok := in.Dense(); ok {
				for _, x := range v.Total[:min(n, Size)] {
					sum += x
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/Size, "ns/packet")
	})
	b.Run("bits", func(b *testing.B) {
		for b.Loop() {
			for l := in; l != 0; l &= l - 1 {
				sum += v.Total[l.Next()&63]
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/Size, "ns/packet")
	})
	if sum == 0 {
		b.Error("nothing was added up")
	}
}
