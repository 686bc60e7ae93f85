package bgp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"go.uber.org/zap"
)

const (
	// firstGap and lastGap bound the time between two attempts to reach a router.
	firstGap = time.Second
	lastGap  = time.Minute
	// dialLag is how long gobgp waits by itself before it connects: a second, and up
	// to a second more. The first gaps are made of nothing else.
	dialLag = 2 * time.Second
	// answerTime is how long a router that accepted the connection has for its OPEN
	// and its first KEEPALIVE; RFC 4271 suggests four minutes.
	answerTime = 10 * time.Second
	// attemptTime bounds what comes before: gobgp's lag, and the connection.
	attemptTime = 15 * time.Second
	// settledTime is how long a session must have stood for the next attempt to come
	// as early as the first.
	settledTime = 10 * time.Second
)

// session is a peer as the loop knows it.
type session struct {
	name string
	transport
	attributes
	log *zap.Logger

	added    bool // the speaker has it
	phase    phase
	since    time.Time // of phase
	deadline time.Time // of the attempt; zero if it has none
	retry    time.Time // of the next attempt, while it is not added
	failures int       // attempts in a row that failed, or did not last
	reason   string    // why the next phase will be what it is
	fault    string    // the last failure, for status
	secret   bool      // it has a password
	hops     [2]netip.Addr
	mute     [2]bool // no next hop is known for the family, IPv4 and IPv6
	count
	sessions, faults uint64
}

// gap answers how long to wait between the attempt that was the nth to fail, from 0,
// and the next: a second, doubled each time up to a minute, and up to a fifth less,
// so that routers which come back are not met by all nodes at once.
func gap(n int, random float64) time.Duration {
	g := lastGap
	if n < 6 {
		g = firstGap << n
	}
	return time.Duration((1 - random/5) * float64(g))
}

// fail ends an attempt or a session: the speaker forgets the peer until it is time
// for the next.
func (c *Control) fail(s *session, why string, now time.Time) {
	if !s.added {
		return
	}
	if err := c.speaker.remove(s.address); err != nil {
		s.log.Error("the speaker does not forget a peer", zap.Error(err))
	}
	stood := time.Duration(0)
	if s.phase == established {
		stood = now.Sub(s.since)
	}
	if stood >= settledTime {
		s.failures = 0
	}
	g := gap(s.failures, rand.Float64()) // less gobgp's lag, which comes on top
	wait := max(0, g-dialLag)
	s.failures++
	s.faults++
	s.fault = s.explain(why)
	fields := []zap.Field{zap.String("why", s.fault), zap.Duration("retry_in", max(g, firstGap).Round(100*time.Millisecond))}
	if s.phase == established {
		s.log.Warn("the session is down", append(fields, zap.Duration("stood", stood.Round(time.Second)))...)
	} else {
		s.log.Warn("the router is not reached", fields...)
	}
	s.end(now)
	s.retry = now.Add(wait)
}

// end is what s is without the speaker.
func (s *session) end(now time.Time) {
	s.added, s.phase, s.since, s.reason, s.count = false, idle, now, "", count{}
	s.deadline, s.retry = time.Time{}, now
}

// explain adds what operators would otherwise have to find out to what gobgp says.
func (s *session) explain(why string) string {
	hint := ""
	switch {
	case strings.Contains(why, "i/o timeout") && s.secret:
		hint = "it does not answer; a password that differs looks just like that"
	case strings.Contains(why, "i/o timeout"):
		hint = "it does not answer; neither does one that expects a password"
	case strings.Contains(why, "connection refused"):
		hint = fmt.Sprintf("nothing listens on port %d, or not for this address", s.port)
	case strings.Contains(why, "no route to host"):
		hint = "nobody answers at that address, or it is more hops away than multihop allows"
	case strings.Contains(why, "cannot assign requested address"):
		hint = fmt.Sprintf("local_address %s is none of this machine", s.local)
	case strings.Contains(why, "bad peer as"), strings.Contains(why, "invalid-msg") && s.phase < established:
		// gobgp does not say which NOTIFICATION comes in place of an OPEN.
		hint = "it refuses the session; asn must be the router's own, and the router must expect ours"
	case strings.Contains(why, "read-failed") && s.phase == openSent:
		hint = "it closed the connection unheard; does it know this node's address as a neighbour?"
	case strings.Contains(why, "hold-timer-expired"):
		hint = "it was silent for the hold time"
	case strings.Contains(why, "read-failed"):
		hint = "the router closed the connection, or is gone"
	}
	if hint == "" {
		return why
	}
	return why + ": " + hint
}

// connect begins an attempt. Rules stand before the session that they are for, so
// that its first routes carry what they should.
func (c *Control) connect(s *session, now time.Time) {
	s.hops = [2]netip.Addr{}
	c.rule()
	secret, err := s.password()
	if err == nil {
		err = c.speaker.add(s.transport, secret)
	}
	s.secret = secret != ""
	if err != nil {
		if why := err.Error(); why != s.fault {
			s.fault = why
			s.log.Error("no session can be made", zap.Error(err)) // once, not at every attempt
		}
		s.faults++
		s.retry = now.Add(gap(s.failures, rand.Float64()))
		s.failures++
		return
	}
	s.added, s.phase, s.since, s.deadline = true, idle, now, now.Add(attemptTime)
}

// take follows what the speaker tells.
func (c *Control) take(e event, now time.Time) {
	s := c.at(e.peer)
	if s == nil || !s.added {
		return
	}
	switch {
	case e.reason != "":
		s.reason = e.reason
		return
	case e.fault != "":
		c.fail(s, e.fault, now)
		return
	case e.phase == s.phase:
		return
	case e.phase == idle:
		why := s.reason
		if why == "" {
			why = "the session ended"
		}
		c.fail(s, why, now)
		return
	}
	s.phase, s.since, s.reason = e.phase, now, ""
	switch e.phase {
	case openSent:
		s.deadline = now.Add(answerTime)
	case established:
		s.deadline = time.Time{}
		s.sessions++
		c.slow = now // counts, and a next hop that was not there before
		s.log.Info("the session is up")
	}
}

// tend does what is due for s.
func (c *Control) tend(s *session, now time.Time) {
	switch {
	case !s.enabled:
	case s.added && !s.deadline.IsZero() && !now.Before(s.deadline):
		why := "the attempt came to nothing"
		if s.phase == openSent || s.phase == openConfirm {
			why = fmt.Sprintf("the router accepted the connection and did not answer for %v", answerTime)
		}
		c.fail(s, why, now)
	case !s.added && !now.Before(s.retry):
		c.connect(s, now)
	}
}

// due answers when tend has something to do for s, zero for never.
func (s *session) due() time.Time {
	switch {
	case !s.enabled:
		return time.Time{}
	case s.added:
		return s.deadline
	}
	return s.retry
}
