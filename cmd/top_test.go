package cmd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/admin"
)

// screen is a terminal, and what a program drew on it.
type screen struct {
	t      *testing.T
	master *os.File
	drawn  *lines
	closed chan struct{} // when nobody has the terminal open any more
	c      *exec.Cmd
}

// onTerminal runs lbgraph on a terminal of its own.
func onTerminal(t *testing.T, args ...string) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("kernel: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, master: master, drawn: newLines(), closed: make(chan struct{}), c: exec.Command("lbgraph", args...)}
	s.c.Stdin, s.c.Stdout, s.c.Stderr = slave, slave, slave
	s.c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = s.c.Start()
	_ = slave.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.c.ProcessState == nil {
			_ = s.c.Process.Kill()
			_ = s.c.Wait()
		}
	})
	go func() {
		defer close(s.closed)
		for b := make([]byte, 4096); ; {
			n, err := master.Read(b)
			_, _ = s.drawn.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	return s
}

// code waits until the program ends and all that it drew is known.
func (s *screen) code() int {
	s.t.Helper()
	select {
	case <-s.closed:
	case <-time.After(20 * time.Second):
		s.t.Fatalf("it does not end; it drew %q", s.drawn)
	}
	err := s.c.Wait()
	var e *exec.ExitError
	if err != nil && !errors.As(err, &e) {
		s.t.Fatal(err)
	}
	return s.c.ProcessState.ExitCode()
}

// TestTopOnATerminal: it draws each interval over the one before, until Ctrl-C, which
// ends it well. One interval, and JSON, leave the screen alone.
func TestTopOnATerminal(t *testing.T) {
	const clear = "\x1b[H\x1b[2J"
	s := newStation(t)
	begun := regexp.MustCompile(`^graph edge, 1 core: received (\d+)/s`)
	top := onTerminal(t, "top", "--interval", "50ms", "--socket", s.socket)
	s.until("three intervals are drawn", func() bool { return strings.Count(top.drawn.String(), clear) >= 4 })
	if _, err := top.master.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if c := top.code(); c != 0 {
		t.Errorf("after Ctrl-C: exit code %d, %q", c, top.drawn)
	}
	all := strings.Split(top.drawn.String(), clear)
	if all[0] != "" {
		t.Errorf("before the first screen is %q", all[0])
	}
	received := 0
	for i, x := range all[1:] {
		m := begun.FindStringSubmatch(x)
		if m == nil || strings.Count(x, "graph edge") != 1 || !strings.Contains(x, "parse") {
			t.Errorf("screen %d is %q", i, x)
		} else if m[1] != "0" {
			received++
		}
	}
	if received == 0 {
		t.Error("no screen tells of a packet")
	}

	once := onTerminal(t, "top", "--interval", "50ms", "--once", "--socket", s.socket)
	if c, x := once.code(), once.drawn.String(); c != 0 || !begun.MatchString(x) || strings.Contains(x, "\x1b") || strings.Count(x, "graph edge") != 1 {
		t.Errorf("--once: exit code %d, %q", c, x)
	}
	js := onTerminal(t, "top", "--interval", "50ms", "-o", "json", "--socket", s.socket)
	var x admin.Top
	if c, err := js.code(), json.Unmarshal([]byte(js.drawn.String()), &x); c != 0 || err != nil || len(x.Graphs) != 1 {
		t.Errorf("-o json: exit code %d, %v, %q", c, err, js.drawn)
	}

	// The daemon goes away.
	lost := onTerminal(t, "top", "--interval", "50ms", "--socket", s.socket)
	s.until("it draws", func() bool { return strings.Contains(lost.drawn.String(), clear) })
	s.stop()
	if c := lost.code(); c != 3 || !strings.Contains(lost.drawn.String(), "lbgraph: ") {
		t.Errorf("without a daemon: exit code %d, %q", c, lost.drawn)
	}
}
