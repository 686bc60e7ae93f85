package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strconv"
	"time"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/graph"
)

// Host is what the kind needs of the daemon. Its methods may be called from any
// goroutine. Errors are sentences for operators.
type Host interface {
	Stats() []graph.Stats
	// StreamStats answers the counts of every stream block.
	StreamStats() []graph.StreamStats
	Snapshot() *state.Snapshot
	Healthy() error
	Ready() error
	Version() string
	// Configuration says which configuration is in force, and how reloads went.
	Configuration() Configuration
	// Details is what control blocks say of themselves, by kind, ready for JSON.
	Details() map[string]any
	// ReloadFile reads the configuration again and changes over to it; with plan it
	// answers what would change, and changes nothing.
	ReloadFile(why string, plan bool) Reload
	// Drained says who drains the node: "command", "file".
	Drained() []string
	// SetDrained drains the node by command, or ends that.
	SetDrained(drained bool)
	// ChangeBackend orders something for a pool's backend.
	ChangeBackend(pool, name string, c Change) error
	// Trace says what would become of a packet. It changes nothing.
	Trace(Flow) (Traced, error)
	// Sample gives packets that fit f to each, as they come, until ctx ends or
	// f.Count have come. each is called from one goroutine.
	Sample(ctx context.Context, f Filter, each func(Traced)) error
	// TraceRequest says what would become of a request, or of a connection of a stream.
	// It changes nothing.
	TraceRequest(Request) (Session, error)
	// SampleSessions gives sessions that fit f to each, as they end, until ctx ends or
	// f.Count have come. each is called from one goroutine.
	SampleSessions(ctx context.Context, f SessionFilter, each func(Session)) error
	// Top measures what the nodes do for a while.
	Top(ctx context.Context, d time.Duration) (Top, error)
}

// NotFound is an error about something that is not there.
type NotFound string

func (e NotFound) Error() string { return string(e) }

// Status is what GET /v1/status answers.
type Status struct {
	Version       string              `json:"version"`
	Healthy       string              `json:"healthy"` // "ok", or why not
	Ready         string              `json:"ready"`
	Drained       []string            `json:"drained"` // by whom
	Configuration Configuration       `json:"configuration"`
	State         uint64              `json:"state"` // generation of the snapshot in force
	Pools         []Pool              `json:"pools"`
	Graphs        []graph.Stats       `json:"graphs"`
	Streams       []graph.StreamStats `json:"streams"`
	Details       map[string]any      `json:"details"` // by control block
}

// Pool is a pool as it stands.
type Pool struct {
	Name     string    `json:"name"`
	Slots    int       `json:"slots"`
	Digest   string    `json:"digest"` // of the Maglev table: equal on nodes that agree
	Backends []Backend `json:"backends"`
}

// Backend is a member of a pool.
type Backend struct {
	Name    string `json:"name"` // POOL/NAME
	Address string `json:"address"`
	Port    int    `json:"port,omitempty"` // for streams
	Weight  uint32 `json:"weight"`
	Status  string `json:"status"` // up, draining or down, in this pool
	Health  string `json:"health"` // UNKNOWN, HEALTHY or UNHEALTHY
	Drained bool   `json:"drained"`
	Removed bool   `json:"removed"` // from the file, and within its grace
}

// Configuration says which configuration is in force, and how reloads went.
type Configuration struct {
	File string `json:"file"`
	// LastGood: the daemon began with the configuration that was kept, because the
	// file was wrong, and has not taken the file since.
	LastGood bool              `json:"last_good"`
	Since    time.Time         `json:"since"`
	Reloads  map[string]uint64 `json:"reloads"` // by outcome
	Last     *Reload           `json:"last,omitempty"`
}

// Outcomes of a reload.
const (
	Reloaded  = "reloaded"
	Unchanged = "unchanged" // the files say what is in force
	Planned   = "planned"   // only what would change was asked for
	Wrong     = "wrong"     // the file is
	Refused   = "refused"   // what changes needs a restart
	Failed    = "failed"    // the system did not let it; the old configuration is in force
)

// Reload is how one reload went.
type Reload struct {
	Outcome  string    `json:"outcome"`
	At       time.Time `json:"at"`
	Why      string    `json:"why"` // who asked for it
	Error    string    `json:"error,omitempty"`
	Messages []Message `json:"messages,omitempty"` // on the file
	Plan     []Action  `json:"plan,omitempty"`     // what changes
}

// Message is a diagnostic. Lines and columns begin at 1.
type Message struct {
	Severity  string `json:"severity"` // error or warning
	Summary   string `json:"summary"`
	Detail    string `json:"detail"`
	File      string `json:"file"`
	Line      int    `json:"line"`
	Column    int    `json:"column"`
	EndLine   int    `json:"end_line"`
	EndColumn int    `json:"end_column"`
}

