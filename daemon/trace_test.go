package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	"github.com/lbgraph/lbgraph/runtime"
)

func driversOf(d *memDriver) map[string]runtime.Driver { return map[string]runtime.Driver{"xdp": d} }

// nodeHolder holds a core until let is closed.
func nodeHolder(held, let chan struct{}) func(int, graph.Node) {
	return func(int, graph.Node) {
		close(held)
		<-let
	}
}

func way(t admin.Traced) string {
	var nodes []string
	for _, s := range t.Steps {
		nodes = append(nodes, s.Node)
	}
	return strings.Join(nodes, " ")
}

// full is a file with all that a packet can meet.
const full = `pool "web" {
  backend "web-1" { address = "10.0.1.1" }
  backend "web-2" { address = "10.0.1.2" }
}
vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [80]
  pool     = pool.web
}
vip "udp" {
  address  = "203.0.113.80"
  protocol = "udp"
  ports    = [7]
  pool     = pool.web
}
vip "six" {
  address  = "2001:db8::80"
  protocol = "tcp"
  ports    = [443]
  pool     = pool.web
}
graph "edge" {
  path {
    main      = [rx, parse, vip-classify, frag-pin, ct.hit, copy, clamp, mtu, gre, tx]
    new_flow  = [ct.miss, maglev-select, copy]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "sample" "copy" { file = "SAMPLES" }
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
`

func newFull(t *testing.T) (r *rig, samples string) {
	samples = filepath.Join(t.TempDir(), "samples.pcap")
	return newRig(t, strings.Replace(full, "SAMPLES", samples, 1)), samples
}

