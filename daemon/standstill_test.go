package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/control/bgp"
)

const speaker = `
bgp {
  asn            = 65001
  router_id      = "192.0.2.1"
  announce_after = "0s"
  peer "tor" {
    address = "127.0.0.9"
    asn     = 65002
    port    = 1
  }
}
`

// routes tells whether BGP would announce the VIP if a session were up, and why it is
// withheld.
func (r *rig) routes() (announced bool, why string) {
	for _, c := range r.running() {
		if x, ok := c.Control.(*bgp.Control); ok {
			s := x.Status()
			return len(s.VIPs) == 1 && s.VIPs[0].Why == bgp.NoSession, s.Withheld
		}
	}
	return false, "there is no BGP"
}

// TestStandstillWithdraws: routes are withdrawn when a loop has not passed for a
// second, and come back with it.
func TestStandstillWithdraws(t *testing.T) {
	t.Parallel() // it waits most of its time
	r := newRig(t, with(speaker))
	r.until("the VIP is announced", func() bool { ok, _ := r.routes(); return ok })
	held, let := make(chan struct{}), make(chan struct{})
	go r.engine("edge").Look("parse", nodeHolder(held, let))
	<-held
	begun := time.Now()
	var why string
	r.until("the VIP is withdrawn", func() bool {
		ok, w := r.routes()
		why = w
		return !ok
	})
	took := time.Since(begun)
	close(let)
	if !strings.HasPrefix(why, "a loop has not passed for") {
		t.Errorf("withheld because %q", why)
	}
	if took < staleAfter-100*time.Millisecond {
		t.Errorf("withdrawn after %v", took)
	}
	r.until("the VIP is announced again", func() bool { ok, w := r.routes(); return ok && w == "" })
	r.put(flows(t, 10))
}

// TestStandstillIsLogged: the log says when the node becomes sick and when it is well
// again, once each, with or without routers that hear of it.
func TestStandstillIsLogged(t *testing.T) {
	t.Parallel() // it waits most of its time
	r := newRig(t, plain)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		r.watch(stop)
	}()
	defer func() {
		close(stop)
		<-stopped
	}()
	held, let := make(chan struct{}), make(chan struct{})
	go r.engine("edge").Look("parse", nodeHolder(held, let))
	<-held
	r.until("it is sick", func() bool { return r.logged("warn", "the node is not healthy", "a loop has not passed for") })
	time.Sleep(2100 * time.Millisecond) // two looks more
	close(let)
	r.until("it is well", func() bool { return r.logged("info", "the node is healthy again") })
	if n := len(r.logs.FilterMessage("the node is not healthy").All()); n != 1 {
		t.Errorf("it is said %d times", n)
	}
}
