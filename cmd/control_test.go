package cmd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/cmd"
	"github.com/lbgraph/lbgraph/control/admin"
)

// made is a file that runs without a network card, and without privileges.
const made = `pool "web" {
  backend "web-1" { address = "10.0.1.1" }
  backend "web-2" { address = "10.0.1.2" }
}
vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [443]
  pool     = pool.web
}
admin { socket = "SOCKET" }
log { format = "json" }
graph "edge" {
  path {
    main     = [clients, parse, vip-classify, ct.hit, mtu, gre, out]
    new_flow = [ct.miss, maglev-select, mtu]
    too_big  = [mtu.reply, out]
  }
  node "generate" "clients" {
    flows = 50
    rate  = 2000
  }
  node "conntrack" "ct" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" { source = "192.0.2.1" }
  node "pcap-tx" "out" { file = "/dev/null" }
}
`

// station is a daemon that a test runs in its own process, and the commands that ask
// it.
type station struct {
	t      *testing.T
	path   string
	socket string
	log    *lines
	end    context.CancelFunc
	code   chan int
}

// lines is an io.Writer that can be read while it is written.
type lines struct {
	c chan struct{}
	b strings.Builder
}

func newLines() *lines { return &lines{c: make(chan struct{}, 1)} }

func (l *lines) Write(p []byte) (int, error) {
	l.c <- struct{}{}
	defer func() { <-l.c }()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.c <- struct{}{}
	defer func() { <-l.c }()
	return l.b.String()
}

func newStation(t *testing.T, flags ...string) *station {
	t.Helper()
	dir := t.TempDir()
	s := &station{t: t, path: filepath.Join(dir, "lb.hcl"), socket: filepath.Join(dir, "admin.sock"), log: newLines(), code: make(chan int, 1)}
	s.write(made)
	ctx, cancel := context.WithCancel(context.Background())
	s.end = cancel
	go func() {
		s.code <- cmd.Execute(ctx, append([]string{"run", s.path}, flags...), strings.NewReader(""), s.log, s.log)
	}()
	t.Cleanup(func() { s.stop() })
	s.until("it answers", func() bool { code, _, _ := s.run("status"); return code == 0 })
	return s
}

func (s *station) write(text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path, []byte(strings.ReplaceAll(text, "SOCKET", s.socket)), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// stop ends the daemon as SIGTERM does and answers its exit code.
func (s *station) stop() int {
	s.end()
	select {
	case c := <-s.code:
		s.code <- c
		return c
	case <-time.After(10 * time.Second):
		s.t.Fatal("the daemon does not end")
		return -1
	}
}

func (s *station) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%s: it does not come to that: %s", what, s.log)
		}
	}
}

func (s *station) run(args ...string) (code int, out, problem string) {
	return run(append(args, "--socket", s.socket)...)
}

// says runs a command, demands its exit code, and that what it writes has the words.
func (s *station) says(code int, args string, words ...string) string {
	s.t.Helper()
	got, out, problem := s.run(strings.Fields(args)...)
	if got != code {
		s.t.Errorf("%s: exit code %d, want %d\n%s%s", args, got, code, out, problem)
	}
	for _, w := range words {
		if !regexp.MustCompile(w).MatchString(out + problem) {
			s.t.Errorf("%s lacks %q:\n%s%s", args, w, out, problem)
		}
	}
	return out
}

