package lang

import (
	"fmt"
	"math/big"
	"net/netip"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph/conf"
)

// PoolConfig is the arguments of a pool block.
type PoolConfig struct {
	TableSize    int             `hcl:"table_size,optional" range:"251,1000003" doc:"slots of the pool's Maglev table, a prime"`
	HashSeed     uint64          `hcl:"hash_seed,optional" doc:"mixed into the selection hash; the same on all nodes"`
	Health       string          `hcl:"health,optional" ref:"health" doc:"the check that its backends must pass"`
	FailOpen     bool            `hcl:"fail_open,optional" doc:"with no usable backend, use all of them"`
	RemovalGrace time.Duration   `hcl:"removal_grace,optional" doc:"how long a backend removed from the file keeps its flows"`
	Backend      []BackendConfig `hcl:"backend,block" doc:"a backend"`
	Backends     []BackendConfig `hcl:"backends,optional" doc:"backends as a list of objects, for use with for expressions"`
}

// PoolDefaults are the values of a pool block that says nothing.
func PoolDefaults() PoolConfig {
	return PoolConfig{TableSize: 65537, RemovalGrace: 5 * time.Minute}
}

// BackendConfig is the arguments of a backend block.
type BackendConfig struct {
	Name    string     `hcl:"name,label" doc:"what commands call it, behind its pool's name"`
	Address netip.Addr `hcl:"address" doc:"where it is reached; the backend's identity"`
	Weight  int        `hcl:"weight,optional" range:"0,1000" doc:"its share of new flows; 0 gets none"`
	Port    int        `hcl:"port,optional" range:"0,65535" doc:"for streams and checks; 0 is none"`
	Drain   bool       `hcl:"drain,optional" doc:"keep its flows and give it no new ones"`
}

// SetDefaults makes c what a backend block that says nothing is.
func (c *BackendConfig) SetDefaults() { c.Weight = 100 }

// VIPConfig is the arguments of a vip block.
type VIPConfig struct {
	Address    netip.Prefix   `hcl:"address" doc:"the address or prefix that is balanced"`
	Protocol   string         `hcl:"protocol,optional" enum:"tcp,udp,any" doc:"the protocol that is served"`
	Ports      []ports        `hcl:"ports,optional" doc:"ports, as in [80, \"8000-8099\"]; all if left out"`
	Pool       string         `hcl:"pool" ref:"pool" doc:"the pool that serves it"`
	Affinity   string         `hcl:"affinity,optional" enum:"none,source" doc:"source selects by the client's address alone"`
	OnMismatch string         `hcl:"on_mismatch,optional" enum:"drop,leave" doc:"what becomes of other protocols and ports: dropped, or left to the kernel"`
	Enabled    bool           `hcl:"enabled,optional" doc:"false withdraws and stops it"`
	Allow      []netip.Prefix `hcl:"allow,optional" doc:"sources that source-filter lets through"`
	Deny       []netip.Prefix `hcl:"deny,optional" doc:"sources that source-filter drops; the longer prefix of both lists decides"`
	Unlisted   string         `hcl:"unlisted,optional" enum:"allow,deny" doc:"what source-filter does with sources on no list; where it is not given, that node's own unlisted counts"`
	Require    string         `hcl:"require,optional" enum:"all,any" doc:"whether all or any of the pools behind its address must be healthy for it to be announced"`
	Quorum     int            `hcl:"quorum,optional" range:"1,16383" doc:"healthy backends that its pool needs for it to be announced"`
	Optional   bool           `hcl:"optional,optional" doc:"its health does not decide whether the address is announced"`
}

// VIPDefaults are the values of a vip block that says nothing.
func VIPDefaults() VIPConfig {
	return VIPConfig{
		Protocol: "any", Affinity: "none", OnMismatch: "drop", Enabled: true,
		Require: "all", Quorum: 1,
	}
}

// ports is one element of a vip's list.
type ports state.PortRange

