package conntrack

import (
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
)

// TestPeek: Peek says what Process then does, for flows to every kind of service in
// every state, and changes neither the table nor the counters.
func TestPeek(t *testing.T) {
	for service := web; service <= green; service++ {
		r := newRig(t, nil)
		peek(t, r, service)
	}
}

func peek(t *testing.T, r *rigged, service int) {
	var p graph.Peeker = r.node()
	hits := 0
	check := func(what string, f flow, tcp uint8) {
		t.Helper()
		r.load(0, f, tcp, 0)
		was, used := append([]uint64(nil), r.Counters...), r.node().cur.count
		try := r.V
		output, known := p.Peek(&try, 0)
		for i, n := range r.Counters {
			if n != was[i] {
				t.Errorf("service %d, %s: looking was counted", service, what)
			}
		}
		if r.node().cur.count != used {
			t.Errorf("service %d, %s: looking changed the table", service, what)
		}
		found := r.pass(1) != 0
		if found != (output == hit) || found && !known {
			t.Errorf("service %d, %s: hit is %t, and it said output %d, known %t", service, what, found, output, known)
		}
		if found {
			hits++
			if try.Backend[0] != r.V.Backend[0] || try.Slot[0] != r.V.Slot[0] || try.VIP[0] != r.V.VIP[0] {
				t.Errorf("service %d, %s: backend %d in slot %d, and it said %d in %d", service, what, r.V.Backend[0], r.V.Slot[0], try.Backend[0], try.Slot[0])
			}
		}
	}
	status := func(b uint32, st state.Status) {
		r.store.SetStatus(b, st)
		r.sync()
	}
	f := flowTo(service, 7)
	check("a new flow", f, syn)
	check("a flow in handshake", f, ack)
	check("an established flow", f, ack)
	b := r.V.Backend[0]
	status(b, state.Draining)
	check("a flow on a draining backend", f, ack)
	check("its SYN", f, syn)
	status(r.V.Backend[0], state.Down)
	check("a flow on a dead backend", f, ack)
	check("the same, elsewhere", f, ack)
	status(b, state.Up)
	check("a flow that ends", f, fin)
	check("its SYN", f, syn)
	r.wait(3 * time.Minute)
	check("a flow that is forgotten", f, ack)
	if hits < 5 {
		t.Errorf("service %d: only %d hits", service, hits)
	}
}

// TestPeekWhileTheTableMoves: an entry that stands in the old table still is seen, and
// stays there.
func TestPeekWhileTheTableMoves(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Entries = 4096 })
	f := flowTo(web, 3)
	r.want("first packet", f, syn, false)
	_, b := r.send(f, ack)
	n := nodetest.New(t, "conntrack", func(c *Config) { c.Entries = 8192 }, nodetest.WithState(r.store.Cell().Load())).Workers[0]
	heir := n.Node.(*node)
	heir.Inherit(r.Node)
	if heir.old == nil {
		t.Fatal("nothing moves")
	}
	moving := heir.old.used()
	r.load(0, f, ack, 0)
	try := r.V
	if output, known := heir.Peek(&try, 0); output != hit || !known || try.Backend[0] != b {
		t.Errorf("output %d, known %t, backend %d, want %d", output, known, try.Backend[0], b)
	}
	if heir.old.used() != moving {
		t.Error("looking moved an entry")
	}
	r.load(0, flowTo(web, 4), ack, 0)
	if output, known := heir.Peek(&r.V, 0); output != miss || known {
		t.Errorf("an unknown flow: output %d, known %t", output, known)
	}
}
