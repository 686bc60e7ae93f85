package cmd_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestHangup: SIGHUP has the file read again, one that is right and one that is wrong.
func TestHangup(t *testing.T) {
	s := newStation(t)
	hangup := func(text string) {
		t.Helper()
		s.write(text)
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	hangup("nonsense")
	s.until("a wrong file is refused", func() bool {
		_, out, _ := s.run("status")
		return strings.Contains(out, "last:    wrong at") && strings.Contains(out, "by SIGHUP")
	})
	hangup(strings.Replace(made, "10.0.1.2", "10.0.1.9", 1))
	s.until("the file is in force", func() bool { _, out, _ := s.run("status"); return strings.Contains(out, "10.0.1.9") })
	if c := s.stop(); c != 0 {
		t.Errorf("exit code %d", c)
	}
}

// TestSecondSignal: the first SIGTERM leaves a connection its time, the second ends the
// process at once; a daemon that starts after it replaces the socket that was left.
func TestSecondSignal(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir, in := t.TempDir(), freePorts(t, 1)[0]
	file, socket := filepath.Join(dir, "lb.hcl"), filepath.Join(dir, "sock")
	text := fmt.Sprintf(`pool "echo" {
  backend "echo-1" {
    address = "127.0.0.1"
    port    = %d
  }
}
admin { socket = %q }
stream "echo" {
  path { main = [in, choose, pass] }
  node "listen" "in" {
    address  = %q
    protocol = "tcp"
  }
  node "balance" "choose" { pool = pool.echo }
  node "proxy" "pass" {}
}
`, l.Addr().(*net.TCPAddr).Port, socket, in)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log := newLines()
	begin := func() (c *exec.Cmd, ended chan error) {
		t.Helper()
		c, ended = exec.Command("lbgraph", "run", file), make(chan error, 1)
		c.Stdout, c.Stderr = log, log
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill() })
		go func() { ended <- c.Wait() }()
		return c, ended
	}
	says := func(word string, times int) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); strings.Count(log.String(), word) < times; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%q is not said: %s", word, log)
			}
		}
	}
	c, ended := begin()
	says("running", 1)
	client, err := net.Dial("tcp", in)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	backend, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	_ = c.Process.Signal(syscall.SIGTERM)
	says("stopping", 1)
	if _, err := client.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	_ = backend.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := backend.Read(make([]byte, 1)); err != nil {
		t.Errorf("after the first signal: %v", err)
	}
	select {
	case err := <-ended:
		t.Fatalf("it did not wait for the connection: %v", err)
	default:
	}
	_ = c.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		var x *exec.ExitError
		if !errors.As(err, &x) || x.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(15 * time.Second): // a connection is left twice as long
		t.Fatal("the second signal did not end it")
	}
	c, ended = begin()
	says("running", 2)
	_ = c.Process.Signal(syscall.SIGTERM)
	if err := <-ended; err != nil {
		t.Errorf("%v: %s", err, log)
	}
}
