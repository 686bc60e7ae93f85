// Package host looks at the machine that a file is to run on: what the kernel, the
// privileges and the interfaces would spoil, and what to do about it. It changes
// nothing.
package host

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/xsk"
)

// A Finding is one thing that was looked at.
type Finding struct {
	Level  string `json:"level"` // ok, warning or error: with an error run would refuse
	What   string `json:"what"`
	Remedy string `json:"remedy,omitempty"`
}

// Levels.
const (
	OK      = "ok"
	Warning = "warning"
	Error   = "error"
)

// Check looks at the machine for f, in the network namespace of the calling thread.
func Check(f *graph.File) (all []Finding) {
	all = append(all, kernel(release()), privileges("/proc/self/status"))
	seen := map[string]bool{}
	for _, g := range f.Graphs {
		for _, n := range g.Nodes {
			for _, p := range n.Kind.Ports(n.Config) {
				if p.Driver == "xdp" && !seen[p.Name] {
					seen[p.Name] = true
					all = append(all, iface(p.Name, g)...)
					all = append(all, lockOut(p.Name, f)...)
				}
			}
		}
	}
	return all
}

// Warnings is what Check finds fault with, for a file whose interfaces are in use. A
// file that uses none has none.
func Warnings(f *graph.File) (all []Finding) {
	if !usesInterfaces(f) {
		return nil
	}
	for _, x := range Check(f) {
		if x.Level != OK {
			all = append(all, x)
		}
	}
	return all
}

func usesInterfaces(f *graph.File) bool {
	for _, g := range f.Graphs {
		for _, n := range g.Nodes {
			for _, p := range n.Kind.Ports(n.Config) {
				if p.Driver == "xdp" {
					return true
				}
			}
		}
	}
	return false
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// kernel judges a release as uname -r prints it.
func kernel(release string) Finding {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return Finding{Warning, fmt.Sprintf("kernel %q is of no version that can be read", release), "Linux 5.10 or later is needed."}
	}
	if major < 5 || major == 5 && minor < 10 {
		return Finding{Error, "kernel " + release + " is too old for AF_XDP as it is used here", "Run Linux 5.10 or later."}
	}
	return Finding{Level: OK, What: "kernel " + release}
}

// needed are the capabilities by their numbers in linux/capability.h.
var needed = []struct {
	bit  uint
	name string
}{{12, "CAP_NET_ADMIN"}, {13, "CAP_NET_RAW"}, {39, "CAP_BPF"}}

// privileges judges the effective capabilities that a status file tells.
func privileges(status string) Finding {
	f, err := os.Open(status)
	if err != nil {
		return Finding{Warning, "privileges cannot be read: " + err.Error(), "Run as root."}
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		hex, ok := strings.CutPrefix(in.Text(), "CapEff:")
		if !ok {
			continue
		}
		caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil {
			break
		}
		var missing []string
		for _, c := range needed {
			// CAP_SYS_ADMIN stands for CAP_BPF, which is younger.
			if caps>>c.bit&1 == 0 && (c.bit != 39 || caps>>21&1 == 0) {
				missing = append(missing, c.name)
			}
		}
		if len(missing) > 0 {
			return Finding{Error, "privileges are missing: " + strings.Join(missing, ", "), "Run as root, or give the unit AmbientCapabilities=" + strings.Join(missing, " ") + "."}
		}
		return Finding{Level: OK, What: "privileges"}
	}
	return Finding{Warning, "privileges cannot be read from " + status, "Run as root."}
}

// Device flags of ethtool (linux/ethtool.h).
const (
	flagRxVLAN = 1 << 8
	flagLRO    = 1 << 15
)

