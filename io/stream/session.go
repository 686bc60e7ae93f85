package stream

import (
	"context"
	"math/bits"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/lbgraph/lbgraph/io/http1"
)

// Done is the output of a session that has ended at a node: answered, or brought
// to its end.
const Done = -1

// A Stage is one node at work. Serve looks at a session and answers the output by
// which it goes on, by its number (Def.Outputs, then OutputsOf), or Done. err says
// in words why a session left by an output that names a reason; it is for the log.
//
// Serve may block as long as the session lasts; ctx ends when the stream plane is
// stopped the hard way, or when a request of HTTP/2 is cancelled.
type Stage interface {
	Serve(ctx context.Context, s *Session) (output int, err error)
}

// An Ender is told that a session that passed it is over: see Session.OnEnd. On an
// upgraded connection Upgraded is called when it begins, End when it ends.
type Ender interface {
	Upgraded(*Session)
	End(*Session)
}

// A Picker chooses a backend for a session, and takes note of how it did.
type Picker interface {
	// Pick answers a backend, but none that s has tried; nil if there is none.
	Pick(s *Session) *Backend
	// Report tells that b failed a session of this picker, or served it.
	Report(b *Backend, failed bool)
}

// A Session is a connection, or a request on it.
type Session struct {
	// Client is whose connection it is. Requests of one connection share it.
	Client *Client
	// Req is the request; nil for a connection.
	Req *Request

	// Backend is chosen by the last balance that the session passed, Picker is that
	// balance. Choose sets them.
	Backend *Backend
	Picker  Picker
	// Tried are the backends that failed this session.
	Tried []*Backend

	// RetryAfter is what an answer of 429 or 503 tells the client to wait, if a
	// node that refuses says so.
	RetryAfter time.Duration

	// Edits are changes to fields, in the order of the nodes that ask for them.
	Edits []*Edits

	// Log gets the session's record when it is over.
	Log Logger
	Record

	enders []Ender
	// Upgraded: the connection has left HTTP.
	Upgraded bool
}

// A Client is an accepted connection.
type Client struct {
	*Conn
	// Listener is the name of the node that accepted it.
	Listener string
	// Remote is the client: the peer, or who the PROXY protocol says it is. Peer is
	// who connected. Local is the address that the client called.
	Remote, Peer, Local netip.AddrPort
	// Trusted: the client, as far as the connection tells, is in a network that is trusted
	// to say who is behind it.
	Trusted bool
	// ServerName is the name that the client asked TLS for; Secure tells that it
	// came by TLS, if only up to a trusted peer.
	ServerName string
	Secure     bool
	// H2: HTTP/2 was agreed on.
	H2 bool
	// HTTP is the settings of HTTP on the connection, should it be spoken.
	HTTP *HTTP
}

// HTTP is the settings of HTTP on a client's connection.
type HTTP struct {
	Limits http1.Limits
	// HeadTime bounds the head from its first byte, IdleTime the time between two
	// requests.
	HeadTime, IdleTime time.Duration
	// BodyTime is the time without progress of a body; one of known length has in
	// all this time and what it takes at BodyRate bytes a second.
	BodyTime time.Duration
	BodyRate int64
	// WriteTime is the time without progress of an answer.
	WriteTime time.Duration
	// H2: HTTP/2 is spoken where the client wants it.
	H2 bool
	// Streams is how many requests of HTTP/2 may be in flight on one connection.
	Streams uint32
}

// A Request is an HTTP request in flight.
type Request struct {
	*http1.Request
	// Buf holds the bytes of the head.
	Buf []byte
	// Proto is the version that the client speaks: 10, 11 or 20.
	Proto int
	// Body is what follows the head; nil for none.
	Body Body
	Responder
}

