package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/apiutil"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"github.com/osrg/gobgp/v3/pkg/server"
	"go.uber.org/zap"
)

// gobgp keeps one server in a process for good: its Serve never returns, and some of
// its options are global. It is started and stopped as often as needed, for one user
// at a time.
var gobgp struct {
	sync.Mutex
	server *server.BgpServer
	log    logger
	busy   bool
	ended  chan struct{} // closed when the last stop has ended; nil at first
}

// connectRetry, in seconds, makes gobgp give a connection one second less to come
// about, and wait longer than the loop leaves it for the next.
const connectRetry = 6

// goBGP is the speaker on gobgp. Its methods panic unless it is started, but for
// start and stop.
type goBGP struct {
	log    *zap.Logger
	server *server.BgpServer
}

func newGoBGP(log *zap.Logger) *goBGP { return &goBGP{log: log} }

func (g *goBGP) start(asn uint32, routerID netip.Addr, tell func(event)) error {
	gobgp.Lock()
	defer gobgp.Unlock()
	if gobgp.busy {
		return errors.New("another speaker runs in this process")
	}
	if gobgp.ended != nil {
		select {
		case <-gobgp.ended:
		default:
			return errors.New("a session of the last run has not ended yet: its router neither reads nor closes")
		}
	}
	gobgp.log.use(g.log, tell)
	if gobgp.server == nil {
		s := server.NewBgpServer(server.LoggerOption(&gobgp.log))
		go s.Serve()
		err := s.WatchEvent(context.Background(), &api.WatchEventRequest{Peer: &api.WatchEventRequest_Peer{}}, gobgp.log.watch)
		if err != nil {
			return fmt.Errorf("gobgp: %w", err)
		}
		gobgp.server = s
	}
	// Port −1 listens nowhere.
	err := gobgp.server.StartBgp(context.Background(), &api.StartBgpRequest{Global: &api.Global{Asn: asn, RouterId: routerID.String(), ListenPort: -1}})
	if err != nil {
		return fmt.Errorf("gobgp: %w", err)
	}
	g.server, gobgp.busy = gobgp.server, true
	return g.importNothing()
}

// importNothing rejects what routers announce, so that it is neither used nor passed
// on. Our own routes come by import, too.
func (g *goBGP) importNothing() error {
	if err := g.export(nil); err != nil {
		return err
	}
	for _, a := range []*api.PolicyAssignment{
		{Name: "global", Direction: api.PolicyDirection_IMPORT, Policies: []*api.Policy{{Name: "own"}}, DefaultAction: api.RouteAction_REJECT},
		{Name: "global", Direction: api.PolicyDirection_EXPORT, Policies: []*api.Policy{{Name: "export"}}, DefaultAction: api.RouteAction_REJECT},
	} {
		if err := g.server.SetPolicyAssignment(context.Background(), &api.SetPolicyAssignmentRequest{Assignment: a}); err != nil {
			return fmt.Errorf("gobgp: %w", err)
		}
	}
	return nil
}

func (g *goBGP) export(rules []rule) error {
	r := &api.SetPoliciesRequest{Policies: []*api.Policy{
		{Name: "own", Statements: []*api.Statement{{
			Name:       "own",
			Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
			Actions:    &api.Actions{RouteAction: api.RouteAction_ACCEPT},
		}}},
		{Name: "export"},
	}}
	sets := map[string]bool{}
	for _, x := range rules {
		name := x.peer.String()
		if !sets[name] {
			sets[name] = true
			r.DefinedSets = append(r.DefinedSets, &api.DefinedSet{
				DefinedType: api.DefinedType_NEIGHBOR, Name: name, List: []string{netip.PrefixFrom(x.peer, x.peer.BitLen()).String()},
			})
		}
		s := &api.Statement{
			Name: fmt.Sprintf("%s six=%v", name, x.six),
			Conditions: &api.Conditions{
				RouteType:   api.Conditions_ROUTE_TYPE_LOCAL,
				NeighborSet: &api.MatchSet{Type: api.MatchSet_ANY, Name: name},
				AfiSafiIn:   []*api.Family{familyOf(x.six)},
			},
			Actions: &api.Actions{RouteAction: api.RouteAction_ACCEPT, Nexthop: &api.NexthopAction{Address: x.hop.String()}},
		}
		if len(x.communities) > 0 {
			s.Actions.Community = &api.CommunityAction{Type: api.CommunityAction_ADD, Communities: texts(x.communities)}
		}
		if len(x.large) > 0 {
			s.Actions.LargeCommunity = &api.CommunityAction{Type: api.CommunityAction_ADD, Communities: texts(x.large)}
		}
		if x.med != nil {
			s.Actions.Med = &api.MedAction{Type: api.MedAction_REPLACE, Value: int64(*x.med)}
		}
		if x.localPref != nil {
			s.Actions.LocalPref = &api.LocalPrefAction{Value: *x.localPref}
		}
		r.Policies[1].Statements = append(r.Policies[1].Statements, s)
	}
	if err := g.server.SetPolicies(context.Background(), r); err != nil {
		return fmt.Errorf("gobgp: %w", err)
	}
	return nil
}

