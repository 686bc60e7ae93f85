package probe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/io/bpf"
)

// device is what marked packets are routed to: one end of a veth pair, whose other end
// never sees a packet, with a routing table and rules of its own. There are devices
// made for the purpose (dummy), but not in every kernel.
type device struct {
	log     *zap.Logger
	net     *netlink.Handle
	link    netlink.Link
	program *bpf.Probe
	no6     error // why there is no IPv6

	mu       sync.Mutex
	letIns   map[place]time.Time // when letIn found nothing to do any more, by VIP
	settings []setting
	before   [2]bool // our rule stands before that of local addresses: IPv4, IPv6
}

const (
	deviceName, endName = "lbgraph-probe", "lbgraph-end"
	// table is the number of our routing table, and priority that of the rule which
	// leads there: behind local addresses, before all else.
	table, priority = 0x6c62, 1
	// mtu is the smallest that IPv6 allows (RFC 8200 section 5): probes are small, and
	// the outer headers find room on any path that carries traffic.
	mtu = 1280
	// stale is when letIn looks again: it is dear, and little changes.
	stale = 5 * time.Second
	// patience is how long a program of our own is waited for to go: the kernel takes
	// those of a dead process off with a delay.
	patience = time.Second
)

var families = [2]int{unix.AF_INET, unix.AF_INET6}

func open(log *zap.Logger) (*device, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	d := &device{log: log, net: h, letIns: map[place]time.Time{}}
	if err = d.takeOver(); err != nil {
		h.Close()
		return nil, err
	}
	if err = d.make(); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// takeOver removes what a process that died left.
func (d *device) takeOver() error {
	l, err := d.net.LinkByName(deviceName)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return d.removeRules()
	}
	if err != nil {
		return err
	}
	for end := time.Now().Add(patience); bpf.ProbeBusy(l.Attrs().Index); time.Sleep(patience / 50) {
		if time.Now().After(end) {
			return fmt.Errorf("%s: %w", deviceName, bpf.ErrBusy)
		}
	}
	d.link, d.settings = l, readSettings(l.Attrs().Alias)
	d.log.Info("taking over what a process that died left", zap.String("device", deviceName))
	err = errors.Join(d.restore(), d.removeRules(), d.net.LinkDel(l))
	d.link = nil
	return err
}

func (d *device) make() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = deviceName, mtu
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerMTU = endName, mtu
	if err := d.net.LinkAdd(v); err != nil {
		return fmt.Errorf("making %s: %w", deviceName, err)
	}
	var err error
	if d.link, err = d.net.LinkByName(deviceName); err != nil {
		return err
	}
	end, err := d.net.LinkByName(endName)
	if err != nil {
		return err
	}
	// No neighbour is looked for, and no address is made up.
	if err := d.net.LinkSetARPOff(d.link); err != nil {
		return err
	}
	const none = 1 // IN6_ADDR_GEN_MODE_NONE
	d.no6 = errors.Join(d.net.LinkSetIP6AddrGenMode(d.link, none), d.net.LinkSetIP6AddrGenMode(end, none), enable6(deviceName))
	if d.program, err = bpf.AttachProbe(bpf.ProbeOptions{Interface: d.link.Attrs().Index}); err != nil {
		return err
	}
	for _, l := range []netlink.Link{d.link, end} {
		if err := d.net.LinkSetUp(l); err != nil {
			return fmt.Errorf("bringing %s up: %w", l.Attrs().Name, err)
		}
	}
	for i, family := range families {
		err := d.net.RouteAdd(&netlink.Route{
			LinkIndex: d.link.Attrs().Index, Table: table, Family: family, Scope: unix.RT_SCOPE_LINK,
			Dst: &net.IPNet{IP: make(net.IP, 4+12*i), Mask: make(net.IPMask, 4+12*i)},
		})
		if err == nil {
			err = d.net.RuleAdd(rule(family, priority))
		}
		switch {
		case err != nil && family == unix.AF_INET6:
			d.no6 = err
		case err != nil:
			return fmt.Errorf("routing probes to %s: %w", deviceName, err)
		}
	}
	return nil
}

// enable6 has a device speak IPv6, where new ones do not by themselves.
func enable6(link string) error {
	path := filepath.Join("/proc/sys/net/ipv6/conf", link, "disable_ipv6")
	off, err := readInt(path)
	if err != nil || off == 0 {
		return err
	}
	return os.WriteFile(path, []byte("0"), 0)
}

// close removes all that there is, and puts settings back.
func (d *device) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := errors.Join(d.restore(), d.removeRules())
	if d.program != nil {
		err = errors.Join(err, d.program.Close())
	}
	if d.link != nil {
		err = errors.Join(err, d.net.LinkDel(d.link))
	}
	d.net.Close()
	return err
}