// Action is one change.
type Action struct {
	Class string `json:"class"` // live or restart
	What  string `json:"what"`
	Why   string `json:"why"`
}

// Change is what can be ordered for a backend: exactly one of its first fields.
type Change struct {
	Drain   bool `json:"drain,omitempty"`   // keep its flows, give it no new ones
	Enable  bool `json:"enable,omitempty"`  // give it new flows, whatever the file says
	Weight  *int `json:"weight,omitempty"`  // its share of new flows
	Restore bool `json:"restore,omitempty"` // as the file says
	Flush   bool `json:"flush,omitempty"`   // forget its flows: they select again
	// UntilReload: the order ends with the next reload.
	UntilReload bool `json:"until_reload,omitempty"`
}

// Flow is a packet to be traced.
type Flow struct {
	Protocol    string         `json:"protocol"` // tcp or udp
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	SYN         bool           `json:"syn"`             // begins a TCP connection
	Graph       string         `json:"graph,omitempty"` // where the file has several
}

// Filter says which packets are sampled. What is not given fits all.
type Filter struct {
	Graph           string       `json:"graph,omitempty"`
	Protocol        string       `json:"protocol,omitempty"` // tcp, udp, icmp (both families)
	Source          netip.Prefix `json:"source"`
	Destination     netip.Prefix `json:"destination"`
	SourcePort      uint16       `json:"source_port,omitempty"`
	DestinationPort uint16       `json:"destination_port,omitempty"`
	Verdict         string       `json:"verdict,omitempty"` // sent, dropped or kernel
	Reason          string       `json:"reason,omitempty"`  // of a drop
	Count           int          `json:"count"`             // after which it ends; 10 if not given
	Seconds         float64      `json:"seconds"`           // after which it ends; 10 if not given
}

// Traced is what became, or would become, of a packet.
type Traced struct {
	Time    time.Time `json:"time"`
	Graph   string    `json:"graph"`
	Flow    string    `json:"flow"` // protocol, source, destination
	Steps   []Step    `json:"steps"`
	Verdict string    `json:"verdict"` // sent, dropped, kernel or held
	Node    string    `json:"node"`    // where it ended
	Reason  string    `json:"reason,omitempty"`
	VIP     string    `json:"vip,omitempty"`
	Backend string    `json:"backend,omitempty"` // POOL/NAME
	Before  []byte    `json:"before"`            // the frame that came
	After   [][]byte  `json:"after,omitempty"`   // the frames that left
}

// Step is a node that a packet came to.
type Step struct {
	Node string `json:"node"`
	Kind string `json:"kind"`
	Core int    `json:"core"`
	Says string `json:"says,omitempty"` // what the node found
}

// Top is what nodes did for a while.
type Top struct {
	Seconds float64     `json:"seconds"`
	Graphs  []TopGraph  `json:"graphs"`
	Streams []TopStream `json:"streams"`
	// Backends are those of the streams.
	Backends []TopBackend `json:"backends"`
}

// TopGraph is a graph's part of it.
type TopGraph struct {
	Graph    string    `json:"graph"`
	Cores    int       `json:"cores"`
	Received uint64    `json:"received"`
	Sent     uint64    `json:"sent"`
	Dropped  uint64    `json:"dropped"`
	Kernel   uint64    `json:"kernel"`
	Nodes    []TopNode `json:"nodes"` // in the order in which they run
}

// TopNode is a node's part.
type TopNode struct {
	Node    string  `json:"node"`
	Kind    string  `json:"kind"`
	Calls   uint64  `json:"calls"`
	Packets uint64  `json:"packets"`
	Dropped uint64  `json:"dropped"`
	Nanos   float64 `json:"ns_per_packet"`
	Share   float64 `json:"share"` // of the time that all nodes took, 0 to 1
}

// TopStream is a stream's part of it.
type TopStream struct {
	Stream    string        `json:"stream"`
	Listeners []TopListener `json:"listeners"`
	Routes    []TopRoute    `json:"routes"`
	Nodes     []TopStage    `json:"nodes"` // in the order in which sessions can pass them
}

// TopListener is a listener's part. Connections and Requests are new ones.
type TopListener struct {
	Listener    string `json:"listener"`
	Address     string `json:"address"`
	Open        int64  `json:"open"`   // connections, now
	Active      int64  `json:"active"` // sessions, now
	Connections uint64 `json:"connections"`
	Requests    uint64 `json:"requests"`
	Unreadable  uint64 `json:"unreadable"` // of Requests, and connections of HTTP/2 closed for flooding
	BytesIn     uint64 `json:"bytes_in"`
	BytesOut    uint64 `json:"bytes_out"`
}

