package replay_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/nodes/nodetest"
	"github.com/lbgraph/lbgraph/replay"
)

// stateful is the graph of lb.hcl.
const stateful = world + `
graph "edge" {
  path {
    main      = [rx, parse, vip-classify, frag-pin, ct.hit, clamp, mtu, gre, tx]
    new_flow  = [ct.miss, maglev-select, clamp]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
`

// TestTimeIsTheCaptures: connections age by the capture's clock, as exactly as the
// table counts, which is 17 ms.
func TestTimeIsTheCaptures(t *testing.T) {
	c := nodetest.Cases(t)
	for _, m := range []struct {
		second time.Duration
		want   replay.Connections
	}{
		{5*time.Second - 1, replay.Connections{Entries: 1, Hits: 1, Misses: 1}},
		{5*time.Second + 34*time.Millisecond, replay.Connections{Entries: 1, Misses: 2}},
	} {
		x, _ := run(t, load(t, stateful), replay.Options{}, capture(t, at{0, c["syn"]}, at{m.second, c["data"]}))
		if x.Connections.Inserts == 0 {
			t.Error("nothing was entered")
		}
		x.Connections.Inserts = 0 // an expired entry may be used again
		if x.Connections != m.want {
			t.Errorf("data %v after its syn: %+v, want %+v", m.second, x.Connections, m.want)
		}
	}
	// An established flow lives for a minute, and dies behind it.
	x, _ := run(t, load(t, stateful), replay.Options{}, capture(t, at{0, c["syn"]}, at{time.Second, c["data"]},
		at{time.Minute, c["data"]}, at{2*time.Minute - 1, c["data"]}, at{4 * time.Minute, c["data"]}))
	x.Connections.Inserts = 0
	if want := (replay.Connections{Entries: 1, Hits: 3, Misses: 2}); x.Connections != want {
		t.Errorf("%+v, want %+v", x.Connections, want)
	}
}

// TestAVerdictIsFinal: what was held is told by what became of it.
func TestAVerdictIsFinal(t *testing.T) {
	c := nodetest.Cases(t)
	f := load(t, stateful)
	way := []string{"rx", "parse", "vip-classify", "frag-pin", "mtu", "gre", "tx"}
	for _, queues := range []int{1, 2, 3} {
		// The second fragment comes first, by another queue than the first.
		q := make([][]at, queues)
		q[0] = []at{{0, c["v6-frag2"]}}
		q[queues-1] = append(q[queues-1], at{100 * time.Millisecond, c["v6-frag1"]})
		var files []string
		for i := range q {
			files = append(files, capture(t, q[i]...))
		}
		udp6 := strings.Replace(stateful, `ports    = [443]
  pool     = pool.web
}
`+"\ngraph", "ports    = [443]\n  pool     = pool.web\n}\nvip \"udp6\" {\n  address  = \"2001:db8::10\"\n  protocol = \"udp\"\n  ports    = [4500]\n  pool     = pool.web\n}\n\ngraph", 1)
		x, out := run(t, load(t, udp6), replay.Options{}, files...)
		if x.Held != 0 || x.Sent != 2 || len(out) != 2 {
			t.Fatalf("%d queues: %+v", queues, x)
		}
		a, b := x.Packets[0], x.Packets[1]
		if a.Verdict != "sent" || !reflect.DeepEqual(a.Path, way) || a.Backend != b.Backend || a.VIP != "udp6" || len(a.Outputs) != 1 || a.Outputs[0].Kind != "forward" {
			t.Errorf("%d queues: %+v, then %+v", queues, a, b)
		}
		if out[1].Time-epoch != int64(100*time.Millisecond) {
			t.Errorf("the held one left at %v", time.Duration(out[1].Time-epoch))
		}
	}
	// Its first never comes: it expires by a tick between two packets.
	x, _ := run(t, f, replay.Options{}, capture(t, at{0, c["frag2"]}, at{time.Second, c["syn"]}))
	if p := x.Packets[0]; p.Verdict != "dropped" || p.Reason != "frag_expired" || p.Node != "frag-pin" || x.Drops["frag-pin.frag_expired"] != 1 {
		t.Errorf("%+v", x.Packets[0])
	}
	// Time stops before.
	x, _ = run(t, f, replay.Options{}, capture(t, at{0, c["frag2"]}, at{100 * time.Millisecond, c["syn"]}))
	if p := x.Packets[0]; p.Verdict != "held" || p.Node != "frag-pin" || len(p.Outputs) != 0 || x.Held != 1 {
		t.Errorf("%+v", x.Packets[0])
	}
}

func TestAnswersAndErrors(t *testing.T) {
	c := nodetest.Cases(t)
	x, _ := run(t, load(t, stateful), replay.Options{}, capture(t, at{0, c["echo6"]}, at{1, c["syn"]}, at{2, c["icmp-fragneeded-8"]}))
	echo, syn, icmp := x.Packets[0], x.Packets[1], x.Packets[2]
	if fmt.Sprint(echo.Outputs) != fmt.Sprintf("[{reply sent %d }]", len(c["echo6"])) || echo.Backend != "" || echo.VIP != "tcp6" || x.Made != 0 {
		t.Errorf("%+v", echo)
	}
	if icmp.Backend != syn.Backend || icmp.Outputs[0].Kind != "forward" || x.Connections.Entries != 1 {
		t.Errorf("%+v, syn %+v", icmp, syn)
	}
}

