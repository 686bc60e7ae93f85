package daemon

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// notifier speaks the notify protocol of systemd (sd_notify(3)). One without a
// connection says nothing.
type notifier struct {
	conn     *net.UnixConn
	watchdog time.Duration // within which the service manager wants a sign of life; 0 is never
}

// newNotifier connects to who started the process, if it wants to be told.
func newNotifier(env func(string) string, pid int) (n notifier, err error) {
	path := env("NOTIFY_SOCKET")
	if path == "" {
		return n, nil
	}
	// A name that begins with @ is an abstract one, which net knows too.
	if n.conn, err = net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"}); err != nil {
		return n, fmt.Errorf("the service manager is not reached: %w", err)
	}
	us, err := strconv.ParseInt(env("WATCHDOG_USEC"), 10, 64)
	if err == nil && us > 0 && (env("WATCHDOG_PID") == "" || env("WATCHDOG_PID") == strconv.Itoa(pid)) {
		n.watchdog = time.Duration(us) * time.Microsecond
	}
	return n, nil
}

// say sends one datagram of lines. The service manager may be gone: that is no
// failure of ours.
func (n notifier) say(lines ...string) {
	if n.conn != nil {
		_, _ = n.conn.Write([]byte(strings.Join(lines, "\n")))
	}
}

func (n notifier) close() {
	if n.conn != nil {
		_ = n.conn.Close()
	}
}

// monotonic is the line that must stand beside RELOADING=1.
func monotonic() string {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return fmt.Sprintf("MONOTONIC_USEC=%d", t.Nano()/1000)
}

// say tells the service manager.
func (d *Daemon) say(lines ...string) { d.notify.say(lines...) }

// watch gives signs of life while every loop passes, until stop is closed, and logs
// when the node becomes sick or well. While the daemon stops it asks for as much time as
// it takes: draining may be long.
func (d *Daemon) watch(stop <-chan struct{}) {
	sick := false
	every := time.Second
	if d.notify.watchdog > 0 {
		every = min(every, d.notify.watchdog/3)
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		if d.notify.watchdog > 0 && d.passing() == nil {
			d.say("WATCHDOG=1")
		}
		if err := d.Healthy(); !d.stopping.Load() && (err != nil) != sick {
			if sick = err != nil; sick {
				d.log.Warn("the node is not healthy", zap.Error(err))
			} else {
				d.log.Info("the node is healthy again")
			}
		}
		if d.leaving.Load() {
			d.say("EXTEND_TIMEOUT_USEC=" + strconv.Itoa(int(10*time.Second/time.Microsecond)))
		}
	}
}
