package xsk

import (
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/packet"
)

// What sockets and rings cost by themselves, in native and in generic mode: 64-byte
// packets received from one veth pair and sent back, while another core sends them.
// Nearly all of it is the kernel's. What the whole balancer is compared with is the
// reflector of bench/io.
func BenchmarkReflect(b *testing.B) {
	for _, mode := range []bpf.Mode{bpf.Native, bpf.Generic} {
		b.Run(string(mode), func(b *testing.B) {
			l := newLab(b, 1, 1500)
			m := memory(b, 8192, 2048)
			p := l.mustOpen(Options{Mode: mode, Memory: m, Program: program(b)})
			// What comes back to the sender drops in its program.
			drop, err := bpf.RulesOf(state.Spec{VIPs: []state.VIPSpec{{
				Name: "sender", Prefix: netip.MustParsePrefix("10.1.0.1/32"), Protocol: 6, Ports: []state.PortRange{{Lo: 1, Hi: 1}},
			}}}, nil)
			if err != nil {
				b.Fatal(err)
			}
			sink := program(b)
			if err := sink.Update(drop); err != nil {
				b.Fatal(err)
			}
			source := memory(b, 4096, 2048)
			var sender *Port
			l.client.Do(func() { sender, err = Open(Options{Interface: "c0", Mode: mode, Memory: source, Program: sink}) })
			if err != nil {
				b.Fatal(err)
			}
			defer sender.Close()

			var stop atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread()
				q := sender.queues[0]
				var v packet.Vector
				v.Mem = source.Bytes()
				free := make([]uint32, 0, 4096)
				for f := range 2048 {
					copy(v.Mem[f*2048+256:], l.udp("203.0.113.10", 4500, uint32(f), 64))
					free = append(free, uint32(f))
				}
				back := make([]uint32, 64)
				out := []unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLOUT}}
				for !stop.Load() {
					for n := q.Reclaim(back); n > 0; n = q.Reclaim(back) {
						free = append(free, back[:n]...)
					}
					n := min(len(free), packet.Size)
					for i, f := range free[len(free)-n:] {
						v.Frame[i], v.Start[i], v.Len[i], v.Total[i], v.Chain[i] = f, f*2048+256, 64, 64, packet.NoFrame
					}
					free = free[:len(free)-q.Transmit(&v, packet.All(n)).Count()]
					q.Flush()
					if len(free) == 0 {
						runtime.Gosched()
						unix.Poll(out, 1)
					}
				}
			}()
			c := newCore(b, p, m)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for c.got < 1000 { // warm
				c.pass()
			}
			c.got = 0
			passes := 0
			b.ResetTimer()
			poll := []unix.PollFd{{Fd: int32(p.queues[0].FD()), Events: unix.POLLIN}}
			for c.got < b.N {
				if c.pass() == 0 {
					unix.Poll(poll, 1) // the kernel needs the core to bring packets
					continue
				}
				passes++
			}
			b.StopTimer()
			b.ReportMetric(float64(c.got)/float64(passes), "packets/pass")
			b.ReportMetric(float64(c.got)/b.Elapsed().Seconds()/1e6, "Mpps")
			stop.Store(true)
			<-done
			c.check()
			if c.lost > 0 {
				b.Errorf("%d not taken", c.lost)
			}
		})
	}
}
