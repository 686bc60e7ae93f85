package vipclassify

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

func world(t testing.TB, vips ...state.VIPSpec) *state.Snapshot {
	t.Helper()
	spec := state.Spec{VIPs: vips}
	for _, name := range []string{"web", "dns"} {
		spec.Pools = append(spec.Pools, state.PoolSpec{Name: name, TableSize: 251, Backends: []state.BackendSpec{
			{Name: "1", Address: netip.MustParseAddr("10.0.0.1"), Weight: 100},
		}})
	}
	s, err := state.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func vip(addr, pool string, proto uint8, ports ...uint16) state.VIPSpec {
	p, err := netip.ParsePrefix(addr)
	if err != nil {
		a := netip.MustParseAddr(addr)
		p = netip.PrefixFrom(a, a.BitLen())
	}
	v := state.VIPSpec{Name: fmt.Sprint(pool, addr), Prefix: p, Protocol: proto, Pool: pool}
	for _, x := range ports {
		v.Ports = append(v.Ports, state.PortRange{Lo: x, Hi: x})
	}
	return v
}

func rig(t testing.TB, s *state.Snapshot) *nodetest.Worker {
	return nodetest.New[struct{}](t, "vip-classify", nil, nodetest.WithState(s)).Workers[0]
}

// lane is one packet as parse would describe it.
type lane struct {
	dst   string
	proto uint8
	port  uint16
	flags packet.Flags
	out   string
	pool  string
}

func run(t *testing.T, w *nodetest.Worker, lanes []lane) {
	t.Helper()
	for name, in := range map[string]packet.Lanes{"dense": packet.All(len(lanes)), "sparse": packet.All(2*len(lanes)) & 0xaaaaaaaaaaaaaaaa} {
		w.V = packet.Vector{}
		k := 0
		for l := in; l != 0; l &= l - 1 {
			i, x := l.Next()&63, lanes[k]
			k++
			w.V.Dst[i], w.V.Proto[i], w.V.DPort[i], w.V.Flags[i] = packet.AddrOf(netip.MustParseAddr(x.dst)), x.proto, x.port, x.flags
			w.V.VIP[i] = 77
		}
		ans := w.Process(in)
		k = 0
		for l := in; l != 0; l &= l - 1 {
			i, x := l.Next()&63, lanes[k]
			k++
			if got := w.Only(ans, i); got != x.out {
				t.Errorf("%s: %+v leaves by %s", name, x, got)
			}
			s, pool := w.State(), ""
			if id := w.V.VIP[i]; id != 0 && int(id) < len(s.Services) {
				pool = s.Pools[s.Services[id].Pool].Name
			} else if id != 0 {
				t.Errorf("%s: %+v has service %d", name, x, id)
			}
			if pool != x.pool {
				t.Errorf("%s: %+v is led to pool %q", name, x, pool)
			}
		}
	}
}

func TestClassify(t *testing.T) {
	left := vip("203.0.113.30", "web", 6, 443)
	left.Leave = true
	off := vip("203.0.113.40", "web", 6, 443)
	off.Disabled = true
	s := world(t,
		vip("203.0.113.10", "web", 6, 80, 443), vip("203.0.113.10", "dns", 17, 53), vip("203.0.113.20", "web", 0),
		left, off, vip("198.18.0.0/24", "web", 6, 443), vip("198.18.0.7", "dns", 6, 443), vip("2001:db8::10", "web", 6, 443), vip("2001:db8:1::/48", "dns", 0, 53))
	run(t, rig(t, s), []lane{
		{"203.0.113.10", 6, 80, packet.DF, "next", "web"},
		{"203.0.113.10", 6, 443, packet.First, "next", "web"},
		{"203.0.113.10", 17, 53, 0, "next", "dns"},
		{"203.0.113.10", 6, 53, 0, "wrong_port", ""},
		{"203.0.113.10", 17, 443, 0, "wrong_port", ""},
		{"203.0.113.10", 47, 0, 0, "wrong_port", ""},
		{"203.0.113.20", 47, 0, 0, "next", "web"},
		{"203.0.113.20", 17, 9999, 0, "next", "web"},
		{"203.0.113.30", 6, 443, 0, "next", "web"},
		{"203.0.113.30", 6, 22, 0, "leave", ""},
		{"203.0.113.40", 6, 443, 0, "not_vip", ""},
		{"198.18.0.200", 6, 443, 0, "next", "web"},
		{"198.18.0.7", 6, 443, 0, "next", "dns"},
		{"198.18.0.7", 6, 80, 0, "wrong_port", ""},
		{"2001:db8::10", 6, 443, packet.V6, "next", "web"},
		{"2001:db8:1::5", 17, 53, packet.V6, "next", "dns"},
		{"2001:db8:1::5", 47, 0, packet.V6, "wrong_port", ""}, // no port counts as port 0
		{"2001:db8:2::5", 17, 53, packet.V6, "not_vip", ""},
		{"8.8.8.8", 6, 443, 0, "not_vip", ""},
		// What carries no port of its own: the address alone counts.
		{"203.0.113.10", 17, 0, packet.Later, "fragment", ""},
		{"203.0.113.40", 17, 0, packet.Later, "not_vip", ""},
		{"198.18.0.9", 1, 0, packet.ICMP, "icmp", ""},
		{"8.8.8.8", 1, 0, packet.ICMP, "not_vip", ""},
		{"203.0.113.10", 1, 0, packet.ICMP | packet.First, "icmp", ""},
		{"203.0.113.10", 1, 0, packet.ICMP | packet.Later, "fragment", ""},
		{"2001:db8::10", 58, 0, packet.ICMP | packet.V6, "icmp", ""},
		// IPv6 to a mapped IPv4 address is not for the IPv4 VIP.
		{"203.0.113.10", 6, 443, packet.V6, "not_vip", ""},
		{"203.0.113.10", 17, 0, packet.V6 | packet.Later, "not_vip", ""},
		{"203.0.113.10", 58, 0, packet.V6 | packet.ICMP, "not_vip", ""},
	})
	run(t, rig(t, world(t)), []lane{{"203.0.113.10", 6, 80, 0, "not_vip", ""}, {"203.0.113.10", 6, 80, packet.Later, "not_vip", ""}})
	run(t, rig(t, &state.Snapshot{}), []lane{{"203.0.113.10", 6, 80, 0, "not_vip", ""}})
}

// A vector sees one world: the next vector sees the next.
func TestFollowsTheSnapshot(t *testing.T) {
	r := nodetest.New[struct{}](t, "vip-classify", nil, nodetest.WithState(world(t, vip("203.0.113.10", "web", 6, 443))))
	w := r.Workers[0]
	run(t, w, []lane{{"203.0.113.10", 6, 443, 0, "next", "web"}})
	r.Publish(world(t, vip("203.0.113.10", "dns", 6, 8443)))
	run(t, w, []lane{{"203.0.113.10", 6, 443, 0, "wrong_port", ""}, {"203.0.113.10", 6, 8443, 0, "next", "dns"}})
}

func TestTrace(t *testing.T) {
	w := rig(t, world(t, vip("203.0.113.10", "web", 6, 443)))
	run(t, w, []lane{{"203.0.113.10", 6, 443, 0, "next", "web"}})
	tr := w.Node.(*worker)
	if got := tr.Trace(&w.V, 1); got != "vip web203.0.113.10" && tr.Trace(&w.V, 0) != "vip web203.0.113.10" {
		t.Errorf("trace says %q", got)
	}
	w.V.VIP[0] = 0
	if got := tr.Trace(&w.V, 0); got != "no service" {
		t.Errorf("trace says %q", got)
	}
}

func fill(w *nodetest.Worker, vips int) {
	x := uint32(7)
	for i := range packet.Size {
		x = x*1664525 + 1013904223
		w.V.Dst[i], w.V.Proto[i], w.V.DPort[i] = packet.Addr4(0xcb000000+packet.Reduce(uint64(x)<<32, uint32(vips))), 6, 443
	}
}

func many(t testing.TB, n int) *state.Snapshot {
	var vips []state.VIPSpec
	for i := range n {
		vips = append(vips, vip(fmt.Sprintf("203.0.%d.%d", i>>8, i&255), "web", 6, 443))
	}
	return world(t, vips...)
}

func TestAllocatesNothing(t *testing.T) {
	w := rig(t, many(t, 100))
	fill(w, 110) // some are none
	w.V.Flags[3], w.V.Flags[4] = packet.Later, packet.ICMP
	if n := testing.AllocsPerRun(100, func() {
		w.Run(packet.All(packet.Size))
		w.Run(0xfff0f0f0f0f0f0f0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkProcess(b *testing.B) {
	for _, vips := range []int{1, 100, 10000} {
		for _, lanes := range []packet.Lanes{packet.All(64), 0xfffffffffffffffd} {
			b.Run(fmt.Sprintf("vips=%d/dense=%v", vips, lanes == packet.All(64)), func(b *testing.B) {
				w := rig(b, many(b, vips))
				var sets [256][packet.Size]packet.Addr // fresh destinations, vector by vector
				for i := range sets {
					for j := range packet.Size {
						sets[i][j] = packet.Addr4(0xcb000000 + packet.Reduce(packet.Mix(uint64(i*64+j)^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93), uint32(vips)))
					}
				}
				fill(w, vips)
				k := 0
				for b.Loop() {
					w.V.Dst = sets[k&255]
					w.Run(lanes)
					k++
				}
				if w.Out(next) != lanes {
					b.Fatalf("%b", w.Out(next))
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(lanes.Count()), "ns/packet")
			})
		}
	}
}

func FuzzProcess(f *testing.F) {
	w := rig(f, world(f, vip("203.0.113.10", "web", 6, 80, 443), vip("198.18.0.0/24", "dns", 0), vip("2001:db8::/64", "web", 17, 53)))
	for _, c := range nodetest.Cases(f) {
		f.Add(c)
	}
	f.Add(nodetest.UDP(f, nodetest.Client4, nodetest.VIP4, 1, 2))
	f.Fuzz(func(t *testing.T, b []byte) {
		w.T = t
		// The bytes become columns: any value may stand in them.
		w.V = packet.Vector{}
		for i, x := range b {
			j := i % packet.Size
			w.V.Dst[j].Hi, w.V.Dst[j].Lo = w.V.Dst[j].Lo<<32|0x20010db8, w.V.Dst[j].Lo<<8|uint64(x)
			w.V.DPort[j], w.V.Proto[j], w.V.Flags[j] = w.V.DPort[j]<<8|uint16(x), x, w.V.Flags[j]<<8|packet.Flags(x)
			if x&1 != 0 {
				w.V.Dst[j] = packet.Addr4(0xcb00710a)
			}
		}
		ans := w.Process(packet.All(packet.Size))
		for l := ans["next"]; l != 0; l &= l - 1 {
			if i := l.Next() & 63; w.V.VIP[i] == 0 || w.V.Flags[i]&(packet.Later|packet.ICMP) != 0 {
				t.Fatalf("lane %d: service %d, flags %x", i, w.V.VIP[i], w.V.Flags[i])
			}
		}
	})
}
