package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/bench/cputime"
)

func TestReportOfWrk(t *testing.T) {
	const head = "Running 2s test @ http://127.0.0.1:1/\n  1 threads and 2 connections\n"
	const end = "  1234 requests in 2.01s, 1.00MB read\n"
	for _, c := range []struct {
		name, report string
		closes       bool
		want         int64 // 0: an error
	}{
		{"clean", head + end + "Requests/sec: 600\n", false, 1234},
		{"answers that are errors", head + end + "  Non-2xx or 3xx responses: 7\n", false, 0},
		{"connections that break", head + end + "  Socket errors: connect 0, read 3, write 0, timeout 0\n", false, 0},
		{"connections that end as they should", head + end + "  Socket errors: connect 0, read 1234, write 0, timeout 0\n", true, 1234},
		{"time-outs", head + end + "  Socket errors: connect 0, read 3, write 0, timeout 1\n", true, 0},
		{"none", head + "  0 requests in 2.01s, 0.00B read\n", false, 0},
		{"another program", "usage", false, 0},
	} {
		n, err := answered(c.report, c.closes)
		if n != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: %d, %v", c.name, n, err)
		}
	}
}

func TestFiguresOfRounds(t *testing.T) {
	var all []round
	for _, us := range []time.Duration{30, 10, 20} {
		r := round{}
		for p := range r {
			r[p].requests, r[p].time = 1000, time.Second
		}
		r[lbgraph].cpu, r[nginx].cpu, r[haproxy].cpu = us*time.Millisecond, 10*time.Millisecond, 5*time.Millisecond
		all = append(all, r)
	}
	if c, r := cost(all, lbgraph), ratio(all, lbgraph); c != 20 || r != 2 {
		t.Errorf("%v µs a request, %v times nginx's", c, r)
	}
	if r := ratio(all[:2], lbgraph); r != 2 {
		t.Errorf("the median of 3 and 1 is %v", r)
	}
	if r := rate(all, haproxy); r != 1000 {
		t.Errorf("%v requests a second", r)
	}
}

// The CPU time of a process is what it has used, and that of its children counts.
func TestCPUTime(t *testing.T) {
	c := exec.Command("sh", "-c", "while :; do :; done & wait")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, pid := range family(c.Process.Pid) {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		_ = c.Wait()
	}()
	l := &lab{}
	l.of[nginx] = c
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		used, err := l.cpu(nginx)
		if err != nil {
			t.Fatal(err)
		}
		own, err := cputime.Process(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if used-own > 50*time.Millisecond {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the child has used %v", used-own)
		}
	}
}

func TestMemory(t *testing.T) {
	k, err := proportional("00400000-7fff0 ---p 00000000 00:00 0 [rollup]\nRss:     20 kB\nPss:                 12 kB\nPss_Anon:  5 kB\n")
	if k != 12 || err != nil {
		t.Errorf("%d KiB, %v", k, err)
	}
	if _, err := proportional("Rss: 1 kB\n"); err == nil {
		t.Error("no error without Pss")
	}
}

// All three proxies serve each load; what the figures are is for a quiet machine.
func TestNetLab(t *testing.T) {
	if testing.Short() {
		t.Skip("short: runs nginx, haproxy and wrk")
	}
	for _, tool := range []string{"nginx", "haproxy", "wrk", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("missing: %s", tool)
		}
	}
	*binary = filepath.Join(t.TempDir(), "lbgraph")
	if out, err := exec.Command("go", "build", "-o", *binary, "../../cmd/lbgraph").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir, err := os.MkdirTemp("", "lbgraph-streams") // the backend's workers reach no TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	l := &lab{dir: dir}
	defer l.stop()
	if err := l.start(ctx); err != nil {
		t.Fatal(err)
	}
	*idle = 50
	for p := range int(proxies) {
		for _, i := range []int{2, 4, 6} {
			s := scenarios[i]
			n, err := wrk(ctx, s, l.base[p]+s.port, time.Second)
			if err != nil || n < 1 {
				t.Errorf("%s, %s: %d requests, %v", names[p], s.name, n, err)
			}
		}
	}
	if _, err := l.idle(ctx, lbgraph, plain); err != nil {
		t.Errorf("idle: %v", err)
	}
}

// isolate begins the program anew where TCP has the congestion control that is asked for.
func TestNetIsolated(t *testing.T) {
	if os.Getenv("LBGRAPH_ISOLATED") != "" {
		if *control != "" {
			t.Fatal(isolate(*control)) // it does not come back otherwise
		}
		b, err := os.ReadFile(congestion)
		if err != nil {
			t.Fatal(err)
		}
		links, err := net.Interfaces()
		if err != nil || len(links) != 1 || links[0].Flags&net.FlagUp == 0 {
			t.Fatalf("%v, %v", links, err)
		}
		t.Logf("control is %s", b)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("root: makes a network namespace")
	}
	before, err := os.ReadFile(congestion)
	if err != nil {
		t.Fatal(err)
	}
	was, err := os.ReadFile(allowed)
	if err != nil {
		t.Fatal(err)
	}
	// A machine that restricts one.
	few := slices.DeleteFunc(strings.Fields(string(was)), func(name string) bool { return name == "cubic" })
	if err := os.WriteFile(allowed, []byte(strings.Join(few, " ")), 0o644); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.WriteFile(allowed, was, 0o644); err != nil {
			t.Error(err)
		}
	}()
	for name, want := range map[string]string{"reno": "control is reno", "cubic": "control is cubic", "nix": "tcp_available_congestion_control"} {
		c := exec.Command(os.Args[0], "-test.run", "^TestNetIsolated$", "-test.v", "-congestion", name)
		c.Env = append(os.Environ(), "LBGRAPH_ISOLATED=1")
		out, err := c.CombinedOutput()
		if (err != nil) != (name == "nix") || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	if after, err := os.ReadFile(allowed); err != nil || !slices.Equal(strings.Fields(string(after)), few) {
		t.Errorf("the machine allows %s, was %s: %v", after, few, err)
	}
	if after, err := os.ReadFile(congestion); err != nil || string(after) != string(before) {
		t.Errorf("the machine's is %s, was %s: %v", after, before, err)
	}
}
