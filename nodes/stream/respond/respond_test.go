package respond

import (
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
)

func rig(t testing.TB, change func(*Config)) *nodetest.Stage {
	return nodetest.NewStage(t, "respond", change)
}

// The example answers each method; a body that nobody reads is no next request.
func TestExample(t *testing.T) {
	r := nodetest.RunStreams(t, "stream \"s\" {\npath { main = [in, sorry] }\n"+nodetest.Listen+nodetest.Example(t)+"}\n")
	p := r.Dial("in")
	for _, m := range []string{"GET", "DELETE", "X"} {
		res, body := p.Get(m + " /any HTTP/1.1\nHost: x\n\n")
		if res == nil || res.StatusCode != 503 || body != "Back soon.\n" || res.Header.Get("Content-Type") != "text/plain; charset=utf-8" || res.Header.Get("Date") == "" {
			t.Errorf("%s: %v %q", m, res, body)
		}
	}
	if got := p.Ask("POST / HTTP/1.1\nHost: x\nContent-Length: 5\n\nhello"); got != "503 Back soon.\n" {
		t.Errorf("%q", got)
	}
	res, body := p.Get("HEAD / HTTP/1.1\nHost: x\n\n")
	if res == nil || res.ContentLength != 11 || body != "" {
		t.Errorf("HEAD: %v %q", res, body)
	}
	r.Quiet()
}

func TestWrongArguments(t *testing.T) {
	nodetest.WrongArguments(t, "respond", "", []string{"", "status = 204", "status = 599\nbody = \"\"\nheaders = { \"X-A\" = \"b\" }"}, []nodetest.Wrong{
		{Argument: "status", Text: "status = 199", Told: "200"},
		{Argument: "status", Text: "status = 600", Told: "599"},
		{Argument: "body", Text: "status = 204\nbody = \"x\"", Told: "has no body"},
		{Argument: "body", Text: "status = 304\nbody = \"x\"", Told: "has no body"},
		{Argument: "content_type", Text: "content_type = \"a\\nb\"", Told: "cannot be the value"},
		{Argument: "headers", Text: "headers = { \"a b\" = \"c\" }", Told: "cannot be a field"},
		{Argument: "headers", Text: "headers = { \"X-A\" = \"b\\r\\nX-B: c\" }", Told: "cannot be a field"},
		{Argument: "headers", Text: "headers = { \"Connection\" = \"close\" }", Told: "belongs to the connection"},
		{Argument: "headers", Text: "headers = { \"content-length\" = \"1\" }", Told: "belongs to the connection"},
		{Argument: "headers", Text: "headers = { \"date\" = \"now\" }", Told: "twice"},
		{Argument: "headers", Text: "headers = { \"content-type\" = \"text/html\" }", Told: "twice"},
	})
}

func TestAnswers(t *testing.T) {
	r := rig(t, func(c *Config) {
		c.Status, c.Body, c.Type, c.Fields = 418, "tea", "text/tea", map[string]string{"X-B": "2", "X-A": "1"}
	})
	s := nodetest.Request("GET / HTTP/1.1\nHost: x\n\n")
	if out := r.Serve(s); out != "done" || s.Status != 418 {
		t.Errorf("%s, status %d", out, s.Status)
	}
	a := nodetest.Answered(s)
	if a.Status != 418 || a.Body != "tea" || a.Bare || !strings.HasPrefix(a.Fields, "Content-Type: text/tea\r\nX-A: 1\r\nX-B: 2\r\nDate: ") {
		t.Errorf("%+v", a)
	}
	for _, c := range []struct {
		method string
		status int
	}{{"HEAD", 200}, {"GET", 204}, {"GET", 304}} {
		r := rig(t, func(x *Config) {
			x.Status = c.status
			if c.method == "HEAD" {
				x.Body = "tea"
			}
		})
		s := nodetest.Request(c.method + " / HTTP/1.1\nHost: x\n\n")
		r.Serve(s)
		if a := nodetest.Answered(s); !a.Bare || a.Body != "" || a.Status != c.status || strings.Contains(a.Fields, "Content-Type") != (c.method == "HEAD") {
			t.Errorf("%s %d: %+v", c.method, c.status, a)
		}
	}
}

// Whatever arguments the check takes, what goes out is a response with one body.
func FuzzArguments(f *testing.F) {
	f.Add(200, "body", "text/plain", "X-A", "b")
	f.Add(503, "\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "a\r\nb: c", "a b", "\x00")
	f.Fuzz(func(t *testing.T, status int, body, kind, name, value string) {
		c := Config{Status: status, Body: body, Type: kind, Fields: map[string]string{name: value}}
		k := graph.Lookup("respond")
		if status < 200 || status > 599 || k.CheckConfig(&c) != nil {
			return
		}
		r := rig(t, func(x *Config) { *x = c })
		s := nodetest.Request("GET / HTTP/1.1\nHost: x\n\n")
		r.Serve(s)
		a := nodetest.Answered(s)
		head := []byte("HTTP/1.1 200 OK\r\n" + a.Fields + "\r\n")
		var h http1.Response
		h.Reset()
		limits := http1.Limits{Line: 1 << 20, Field: 1 << 20, Head: 1 << 20, Fields: 10}
		if complete, err := h.Parse(head, &limits); err != nil || !complete || h.Size != len(head) || len(h.Fields) > 3 {
			t.Fatalf("%q: %v, %d of %d bytes, %d fields", head, err, h.Size, len(head), len(h.Fields))
		}
		if a.Body != body {
			t.Fatalf("%q", a.Body)
		}
	})
}

// BenchmarkRespond reports nanoseconds an answer, without its way to the client.
func BenchmarkRespond(b *testing.B) {
	r := rig(b, func(c *Config) { c.Body = "Back soon.\n" })
	s := nodetest.Request("GET / HTTP/1.1\nHost: x\n\n")
	b.ReportAllocs()
	for b.Loop() {
		nodetest.Answered(s).Body = ""
		r.Serve(s)
	}
}
