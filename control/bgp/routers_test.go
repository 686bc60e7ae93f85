package bgp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/io/netnstest"
)

// route is what a router knows of a route that it heard.
type route struct {
	hops        []string // next hops, one for each neighbour that announces it
	communities string   // as in "65001:80 65001:443"
	large       string
	med, pref   string
	path        string
}

// router is a BGP daemon of somebody else.
type router interface {
	// heard answers what the router heard of a prefix; ok is false if nothing.
	heard(prefix string) (r route, ok bool)
	process() *os.Process
}

// neighbour is a node as routers are told of it.
type neighbour struct {
	addr     string
	asn      int
	password string
	hold     int // seconds; 0 is the router's default
	extra    string
}

const routerASN = 64500

// birdOwn and frrOwn are what routers announce: no business of a node's.
const birdOwn, frrOwn = "198.51.100.0/24", "198.51.101.0/24"

// need skips the test without the router's program.
func need(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("missing: %s is not installed", p)
		}
	}
}

// bird is bird 2.
type bird struct {
	t   testing.TB
	ns  *netnstest.NS
	dir string
	cmd *exec.Cmd
}

// startBird starts bird with neighbours; it installs what it hears, with ECMP.
func startBird(t testing.TB, ns *netnstest.NS, id string, neighbours ...neighbour) *bird {
	t.Helper()
	var c strings.Builder
	fmt.Fprintf(&c, "router id %s;\nprotocol device { scan time 1; }\n", id)
	for _, f := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(&c, "protocol kernel { %s { export all; import none; }; merge paths on; }\n", f)
	}
	fmt.Fprintf(&c, "protocol static own { ipv4; route %s blackhole; }\n", birdOwn)
	for i, n := range neighbours {
		fmt.Fprintf(&c, "protocol bgp n%d {\n  local as %d;\n  neighbor %s as %d;\n  ipv4 { import all; export where source = RTS_STATIC; };\n  ipv6 { import all; export none; };\n", i, routerASN, n.addr, n.asn)
		if n.password != "" {
			fmt.Fprintf(&c, "  password %q;\n", n.password)
		}
		if n.hold != 0 {
			fmt.Fprintf(&c, "  hold time %d;\n", n.hold)
		}
		fmt.Fprintf(&c, "  connect retry time 300;\n  error wait time 1, 1;\n  passive on;\n%s}\n", n.extra)
	}
	return newBird(t, ns, c.String())
}