// UnmarshalText reads a port or a range of ports.
func (p *ports) UnmarshalText(b []byte) error {
	lo, hi, two := strings.Cut(string(b), "-")
	if !two {
		hi = lo
	}
	l, err1 := strconv.ParseUint(strings.TrimSpace(lo), 10, 16)
	h, err2 := strconv.ParseUint(strings.TrimSpace(hi), 10, 16)
	if err1 != nil || err2 != nil {
		return fmt.Errorf(`write a port from 0 to 65535, or a range as in "8000-8099"`)
	}
	if l > h {
		return fmt.Errorf("the range ends before it begins; write %d-%d", h, l)
	}
	*p = ports{uint16(l), uint16(h)}
	return nil
}

// String answers the port or range as in the file.
func (p ports) String() string { return portText(state.PortRange(p)) }

func portText(p state.PortRange) string {
	if p.Lo == p.Hi {
		return strconv.Itoa(int(p.Lo))
	}
	return fmt.Sprintf("%d-%d", p.Lo, p.Hi)
}

// broadcast is the address of everybody on the link (RFC 919), and of no host.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

var protocols = map[string]uint8{"tcp": 6, "udp": 17, "any": 0}

func (l *loader) pools(bs hcl.Blocks) {
	for _, b := range bs {
		key := "pool." + b.Labels[0]
		c := PoolDefaults()
		if l.tell(conf.DecodeBlock(b, l.ctx, &c, conf.Options{Place: l.place(key)})) {
			l.faulty[key] = true
		}
		p := state.PoolSpec{
			Name: b.Labels[0], TableSize: c.TableSize, HashSeed: c.HashSeed, Health: c.Health,
			FailOpen: c.FailOpen, RemovalGrace: c.RemovalGrace,
		}
		if n := int64(c.TableSize); c.TableSize >= 251 && !big.NewInt(n).ProbablyPrime(0) {
			l.fault(l.at(key+".table_size", key), "Table size is no prime", "%d is no prime, and Maglev needs one. Write %d.", n, nextPrime(n))
		}
		first := map[string]hcl.Range{}
		add := func(c BackendConfig, at hcl.Range, prefix string) {
			if c.Name == "" {
				return // told
			}
			if !backendName(c.Name) {
				l.fault(at, "Name cannot be used", "%q cannot stand in a command as %s/NAME. Use letters, digits and . : - _, 64 at most.", c.Name, p.Name)
				return
			}
			if f, twice := first[c.Name]; twice {
				l.fault(at, "Name used twice", "There is a %s %q at %s already. Give one of them another name.", "backend", c.Name, where(f))
				return
			}
			first[c.Name] = at
			l.file.Places[key+"."+c.Name] = at
			if r, ok := l.file.Places[prefix+".address"]; ok {
				l.file.Places[key+"."+c.Name+".address"] = r
			}
			if !c.Address.IsValid() {
				return // told
			}
			if c.Address.IsUnspecified() || c.Address.IsMulticast() || c.Address.Zone() != "" || c.Address == broadcast {
				l.fault(l.at(key+"."+c.Name+".address", key), "Address cannot be used", "%s is no address of a single host. Write a unicast address without a zone.", c.Address)
				return
			}
			p.Backends = append(p.Backends, state.BackendSpec{Name: c.Name, Address: c.Address, Weight: c.Weight, Port: c.Port, Drain: c.Drain})
		}
		for _, x := range c.Backend {
			prefix := key + ".backend." + x.Name
			add(x, l.at(prefix, key), prefix)
		}
		for i, x := range c.Backends {
			prefix := fmt.Sprintf("%s.backends[%d]", key, i)
			add(x, l.at(prefix, key), prefix)
		}
		l.file.Spec.Pools = append(l.file.Spec.Pools, p)
	}
}

// at answers the first of places that is known.
func (l *loader) at(keys ...string) hcl.Range {
	for _, k := range keys {
		if r, ok := l.file.Places[k]; ok {
			return r
		}
	}
	return hcl.Range{Filename: l.path}
}

func backendName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, r := range s {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune(".:-_", r):
		default:
			return false
		}
	}
	return true
}

func nextPrime(n int64) int64 {
	if n >= 1000003 {
		return 1000003
	}
	for ; !big.NewInt(n).ProbablyPrime(0); n++ {
	}
	return n
}

