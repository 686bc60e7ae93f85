package cmd_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/io/netnstest"
)

// boot makes a machine out of this one's root, on which nothing that is written
// stays, and has systemd run it: with the unit, and none of this machine's.
const boot = `set -eu
dir=$1 root=$1/root
mount -t tmpfs tmpfs "$dir"
mkdir "$dir/upper" "$dir/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for d in dev run tmp; do mount -t tmpfs tmpfs "$root/$d"; done
mkdir "$root/dev/pts" "$root/dev/shm"
cd "$root/dev"
for n in "null c 1 3" "zero c 1 5" "full c 1 7" "random c 1 8" "urandom c 1 9" "tty c 5 0" "ptmx c 5 2"; do mknod -m 666 $n; done
rm -rf "$root"/lib/systemd/system/*.wants "$root"/etc/systemd/system/*.wants "$root/etc/lbgraph" "$root/var/lib/lbgraph"
: >"$root/etc/fstab"
mkdir "$root/etc/lbgraph"
cp "$2" "$root/usr/bin/lbgraph"
cp "$3" "$root/etc/systemd/system/lbgraph.service"
cp "$4" "$root/etc/lbgraph/lb.hcl"
exec chroot "$root" /usr/bin/env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
`

// machine is what boot made. Its network is the namespace that it was started in.
type machine struct {
	t   *testing.T
	pid string // of its systemd
}

// newMachine boots, with the file as /etc/lbgraph/lb.hcl.
func newMachine(t *testing.T, ns *netnstest.NS, program, file string) *machine {
	t.Helper()
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		t.Skip("missing: systemd")
	}
	unit, err := filepath.Abs("../deploy/lbgraph.service")
	if err != nil {
		t.Fatal(err)
	}
	group := newControlGroup(t)
	// It enters the group first, for that is what it is to see as the root of all, and
	// the machine ends when this process does, however that ends.
	c := exec.Command("sh", "-c", `echo $$ >"$0/cgroup.procs"; "$@" & read -r _ || kill -KILL $!`, group,
		"unshare", "--mount", "--pid", "--cgroup", "--ipc", "--uts", "--fork", "--kill-child", "--propagation", "private",
		"sh", "-c", boot, "boot", t.TempDir(), program, unit, file)
	log := newLines()
	c.Stderr = log
	life, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	ns.Start(c)
	t.Cleanup(func() { _, _ = life.Close(), c.Wait() })
	m := &machine{t: t}
	until := time.Now().Add(60 * time.Second)
	for {
		m.pid = child(child(strconv.Itoa(c.Process.Pid)))
		if name, _ := os.ReadFile("/proc/" + m.pid + "/comm"); string(name) == "systemd\n" {
			if out, _ := m.try("systemctl", "is-system-running"); out == "running\n" {
				m.must("systemctl", "start", "systemd-journald")
				return m
			}
		}
		if s := log.String(); strings.Contains(s, "not permitted") || strings.Contains(s, "denied") {
			t.Skipf("kernel: %s", s)
		}
		if time.Now().After(until) {
			out, _ := m.try("systemctl", "list-units", "--failed", "--no-pager")
			t.Fatalf("systemd does not come up: %s%s", log, out)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// child answers the first child of a process, "" if it has none.
func child(pid string) string {
	b, _ := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	first, _, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	return first
}

// newControlGroup makes a group of the unified hierarchy, and removes it after all that
// is begun later has ended.
func newControlGroup(t *testing.T) string {
	t.Helper()
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		m := strings.Fields(s.Text())
		if m[2] != "cgroup2" {
			continue
		}
		group, err := os.MkdirTemp(m[1], "lbgraph-test-")
		if err != nil {
			t.Skipf("kernel: %v", err)
		}
		t.Cleanup(func() {
			var err error
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				// The deepest first: find answers them in that order.
				if err = exec.Command("find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+").Run(); err == nil {
					return
				}
			}
			t.Errorf("%s stays: %v", group, err)
		})
		return group
	}
	t.Skip("kernel: the unified hierarchy of control groups is not mounted")
	return ""
}

// try runs a command on the machine.
func (m *machine) try(args ...string) (string, error) {
	b, err := exec.Command("nsenter", append([]string{"-t", m.pid, "-a", "--root", "--wd", "--"}, args...)...).CombinedOutput()
	return string(b), err
}

// must is try for what has to work.
func (m *machine) must(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	if err != nil {
		m.t.Fatalf("%v: %v: %s\n%s", args, err, out, m.log())
	}
	return out
}

func (m *machine) log() string {
	out, _ := m.try("journalctl", "--no-pager", "--boot")
	return out
}

// property is what systemd knows of the service.
func (m *machine) property(name string) string {
	m.t.Helper()
	return strings.TrimSpace(m.must("systemctl", "show", "lbgraph", "--value", "--property="+name))
}

