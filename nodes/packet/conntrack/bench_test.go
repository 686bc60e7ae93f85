package conntrack

import (
	"fmt"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/io/packet"
)

// benchRig is a worker whose table holds n flows of the service, established.
func benchRig(b *testing.B, service, entries, n int) *rigged {
	r := newRig(b, func(c *Config) {
		c.Entries = entries
		c.Timeouts.TCPHandshake, c.Timeouts.TCPEstablished = time.Hour, time.Hour
	})
	for k := 0; k < n; k += packet.Size {
		m := min(packet.Size, n-k)
		r.keys(service, k, m)
		for i := range m {
			r.V.TCP[i] = syn
		}
		r.pass(packet.All(m))
		r.keys(service, k, m)
		if r.pass(packet.All(m)) != packet.All(m) {
			b.Fatal("an entry was lost")
		}
	}
	return r
}

// keys makes lanes 0 … n−1 packets of the flows from k on.
func (r *rigged) keys(service, k, n int) {
	v := &r.V
	v.Now = r.Clock
	dst := packet.AddrOf(flowTo(service, 1).dst)
	for i := range n {
		x := packet.Mix(uint64(k+i)^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93) // no order in the table's
		v.Src[i] = packet.Addr4(uint32(k+i) * 2654435761)
		if service == six {
			v.Src[i] = packet.Addr{Hi: 0x20010db8 << 32, Lo: uint64(k + i)}
			v.Flags[i] = packet.V6
		} else {
			v.Flags[i] = 0
		}
		v.Dst[i], v.SPort[i], v.DPort[i], v.Proto[i], v.TCP[i] = dst, uint16(x), 443, 6, ack
		v.VIP[i], v.Hash[i], v.Backend[i], v.Slot[i] = uint32(service), x, 0, 0
	}
}

// lookups measures Process alone, over vectors of keys from a set that comes
// round only after all of it was used.
func lookups(b *testing.B, r *rigged, service, from, n int, want int) {
	type cols struct {
		src   [packet.Size]packet.Addr
		sport [packet.Size]uint16
	}
	sets := make([]cols, max(1, min(n, 1<<20)/packet.Size))
	for s := range sets {
		// Spread over the whole set of keys.
		r.keys(service, from+s*(n/len(sets)/packet.Size*packet.Size), packet.Size)
		sets[s] = cols{r.V.Src, r.V.SPort}
	}
	for s := range sets { // any order but that of the insertion
		o := int(packet.Reduce(packet.Mix(uint64(s)^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93), uint32(len(sets))))
		sets[s], sets[o] = sets[o], sets[s]
		for i := range packet.Size {
			p := int(packet.Reduce(packet.Mix(uint64(s*64+i)^0x243f6a8885a308d3, 0xd6e8feb86659fd93), uint32(len(sets))))
			sets[s].src[i], sets[p].src[i] = sets[p].src[i], sets[s].src[i]
			sets[s].sport[i], sets[p].sport[i] = sets[p].sport[i], sets[s].sport[i]
		}
	}
	k := 0
	hits := 0
	for b.Loop() {
		r.V.Src, r.V.SPort = sets[k].src, sets[k].sport
		if k++; k == len(sets) {
			k = 0
		}
		r.Run(packet.All(packet.Size))
		hits += r.Out(hit).Count()
	}
	if hits != want*b.N*packet.Size {
		b.Fatalf("%d hits of %d", hits, b.N*packet.Size)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
}

// 1024 keys again and again, as many benchmarks do: the table's lines are in the
// first-level cache.
func BenchmarkLookupHot(b *testing.B) {
	for _, fill := range []int{15, 70, 90, 95} {
		r := benchRig(b, web, 131072, 131072*fill/100)
		b.Run(fmt.Sprintf("hit/fill=%d", fill), func(b *testing.B) { lookups(b, r, web, 0, 1024, 1) })
		b.Run(fmt.Sprintf("miss/fill=%d", fill), func(b *testing.B) { lookups(b, r, web, 1<<26, 1024, 0) })
		_ = r.node().Close()
	}
}

// Every key of the table before any comes again.
func BenchmarkLookupFresh(b *testing.B) {
	for _, service := range []int{web, six} {
		for _, entries := range []int{1 << 17, 1 << 20, 1 << 23} {
			if service == six && entries > 1<<20 {
				continue
			}
			n := entries * 7 / 10 / packet.Size * packet.Size
			r := benchRig(b, service, entries, n)
			b.Run(fmt.Sprintf("v6=%v/entries=%d/hit", service == six, entries), func(b *testing.B) { lookups(b, r, service, 0, n, 1) })
			b.Run(fmt.Sprintf("v6=%v/entries=%d/miss", service == six, entries), func(b *testing.B) { lookups(b, r, service, 1<<26, n, 0) })
			_ = r.node().Close()
		}
	}
}

// Every packet a new flow: look-up, miss, insertion; into room, and into a full
// table, where the oldest handshakes are evicted.
func BenchmarkNewFlows(b *testing.B) {
	for _, entries := range []int{1 << 14, 1 << 20} {
		b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) {
			r := newRig(b, func(c *Config) { c.Entries = entries })
			all := packet.All(packet.Size)
			r.keys(web, 0, packet.Size)
			for b.Loop() {
				for i := range packet.Size {
					r.V.Src[i] = packet.Addr4(r.V.Src[i].V4() + 2654435769)
					r.V.Flags[i] = 0
				}
				r.Run(all)
				for i := range packet.Size {
					r.V.Backend[i], r.V.Slot[i], r.V.Flags[i] = 1, 0, packet.Chosen
				}
				r.node().AfterSend(&r.V, all)
			}
			if got := r.Counter("misses"); got != uint64(b.N)*packet.Size {
				b.Fatalf("%d misses of %d", got, b.N*packet.Size)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.Size, "ns/packet")
		})
	}
}

// A round of the sweep over a table at 70 %.
func BenchmarkSweep(b *testing.B) {
	r := benchRig(b, web, 1<<14, 11000)
	n := r.node()
	size := n.cur.compact.size()
	for b.Loop() {
		n.swept = 0
		n.sweep(size, 0)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(size), "ns/bucket")
}
