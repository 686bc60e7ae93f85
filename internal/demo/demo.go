// Package demo shows balancers at work: it lays a small network in namespaces,
// runs a file's graph on AF_XDP there, twice, sends real requests, takes things
// away under them, and says what it saw.
//
//	client ── router ── balancer 1
//	            ├────── balancer 2
//	            ├────── backend 1
//	            └────── backend 2 …
//
// The client calls a VIP. Both balancers announce it to the router, which shares
// flows out over them. A balancer sends each packet on, in a tunnel, by the way it
// came; the router forwards the tunnel to the backend, which strips it and answers
// the client directly.
package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lbgraph/lbgraph/control/bgp"
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// Config is what a demonstration needs.
type Config struct {
	Binary string      // of lbgraph itself
	File   *graph.File // checked; its xdp-rx receives on Uplink
	// Sources are the file and all that it includes, by path: the balancers run
	// copies, one of which the demo changes.
	Sources map[string][]byte
	Args    []string // what follows the file on the balancers' command lines
	Uplink  string   // the balancers' interface
	Out     io.Writer
}

// Addresses of the network; VIPs and backends have those of the file, which also
// says where balancers find the router.
const (
	client4, client6 = "198.51.100.7", "2001:db8:c::7"
	router4, router6 = "198.51.100.1", "2001:db8:c::1"
	gateway6         = "2001:db8:f::1"
	onlink4, onlink6 = "169.254.1.1", "fe80::1" // the router, on the backends' links
)

// balancers of the demo, by the names of their namespaces.
var balancers = []string{"balancer-1", "balancer-2"}

const (
	requests = 40       // over HTTP; one of three backends is missed with a chance of 3·(2/3)⁴⁰
	bulk     = 20 << 20 // bytes up, and down
)

type demo struct {
	Config
	net      *network
	bgp      *bgp.Config
	peer     bgp.Peer // the router, as the file has it
	backends []state.BackendSpec
	vips     []state.VIPSpec
	http     netip.AddrPort // an IPv4 VIP over TCP
	added    netip.AddrPort // a port of it that the file does not have at first
	pool     string         // that it leads to
	http6    netip.AddrPort // an IPv6 one, if the file has one
	udp      netip.AddrPort // an IPv4 VIP over UDP, if the file has one
	broken   []string       // facts that do not hold
	facts    int
}

// Run shows everything, cleans up, and answers an error if something that must
// hold did not. It ends early, cleaned up, when ctx ends.
func Run(ctx context.Context, c Config) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("the demo makes network namespaces: run it as root")
	}
	d := &demo{Config: c}
	if err := d.read(); err != nil {
		return err
	}
	// The name vanishes with the process, so it is a lock that cannot be left behind.
	lock, err := net.Listen("unix", "@lbgraph-demo")
	if err != nil {
		return errors.New("another demo is running on this machine")
	}
	defer func() { _ = lock.Close() }()
	d.net, err = newNetwork(c.Binary)
	if err != nil {
		return err
	}
	defer func() {
		d.say("\nCleaning up: processes, namespaces and interfaces")
		err = errors.Join(err, d.net.close())
	}()
	d.net.patience = 5*time.Second + d.bgp.DrainTime
	begun := time.Now()
	for _, step := range []func(context.Context) error{d.lay, d.start, d.ask, d.askUDP, d.bulk, d.counters, d.failover} {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			return err
		}
	}
	if len(d.broken) > 0 {
		return fmt.Errorf("%d of %d facts do not hold:\n  %s", len(d.broken), d.facts, strings.Join(d.broken, "\n  "))
	}
	d.say("\nAll %d facts hold, after %.1f s.", d.facts, time.Since(begun).Seconds())
	return nil
}

func (d *demo) say(format string, args ...any) { _, _ = fmt.Fprintf(d.Out, format+"\n", args...) }

// fact says what must hold and whether it does.
func (d *demo) fact(ok bool, format string, args ...any) {
	d.facts++
	words := fmt.Sprintf(format, args...)
	if ok {
		d.say("    ok    %s", words)
		return
	}
	d.say("    WRONG %s", words)
	d.broken = append(d.broken, words)
}

