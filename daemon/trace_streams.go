package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/lbgraph/lbgraph/control/admin"
	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
	"github.com/lbgraph/lbgraph/runtime/streams"
)

// mostFollowed bounds the sessions that are followed at the same time.
const mostFollowed = 1024

// TraceRequest says what would become of a request, or of a connection of a stream, at
// this moment. It changes nothing.
func (d *Daemon) TraceRequest(q admin.Request) (admin.Session, error) {
	return explain(d.streams, d.Snapshot(), q)
}

// ExplainRequest says what would become of a request, or of a connection of a stream,
// in a daemon that has just begun with f: before any check, and with nobody else there.
func ExplainRequest(f *graph.File, log *zap.Logger, q admin.Request) (admin.Session, error) {
	store := state.NewStore()
	defer store.Close()
	if err := store.Apply(f.Spec); err != nil {
		return admin.Session{}, err
	}
	e, err := streams.New(f.Graphs, streams.Options{State: store.Cell(), Watch: store.Watch, Log: log, Rehearsal: true})
	if err != nil {
		return admin.Session{}, err
	}
	defer e.Discard()
	return explain(e, store.Cell().Load(), q)
}

func explain(e *streams.Engine, snap *state.Snapshot, q admin.Request) (t admin.Session, err error) {
	scheme, authority, target, ok := splitURL(q.URL)
	if !ok {
		return t, fmt.Errorf("url is %q. Write it as in http://www.example.org/path, https://www.example.org/ or tcp://192.0.2.1:25", q.URL)
	}
	host, port := authority, ""
	if h, p, err := net.SplitHostPort(authority); err == nil {
		host, port = h, p
	}
	door, err := findDoor(e.Doors(), q.Listener, scheme, strings.Trim(host, "[]"), port)
	if err != nil {
		return t, err
	}
	client := q.Client
	if !client.IsValid() {
		if client = netip.AddrFrom4([4]byte{127, 0, 0, 1}); door.Address.Addr().Is6() {
			client = netip.IPv6Loopback()
		}
	}
	ask := streams.Question{Stream: door.Stream, Listener: door.Node, Client: netip.AddrPortFrom(client, 0), Local: door.Address}
	t = admin.Session{Time: time.Now(), Stream: door.Stream, Listener: door.Node, Client: client.String(), Protocol: "TCP", Steps: []admin.SessionStep{}}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err != nil && scheme != "http" {
		ask.ServerName = strings.ToLower(strings.TrimSuffix(host, "."))
		t.ServerName = ask.ServerName
	}
	if scheme != "tcp" {
		t.Protocol, t.Method, t.Host, t.Path = "HTTP/1.1", cmp.Or(q.Method, "GET"), authority, target
		ask.Head = fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\n", t.Method, target, authority)
		for _, h := range q.Headers {
			name, value, ok := strings.Cut(h, ":")
			if value = strings.TrimSpace(value); !ok || !http1.ValidName(name) || !http1.ValidValue(value) {
				return t, fmt.Errorf("%q is no field. Write it as in \"Accept: text/html\"", h)
			}
			ask.Head = http1.AppendField(ask.Head, name, value)
		}
		ask.Head = append(ask.Head, "\r\n"...)
	}
	a, err := e.Explain(ask)
	if err != nil {
		return t, err
	}
	for _, s := range a.Steps {
		t.Steps = append(t.Steps, admin.SessionStep{Node: s.Node, Kind: s.Kind, Output: s.Output, Says: s.Says})
	}
	t.Node, t.Reason, t.Status, t.Route = a.Node, a.Reason, a.Status, a.Route
	if a.Fault != nil {
		t.Error = a.Fault.Error()
	}
	if a.Backend.IsValid() {
		t.Backend, t.Name = a.Backend.String(), backendName(snap, a.Backend, poolOf(a.Steps))
	}
	return t, nil
}

// splitURL parts a URL; what follows the authority stays as it is, for nodes may look
// at every byte of it.
func splitURL(u string) (scheme, authority, target string, ok bool) {
	scheme, rest, ok := strings.Cut(u, "://")
	scheme = strings.ToLower(scheme)
	if !ok || scheme != "http" && scheme != "https" && scheme != "tcp" {
		return "", "", "", false
	}
	authority, target = rest, "/"
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, target = rest[:i], rest[i:]
		if target[0] == '?' {
			target = "/" + target
		}
	}
	if scheme == "tcp" && strings.Trim(target, "/") != "" {
		return "", "", "", false
	}
	return scheme, authority, target, authority != ""
}

