package daemon

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
)

// TestNetNextHop: frames go where the kernel's tables say, or to a gateway whose
// hardware address they tell, while both change.
func TestNetNextHop(t *testing.T) {
	for _, hop := range []string{"kernel", "192.0.2.2"} {
		t.Run(hop, func(t *testing.T) {
			w := newWorld(t, 0)
			wire := sniff(t, w.router, "node")
			name := filepath.Join(t.TempDir(), "lb.hcl")
			src := fmt.Sprintf(`
pool "web" {
  backend "one" { address = "10.0.1.1" }
}
vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [80]
  pool     = pool.web
}
neigh { probe = "200ms" }
graph "edge" {
  path { main = [rx, parse, vip-classify, maglev-select, mtu, gre, xdp-tx] }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "mtu-check" "mtu" { icmp_rate = 0 }
  node "gre-encap" "gre" { next_hop = %q }
}
`, hop)
			if err := os.WriteFile(name, []byte(src), 0o600); err != nil {
				t.Fatal(err)
			}
			f, diags := lang.Load(name, lang.Options{})
			if diags = append(diags, graph.Check(f)...); diags.HasErrors() {
				t.Fatal(diags)
			}
			d := w.start(f)
			// until sends SYNs until one leaves for mac.
			until := func(what string, mac [6]byte) {
				t.Helper()
				for range 20 {
					_, _ = w.client.Try("curl", "-s", "-m", "0.3", "http://203.0.113.80/")
					for waiting := true; waiting; {
						select {
						case f := <-wire:
							if gre(f) != nil && bytes.Equal(f[:6], mac[:]) {
								return
							}
						case <-time.After(50 * time.Millisecond):
							waiting = false
						}
					}
				}
				t.Fatalf("%s: nothing is sent to %x; drops %v", what, mac, d.Stats()[0].Drops())
			}
			until("the router", w.router.MAC("node"))
			w.node.Exec("ip", "neigh", "replace", "192.0.2.2", "lladdr", "02:00:00:00:00:77", "nud", "permanent", "dev", "eth0")
			until("another neighbour", [6]byte{2, 0, 0, 0, 0, 0x77})
			w.node.Exec("ip", "neigh", "replace", "192.0.2.2", "lladdr", "02:00:00:00:00:78", "nud", "permanent", "dev", "eth0")
			until("and another", [6]byte{2, 0, 0, 0, 0, 0x78})
		})
	}
}