// read takes backends and VIPs from the file.
func (d *demo) read() error {
	seen := map[netip.Addr]bool{}
	for _, p := range d.File.Spec.Pools {
		for _, b := range p.Backends {
			if !b.Address.Is4() {
				return fmt.Errorf("%s: the demo's network has IPv4 backends only, not %s", d.File.Path, b.Address)
			}
			if !seen[b.Address] {
				seen[b.Address] = true
				d.backends = append(d.backends, b)
			}
		}
	}
	for _, v := range d.File.Spec.VIPs {
		if v.Disabled || !v.Prefix.IsSingleIP() || len(v.Ports) == 0 {
			continue
		}
		d.vips = append(d.vips, v)
		at := netip.AddrPortFrom(v.Prefix.Addr(), v.Ports[0].Lo)
		switch is4 := at.Addr().Is4(); {
		case v.Protocol == 6 && is4 && !d.http.IsValid():
			d.http, d.pool = at, v.Pool
		case v.Protocol == 6 && !is4 && !d.http6.IsValid():
			d.http6 = at
		case v.Protocol == 17 && is4 && !d.udp.IsValid():
			d.udp = at
		}
	}
	if !d.http.IsValid() || len(d.backends) == 0 {
		return fmt.Errorf("%s: the demo needs a VIP with an IPv4 address, protocol tcp and a port, and a backend", d.File.Path)
	}
	if d.listen() == "" {
		return fmt.Errorf("%s: the demo shows counters, so the file needs a metrics block", d.File.Path)
	}
	if filepath.Ext(d.File.Path) == ".json" {
		return fmt.Errorf("%s: the demo adds a vip block to the file, so it must be HCL", d.File.Path)
	}
	for port := uint16(8000); !d.added.IsValid(); port++ {
		if at := netip.AddrPortFrom(d.http.Addr(), port); !slices.ContainsFunc(d.vips, func(v state.VIPSpec) bool { return takes(v, at) }) {
			d.added = at
		}
	}
	return d.readBGP()
}

// takes says whether a VIP is on an address and port.
func takes(v state.VIPSpec, at netip.AddrPort) bool {
	return v.Prefix.Addr() == at.Addr() && slices.ContainsFunc(v.Ports, func(p state.PortRange) bool { return p.Lo <= at.Port() && at.Port() <= p.Hi })
}

// addrs answers the VIPs' addresses, each once.
func (d *demo) addrs() (all []netip.Addr) {
	for _, v := range d.vips {
		if !slices.Contains(all, v.Prefix.Addr()) {
			all = append(all, v.Prefix.Addr())
		}
	}
	return all
}

// lay makes the namespaces and what joins them.
func (d *demo) lay(ctx context.Context) error {
	d.say("The network, in namespaces of its own")
	d.say("    client %s ── router ── %s %s, interface %s", client4, balancers[0], d.balancer4(0), d.Uplink)
	const indent = "                              ├── "
	for i, name := range balancers[1:] {
		d.say(indent+"%s %s", name, d.balancer4(i+1))
	}
	for _, b := range d.backends {
		d.say(indent+"%s %s", b.Name, b.Address)
	}
	names := append([]string{"client", "router"}, balancers...)
	for _, b := range d.backends {
		names = append(names, b.Name)
	}
	if err := d.net.namespaces(ctx, names); err != nil {
		return err
	}
	// The router shares out flows, not clients, over ways that cost the same.
	if err := d.net.sysctl("router", map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
		"ipv4/fib_multipath_hash_policy": "1", "ipv6/fib_multipath_hash_policy": "1",
	}); err != nil {
		return err
	}
	if err := d.net.link(ctx, "client", "eth0", "router", "client"); err != nil {
		return err
	}
	gateway4 := d.peer.Address.String()
	router := []string{"addr add " + router4 + "/24 dev client", "addr add " + router6 + "/64 dev client nodad"}
	for i, name := range balancers {
		if err := errors.Join(
			d.net.link(ctx, name, d.Uplink, "router", name),
			d.net.ip(ctx, name, []string{
				"addr add " + d.balancer4(i) + "/24 dev " + d.Uplink, "addr add " + balancer6(i) + "/64 dev " + d.Uplink + " nodad",
				"route add default via " + gateway4, "route add default via " + gateway6,
			}),
			// What comes for a VIP when no balancer runs any more must not come back.
			d.net.sysctl(name, map[string]string{"ipv4/ip_forward": "0", "ipv6/conf/all/forwarding": "0"}),
		); err != nil {
			return err
		}
		router = append(router,
			"addr add "+gateway4+" peer "+d.balancer4(i)+" dev "+name,
			"addr add "+gateway6+" peer "+balancer6(i)+" dev "+name+" nodad")
	}
	for i, b := range d.backends {
		dev := fmt.Sprintf("backend%d", i+1)
		if err := d.net.link(ctx, b.Name, "eth0", "router", dev); err != nil {
			return err
		}
		router = append(router,
			"addr add "+onlink4+"/32 dev "+dev, "addr add "+onlink6+"/64 dev "+dev+" nodad",
			"route add "+b.Address.String()+"/32 dev "+dev)
		// A client's segments must fit into the tunnel too: the server's advertised
		// MSS is what limits uploads, and the balancer does not see it.
		backend := []string{
			"addr add " + b.Address.String() + "/32 dev eth0",
			"route add " + onlink4 + "/32 dev eth0",
			"route add default via " + onlink4 + " dev eth0 advmss 1436",
			"route add default via " + onlink6 + " dev eth0 advmss 1416",
		}
		for _, a := range d.addrs() {
			backend = append(backend, "addr add "+a.String()+" dev lo"+pick(a, "", " nodad"))
		}
		if err := d.net.ip(ctx, b.Name, backend); err != nil {
			return err
		}
	}
	if err := errors.Join(
		d.net.ip(ctx, "router", router),
		d.net.ip(ctx, "client", []string{
			"addr add " + client4 + "/24 dev eth0", "addr add " + client6 + "/64 dev eth0 nodad",
			"route add default via " + router4, "route add default via " + router6,
		}),
	); err != nil {
		return err
	}
	// A veth pair leaves checksums to hardware that it does not have; a real
	// network card would have filled them in.
	_, err := d.net.run(ctx, "client", "ethtool", "-K", "eth0", "tx", "off")
	return err
}

