package cputime

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a thread uses is its own and its process's.
func TestTimesGrow(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, tid := os.Getpid(), unix.Gettid()
	read := func() (p, th time.Duration) {
		t.Helper()
		p, err := Process(pid)
		if err != nil {
			t.Fatal(err)
		}
		th, err = Thread(tid)
		if err != nil {
			t.Fatal(err)
		}
		return p, th
	}
	p0, t0 := read()
	for end := time.Now().Add(time.Minute); ; {
		p1, t1 := read()
		if t1-t0 > 20*time.Millisecond {
			if p1-p0 < 20*time.Millisecond {
				t.Errorf("the thread has used %v, the process %v", t1-t0, p1-p0)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the thread has used %v", t1-t0)
		}
	}
}

func TestNobody(t *testing.T) {
	const nobody = 1<<22 - 1 // the kernel gives no larger number, and this one last
	if _, err := Process(nobody); err == nil {
		t.Error("a process that is not there has used time")
	}
	if _, err := Thread(nobody); err == nil {
		t.Error("a thread that is not there has used time")
	}
}
