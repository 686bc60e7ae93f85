package bgp

import (
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Status is what a control does at the moment.
type Status struct {
	ASN      uint32 `json:"asn"`
	RouterID string `json:"router_id"`
	Drained  bool   `json:"drained"`
	// Withheld says why nothing at all is announced; "" if announcing goes by the VIPs.
	Withheld string       `json:"withheld,omitempty"`
	Peers    []PeerStatus `json:"peers"`
	VIPs     []VIPStatus  `json:"vips"`
}

// PeerStatus is a peer at the moment.
type PeerStatus struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	ASN     uint32     `json:"asn"`
	// State is the session's state in RFC 4271's terms, or Disabled.
	State string `json:"state"`
	// Uptime is how long the session has been established, in seconds; 0 if it is not.
	Uptime float64 `json:"uptime_seconds"`
	// Announced and Received are routes, at most five seconds ago. Received ones are
	// not used.
	Announced uint64 `json:"announced"`
	Received  uint64 `json:"received"`
	// LastError is why the last session or attempt ended, "" if none has.
	LastError string `json:"last_error,omitempty"`
	// Backoff is the time until the next attempt, in seconds; 0 while there is a
	// session or an attempt.
	Backoff float64 `json:"backoff_seconds"`
	// NextHopIPv4 and NextHopIPv6 are what routes carry; "" if none is known, and
	// routes of the family are not announced.
	NextHopIPv4 string `json:"next_hop_ipv4,omitempty"`
	NextHopIPv6 string `json:"next_hop_ipv6,omitempty"`
	// Sessions and Failures count, since the start, sessions that were established,
	// and attempts and sessions that failed.
	Sessions uint64 `json:"sessions"`
	Failures uint64 `json:"failures"`

	since, retry time.Time
}

// VIPStatus is an address that VIPs have.
type VIPStatus struct {
	Route netip.Prefix `json:"route"`
	VIPs  []string     `json:"vips"`
	// Announced: at least one router is told of it.
	Announced bool `json:"announced"`
	// Routers is how many: those with a session, if a next hop of its family is known.
	Routers int    `json:"routers"`
	Why     string `json:"why,omitempty"` // it is not announced
}

// NoSession is why routes that are fit for it are not announced while no session is up.
const NoSession = "no session is up"

// reach says to how many routers routes go, and why to none.
func (c *Control) reach() []VIPStatus {
	all := slices.Clone(c.vips)
	for i := range all {
		v := &all[i]
		if !v.Announced {
			continue
		}
		family, name := 0, "IPv4"
		if v.Route.Addr().Is6() {
			family, name = 1, "IPv6"
		}
		v.Why = NoSession
		for _, p := range c.peers {
			switch {
			case p.phase != established:
			case p.hops[family].IsValid():
				v.Routers++
			default:
				v.Why = "no router that has a session has an " + name + " next hop"
			}
		}
		if v.Announced = v.Routers > 0; v.Announced {
			v.Why = ""
		}
	}
	return all
}

// report publishes the status.
func (c *Control) report(now time.Time) {
	s := &Status{ASN: c.cfg.ASN, RouterID: c.routerID.String(), Drained: c.drained.Load(), Withheld: c.withheld, VIPs: c.reach()}
	for _, p := range c.peers {
		x := PeerStatus{
			Name: p.name, Address: p.address, ASN: p.asn, State: p.phase.String(), Announced: p.announced, Received: p.received, LastError: p.fault,
			Sessions: p.sessions, Failures: p.faults,
		}
		for i, to := range []*string{&x.NextHopIPv4, &x.NextHopIPv6} {
			if p.hops[i].IsValid() {
				*to = p.hops[i].String()
			}
		}
		switch {
		case !p.enabled:
			x.State = "Disabled"
		case p.phase == established:
			x.since = p.since
		case !p.added && p.retry.After(now):
			x.retry = p.retry
		}
		s.Peers = append(s.Peers, x)
	}
	c.status.Store(s)
}

// Status answers what the control does. It never waits.
func (c *Control) Status() Status {
	s, now := *c.status.Load(), time.Now()
	s.Peers = append([]PeerStatus{}, s.Peers...)
	s.VIPs = append([]VIPStatus{}, s.VIPs...)
	for i := range s.Peers {
		p := &s.Peers[i]
		if !p.since.IsZero() {
			p.Uptime = now.Sub(p.since).Seconds()
		}
		if !p.retry.IsZero() {
			p.Backoff = max(0, p.retry.Sub(now).Seconds())
		}
	}
	return s
}

// Peers answers the peers of Status.
func (c *Control) Peers() []PeerStatus { return c.Status().Peers }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lbgraph_bgp_"+name, help, labels, nil)
}

var (
	peerUp        = desc("peer_up", "1 while the session with a router is established.", "peer")
	peerEnabled   = desc("peer_enabled", "0 for a peer that the file disables.", "peer")
	peerAnnounced = desc("peer_announced_routes", "Routes that a router was told.", "peer")
	peerReceived  = desc("peer_received_routes", "Routes that a router sends, which are not used.", "peer")
	peerSessions  = desc("peer_sessions_total", "Sessions that were established.", "peer")
	peerFailures  = desc("peer_failures_total", "Attempts and sessions that failed.", "peer")
	routeUp       = desc("route_announced", "1 while a route is announced: at least one router with a session is told of it.", "route")
	withheld      = desc("withheld", "1 while nothing at all is announced: drained, not healthy, or not warm yet.")

	_ prometheus.Collector = (*Control)(nil)
)

// Describe is part of prometheus.Collector.
func (c *Control) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{peerUp, peerEnabled, peerAnnounced, peerReceived, peerSessions, peerFailures, routeUp, withheld} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector. Label values are names and addresses in
// the configuration file.
func (c *Control) Collect(ch chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	is := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	s := c.Status()
	put(withheld, prometheus.GaugeValue, is(s.Withheld != ""))
	for _, p := range s.Peers {
		put(peerUp, prometheus.GaugeValue, is(p.State == established.String()), p.Name)
		put(peerEnabled, prometheus.GaugeValue, is(p.State != "Disabled"), p.Name)
		put(peerAnnounced, prometheus.GaugeValue, float64(p.Announced), p.Name)
		put(peerReceived, prometheus.GaugeValue, float64(p.Received), p.Name)
		put(peerSessions, prometheus.CounterValue, float64(p.Sessions), p.Name)
		put(peerFailures, prometheus.CounterValue, float64(p.Failures), p.Name)
	}
	for _, v := range s.VIPs {
		put(routeUp, prometheus.GaugeValue, is(v.Announced), v.Route.String())
	}
}