func pick(a netip.Addr, four, six string) string {
	if a.Is4() {
		return four
	}
	return six
}

// start begins the backends, the router's BGP and the balancers, and waits until
// all is ready.
func (d *demo) start(ctx context.Context) error {
	d.say("\nThe backends: the VIPs on their loopback, HTTP and UDP servers, `lbgraph decap`")
	for _, b := range d.backends {
		if err := errors.Join(
			d.serve(b),
			d.net.start(b.Name, "decap", d.net.binary, "decap", "--interface", "eth0"),
		); err != nil {
			return err
		}
	}
	if err := d.route(); err != nil {
		return err
	}
	d.say("\nThe balancers, both: lbgraph %s", strings.Join(d.command(), " "))
	for _, g := range d.File.Graphs {
		d.say("\n%s", strings.TrimSuffix(Picture(g), "\n"))
	}
	if err := d.copy(); err != nil {
		return err
	}
	for i := range balancers {
		if err := d.balance(i); err != nil {
			return err
		}
	}
	d.say("\nThe router: BIRD with BGP to both, and ECMP over what they announce")
	if err := d.ways(ctx, len(balancers)); err != nil {
		return err
	}
	d.fact(true, "both announce %s: the router has %d ways to each", d.names(), len(balancers))
	return nil
}

// serve begins a backend's servers: on the VIPs, and where checks ask.
func (d *demo) serve(b state.BackendSpec) error {
	args := []string{d.net.binary, "demo", "backend", "--name", b.Name}
	for _, v := range d.vips {
		for _, p := range v.Ports {
			flag := map[uint8]string{6: "--http", 17: "--udp"}[v.Protocol]
			if flag != "" {
				args = append(args, flag, netip.AddrPortFrom(v.Prefix.Addr(), p.Lo).String())
			}
		}
	}
	args = append(args, "--http", d.added.String())
	for _, at := range d.checks(b) {
		args = append(args, "--http", at.String())
	}
	return d.net.start(b.Name, "server", args...)
}

// command is the balancers' command line.
func (d *demo) command() []string {
	return append([]string{"run", filepath.Base(d.File.Path)}, d.Args...)
}

// balance begins a balancer. It has /run and /var/lib for itself, where the file
// may have it keep things.
func (d *demo) balance(i int) error {
	const script = `cd "$1" && shift && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib && exec "$@"`
	args := append([]string{"unshare", "--mount", "sh", "-ec", script, "sh", d.net.conf(), d.net.binary}, d.command()...)
	return d.net.start(balancers[i], "balancer", args...)
}

func (d *demo) curl(ctx context.Context, url string, args ...string) (string, error) {
	args = append([]string{"curl", "-sS", "--fail", "--max-time", "20", url}, args...)
	out, err := d.net.run(ctx, "client", args...)
	return strings.TrimSpace(out), err
}