// TestCommandsOfADaemon: each command against a daemon that runs, with its exit codes.
func TestCommandsOfADaemon(t *testing.T) {
	s := newStation(t)
	s.says(0, "status", `healthy: ok`, `ready:   ok`, `file:    .*lb.hcl, in force since`, `pool web, table [0-9a-f]{16}`, `web-1  10\.0\.1\.1  up  HEALTHY  weight 100`, `graph edge, 1 core`, `received \d+`)
	var st admin.Status
	if err := json.Unmarshal([]byte(s.says(0, "status -o json")), &st); err != nil || st.Pools[0].Name != "web" || st.Configuration.File != s.path {
		t.Errorf("%v: %+v", err, st.Configuration)
	}
	s.says(2, "status more", "takes no argument")

	// top: one interval where output is no terminal.
	s.says(0, "top --interval 50ms", `graph edge, 1 core: received \d+/s`, `(?m)^ *parse +parse +\d+ +\d+ .* %`)
	var top admin.Top
	if err := json.Unmarshal([]byte(s.says(0, "top --interval 50ms -o json")), &top); err != nil || len(top.Graphs) != 1 || len(top.Graphs[0].Nodes) != 8 {
		t.Errorf("%v: %+v", err, top)
	}
	s.says(2, "top --interval 1h", "must be a number from 0.01 to 60")

	// backend
	s.says(0, "backend drain web/web-1", `web/web-1: draining, weight 100`)
	s.says(0, "status", `web-1  10\.0\.1\.1  draining`)
	s.says(0, "backend enable web/web-1 -o json", `"status": "up"`)
	s.says(0, "backend weight web/web-2 50 --until-reload", `web/web-2: up, weight 50`)
	s.says(0, "backend weight web/web-2 0", `web/web-2: draining, weight 0`)
	s.says(0, "backend restore web/web-2", `web/web-2: up, weight 100`)
	s.says(0, "backend flush web/web-1", `web/web-1`)
	s.says(2, "backend drain web/web-9", `pool "web" has no backend "web-9". It has web-1, web-2`)
	s.says(2, "backend drain web", `Write POOL/NAME`)
	s.says(2, "backend drain", `needs POOL/NAME`)
	s.says(2, "backend weight web/web-1 1001", `from 0 to 1000`)
	s.says(2, "backend weight web/web-1", `needs WEIGHT`)
	if code, _, problem := run("backend", "explode", "web/web-1"); code != 2 || !strings.Contains(problem, `there is no command "explode"`) {
		t.Errorf("exit code %d: %s", code, problem)
	}

	// drain
	s.says(0, "drain", "the node is drained, by command")
	s.says(0, "status", "drained: by command", "ready:   drained by command")
	s.says(0, "undrain", "the node is not drained")
	s.says(0, "drain -o json", `"command"`)
	s.says(0, "undrain -o json", `"drained": \[\]`)

	// reload
	s.says(0, "reload", "unchanged")
	s.write(strings.Replace(made, "rate  = 2000", "rate  = 3000", 1))
	s.says(3, "reload", `restart +port generate`, `not reloaded: .*drain the node, restart the daemon, undrain`)
	s.write(strings.Replace(made, `"mtu-check" "mtu" {}`, `"mtu-check" "mtu" { icmp_rate = 50 }`, 1))
	s.says(0, "reload --plan", `live     node mtu: icmp_rate: 100 -> 50`)
	s.says(0, "status", `unchanged at|refused at`)
	s.says(0, "reload", `live     node mtu: icmp_rate: 100 -> 50`, `reloaded: 1 change`)
	s.says(0, "reload -o json", `"outcome": "unchanged"`)
	s.write(strings.Replace(made, "pool.web\n", "pool.wbe\n", 1))
	s.says(1, "reload", `lb.hcl:9:14`, `pool     = pool.wbe\n.*\^\^\^`, `not reloaded: the file is wrong`)
	s.says(1, "reload --plan", `lb.hcl:9:14`)
	s.says(1, "reload -o json", `"outcome": "wrong"`, `"line": 9`)
	s.says(0, "status", `reloads: 1 taken, 1 wrong|reloads: 1 taken, 2 wrong`, `last:    wrong at`, `lb.hcl:9:14: Unknown name`)
	s.write(made)
	s.says(0, "reload", "reloaded: 1 change")

	// trace
	s.says(0, "trace tcp 198.51.100.7:4711 203.0.113.80:443", `tcp 198\.51\.100\.7:4711 > 203\.0\.113\.80:443  sent  vip web  backend web/web-[12]`, `(?m)^  maglev-select  .*web/web-`)
	s.says(0, "trace tcp 198.51.100.7:4711 203.0.113.80:80", `dropped at vip-classify: wrong_port  vip|dropped at vip-classify: wrong_port`)
	s.says(2, "trace tcp 198.51.100.7 203.0.113.80:80", `no address with a port`)
	s.says(2, "trace sctp 198.51.100.7:1 203.0.113.80:80", `It can be tcp or udp`)
	s.says(2, "trace tcp", `needs PROTOCOL SOURCE DESTINATION, a URL, --live or --streams`)
	s.says(2, "trace --live tcp 1.2.3.4:5 1.2.3.4:5", `only one of them`)
	s.says(2, "trace --live --src x", `--src is "x"`)
	s.says(2, "trace --live --graph egde", `there is no packet graph "egde". There are edge`)
	s.says(2, "trace --live --count 100000", `count can be 1 to 10000`)
	out := s.says(0, "trace --live --proto tcp --dport 443 --count 4 -o json")
	n := 0
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); n++ {
		var x admin.Traced
		if err := d.Decode(&x); err != nil || x.Verdict != "sent" || len(x.After) != 1 || len(x.Before) == 0 {
			t.Errorf("%v: %+v", err, x)
		}
	}
	if n != 4 {
		t.Errorf("%d packets, want 4", n)
	}
	s.says(0, "trace --live --dport 1 --for 100ms")

	// And none of them without a daemon.
	s.stop()
	for _, c := range []string{"status", "top", "reload", "drain", "undrain", "backend drain web/web-1", "trace --live", "trace tcp 1.2.3.4:5 1.2.3.4:5"} {
		s.says(3, c, "lbgraph: no daemon answers: .*no such file or directory. Does one run, with an admin block")
	}
}

