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

// TestNetLeastCapabilities: with the capabilities of deploy/lbgraph.service and no
// more, and no way to get more, the daemon runs on AF_XDP, answers commands, reloads
// by SIGHUP, and ends with exit code 0.
func TestNetLeastCapabilities(t *testing.T) {
	program := build(t)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("missing: setpriv (Debian's util-linux)")
	}
	unit, err := os.ReadFile("../deploy/lbgraph.service")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindSubmatch(unit)
	if m == nil {
		t.Fatal("the unit has no CapabilityBoundingSet")
	}
	set := "-all"
	for _, c := range strings.Fields(string(m[1])) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	ns, peer := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(netnstest.End{NS: ns, Name: "eth0", Addrs: []string{"192.0.2.1/24"}}, netnstest.End{NS: peer, Name: "peer"})
	dir := t.TempDir()
	socket, cache := filepath.Join(dir, "run", "admin.sock"), filepath.Join(dir, "kept.json")
	// Few frames: the unit lifts the limit on locked memory, which not every machine's
	// root may.
	few := strings.Replace(small, "path {", "rings  = 256\n  frames = 64\n  path {", 1)
	file := write(t, "lb.hcl", few+"admin { socket = \""+socket+"\" }\nreload { cache = \""+cache+"\" }\nmetrics {}\nneigh {}\n")
	log := newLines()
	c := exec.Command(setpriv, "--bounding-set="+set, "--inh-caps=-all", "--no-new-privs", program, "run", file)
	c.Stderr = log
	ns.Start(c)
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(15 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: it does not come to that: %s", what, log)
			}
		}
	}
	until("it runs", func() bool { return strings.Contains(log.String(), "running") })
	b, err := os.ReadFile("/proc/" + strconv.Itoa(c.Process.Pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	if eff := regexp.MustCompile(`CapEff:\s*(\w+)`).FindStringSubmatch(string(b)); eff == nil || eff[1] != "000000c000003000" {
		t.Errorf("effective capabilities are %v", eff)
	}
	if code, out, problem := run("status", "--socket", socket); code != 0 || !strings.Contains(out, "healthy: ok") {
		t.Errorf("exit code %d: %s%s", code, out, problem)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// No change of the file's own would be seen before SIGHUP is: it is sent at once.
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), "10.0.1.1", "10.0.1.7", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	until("it reloads", func() bool {
		return regexp.MustCompile(`reloaded.*SIGHUP`).MatchString(log.String()) && strings.Contains(log.String(), "10.0.1.1 -> 10.0.1.7")
	})
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("SIGTERM: %v: %s", err, log)
	}
	nothingAttached(t, ns, "eth0")
}
