package cmd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/io/netnstest"
)

// TestNetRunDrains: on SIGTERM the router forgets the VIP at once, packets that still
// come are forwarded for the drain time, and then run ends with exit code 0.
func TestNetRunDrains(t *testing.T) {
	build(t)
	if _, err := exec.LookPath("bird"); err != nil {
		t.Skip("missing: bird")
	}
	ns, router := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(netnstest.End{NS: ns, Name: "eth0", Addrs: []string{"192.0.2.1/24"}}, netnstest.End{NS: router, Name: "down", Addrs: []string{"192.0.2.254/24"}})
	// What a client sends whose router has not heard yet that the VIP is gone.
	router.Exec("ip", "route", "add", "203.0.113.80/32", "via", "192.0.2.1", "metric", "5000")

	dir := t.TempDir()
	conf := filepath.Join(dir, "bird.conf")
	if err := os.WriteFile(conf, []byte(`router id 192.0.2.254;
protocol device {}
protocol kernel { ipv4 { export all; import none; }; }
protocol bgp lb {
  local as 64500;
  neighbor 192.0.2.1 as 65001;
  passive on;
  ipv4 { import all; export none; };
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	bird := exec.Command("bird", "-f", "-c", conf, "-s", filepath.Join(dir, "ctl"), "-P", filepath.Join(dir, "pid"))
	router.Start(bird)

	c := exec.Command(build(t), "run", "--log", "json", write(t, "lb.hcl", small+`
metrics {}
bgp {
  asn            = 65001
  announce_after = "0s"
  drain_time     = "3s"
  peer "router" {
    address = "192.0.2.254"
    asn     = 64500
  }
}
`))
	var log lockedBuffer
	c.Stderr = &log
	ns.Start(c)
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	heard := func() bool { return strings.Contains(router.Exec("ip", "route", "show", "203.0.113.80"), "proto bird") }
	until := func(what string, within time.Duration, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(within); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: it does not come to that: %s", what, log.String())
			}
		}
	}
	counter := regexp.MustCompile(`(?m)^lbgraph_vip_sent_packets_total\{.*vip="web"\} (\d+)`)
	sent := func() int {
		out, _ := ns.Try("curl", "-s", "-m", "2", "http://127.0.0.1:9109/metrics")
		m := counter.FindStringSubmatch(out)
		if m == nil {
			return 0
		}
		n, _ := strconv.Atoi(m[1])
		return n
	}
	call := func() { _, _ = router.Try("curl", "-s", "-m", "0.05", "http://203.0.113.80/") }

	until("the router hears of the VIP", 20*time.Second, heard)
	until("packets are forwarded", 5*time.Second, func() bool { call(); return sent() > 0 })

	begun := time.Now()
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	until("the router forgets the VIP", 2*time.Second, func() bool { return !heard() })
	if code, _ := ns.Try("curl", "-s", "-m", "2", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:9109/readyz"); code != "503" {
		t.Errorf("/readyz answers %s while the node drains", code)
	}
	before := sent()
	call()
	if after := sent(); before == 0 || after <= before {
		t.Errorf("%d packets were sent by the time of the withdrawal, %d after one more: %s", before, after, log.String())
	}
	select {
	case err := <-done:
		t.Fatalf("it ended %v after SIGTERM: %v: %s", time.Since(begun), err, log.String())
	default:
	}
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("exit: %v: %s", err, log.String())
		}
	case <-time.After(15 * time.Second):
		t.Fatalf("it does not end: %s", log.String())
	}
	if took := time.Since(begun); took < 3*time.Second {
		t.Errorf("it forwarded for %v only", took)
	}
	nothingAttached(t, ns, "eth0")
}
