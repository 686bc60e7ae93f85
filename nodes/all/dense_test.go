package all_test

import (
	"bytes"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	mtucheck "github.com/lbgraph/lbgraph/nodes/packet/mtu-check"
)

// TestDenseAndSparse: a vector whose first lanes are all there is processed by a loop
// that counts, any other by a walk over bits. What becomes of a packet is the same.
func TestDenseAndSparse(t *testing.T) {
	var spec state.Spec
	spec.Pools = []state.PoolSpec{{Name: "web", TableSize: 251, Backends: []state.BackendSpec{{Name: "one", Address: netip.MustParseAddr("10.0.1.1"), Weight: 100}}}}
	cases := nodetest.Cases(t)
	names := slices.Sorted(maps.Keys(cases))
	// Some of the packets are for it, some for another port, some for another address.
	spec.VIPs = []state.VIPSpec{{Name: "web", Prefix: netip.MustParsePrefix("203.0.113.10/32"), Protocol: packet.ProtoTCP, Ports: []state.PortRange{{Lo: 443, Hi: 443}}, Pool: "web"}}
	snap, err := state.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	type maker func() *nodetest.Rig
	bare := func(kind string) maker {
		return func() *nodetest.Rig { return nodetest.New[struct{}](t, kind, nil, nodetest.WithState(snap)) }
	}
	for kind, mk := range map[string]maker{
		"parse": bare("parse"), "vip-classify": bare("vip-classify"), "count": bare("count"),
		"mtu-check": func() *nodetest.Rig { // with some that are too long
			return nodetest.New(t, "mtu-check", func(c *mtucheck.Config) { c.ICMPRate, c.ICMPBurst = 1_000_000, 1_000_000 }, nodetest.WithState(snap), nodetest.MTU(90))
		},
	} {
		outputs := map[string]int{}
		for from := range names {
			const half = packet.Size / 2
			var frames [][]byte
			for i := range half {
				frames = append(frames, cases[names[(from+i*(1+from%5))%len(names)]])
			}
			answers := func(dense bool) (*nodetest.Worker, []string, [][]byte) {
				w := mk().Workers[0]
				all := w.Load(append(slices.Clone(frames), frames...)...)
				if kind != "parse" {
					w.Parse(all)
				}
				in, shift := packet.All(half), 0
				if !dense {
					in, shift = all&^in, half
				}
				if _, ok := in.Dense(); ok != dense {
					t.Fatalf("lanes %b", in)
				}
				where := make([]string, half)
				for output, lanes := range w.Process(in) {
					for l := lanes; l != 0; l &= l - 1 {
						where[l.Next()-shift] += output
					}
				}
				var bodies [][]byte
				for i := range half {
					bodies = append(bodies, bytes.Clone(w.V.Bytes(i+shift)))
				}
				return w, where, bodies
			}
			a, ways, is := answers(true)
			b, want, was := answers(false)
			if !slices.Equal(ways, want) {
				t.Fatalf("%s: dense %v\nsparse %v", kind, ways, want)
			}
			if !slices.EqualFunc(is, was, bytes.Equal) {
				t.Fatalf("%s: bytes differ", kind)
			}
			if !slices.Equal(a.Counters, b.Counters) {
				t.Errorf("%s: counters %v and %v", kind, a.Counters, b.Counters)
			}
			x, y := reflect.ValueOf(&a.V).Elem(), reflect.ValueOf(&b.V).Elem()
			for f := range x.NumField() {
				column := x.Type().Field(f).Name
				if x.Field(f).Kind() != reflect.Array || column == "Frame" || column == "Start" {
					continue
				}
				for i := range half {
					if v, w := x.Field(f).Index(i).Interface(), y.Field(f).Index(i+half).Interface(); v != w {
						t.Fatalf("%s, lane %d: column %s is %v dense, %v sparse", kind, i, column, v, w)
					}
				}
			}
			for _, o := range ways {
				outputs[o]++
			}
		}
		if kind != "count" && len(outputs) < 3 {
			t.Errorf("%s: all packets leave by %v", kind, outputs)
		}
	}
}
