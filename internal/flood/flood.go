// Package flood puts load on one HTTP or TCP server and measures it: so many
// connections, either as fast as answers come or at a fixed rate, for a bounded time
// or number of requests. It speaks to the one address that it is given: it follows no
// redirect, repeats no request, and asks no name server twice.
//
// At a fixed rate each request has a time at which it is due, whatever became of those
// before, and its latency counts from then. So a server that stands still for a second
// shows up in all that was due in that second, not in the one request that it kept
// waiting (coordinated omission). A request whose connection stood ready when it was
// due counts from when it was sent, at most 2 ms later: timers are that coarse.
package flood

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Config is what is sent where. The zero value of what has a bound is refused; Check
// says how.
type Config struct {
	Target      string        // http://HOST[:PORT]/PATH, https://…, tcp://HOST:PORT; without a scheme it is http
	Connections int           // at the same time
	Rate        float64       // requests a second; 0 sends the next one when an answer is there
	Duration    time.Duration // until no more are sent; 0 is no bound
	Requests    int64         // until no more are sent; 0 is no bound. There must be one of the two
	Timeout     time.Duration // for connecting, and for an answer
	PerRequest  bool          // a connection for each request, instead of keep-alive
	Method      string        // GET if empty; POST if there is a body
	Fields      []string      // "Name: value"
	Host        string        // of the request, and the server name of TLS, instead of the target's
	Size        int           // bytes of the request's body; of TCP's lines, their end included
	Insecure    bool          // take any certificate
	By          string        // field of an answer that tells who gave it; Server if empty

	// Watch is called Every so often, by one goroutine, and not after Run has ended.
	Watch func(Progress)
	Every time.Duration
}

// Bounds of a Config.
const (
	MaxConnections = 20_000
	MaxRate        = 1_000_000
	MaxRequests    = 1_000_000_000
	MaxDuration    = 24 * time.Hour
	MaxBody        = 64 << 20
	MaxLine        = 16 << 10 // of TCP: what fits into sockets' buffers while nobody reads
)

// Progress is how far a run is.
type Progress struct {
	Elapsed  time.Duration
	Of       time.Duration // 0 if time does not bound the run
	Ended    int64         // requests, good or not
	OfEnded  int64         // 0 if their number does not bound the run
	Failed   int64
	Answered int64
}

// Result is what came of a run. Requests = Answered + Failed + BrokenOff.
type Result struct {
	Target      string  `json:"target"`
	Address     string  `json:"address"` // that was spoken to
	Connections int     `json:"connections"`
	Rate        float64 `json:"rate"` // that was asked for; 0 is a closed loop
	Seconds     float64 `json:"seconds"`
	Interrupted bool    `json:"interrupted"`
	Requests    int64   `json:"requests"`   // begun
	Answered    int64   `json:"answered"`   // whole, and with a status below 400
	Failed      int64   `json:"failed"`     // Errors has their kinds
	BrokenOff   int64   `json:"broken_off"` // under way when the run was interrupted
	NotSent     int64   `json:"not_sent"`   // due at the fixed rate, and no connection was free for them by the end
	Opened      int64   `json:"opened"`     // connections
	Reopened    int64   `json:"reopened"`   // of them because the server had closed one that was idle
	Received    int64   `json:"received_bytes"`
	Sent        int64   `json:"sent_bytes"`
	PerSecond   float64 `json:"answered_per_second"`
	// Latency is in milliseconds, of answers that are good; and of requests that timed
	// out or were not sent the time until they were given up.
	Latency    Latency          `json:"latency_ms"`
	AnsweredBy map[string]int64 `json:"answered_by"` // good answers; "" are those that do not tell
	Errors     map[string]int64 `json:"errors"`
}

// Latency is percentiles in milliseconds, to three significant digits.
type Latency struct {
	FromDue     bool         `json:"from_due"` // counted from when requests were due, not from when they were sent
	Count       int64        `json:"count"`
	Min         float64      `json:"min"`
	Mean        float64      `json:"mean"`
	Max         float64      `json:"max"`
	Percentiles []Percentile `json:"percentiles"`
}

// A Percentile says that P percent of the latencies are Ms milliseconds at most.
type Percentile struct {
	P  float64 `json:"p"`
	Ms float64 `json:"ms"`
}

