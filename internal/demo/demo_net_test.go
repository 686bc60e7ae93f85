package demo

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What the demo does when it is interrupted: nothing is left of it.
func TestNetDemoInterrupted(t *testing.T) {
	switch {
	case testing.Short():
		t.Skip("short: builds the binary and runs the balancer")
	case os.Geteuid() != 0:
		t.Skip("root: makes namespaces")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	binary := filepath.Join(t.TempDir(), "lbgraph")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/lbgraph")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, at := range []string{"The network", "The backends", "HTTP:", "MB each way"} {
		t.Run(at, func(t *testing.T) {
			cmd := exec.CommandContext(ctx, binary, "demo", "lb.hcl")
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
			for _, pattern := range []string{"/run/netns/" + prefix + "*", filepath.Join(os.TempDir(), prefix+"*")} {
				if left, _ := filepath.Glob(pattern); len(left) > 0 {
					t.Errorf("left behind: %s", left)
				}
			}
			if left := processes(t, binary); len(left) > 0 {
				t.Errorf("still running: %s", left)
			}
		})
	}
}

// processes answers the command lines of all processes that run binary.
func processes(t *testing.T, binary string) (lines []string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		b, err := os.ReadFile(d)
		if line := strings.ReplaceAll(string(b), "\x00", " "); err == nil && strings.HasPrefix(line, binary+" ") {
			lines = append(lines, line)
		}
	}
	return lines
}