// A Body is what a client sends behind a request's head.
type Body interface {
	// Next answers the next piece: of the content or, with raw, as chunks if it came
	// in chunks. It is valid until the next call. io.EOF follows the last one, an
	// *http1.Error tells of a malformed one, ErrTimeout of one that did not come.
	Next(raw bool) ([]byte, error)
	// AppendTrailers appends the lines of its trailers, after io.EOF.
	AppendTrailers(dst []byte) []byte
	// Chunks tells whether Next can answer chunks.
	Chunks() bool
	// Whole tells that Next needs not wait.
	Whole() bool
	// Begun tells that Next was called: what it answered is gone.
	Begun() bool
	// Within sets the time without progress of a body, in place of the listener's, before
	// Next is called; not of one of known length that has a time in all.
	Within(d time.Duration)
	// Source answers the connection that the content can be taken from past Next,
	// nil if it cannot, how many bytes of it, and the times of Splice; Spliced says how
	// many were.
	Source() (c *Conn, n, idle, by int64)
	Spliced(n int64)
	// Interrupt makes Next fail, now and later, with ErrInterrupted. Any goroutine
	// may call it.
	Interrupt()
}

// A Responder is the way back to the client.
type Responder interface {
	// Inform passes on an interim response.
	Inform(*Response) error
	// Begin takes the head of the response. It goes out with the first Write, by
	// Flush, or by End. A session begins one response at most.
	Begin(*Response) error
	// Write sends a piece of the body, in the form that Begin said.
	Write(p []byte) error
	// Flush sends what is held back.
	Flush() error
	// End sends the last piece of the body, if any, and ends it; trailers are field
	// lines, for a body without known length.
	End(p, trailers []byte) error
	// Begun tells that Begin was called; Sent, that something of it went out.
	Begun() bool
	// Abort makes the client see that the response is cut.
	Abort()
	// RawChunks tells that the client takes chunks as they came.
	RawChunks() bool
	// Gone tells that the client left or cancelled the request. One that has ended its
	// side before the answer began may still wait for it: that is not gone yet. It is
	// for who answers, while nobody reads the body.
	Gone() bool
	// Watch calls f, once, when the client is gone; until stop, after which nobody
	// uses the connection for it. It may be used while nobody reads the body.
	Watch(f func()) (stop func())
	// Upgrade answers the connection, behind a 101 that Begin took and Flush sent;
	// nil where it cannot.
	Upgrade() *Conn
	// Sink answers the connection to splice a body to, once its head is out; nil
	// where that cannot be. Spliced says how many bytes went.
	Sink() *Conn
	SinkSpliced(n int64)
	// Close says that no further request is to come on this connection.
	Close()
}

// A Response is the head of a response, and how its body will come.
type Response struct {
	Status int
	// Head and Buf are a head whose fields go on, without those in Drop; nil for an
	// answer of our own.
	Head *http1.Response
	Buf  []byte
	Drop http1.Set
	// Edits change its fields.
	Edits []*Edits
	// Fields are the field lines of an answer of our own.
	Fields []byte
	// Framing is the form in which Write gets the body: of known length; Chunked,
	// as chunks; UntilClose, content of unknown length.
	Framing http1.Framing
	// Bodiless: it has no body whatever the fields say (HEAD, 204, 304); Length is
	// the Content-Length that they say, −1 for none.
	Bodiless bool
	Length   int64
	// Upgrade is the value of the Upgrade field of a 101.
	Upgrade []byte
}

// A Record is what the access log says of a session. Times are in nanoseconds, -1
// for what never came.
type Record struct {
	// Begun is when the head was complete, or the connection accepted.
	Begun int64
	// Queued is the time spent waiting for admission, Connected the time until a
	// connection to the backend was there, FirstByte until its answer began.
	Queued, Connected, FirstByte int64
	// Status is what the client was answered, or 499 if it left before.
	Status int
	// In and Out are the bytes of the bodies, or of a connection.
	In, Out int64
	// Tries is the backends asked.
	Tries int
	// Node and Reason say what ended it: a node, and an output or a word.
	Node, Reason string
	// Err is the cause in words.
	Err error
	// Route is the name of the last balance that it passed.
	Route string
	// Cut tells that the client saw its answer break off.
	Cut bool
	// ID is the request's id, if a node gave it one.
	ID string
}