// TestStatusOfControls: what checks found out, with the port where the file gives one,
// and what routers are told, whatever the block is called.
func TestStatusOfControls(t *testing.T) {
	s := newStation(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	open := l.Addr().String()
	_, port, _ := net.SplitHostPort(open)
	shut := net.JoinHostPort("127.0.0.2", port)
	text := strings.NewReplacer(
		`pool "web" {`, "pool \"web\" {\n  health = health.up",
		`{ address = "10.0.1.1" }`, "{\n    address = \"127.0.0.1\"\n    port    = "+port+"\n  }",
		`{ address = "10.0.1.2" }`, "{\n    address = \"127.0.0.2\"\n    port    = "+port+"\n  }",
	).Replace(made) + `health "up" {
  interval = "50ms"
  timeout  = "50ms"
}
bgp {
  asn            = 65001
  router_id      = "192.0.2.1"
  announce_after = "0s"
  peer "tor" {
    address = "127.0.0.9"
    asn     = 65002
    port    = 1
  }
}
`
	s.write(text)
	s.says(0, "reload", "reloaded")
	s.write(strings.NewReplacer("bgp {", `bgp "edge" {`, "admin {", `admin "local" {`).Replace(text))
	s.says(0, "reload", "unchanged")
	s.until("checks have decided", func() bool {
		_, out, _ := s.run("status")
		return regexp.MustCompile(`(?m)^  `+regexp.QuoteMeta(open)+` +HEALTHY `).MatchString(out) && regexp.MustCompile(`(?m)^  `+regexp.QuoteMeta(shut)+` +UNHEALTHY .*refused`).MatchString(out)
	})
	// The router is not there: only a session makes an announcement.
	s.until("the VIP would be announced", func() bool {
		_, out, _ := s.run("status")
		return regexp.MustCompile(`(?m)^bgp, AS 65001\n  tor +127\.0\.0\.9 +\w+ +0 routes`).MatchString(out) && regexp.MustCompile(`(?m)^  203\.0\.113\.80/32 +not announced: no session is up$`).MatchString(out)
	})
}

// TestSocketIsRoots: whoever may not open the socket is told who may.
func TestSocketIsRoots(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root: becomes another user")
	}
	s := newStation(t)
	program, err := exec.LookPath("lbgraph")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	// All of the path to the socket and to the program is open to everybody.
	dir := filepath.Dir(s.socket)
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	copied := filepath.Join(dir, "lbgraph")
	if err := os.WriteFile(copied, b, 0o755); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(copied, "status", "--socket", s.socket)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.CombinedOutput()
	var x *exec.ExitError
	if !errors.As(err, &x) || x.ExitCode() != 3 || !regexp.MustCompile(`^lbgraph: the daemon may not be asked: .*permission denied. Root may, and the group`).Match(out) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestTraceWrites: captures that other programs read, with ways as comments.
func TestTraceWrites(t *testing.T) {
	s := newStation(t)
	file := filepath.Join(t.TempDir(), "way.pcapng")
	s.says(0, "trace --live --count 3 --write "+file, `sent  vip web`)
	shark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("missing: tshark")
	}
	b, err := exec.Command(shark, "-r", file, "-T", "fields", "-E", "separator=|", "-e", "frame.interface_name", "-e", "frame.comment", "-e", "ip.dst", "-e", "_ws.malformed").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(all) != 6 {
		t.Fatalf("%d packets:\n%s", len(all), b)
	}
	for i, l := range all {
		want := `^received\|clients parse vip-classify ct( maglev-select)? mtu gre out: sent web web/web-[12]\|203\.0\.113\.80\|$`
		if i%2 == 1 {
			want = `^sent\|clients .*\|10\.0\.1\.[12],203\.0\.113\.80\|$`
		}
		if !regexp.MustCompile(want).MatchString(l) {
			t.Errorf("line %d is %s, want %s", i, l, want)
		}
	}
	s.says(3, "trace --live --write /nowhere/x.pcapng", "no such file")
}

