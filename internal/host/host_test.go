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