// A Logger takes records. Record must not block, and not keep s.
type Logger interface {
	Record(s *Session)
}

// A Keeper is a stage that gives sessions which pass it a Logger. The runtime has it do
// so for requests that cannot be read, too, which pass no stage. Any number of
// goroutines may call Keep at the same time.
type Keeper interface {
	Keep(s *Session)
}

// Choose sets the session's backend, which it counts for from now on.
func (s *Session) Choose(b *Backend, p Picker) {
	if s.Backend != nil {
		s.Backend.Active.Add(-1)
	}
	s.Backend, s.Picker = b, p
	if b != nil {
		b.Active.Add(1)
	}
}

// Failed notes that the backend failed the session, which may try another.
func (s *Session) Failed() {
	s.Tried = append(s.Tried, s.Backend)
	s.Picker.Report(s.Backend, true)
}

// HasTried tells whether b failed the session.
func (s *Session) HasTried(b *Backend) bool {
	for _, t := range s.Tried {
		if t == b {
			return true
		}
	}
	return false
}

// OnEnd has e told when the session is over.
func (s *Session) OnEnd(e Ender) { s.enders = append(s.enders, e) }

// BeginUpgrade tells what the session passed that it leaves HTTP.
func (s *Session) BeginUpgrade() {
	s.Upgraded = true
	for _, e := range s.enders {
		e.Upgraded(s)
	}
}

// End ends the session: it counts for nothing any more. The runtime calls it.
func (s *Session) End() {
	if s.Log != nil {
		s.Log.Record(s)
	}
	for i := len(s.enders) - 1; i >= 0; i-- {
		s.enders[i].End(s)
	}
	s.Choose(nil, nil)
}

// Reset makes s ready for another request of client.
func (s *Session) Reset(client *Client) {
	clear(s.Tried)
	clear(s.enders)
	tried, edits, enders := s.Tried[:0], s.Edits[:0], s.enders[:0]
	*s = Session{}
	s.Client, s.Tried, s.Edits, s.enders = client, tried, edits, enders
	s.Queued, s.Connected, s.FirstByte = -1, -1, -1
}

// A Backend is one address and port of pools, with what streams know of it: it is
// the same object for all nodes, over reloads too.
type Backend struct {
	Addr netip.AddrPort
	// Active is the sessions that it serves.
	Active atomic.Int64
	// Total counts sessions, Failures those that it failed, Retries those that came
	// to it because another one had failed them.
	Total, Failures, Retries atomic.Uint64
	// Latency is a histogram of what its answers took, and its connections without
	// requests.
	Latency Histogram
	// Streak is its failures in a row, Ejected the time until which one of the nodes
	// that choose it leaves it out for them.
	Streak  atomic.Int32
	Ejected atomic.Int64
	// UpSince is when it last came back; 0 if it never was away.
	UpSince atomic.Int64
}

// A Histogram counts durations in buckets: bucket i those below Bound(i) that are in
// none before.
type Histogram struct {
	Count [HistogramBuckets]atomic.Uint64
	Sum   atomic.Uint64 // nanoseconds
}

// HistogramBuckets is the number of buckets; the last one has no bound.
const HistogramBuckets = 20

// Bound answers the bound of a bucket but the last, in nanoseconds: some 131 µs, and
// twice as much for each further one, up to 34 s.
func Bound(i int) int64 { return 1 << (17 + i) }

// Observe counts a duration in nanoseconds.
func (h *Histogram) Observe(ns int64) {
	ns = max(ns, 0)
	h.Count[min(bits.Len64(uint64(ns)>>17), HistogramBuckets-1)].Add(1)
	h.Sum.Add(uint64(ns))
}