var percentiles = []float64{50, 75, 90, 99, 99.9, 99.99}

// OK says whether every request was answered well, and at its time.
func (r *Result) OK() bool { return r.Failed == 0 && r.NotSent == 0 }

// flood is a run.
type flood struct {
	Config
	url     *url.URL
	tls     *tls.Config
	head    []byte // of requests, with the body
	dialer  net.Dialer
	address netip.AddrPort // that is spoken to

	first     atomic.Pointer[conn] // that showed that somebody listens; the first request takes it
	start     time.Time
	end       time.Time // when no more are begun; zero if the number bounds it alone
	total     int64     // requests; 0 if time bounds them alone
	next      atomic.Int64
	requests  atomic.Int64
	answered  atomic.Int64
	failed    atomic.Int64
	brokenOff atomic.Int64
	notSent   atomic.Int64
	opened    atomic.Int64
	reopened  atomic.Int64
	received  atomic.Int64
	sent      atomic.Int64
	shards    []shard
}

// A shard keeps what several connections saw: one a connection would need 100 KB each.
type shard struct {
	mu     sync.Mutex
	hist   *hdrhistogram.Histogram
	by     map[string]int64
	errors map[string]int64
}

// Latencies are kept in nanoseconds, from a microsecond to an hour.
const longest = int64(time.Hour)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1000, longest, 3) }

// Check says what is wrong with a configuration, in words for who typed it.
func (c Config) Check() error {
	_, err := c.parse()
	return err
}

func (c Config) parse() (*url.URL, error) {
	target := c.Target
	if !strings.Contains(target, "://") {
		target = "http://" + target
	}
	u, err := url.Parse(target)
	switch {
	case err != nil || u.Hostname() == "":
		return nil, fmt.Errorf("%q is no address. Write http://127.0.0.1:8080/ or tcp://127.0.0.1:8090", c.Target)
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "tcp":
		return nil, fmt.Errorf("%q begins with %s. It can be http, https or tcp", c.Target, u.Scheme)
	case u.User != nil || u.Fragment != "":
		return nil, fmt.Errorf("%q has a user or a fragment, which are not sent. Leave them out", c.Target)
	case u.Scheme == "tcp" && (u.Port() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != ""):
		return nil, fmt.Errorf("%q has to be tcp://HOST:PORT, without a path", c.Target)
	case u.Scheme == "tcp" && (c.Method != "" || len(c.Fields) > 0 || c.Host != "" || c.By != ""):
		return nil, errors.New("a method, fields, a host and who answered by field are HTTP's, and the target is TCP")
	case u.Scheme == "tcp" && c.Size < 1, c.Size < 0, u.Scheme == "tcp" && c.Size > MaxLine, c.Size > MaxBody:
		return nil, fmt.Errorf("the size is %d. It can be 0 to %d with HTTP, 1 to %d with TCP", c.Size, MaxBody, MaxLine)
	case c.Connections < 1 || c.Connections > MaxConnections:
		return nil, fmt.Errorf("connections are %d. There can be 1 to %d", c.Connections, MaxConnections)
	case !(c.Rate >= 0 && c.Rate <= MaxRate):
		return nil, fmt.Errorf("the rate is %g. It can be 0 to %d requests a second", c.Rate, MaxRate)
	case c.Duration < 0 || c.Duration > MaxDuration:
		return nil, fmt.Errorf("the duration is %v. It can be up to %v", c.Duration, MaxDuration)
	case c.Requests < 0 || c.Requests > MaxRequests:
		return nil, fmt.Errorf("requests are %d. There can be up to %d", c.Requests, MaxRequests)
	case c.Duration == 0 && c.Requests == 0:
		return nil, errors.New("a duration or a number of requests has to bound it")
	case c.Timeout < time.Millisecond || c.Timeout > time.Hour:
		return nil, fmt.Errorf("the timeout is %v. It can be 1ms to 1h", c.Timeout)
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("%q has port %s. Ports are 1 to 65535", c.Target, p)
		}
	}
	if c.Method != "" && strings.Trim(c.Method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" {
		return nil, fmt.Errorf("the method is %q. It can be GET, POST and the like", c.Method)
	}
	if strings.ContainsAny(c.Host, " \t\r\n\x00/") {
		return nil, fmt.Errorf("the host is %q. Write a name, as in api.example.org", c.Host)
	}
	for _, f := range c.Fields {
		name, _, ok := strings.Cut(f, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") || strings.ContainsAny(f, "\r\n\x00") {
			return nil, fmt.Errorf("the field is %q. Write it as in \"Accept: text/html\"", f)
		}
		switch strings.ToLower(name) {
		case "host", "connection", "content-length", "transfer-encoding":
			return nil, fmt.Errorf("the field is %q, and %s is written by the flood itself", f, name)
		}
	}
	return u, nil
}

