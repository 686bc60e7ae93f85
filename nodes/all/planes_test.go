package all_test

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// One file has a graph of packets and a stream on one pool: who is unhealthy, drained
// or of no weight gets nothing new on either plane, and weights count on both.
func TestPlanesShareAPool(t *testing.T) {
	text := "health \"h\" { interval = \"1h\" }\npool \"web\" {\ntable_size = 1009\nhealth = health.h\n"
	const n = 4
	var at []netip.AddrPort
	for i := range n {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", i+2))
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, i) })}
		t.Cleanup(func() { _ = s.Close() })
		go func() { _ = s.Serve(l) }()
		at = append(at, netip.MustParseAddrPort(l.Addr().String()))
		text += fmt.Sprintf("backend \"b%d\" {\naddress = %q\nport = %d\nweight = %d\n}\n", i, at[i].Addr(), at[i].Port(), []int{100, 100, 100, 200}[i])
	}
	text += `}
vip "web" {
  address  = "203.0.113.10"
  protocol = "tcp"
  ports    = [80]
  pool     = pool.web
}
graph "edge" {
  path { main = [rx, parse, vip-classify, maglev-select, mtu-check, gre-encap, tx] }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "mtu-check" "mtu-check" { icmp_rate = 0 }
  node "xdp-tx" "tx" { interface = "eth0" }
}
stream "s" {
  path { main = [in, balance, proxy] }
  node "listen" "in" { address = "127.0.0.1:0" }
  node "balance" "balance" {
    pool       = pool.web
    slow_start = "0s"
  }
}
`
	r := nodetest.RunStreams(t, text)
	p := r.Dial("in")
	type none = struct{}
	// shares answers how many of 500 sessions, and of 500 flows, each backend gets.
	shares := func() (streams, packets [n]int) {
		for range 500 {
			var i int
			if _, err := fmt.Sscanf(p.Ask("GET / HTTP/1.1\nHost: x\n\n"), "200 %d", &i); err != nil {
				t.Fatal(err)
			}
			streams[i]++
		}
		w := nodetest.New[none](t, "maglev-select", nil, nodetest.WithState(r.Store.Cell().Load())).Workers[0]
		for i := range 500 {
			w.Reuse()
			in := w.Load(nodetest.SYN(t, nodetest.Client4, nodetest.VIP4, uint16(1000+i), 80, 1460))
			w.Parse(in)
			w.V.VIP[0] = 1
			if out := w.Only(w.Process(in), 0); out != "next" {
				t.Fatal(out)
			}
			a := w.State().Backends[w.V.Backend[0]].Addr
			packets[slices.IndexFunc(at, func(x netip.AddrPort) bool { return x.Addr() == a })]++
		}
		return streams, packets
	}
	want := func(what string, weights ...int) {
		t.Helper()
		r.Store.Flush()
		sum := 0
		for _, w := range weights {
			sum += w
		}
		streams, packets := shares()
		for i, w := range weights {
			share := 500 * w / sum
			if d := streams[i] - share; d < -2 || d > 2 {
				t.Errorf("%s: sessions %v, weights %v", what, streams, weights)
				break
			}
			if d := packets[i] - share; w == 0 && packets[i] > 0 || d < -60 || d > 60 {
				t.Errorf("%s: flows %v, weights %v", what, packets, weights)
				break
			}
		}
	}
	want("at first", 100, 100, 100, 200)
	r.Store.SetHealth(state.Target{Check: "h", Addr: at[0].Addr(), Port: int(at[0].Port())}, state.Unhealthy)
	want("unhealthy", 0, 100, 100, 200)
	if err := r.Store.Drain("web", "b1", true, false); err != nil {
		t.Fatal(err)
	}
	want("drained", 0, 0, 100, 200)
	if err := r.Store.SetWeight("web", "b2", 600, false); err != nil {
		t.Fatal(err)
	}
	want("weight", 0, 0, 600, 200)
	r.Store.SetHealth(state.Target{Check: "h", Addr: at[0].Addr(), Port: int(at[0].Port())}, state.Healthy)
	want("healthy again", 100, 0, 600, 200)
	// A file without one of them.
	_, text, _ = strings.Cut(text, "\npool")
	text = "health \"h\" { interval = \"1h\" }\npool" + strings.Replace(text, fmt.Sprintf("backend \"b3\" {\naddress = %q\nport = %d\nweight = 200\n}\n", at[3].Addr(), at[3].Port()), "", 1)
	r.Reload(text)
	want("removed", 100, 100, 100, 0)
}
