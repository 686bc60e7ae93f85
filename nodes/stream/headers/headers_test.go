package headers

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	_ "github.com/lbgraph/lbgraph/nodes/stream/balance"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
	_ "github.com/lbgraph/lbgraph/nodes/stream/proxy"
	_ "github.com/lbgraph/lbgraph/nodes/stream/respond"
	_ "github.com/lbgraph/lbgraph/nodes/stream/route"
)

// asked answers the fields of a request as a backend gets them.
func asked(s *stream.Session) string {
	return string(stream.AppendRequest(nil, &s.Req.Head, s.Req.Buf, 0, s.Edits))
}

func TestExample(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	addr := nodetest.HTTPBackend(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Get("X-Request-Id"))
		mu.Unlock()
		w.Header().Set("Server", "secret")
		w.Header().Set("Strict-Transport-Security", "max-age=1")
		fmt.Fprint(w, "ok")
	})
	r := nodetest.RunStreams(t, nodetest.Pool("", addr)+"stream \"s\" {\npath {\nmain = [in, fields, by.web, balance, proxy]\nrest = [by.rest, respond]\n}\n"+nodetest.Listen+nodetest.Example(t)+
		"node \"balance\" \"balance\" { pool = pool.web }\nnode \"route\" \"by\" {\nrule \"web\" { path = [\"/web\"] }\nrule \"rest\" {}\n}\nnode \"respond\" \"respond\" { headers = { \"Server\" = \"own\", \"strict-transport-security\" = \"max-age=2\" } }\n}\n")
	ids := map[string]bool{}
	p := r.Dial("in")
	for _, path := range []string{"/web", "/web", "/own", "/own"} {
		res, _ := p.Get("GET " + path + " HTTP/1.1\nHost: x\nX-Request-Id: mine\n\n")
		if res == nil || res.StatusCode != 200 {
			t.Fatalf("%s: %v", path, res)
		}
		id := res.Header["X-Request-Id"]
		if len(id) != 1 || len(id[0]) != 32 || ids[id[0]] {
			t.Errorf("%s: id %q", path, id)
		}
		ids[id[0]] = true
		if sts := res.Header["Strict-Transport-Security"]; len(sts) != 1 || sts[0] != "max-age=31536000" || res.Header["Server"] != nil {
			t.Errorf("%s: %v", path, res.Header)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 2 || !ids[seen[0]] || !ids[seen[1]] || seen[0] == seen[1] {
		t.Errorf("the backend has %q of %v", seen, ids)
	}
	r.Quiet()
}

func TestWrongArguments(t *testing.T) {
	nodetest.WrongArguments(t, "headers", "", []string{"request_id = \"X-Id\"\nrequest {\nset = { \"A\" = \"\" }\nremove = [\"B\"]\n}\nresponse { add = { \"C\" = \"d e\" } }"}, []nodetest.Wrong{
		{Argument: "request.set", Text: "request {\nset = { \"a b\" = \"c\" }\n}", Told: "no field name"},
		{Argument: "request.set", Text: "request {\nset = { \"A\" = \"b\\nc\" }\n}", Told: "cannot be the value"},
		{Argument: "request.set", Text: "request {\nset = { \"Host\" = \"b\" }\n}", Told: "leave it out"},
		{Argument: "request.add", Text: "request {\nadd = { \"X-Forwarded-For\" = \"b\" }\n}", Told: "leave it out"},
		{Argument: "request.remove", Text: "request {\nremove = [\"A\", \"transfer-encoding\"]\n}", Told: "leave it out"},
		{Argument: "response.set", Text: "response {\nset = { \"Content-Length\" = \"1\" }\n}", Told: "leave it out"},
		{Argument: "response.add", Text: "response {\nadd = { \"Connection\" = \"close\" }\n}", Told: "leave it out"},
		{Argument: "response.remove", Text: "response {\nremove = [\"\"]\n}", Told: "no field name"},
		{Argument: "request_id", Text: "request_id = \"X Id\"", Told: "no field name"},
		{Argument: "request_id", Text: "request_id = \"Forwarded\"", Told: "leave it out"},
	})
}

// Set takes the place of what is there, add stands beside it, remove takes it away;
// whatever case names have, and node after node.
func TestEdits(t *testing.T) {
	one := nodetest.NewStage(t, "headers", func(c *Config) {
		c.Request = Edits{Set: map[string]string{"X-B": "2", "X-A": "1"}, Add: map[string]string{"X-C": "3"}, Remove: []string{"x-d"}}
		c.Response = Edits{Set: map[string]string{"X-R": "1"}}
	})
	two := nodetest.NewStage(t, "headers", func(c *Config) {
		c.Request = Edits{Add: map[string]string{"X-A": "4"}, Remove: []string{"X-B"}}
		c.Response = Edits{Remove: []string{"x-r"}, Add: map[string]string{"X-S": "2"}}
	})
	s := nodetest.Request("GET / HTTP/1.1\nHost: x\nx-a: old\nX-A: older\nX-C: kept\nX-D: gone\nX-E: kept\n\n")
	if one.Serve(s) != "next" {
		t.Fatal("it does not pass")
	}
	if got, want := asked(s), "Host: x\r\nX-C: kept\r\nX-E: kept\r\nX-A: 1\r\nX-B: 2\r\nX-C: 3\r\n"; got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	two.Serve(s)
	if got, want := asked(s), "Host: x\r\nX-C: kept\r\nX-E: kept\r\nX-A: 1\r\nX-C: 3\r\nX-A: 4\r\n"; got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if got, want := string(stream.AppendAnswer(nil, []byte("X-R: 0\r\nX-T: 3\r\n"), s.Edits)), "X-T: 3\r\nX-S: 2\r\n"; got != want {
		t.Errorf("an answer: got %q\nwant %q", got, want)
	}
}

// The id is the node's own, or that which a trusted proxy gave, and nobody else.
func TestRequestID(t *testing.T) {
	r := nodetest.NewStage(t, "headers", func(c *Config) { c.RequestID = "X-Id" })
	for _, trusted := range []bool{false, true} {
		s := nodetest.Request("GET / HTTP/1.1\nHost: x\nx-id: theirs\n\n")
		s.Client.Trusted = trusted
		r.Serve(s)
		if (s.ID == "theirs") != trusted || asked(s) != "Host: x\r\nX-Id: "+s.ID+"\r\n" {
			t.Errorf("trusted %v: id %q, %q", trusted, s.ID, asked(s))
		}
	}
	s := nodetest.Request("GET / HTTP/1.1\nHost: x\nX-Id:\n\n")
	s.Client.Trusted = true
	if r.Serve(s); len(s.ID) != 32 {
		t.Errorf("an empty one stays: %q", s.ID)
	}
	none := nodetest.NewStage[Config](t, "headers", nil)
	s = nodetest.Request("GET / HTTP/1.1\nHost: x\n\n")
	if none.Serve(s); s.ID != "" {
		t.Errorf("id %q unasked", s.ID)
	}
}

// Whatever fields come, what is set stands there once, what is removed never, and all
// is still a head.
func FuzzFields(f *testing.F) {
	f.Add("GET / HTTP/1.1\nHost: x\nx-a: 1\nX-A: 2\nX-SECRET: s\nX-Id: i\n\n")
	f.Add("GET / HTTP/1.1\nHost: x\nX-A:\nConnection: X-A, X-Id\nX_A: 2\n\n")
	r := nodetest.NewStage(f, "headers", func(c *Config) {
		c.Request = Edits{Set: map[string]string{"X-A": "ours"}, Remove: []string{"X-Secret"}}
		c.RequestID = "X-Id"
	})
	f.Fuzz(func(t *testing.T, head string) {
		r.T = t
		s := nodetest.Request(head)
		if s == nil {
			return
		}
		s.Client.Trusted = len(head)%2 == 0
		r.Serve(s)
		text := []byte("GET / HTTP/1.1\r\n" + string(stream.AppendRequest(nil, &s.Req.Head, s.Req.Buf, http1.HopByHop, s.Edits)) + "\r\n")
		var h http1.Request
		h.Reset()
		limits := http1.DefaultLimits
		limits.Head, limits.Fields, limits.Field = 1<<20, 1000, 1<<20
		if _, err := h.Parse(text, &limits); err != nil && s.Req.Host != (http1.Span{}) {
			t.Fatalf("%q: %v", text, err)
		}
		n := map[string]int{}
		for i := range h.Fields {
			n[strings.ToLower(string(h.Fields[i].Name(text)))]++
		}
		if len(h.Fields) > 0 && (n["x-a"] != 1 || n["x-secret"] != 0 || n["x-id"] != 1) {
			t.Fatalf("%q: %v", text, n)
		}
	})
}

// BenchmarkHeaders reports nanoseconds a request, its fields as the backend gets them
// included.
func BenchmarkHeaders(b *testing.B) {
	r := nodetest.NewStage(b, "headers", func(c *Config) {
		c.Request = Edits{Set: map[string]string{"X-A": "1"}, Remove: []string{"X-D"}}
		c.Response = Edits{Set: map[string]string{"Strict-Transport-Security": "max-age=1"}}
	})
	s := nodetest.Request("GET / HTTP/1.1\nHost: x\nUser-Agent: y\nAccept: */*\nX-D: gone\n\n")
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		s.Edits = s.Edits[:0]
		r.Serve(s)
		buf = stream.AppendRequest(buf[:0], &s.Req.Head, s.Req.Buf, 0, s.Edits)
	}
}
