package daemon

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
)

// TestReloadOfAMillion: fifty reloads that change the graph, with a million entries
// in the connection table and over a hundred thousand packets a second: no packet is
// lost, and no entry.
func TestReloadOfAMillion(t *testing.T) {
	if testing.Short() {
		t.Skip("a million flows: not with -short")
	}
	const million, reloads = 1_000_000, 50
	base := strings.Replace(plain, `"conntrack" "ct" {}`, "\"conntrack\" \"ct\" {\n    entries = 2097152\n    timeouts { tcp_handshake = \"1h\" }\n  }", 1)
	r := newRig(t, base)
	// The same frames again and again, each round with other sources.
	frames := flows(t, 5000)
	round := func(n int) {
		for i, f := range frames {
			binary.BigEndian.PutUint16(f[14+12+2:], uint16(n)) // the source's lower half
			binary.BigEndian.PutUint16(f[14+20:], uint16(1024+i))
			f[14+10], f[14+11] = 0, 0
			binary.BigEndian.PutUint16(f[14+10:], checksum(f[14:34]))
		}
		was := r.port.port.SentPackets()
		r.port.port.Inject(0, frames...)
		for end := time.Now().Add(20 * time.Second); r.port.port.SentPackets() < was+uint64(len(frames)); {
			if time.Now().After(end) {
				t.Fatalf("lost: %v", r.Stats()[0].Drops())
			}
			time.Sleep(20 * time.Microsecond)
		}
	}
	r.port.port.Discard()
	for n := range million / len(frames) {
		round(n)
	}
	count := func(name string) uint64 { n := r.Stats()[0].Node("ct"); return n.Counter(name) }
	if n := count("inserts"); n != million {
		t.Fatalf("%d entries", n)
	}
	all := variants(base)
	done := make(chan error, 1)
	begun, before := time.Now(), r.port.port.SentPackets()
	go func() {
		for i := range reloads {
			// Those that change the graph: nodes that come and go, another argument.
			text := all[[]int{1, 0, 2, 4, 0}[i%5]]
			if err := os.WriteFile(r.path, []byte(text), 0o600); err != nil {
				done <- err
				return
			}
			if got := r.ReloadFile("test", false); got.Outcome != admin.Reloaded {
				done <- fmt.Errorf("reload %d: %+v", i, got)
				return
			}
		}
		done <- nil
	}()
	ended := false
	for n := 0; !ended; n = (n + 1) % (million / len(frames)) {
		round(n)
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			ended = true
		default:
		}
	}
	took := time.Since(begun)
	rate := float64(r.port.port.SentPackets()-before) / took.Seconds()
	for n := range million / len(frames) {
		round(n)
	}
	if in, entries := count("inserts"), r.Stats()[0].Node("ct").Gauges["entries"]; in != million || entries != million {
		t.Errorf("%d entries were made anew and %.0f are there: a reload lost some", in-million, entries)
	}
	t.Logf("%d reloads in %v, %.0f packets a second meanwhile", reloads, took.Round(time.Millisecond), rate)
	if rate < 100_000 {
		t.Errorf("%.0f packets a second are too few to tell", rate)
	}
}

