package ratelimit

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/io/stream"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
	_ "github.com/lbgraph/lbgraph/nodes/stream/respond"
)

// slow answers a node that lets one session an hour pass for each key, and burst at
// once.
func slow(c *Config, key string, burst int) { c.Rate, c.Key, c.Burst = 1.0/1000, key, burst }

func rig(t testing.TB, key string, burst int) *nodetest.Stage {
	return nodetest.NewStage(t, "rate-limit", func(c *Config) { slow(c, key, burst) })
}

func from(addr string, fields ...string) *stream.Session {
	s := nodetest.Request("GET / HTTP/1.1\nHost: " + strings.Join(append(fields, ""), "\n") + "\n")
	s.Client.Remote = netip.AddrPortFrom(netip.MustParseAddr(addr), 1000)
	return s
}

// The example lets twenty pass at once; the next one is told when to come again.
func TestExample(t *testing.T) {
	// An allowance that fills while the test runs would make it depend on its pace.
	r := nodetest.RunStreams(t, "stream \"s\" {\npath { main = [in, slow, respond] }\n"+nodetest.Listen+nodetest.Example(t, "rate  = 10", "rate  = 0.01")+"}\n")
	p := r.Dial("in")
	for i := range 20 {
		if got := p.Ask("GET / HTTP/1.1\nHost: x\n\n"); got != "200 " {
			t.Fatalf("%d: %q", i, got)
		}
	}
	res, body := p.Get("GET / HTTP/1.1\nHost: x\n\n")
	if res == nil || res.StatusCode != 429 || body != "429 Too Many Requests\n" {
		t.Fatalf("%v %q", res, body)
	}
	var wait int
	if _, err := fmt.Sscan(res.Header.Get("Retry-After"), &wait); err != nil || wait < 50 || wait > 100 {
		t.Errorf("Retry-After: %q", res.Header.Get("Retry-After"))
	}
	if r.Output("slow", "limited") != 1 || r.Output("slow", "next") != 20 {
		t.Errorf("%d limited, %d passed", r.Output("slow", "limited"), r.Output("slow", "next"))
	}
	r.Quiet()
}

func TestWrongArguments(t *testing.T) {
	nodetest.WrongArguments(t, "rate-limit", "", []string{"rate = 0.001\nburst = 1\nkey = \"header:X-User\"\nentries = 64", "rate = 100000000\nkey = \"all\"", "rate = 1\nkey = \"host\""}, []nodetest.Wrong{
		{Argument: "rate", Text: "rate = 0", Told: "0.001"},
		{Argument: "rate", Text: "rate = 100000001", Told: "100000000"},
		{Argument: "burst", Text: "rate = 1\nburst = 0", Told: "1"},
		{Argument: "key", Text: "rate = 1\nkey = \"\"", Told: "write client, host, all or header:NAME"},
		{Argument: "key", Text: "rate = 1\nkey = \"header:\"", Told: "write client, host, all or header:NAME"},
		{Argument: "key", Text: "rate = 1\nkey = \"header:a b\"", Told: "write client, host, all or header:NAME"},
		{Argument: "entries", Text: "rate = 1\nentries = 63", Told: "64"},
	})
}

// Whose sessions count together.
func TestKeys(t *testing.T) {
	for _, c := range []struct {
		key       string
		one, same *stream.Session // share an allowance
		other     *stream.Session // has its own
	}{
		{"client", from("192.0.2.1", "a"), from("192.0.2.1", "b"), from("192.0.2.2", "a")},
		{"client", from("2001:db8::1", "a"), from("2001:db8::ffff:1", "a"), from("2001:db8:0:1::1", "a")},
		{"host", from("192.0.2.1", "a.example:80"), from("192.0.2.2", "A.Example"), from("192.0.2.1", "b.example")},
		{"header:X-User", from("192.0.2.1", "a", "X-User: u"), from("192.0.2.2", "b", "x-user: u"), from("192.0.2.1", "a", "X-User: v")},
		{"header:X-User", from("192.0.2.1", "a"), from("192.0.2.1", "b"), from("192.0.2.2", "a")},
		{"host", nodetest.Connection(nil), nodetest.Connection(nil), from("192.0.2.2", "a")},
	} {
		r := rig(t, c.key, 1)
		got := []string{r.Serve(c.one), r.Serve(c.same), r.Serve(c.other)}
		if want := []string{"next", "limited", "next"}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v", c.key, got)
		}
		if c.same.RetryAfter <= 0 || c.same.RetryAfter > 1000*time.Second {
			t.Errorf("%s: come again in %v", c.key, c.same.RetryAfter)
		}
	}
	r := rig(t, "all", 2)
	if got := []string{r.Serve(from("192.0.2.1", "a")), r.Serve(from("192.0.2.2", "b")), r.Serve(from("192.0.2.3", "c"))}; fmt.Sprint(got) != "[next next limited]" {
		t.Errorf("all: %v", got)
	}
}

// A reload keeps what was used, unless keys mean something else now.
func TestReload(t *testing.T) {
	r := rig(t, "client", 2)
	r.Serve(from("192.0.2.1", "a"))
	nodetest.Reload(r, func(c *Config) { slow(c, "client", 3) })
	if got := []string{r.Serve(from("192.0.2.1", "a")), r.Serve(from("192.0.2.1", "a")), r.Serve(from("192.0.2.1", "a"))}; fmt.Sprint(got) != "[next next limited]" {
		t.Errorf("%v", got)
	}
	r = rig(t, "header:X-User", 1)
	r.Serve(from("192.0.2.1", "a", "X-User: u.example"))
	nodetest.Reload(r, func(c *Config) { slow(c, "host", 1) })
	if r.Serve(from("192.0.2.1", "u.example")) != "next" {
		t.Error("a host pays for a user")
	}
	nodetest.Reload(r, func(c *Config) {
		slow(c, "host", 1)
		c.Entries = 128
	})
	if n := len(r.Node.(*limiter).table.sets) * ways; n != 128 {
		t.Errorf("%d entries", n)
	}
}

// Whatever a request holds, the same request twice has one key: the second one is
// limited.
func FuzzKey(f *testing.F) {
	f.Add("GET / HTTP/1.1\nHost: a\nX-User: b\n\n")
	f.Add("GET http://[::1]:80/ HTTP/1.1\nHost:\nX-User: \xff\n\n")
	f.Fuzz(func(t *testing.T, head string) {
		if nodetest.Request(head) == nil {
			return
		}
		for _, key := range []string{"client", "host", "all", "header:X-User"} {
			l := &limiter{c: Config{Key: key, Burst: 1}, header: "x-user", table: newTable(64), step: 1e12}
			for i := range 2 {
				if out, err := l.Serve(t.Context(), nodetest.Request(head)); out != i || err != nil {
					t.Fatalf("%s: output %d, %v", key, out, err)
				}
			}
		}
	})
}
