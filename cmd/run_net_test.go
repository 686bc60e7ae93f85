package cmd_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/io/netnstest"
)

// binary is lbgraph, built once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lbgraph")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "lbgraph")
	out, err := exec.Command("go", "build", "-o", path, "./lbgraph").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

func build(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("short: runs the daemon in network namespaces")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// small is a file whose graph needs one interface; its outer headers come from an
// address of the file, so that the interface needs none.
const small = `
pool "web" {
  backend "web-1" { address = "10.0.1.1" }
}
vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [80]
  pool     = pool.web
}
variable "mode" { default = "auto" }
graph "edge" {
  path {
    main    = [rx, parse, vip-classify, frag-pin, maglev-select, mtu, gre, tx]
    too_big = [mtu.reply, tx]
  }
  node "xdp-rx" "rx" {
    interface = "eth0"
    mode      = var.mode
  }
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" { source = "192.0.2.1" }
  node "xdp-tx" "tx" {}
}
`

// launch runs lbgraph in a namespace and answers its exit code and standard error.
func launch(t *testing.T, ns *netnstest.NS, args ...string) (code int, text string) {
	t.Helper()
	c := exec.Command(build(t), args...)
	var b strings.Builder
	c.Stderr = &b
	ns.Start(c)
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case err := <-done:
		var e *exec.ExitError
		if errors.As(err, &e) {
			code = e.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		_ = c.Process.Signal(syscall.SIGTERM)
		t.Fatalf("lbgraph %v does not end: %s", args, b.String())
	}
	return code, b.String()
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// nothingAttached fails the test when an XDP program stands on the interface, or a
// BPF file system is mounted that was not before.
func nothingAttached(t *testing.T, ns *netnstest.NS, dev string) {
	t.Helper()
	if out := ns.Exec("ip", "-d", "link", "show", dev); strings.Contains(out, "xdp") {
		t.Errorf("a program stays on %s: %s", dev, out)
	}
}

func mounts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestNetRunRefusals: what can stand in the way of run gives one clear line and exit
// code 3 (1 where the file is at fault), and leaves nothing behind.
func TestNetRunRefusals(t *testing.T) {
	build(t)
	before := mounts(t)
	ns, peer := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(netnstest.End{NS: ns, Name: "eth0", Addrs: []string{"192.0.2.1/24"}}, netnstest.End{NS: peer, Name: "peer"})
	file := write(t, "lb.hcl", small)
	// What is wrong with the file is shown with its place; all else is one line, behind
	// what the log tells of how far it came.
	refuses := func(t *testing.T, code int, words string, got int, text string) {
		t.Helper()
		lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(text), "\n"), func(l string) bool {
			return strings.Contains(l, "\tinfo\t") || code == 1 && !strings.HasPrefix(l, "error: ")
		})
		if got != code || len(lines) != 1 || !strings.Contains(lines[0], words) {
			t.Errorf("exit code %d and:\n%swant code %d and one line with %q", got, text, code, words)
		}
		nothingAttached(t, ns, "eth0")
		nothingAttached(t, ns, "lo")
		if after := mounts(t); after != before {
			t.Errorf("mounts differ:\n%s\n%s", before, after)
		}
	}
	one := func(name string, code int, words string, args ...string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			got, text := launch(t, ns, args...)
			refuses(t, code, words, got, text)
		})
	}
	one("unknown interface", 3, "lb.hcl:17: graph edge, node rx: interface eth9: no such interface: name one that `ip link` shows", "run", write(t, "lb.hcl", strings.Replace(small, `"eth0"`, `"eth9"`, 1)))
	one("unreadable file", 1, "File cannot be read", "run", filepath.Join(t.TempDir(), "none.hcl"))
	one("no XDP support", 3, "lb.hcl:17: graph edge, node rx: interface lo: native XDP: no XDP support", "run", write(t, "lb.hcl", strings.NewReplacer(`"eth0"`, `"lo"`, `"gre" {}`, `"gre" { source = "192.0.2.1" }`).Replace(small)), "-var", "mode=native")

	one("interface with a smaller MTU", 3, "lb.hcl:18: graph edge, node rx: interface eth0: its MTU is 1500, and network_mtu 1600 of graph \"edge\" is more",
		"run", write(t, "lb.hcl", strings.Replace(small, "path {", "network_mtu = 1600\n  path {", 1)))
	one("MTU no graph can have", 1, "Out of range", "run", write(t, "lb.hcl", strings.Replace(small, "path {", "network_mtu = 1000\n  path {", 1)))

	// Metrics on a port in use.
	var l net.Listener
	var err error
	ns.Do(func() { l, err = net.Listen("tcp", "127.0.0.1:9109") })
	if err != nil {
		t.Fatal(err)
	}
	one("port in use", 3, "address already in use", "run", write(t, "lb.hcl", small+"metrics {}\n"))
	_ = l.Close()

	// A second balancer on the same interface.
	c := exec.Command(build(t), "run", file)
	ns.Start(c)
	for end := time.Now().Add(10 * time.Second); !strings.Contains(ns.Exec("ip", "-d", "link", "show", "eth0"), "xdp"); {
		if time.Now().After(end) {
			t.Fatal("the daemon does not attach its program")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if code, text := launch(t, ns, "run", file); code != 3 || !strings.Contains(text, "lb.hcl:17: graph edge, node rx: interface eth0: ") || !strings.Contains(text, "end the other process") {
		t.Errorf("a second daemon ends with code %d and: %s", code, text)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	nothingAttached(t, ns, "eth0")

	// And one that is killed leaves nothing either: the link dies with the process.
	c = exec.Command(build(t), "run", file)
	ns.Start(c)
	for end := time.Now().Add(10 * time.Second); !strings.Contains(ns.Exec("ip", "-d", "link", "show", "eth0"), "xdp"); {
		if time.Now().After(end) {
			t.Fatal("the daemon does not attach its program")
		}
		time.Sleep(10 * time.Millisecond)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	for end := time.Now().Add(5 * time.Second); strings.Contains(ns.Exec("ip", "-d", "link", "show", "eth0"), "xdp"); {
		if time.Now().After(end) {
			t.Fatal("the program of a killed daemon stays")
		}
		time.Sleep(10 * time.Millisecond)
	}

	t.Run("no privilege", func(t *testing.T) {
		c := exec.Command(build(t), "run", file)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var problem strings.Builder
		c.Stderr = &problem
		for _, p := range []string{filepath.Dir(c.Path), filepath.Dir(filepath.Dir(file)), filepath.Dir(file), file} {
			if err := os.Chmod(p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		ns.Start(c)
		_ = c.Wait()
		refuses(t, 3, "lb.hcl:17: graph edge, node rx: interface eth0: loading the XDP program: not permitted: run as root", c.ProcessState.ExitCode(), problem.String())
	})
}

// TestNetCheckHost: check --host tells what is good about the machine, and what is not
// with its remedy; what run would refuse is exit code 3.
func TestNetCheckHost(t *testing.T) {
	build(t)
	ns, peer := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(netnstest.End{NS: ns, Name: "eth0", Addrs: []string{"192.0.2.1/24"}}, netnstest.End{NS: peer, Name: "peer"})
	ns.Sysctl("net.ipv4.conf.eth0.rp_filter", "1")
	ns.Exec("ethtool", "-K", "eth0", "rxvlan", "on")
	file := write(t, "lb.hcl", small)
	out, err := ns.Try(build(t), "check", "--host", file)
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for _, want := range []string{"ok: kernel ", "ok: privileges\n", "warning: interface eth0: VLAN offload", "ethtool -K eth0 rxvlan off\n", "warning: interface eth0: strict reverse-path", "rp_filter=2\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	ns.Exec("ip", "link", "set", "eth0", "mtu", "1400")
	out, err = ns.Try(build(t), "check", "--host", file)
	var e *exec.ExitError
	if !errors.As(err, &e) || e.ExitCode() != 3 || !strings.Contains(out, "error: interface eth0: its MTU is 1400") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := ns.Try(build(t), "check", file); err != nil || strings.Contains(out, "interface") {
		t.Errorf("without --host: %v: %s", err, out)
	}
}

// TestNetRun: run stays in the foreground and answers the three endpoints until a
// signal ends it; then it ends at once and well, and nothing is left.
func TestNetRun(t *testing.T) {
	build(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			ns, peer := netnstest.New(t), netnstest.New(t)
			netnstest.Veth(netnstest.End{NS: ns, Name: "eth0", Addrs: []string{"192.0.2.1/24"}}, netnstest.End{NS: peer, Name: "peer"})
			ns.Sysctl("net.ipv4.conf.eth0.rp_filter", "1") // run warns of it
			ns.Exec("ethtool", "-K", "eth0", "rxvlan", "on")
			c := exec.Command(build(t), "run", "--log", "json", write(t, "lb.hcl", small+"metrics {}\n"))
			var log lockedBuffer
			c.Stderr = &log
			ns.Start(c)
			done := make(chan error, 1)
			go func() { done <- c.Wait() }()
			get := func(path string) (code, body string) {
				out, _ := ns.Try("curl", "-s", "-m", "2", "-w", "\n%{http_code}", "http://127.0.0.1:9109"+path)
				i := strings.LastIndexByte(out, '\n')
				return out[i+1:], out[:max(i, 0)]
			}
			for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if code, _ := get("/readyz"); code == "200" {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("it does not become ready: %s", log.String())
				}
			}
			if code, body := get("/healthz"); code != "200" {
				t.Errorf("/healthz answers %s, %s", code, body)
			}
			code, body := get("/metrics")
			for _, want := range []string{"\nlbgraph_received_packets_total{graph=\"edge\"} ", "\nlbgraph_node_packets_total{graph=\"edge\",kind=\"parse\",node=\"parse\"} ", "\n# TYPE "} {
				if code != "200" || !strings.Contains("\n"+body, want) {
					t.Errorf("/metrics answers %s without %q:\n%s", code, strings.TrimSpace(want), body)
				}
			}
			select {
			case err := <-done:
				t.Fatalf("it does not stay in the foreground: %v: %s", err, log.String())
			default:
			}
			if err := c.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("%v: %s", err, log.String())
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("it does not stop: %s", log.String())
			}
			nothingAttached(t, ns, "eth0")
			for _, want := range []string{
				`"msg":"running"`, `"msg":"stopped"`,
				`"msg":"this machine: interface eth0: strict reverse-path filtering`, `"msg":"this machine: interface eth0: VLAN offload`, `"remedy":"If packets carry tags: ethtool -K eth0 rxvlan off"`,
			} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log lacks %s:\n%s", want, log.String())
				}
			}
		})
	}
}