// findDoor finds the listener that a URL leads to.
func findDoor(all []streams.Door, name, scheme, host, port string) (streams.Door, error) {
	var have []string
	for _, d := range all {
		have = append(have, fmt.Sprintf("%s/%s at %v", d.Stream, d.Node, d.Address))
	}
	if len(all) == 0 {
		return streams.Door{}, admin.NotFound("there is no stream")
	}
	keep := func(from []streams.Door, f func(streams.Door) bool) (kept []streams.Door) {
		for _, d := range from {
			if f(d) {
				kept = append(kept, d)
			}
		}
		return kept
	}
	fit := all
	if name != "" {
		fit = keep(fit, func(d streams.Door) bool { return d.Node == name || d.Stream+"/"+d.Node == name })
	}
	on := func(port string) func(streams.Door) bool {
		return func(d streams.Door) bool { return strconv.Itoa(int(d.Address.Port())) == port }
	}
	switch byDefault := keep(fit, on(map[string]string{"http": "80", "https": "443"}[scheme])); {
	case port != "" && name == "":
		fit = keep(fit, on(port))
	case len(fit) > 1 && len(byDefault) > 0:
		fit = byDefault
	}
	// The address tells only listeners on one port apart: most hosts are names.
	if a, err := netip.ParseAddr(host); err == nil && len(fit) > 1 {
		if exact := keep(fit, func(d streams.Door) bool { return d.Address.Addr() == a }); len(exact) > 0 {
			fit = exact
		}
	}
	switch len(fit) {
	case 1:
		return fit[0], nil
	case 0:
		return streams.Door{}, admin.NotFound("no listener fits. There are " + strings.Join(have, ", "))
	}
	return streams.Door{}, admin.NotFound("several listeners fit; name one. There are " + strings.Join(have, ", "))
}

// backendName answers what the file calls a backend of streams in a pool, or without
// one in all; "" if nothing.
func backendName(s *state.Snapshot, a netip.AddrPort, pool string) string {
	var all, guesses []string
	for i := range s.Pools {
		p := &s.Pools[i]
		if p.ID == 0 || pool != "" && p.Name != pool {
			continue
		}
		for _, m := range p.Members {
			switch {
			case m.Backend == 0 || s.Backends[m.Backend].Addr != a.Addr():
			case m.Port == int(a.Port()):
				all = append(all, p.Name+"/"+m.Name)
			case m.Port == 0: // the balance has the port
				guesses = append(guesses, p.Name+"/"+m.Name)
			}
		}
	}
	if all == nil {
		all = guesses
	}
	return strings.Join(all, ", ")
}

// poolOf answers the pool that a session was given last.
func poolOf(steps []streams.Step) (pool string) {
	for _, s := range steps {
		pool = cmp.Or(s.Pool, pool)
	}
	return pool
}

// SampleSessions gives sessions that fit f to each, as they end, until ctx ends or
// f.Count have come. What comes faster than it is taken is left out.
func (d *Daemon) SampleSessions(ctx context.Context, f admin.SessionFilter, each func(admin.Session)) error {
	if err := d.checkFilter(&f); err != nil {
		return err
	}
	if !d.following.TryLock() {
		return errors.New("another command samples sessions already")
	}
	defer d.following.Unlock()
	found := make(chan admin.Session, 256)
	d.streams.Observe(&streams.Observer{
		Most:  mostFollowed,
		Admit: func(block string, s *stream.Session) bool { return fitsSession(&f, block, s) },
		Tell: func(block string, s *stream.Session, how graph.Outcome, steps []streams.Step, total int64) {
			if f.Status != "" && f.Status != how.String() && f.Status != strconv.Itoa(s.Status) || len(found) == cap(found) {
				return
			}
			select {
			case found <- d.session(block, s, how, steps, total):
			default:
			}
		},
	})
	defer d.streams.Observe(nil)
	for n := 0; n < f.Count; n++ {
		select {
		case s := <-found:
			each(s)
		case <-ctx.Done():
			return nil
		case <-d.config.quit:
			return nil
		}
	}
	return nil
}