// TestHandOff: packets that other cores work on are told of in one piece.
func TestHandOff(t *testing.T) {
	c := nodetest.Cases(t)
	text := strings.NewReplacer(
		`graph "edge" {`, "graph \"edge\" {\n  cores = 3",
		"vip-classify, frag-pin, ct.hit, clamp, mtu, gre, tx]", "vip-classify, spread, frag-pin, ct.hit, clamp, mtu, gre, collect, tx]",
		"vip-classify.fragment, frag-pin.pinned, mtu]", "vip-classify.fragment, spread]\n    pinned = [frag-pin.pinned, mtu]",
		"icmp-vip, ct]", "icmp-vip, spread]", "[mtu.reply, tx]", "[mtu.reply, collect]",
		`node "conntrack" "ct" {}`, "node \"conntrack\" \"ct\" {}\n  node \"handoff\" \"spread\" { cores = [1, 2] }\n  node \"handoff\" \"collect\" { cores = [0] }",
	).Replace(stateful)
	in := capture(t, at{0, c["syn"]}, at{1, c["udp-1500-df"]}, at{2, c["frag1"]}, at{3, c["data"]}, at{4, c["syn6"]})
	x, out := run(t, load(t, text), replay.Options{}, in)
	way := []string{"rx", "parse", "vip-classify", "spread", "frag-pin", "ct", "maglev-select", "clamp", "mtu", "gre", "collect", "tx"}
	if p := x.Packets[0]; !reflect.DeepEqual(p.Path, way) || p.Verdict != "sent" {
		t.Errorf("%+v", p)
	}
	if p := x.Packets[1]; p.Outputs[0].Kind != "reply" || p.Path[len(p.Path)-2] != "collect" {
		t.Errorf("%+v", p)
	}
	if p := x.Packets[2]; len(p.Outputs) != 2 || p.Outputs[0].Kind != "fragment" || p.Outputs[1] != (replay.Output{Kind: "fragment", Verdict: "sent", Length: p.Outputs[1].Length}) {
		t.Errorf("%+v", p)
	}
	// One core does the same.
	y, alone := run(t, load(t, stateful), replay.Options{}, in)
	if len(out) != len(alone) || x.Sent != y.Sent || x.Made != y.Made || x.Connections != y.Connections {
		t.Errorf("three cores %+v, one %+v", x, y)
	}
	for i := range x.Packets {
		if x.Packets[i].Backend != y.Packets[i].Backend || fmt.Sprint(x.Packets[i].Outputs) != fmt.Sprint(y.Packets[i].Outputs) {
			t.Errorf("packet %d: %+v, alone %+v", i+1, x.Packets[i], y.Packets[i])
		}
	}
}

// TestVectors: packets of one queue and one time are one vector, in which the second
// of a new flow does not find the first yet; of two times, or two queues, it does.
func TestVectors(t *testing.T) {
	c := nodetest.Cases(t)
	f := load(t, stateful)
	one, _ := run(t, f, replay.Options{}, capture(t, at{5, c["syn"]}, at{5, c["data"]}))
	two, _ := run(t, f, replay.Options{}, capture(t, at{5, c["syn"]}, at{6, c["data"]}))
	if one.Connections.Misses != 2 || one.Connections.Entries != 1 || two.Connections.Misses != 1 || two.Connections.Hits != 1 {
		t.Errorf("at one time %+v, at two %+v", one.Connections, two.Connections)
	}
	// The queues of one core, for the other core has a table of its own.
	cores := load(t, strings.Replace(stateful, `graph "edge" {`, "graph \"edge\" {\n  cores = 1", 1))
	queues, _ := run(t, cores, replay.Options{}, capture(t, at{5, c["syn"]}), capture(t, at{5, c["data"]}))
	if queues.Connections.Misses != 1 || queues.Connections.Hits != 1 {
		t.Errorf("by two queues %+v", queues.Connections)
	}
	// 64 is the most: the 65th is in a vector of its own, and finds its flow.
	many := []at{{5, c["syn"]}}
	for range 64 {
		many = append(many, at{5, c["data"]})
	}
	full, _ := run(t, f, replay.Options{}, capture(t, many...))
	if full.Connections.Misses != 64 || full.Connections.Hits != 1 {
		t.Errorf("65 packets %+v", full.Connections)
	}
}

// What waits too long is over before the next packet comes, also if that is the one
// that it waited for.
func TestTicksComeBeforeThePacket(t *testing.T) {
	c := nodetest.Cases(t)
	x, _ := run(t, load(t, stateful), replay.Options{}, capture(t, at{0, c["frag2"]}, at{time.Second, c["frag1"]}))
	if p := x.Packets[0]; p.Verdict != "dropped" || p.Reason != "frag_expired" {
		t.Errorf("a fragment whose first comes after a second: %+v", p)
	}
}
