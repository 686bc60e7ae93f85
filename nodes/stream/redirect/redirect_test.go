package redirect

import (
	"net/url"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/nodes/nodetest"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
)

func rig(t testing.TB, to string) *nodetest.Stage {
	return nodetest.NewStage(t, "redirect", func(c *Config) { c.To = to })
}

// location answers where a request is sent, "" for nowhere.
func location(r *nodetest.Stage, head string) string {
	s := nodetest.Request(head)
	if r.Serve(s) != "done" {
		return ""
	}
	_, at, _ := strings.Cut(nodetest.Answered(s).Fields, "Location: ")
	at, _, _ = strings.Cut(at, "\r\n")
	return at
}

func TestExample(t *testing.T) {
	r := nodetest.RunStreams(t, "stream \"s\" {\npath { main = [in, secure] }\n"+nodetest.Listen+nodetest.Example(t)+"}\n")
	p := r.Dial("in")
	for range 2 {
		res, body := p.Get("POST /a//b?c=%zz HTTP/1.1\nHost: www.example.org:8080\nContent-Length: 2\n\nab")
		if res == nil || res.StatusCode != 308 || res.Header.Get("Location") != "https://www.example.org/a//b?c=%zz" || body != "" || res.ContentLength != 0 {
			t.Errorf("%v %q", res, body)
		}
	}
	if got := p.Ask("GET / HTTP/1.1\nHost:\n\n"); got != "400 400 Bad Request\n" || r.Output("secure", "no_host") != 1 {
		t.Errorf("%q", got)
	}
	r.Quiet()
}

func TestWrongArguments(t *testing.T) {
	nodetest.WrongArguments(t, "redirect", "", []string{"to = \"https://{host}{target}\"", "to = \"{path}x?{query}\"\nstatus = 302", "to = \"{target}\"", "to = \"https://example.org/\""}, []nodetest.Wrong{
		{Argument: "to", Text: "to = \"\"", Told: "empty"},
		{Argument: "to", Text: "to = \"{host}/\"", Told: "begins with what clients send"},
		{Argument: "to", Text: "to = \"{query}\"", Told: "begins with what clients send"},
		{Argument: "to", Text: "to = \"https://{port}/\"", Told: "write {host}"},
		{Argument: "to", Text: "to = \"https://{host\"", Told: "not closed"},
		{Argument: "to", Text: "to = \"https://a b/\"", Told: "cannot stand in an address"},
		{Argument: "to", Text: "to = \"https://a/\\r\\nX-A: b\"", Told: "cannot stand in an address"},
		{Argument: "status", Text: "to = \"/\"\nstatus = 304", Told: "301"},
	})
}

func TestLocations(t *testing.T) {
	for _, c := range []struct{ to, request, want string }{
		{"https://{host}{target}", "GET /x?y HTTP/1.1\nHost: a.example:80\n\n", "https://a.example/x?y"},
		{"https://{host}:8443{path}", "GET /x?y HTTP/1.1\nHost: a.example:80\n\n", "https://a.example:8443/x"},
		{"https://{host}/?q={query}", "GET /x?y=1&z HTTP/1.1\nHost: [::1]:80\n\n", "https://[::1]/?q=y=1&z"},
		{"https://{host}{target}", "GET http://b.example:81/x?y HTTP/1.1\nHost: a\n\n", "https://b.example/x?y"},
		{"https://{host}{target}", "GET http://b.example HTTP/1.1\nHost: a\n\n", "https://b.example/"},
		{"https://{host}{target}", "GET /x? HTTP/1.1\nHost: a\n\n", "https://a/x?"},
		{"https://www.example.org/", "GET /x HTTP/1.1\nHost:\n\n", "https://www.example.org/"},
		{"https://{host}/", "GET /x HTTP/1.1\nHost:\n\n", ""},
		{"https://{host}/", "GET /x HTTP/1.0\n\n", ""},
		// What clients send does not become another authority.
		{"{target}", "GET //evil.example/x HTTP/1.1\nHost: a\n\n", "/evil.example/x"},
		{"{path}", "GET ///evil.example HTTP/1.1\nHost: a\n\n", "/evil.example"},
		{"{target}", "GET /\\evil.example HTTP/1.1\nHost: a\n\n", "/evil.example"},
		{"{path}", "GET /\\\\evil.example HTTP/1.1\nHost: a\n\n", "/evil.example"},
		{"/new{path}", "GET //evil.example HTTP/1.1\nHost: a\n\n", "/new//evil.example"},
	} {
		if got := location(rig(t, c.to), c.request); got != c.want {
			t.Errorf("%s of %q: %q, want %q", c.to, c.request, got, c.want)
		}
	}
	s := nodetest.Request("GET / HTTP/1.1\nHost: a\n\n")
	nodetest.NewStage(t, "redirect", func(c *Config) { c.To, c.Status = "/b", 303 }).Serve(s)
	if s.Status != 303 || nodetest.Answered(s).Status != 303 {
		t.Errorf("status %d", s.Status)
	}
}

// Whatever a client sends, Location is one line, and leads to the host that the
// request was for, or stays at this one.
func FuzzLocation(f *testing.F) {
	for _, s := range []string{"GET /x?y HTTP/1.1\nHost: a.example:80\n\n", "GET //evil.example HTTP/1.1\nHost: a\n\n", "GET /\\evil HTTP/1.1\nHost: [::1]\n\n", "GET http://u@b/ HTTP/1.1\nHost: c\n\n", "GET /\xff?\x80 HTTP/1.1\nHost: a\n\n"} {
		f.Add(s)
	}
	there, here := rig(f, "https://{host}{target}"), rig(f, "{target}")
	f.Fuzz(func(t *testing.T, head string) {
		there.T, here.T = t, t
		if nodetest.Request(head) == nil {
			return
		}
		if at := location(there, head); at != "" {
			rest, ok := strings.CutPrefix(at, "https://")
			host, _, _ := strings.Cut(rest, "/")
			if !ok || host == "" || strings.ContainsAny(at, "\r\n ") || strings.ContainsAny(host, "@/\\?#") {
				t.Fatalf("%q leads to %q", head, at)
			}
		}
		at := location(here, head)
		if at == "" || strings.ContainsAny(at, "\r\n ") {
			t.Fatalf("%q leads to %q", head, at)
		}
		if u, err := url.Parse(at); err == nil && (u.Host != "" || u.Scheme != "") || len(at) > 1 && (at[1] == '/' || at[1] == '\\') {
			t.Fatalf("%q leads away, to %q", head, at)
		}
	})
}

// BenchmarkRedirect reports nanoseconds an answer, without its way to the client.
func BenchmarkRedirect(b *testing.B) {
	r := rig(b, "https://{host}{target}")
	s := nodetest.Request("GET /a/b?c HTTP/1.1\nHost: www.example.org:80\n\n")
	b.ReportAllocs()
	for b.Loop() {
		r.Serve(s)
	}
}