// rule leads probes to our table.
func rule(family, priority int) *netlink.Rule {
	r, mask := netlink.NewRule(), uint32(bpf.ProbeMask)
	r.Family, r.Priority, r.Table, r.Mark, r.Mask = family, priority, table, bpf.ProbeMark, &mask
	return r
}

func ours(r *netlink.Rule) bool {
	return r.Table == table && r.Mark == bpf.ProbeMark && r.Mask != nil && *r.Mask == bpf.ProbeMask
}

// isLocal tells whether r is the rule by which the kernel knows its own addresses.
func isLocal(r *netlink.Rule) bool {
	return r.Table == unix.RT_TABLE_LOCAL && r.Mark == 0 && r.Src == nil && r.Dst == nil && r.IifName == "" && r.OifName == "" && !r.Invert
}

func (d *device) removeRules() error {
	var errs []error
	for _, family := range families {
		all, err := d.net.RuleList(family)
		if err != nil {
			continue // there is no such family
		}
		for i := range all {
			if ours(&all[i]) {
				errs = append(errs, d.net.RuleDel(rule(family, all[i].Priority)))
			}
		}
	}
	return errors.Join(errs...)
}

// ahead puts our rule before that of local addresses. The two may have the same
// priority, 0, and then a new rule comes behind older ones: so the older one is made
// again behind ours and then removed. At no time there is none.
func (d *device) ahead(family int) error {
	all, err := d.net.RuleList(family)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(r netlink.Rule) bool { return isLocal(&r) })
	if at < 0 || slices.ContainsFunc(all[:at], func(r netlink.Rule) bool { return ours(&r) }) {
		return nil
	}
	p := all[at].Priority
	if err := d.net.RuleAdd(rule(family, p)); err != nil {
		return err
	}
	// Not by RuleAdd, which refuses a rule that there is already.
	req := nl.NewNetlinkRequest(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_ACK)
	m := nl.NewRtMsg()
	m.Family, m.Table, m.Type, m.Protocol = uint8(family), unix.RT_TABLE_LOCAL, unix.RTN_UNICAST, unix.RTPROT_KERNEL
	req.AddData(m)
	req.AddData(nl.NewRtAttr(nl.FRA_PRIORITY, nl.Uint32Attr(uint32(p))))
	req.AddData(nl.NewRtAttr(nl.FRA_PROTOCOL, nl.Uint8Attr(unix.RTPROT_KERNEL)))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("making the rule of local addresses again: %w", err)
	}
	old := netlink.NewRule()
	old.Family, old.Priority, old.Table = family, p, unix.RT_TABLE_LOCAL
	return d.net.RuleDel(old)
}

// route answers how the kernel would send to a.
func (d *device) route(a netip.Addr) (netlink.Route, error) { return d.routeBy(a, nil) }

func (d *device) routeBy(a netip.Addr, o *netlink.RouteGetOptions) (netlink.Route, error) {
	all, err := d.net.RouteGetWithOptions(a.AsSlice(), o)
	if err != nil {
		return netlink.Route{}, err
	}
	if len(all) == 0 {
		return netlink.Route{}, unix.ENETUNREACH
	}
	return all[0], nil
}

// place is an address and the link that it stands on.
type place struct {
	addr netip.Addr
	link int
}

// addresses answers this machine's own of a family, as far as they are in use.
func (d *device) addresses(v4 bool) (all []place, err error) {
	family := unix.AF_INET6
	if v4 {
		family = unix.AF_INET
	}
	list, err := d.net.AddrList(nil, family)
	if err != nil {
		return nil, err
	}
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED|unix.IFA_F_DEPRECATED) == 0 {
			all = append(all, place{ip.Unmap(), a.LinkIndex})
		}
	}
	return all, nil
}

// letIn sees to it that the kernel takes answers in that come from a VIP by a link.
// With IPv4 it looks at where it would send to the VIP itself, and refuses an answer
// from an address of its own, or, with rp_filter, by another link than it would use.
func (d *device) letIn(vip netip.Addr, link int) error {
	key := place{vip, link}
	d.mu.Lock()
	fresh := time.Since(d.letIns[key]) < stale
	d.mu.Unlock()
	if fresh {
		return nil
	}
	if err := d.look(vip, link); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.letIns) > 10000 { // of VIPs that are gone
		clear(d.letIns)
	}
	d.letIns[key] = time.Now()
	return nil
}

