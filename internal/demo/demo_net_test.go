package demo

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// build answers the program, and a context that bounds the test.
func build(t *testing.T) (ctx context.Context, binary string) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("short: builds the binary and runs the balancer")
	case os.Geteuid() != 0:
		t.Skip("root: makes namespaces")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	binary = filepath.Join(t.TempDir(), "lbgraph")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/lbgraph")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return ctx, binary
}

// marked is a command of the program that bears a mark, as does all that it starts.
func marked(ctx context.Context, binary string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), mark(binary))
	return cmd
}

func mark(binary string) string { return "LBGRAPH_DEMO_TEST=" + binary }

// nothingLeft fails the test when something of a demo is still there: namespaces and
// with them interfaces, files, or a process of whatever program, of those that bear
// the mark.
func nothingLeft(t *testing.T, binary string) {
	t.Helper()
	for _, pattern := range []string{"/run/netns/" + prefix + "*", filepath.Join(os.TempDir(), prefix+"*")} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left behind: %s", left)
		}
	}
	if left := processes(t, mark(binary)); len(left) > 0 {
		t.Errorf("still running: %q", left)
	}
	// A namespace takes its interfaces with it, except those that were never in it.
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if regexp.MustCompile(`^(client|uplink|balancer-\d+|backend\d+)$`).MatchString(i.Name) {
			t.Errorf("left behind: interface %s", i.Name)
		}
	}
}

// TestNothingLeft: what nothingLeft looks with sees processes of other programs too,
// while they live.
func TestNothingLeft(t *testing.T) {
	binary := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	cmd.Env = append(os.Environ(), mark(binary))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := func(want string) {
		t.Helper()
		got := ""
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if got = strings.Join(processes(t, mark(binary)), ", "); got == want {
				return
			}
		}
		t.Errorf("%q is seen, want %q", got, want)
	}
	seen("sleep 60")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	seen("")
}

// TestNetDemo: the demo of lb.hcl does and says all that it promises, in less than
// a minute, and cleans up.
func TestNetDemo(t *testing.T) {
	ctx, binary := build(t)
	cmd := marked(ctx, binary, "demo")
	cmd.Dir = "../.."
	begun := time.Now()
	b, err := cmd.CombinedOutput()
	out := string(b)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	each := `web-1 [1-9]\d*, web-2 [1-9]\d*, web-3 [1-9]\d*\n`
	every := each + `    ok    all 3 backends answered\n`
	stayed := `requests answered, 0 connections broken.*\n    ok    each stayed on its backend\n`
	conserved := `    ok    balancer-1: received \+ made \d+ = sent \+ dropped \+ to the kernel \+ held \d+\n    ok    balancer-2: received \+ made `
	at := 0
	for _, want := range []string{ // in this order
		`(?m)^    client 198\.51\.100\.7 ── router ── balancer-1 192\.0\.2\.2, interface uplink\n +├── balancer-2 192\.0\.2\.3$`,
		`(?m)^The backends: .* .lbgraph decap.$`,
		`(?m)^The balancers, both: lbgraph run lb\.hcl --var uplink=uplink$`,
		`(?m)^    rx ──► parse ──► vip-classify ──► .* ──► tx$`,
		`The router: BIRD .*\n    ok    both announce 203\.0\.113\.80 and 2001:db8::80: the router has 2 ways to each\n`,
		`HTTP: 40 times curl http://203\.0\.113\.80:80/\n    ok    40 of 40 answered: ` + every,
		`HTTP: 40 times curl http://\[2001:db8::80\]:80/\n    ok    40 of 40 answered: ` + every,
		`UDP: 40 datagrams to 203\.0\.113\.80:7\n    ok    40 of 40 answered: ` + every,
		`    ok    a datagram of 4000 bytes, in fragments, came back whole from web-`,
		`    ok    a datagram of 1500 bytes .* was refused by ICMP: the path takes 1476\n`,
		`20 MB each way; the client's link takes packets of 1500 bytes\n    ok    upload arrived whole .*\n    ok    download arrived whole.*\n    ok    it went past the balancers, which saw \d+ KB of acknowledgements\n`,
		`(?m)^    node +packets +left by +dropped$`,
		`(?m)^    ct +[1-9]\d* +hit [1-9]\d*, miss [1-9]`,
		`(?m)^    gre +[1-9]\d* +next [1-9]`,
		conserved,
		`\nA balancer is killed \(kill -9 balancer-1\), .*\n    36 flows: \d+ go by balancer-1, \d+ by balancer-2; and an upload and a download of 20 MB by balancer-1\n`,
		`    ok    it carried them until then, \d+\.\d MB; the router took its ways out within \d+ ms\n`,
		`    ok    24 connections and 12 UDP flows went on by balancer-2: ` + `\d+ ` + stayed,
		`    ok    the upload on a connection by balancer-1 arrived whole by balancer-2\n    ok    the download on a connection by balancer-1 arrived whole by balancer-2\n`,
		`    ok    40 of 40 new connections to 203\.0\.113\.80:80 answered: ` + each,
		`\nIt comes back, .*\n    ok    the router has 2 ways to each VIP again, .*\n    ok    24 connections and 12 UDP flows went on by both: \d+ ` + stayed,
		`    ok    balancer-1 carries flows again: [1-9]`,
		`\nThe file is changed, at both balancers \(it is watched\): port 8000 of 203\.0\.113\.80 comes in\n    ok    both had it in force .*\n    ok    40 of 40 new connections to 203\.0\.113\.80:8000 answered: ` + each,
		`Then lb\.hcl is cut in the middle of a line\n    ok    both refused it\n    ok    40 of 40 new connections to 203\.0\.113\.80:8000 answered: ` + each,
		`    ok    24 connections and 12 UDP flows went on meanwhile: \d+ ` + stayed,
		`\nA backend dies \(kill -9 of web-\d's servers, which \d+ connections and \d+ UDP flows are on\)\n    ok    after \d+\.\d s its \d+ UDP flows are on others, and new connections too\n`,
		`    ok    \d+ connections and \d+ UDP flows went on on the others: \d+ ` + stayed,
		`    ok    40 of 40 new connections to 203\.0\.113\.80:80 answered: web-\d [1-9]\d*, web-\d [1-9]\d*\n`,
		`\nIt comes back\n    ok    after .* it answers new connections\n    ok    \d+ connections and 12 UDP flows went on: \d+ ` + stayed,
		conserved,
		`All \d+ facts hold, after \d+\.\d s\.\n`,
		`Cleaning up: `,
	} {
		place := regexp.MustCompile(want).FindStringIndex(out[at:])
		if place == nil {
			t.Fatalf("behind byte %d there is no %s:\n%s", at, want, out)
		}
		at += place[1]
	}
	nothingLeft(t, binary)
}