func texts[T fmt.Stringer](list []T) []string {
	all := make([]string, len(list))
	for i, x := range list {
		all[i] = x.String()
	}
	return all
}

func familyOf(six bool) *api.Family {
	if six {
		return &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
	}
	return &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
}

// stop ends all sessions by a Cease. gobgp waits without end for a router that does
// not read; then the wait goes on behind ctx's back, and start refuses until it ends.
func (g *goBGP) stop(ctx context.Context) error {
	if g.server == nil {
		return nil
	}
	s, ended := g.server, make(chan struct{})
	g.server = nil
	gobgp.Lock()
	gobgp.ended, gobgp.busy = ended, false
	gobgp.Unlock()
	go func() {
		defer close(ended)
		_ = s.StopBgp(context.Background(), &api.StopBgpRequest{}) // it has no errors
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		return fmt.Errorf("sessions have not ended: %w", ctx.Err())
	}
	gobgp.log.use(zap.NewNop(), func(event) {})
	return nil
}

func (g *goBGP) announce(p netip.Prefix) error {
	path, err := pathOf(p, false)
	if err == nil {
		_, err = g.server.AddPath(context.Background(), &api.AddPathRequest{Path: path})
	}
	return err
}

func (g *goBGP) withdraw(p netip.Prefix) error {
	path, err := pathOf(p, true)
	if err == nil {
		err = g.server.DeletePath(context.Background(), &api.DeletePathRequest{Path: path})
	}
	return err
}

// pathOf answers a route as it stands in gobgp's table. Export rules put a next hop
// in the place of the one that it has here, which is for documentation (RFC 5737)
// or discards (RFC 6666): gobgp would fill an unspecified one with an address of
// the session's family, whatever the route's family is.
func pathOf(p netip.Prefix, withdraw bool) (*api.Path, error) {
	origin := bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)
	if p.Addr().Is4() {
		nlri := bgp.NewIPAddrPrefix(uint8(p.Bits()), p.Addr().String())
		return apiutil.NewPath(nlri, withdraw, []bgp.PathAttributeInterface{origin, bgp.NewPathAttributeNextHop("192.0.2.1")}, time.Now())
	}
	nlri := bgp.NewIPv6AddrPrefix(uint8(p.Bits()), p.Addr().String())
	reach := bgp.NewPathAttributeMpReachNLRI("100::1", []bgp.AddrPrefixInterface{nlri})
	return apiutil.NewPath(nlri, withdraw, []bgp.PathAttributeInterface{origin, reach}, time.Now())
}

func (g *goBGP) refresh(peer netip.Addr) error {
	return g.server.ResetPeer(context.Background(), &api.ResetPeerRequest{Address: peer.String(), Soft: true, Direction: api.ResetPeerRequest_OUT})
}

func (g *goBGP) add(t transport, password string) error {
	hold := uint64(t.hold / time.Second)
	p := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: t.address.String(), PeerAsn: t.asn, AuthPassword: password},
		Transport: &api.Transport{RemotePort: uint32(t.port)},
		Timers:    &api.Timers{Config: &api.TimersConfig{ConnectRetry: connectRetry, HoldTime: hold, KeepaliveInterval: hold / 3}},
	}
	// Both families over either transport; by default there is the transport's only.
	for _, six := range []bool{false, true} {
		p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{Config: &api.AfiSafiConfig{Family: familyOf(six), Enabled: true}})
	}
	if t.local.IsValid() {
		p.Transport.LocalAddress = t.local.String()
	}
	if t.multihop > 0 {
		p.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(t.multihop)}
	}
	if t.ttlSecurity > 0 {
		p.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 256 - uint32(t.ttlSecurity)}
	}
	return g.server.AddPeer(context.Background(), &api.AddPeerRequest{Peer: p})
}

func (g *goBGP) remove(peer netip.Addr) error {
	return g.server.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: peer.String()})
}

func (g *goBGP) counts() (map[netip.Addr]count, error) {
	all := map[netip.Addr]count{}
	err := g.server.ListPeer(context.Background(), &api.ListPeerRequest{EnableAdvertised: true}, func(p *api.Peer) {
		addr, err := netip.ParseAddr(p.GetState().GetNeighborAddress())
		if err != nil || p.GetState().GetSessionState() != api.PeerState_ESTABLISHED {
			return
		}
		var c count
		for _, f := range p.AfiSafis {
			c.announced += f.GetState().GetAdvertised()
			c.received += f.GetState().GetReceived()
		}
		all[addr] = c
	})
	return all, err
}
