// Package cputime tells the processor time that processes and threads have used, to the
// nanosecond, by the clocks that clock_getcpuclockid(3) and pthread_getcpuclockid(3) name.
package cputime

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Process answers the processor time of all threads of a process, those that have ended
// too. It fails if there is no such process.
func Process(pid int) (time.Duration, error) { return read("process", pid, 2) }

// Thread answers the processor time of a thread. It fails if there is no such thread.
func Thread(tid int) (time.Duration, error) { return read("thread", tid, 6) }

func read(what string, id int, clock int32) (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^id)<<3|clock, &t); err != nil {
		return 0, fmt.Errorf("clock of %s %d: %w", what, id, err)
	}
	return time.Duration(t.Nano()), nil
}