func iface(name string, g *graph.Graph) (all []Finding) {
	add := func(level, what, remedy string, args ...any) {
		all = append(all, Finding{level, "interface " + name + ": " + what, fmt.Sprintf(remedy, args...)})
	}
	dev, err := net.InterfaceByName(name)
	if err != nil {
		add(Error, xsk.ErrNoInterface.Error(), "Name one that `ip link` shows.")
		return all
	}
	if dev.Flags&net.FlagUp == 0 {
		add(Warning, "is down", "ip link set %s up", name)
	}
	if dev.MTU < g.NetworkMTU {
		add(Error, fmt.Sprintf("its MTU is %d, network_mtu of graph %q is %d", dev.MTU, g.Name, g.NetworkMTU), "Lower network_mtu, or: ip link set %s mtu %d", name, g.NetworkMTU)
	}
	if queues, err := xsk.Queues(name); err == nil {
		all = append(all, spread(name, queues, g.Cores, runtime.NumCPU())...)
	}
	if flags, err := deviceFlags(name); err == nil {
		all = append(all, offloads(name, flags)...)
	}
	if rp := sysctl("net/ipv4/conf/" + name + "/rp_filter"); rp == "1" {
		add(Warning, "strict reverse-path filtering drops what the kernel gets from addresses that are routed elsewhere", "If health checks go through the tunnel: sysctl -w net.ipv4.conf.%s.rp_filter=2", name)
	}
	if len(all) == 0 {
		all = append(all, Finding{Level: OK, What: "interface " + name})
	}
	return all
}

// spread judges how an interface's receive queues, over which its hash of flows (RSS)
// spreads packets, share out the work. cores is as the graph has it, 0 for one a queue.
func spread(name string, queues, cores, cpus int) (all []Finding) {
	loops := queues
	if cores > 0 {
		loops = cores
	}
	if loops > cpus {
		all = append(all, Finding{
			Warning, fmt.Sprintf("interface %s: %d loops on %d processors", name, loops, cpus),
			fmt.Sprintf("Lower the queues (ethtool -L %s combined N) or cores in the graph.", name),
		})
	}
	if queues == 1 && cores == 0 && cpus > 2 {
		all = append(all, Finding{
			Warning, fmt.Sprintf("interface %s: it has one receive queue: one core does all the work", name),
			fmt.Sprintf("Give it more (ethtool -L %s combined N), or hand off to workers as in examples/steering.hcl.", name),
		})
	}
	return all
}

// offloads judges the flags of an interface.
func offloads(name string, flags uint32) (all []Finding) {
	if flags&flagRxVLAN != 0 {
		all = append(all, Finding{
			Warning, "interface " + name + ": VLAN offload takes tags off before the XDP program sees them",
			fmt.Sprintf("If packets carry tags: ethtool -K %s rxvlan off", name),
		})
	}
	if flags&flagLRO != 0 {
		all = append(all, Finding{
			Error, "interface " + name + ": large receive offload joins packets, which XDP cannot take",
			fmt.Sprintf("ethtool -K %s lro off", name),
		})
	}
	return all
}

// lockOut tells of VIPs that cover an address of the interface itself.
func lockOut(name string, f *graph.File) (all []Finding) {
	addrs, err := xsk.Addresses(name)
	if err != nil {
		return nil // iface has told
	}
	for _, a := range addrs {
		for _, v := range f.Spec.VIPs {
			if !v.Disabled && v.Prefix.Contains(a) {
				all = append(all, Finding{
					Error, fmt.Sprintf("interface %s: its own address %s lies in vip %q (%s)", name, a, v.Name, v.Prefix),
					"Narrow the prefix, or move the VIP: the node would be locked out.",
				})
			}
		}
	}
	return all
}

func sysctl(path string) string {
	b, err := os.ReadFile(filepath.Join("/proc/sys", path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// deviceFlags asks ethtool's legacy flags of an interface.
func deviceFlags(name string) (uint32, error) {
	if len(name) >= unix.IFNAMSIZ {
		return 0, errors.New("the name is too long")
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(s) }()
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GFLAGS}
	req := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(req.name[:], name)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); e != 0 {
		return 0, e
	}
	return value.data, nil
}