// TestNetDemoTells: what does not hold is said, and fails the demo.
func TestNetDemoTells(t *testing.T) {
	ctx, binary := build(t)
	text, err := os.ReadFile("../../lb.hcl")
	if err != nil {
		t.Fatal(err)
	}
	idle := regexp.MustCompile(`(backend "web-3" \{ )(address = "[^"]*") \}`)
	if !idle.Match(text) {
		t.Fatal("lb.hcl has no backend web-3 on one line")
	}
	services, err := os.ReadFile("../../services.json")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "idle.hcl")
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), "services.json"), services, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, idle.ReplaceAll(text, []byte("backend \"web-3\" {\n    $2\n    weight = 0\n  }")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := marked(ctx, binary, "demo", file)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err = cmd.Run(); cmd.ProcessState.ExitCode() != 3 || strings.Count(out.String(), "    WRONG all 3 backends answered\n") != 3 || !regexp.MustCompile(`3 of \d+ facts do not hold`).MatchString(errs.String()) {
		t.Errorf("%v: %s\n%s", err, &errs, &out)
	}
	nothingLeft(t, binary)
}

// What the demo does when it is interrupted: nothing is left of it.
func TestNetDemoInterrupted(t *testing.T) {
	ctx, binary := build(t)
	for _, at := range []string{"The network", "The backends", "HTTP:", "MB each way", "A balancer is killed", "A backend dies"} {
		t.Run(at, func(t *testing.T) {
			cmd := marked(ctx, binary, "demo", "lb.hcl")
			cmd.Dir = "../.."
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var errs strings.Builder
			cmd.Stderr = &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			lines, told := bufio.NewScanner(io.TeeReader(out, &all)), false
			for lines.Scan() {
				if !told && strings.Contains(lines.Text(), at) {
					told = true
					if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
						t.Fatal(err)
					}
				}
			}
			err = cmd.Wait()
			if !told || err == nil || cmd.ProcessState.ExitCode() != 3 || !strings.Contains(errs.String(), "interrupted") {
				t.Errorf("told %v, %v, exit code %d: %s\n%s", told, err, cmd.ProcessState.ExitCode(), &errs, &all)
			}
			nothingLeft(t, binary)
		})
	}
}

// processes answers the command lines of all processes with a variable in what they
// were started with.
func processes(t *testing.T, variable string) (lines []string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		env, err := os.ReadFile(filepath.Join(d, "environ"))
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), variable) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err == nil {
			lines = append(lines, strings.ReplaceAll(strings.TrimSuffix(string(b), "\x00"), "\x00", " "))
		}
	}
	return lines
}