func newBird(t testing.TB, ns *netnstest.NS, conf string) *bird {
	t.Helper()
	need(t, "bird", "birdc")
	b := &bird{t: t, ns: ns, dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(b.dir, "bird.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	return b
}

func (b *bird) start() {
	b.t.Helper()
	_ = os.Remove(b.socket())
	b.cmd = exec.Command("bird", "-f", "-c", filepath.Join(b.dir, "bird.conf"), "-s", b.socket(), "-P", filepath.Join(b.dir, "pid"))
	b.cmd.Stderr = os.Stderr
	b.ns.Start(b.cmd)
	eventually(b.t, patience, func() error {
		_, err := os.Stat(b.socket())
		return err
	})
}

func (b *bird) socket() string       { return filepath.Join(b.dir, "ctl") }
func (b *bird) process() *os.Process { return b.cmd.Process }

func (b *bird) ctl(words string) string {
	b.t.Helper()
	out, err := b.ns.Try("birdc", append([]string{"-s", b.socket()}, strings.Fields(words)...)...)
	if err != nil && !strings.Contains(out, "Network not found") {
		b.t.Logf("birdc %s: %v", words, err)
	}
	return out
}

var (
	birdVia   = regexp.MustCompile(`BGP\.next_hop: (\S+)`)
	birdComm  = regexp.MustCompile(`BGP\.community: (.*)`)
	birdLarge = regexp.MustCompile(`BGP\.large_community: (.*)`)
	birdMED   = regexp.MustCompile(`BGP\.med: (\d+)`)
	birdPref  = regexp.MustCompile(`BGP\.local_pref: (\d+)`)
	birdPath  = regexp.MustCompile(`BGP\.as_path: ?(.*)`)
)

func first(re *regexp.Regexp, text string) string {
	if m := re.FindStringSubmatch(text); m != nil {
		return strings.TrimSpace(m[1])
	}
	return ""
}

func (b *bird) heard(prefix string) (r route, ok bool) {
	b.t.Helper()
	out := b.ctl("show route " + prefix + " all")
	for _, m := range birdVia.FindAllStringSubmatch(out, -1) {
		r.hops = append(r.hops, m[1])
	}
	tags := strings.NewReplacer(", ", ":", ",", ":", "(", "", ")", "")
	r.communities, r.large = tags.Replace(first(birdComm, out)), tags.Replace(first(birdLarge, out))
	r.med, r.pref, r.path = first(birdMED, out), first(birdPref, out), first(birdPath, out)
	return r, len(r.hops) > 0
}

// frr is FRR's zebra and bgpd.
type frr struct {
	t    testing.TB
	ns   *netnstest.NS
	dir  string
	bgpd *exec.Cmd
}

// startFRR starts FRR with neighbours; it installs what it hears, with ECMP.
func startFRR(t testing.TB, ns *netnstest.NS, id string, neighbours ...neighbour) *frr {
	t.Helper()
	var c strings.Builder
	fmt.Fprintf(&c, "router bgp %d\n bgp router-id %s\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n bgp bestpath as-path multipath-relax\n", routerASN, id)
	for _, n := range neighbours {
		fmt.Fprintf(&c, " neighbor %s remote-as %d\n neighbor %s passive\n%s", n.addr, n.asn, n.addr, n.extra)
		if n.password != "" {
			fmt.Fprintf(&c, " neighbor %s password %s\n", n.addr, n.password)
		}
		if n.hold != 0 {
			fmt.Fprintf(&c, " neighbor %s timers %d %d\n", n.addr, n.hold/3, n.hold)
		}
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(&c, " address-family %s unicast\n  maximum-paths 8\n", family)
		if family == "ipv4" {
			fmt.Fprintf(&c, "  network %s\n", frrOwn)
		}
		for _, n := range neighbours {
			fmt.Fprintf(&c, "  neighbor %s activate\n", n.addr)
		}
		c.WriteString(" exit-address-family\n")
	}
	return newFRR(t, ns, c.String())
}

func newFRR(t testing.TB, ns *netnstest.NS, conf string) *frr {
	t.Helper()
	const lib = "/usr/lib/frr/"
	need(t, lib+"zebra", lib+"bgpd", "vtysh")
	f := &frr{t: t, ns: ns, dir: t.TempDir()}
	// The daemons insist on the user of their package.
	who, err := user.Lookup("frr")
	if err != nil {
		t.Skipf("missing: the user of FRR: %v", err)
	}
	uid, _ := strconv.Atoi(who.Uid)
	gid, _ := strconv.Atoi(who.Gid)
	err = errors.Join(os.Chmod(filepath.Dir(f.dir), 0o711), os.Chown(f.dir, uid, gid))
	for name, text := range map[string]string{"zebra.conf": "", "bgpd.conf": conf, "vtysh.conf": ""} {
		err = errors.Join(err, os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	run := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(lib+program, append([]string{
			"-u", "frr", "-g", "frr", "-f", filepath.Join(f.dir, program+".conf"), "-i", filepath.Join(f.dir, program+".pid"),
			"-z", filepath.Join(f.dir, "zserv"), "--vty_socket", f.dir, "-P", "0", "--log", "file:" + filepath.Join(f.dir, "log"),
		}, args...)...)
		ns.Start(cmd)
		eventually(t, patience, func() error {
			_, err := os.Stat(filepath.Join(f.dir, program+".vty"))
			return err
		})
		return cmd
	}
	run("zebra")
	f.bgpd = run("bgpd")
	return f
}

func (f *frr) process() *os.Process { return f.bgpd.Process }

// show answers the JSON of a show command.
func (f *frr) show(command string, to any) {
	f.t.Helper()
	out, err := f.ns.Try("vtysh", "--vty_socket", f.dir, "--config_dir", f.dir, "-d", "bgpd", "-c", "show "+command+" json")
	if err == nil {
		err = json.Unmarshal([]byte(out), to)
	}
	if err != nil {
		f.t.Logf("show %s: %v", command, err)
	}
}

func (f *frr) heard(prefix string) (r route, ok bool) {
	f.t.Helper()
	family := "ipv4"
	if netip.MustParsePrefix(prefix).Addr().Is6() {
		family = "ipv6"
	}
	var x struct {
		Paths []struct {
			Valid          bool
			AsPath         struct{ String string }
			Metric         *int
			LocPrf         int
			Community      struct{ String string }
			LargeCommunity struct{ String string }
			Nexthops       []struct{ IP string }
		}
	}
	f.show("bgp "+family+" unicast "+prefix, &x)
	for _, p := range x.Paths {
		if !p.Valid {
			continue
		}
		for _, h := range p.Nexthops {
			r.hops = append(r.hops, h.IP)
		}
		r.communities, r.large, r.path = strings.ReplaceAll(p.Community.String, "no-export", "65535:65281"), p.LargeCommunity.String, p.AsPath.String
		r.pref = fmt.Sprint(p.LocPrf)
		if p.Metric != nil {
			r.med = fmt.Sprint(*p.Metric)
		}
	}
	return r, len(r.hops) > 0
}

// gobgpd is the daemon gobgpd, of Debian.
type gobgpd struct {
	t   testing.TB
	ns  *netnstest.NS
	cmd *exec.Cmd
}

func startGoBGPd(t testing.TB, ns *netnstest.NS, id string, neighbours ...neighbour) *gobgpd {
	t.Helper()
	need(t, "gobgpd", "gobgp")
	g := &gobgpd{t: t, ns: ns}
	var c strings.Builder
	fmt.Fprintf(&c, "[global.config]\nas = %d\nrouter-id = %q\n", routerASN, id)
	for _, n := range neighbours {
		fmt.Fprintf(&c, "[[neighbors]]\n[neighbors.config]\nneighbor-address = %q\npeer-as = %d\nauth-password = %q\n[neighbors.transport.config]\npassive-mode = true\n", n.addr, n.asn, n.password)
		if n.hold != 0 {
			fmt.Fprintf(&c, "[neighbors.timers.config]\nhold-time = %d\nkeepalive-interval = %d\n", n.hold, n.hold/3)
		}
		c.WriteString(n.extra)
		for _, f := range []string{"ipv4-unicast", "ipv6-unicast"} {
			fmt.Fprintf(&c, "[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = %q\n", f)
		}
	}
	conf := filepath.Join(t.TempDir(), "gobgpd.toml")
	if err := os.WriteFile(conf, []byte(c.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	g.cmd = exec.Command("gobgpd", "-f", conf, "--log-level", "error", "--api-hosts", "127.0.0.1:50051")
	ns.Start(g.cmd)
	eventually(t, patience, func() error {
		_, err := ns.Try("gobgp", "global")
		return err
	})
	return g
}

func (g *gobgpd) process() *os.Process { return g.cmd.Process }

func (g *gobgpd) heard(prefix string) (r route, ok bool) {
	g.t.Helper()
	family := "ipv4"
	if netip.MustParsePrefix(prefix).Addr().Is6() {
		family = "ipv6"
	}
	out, err := g.ns.Try("gobgp", "global", "rib", "-a", family, prefix, "-j")
	var all map[string][]struct {
		Attrs []struct {
			Type        int
			Nexthop     string
			Communities []uint32
			Value       json.RawMessage
			ASPaths     []struct{ Asns []int } `json:"as_paths"`
			Metric      *int
		}
	}
	if err != nil || json.Unmarshal([]byte(out), &all) != nil {
		return route{}, false
	}
	for _, p := range all[prefix] {
		for _, a := range p.Attrs {
			switch a.Type {
			case 2: // AS_PATH
				for _, s := range a.ASPaths {
					r.path = strings.Trim(fmt.Sprint(s.Asns), "[]")
				}
			case 3, 14: // NEXT_HOP, MP_REACH_NLRI
				r.hops = append(r.hops, a.Nexthop)
			case 4: // MULTI_EXIT_DISC
				if a.Metric != nil {
					r.med = fmt.Sprint(*a.Metric)
				}
			case 8: // COMMUNITIES
				for _, c := range a.Communities {
					r.communities = strings.TrimSpace(r.communities + " " + Community(c).String())
				}
			case 32: // LARGE_COMMUNITY
				var cs []struct{ ASN, LocalData1, LocalData2 uint32 }
				if json.Unmarshal(a.Value, &cs) == nil {
					for _, c := range cs {
						r.large = strings.TrimSpace(r.large + " " + LargeCommunity{c.ASN, c.LocalData1, c.LocalData2}.String())
					}
				}
			}
		}
	}
	return r, len(r.hops) > 0
}
