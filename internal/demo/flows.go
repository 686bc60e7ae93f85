package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// A flow is a TCP connection or a UDP socket that the client keeps, and asks on
// again and again who answers.
type flow struct {
	to   netip.AddrPort
	conn net.Conn
	read *bufio.Reader // of a TCP connection
	by   string        // the balancer that it went by at first

	mu sync.Mutex
	seen
}

// seen is what the client knows of a flow.
type seen struct {
	udp     bool
	name    string        // who answered last
	moves   int           // how often it was another than before
	answers int           // so far
	lost    int           // datagrams without an answer
	longest time.Duration // that an answer took
	err     error         // that ended a connection
}

func (f *flow) look() seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

const (
	pause    = 20 * time.Millisecond // between two questions of a flow
	patience = 15 * time.Second      // with a connection; TCP sends again what was lost
	datagram = 250 * time.Millisecond
)

// run asks until the client hangs up, or the connection breaks.
func (f *flow) run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		name, err := f.once()
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		switch {
		case err == nil:
			if f.name != "" && f.name != name {
				f.moves++
			}
			f.name = name
			f.answers++
			f.longest = max(f.longest, time.Since(began))
		case f.udp:
			f.lost++
		default:
			f.err = err
		}
		f.mu.Unlock()
		if err != nil && !f.udp {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (f *flow) once() (name string, err error) {
	if f.udp {
		return f.echo()
	}
	if err := f.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(f.conn, "GET / HTTP/1.1\r\nHost: "+f.to.String()+"\r\n\r\n"); err != nil {
		return "", err
	}
	r, err := http.ReadResponse(f.read, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	return strings.TrimSpace(string(b)), err
}

// echo sends a datagram that no other is like, and waits for its answer.
func (f *flow) echo() (name string, err error) {
	question := fmt.Appendf(nil, "%d", time.Now().UnixNano())
	if err := f.conn.SetDeadline(time.Now().Add(datagram)); err != nil {
		return "", err
	}
	if _, err := f.conn.Write(question); err != nil {
		return "", err
	}
	answer := make([]byte, 2048)
	for {
		n, err := f.conn.Read(answer)
		if err != nil {
			return "", err
		}
		if head, body, ok := bytes.Cut(answer[:n], []byte("\n")); ok && bytes.Equal(body, question) {
			return string(head), nil
		}
	}
}

// dial opens a connection or a UDP socket of the client.
func (d *demo) dial(ctx context.Context, network string, to netip.AddrPort) (*flow, error) {
	f := &flow{to: to, seen: seen{udp: network == "udp"}}
	err := d.net.inside("client", func() (err error) {
		f.conn, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, to.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	f.read = bufio.NewReader(f.conn)
	return f, nil
}

// open dials, asks once, and finds out by which balancer that went, while nothing
// else goes on: of the packets, most are seen by that one.
func (d *demo) open(ctx context.Context, network string, to netip.AddrPort) (*flow, error) {
	packets := func() (each []float64, err error) {
		for _, b := range balancers {
			all, err := d.samples(ctx, b)
			if err != nil {
				return nil, err
			}
			each = append(each, total(all, "lbgraph_received_packets_total"))
		}
		return each, nil
	}
	before, err := packets()
	if err != nil {
		return nil, err
	}
	f, err := d.dial(ctx, network, to)
	if err != nil {
		return nil, err
	}
	f.name, err = f.once()
	after, noCount := packets()
	if err := errors.Join(err, noCount); err != nil {
		_ = f.conn.Close()
		return nil, err
	}
	most := 0.0
	for i, b := range balancers {
		if n := after[i] - before[i]; n > most {
			most, f.by = n, b
		}
	}
	return f, nil
}

// crowd is the flows that a client keeps.
type crowd struct {
	flows  []*flow
	cancel func()
	wg     sync.WaitGroup
}

// hold opens n flows to each of the VIPs.
func (d *demo) hold(ctx context.Context, n int) (*crowd, error) {
	c := &crowd{}
	for _, to := range []struct {
		network string
		at      netip.AddrPort
	}{{"tcp", d.http}, {"tcp", d.http6}, {"udp", d.udp}} {
		if !to.at.IsValid() {
			continue
		}
		time.Sleep(late)
		for range n {
			f, err := d.open(ctx, to.network, to.at)
			if err != nil {
				c.hangUp()
				return nil, err
			}
			c.flows = append(c.flows, f)
		}
	}
	return c, nil
}

// late is when the last acknowledgement of a request has gone.
const late = 100 * time.Millisecond

// begin has all flows ask again and again.
func (c *crowd) begin(ctx context.Context) {
	ctx, c.cancel = context.WithCancel(ctx)
	for _, f := range c.flows {
		c.wg.Go(func() { f.run(ctx) })
	}
}

func (c *crowd) hangUp() {
	if c.cancel != nil {
		c.cancel()
	}
	for _, f := range c.flows {
		_ = f.conn.Close()
	}
	c.wg.Wait()
}

// look answers what is known of all flows.
func (c *crowd) look() (all []seen) {
	for _, f := range c.flows {
		all = append(all, f.look())
	}
	return all
}

// answered waits until every flow that is not broken, and that which accepts, had
// more answers.
func (c *crowd) answered(ctx context.Context, more int, which func(i int) bool) error {
	before := c.look()
	for end := time.Now().Add(patience); ; {
		waits := 0
		for i, f := range c.look() {
			if f.err == nil && which(i) && f.answers < before[i].answers+more {
				waits++
			}
		}
		switch {
		case waits == 0:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("%d flows got no answer for %s", waits, patience)
		}
		time.Sleep(pause)
	}
}

func all(int) bool { return true }