func (l *loader) vips(bs hcl.Blocks) {
	for _, b := range bs {
		key := "vip." + b.Labels[0]
		c := VIPDefaults()
		if l.tell(conf.DecodeBlock(b, l.ctx, &c, conf.Options{Place: l.place(key)})) {
			l.faulty[key] = true
		}
		if c.Pool != "" {
			l.used[c.Pool] = true
		}
		v := state.VIPSpec{
			Name: b.Labels[0], Prefix: c.Address, Protocol: protocols[c.Protocol], Pool: c.Pool,
			Affinity: c.Affinity == "source", Leave: c.OnMismatch == "leave", Disabled: !c.Enabled,
			Allow: c.Allow, Deny: c.Deny, Unlisted: c.Unlisted,
			Require: c.Require, Quorum: c.Quorum, Optional: c.Optional,
		}
		for _, p := range c.Ports {
			v.Ports = append(v.Ports, state.PortRange(p))
		}
		if a := c.Address.Addr(); a.IsMulticast() || c.Address.IsSingleIP() && (a.IsUnspecified() || a == broadcast) {
			l.fault(l.at(key+".address", key), "Address cannot be used", "%s is no address of a single host. Write a unicast address without a zone.", a)
			l.faulty[key] = true
		}
		if c.Ports != nil && len(c.Ports) == 0 && !l.faulty[key] {
			l.fault(l.at(key+".ports", key), "No ports", "The list is empty, so the VIP would serve nothing. Leave ports out for all of them.")
			l.faulty[key] = true
		}
		denied := map[netip.Prefix]bool{}
		for _, p := range c.Deny {
			denied[p] = true
		}
		for i, p := range c.Allow {
			if p.IsValid() && denied[p] {
				l.fault(l.at(fmt.Sprintf("%s.allow[%d]", key, i), key+".allow", key), "Source on both lists", "%s is allowed and denied. Take it off one list.", p)
			}
		}
		l.file.Spec.VIPs = append(l.file.Spec.VIPs, v)
	}
}

// checkSpec checks pools and VIPs against each other. What has a fault already
// is left out.
func (l *loader) checkSpec() {
	s := &l.file.Spec
	byVIP := map[string]bool{}
	for _, v := range s.VIPs {
		byVIP[v.Pool] = true
	}
	for _, p := range s.Pools {
		key := "pool." + p.Name
		if !l.used[p.Name] && !l.used["*"] && !l.diags.HasErrors() { // what should use it may be at fault
			l.warn(l.at(key), "Pool is not used", "No VIP and no stream names pool %q. Name it in one, or remove it.", p.Name)
		}
		if l.faulty[key] {
			continue
		}
		l.checkBackends(p, byVIP[p.Name])
	}
	l.checkServices()
	l.checkLockOut()
}

func (l *loader) checkBackends(p state.PoolSpec, packets bool) {
	key := "pool." + p.Name
	if len(p.Backends) == 0 && !l.diags.HasErrors() {
		l.warn(l.at(key), "Pool without backends", "Pool %q has no backend, so all its packets drop. Add a backend block.", p.Name)
	}
	type identity struct {
		addr netip.Addr
		port int
	}
	first := map[identity]string{}
	sum, least := 0, 0
	for _, b := range p.Backends {
		id := identity{b.Address, b.Port}
		if packets {
			id.port = 0 // packets are sent to the address alone
		}
		if f, twice := first[id]; twice {
			l.fault(l.at(key+"."+b.Name+".address", key+"."+b.Name), "Address used twice", "%q and %q of pool %q have the address %s. Give one backend all of the weight.", f, b.Name, p.Name, b.Address)
			continue
		}
		first[id] = b.Name
		sum += b.Weight
		if b.Weight > 0 && (least == 0 || b.Weight < least) {
			least = b.Weight
		}
	}
	if least > 0 && p.TableSize*least < 100*sum {
		need := int64((100*sum + least - 1) / least)
		what := fmt.Sprintf("Set table_size = %d", nextPrime(need))
		if need > 1000003 {
			what = "Bring the weights closer together"
		}
		l.warn(l.at(key+".table_size", key), "Weights are not exact", "The weights of pool %q add up to %d and the smallest is %d, which %d slots cannot tell apart within 3 %%. %s.", p.Name, sum, least, p.TableSize, what)
	}
}