// TestRunLogs: a JSON line for each change of state, and exit code 0 at the end.
func TestRunLogs(t *testing.T) {
	s := newStation(t)
	s.says(0, "drain")
	s.says(0, "undrain")
	s.says(0, "backend weight web/web-1 7")
	s.write(strings.Replace(made, "web-2", "web-3", 1))
	s.says(0, "reload")
	s.write("nonsense")
	s.says(1, "reload")
	if c := s.stop(); c != 0 {
		t.Errorf("exit code %d", c)
	}
	var said []string
	for _, l := range strings.Split(strings.TrimSpace(s.log.String()), "\n") {
		var x struct{ Level, Msg, What, Outcome, At string }
		if err := json.Unmarshal([]byte(l), &x); err != nil {
			t.Errorf("no JSON: %s", l)
			continue
		}
		said = append(said, strings.TrimSpace(fmt.Sprintf("%s: %s %s%s", x.Level, x.Msg, x.What, x.Outcome)))
	}
	want := []string{
		"info: port is open", "info: port is open", "info: commands are answered", "info: running", "info: the node is drained", "info: the node is drained no more",
		"info: a backend is changed by command", "info: change pool web", "info: reloaded", "error: Argument or block definition required", "error: not reloaded; the configuration of before stays in force wrong",
		"info: stopping: traffic is sent elsewhere first", "info: stopped",
	}
	at := 0
	for _, l := range said {
		if at < len(want) && strings.HasPrefix(l, want[at]) {
			at++
		}
	}
	if at < len(want) {
		t.Errorf("the log lacks %q, or has it out of order:\n%s", want[at], strings.Join(said, "\n"))
	}
}

// TestRunFlagsOfTheLog: form and level of the command line hold, whatever the file says and
// whatever it says after a reload. And the environment says where the daemon is asked.
func TestRunFlagsOfTheLog(t *testing.T) {
	s := newStation(t, "--log", "console", "--log-level", "warn")
	t.Setenv("LBGRAPH_SOCKET", s.socket)
	if code, out, problem := run("drain"); code != 0 {
		t.Errorf("exit code %d: %s%s", code, out, problem)
	}
	s.write(strings.Replace(made, `log { format = "json" }`, "log {\n  format = \"json\"\n  level  = \"debug\"\n}", 1))
	s.says(0, "reload", "reloaded: 1 change")
	s.says(0, "undrain")
	s.write("nonsense")
	s.says(1, "reload")
	got := s.log.String()
	if !strings.Contains(got, "\terror\t") || strings.Contains(got, "info") || strings.Contains(got, "{\"level\"") {
		t.Errorf("the log is %s", got)
	}
}

// TestLastGood: a daemon starts with what was kept when the file is wrong, if it is
// told to; and says no when there is nothing.
func TestLastGood(t *testing.T) {
	kept := filepath.Join(t.TempDir(), "kept.json")
	text := strings.Replace(made, "admin {", fmt.Sprintf("reload {\n  cache  = %q\n  settle = \"10ms\"\n}\nadmin {", kept), 1)
	s := newStation(t)
	s.write(text)
	s.says(0, "reload", "reloaded")
	s.stop()
	s.write("nonsense")
	for _, args := range [][]string{{"run", s.path}, {"run", s.path, "--last-good=/nowhere/kept.json"}} {
		if code, _, problem := run(args...); code != 1 || !strings.Contains(problem, "lb.hcl:1:1") {
			t.Errorf("%v: exit code %d: %s", args, code, problem)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.end = cancel
	<-s.code
	go func() {
		s.code <- cmd.Execute(ctx, []string{"run", s.path, "--last-good=" + kept}, strings.NewReader(""), s.log, s.log)
	}()
	s.until("it runs", func() bool { code, _, _ := s.run("status"); return code == 0 })
	s.says(0, "status", "as it was last good", `last:    wrong at .*, by start`, `lb.hcl:1:1`)
	s.write(text)
	s.until("it takes the file", func() bool { _, out, _ := s.run("status"); return !strings.Contains(out, "last good") })
	if c := s.stop(); c != 0 {
		t.Errorf("exit code %d: %s", c, s.log)
	}
}
