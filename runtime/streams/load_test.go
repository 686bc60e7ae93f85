package streams_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A load is 200 connections that send 500 requests a second together, each of which
// is answered with its own body or has failed.
type load200 struct {
	t          *testing.T
	connect    func() (net.Conn, error)
	fresh      int // every so many requests every other client takes a new connection; 0: never
	ends       atomic.Bool
	wg         sync.WaitGroup
	n, failed  atomic.Int64
	connection atomic.Int64
}

// whileSoaking is how long a test under load lasts.
func whileSoaking() time.Duration {
	switch {
	case os.Getenv("LBGRAPH_SOAK") != "":
		return time.Minute
	case testing.Short():
		return 2 * time.Second
	}
	return 5 * time.Second
}

func (l *load200) begin() {
	const connections, rate = 200, 500
	const every = time.Second * connections / rate
	for i := range connections {
		l.wg.Go(func() {
			time.Sleep(every * time.Duration(i) / connections)
			var p *peer
			defer func() {
				if p != nil {
					_ = p.Close()
				}
			}()
			tick := time.NewTicker(every)
			defer tick.Stop()
			for k := 0; !l.ends.Load(); k++ {
				if p != nil && l.fresh > 0 && k%l.fresh == 0 && i%2 == 0 {
					_ = p.Close()
					p = nil
				}
				if p == nil {
					c, err := l.connect()
					if err != nil {
						l.fail(i, k, "connect: "+err.Error())
						return
					}
					l.connection.Add(1)
					p = newPeer(l.t, c)
				}
				body := fmt.Sprintf("request %d of client %d", k, i)
				_ = p.SetDeadline(time.Now().Add(30 * time.Second))
				l.n.Add(1)
				p.send(fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
				h := p.head()
				if !strings.HasPrefix(h, "HTTP/1.1 200 OK\r\n") {
					l.fail(i, k, h)
					return
				}
				if strings.Contains(h, "chunked") {
					l.fail(i, k, "chunks")
					return
				}
				if got := p.read(len(body)); got != body {
					l.fail(i, k, got)
					return
				}
				if strings.Contains(h, "\r\nConnection: close\r\n") {
					_ = p.Close()
					p = nil
				}
				<-tick.C
			}
		})
	}
}

func (l *load200) fail(client, request int, what string) {
	if l.failed.Add(1) < 10 {
		l.t.Logf("client %d, request %d: %s", client, request, what)
	}
}

// end ends the load, none of which may have failed.
func (l *load200) end() {
	l.t.Helper()
	l.ends.Store(true)
	l.wg.Wait()
	// However busy the machine is, much of it was done.
	least := int64(whileSoaking()/time.Second) * 100
	if n, failed := l.n.Load(), l.failed.Load(); failed > 0 || n < least {
		l.t.Errorf("%d of %d requests failed", failed, n)
	}
	l.t.Logf("%d requests on %d connections", l.n.Load(), l.connection.Load())
}

func (r *rig) connect(node string) func() (net.Conn, error) {
	at := r.addr(node)
	return func() (net.Conn, error) { return net.DialTimeout("tcp", at, 30*time.Second) }
}

// mirror is a backend that answers a body of known length with itself.
func mirror(t testing.TB) string {
	return serve(t, func(p *peer) {
		for {
			h := p.head()
			_, rest, found := strings.Cut(h, "Content-Length: ")
			if !found {
				return
			}
			var n int
			fmt.Sscan(rest, &n)
			body := p.read(n)
			_ = p.SetDeadline(time.Now().Add(time.Minute))
			p.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", n, body))
		}
	}).addr()
}

// Reloads that change the graph, the arguments of nodes and the backends, under load:
// no request fails.
func TestSoakReload(t *testing.T) {
	a, b, c := mirror(t), mirror(t), mirror(t)
	texts := []string{
		simple("", a, b),
		stream("main = [in, gate, fields, pick, out]", in("header_timeout = \"9s\"")+"node \"admit\" \"gate\" { limit = 1000 }\nnode \"headers\" \"fields\" { request_id = \"X-Id\" }\n"+pick, b, c),
		simple(out("keepalive = 8\n retries = 1")+"node \"balance\" \"pick\" {\n pool = pool.web\n algorithm = \"least-connections\"\n}\n", c),
		stream("main = [in, by.all, pick, out]", in("")+"node \"route\" \"by\" {\n rule \"all\" {}\n}\n"+"node \"balance\" \"pick\" { pool = pool.web }\n"+out("proxy_protocol = \"off\"\n forwarded = false"), a, b, c),
	}
	r := run(t, texts[0])
	l := load200{t: t, connect: r.connect("in"), fresh: 5}
	l.begin()
	reloads := 0
	for end := time.Now().Add(whileSoaking()); time.Now().Before(end); reloads++ {
		time.Sleep(100 * time.Millisecond)
		r.reload(texts[(reloads+1)%len(texts)])
	}
	l.end()
	r.quiet()
	t.Logf("%d reloads", reloads)
}

// Certificates that change under load, good ones and bad ones: no request and no
// handshake fails, and new connections get the new ones.
func TestSoakCertificates(t *testing.T) {
	dir := t.TempDir()
	crt, key := certificate(t, dir, "www", "a")
	r := run(t, stream("main = [in, secure, pick, out]", in("protocol = \"tcp\"")+tlsNode("", crt, key)+pick, mirror(t)))
	var mu sync.Mutex
	seen := map[string]bool{}
	connect := r.connect("in")
	l := load200{t: t, fresh: 2, connect: func() (net.Conn, error) {
		nc, err := connect()
		if err != nil {
			return nil, err
		}
		c := tls.Client(nc, &tls.Config{InsecureSkipVerify: true})
		if err := c.Handshake(); err != nil {
			return nil, err
		}
		mu.Lock()
		seen[c.ConnectionState().PeerCertificates[0].SerialNumber.String()] = true
		mu.Unlock()
		return c, nil
	}}
	l.begin()
	for end := time.Now().Add(whileSoaking()); time.Now().Before(end); {
		time.Sleep(300 * time.Millisecond)
		certificate(t, dir, "www", "a")
		time.Sleep(300 * time.Millisecond)
		if err := os.WriteFile(crt, []byte("nonsense"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	certificate(t, dir, "www", "a")
	eventually(t, "new connections get new certificates", func() error {
		c, err := l.connect()
		if err != nil {
			return err
		}
		_ = c.Close()
		mu.Lock()
		defer mu.Unlock()
		if len(seen) < 2 {
			return fmt.Errorf("%d were shown", len(seen))
		}
		return nil
	})
	l.end()
	r.quiet()
	g := r.node("secure").Gauges
	if g["certificate_reloads"] == 0 || g["certificate_faults"] == 0 {
		t.Errorf("%v", g)
	}
}

// Backends in drain, one after the other, under load: no request fails, and the one
// in drain gets none.
func TestSoakDrain(t *testing.T) {
	addrs := []string{mirror(t), mirror(t), mirror(t)}
	r := run(t, simple("", addrs...))
	total := func(addr string) (n uint64, active int64) {
		for _, b := range r.engine.Stats()[0].Backends {
			if b.Addr.String() == addr {
				return b.Total, b.Active
			}
		}
		return 0, 0
	}
	l := load200{t: t, connect: r.connect("in"), fresh: 5}
	l.begin()
	for i, end := 0, time.Now().Add(whileSoaking()); time.Now().Before(end); i++ {
		k := i % len(addrs)
		name := fmt.Sprint("b", k+1)
		if err := r.store.Drain("web", name, true, false); err != nil {
			t.Fatal(err)
		}
		before := uint64(0)
		eventually(t, "it falls silent", func() error {
			n, active := total(addrs[k])
			if last := before; n != last || active > 0 {
				before = n
				return fmt.Errorf("%d requests, %d in flight", n, active)
			}
			return nil
		})
		time.Sleep(300 * time.Millisecond)
		if n, _ := total(addrs[k]); n != before {
			t.Errorf("%s gets %d requests while it is in drain", name, n-before)
		}
		if err := r.store.Drain("web", name, false, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	l.end()
	r.quiet()
	for _, a := range addrs {
		if n, _ := total(a); n == 0 {
			t.Errorf("%s got nothing", a)
		}
	}
}

// A graceful stop under load: every request that was sent on a connection that stood
// is answered, and each client is told to go elsewhere.
func TestSoakStop(t *testing.T) {
	r := run(t, simple("", mirror(t)))
	next := run(t, simple("", mirror(t))) // elsewhere
	var stopping atomic.Bool
	here, there := r.connect("in"), next.connect("in")
	l := load200{t: t, connect: func() (net.Conn, error) {
		if stopping.Load() {
			return there()
		}
		return here()
	}}
	l.begin()
	time.Sleep(whileSoaking() / 2)
	stopping.Store(true)
	time.Sleep(500 * time.Millisecond) // who just connects has, and has asked, on a busy machine too
	if err := r.stop(30 * time.Second); err != nil {
		t.Error(err)
	}
	time.Sleep(whileSoaking() / 2)
	l.end()
	next.quiet()
	if n := next.engine.Stats()[0].Accepted; n != 200 {
		t.Errorf("%d of 200 went elsewhere", n)
	}
	if c, err := here(); err == nil {
		_ = c.Close()
		t.Error("it accepts still")
	}
}