func (m *machine) until(what string, ok func() bool) {
	m.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("%s: it does not come to that:\n%s", what, m.log())
		}
	}
}

// TestNetService: a real systemd runs the unit as it is. It is active once it answers,
// outlives its watchdog, reloads, is started anew when it stands still, with the last
// good configuration, and ends well; XDP and streams work under all that it forbids.
func TestNetService(t *testing.T) {
	program := build(t)
	ns, peer := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(netnstest.End{NS: ns, Name: "eth0", Addrs: []string{"192.0.2.1/24"}}, netnstest.End{NS: peer, Name: "peer"})
	var l net.Listener
	var err error
	ns.Do(func() { l, err = net.Listen("tcp", "127.0.0.1:0") })
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	// Few frames: the unit lifts the limit on locked memory, which not every machine's
	// root may.
	text := strings.Replace(small, "path {", "rings  = 256\n  frames = 64\n  path {", 1) + fmt.Sprintf(`
pool "streams" {
  backend "one" {
    address = "127.0.0.1"
    port    = %s
  }
}
stream "web" {
  path { main = [in, pick, out] }
  node "listen" "in" { address = "127.0.0.1:8080" }
  node "balance" "pick" { pool = pool.streams }
  node "proxy" "out" {}
}
admin {}
neigh {}
reload { watch = false }
`, port)
	m := newMachine(t, ns, program, write(t, "lb.hcl", text))
	// Where the machine's files are for this process.
	file := filepath.Join("/proc", m.pid, "root", "etc/lbgraph/lb.hcl")
	put := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	answers := func() {
		t.Helper()
		if out := m.must("lbgraph", "status"); !strings.Contains(out, "healthy: ok") {
			t.Errorf("status:\n%s", out)
		}
		var conn net.Conn
		ns.Do(func() { conn, err = net.Dial("tcp", "127.0.0.1:8080") })
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if b, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(b), "served") {
			t.Errorf("the stream answers %q, %v", b, err)
		}
		if out := ns.Exec("ip", "-d", "link", "show", "eth0"); !strings.Contains(out, "xdp") {
			t.Errorf("there is no program on eth0: %s", out)
		}
	}

	m.must("systemctl", "start", "lbgraph")
	if a, s := m.property("ActiveState"), m.property("StatusText"); a != "active" || s != "running /etc/lbgraph/lb.hcl" {
		t.Errorf("after its start it is %s, %q", a, s)
	}
	answers()
	main := m.property("MainPID")
	begun := time.Now()

	// Without a watch on the file, only the signal can tell of it.
	put(strings.Replace(text, "10.0.1.1", "10.0.1.7", 1))
	m.must("systemctl", "reload", "lbgraph")
	m.until("it reloads", func() bool { return strings.Contains(m.must("lbgraph", "status"), "10.0.1.7") })
	m.until("systemd knows", func() bool { return m.property("ActiveState") == "active" })

	usec := m.property("WatchdogUSec") // as in 5s
	watchdog, err := time.ParseDuration(usec)
	if err != nil || watchdog < time.Second {
		t.Fatalf("the watchdog is %q", usec)
	}
	time.Sleep(time.Until(begun.Add(watchdog * 5 / 2)))
	if is, n := m.property("MainPID"), m.property("NRestarts"); is != main || n != "0" {
		t.Errorf("the watchdog ended it: %s, was %s, %s restarts\n%s", is, main, n, m.log())
	}
	answers()

	// It stands still; and the file is wrong when it is started again.
	put("nonsense")
	m.must("kill", "-STOP", main)
	m.until("the watchdog ends it", func() bool { return m.property("NRestarts") == "1" })
	m.until("it is started anew", func() bool { return m.property("ActiveState") == "active" && m.property("MainPID") != main })
	if out := m.must("lbgraph", "status"); !strings.Contains(out, "as it was last good") || !strings.Contains(out, "10.0.1.7") {
		t.Errorf("after the restart:\n%s", out)
	}
	answers()

	m.must("systemctl", "stop", "lbgraph")
	// Any exit code but 0 would leave it failed.
	log := m.log()
	if a := m.property("ActiveState"); a != "inactive" || !regexp.MustCompile(`info\s+stopped\n(?s:.*)lbgraph\.service: Deactivated successfully`).MatchString(log) {
		t.Errorf("at the end it is %s\n%s", a, log)
	}
	if c := regexp.MustCompile(`lbgraph\.service(:\d+)?: (Unknown|Failed to) .*`).FindString(log); c != "" {
		t.Errorf("systemd complains: %s", c)
	}
	if out, err := m.try("ls", "-l", "/run/lbgraph"); err == nil {
		t.Errorf("it leaves behind: %s", out)
	}
	nothingAttached(t, ns, "eth0")
}
