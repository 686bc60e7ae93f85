package host

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/netnstest"
	_ "github.com/lbgraph/lbgraph/nodes/packet/xdp-rx"
)

func TestKernel(t *testing.T) {
	for release, level := range map[string]string{
		"5.9.16": Error, "4.19.0-26-amd64": Error, "5.10.0": OK, "6.1.0-13-amd64": OK, "10.0": OK, "next": Warning,
	} {
		if f := kernel(release); f.Level != level || level != OK && f.Remedy == "" {
			t.Errorf("%s: %+v", release, f)
		}
	}
}

func TestPrivileges(t *testing.T) {
	for caps, want := range map[string]string{
		"000001ffffffffff": "", // root
		"0000000000000000": "CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF",
		"0000000000003000": "CAP_BPF",
		"0000000000203000": "", // CAP_SYS_ADMIN for CAP_BPF
		"0000008000001000": "CAP_NET_RAW",
		"nonsense":         "cannot be read",
	} {
		path := filepath.Join(t.TempDir(), "status")
		if err := os.WriteFile(path, []byte("Name:\tx\nCapEff:\t"+caps+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f := privileges(path)
		if (want == "") != (f.Level == OK) || !strings.Contains(f.What, want) {
			t.Errorf("%s: %+v", caps, f)
		}
	}
}

// TestQueues: too many loops for the processors, and a lone queue on a machine with more
// of them.
func TestQueues(t *testing.T) {
	for _, c := range []struct {
		queues, cores, cpus int
		want                string
	}{
		{4, 0, 4, ""}, {8, 0, 4, "8 loops on 4 processors"}, {8, 4, 4, ""}, {1, 6, 4, "6 loops on 4 processors"},
		{1, 0, 4, "one receive queue"}, {1, 3, 4, ""}, {1, 0, 2, ""},
	} {
		all := spread("eth0", c.queues, c.cores, c.cpus)
		if c.want == "" && len(all) > 0 || c.want != "" && (len(all) != 1 || all[0].Level != Warning || all[0].Remedy == "" || !strings.Contains(all[0].What, c.want)) {
			t.Errorf("%d queues, %d cores, %d processors: %+v, want %q", c.queues, c.cores, c.cpus, all, c.want)
		}
	}
}

// TestOffloads: what the kernel says by ETH_FLAG_RXVLAN and ETH_FLAG_LRO.
func TestOffloads(t *testing.T) {
	for flags, want := range map[uint32]string{
		0: "", 1 << 8: "warning VLAN offload;", 1 << 15: "error large receive offload;", 1<<8 | 1<<15: "warning VLAN offload;error large receive offload;",
		1<<7 | 1<<27 | 1<<28: "",
	} {
		got := ""
		for _, f := range offloads("eth0", flags) {
			words := strings.Fields(strings.TrimPrefix(f.What, "interface eth0: "))
			n := strings.Index(strings.Join(words, " "), "offload") + len("offload")
			got += f.Level + " " + strings.Join(words, " ")[:n] + ";"
			if !strings.Contains(f.Remedy, "ethtool -K eth0 ") {
				t.Errorf("remedy %q", f.Remedy)
			}
		}
		if got != want {
			t.Errorf("flags %#x: %q, want %q", flags, got, want)
		}
	}
}

// TestNetInterface: each setting of a real interface that would spoil something is
// found, and is not found any more once the remedy was followed.
func TestNetInterface(t *testing.T) {
	if testing.Short() {
		t.Skip("short: makes a network namespace")
	}
	ns, peer := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(netnstest.End{NS: ns, Name: "eth0", Addrs: []string{"192.0.2.1/24"}, Offload: true}, netnstest.End{NS: peer, Name: "peer"})
	k := graph.Lookup("xdp-rx")
	g := &graph.Graph{Name: "edge", GraphConfig: graph.GraphDefaults()}
	g.Nodes = []*graph.Instance{{Kind: k, Name: "rx", Config: k.NewConfig()}}
	look := func(name string) string {
		var all []string
		ns.Do(func() {
			for _, f := range iface(name, g) {
				all = append(all, f.Level+" "+f.What+" "+f.Remedy)
			}
		})
		return strings.Join(all, "\n")
	}
	has := func(words string, want bool) {
		t.Helper()
		if got := look("eth0"); strings.Contains(got, words) != want {
			t.Errorf("want %v for %q in:\n%s", want, words, got)
		}
	}
	f := &graph.File{Spec: state.Spec{VIPs: []state.VIPSpec{{Name: "web", Prefix: netip.MustParsePrefix("192.0.2.0/24")}}}, Graphs: []*graph.Graph{g}}
	ns.Do(func() {
		if all := lockOut("eth0", f); len(all) != 1 || all[0].Level != Error || !strings.Contains(all[0].What, `its own address 192.0.2.1 lies in vip "web"`) {
			t.Errorf("a VIP over the interface's address: %v", all)
		}
	})
	has("VLAN offload", true)
	ns.Exec("ethtool", "-K", "eth0", "rxvlan", "off")
	has("VLAN offload", false)
	has("error interface eth0: its MTU", false)
	g.NetworkMTU = 1600
	has(`error interface eth0: its MTU is 1500, network_mtu of graph "edge" is 1600`, true)
	g.NetworkMTU = 1500
	ns.Sysctl("net.ipv4.conf.eth0.rp_filter", "1")
	// The file system of another namespace's settings shows by the thread.
	has("strict reverse-path filtering", true)
	ns.Sysctl("net.ipv4.conf.eth0.rp_filter", "0")
	has("strict reverse-path filtering", false)
	ns.Exec("ip", "link", "set", "eth0", "down")
	has("is down", true)
	ns.Exec("ip", "link", "set", "eth0", "up")
	g.Cores = 64
	has("64 loops on", true)
	g.Cores = 0
	if got := look("eth9"); !strings.Contains(got, "no such interface") {
		t.Errorf("an unknown interface: %s", got)
	}
	if got := look("eth0"); !strings.HasPrefix(got, "ok ") && !strings.Contains(got, "one receive queue") {
		t.Errorf("a good interface: %s", got)
	}
}
