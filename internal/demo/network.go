package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// prefix begins the names of the demo's namespaces.
const prefix = "lbgraph-demo-"

// network is the namespaces of a demo, and what runs in them.
type network struct {
	binary   string
	patience time.Duration // until a process that was told to end must have ended
	dir      string        // of logs and files
	spaces   []string
	procs    []*process
}

type process struct {
	name  string
	cmd   *exec.Cmd
	log   string
	began time.Time
	told  bool          // to end
	done  chan struct{} // closed when it ended; err is set then
	err   error
}

func newNetwork(binary string) (*network, error) {
	for _, tool := range []string{"ip", "nsenter", "unshare", "ethtool", "curl", "bird"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("the demo needs %s, which is not installed", tool)
		}
	}
	// What a killed demo left, for no other runs now.
	old, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, path := range old {
		if err := os.RemoveAll(path); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, err
	}
	return &network{binary: binary, dir: dir}, nil
}

// conf is the folder that the balancers run in.
func (n *network) conf() string { return filepath.Join(n.dir, "conf") }

// namespaces makes the namespaces. Ones that a killed demo left are made anew.
func (n *network) namespaces(ctx context.Context, names []string) error {
	old, err := filepath.Glob("/run/netns/" + prefix + "*")
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := command(ctx, nil, "ip", "netns", "del", filepath.Base(path)); err != nil {
			return err
		}
	}
	for _, name := range names {
		// Cut short, it would leave a namespace behind that nobody knows of.
		if err := command(context.WithoutCancel(ctx), nil, "ip", "netns", "add", prefix+name); err != nil {
			return err
		}
		n.spaces = append(n.spaces, name)
		if err := n.ip(ctx, name, []string{"link set lo up"}); err != nil {
			return err
		}
		// Answers come by another way than questions went, so reverse-path filters
		// are off; and nothing here has to be probed for duplicate addresses.
		if err := n.sysctl(name, map[string]string{
			"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
			"ipv6/conf/default/accept_dad": "0", "ipv6/conf/default/accept_ra": "0",
		}); err != nil {
			return err
		}
	}
	return nil
}

// link joins two namespaces by a veth pair of one queue, up.
func (n *network) link(ctx context.Context, a, devA, b, devB string) error {
	const queues = " numtxqueues 1 numrxqueues 1 "
	return errors.Join(
		command(ctx, []byte("link add "+devA+queues+"netns "+prefix+a+" type veth peer name "+devB+queues+"netns "+prefix+b+"\n"), "ip", "-batch", "-"),
		n.ip(ctx, a, []string{"link set " + devA + " up"}),
		n.ip(ctx, b, []string{"link set " + devB + " up"}))
}

// ip runs commands of ip in a namespace.
func (n *network) ip(ctx context.Context, space string, lines []string) error {
	return command(ctx, []byte(strings.Join(lines, "\n")+"\n"), "ip", "-n", prefix+space, "-batch", "-")
}

// sysctl sets what stands under /proc/sys/net, which shows the namespace of who
// looks.
func (n *network) sysctl(space string, values map[string]string) error {
	var script strings.Builder
	for name, value := range values {
		if strings.HasPrefix(name, "ipv6/") {
			if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
				return errors.New("this kernel has no IPv6, which the demo shows")
			}
		}
		fmt.Fprintf(&script, "echo %s > /proc/sys/net/%s\n", value, name)
	}
	_, err := n.run(context.Background(), space, "sh", "-ec", script.String())
	return err
}

// in answers the command line that runs args in a namespace. nsenter, unlike ip
// netns exec, leaves /sys as it is, where BPF objects may be pinned.
func (n *network) in(space string, args ...string) []string {
	return append([]string{"nsenter", "--net=/run/netns/" + prefix + space}, args...)
}

// run runs a command in a namespace and answers what it wrote.
func (n *network) run(ctx context.Context, space string, args ...string) (string, error) {
	line := n.in(space, args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s in %s: %w: %s", filepath.Base(args[0]), space, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// start begins a command in a namespace; it runs until close.
func (n *network) start(space, name string, args ...string) error {
	p := &process{name: space + " " + name, log: filepath.Join(n.dir, space+"-"+name+".log"), began: time.Now(), done: make(chan struct{})}
	file, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	line := n.in(space, args...)
	p.cmd = exec.Command(line[0], line[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = file, file
	// A group of its own: Ctrl-C reaches the demo alone, which ends the others in
	// order. And should the demo be killed, they end by themselves.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	n.procs = append(n.procs, p)
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return nil
}

// find answers where a process is in procs.
func (n *network) find(space, name string) (int, error) {
	i := slices.IndexFunc(n.procs, func(p *process) bool { return p.name == space+" "+name })
	if i < 0 {
		return 0, fmt.Errorf("no %s runs in %s", name, space)
	}
	return i, nil
}

// kill ends a process as a crash would: it does not notice.
func (n *network) kill(space, name string) error {
	i, err := n.find(space, name)
	if err != nil {
		return err
	}
	p := n.procs[i]
	n.procs = slices.Delete(n.procs, i, i+1)
	err = p.cmd.Process.Kill()
	<-p.done
	return err
}

// inside calls f on a thread that is in a namespace: sockets that it makes stay
// there.
func (n *network) inside(space string, f func() error) error {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer func() { _ = home.Close() }()
	there, err := os.Open("/run/netns/" + prefix + space)
	if err != nil {
		return err
	}
	defer func() { _ = there.Close() }()
	runtime.LockOSThread()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back) // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// until tries again until f succeeds. It gives up after a time, or when a process
// ended.
func (n *network) until(ctx context.Context, limit time.Duration, f func() error) error {
	end := time.Now().Add(limit)
	for {
		err := f()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		for _, p := range n.procs {
			select {
			case <-p.done:
				return fmt.Errorf("%s ended: %v\n%s", p.name, p.err, tail(p.log))
			default:
			}
		}
		if time.Now().After(end) {
			logs := ""
			for _, p := range n.procs {
				if t := tail(p.log); t != "" {
					logs += "\n" + p.name + ":\n" + t
				}
			}
			return fmt.Errorf("gave up after %s: %w%s", limit, err, logs)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tail answers the last lines of a file.
func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// close ends the processes, the last first, and removes the namespaces, and with
// them the interfaces.
func (n *network) close() (err error) {
	// Balancers drain for a while, both at the same time.
	for _, p := range n.procs {
		if strings.HasSuffix(p.name, " balancer") {
			p.end()
		}
	}
	for _, p := range slices.Backward(n.procs) {
		p.end()
		select {
		case <-p.done:
			// One that has only just begun may not listen to signals yet.
			if p.err != nil && time.Since(p.began) > time.Second {
				err = errors.Join(err, fmt.Errorf("%s: %w\n%s", p.name, p.err, tail(p.log)))
			}
		case <-time.After(n.patience):
			_ = p.cmd.Process.Kill()
			<-p.done
			err = errors.Join(err, fmt.Errorf("%s did not end by itself", p.name))
		}
	}
	for _, name := range n.spaces {
		err = errors.Join(err, command(context.Background(), nil, "ip", "netns", "del", prefix+name))
	}
	return errors.Join(err, os.RemoveAll(n.dir))
}

// end tells a process to end, once: a second time might cut short how it does.
func (p *process) end() {
	if !p.told {
		p.told = true
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
}

func command(ctx context.Context, in []byte, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin = bytes.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
