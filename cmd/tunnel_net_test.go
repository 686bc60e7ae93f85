package cmd_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/io/bpf"
	"github.com/lbgraph/lbgraph/io/netnstest"
)

// TestNetChecksThroughTunnel: a backend without the VIP gets no traffic while a check
// asks through the tunnel, and gets it when it has the VIP; a check that is changed to
// ask directly, and the end of the program, leave nothing behind.
func TestNetChecksThroughTunnel(t *testing.T) {
	build(t)
	const vip = "203.0.113.80"
	node, router := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(netnstest.End{NS: node, Name: "eth0", Addrs: []string{"192.0.2.1/24"}}, netnstest.End{NS: router, Name: "node", Addrs: []string{"192.0.2.2/24"}})
	node.Route("0.0.0.0/0", "192.0.2.2", "")
	router.Sysctl("net.ipv4.ip_forward", "1")
	router.Route(vip+"/32", "192.0.2.1", "")
	var backends []*netnstest.NS
	for i := 1; i <= 2; i++ {
		b := netnstest.New(t)
		netnstest.Veth(netnstest.End{NS: b, Name: "eth0", Addrs: []string{fmt.Sprintf("10.0.%d.2/24", i)}, MTU: 1524},
			netnstest.End{NS: router, Name: fmt.Sprint("b", i), Addrs: []string{fmt.Sprintf("10.0.%d.1/24", i)}, MTU: 1524})
		b.Route("0.0.0.0/0", fmt.Sprintf("10.0.%d.1", i), "")
		var l net.Listener
		var d *bpf.Decap
		var err error
		b.Do(func() {
			if l, err = net.Listen("tcp", ":80"); err == nil {
				d, err = bpf.AttachDecap(bpf.DecapOptions{Interface: b.Index("eth0"), Tunnels: bpf.GRE, TC: true})
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "backend %d", i) })}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _, _ = s.Close(), d.Close() })
		backends = append(backends, b)
	}
	backends[0].Exec("ip", "addr", "add", vip+"/32", "dev", "lo")
	left := func() string {
		return node.Exec("sh", "-c", "ip -br link; ip rule; ip -6 rule; ip route show table all | grep -v fe80")
	}
	before := left()

	text := `
pool "web" {
  health = health.web
  backend "one" { address = "10.0.1.2" }
  backend "two" { address = "10.0.2.2" }
}
vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [80]
  pool     = pool.web
}
health "web" {
  type     = "http"
  through  = "tunnel"
  interval = "500ms"
  timeout  = "500ms"
  fall     = 2
}
graph "edge" {
  path { main = [rx, parse, vip-classify, maglev-select, gre, tx] }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
`
	file := write(t, "lb.hcl", text)
	c := exec.Command(build(t), "run", file)
	var log lockedBuffer
	c.Stderr = &log
	node.Start(c)
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s; the log:\n%s", what, log.String())
			}
		}
	}
	// ask answers who served some connections: each is a flow of its own.
	ask := func(n int) (by map[string]int) {
		by = map[string]int{}
		for range n {
			out, err := router.Try("curl", "-s", "-m", "0.5", "http://"+vip+"/")
			if err != nil {
				out = "nobody"
			}
			by[out]++
		}
		return by
	}
	until("not all is known of the backends", func() bool { return strings.Count(log.String(), "a backend changes its state") >= 2 })
	until("the backend without the VIP stays", func() bool { return ask(10)["backend 1"] == 10 })
	if by := ask(20); by["backend 1"] != 20 {
		t.Errorf("while one backend has no VIP: %v", by)
	}
	backends[1].Exec("ip", "addr", "add", vip+"/32", "dev", "lo")
	until("the backend with the VIP does not come", func() bool { return ask(10)["backend 2"] > 0 })
	if by := ask(20); by["backend 1"]+by["backend 2"] != 20 {
		t.Errorf("when both have the VIP: %v", by)
	}
	reload := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := c.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	// Checks under way go the way that the file says now: these backends take no IP in IP
	// off.
	sick := func() int { return strings.Count(log.String(), `"state": "UNHEALTHY"`) }
	was := sick()
	reload(strings.Replace(text, `"gre-encap"`, `"ipip-encap"`, 1))
	until("checks do not go the new way", func() bool { return sick() >= was+2 })
	reload(text)
	until("checks do not go the old way again", func() bool { by := ask(10); return by["backend 1"] > 0 && by["backend 2"] > 0 })
	reload(strings.Replace(text, `through  = "tunnel"`, "", 1))
	until("the tunnel stays", func() bool { return left() == before })
	if by := ask(20); by["backend 1"]+by["backend 2"] != 20 {
		t.Errorf("after a reload: %v", by)
	}
	reload(text)
	until("the tunnel does not come back", func() bool { return left() != before })
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if after := left(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}