// checkServices tells of two enabled VIPs between which a packet cannot be told
// to belong.
func (l *loader) checkServices() {
	type service struct {
		prefix netip.Prefix
		proto  uint8
	}
	type use struct {
		state.PortRange
		vip string
		at  hcl.Range
	}
	all := map[service][]use{}
	var order []service
	for _, v := range l.file.Spec.VIPs {
		key := "vip." + v.Name
		if v.Disabled || l.faulty[key] {
			continue
		}
		k := service{v.Prefix, v.Protocol}
		if all[k] == nil {
			order = append(order, k)
		}
		if v.Ports == nil {
			all[k] = append(all[k], use{state.PortRange{Lo: 0, Hi: 65535}, v.Name, l.at(key+".address", key)})
		}
		for i, p := range v.Ports {
			all[k] = append(all[k], use{p, v.Name, l.at(fmt.Sprintf("%s.ports[%d]", key, i), key+".ports", key)})
		}
	}
	for _, k := range order {
		us := all[k]
		sort.SliceStable(us, func(i, j int) bool {
			a, b := us[i].at, us[j].at
			if a.Filename != b.Filename {
				return a.Filename == l.path // the file itself comes before those that it includes
			}
			return a.Start.Byte < b.Start.Byte
		})
		exact := map[state.PortRange]use{}
		var ranges []use
		for _, u := range us {
			if f, twice := exact[u.PortRange]; twice {
				what := "port " + portText(u.PortRange)
				if u.Lo == 0 && u.Hi == 65535 {
					what = "every port"
				}
				l.fault(u.at, "Service declared twice", "%s, protocol %s, %s belongs to vip %q already, at %s. Leave it out of one.", addressText(k.prefix), protocolText(k.proto), what, f.vip, where(f.at))
				continue
			}
			exact[u.PortRange] = u
			if u.Lo == u.Hi || u.Lo == 0 && u.Hi == 65535 {
				continue
			}
			for _, r := range ranges {
				if u.Lo <= r.Hi && r.Lo <= u.Hi {
					l.fault(u.at, "Port ranges overlap", "%s and %s (vip %q, at %s) have ports in common. Divide them.", portText(u.PortRange), portText(r.PortRange), r.vip, where(r.at))
					break
				}
			}
			ranges = append(ranges, u)
		}
	}
}

func protocolText(p uint8) string {
	for n, v := range protocols {
		if v == p {
			return n
		}
	}
	return strconv.Itoa(int(p))
}

func addressText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// checkLockOut tells of backends that an enabled VIP covers: packets to them
// would come back to the balancer.
func (l *loader) checkLockOut() {
	vips := map[netip.Prefix]string{}
	lengths := map[int]bool{}
	for _, v := range l.file.Spec.VIPs {
		if v.Disabled || !v.Prefix.IsValid() {
			continue
		}
		if _, had := vips[v.Prefix]; !had {
			vips[v.Prefix] = v.Name
			lengths[v.Prefix.Bits()] = true
		}
	}
	told := map[netip.Addr]bool{}
	for _, p := range l.file.Spec.Pools {
		for _, b := range p.Backends {
			for n := b.Address.BitLen(); n >= 0; n-- {
				if !lengths[n] {
					continue
				}
				prefix, err := b.Address.Prefix(n)
				if err != nil {
					continue
				}
				vip, covered := vips[prefix]
				if !covered || told[b.Address] {
					continue
				}
				told[b.Address] = true
				key := "pool." + p.Name + "." + b.Name
				at := l.at(key+".address", key)
				if prefix.IsSingleIP() {
					l.fault(at, "Backend is also a VIP", "%s is the address of vip %q, so its packets would come back here. Give the backend an address of its own.", b.Address, vip)
				} else {
					l.fault(at, "VIP covers a backend", "%s lies in %s of vip %q, so its packets would come back here. Narrow the prefix, or move the backend.", b.Address, prefix, vip)
				}
				break
			}
		}
	}
}