// look is letIn, now.
func (d *device) look(vip netip.Addr, link int) error {
	if !vip.Is4() {
		if d.no6 != nil {
			return fmt.Errorf("there is no IPv6: %w", d.no6)
		}
		return d.look6(vip)
	}
	by, err := d.net.LinkByIndex(link)
	if err != nil {
		return err
	}
	name := by.Attrs().Name
	filter, err := effective(name, "rp_filter")
	if err != nil {
		return err
	}
	r, err := d.routeBy(vip, &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil {
		if filter != 0 {
			return fmt.Errorf("there is no route to %s, without which rp_filter drops what comes from there by %s: %w", vip, name, err)
		}
		return nil
	}
	local := r.Type == unix.RTN_LOCAL
	if local {
		if err := d.first(0); err != nil {
			return err
		}
		if err := d.set(name, "accept_local", 1); err != nil {
			return err
		}
	}
	if filter == 1 && !uses(&r, link) {
		return d.set(name, "rp_filter", 2)
	}
	return nil
}

// look6 is look for IPv6, which minds only what leaves.
func (d *device) look6(vip netip.Addr) error {
	r, err := d.route(vip)
	if err == nil && r.Type == unix.RTN_LOCAL {
		return d.first(1)
	}
	return nil
}

// first is ahead, once.
func (d *device) first(family int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.before[family] {
		return nil
	}
	if err := d.ahead(families[family]); err != nil {
		return fmt.Errorf("routing probes of the machine's own addresses: %w", err)
	}
	d.before[family] = true
	return nil
}

// uses tells whether a route leaves by a link, as far as rp_filter minds.
func uses(r *netlink.Route, link int) bool {
	if r.Type == unix.RTN_UNICAST && r.LinkIndex == link {
		return true
	}
	return slices.ContainsFunc(r.MultiPath, func(n *netlink.NexthopInfo) bool { return n.LinkIndex == link })
}

// A setting is an interface's parameter that was changed, and what it was.
type setting struct {
	link, name string
	was, is    int
}

func sysctl(link, name string) string { return filepath.Join("/proc/sys/net/ipv4/conf", link, name) }

func readInt(path string) (n int, err error) {
	b, err := os.ReadFile(path)
	if err == nil {
		_, err = fmt.Sscan(string(b), &n)
	}
	return n, err
}

// effective answers the value that counts: the larger of the interface's and of all.
func effective(link, name string) (int, error) {
	a, err := readInt(sysctl("all", name))
	if err != nil {
		return 0, err
	}
	b, err := readInt(sysctl(link, name))
	return max(a, b), err
}

// set changes a parameter of an interface, unless it holds already. What it was is
// kept at our device, as its alias, which outlives this process.
func (d *device) set(link, name string, value int) error {
	if now, err := effective(link, name); err != nil || now == value {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	was, err := readInt(sysctl(link, name))
	if err != nil || was == value {
		return err
	}
	all := append(slices.Clip(d.settings), setting{link, name, was, value})
	if err := d.net.LinkSetAlias(d.link, writeSettings(all)); err != nil {
		return fmt.Errorf("keeping what %s of %s was: %w", name, link, err)
	}
	d.settings = all
	d.log.Warn("health checks of a VIP need an interface's parameter changed; it is put back at the end",
		zap.String("parameter", "net.ipv4.conf."+link+"."+name), zap.Int("was", was), zap.Int("is", value))
	return os.WriteFile(sysctl(link, name), fmt.Append(nil, value), 0)
}

// restore puts parameters back that nobody else has changed since.
func (d *device) restore() error {
	var errs []error
	for _, s := range slices.Backward(d.settings) {
		now, err := readInt(sysctl(s.link, s.name))
		switch {
		case errors.Is(err, os.ErrNotExist): // with its interface
		case err != nil:
			errs = append(errs, err)
		case now == s.is:
			errs = append(errs, os.WriteFile(sysctl(s.link, s.name), fmt.Append(nil, s.was), 0))
		}
	}
	d.settings = nil
	return errors.Join(errs...)
}

// writeSettings and readSettings are the form that an alias has: "eth0 rp_filter 1 2"
// for one that was 1 and is 2, several separated by ";".
func writeSettings(all []setting) string {
	var b strings.Builder
	for i, s := range all {
		if i > 0 {
			b.WriteByte(';')
		}
		fmt.Fprint(&b, s.link, " ", s.name, " ", s.was, " ", s.is)
	}
	return b.String()
}

func readSettings(alias string) (all []setting) {
	for _, w := range strings.Split(alias, ";") {
		var s setting
		if n, _ := fmt.Sscan(w, &s.link, &s.name, &s.was, &s.is); n == 4 && (s.name == "rp_filter" || s.name == "accept_local") {
			all = append(all, s)
		}
	}
	return all
}