// Run puts the load on until its bound, or until ctx ends, which is no error. It
// answers an error if it could not begin: the configuration is wrong, or nobody
// listens. After the end no request begins; one that is under way has Timeout to be
// answered, and at a fixed rate what was due and waits for a connection has Timeout
// to be sent.
func Run(ctx context.Context, c Config) (*Result, error) {
	u, err := c.parse()
	if err != nil {
		return nil, err
	}
	f := &flood{Config: c, url: u}
	f.render()
	first, err := f.reach(ctx)
	if err != nil {
		return nil, err
	}
	f.first.Store(first)
	f.shards = make([]shard, runtime.GOMAXPROCS(0))
	for i := range f.shards {
		f.shards[i] = shard{hist: newHistogram(), by: map[string]int64{}, errors: map[string]int64{}}
	}
	f.start, f.total = time.Now(), c.Requests
	if c.Duration > 0 {
		f.end = f.start.Add(c.Duration)
	}
	if c.Rate > 0 {
		if n := int64(math.Ceil(c.Rate * c.Duration.Seconds())); c.Duration > 0 && (f.total == 0 || n < f.total) {
			f.total = n
		}
		f.end = f.due(f.total) // before the end of the duration, if the number bounds it
	}

	var wg, watch sync.WaitGroup
	done := make(chan struct{})
	if c.Watch != nil && c.Every > 0 {
		watch.Go(func() { f.watch(done) })
	}
	for i := range c.Connections {
		w := &worker{flood: f, shard: &f.shards[i%len(f.shards)]}
		wg.Go(func() { w.run(ctx) })
	}
	wg.Wait()
	seconds := time.Since(f.start).Seconds()
	close(done)
	watch.Wait()
	if c := f.first.Swap(nil); c != nil { // nothing was sent
		c.close()
	}
	r := f.result(seconds)
	r.Interrupted = ctx.Err() != nil
	return r, nil
}

// due answers when a request of the fixed rate is due.
func (f *flood) due(k int64) time.Time {
	return f.start.Add(time.Duration(float64(k) / f.Rate * float64(time.Second)))
}

func (f *flood) watch(done chan struct{}) {
	t := time.NewTicker(f.Every)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
			p := Progress{Elapsed: time.Since(f.start), Of: f.Duration, OfEnded: f.total, Failed: f.failed.Load(), Answered: f.answered.Load()}
			if f.Rate > 0 {
				p.Of = f.end.Sub(f.start)
			}
			p.Ended = p.Failed + p.Answered
			f.Watch(p)
		}
	}
}

func (f *flood) result(seconds float64) *Result {
	r := &Result{
		Target: f.url.String(), Address: f.address.String(), Connections: f.Connections, Rate: f.Rate, Seconds: seconds,
		Requests: f.requests.Load(), Answered: f.answered.Load(), Failed: f.failed.Load(), BrokenOff: f.brokenOff.Load(), NotSent: f.notSent.Load(),
		Opened: f.opened.Load(), Reopened: f.reopened.Load(), Received: f.received.Load(), Sent: f.sent.Load(),
		AnsweredBy: map[string]int64{}, Errors: map[string]int64{},
	}
	all := newHistogram()
	for i := range f.shards {
		s := &f.shards[i]
		all.Merge(s.hist)
		for k, n := range s.by {
			r.AnsweredBy[k] += n
		}
		for k, n := range s.errors {
			r.Errors[k] += n
		}
	}
	if seconds > 0 {
		r.PerSecond = float64(r.Answered) / seconds
	}
	ms := func(ns int64) float64 { return float64(ns) / 1e6 }
	r.Latency = Latency{FromDue: f.Rate > 0, Count: all.TotalCount(), Percentiles: []Percentile{}}
	if r.Latency.Count > 0 {
		r.Latency.Min, r.Latency.Mean, r.Latency.Max = ms(all.Min()), all.Mean()/1e6, ms(all.Max())
		for _, p := range percentiles {
			r.Latency.Percentiles = append(r.Latency.Percentiles, Percentile{P: p, Ms: ms(all.ValueAtPercentile(p))})
		}
	}
	return r
}