// TestTrace: what a flow would meet: as a new one, as one that is known, where its
// backend is drained or down, and what is not ours. Nothing is changed by asking.
func TestTrace(t *testing.T) {
	r, samples := newFull(t)
	ask := func(protocol, src, dst string, syn bool) admin.Traced {
		t.Helper()
		x, err := r.Trace(admin.Flow{Protocol: protocol, Source: netip.MustParseAddrPort(src), Destination: netip.MustParseAddrPort(dst), SYN: syn})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	const new4 = "rx parse vip-classify frag-pin ct maglev-select copy clamp mtu gre tx"
	const known4 = "rx parse vip-classify frag-pin ct copy clamp mtu gre tx"
	// The test's own packets decide what is right.
	real := map[uint16]string{}
	for port, b := range r.put(flows(t, 40)[:20]) {
		real[port] = map[netip.Addr]string{web1: "web/web-1", web2: "web/web-2"}[b]
	}
	before := r.Stats()[0]
	for i := range 20 {
		src := fmt.Sprintf("198.51.0.%d:%d", i, 1024+i)
		x := ask("tcp", src, "203.0.113.80:80", false)
		if x.Verdict != "sent" || x.Backend != real[uint16(1024+i)] || x.VIP != "web" || way(x) != known4 || x.Node != "tx" {
			t.Errorf("%s: %s %s, want %s; %s", src, x.Verdict, x.Backend, real[uint16(1024+i)], way(x))
		}
	}
	// Another 20 flows: first asked, then sent.
	for i, f := range flows(t, 40)[20:] {
		i += 20
		x := ask("tcp", fmt.Sprintf("198.51.0.%d:%d", i, 1024+i), "203.0.113.80:80", true)
		if x.Verdict != "sent" || way(x) != new4 {
			t.Errorf("a new flow: %+v", x)
		}
		for _, b := range r.put([][]byte{f}) {
			if want := map[netip.Addr]string{web1: "web/web-1", web2: "web/web-2"}[b]; x.Backend != want {
				t.Errorf("a flow would go to %s, and went to %s", x.Backend, want)
			}
		}
	}
	after := r.Stats()[0]
	if ct := after.Node("ct"); after.Received != before.Received+20 || ct.Counter("inserts") != 40 {
		t.Errorf("asking was counted: %d, %d", after.Received-before.Received, ct.Counter("inserts"))
	}
	// The frame that would leave is the one that leaves.
	x := ask("tcp", "198.51.100.7:4711", "203.0.113.80:80", true)
	if len(x.After) != 1 {
		t.Fatalf("%+v", x)
	}
	in, out := gopacket.NewPacket(x.Before, layers.LayerTypeEthernet, gopacket.Default), gopacket.NewPacket(x.After[0], layers.LayerTypeEthernet, gopacket.Default)
	if in.ErrorLayer() != nil || out.ErrorLayer() != nil || out.Layer(layers.LayerTypeGRE) == nil || x.Flow != "tcp 198.51.100.7:4711 > 203.0.113.80:80" {
		t.Errorf("%v\n%v", in, out)
	}
	// A flow moves on paper when its backend goes.
	src := "198.51.0.0:1024"
	name := strings.TrimPrefix(real[1024], "web/")
	if err := r.ChangeBackend("web", name, admin.Change{Drain: true}); err != nil {
		t.Fatal(err)
	}
	if x := ask("tcp", src, "203.0.113.80:80", false); x.Backend != "web/"+name {
		t.Errorf("a known flow leaves a backend that is drained: %s", x.Backend)
	}
	if x := ask("tcp", src, "203.0.113.80:80", true); x.Backend == "web/"+name || way(x) != new4 {
		t.Errorf("a flow that begins anew stays: %s, %s", x.Backend, way(x))
	}
	r.store.SetStatus(r.store.Backend(web1), 2)
	r.store.SetStatus(r.store.Backend(web2), 2)
	r.store.Flush()
	if x := ask("tcp", src, "203.0.113.80:80", false); x.Verdict != "dropped" || x.Node != "maglev-select" || x.Reason != "no_backend" {
		t.Errorf("with all backends down: %+v", x)
	}
	r.store.SetStatus(r.store.Backend(web1), 0)
	r.store.SetStatus(r.store.Backend(web2), 0)
	r.store.Flush()
	for _, c := range []struct{ protocol, src, dst, want string }{
		{"udp", "198.51.100.7:1", "203.0.113.80:7", "sent tx  udp"},
		{"tcp", "[2001:db8:c::7]:1", "[2001:db8::80]:443", "sent tx  six"},
		{"tcp", "198.51.100.7:1", "203.0.113.80:81", "dropped vip-classify wrong_port "},
		{"tcp", "198.51.100.7:1", "203.0.113.99:80", "dropped vip-classify no_punt "},
	} {
		if x := ask(c.protocol, c.src, c.dst, true); fmt.Sprintf("%s %s %s %s", x.Verdict, x.Node, x.Reason, x.VIP) != c.want {
			t.Errorf("%s %s: %+v", c.protocol, c.dst, x)
		}
	}
	for want, f := range map[string]admin.Flow{
		"protocol is": {Protocol: "sctp", Source: netip.MustParseAddrPort("1.2.3.4:5"), Destination: netip.MustParseAddrPort("1.2.3.4:5")},
		"one family":  {Protocol: "tcp", Source: netip.MustParseAddrPort("1.2.3.4:5"), Destination: netip.MustParseAddrPort("[::1]:5")},
		"no packet":   {Protocol: "tcp", Graph: "egde"},
	} {
		if _, err := r.Trace(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if info, err := os.Stat(samples); err != nil || info.Size() > 0 {
		t.Errorf("asking wrote samples: %v, %v", info, err)
	}
	// Nobody watches the snapshots for a graph that is gone.
	if n := r.put(flows(t, 5)); len(n) != 5 {
		t.Error("the graph does not run on")
	}
}

// begun is a context that says when somebody waits for its end: a Sample does so once it
// watches.
type begun struct {
	context.Context
	once sync.Once
	at   chan struct{}
}

func (b *begun) Done() <-chan struct{} {
	b.once.Do(func() { close(b.at) })
	return b.Context.Done()
}

// sample runs a Sample and answers what it found, after act, at whose end all packets
// have gone their way.
func (r *rig) sample(f admin.Filter, act func()) (all []admin.Traced, err error) {
	r.t.Helper()
	inner, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	ctx, done := &begun{Context: inner, at: make(chan struct{})}, make(chan struct{})
	go func() {
		defer close(done)
		err = r.Sample(ctx, f, func(t admin.Traced) { all = append(all, t) })
	}()
	select {
	case <-ctx.at:
		act()
		cancel() // what was seen until now is told
	case <-done:
	}
	<-done
	return all, err
}

// TestSample: packets that come are followed node by node, those that the filter fits;
// with what was made of them, and bytes before and after.
func TestSample(t *testing.T) {
	r, _ := newFull(t)
	all, err := r.sample(admin.Filter{Count: 3, Protocol: "tcp", DestinationPort: 80}, func() { r.put(flows(t, 10)) })
	if err != nil || len(all) != 3 {
		t.Fatal(len(all), err)
	}
	f := flows(t, 10)
	for i, x := range all {
		if x.Verdict != "sent" || way(x) != "rx parse vip-classify frag-pin ct maglev-select copy clamp mtu gre tx" || x.VIP != "web" || !strings.HasPrefix(x.Backend, "web/web-") ||
			!bytes.Equal(x.Before, f[i]) || len(x.After) != 1 || !bytes.Equal(x.After[0][14+24:], f[i][14:14+43]) || x.Graph != "edge" || time.Since(x.Time) > time.Minute {
			t.Errorf("%d: %+v", i, x)
		}
	}
	says := map[string]string{}
	for _, s := range all[0].Steps {
		says[s.Node] = s.Says
	}
	if says["ct"] == "" || says["maglev-select"] == "" {
		t.Errorf("nodes say %v", says)
	}
	wrong := nodetest.TCP(t, nodetest.Client4, vip80, 9, 81, nil)
	drops := r.Stats()[0].Dropped
	act := func() {
		r.port.port.Inject(0, wrong)
		r.put(flows(t, 10))
	}
	for name, q := range map[string]struct {
		f    admin.Filter
		want string
	}{
		"dropped":       {admin.Filter{Verdict: "dropped"}, "tcp 198.51.100.7:9 > 203.0.113.80:81 dropped vip-classify wrong_port"},
		"reason":        {admin.Filter{Reason: "wrong_port"}, "tcp 198.51.100.7:9 > 203.0.113.80:81 dropped vip-classify wrong_port"},
		"source port":   {admin.Filter{SourcePort: 1025}, "tcp 198.51.0.1:1025 > 203.0.113.80:80 sent tx "},
		"source":        {admin.Filter{Source: netip.MustParsePrefix("198.51.0.2/32")}, "tcp 198.51.0.2:1026 > 203.0.113.80:80 sent tx "},
		"no such graph": {admin.Filter{Graph: "egde"}, "error"},
		"no such":       {admin.Filter{Protocol: "sctp"}, "error"},
		"nor this":      {admin.Filter{Verdict: "lost"}, "error"},
	} {
		q.f.Count = 100
		all, err := r.sample(q.f, act)
		if q.want == "error" {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		var got []string
		for _, x := range all {
			got = append(got, fmt.Sprintf("%s %s %s %s", x.Flow, x.Verdict, x.Node, x.Reason))
		}
		if err != nil || len(got) != 1 || got[0] != q.want {
			t.Errorf("%s: %q, want %q alone; %v", name, got, q.want, err)
		}
	}
	if r.Stats()[0].Dropped == drops {
		t.Error("the test dropped nothing")
	}
	// A datagram too long for the tunnel: an answer in its own frame; or, where it
	// may be cut, two pieces of one packet.
	whole := nodetest.UDP(t, nodetest.Client4, vip80, 9, 7, make([]byte, 1472)...)
	cut := bytes.Clone(whole)
	cut[14+6], cut[14+10], cut[14+11] = 0, 0, 0
	binary.BigEndian.PutUint16(cut[14+10:], checksum(cut[14:34]))
	all, err = r.sample(admin.Filter{Count: 2, Protocol: "udp"}, func() {
		was := r.Stats()[0]
		r.port.port.Inject(0, whole, cut)
		r.until("both have gone", func() bool { s := r.Stats()[0]; return s.Received == was.Received+2 && s.Sent == was.Sent+3 })
	})
	if err != nil || len(all) != 2 {
		t.Fatal(len(all), err)
	}
	for _, x := range all {
		want := "rx parse vip-classify frag-pin ct maglev-select copy clamp mtu tx, 1 frames, backend \"\"" // it is not the backend that is answered
		if bytes.Equal(x.Before, cut) {
			want = "rx parse vip-classify frag-pin ct maglev-select copy clamp mtu gre tx gre tx, 2 frames, backend \"web/web-N\"" // the pieces one after the other
		}
		backend := strings.NewReplacer("web-1", "web-N", "web-2", "web-N").Replace(x.Backend)
		if got := fmt.Sprintf("%s, %d frames, backend %q", way(x), len(x.After), backend); got != want || x.Verdict != "sent" || x.VIP != "udp" {
			t.Errorf("%s of %s: %s, want %s", x.Verdict, x.VIP, got, want)
		}
	}
	// Two at the same time.
	held := make(chan error, 1)
	_, err = r.sample(admin.Filter{Count: 5, SourcePort: 1}, func() {
		held <- r.Sample(t.Context(), admin.Filter{Count: 1}, func(admin.Traced) {})
	})
	if err != nil {
		t.Error(err)
	}
	if err := <-held; err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("got %v", err)
	}
}

// TestSampleUnderTraffic: watching packets loses none, and a reload does not disturb it.
func TestSampleUnderTraffic(t *testing.T) {
	r := newRig(t, plain)
	x := r.traffic(flows(t, 500))
	n, odd := 0, 0
	reloads := make(chan struct{})
	go func() {
		defer close(reloads)
		for _, text := range variants(plain)[:6] {
			_ = os.WriteFile(r.path, []byte(text), 0o600)
			r.ReloadFile("test", false)
		}
	}()
	err := r.Sample(t.Context(), admin.Filter{Count: 3000}, func(p admin.Traced) {
		n++
		if p.Verdict != "sent" || len(p.After) != 1 || p.Backend == "" {
			odd++
		}
	})
	if err != nil || n != 3000 || odd > 0 {
		t.Errorf("%d packets, %d of them odd: %v", n, odd, err)
	}
	<-reloads
	x.end()
}