// TestNetReloadUnderLoad: the same over AF_XDP, with twenty thousand packets a second,
// and with VIPs and backends that come and go.
func TestNetReloadUnderLoad(t *testing.T) {
	w := newWorld(t, 0)
	path := t.TempDir() + "/lb.hcl"
	// Rings for most of a second: what is to be seen is what reloads lose, not what a
	// machine does that is too busy to run the loop.
	text := strings.Replace(strings.ReplaceAll(plain, `"10.0.1.`, `"10.9.1.`), "graph \"edge\" {", "graph \"edge\" {\n  rings = 16384", 1)
	load := func(s string) *graph.File {
		t.Helper()
		f, diags := lang.LoadBytes(path, []byte(s), lang.Options{})
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		return f
	}
	all := variants(text)
	var files []*graph.File
	for _, s := range all {
		files = append(files, load(s))
	}
	d := w.start(files[0])
	var fd int
	var err error
	w.router.Do(func() {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: w.router.Index("node")})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	mac := w.node.MAC("eth0")
	frames := flows(t, 1000)
	for _, f := range frames {
		copy(f, mac[:])
	}
	const burst, rate = 20, 20_000
	var sent atomic.Int64
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		next := time.Now()
		for i := 0; ; {
			select {
			case <-stop:
				return
			default:
			}
			for range burst {
				if err := unix.Send(fd, frames[i%len(frames)], 0); err != nil {
					t.Error(err)
					return
				}
				i++
				sent.Add(1)
			}
			next = next.Add(time.Second * burst / rate)
			time.Sleep(time.Until(next))
		}
	}()
	begun := time.Now()
	const reloads = 50
	for i := range reloads {
		// Nodes that come and go, another argument, a backend, another VIP and none.
		at := []int{1, 2, 4, 6, 5, 0}[i%6]
		plan, err := d.Reload(files[at])
		if err != nil {
			t.Fatalf("%v: %v", plan, err)
		}
		if vips := len(d.Snapshot().VIPs); (vips > 1) != (at == 6) {
			t.Errorf("file %d: %d VIPs are in force", at, vips)
		}
		time.Sleep(20 * time.Millisecond)
	}
	close(stop)
	<-ended
	took := time.Since(begun)
	n := uint64(sent.Load())
	// What the pair of interfaces itself had no room for, on a machine that is busy,
	// never came; the driver counts it.
	link, err := w.router.Link.LinkByName("node")
	if err != nil {
		t.Fatal(err)
	}
	refused := link.Attrs().Statistics.TxDropped
	var s graph.Stats
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if s = d.Stats()[0]; s.Sent+refused >= n {
			break
		}
	}
	admitted := d.xdp.counts()[0].Redirected.Packets
	t.Logf("%d packets in %v, %.0f a second, %d reloads; %d were refused by the link", n, took.Round(time.Millisecond), float64(n)/took.Seconds(), reloads, refused)
	if s.Sent+refused != n || s.Received != s.Sent || admitted != s.Received || s.Dropped != 0 {
		t.Errorf("%d packets came, %d were refused by the link, %d admitted, %d received and %d sent; drops %v, lost %v", n, refused, admitted, s.Received, s.Sent, s.Drops(), s.Lost)
	}
	if refused > n/100 {
		t.Errorf("the link refused %d packets, which is too many to tell", refused)
	}
	if got := float64(n) / took.Seconds(); got < rate*0.9 {
		t.Errorf("%.0f packets a second are too few to tell", got)
	}
}

// BenchmarkReloadLatency measures how long packets take from the port to the port, with
// reloads of the graph and without, by turns of a tenth of a second, so that what else
// the machine does falls on both. What reloads add to the 99.9th percentile is its figure.
func BenchmarkReloadLatency(b *testing.B) {
	f, diags := lang.LoadBytes("lb.hcl", []byte(plain), lang.Options{})
	g, more := lang.LoadBytes("lb.hcl", []byte(variants(plain)[1]), lang.Options{})
	if diags.HasErrors() || more.HasErrors() {
		b.Fatal(diags, more)
	}
	port := &memDriver{}
	d, err := New(f, Options{Drivers: driversOf(port)})
	if err != nil {
		b.Fatal(err)
	}
	if err := d.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = d.Stop(b.Context()) }()
	var reloading atomic.Bool
	reloads := 0
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			if reloading.Load() {
				reloads++
				if _, err := d.Reload([]*graph.File{g, f}[reloads%2]); err != nil {
					b.Error(err)
					return
				}
			}
		}
	}()
	one := flows(b, 64)
	var all [2][]time.Duration // at rest, reloading
	const turn = 100 * time.Millisecond
	turned, now := time.Now(), 0
	for b.Loop() {
		begun, was := time.Now(), port.port.SentPackets()
		port.port.Inject(0, one...)
		for port.port.SentPackets() == was {
		}
		all[now] = append(all[now], time.Since(begun))
		port.port.Sent(0)
		if time.Since(turned) > turn {
			turned, now = time.Now(), 1-now
			reloading.Store(now == 1)
		}
	}
	close(stop)
	<-ended
	var p999 [2]float64
	for i, name := range []string{"rest", "reloading"} {
		x := all[i]
		if len(x) < 1000 {
			return // too short to tell
		}
		slices.Sort(x)
		p999[i] = float64(x[len(x)*999/1000].Nanoseconds())
		b.ReportMetric(float64(x[len(x)/2].Nanoseconds()), name+"-p50-ns")
		b.ReportMetric(p999[i], name+"-p99.9-ns")
	}
	b.ReportMetric(p999[1]-p999[0], "p99.9-added-ns")
	b.ReportMetric(float64(reloads), "reloads")
}