func (s *shard) latency(d time.Duration, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.hist.RecordValues(min(max(int64(d), 0), longest), n) // in its range, so it takes it
}

func (s *shard) good(by string, d time.Duration) {
	s.mu.Lock()
	s.by[by]++
	s.mu.Unlock()
	s.latency(d, 1)
}

func (s *shard) bad(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors[kind]++
}

// worker sends on one connection, one request at a time.
type worker struct {
	*flood
	shard *shard
	conn  *conn // nil if none is open
	line  []byte
}

func (w *worker) run(ctx context.Context) {
	defer func() { w.drop() }()
	for ctx.Err() == nil {
		k := w.next.Add(1) - 1
		if w.total > 0 && k >= w.total {
			return
		}
		began := time.Now()
		switch {
		case w.Rate > 0:
			due := w.due(k)
			free := time.Until(due) > 0
			if !sleep(ctx, time.Until(due)) {
				return
			}
			if time.Since(w.end) > w.Timeout {
				w.giveUp(k)
				return
			}
			// A timer is up to a millisecond late, which is not the server's fault.
			if began = time.Now(); !free || began.Sub(due) > 2*time.Millisecond {
				began = due
			}
		case !w.end.IsZero() && !began.Before(w.end):
			return
		}
		if err := w.once(ctx, k, began); err != nil && w.Rate == 0 && errors.As(err, new(*connectError)) {
			sleep(ctx, 50*time.Millisecond) // a server that is gone is asked again, not hammered
		}
	}
}

// once sends one request and counts what comes of it.
func (w *worker) once(ctx context.Context, k int64, began time.Time) error {
	w.requests.Add(1)
	by, err := w.exchange(ctx, k)
	took := time.Since(began)
	switch {
	case err == nil:
		w.answered.Add(1)
		w.shard.good(by, took)
	case ctx.Err() != nil && !errors.As(err, new(*answerError)):
		w.brokenOff.Add(1)
	default:
		w.failed.Add(1)
		kind := kindOf(err)
		w.shard.bad(kind)
		if strings.HasPrefix(kind, timedOut) {
			w.shard.latency(took, 1)
		}
	}
	return err
}

// giveUp counts all that were due and will not be sent, each with the time that it
// waited: what a server was too slow for must not be missing from the latencies.
func (w *worker) giveUp(k int64) {
	now := time.Now()
	w.notSent.Add(1)
	w.shard.latency(now.Sub(w.due(k)), 1)
	from := w.next.Swap(w.total)
	if from >= w.total {
		return
	}
	w.notSent.Add(w.total - from)
	const steps = 100_000
	for step := (w.total - from + steps - 1) / steps; from < w.total; from += step {
		w.shard.latency(now.Sub(w.due(from)), min(step, w.total-from))
	}
}

// sleep answers whether the time passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// render writes the request that all connections send.
func (f *flood) render() {
	if f.url.Scheme == "tcp" {
		return
	}
	method, host := f.Method, f.Host
	if method == "" {
		method = http.MethodGet
		if f.Size > 0 {
			method = http.MethodPost
		}
	}
	if host == "" {
		host = f.url.Host
	}
	if f.By == "" {
		f.By = "Server"
	}
	f.Method = method
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: lbgraph-flood\r\n", method, f.url.RequestURI(), host)
	for _, x := range f.Fields {
		b.WriteString(x + "\r\n")
	}
	if f.PerRequest {
		b.WriteString("Connection: close\r\n")
	}
	if f.Size > 0 || method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", f.Size)
	}
	b.WriteString("\r\n")
	b.WriteString(strings.Repeat("x", f.Size))
	f.head = []byte(b.String())
	if f.url.Scheme == "https" {
		name, _, err := net.SplitHostPort(host)
		if err != nil {
			name = strings.Trim(host, "[]")
		}
		f.tls = &tls.Config{ServerName: name, InsecureSkipVerify: f.Insecure, NextProtos: []string{"http/1.1"}}
	}
}
