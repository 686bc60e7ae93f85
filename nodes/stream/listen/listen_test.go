package listen

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/proxyproto"
	"github.com/lbgraph/lbgraph/io/stream"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	_ "github.com/lbgraph/lbgraph/nodes/stream/balance"
	_ "github.com/lbgraph/lbgraph/nodes/stream/proxy"
	_ "github.com/lbgraph/lbgraph/nodes/stream/respond"
)

func rig(t testing.TB, change func(*Config)) *nodetest.Stage {
	return nodetest.NewStage(t, "listen", func(c *Config) {
		c.Address = netip.MustParseAddrPort("127.0.0.1:0")
		if change != nil {
			change(c)
		}
	})
}

func client(n int) *stream.Session {
	s := nodetest.Connection(nil)
	s.Client.Peer = netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(n)}), 40000)
	s.Client.Remote = s.Client.Peer
	return s
}

const file = "stream \"s\" {\npath { main = [accept, respond] }\n%s}\n"

// The example, on the loopback: requests are read one after the other, and what is
// none is refused.
func TestExample(t *testing.T) {
	r := nodetest.RunStreams(t, fmt.Sprintf(file, nodetest.Example(t, "0.0.0.0:80", "127.0.0.1:0")))
	p := r.Dial("accept")
	p.Say(strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 2)) // at once
	for range 2 {
		if got := p.Ask(""); got != "200 " {
			t.Errorf("%q", got)
		}
	}
	if got := p.Ask("GET /\nHost: x\n\n"); got != "400 400 Bad Request\n" || p.Rest() != "" {
		t.Errorf("%q", got)
	}
	if s := r.Engine.Stats()[0]; s.Accepted != 1 || s.Requests != 3 || s.Malformed != 1 {
		t.Errorf("%+v", s)
	}
	r.Quiet()
}