// ask sends HTTP requests, each on a connection of its own.
func (d *demo) ask(ctx context.Context) error {
	for _, at := range []netip.AddrPort{d.http, d.http6} {
		if !at.IsValid() {
			continue
		}
		url := "http://" + at.String() + "/"
		d.say("\nHTTP: %d times curl %s", requests, url)
		who := map[string]int{}
		var failed error
		for range requests {
			name, err := d.curl(ctx, url, "--max-time", "3")
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				failed = err
				continue
			}
			who[name]++
		}
		d.answered(who, requests, failed)
	}
	return nil
}

// answered states that all of n requests were answered, by every backend.
func (d *demo) answered(who map[string]int, n int, failed error) {
	total := 0
	for _, k := range who {
		total += k
	}
	words := fmt.Sprintf("%d of %d answered: %s", total, n, tally(who))
	if failed != nil {
		words += "; " + failed.Error()
	}
	d.fact(total == n, "%s", words)
	d.fact(len(who) == len(d.backends), "all %d backends answered", len(d.backends))
}

// tally lists who answered how often.
func tally(who map[string]int) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(who)) {
		all = append(all, fmt.Sprintf("%s %d", name, who[name]))
	}
	return strings.Join(all, ", ")
}

// askUDP sends datagrams: small ones, one in fragments, and one too big that must
// not be fragmented.
func (d *demo) askUDP(ctx context.Context) error {
	if !d.udp.IsValid() {
		return nil
	}
	d.say("\nUDP: %d datagrams to %s", requests, d.udp)
	out, err := d.net.run(ctx, "client", d.Binary, "demo", "udp", d.udp.String(), "--count", strconv.Itoa(requests), "--size", "64")
	if ctx.Err() != nil {
		return ctx.Err()
	}
	who := map[string]int{}
	for _, name := range strings.Fields(out) {
		who[name]++
	}
	d.answered(who, requests, err)

	out, err = d.net.run(ctx, "client", d.Binary, "demo", "udp", d.udp.String(), "--size", "4000")
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.fact(err == nil, "a datagram of 4000 bytes, in fragments, came back whole%s", from(strings.TrimSpace(out), err))

	out, err = d.net.run(ctx, "client", d.Binary, "demo", "udp", d.udp.String(), "--path-mtu", "1500")
	if ctx.Err() != nil {
		return ctx.Err()
	}
	mtu := strings.TrimSpace(out)
	d.fact(err == nil && mtu == "1476", "a datagram of 1500 bytes that must not be cut was refused by ICMP: the path takes %s%s", mtu, from("", err))
	return nil
}

func from(name string, err error) string {
	switch {
	case err != nil:
		return ": " + err.Error()
	case name != "":
		return " from " + name
	}
	return ""
}

// bulk moves many bytes each way and compares their sums.
func (d *demo) bulk(ctx context.Context) error {
	d.say("\n%d MB each way; the client's link takes packets of 1500 bytes", bulk>>20)
	var body bytes.Buffer
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(&body, sum), Bytes(bulk)); err != nil {
		return err
	}
	want := fmt.Sprintf("%d %x", bulk, sum.Sum(nil))
	up, down := filepath.Join(d.net.dir, "up"), filepath.Join(d.net.dir, "down")
	if err := os.WriteFile(up, body.Bytes(), 0o600); err != nil {
		return err
	}
	base := "http://" + d.http.String()

	began := time.Now()
	out, err := d.curl(ctx, base+"/upload", "--data-binary", "@"+up, "-H", "Expect:", "-H", "Content-Type: application/octet-stream")
	if ctx.Err() != nil {
		return ctx.Err()
	}
	name, got, _ := strings.Cut(out, " ")
	d.fact(err == nil && got == want, "upload arrived whole in %.1f s%s", time.Since(began).Seconds(), from(name, err))

	before, noCount := d.received(ctx)
	began = time.Now()
	_, err = d.curl(ctx, fmt.Sprintf("%s/bytes/%d", base, bulk), "-o", down)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	took := time.Since(began).Seconds()
	same := false
	if err == nil {
		var b []byte
		b, err = os.ReadFile(down)
		same = bytes.Equal(b, body.Bytes())
	}
	d.fact(same, "download arrived whole in %.1f s%s", took, from("", err))
	after, err := d.received(ctx)
	if err := errors.Join(noCount, err); err != nil {
		return err
	}
	d.past(after - before)
	return nil
}

// past states that a download of bulk bytes, during which the balancers received so
// many, did not come by them.
func (d *demo) past(received float64) {
	d.fact(received < bulk/10, "it went past the balancers, which saw %.0f KB of acknowledgements", received/1024)
}
