package cases_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/pcap"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// crowd is n SYNs of different flows.
func crowd(t testing.TB, n int) (all [][]byte) {
	for i := range n {
		all = append(all, nodetest.SYN(t, nodetest.Client4, nodetest.VIP4, uint16(1024+i%60000), 443, 1460))
	}
	return all
}

// TestAPortThatTakesSevenOf64: what it does not take is counted, nothing is lost.
func TestAPortThatTakesSevenOf64(t *testing.T) {
	for _, file := range []string{plain, steering(4)} {
		for _, threads := range []bool{false, true} {
			b := newBench(t, file, 1, threads)
			b.port.port.Limit(7)
			b.port.port.Inject(0, crowd(t, 640)...)
			// Fragments, answers and made frames come into the crowd.
			c := nodetest.Cases(t)
			b.port.port.Inject(0, c["frag1"], c["frag2"], c["udp-1500-df"], c["echo6"], c["frag1"])
			const n = 645
			if !threads {
				b.settle()
			}
			s := wait(t, b.e.Stats, n)
			var r result
			collect(t, &s, &r)
			b.port.addTo(&r)
			if r.sent == 0 || r.sent != uint64(len(r.out)) || r.drops["tx.tx_full"] == 0 || r.received+r.made != r.sent+r.dropped()+r.held {
				t.Errorf("sent %d (%d arrived), made %d, held %d, drops %v", r.sent, len(r.out), r.made, r.held, r.drops)
			}
			for _, f := range r.out {
				if len(f) > 40 && f[12] == 8 && f[23] == 47 {
					gre(t, f)
				}
			}
			// It recovers.
			b.port.port.Limit(0)
			b.port.port.Inject(0, crowd(t, 64)...)
			if !threads {
				b.settle()
			}
			wait(t, b.e.Stats, n+64)
			if got := len(b.port.port.Sent(0)); got != 64 {
				t.Errorf("%d of 64 arrived after that", got)
			}
		}
	}
}

// TestAPortThatStopsForASecond: the transmit ring fills, then packets are counted as
// tx_full; when it goes on, what was in the ring leaves.
func TestAPortThatStopsForASecond(t *testing.T) {
	for _, queues := range []int{1, 2} {
		for _, threads := range []bool{false, true} {
			b := newBench(t, plain, queues, threads)
			b.port.port.Stop()
			n := uint64(0)
			for i := range 10 { // a second, in ten pieces
				for q := range queues {
					b.port.port.Inject(q, crowd(t, 100)...)
					n += 100
				}
				if threads {
					time.Sleep(100 * time.Millisecond)
				} else {
					b.until(time.Duration(i) * 100 * time.Millisecond)
					b.settle()
				}
				s := b.e.Stats()
				if err := s.CheckConservation(); err != nil && !threads {
					t.Fatal(err)
				}
			}
			if got := b.port.port.SentPackets(); got != 0 {
				t.Errorf("a stopped port sent %d", got)
			}
			b.port.port.Limit(0)
			if !threads {
				b.settle()
			}
			s := wait(t, b.e.Stats, n)
			var r result
			collect(t, &s, &r)
			b.port.addTo(&r)
			if uint64(len(r.out)) != r.sent || r.sent < 64 || r.drops["tx.tx_full"] != n-r.sent || r.dropped() != n-r.sent {
				t.Errorf("%d queues: sent %d (%d arrived), drops %v", queues, r.sent, len(r.out), r.drops)
			}
		}
	}
}

// TestTsharkReadsWhatLeaves gives all that leaves over all rows to another decoder:
// every frame is well-formed and every checksum right.
func TestTsharkReadsWhatLeaves(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("missing: tshark")
	}
	frames := nodetest.Cases(t)
	name := filepath.Join(t.TempDir(), "out.pcapng")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := pcap.NewWriter(f, pcap.NG)
	id := w.Interface("eth0")
	var tunnels, all int
	for _, row := range rows {
		if strings.HasPrefix(row.name, "v6-frag2 then") || strings.HasPrefix(row.name, "frag2 then") {
			continue // the same datagram twice would overlap
		}
		var shots []shot
		for i, p := range row.packets {
			shots = append(shots, shot{0, time.Duration(i) * time.Millisecond, frames[p]})
		}
		for _, b := range overMemory(t, plain, 1, shots).out {
			all++
			if i := bytes.Index(b, []byte{8, 0, 0x45}); i == 12 && b[23] == 47 || i == 16 && b[27] == 47 {
				tunnels++
			}
			if err := w.Write(pcap.Packet{Time: epoch + int64(all)*1e6, Data: b, Interface: id, Comment: row.name}, pcap.Outbound); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	tshark := func(filter string) []string {
		t.Helper()
		out, err := exec.Command("tshark", "-r", name, "-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE",
			"-Y", filter, "-T", "fields", "-e", "frame.number", "-e", "frame.comment", "-e", "frame.protocols").Output()
		if err != nil {
			t.Fatalf("tshark: %v", err)
		}
		return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
	}
	if n := len(tshark("frame")); n != all || all < 20 {
		t.Fatalf("tshark reads %d frames of %d", n, all)
	}
	if n := len(tshark("gre && ip.proto == 47 && (gre.proto == 0x0800 || gre.proto == 0x86dd)")); n != tunnels || tunnels < 18 {
		t.Errorf("tshark sees %d tunnelled frames of %d", n, tunnels)
	}
	for _, bad := range []string{ // what an ICMPv6 error quotes is cut off, and its checksum covers all
		"_ws.malformed", `ip.checksum.status == "Bad"`, `tcp.checksum.status == "Bad" && !icmpv6`, `udp.checksum.status == "Bad"`,
		`icmp.checksum.status == "Bad"`, `icmpv6.checksum.status == "Bad"`, "ip.fragment.error || ipv6.fragment.error || ip.fragment.overlap",
	} {
		if got := tshark(bad); len(got) != 0 {
			t.Errorf("%s:\n%s", bad, strings.Join(got, "\n"))
		}
	}
	// It checks: a frame with a wrong checksum is told of.
	if got := tshark(`ip.checksum.status == "Good"`); len(got) < tunnels {
		t.Errorf("tshark verified %d IP checksums", len(got))
	}
}

// TestAMillionPackets: the loop allocates nothing over a million packets that go the
// whole way through the graph.
func TestAMillionPackets(t *testing.T) {
	b := newBench(t, plain, 1, false)
	b.port.port.Discard()
	c := nodetest.Cases(t)
	mix := append(crowd(t, 500), c["data"], c["syn6"], c["vlan100-syn"], c["ecn-ce"], c["wrong-port"], c["totlen-lies"], c["udp-1500-df"], c["echo6"], c["frag1"], c["frag2"])
	b.port.port.Repeat(0, 1<<30, mix...)
	for range 100 {
		b.e.Step(0)
		b.clock += 1e4
	}
	var before graph.Stats = b.e.Stats()
	allocs := testing.AllocsPerRun(16, func() {
		for range 1000 {
			b.clock += 1e4
			b.e.Step(0)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations in 64 thousand packets", allocs)
	}
	after := b.e.Stats()
	if n := after.Received - before.Received; n < 1_000_000 {
		t.Errorf("%d packets", n)
	}
	if err := after.CheckConservation(); err != nil {
		t.Error(err)
	}
	if testing.Verbose() {
		fmt.Println(after.Drops())
	}
}