// HTTP and TCP listeners on several addresses of one stream, IPv6 among them, with
// sockets that share one.
func TestTargets(t *testing.T) {
	echo := nodetest.Backend(t, func(p *nodetest.Peer) {
		line, _ := p.R.ReadString('\n')
		p.Say("you said " + line)
	})
	listen := func(name, address, args string) string {
		return fmt.Sprintf("node \"listen\" %q {\naddress = %q\n%s\n}\n", name, address, args)
	}
	r := nodetest.RunStreams(t, nodetest.Pool("", echo)+"stream \"s\" {\npath {\na = [web, respond]\nb = [web6, respond]\nc = [raw, balance, proxy]\nd = [raw2, balance]\n}\n"+
		listen("web", "127.0.0.1:0", "")+listen("web6", "[::1]:0", "")+listen("raw", "127.0.0.2:0", "protocol = \"tcp\"")+listen("raw2", "127.0.0.3:0", "protocol = \"tcp\"\nsockets = 4")+
		"node \"balance\" \"balance\" { pool = pool.web }\n}\n")
	for _, name := range []string{"web", "web6"} {
		if got := r.Dial(name).Ask("GET / HTTP/1.1\nHost: x\n\n"); got != "200 " {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, name := range []string{"raw", "raw2"} {
		for range 8 {
			p := r.Dial(name)
			p.Say("hello\n")
			if got := p.Rest(); got != "you said hello\n" {
				t.Errorf("%s: %q", name, got)
			}
			_ = p.Close()
		}
	}
	r.Quiet()
}

func TestWrongArguments(t *testing.T) {
	at := "address = \"192.0.2.1:80\"\n"
	nodetest.WrongArguments(t, "listen", "", []string{at, "address = \"[::]:443\"\nprotocol = \"tcp\"\nsockets = 64", at + "trusted = [\"10.0.0.0/8\", \"2001:db8::1\"]\nproxy_protocol = \"require\""}, []nodetest.Wrong{
		{Argument: "address", Text: "address = \"192.0.2.1\"", Told: "192.0.2.1:80"},
		{Argument: "address", Text: "address = \":80\"", Told: "[::]:80"},
		{Argument: "protocol", Text: at + "protocol = \"https\"", Told: "http"},
		{Argument: "sockets", Text: at + "sockets = 65", Told: "64"},
		{Argument: "connections", Text: at + "connections = -1", Told: "0"},
		{Argument: "connections_per_client", Text: at + "connections_per_client = -1", Told: "0"},
		{Argument: "trusted", Text: at + "trusted = [\"10.0.0.0/33\"]", Told: "10.0.0.0/33"},
		{Argument: "proxy_protocol", Text: at + "proxy_protocol = \"v2\"", Told: "accept"},
		{Argument: "proxy_protocol", Text: at + "proxy_protocol = \"require\"", Told: "no network is trusted"},
		{Argument: "proxy_protocol", Text: at + "trusted = []\nproxy_protocol = \"accept\"", Told: "no network is trusted"},
		{Argument: "proxy_timeout", Text: at + "proxy_timeout = \"0s\"", Told: "1ms"},
		{Argument: "header_timeout", Text: at + "header_timeout = \"0s\"", Told: "1ms"},
		{Argument: "idle_timeout", Text: at + "idle_timeout = \"25h\"", Told: "24h"},
		{Argument: "body_timeout", Text: at + "body_timeout = \"0s\"", Told: "1ms"},
		{Argument: "body_rate", Text: at + "body_rate = 0", Told: "1"},
		{Argument: "write_timeout", Text: at + "write_timeout = \"0s\"", Told: "1ms"},
		{Argument: "max_line", Text: at + "max_line = 63", Told: "64"},
		{Argument: "max_field", Text: at + "max_field = 32769", Told: "32768"},
		{Argument: "max_head", Text: at + "max_head = 65537", Told: "65536"},
		{Argument: "max_fields", Text: at + "max_fields = 0", Told: "1"},
		{Argument: "http2", Text: at + "http2 = \"maybe\"", Told: "boolean"},
		{Argument: "http2_streams", Text: at + "http2_streams = 0", Told: "1"},
	})
}

// What the file says is what the sockets and the connections are told.
func TestSettings(t *testing.T) {
	k := graph.Lookup("listen")
	c := k.NewConfig().(*Config)
	c.Address, c.Sockets = netip.MustParseAddrPort("[::1]:80"), 3
	if got := k.Listens(c); !slices.Equal(got, []graph.Listen{{Address: c.Address, Sockets: 3}}) {
		t.Errorf("%v", got)
	}
	for protocol, want := range map[string]graph.Facts{"http": graph.Conn | graph.HTTP, "tcp": graph.Conn} {
		c.Protocol = protocol
		outs := k.OutputsOf(c)
		if o := outs[next]; o.Name != "next" || o.Gives != want {
			t.Errorf("%s: %+v", protocol, o)
		}
	}
	r := rig(t, func(c *Config) {
		c.HeadTime, c.IdleTime, c.BodyTime, c.BodyRate, c.WriteTime = 1, 2, 3, 4, 5
		c.MaxLine, c.MaxField, c.MaxHead, c.MaxFields, c.HTTP2, c.Streams = 6, 7, 8, 9, false, 10
	})
	s := client(1)
	r.Serve(s)
	h := s.Client.HTTP
	if got := fmt.Sprintf("%+v", *h); got != "{Limits:{Line:6 Field:7 Head:8 Fields:9} HeadTime:1ns IdleTime:2ns BodyTime:3ns BodyRate:4 WriteTime:5ns H2:false Streams:10}" {
		t.Errorf("%s", got)
	}
}

// So many connections at once, and so many of one client; over reloads, too.
func TestLimits(t *testing.T) {
	r := rig(t, func(c *Config) { c.Connections, c.PerClient = 4, 2 })
	var open []*stream.Session
	take := func(n int, want string) {
		t.Helper()
		s := client(n)
		if got := r.Serve(s); got != want {
			t.Errorf("client %d: %s, want %s", n, got, want)
		}
		if open = append(open, s); want != "next" {
			s.End()
			open = open[:len(open)-1]
		}
	}
	take(1, "next")
	take(1, "next")
	take(1, "client_full")
	take(2, "next")
	nodetest.Reload(r, func(c *Config) {
		c.Address, c.Connections, c.PerClient = netip.MustParseAddrPort("127.0.0.1:0"), 4, 2
	})
	take(1, "client_full")
	take(3, "next")
	take(4, "full")
	if r.Gauge("connections") != 4 {
		t.Errorf("%v connections", r.Gauge("connections"))
	}
	open[0].End()
	open = open[1:]
	take(1, "next")
	take(4, "full")
	for _, s := range open {
		s.End()
	}
	if r.Gauge("connections") != 0 || len(r.Node.(*listener).clients.of) != 0 {
		t.Errorf("%v connections, %v", r.Gauge("connections"), r.Node.(*listener).clients.of)
	}
	// However many come at the same time.
	var wg sync.WaitGroup
	in := make(chan *stream.Session, 100)
	for range 10 {
		wg.Go(func() {
			for range 10 {
				if s := client(9); r.Serve(s) == "next" {
					in <- s
				} else {
					s.End()
				}
			}
		})
	}
	wg.Wait()
	if len(in) != 2 || r.Gauge("connections") != 2 {
		t.Errorf("%d of one client, %v connections", len(in), r.Gauge("connections"))
	}
}

// Who is trusted says who the client is; nobody else is asked.
func TestProxyHeader(t *testing.T) {
	src, dst := netip.MustParseAddrPort("192.0.2.1:1234"), netip.MustParseAddrPort("203.0.113.1:80")
	v1, v2 := proxyproto.Append(nil, 1, src, dst), proxyproto.Append(nil, 2, src, dst)
	trust := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	for _, c := range []struct {
		what, mode string
		trusted    bool
		said       []byte
		out        string
		told       bool // the header was believed
		left       string
	}{
		{"version 1", "accept", true, append(slices.Clone(v1), "GET"...), "next", true, "GET"},
		{"version 2", "accept", true, append(slices.Clone(v2), "GET"...), "next", true, "GET"},
		{"version 2, required", "require", true, v2, "next", true, ""},
		{"none", "accept", true, []byte("GET / HTTP/1.1"), "next", false, "GET / HTTP/1.1"},
		{"none, required", "require", true, []byte("GET / HTTP/1.1"), "bad_proxy", false, ""},
		{"a local one", "require", true, []byte("PROXY UNKNOWN\r\nGET"), "next", false, "GET"},
		{"malformed", "accept", true, []byte("PROXY TCP4 1 2 3 4\r\n"), "bad_proxy", false, ""},
		{"half of one", "require", true, v2[:20], "bad_proxy", false, ""},
		{"silence", "require", true, nil, "bad_proxy", false, ""},
		{"a stranger's", "require", false, v1, "next", false, ""},
		{"unasked", "off", true, v1, "next", false, ""},
	} {
		r := rig(t, func(x *Config) {
			x.Proxy = c.mode
			if x.Trusted = trust; !c.trusted {
				x.Trusted = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
			}
		})
		s := nodetest.Connection(c.said)
		peer := s.Client.Peer
		// Whom a header names is a stranger.
		if out := r.Serve(s); out != c.out || s.Client.Trusted != (c.trusted && !c.told) {
			t.Errorf("%s: %s, trusted %v", c.what, out, s.Client.Trusted)
		}
		if (s.Client.Remote == src && s.Client.Local == dst) != c.told || !c.told && s.Client.Remote != peer || s.Client.Peer != peer {
			t.Errorf("%s: client %v at %v, peer %v", c.what, s.Client.Remote, s.Client.Local, s.Client.Peer)
		}
		if left := string(s.Client.Buffered()); c.left != "" && left != c.left {
			t.Errorf("%s: %q is left, want %q", c.what, left, c.left)
		}
	}
	// The limit of a client counts by who it is.
	r := rig(t, func(c *Config) { c.PerClient, c.Proxy, c.Trusted = 1, "require", trust })
	if a, b := r.Serve(nodetest.Connection(v1)), r.Serve(nodetest.Connection(v1)); a != "next" || b != "client_full" {
		t.Errorf("%s, %s", a, b)
	}
	if other := proxyproto.Append(nil, 1, netip.MustParseAddrPort("192.0.2.2:1"), dst); r.Serve(nodetest.Connection(other)) != "next" {
		t.Error("one client pays for another behind the same proxy")
	}
}

// A header that does not come is waited for so long, and accepts nothing meanwhile
// but lets others be accepted.
func TestProxyTimeout(t *testing.T) {
	r := nodetest.RunStreams(t, fmt.Sprintf(file, "node \"listen\" \"accept\" {\naddress = \"127.0.0.1:0\"\ntrusted = [\"127.0.0.0/8\"]\nproxy_protocol = \"require\"\nproxy_timeout = \"300ms\"\n}\n"))
	begun := time.Now()
	silent := r.Dial("accept")
	p := r.Dial("accept")
	p.Say("PROXY TCP4 192.0.2.1 203.0.113.1 1 80\r\n")
	if got := p.Ask("GET / HTTP/1.1\nHost: x\n\n"); got != "200 " {
		t.Errorf("%q", got)
	}
	if got := silent.Rest(); got != "«reset»" || time.Since(begun) < 300*time.Millisecond {
		t.Errorf("silence: %q after %v", got, time.Since(begun))
	}
	if r.Output("accept", "bad_proxy") != 1 {
		t.Errorf("%d counted", r.Output("accept", "bad_proxy"))
	}
}

// Whatever a trusted peer says first: a header is taken whole and believed, or the
// connection ends; what follows stays as it is.
func FuzzProxyHeader(f *testing.F) {
	src, dst := netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("[2001:db8::2]:2")
	f.Add(append(proxyproto.Append(nil, 1, src, dst), "GET"...))
	f.Add(append(proxyproto.Append(nil, 2, src, dst), "GET"...))
	f.Add([]byte("PROXY UNKNOWN ffff\r\n"))
	f.Add([]byte("PRI * HTTP/2.0\r\n"))
	var rigs []*nodetest.Stage
	for _, mode := range []string{"accept", "require"} {
		rigs = append(rigs, rig(f, func(c *Config) {
			c.Proxy, c.Trusted = mode, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		}))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		for _, r := range rigs {
			r.T = t
			s := nodetest.Connection(said)
			out := r.Serve(s)
			s.End()
			if !s.Client.Remote.IsValid() || !s.Client.Local.IsValid() {
				t.Fatalf("%q: client %v at %v", said, s.Client.Remote, s.Client.Local)
			}
			if out == "bad_proxy" {
				continue
			}
			if left := s.Client.Buffered(); !bytes.Contains(said, left) {
				t.Fatalf("%q leaves %q", said, left)
			}
		}
		if n := rigs[0].Gauge("connections"); n != 0 {
			t.Fatalf("%v connections", n)
		}
	})
}

// BenchmarkListen reports nanoseconds a connection, without accepting it.
func BenchmarkListen(b *testing.B) {
	r := rig(b, func(c *Config) { c.Connections, c.PerClient = 1000, 100 })
	s := client(1)
	b.ReportAllocs()
	for b.Loop() {
		r.Serve(s)
		s.End()
		s.Reset(s.Client)
	}
}
