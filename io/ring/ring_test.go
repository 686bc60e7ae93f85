package ring

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

func TestSizes(t *testing.T) {
	for _, size := range []int{-1, 0, 3, 6, 1<<30 + 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("New(%d) does not panic", size)
				}
			}()
			New[uint32](size)
		}()
	}
}

// from answers an empty ring whose indices stand at i, as after i elements.
func from(size int, i uint32) *Ring[uint32] {
	r := New[uint32](size)
	r.head.Store(i)
	r.tail.Store(i)
	r.seen, r.made = i, i
	return r
}

// The ring behaves like a bounded queue, also where the indices wrap at 2³².
func TestAgainstQueue(t *testing.T) {
	for _, size := range []int{1, 2, 8, 64} {
		for _, start := range []uint32{0, 1<<31 - 5, ^uint32(0) - 9} {
			r, rnd := from(size, start), rand.New(rand.NewPCG(uint64(size), uint64(start)))
			var queue []uint32
			next, buf := uint32(0), make([]uint32, 100)
			for step := range 20000 {
				switch k := rnd.IntN(4); k {
				case 0:
					if got, want := r.Push(next), len(queue) < size; got != want {
						t.Fatalf("size %d step %d: Push answers %v with %d elements", size, step, got, len(queue))
					} else if got {
						queue = append(queue, next)
						next++
					}
				case 1:
					xs := buf[:rnd.IntN(len(buf))]
					for i := range xs {
						xs[i] = next + uint32(i)
					}
					n := r.PushBatch(xs)
					if want := min(len(xs), size-len(queue)); n != want {
						t.Fatalf("size %d step %d: PushBatch takes %d, want %d", size, step, n, want)
					}
					queue, next = append(queue, xs[:n]...), next+uint32(n)
				case 2:
					x, ok := r.Pop()
					if ok != (len(queue) > 0) || ok && x != queue[0] {
						t.Fatalf("size %d step %d: Pop answers %d, %v of %v", size, step, x, ok, queue)
					}
					if ok {
						queue = queue[1:]
					}
				case 3:
					xs := buf[:rnd.IntN(len(buf))]
					n := r.PopBatch(xs)
					if want := min(len(xs), len(queue)); n != want {
						t.Fatalf("size %d step %d: PopBatch answers %d, want %d", size, step, n, want)
					}
					for i, x := range xs[:n] {
						if x != queue[i] {
							t.Fatalf("size %d step %d: element %d is %d, want %d", size, step, i, x, queue[i])
						}
					}
					queue = queue[n:]
				}
				if r.Len() != len(queue) || r.Cap() != size {
					t.Fatalf("size %d step %d: Len %d, want %d; Cap %d", size, step, r.Len(), len(queue), r.Cap())
				}
			}
		}
	}
}

// Two goroutines: nothing is lost, doubled or reordered. Each element carries its
// number twice, so that a torn one would show.
func TestTwoCores(t *testing.T) {
	type pair struct{ a, b uint64 }
	const total = 300_000
	for _, batch := range []int{1, 7, 64} {
		t.Run(fmt.Sprint(batch), func(t *testing.T) {
			r := New[pair](128)
			go func() {
				xs := make([]pair, batch)
				for next := uint64(0); next < total; {
					n := min(batch, int(total-next))
					for i := range xs[:n] {
						xs[i] = pair{next + uint64(i), ^(next + uint64(i))}
					}
					if batch == 1 {
						for !r.Push(xs[0]) {
							runtime.Gosched()
						}
						next++
						continue
					}
					took := r.PushBatch(xs[:n])
					if next += uint64(took); took == 0 {
						runtime.Gosched()
					}
				}
			}()
			xs := make([]pair, batch)
			for want := uint64(0); want < total; {
				n := 1
				if batch == 1 {
					var ok bool
					if xs[0], ok = r.Pop(); !ok {
						n = 0
					}
				} else {
					n = r.PopBatch(xs)
				}
				if n == 0 {
					runtime.Gosched()
				}
				if l := r.Len(); l < 0 || l > r.Cap() {
					t.Fatalf("Len is %d", l)
				}
				for _, x := range xs[:n] {
					if x.a != want || x.b != ^want {
						t.Fatalf("got %d, %d; want %d", x.a, ^x.b, want)
					}
					want++
				}
			}
			if _, ok := r.Pop(); ok || r.Len() != 0 {
				t.Error("something is left")
			}
		})
	}
}

func TestAllocs(t *testing.T) {
	r, xs := New[uint32](256), make([]uint32, 64)
	if n := testing.AllocsPerRun(100, func() {
		r.Push(1)
		r.PushBatch(xs)
		r.Pop()
		r.PopBatch(xs)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// elsewhere stands for what a loop does before it looks at a ring again.
func elsewhere() {
	n := 0
	for i := range 300 {
		n += i
	}
	runtime.KeepAlive(n)
}

// The cost of an element on its way between two cores, both sides working, and
// of a channel beside it.
func BenchmarkTwoCores(b *testing.B) {
	for _, batch := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("ring/batch=%d", batch), func(b *testing.B) {
			r := New[uint32](2048)
			go func() {
				xs := make([]uint32, batch)
				for n := b.N; n > 0; {
					if batch == 1 {
						if r.Push(uint32(n)) {
							n--
						} else {
							elsewhere()
						}
					} else {
						n -= r.PushBatch(xs[:min(n, batch)])
					}
				}
			}()
			xs := make([]uint32, batch)
			for n := b.N; n > 0; {
				if batch == 1 {
					if _, ok := r.Pop(); ok {
						n--
					} else {
						elsewhere()
					}
				} else {
					n -= r.PopBatch(xs)
				}
			}
		})
	}
	b.Run("channel", func(b *testing.B) {
		c := make(chan uint32, 2048)
		go func() {
			for n := b.N; n > 0; n-- {
				c <- uint32(n)
			}
		}()
		for n := b.N; n > 0; n-- {
			<-c
		}
	})
}