func (d *Daemon) checkFilter(f *admin.SessionFilter) error {
	var blocks, listeners []string
	for _, x := range d.streams.Doors() {
		blocks, listeners = append(blocks, x.Stream), append(listeners, x.Node)
	}
	switch {
	case len(blocks) == 0:
		return admin.NotFound("there is no stream")
	case f.Stream != "" && !slices.Contains(blocks, f.Stream):
		return admin.NotFound(fmt.Sprintf("there is no stream %q. There are %s", f.Stream, strings.Join(slices.Compact(blocks), ", ")))
	case f.Listener != "" && !slices.Contains(listeners, f.Listener):
		return admin.NotFound(fmt.Sprintf("there is no listener %q. There are %s", f.Listener, strings.Join(listeners, ", ")))
	}
	f.Host = strings.ToLower(strings.TrimSuffix(f.Host, "."))
	var words []string
	for o := range graph.Outcomes {
		words = append(words, graph.Outcome(o).String())
	}
	if n, err := strconv.Atoi(f.Status); f.Status != "" && !slices.Contains(words, f.Status) && (err != nil || n < 100 || n > 599) {
		return fmt.Errorf("status is %q. It can be a number from 100 to 599, or %s", f.Status, strings.Join(words, ", "))
	}
	return nil
}

// fitsSession tells whether a session that begins fits a filter, but for its status. A
// request that could not be read has neither host, path nor method.
func fitsSession(f *admin.SessionFilter, block string, s *stream.Session) bool {
	if f.Stream != "" && f.Stream != block || f.Listener != "" && f.Listener != s.Client.Listener || f.Client.IsValid() && !f.Client.Contains(s.Client.Remote.Addr()) {
		return false
	}
	if f.Host == "" && f.Path == "" && f.Method == "" {
		return true
	}
	if s.Req == nil || s.Req.Request == nil {
		return false
	}
	b := s.Req.Buf
	if f.Path != "" && !strings.HasPrefix(string(s.Req.Target.In(b)), f.Path) || f.Method != "" && string(s.Req.MethodText.In(b)) != f.Method {
		return false
	}
	if f.Host == "" {
		return true
	}
	name, _ := http1.SplitHost(s.Req.Host.In(b))
	host := strings.ToLower(string(name))
	if below, ok := strings.CutPrefix(f.Host, "*"); ok {
		return len(host) > len(below) && strings.HasSuffix(host, below)
	}
	return host == f.Host
}

// session is a session that is over as operators see it.
func (d *Daemon) session(block string, s *stream.Session, how graph.Outcome, steps []streams.Step, total int64) admin.Session {
	ms := func(ns int64) float64 { return float64(ns/1000) / 1000 }
	time0 := func(ns int64) *float64 {
		if ns < 0 {
			return nil
		}
		v := ms(ns)
		return &v
	}
	t := admin.Session{
		Time: stream.Time(s.Begun), Stream: block, Listener: s.Client.Listener, Client: s.Client.Remote.String(), ServerName: s.Client.ServerName, Protocol: "TCP",
		Steps: make([]admin.SessionStep, len(steps)), Outcome: how.String(), Status: s.Status, Node: s.Node, Reason: s.Reason, Route: s.Route, Tries: s.Tries,
		BytesIn: s.In, BytesOut: s.Out, Queue: time0(s.Queued), Connect: time0(s.Connected), FirstByte: time0(s.FirstByte), Total: time0(total), ID: s.ID,
	}
	if r := s.Req; r != nil {
		t.Protocol = map[int]string{10: "HTTP/1.0", 11: "HTTP/1.1", 20: "HTTP/2"}[r.Proto]
		if r.Request != nil {
			t.Method, t.Host, t.Path = string(r.MethodText.In(r.Buf)), string(r.Host.In(r.Buf)), string(r.Target.In(r.Buf))
		}
	}
	if s.Err != nil {
		t.Error = s.Err.Error()
	}
	snap := d.Snapshot()
	if s.Backend != nil {
		t.Backend, t.Name = s.Backend.Addr.String(), backendName(snap, s.Backend.Addr, poolOf(steps))
	}
	for i, x := range steps {
		y := admin.SessionStep{Node: x.Node, Kind: x.Kind, Output: x.Output, At: ms(x.At), Took: ms(x.Took)}
		if x.Backend.IsValid() {
			y.Says = x.Backend.String()
			if n := backendName(snap, x.Backend, x.Pool); n != "" {
				y.Says = n + " at " + y.Says
			}
		}
		if x.Queued >= 0 {
			y.Says = fmt.Sprintf("waited %.1f ms", ms(x.Queued))
		}
		t.Steps[i] = y
	}
	return t
}
