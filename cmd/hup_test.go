package cmd_test

import (
	"strings"
	"syscall"
	"testing"
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