// TopRoute is the part of the sessions that a node had the last word on. Times are
// interpolated within a bucket of the histogram.
type TopRoute struct {
	Route    string      `json:"route"`
	Sessions uint64      `json:"sessions"` // that are over
	Outcomes graph.Tally `json:"outcomes"` // of Sessions
	P50      float64     `json:"p50_ms"`
	P99      float64     `json:"p99_ms"`
}

// TopStage is a stream node's part.
type TopStage struct {
	Node     string             `json:"node"`
	Kind     string             `json:"kind"`
	Sessions uint64             `json:"sessions"`
	Dropped  uint64             `json:"dropped"`
	Values   map[string]float64 `json:"values,omitempty"` // what it measures of itself, now
}

// TopBackend is a backend's part.
type TopBackend struct {
	Backend  string  `json:"backend"`        // address and port
	Name     string  `json:"name,omitempty"` // POOL/NAME
	Active   int64   `json:"active"`         // sessions, now
	Ejected  bool    `json:"ejected"`
	Sessions uint64  `json:"sessions"`
	Failures uint64  `json:"failures"`
	Retries  uint64  `json:"retries"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
}

// Request is a request, or a connection of a stream, that is asked about.
type Request struct {
	// URL begins with http:, https: or tcp:. Its port finds the listener.
	URL    string `json:"url"`
	Method string `json:"method,omitempty"` // GET if not given
	// Headers are further fields, as "Name: value".
	Headers []string `json:"headers,omitempty"`
	// Listener is the node that accepts it, or STREAM/NODE, where the port does not say.
	Listener string     `json:"listener,omitempty"`
	Client   netip.Addr `json:"client"` // 127.0.0.1 or ::1 if not given
}

// SessionFilter says which sessions are sampled. What is not given fits all.
type SessionFilter struct {
	Stream   string       `json:"stream,omitempty"`
	Listener string       `json:"listener,omitempty"` // its node
	Host     string       `json:"host,omitempty"`     // without port; *.example.org is all below
	Path     string       `json:"path,omitempty"`     // its beginning
	Method   string       `json:"method,omitempty"`
	Client   netip.Prefix `json:"client"`
	Status   string       `json:"status,omitempty"` // 503, or an outcome: 5xx, gone, cut, ended, failed
	Count    int          `json:"count"`            // after which it ends; 10 if not given
	Seconds  float64      `json:"seconds"`          // after which it ends; 10 if not given
}

// Session is what became, or would become, of a request, or of a connection without
// requests. Times are in milliseconds; what never came is left out.
type Session struct {
	Time       time.Time     `json:"time"` // when it began
	Stream     string        `json:"stream"`
	Listener   string        `json:"listener"`
	Client     string        `json:"client"`
	ServerName string        `json:"server_name,omitempty"`
	Protocol   string        `json:"protocol"` // TCP, HTTP/1.0, HTTP/1.1 or HTTP/2
	Method     string        `json:"method,omitempty"`
	Host       string        `json:"host,omitempty"`
	Path       string        `json:"path,omitempty"` // the target, as it came
	Steps      []SessionStep `json:"steps"`
	Outcome    string        `json:"outcome,omitempty"` // 1xx to 5xx, gone, cut, ended, failed
	Status     int           `json:"status,omitempty"`
	Node       string        `json:"node"` // where it ended
	Reason     string        `json:"reason,omitempty"`
	Error      string        `json:"error,omitempty"`
	Route      string        `json:"route,omitempty"`
	Backend    string        `json:"backend,omitempty"`      // address and port
	Name       string        `json:"backend_name,omitempty"` // POOL/NAME
	Tries      int           `json:"tries"`
	BytesIn    int64         `json:"bytes_in"`
	BytesOut   int64         `json:"bytes_out"`
	Queue      *float64      `json:"queue_ms,omitempty"`
	Connect    *float64      `json:"connect_ms,omitempty"`
	FirstByte  *float64      `json:"first_byte_ms,omitempty"`
	Total      *float64      `json:"total_ms,omitempty"`
	ID         string        `json:"id,omitempty"`
}

// SessionStep is a node that a session came to.
type SessionStep struct {
	Node   string  `json:"node"`
	Kind   string  `json:"kind"`
	Output string  `json:"output,omitempty"` // none where it ended
	At     float64 `json:"at_ms"`            // when it came, since it began
	Took   float64 `json:"took_ms"`
	Says   string  `json:"says,omitempty"`
}

// Route is a path of the API.
type Route struct{ Method, Path string }

// Routes answers all paths, in their order.
func Routes() (all []Route) {
	for _, r := range routes {
		all = append(all, r.Route)
	}
	return all
}

type route struct {
	Route
	serve func(Host, http.ResponseWriter, *http.Request)
}

var routes = []route{
	{Route{"GET", "/v1/status"}, func(h Host, w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, StatusOf(h)) }},
	{Route{"POST", "/v1/reload"}, func(h Host, w http.ResponseWriter, _ *http.Request) { reload(w, h.ReloadFile("command", false)) }},
	{Route{"GET", "/v1/plan"}, func(h Host, w http.ResponseWriter, _ *http.Request) { reload(w, h.ReloadFile("command", true)) }},
	{Route{"POST", "/v1/drain"}, func(h Host, w http.ResponseWriter, _ *http.Request) { drain(h, w, true) }},
	{Route{"POST", "/v1/undrain"}, func(h Host, w http.ResponseWriter, _ *http.Request) { drain(h, w, false) }},
	{Route{"GET", "/v1/backends"}, func(h Host, w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, poolsOf(h.Snapshot())) }},
	{Route{"POST", "/v1/backends/{pool}/{name}"}, changeBackend},
	{Route{"POST", "/v1/trace"}, trace},
	{Route{"POST", "/v1/sample"}, sample},
	{Route{"POST", "/v1/streams/trace"}, traceRequest},
	{Route{"POST", "/v1/streams/sample"}, sampleSessions},
	{Route{"GET", "/v1/top"}, top},
	{Route{"GET", "/debug/pprof/"}, func(_ Host, w http.ResponseWriter, r *http.Request) { pprof.Index(w, r) }},
	{Route{"GET", "/debug/pprof/cmdline"}, func(_ Host, w http.ResponseWriter, r *http.Request) { pprof.Cmdline(w, r) }},
	{Route{"GET", "/debug/pprof/profile"}, func(_ Host, w http.ResponseWriter, r *http.Request) { pprof.Profile(w, r) }},
	{Route{"GET", "/debug/pprof/symbol"}, func(_ Host, w http.ResponseWriter, r *http.Request) { pprof.Symbol(w, r) }},
	{Route{"GET", "/debug/pprof/trace"}, func(_ Host, w http.ResponseWriter, r *http.Request) { pprof.Trace(w, r) }},
}

// Handler answers the paths of version 1.
func Handler(h Host) http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.Method+" "+r.Path, func(w http.ResponseWriter, q *http.Request) {
			// Bodies are short; nobody makes us read for ever.
			q.Body = http.MaxBytesReader(w, q.Body, 64<<10)
			r.serve(h, w, q)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, fmt.Errorf("there is no %s %s", r.Method, r.URL.Path))
	})
	return mux
}

// StatusOf collects a daemon's status.
func StatusOf(h Host) Status {
	word := func(err error) string {
		if err != nil {
			return err.Error()
		}
		return "ok"
	}
	snap := h.Snapshot()
	drained := h.Drained()
	if drained == nil {
		drained = []string{}
	}
	return Status{
		Version: h.Version(), Healthy: word(h.Healthy()), Ready: word(h.Ready()), Drained: drained, Configuration: h.Configuration(),
		State: snap.Generation, Pools: poolsOf(snap), Graphs: h.Stats(), Streams: h.StreamStats(), Details: h.Details(),
	}
}

func poolsOf(snap *state.Snapshot) []Pool {
	all := []Pool{}
	for i := range snap.Pools {
		p := &snap.Pools[i]
		if p.ID == 0 {
			continue
		}
		pool := Pool{Name: p.Name, Slots: len(p.Table), Digest: fmt.Sprintf("%016x", p.Digest), Backends: []Backend{}}
		for _, m := range p.Members {
			if m.Backend == 0 {
				continue
			}
			pool.Backends = append(pool.Backends, Backend{
				Name: p.Name + "/" + m.Name, Address: snap.Backends[m.Backend].Addr.String(), Port: m.Port, Weight: m.Weight,
				Status: m.Status.String(), Health: m.Health.String(), Drained: m.Drained, Removed: m.Removed,
			})
		}
		all = append(all, pool)
	}
	return all
}

func reload(w http.ResponseWriter, r Reload) {
	code := http.StatusOK
	switch r.Outcome {
	case Wrong:
		code = http.StatusUnprocessableEntity
	case Refused:
		code = http.StatusConflict
	case Failed:
		code = http.StatusInternalServerError
	}
	answer(w, code, r)
}

func drain(h Host, w http.ResponseWriter, on bool) {
	h.SetDrained(on)
	by := h.Drained()
	if by == nil {
		by = []string{}
	}
	answer(w, http.StatusOK, struct {
		Drained []string `json:"drained"`
	}{by})
}

func changeBackend(h Host, w http.ResponseWriter, r *http.Request) {
	var c Change
	if !read(w, r, &c) {
		return
	}
	n := 0
	for _, given := range []bool{c.Drain, c.Enable, c.Weight != nil, c.Restore, c.Flush} {
		if given {
			n++
		}
	}
	if n != 1 {
		fail(w, http.StatusBadRequest, errors.New("say exactly one of drain, enable, weight, restore and flush"))
		return
	}
	if err := h.ChangeBackend(r.PathValue("pool"), r.PathValue("name"), c); err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	answer(w, http.StatusOK, poolsOf(h.Snapshot()))
}

func trace(h Host, w http.ResponseWriter, r *http.Request) {
	var f Flow
	if !read(w, r, &f) {
		return
	}
	t, err := h.Trace(f)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	answer(w, http.StatusOK, t)
}

// The most that one request may ask for.
const (
	mostSamples = 10000
	mostSeconds = 3600
)

func traceRequest(h Host, w http.ResponseWriter, r *http.Request) {
	var q Request
	if !read(w, r, &q) {
		return
	}
	t, err := h.TraceRequest(q)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	answer(w, http.StatusOK, t)
}

func sample(h Host, w http.ResponseWriter, r *http.Request) {
	var f Filter
	if !read(w, r, &f) {
		return
	}
	lines(w, r, &f.Count, &f.Seconds, func(ctx context.Context, each func(any)) error {
		return h.Sample(ctx, f, func(t Traced) { each(t) })
	})
}

func sampleSessions(h Host, w http.ResponseWriter, r *http.Request) {
	var f SessionFilter
	if !read(w, r, &f) {
		return
	}
	lines(w, r, &f.Count, &f.Seconds, func(ctx context.Context, each func(any)) error {
		return h.SampleSessions(ctx, f, func(s Session) { each(s) })
	})
}

// lines answers a line of JSON for each thing that from gives to each, until there are
// count of them or the seconds are over.
func lines(w http.ResponseWriter, r *http.Request, count *int, seconds *float64, from func(ctx context.Context, each func(any)) error) {
	if *count == 0 {
		*count = 10
	}
	if *seconds == 0 {
		*seconds = 10
	}
	if *count < 0 || *count > mostSamples || !(*seconds > 0 && *seconds <= mostSeconds) {
		fail(w, http.StatusBadRequest, fmt.Errorf("count can be 1 to %d, and seconds up to %d", mostSamples, mostSeconds))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(*seconds*1e9))
	defer cancel()
	e, begun := json.NewEncoder(w), false
	begin := func() {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "application/x-ndjson")
			w.WriteHeader(http.StatusOK)
		}
	}
	err := from(ctx, func(x any) {
		begin()
		if e.Encode(x) != nil {
			cancel() // nobody listens
		}
		_ = http.NewResponseController(w).Flush()
	})
	if err != nil && !begun {
		fail(w, http.StatusBadRequest, err)
		return
	}
	begin()
}

func top(h Host, w http.ResponseWriter, r *http.Request) {
	seconds := 1.0
	if s := r.URL.Query().Get("seconds"); s != "" {
		var err error
		if seconds, err = strconv.ParseFloat(s, 64); err != nil || !(seconds >= 0.01 && seconds <= 60) {
			fail(w, http.StatusBadRequest, fmt.Errorf("seconds = %q must be a number from 0.01 to 60", s))
			return
		}
	}
	t, err := h.Top(r.Context(), time.Duration(seconds*1e9))
	if err != nil { // whoever asked has gone, or the daemon stops
		fail(w, http.StatusServiceUnavailable, fmt.Errorf("the daemon does not measure on: %w", err))
		return
	}
	answer(w, http.StatusOK, t)
}

// read decodes a request's body; what it does not know is an error, for it may be
// meant.
func read(w http.ResponseWriter, r *http.Request, to any) bool {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(to)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the object")
		}
	}
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf("the body is not understood: %w", err))
	}
	return err == nil
}

// Error is what is answered with a status of 400 or more, but for reloads.
type Error struct {
	Error string `json:"error"`
}

func fail(w http.ResponseWriter, code int, err error) {
	var none NotFound
	if errors.As(err, &none) {
		code = http.StatusNotFound
	}
	answer(w, code, Error{err.Error()})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // a client that goes away is no failure of ours
}
