package route

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	_ "github.com/lbgraph/lbgraph/nodes/stream/balance"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
	_ "github.com/lbgraph/lbgraph/nodes/stream/proxy"
	_ "github.com/lbgraph/lbgraph/nodes/stream/respond"
)

func rig(t testing.TB, rules ...Rule) *nodetest.Stage {
	return nodetest.NewStage(t, "route", func(c *Config) { c.Rules = rules })
}

// The example parts two environments on one port; who asks for neither gets 404.
func TestExample(t *testing.T) {
	text := "stream \"s\" {\npath {\na = [in, hosts.api, api]\nb = [hosts.www, www]\n}\n" + nodetest.Listen + nodetest.Example(t)
	for _, name := range []string{"api", "www"} {
		text += fmt.Sprintf("node \"respond\" %q { body = %q }\n", name, name)
	}
	r := nodetest.RunStreams(t, text+"}\n")
	p := r.Dial("in")
	for host, want := range map[string]string{
		"api.example.org": "200 api", "API.Example.org.:8080": "200 api", "www.example.org": "200 www", "x.www.example.org": "200 www", "a.b.www.example.org": "200 www",
		"example.org": "404 404 Not Found\n", "x.api.example.org": "404 404 Not Found\n", "": "404 404 Not Found\n",
	} {
		if got := p.Ask("GET / HTTP/1.1\nHost: " + host + "\n\n"); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
	if r.Output("hosts", "no_route") != 3 {
		t.Errorf("%d without a route", r.Output("hosts", "no_route"))
	}
	r.Quiet()
}

// What no rule fits goes where the file draws it.
func TestDefault(t *testing.T) {
	r := nodetest.RunStreams(t, "stream \"s\" {\npath {\na = [in, by.api, api]\nb = [by.no_route, rest]\n}\n"+nodetest.Listen+
		"node \"route\" \"by\" {\nrule \"api\" { path = [\"/api\"] }\n}\nnode \"respond\" \"api\" { body = \"api\" }\nnode \"respond\" \"rest\" { body = \"rest\" }\n}\n")
	p := r.Dial("in")
	for path, want := range map[string]string{"/api/v1": "200 api", "/": "200 rest"} {
		if got := p.Ask("GET " + path + " HTTP/1.1\nHost: x\n\n"); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
}

func TestWrongArguments(t *testing.T) {
	rule := func(args string) string { return "rule \"a\" {\n" + args + "\n}" }
	nodetest.WrongArguments(t, "route", "", []string{rule(""), rule("output = \"b-1\"\nhost = [\"a\", \"*.b\", \"[::1]\"]\npath = [\"/\"]\nmethod = [\"M-SEARCH\"]\nheaders = { \"X-A\" = \"*\" }\nserver_name = [\"*.a\"]\nsource = [\"::/0\", \"192.0.2.1\"]")}, []nodetest.Wrong{
		{Argument: "rule.output", Text: rule("output = \"no_route\""), Told: "there anyway"},
		{Argument: "rule.output", Text: rule("output = \"bad_hello\""), Told: "there anyway"},
		{Argument: "rule.output", Text: rule("output = \"a.b\""), Told: "cannot stand in a path"},
		{Argument: "rule", Text: "rule \"1\" {}", Told: "cannot stand in a path"},
		{Argument: "rule.host", Text: rule("host = [\"a\", \"b:80\"]"), Told: "without port"},
		{Argument: "rule.host", Text: rule("host = [\"*\"]"), Told: "is no host"},
		{Argument: "rule.host", Text: rule("host = [\"\"]"), Told: "is no host"},
		{Argument: "rule.host", Text: rule("host = [\"http://a\"]"), Told: "is no host"},
		{Argument: "rule.path", Text: rule("path = [\"api\"]"), Told: "slash"},
		{Argument: "rule.method", Text: rule("method = [\"G T\"]"), Told: "no method"},
		{Argument: "rule.headers", Text: rule("headers = { \"a b\" = \"c\" }"), Told: "no field name"},
		{Argument: "rule.server_name", Text: rule("host = [\"a\"]\nserver_name = [\"a.*.b\"]"), Told: "is no host"},
		{Argument: "rule.source", Text: rule("source = [\"192.0.2.0/33\"]"), Told: "192.0.2.0/33"},
		{Argument: "hello_timeout", Text: rule("") + "\nhello_timeout = \"0s\"", Told: "1ms"},
	})
	if err := graph.Lookup("route").CheckConfig(&Config{}); err == nil || !strings.Contains(err.Error(), "has no rule") {
		t.Errorf("without a rule: %v", err)
	}
}

// All that a rule says must hold, of each list one element; the first rule that fits
// counts; rules may share an output.
func TestRules(t *testing.T) {
	r := rig(t,
		Rule{Name: "beta", Hosts: []string{"www.example"}, Fields: map[string]string{"X-Beta": "yes", "X-Any": "*"}},
		Rule{Name: "post", Hosts: []string{"www.example", "example"}, Methods: []string{"POST", "PUT"}},
		Rule{Name: "one", To: "api", Paths: []string{"/api", "/v1/"}},
		Rule{Name: "two", To: "api", Hosts: []string{"api.example"}, Paths: []string{"/"}},
		Rule{Name: "inside", Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}, Methods: []string{"GET"}},
	)
	if got := fmt.Sprintf("%d %s %s %s %s", len(r.Outputs), r.Outputs[2].Name, r.Outputs[3].Name, r.Outputs[4].Name, r.Outputs[5].Name); got != "6 beta post api inside" {
		t.Errorf("outputs %s", got)
	}
	for _, c := range []struct{ head, from, want string }{
		{"GET / HTTP/1.1\nHost: www.example\nx-beta: yes\nX-Any: \n\n", "", "beta"},
		{"GET / HTTP/1.1\nHost: www.example\nX-Beta: no\nX-Beta: yes\nX-Any: 1\n\n", "", "beta"},
		{"GET / HTTP/1.1\nHost: www.example\nX-Beta: YES\nX-Any: 1\n\n", "", "no_route"},
		{"GET / HTTP/1.1\nHost: www.example\nX-Beta: yes\n\n", "", "no_route"},
		{"POST / HTTP/1.1\nHost: example\nContent-Length: 0\n\n", "", "post"},
		{"PUT / HTTP/1.1\nHost: www.example\nX-Beta: yes\nX-Any: 1\n\n", "", "beta"},
		{"post / HTTP/1.1\nHost: example\n\n", "", "no_route"}, // methods have case (RFC 9110 section 9.1)
		{"PATCH / HTTP/1.1\nHost: example\n\n", "", "no_route"},
		{"GET /api HTTP/1.1\nHost: x\n\n", "", "api"},
		{"GET /api/v1?x HTTP/1.1\nHost: x\n\n", "", "api"},
		{"GET /apis HTTP/1.1\nHost: x\n\n", "", "no_route"},
		{"GET /API HTTP/1.1\nHost: x\n\n", "", "no_route"},
		{"GET /v1/ HTTP/1.1\nHost: x\n\n", "", "api"},
		{"GET /v1 HTTP/1.1\nHost: x\n\n", "", "no_route"},
		{"GET /x/..//%61pi/ HTTP/1.1\nHost: x\n\n", "", "api"},
		{"GET http://api.example/x HTTP/1.1\nHost: x\n\n", "", "api"},
		{"OPTIONS * HTTP/1.1\nHost: x\n\n", "", "no_route"},
		{"GET / HTTP/1.1\nHost: x\n\n", "10.1.2.3", "inside"},
		{"GET / HTTP/1.1\nHost: x\n\n", "2001:db8::1", "inside"},
		{"GET / HTTP/1.1\nHost: x\n\n", "11.0.0.1", "no_route"},
		{"HEAD / HTTP/1.1\nHost: x\n\n", "10.1.2.3", "no_route"},
		{"", "10.1.2.3", "no_route"}, // a connection is no request
	} {
		s := nodetest.Connection(nil)
		if c.head != "" {
			s = nodetest.Request(c.head)
		}
		if c.from != "" {
			s.Client.Remote = netip.AddrPortFrom(netip.MustParseAddr(c.from), 1)
		}
		if got := r.Serve(s); got != c.want {
			t.Errorf("%q from %q: %s, want %s", c.head, c.from, got, c.want)
		}
	}
	// An output is for requests alone if all of its rules are.
	outs := graph.Lookup("route").OutputsOf(&Config{Rules: []Rule{{Name: "a", Hosts: []string{"x"}}, {Name: "b", Names: []string{"x"}}, {Name: "c", To: "a"}, {Name: "d", Paths: []string{"/"}}}})
	for i, want := range []graph.Facts{0, 0, graph.HTTP} {
		if o := outs[badHello+1+i]; o.Only != want {
			t.Errorf("%+v", o)
		}
	}
}

// By the name that the client asks TLS for: of what tls has taken off, and of what
// passes as it is.
func TestServerNames(t *testing.T) {
	r := rig(t, Rule{Name: "a", Names: []string{"a.example"}}, Rule{Name: "b", Names: []string{"*.b.example"}})
	for name, want := range map[string]string{"a.example": "a", "A.Example": "a", "x.b.example": "b", "b.example": "no_route", "": "no_route"} {
		said := hello(t, name)
		s := nodetest.Connection(said)
		if got := r.Serve(s); got != want || string(s.Client.Buffered()) != string(said) || s.Client.ServerName != strings.ToLower(name) {
			t.Errorf("%s: %s, %d of %d bytes are left, name %q", name, got, len(s.Client.Buffered()), len(said), s.Client.ServerName)
		}
		if name != "" { // a dot at its end makes no difference; crypto/tls sends none
			s = nodetest.Connection([]byte(strings.Replace(string(hello(t, name+"x")), name+"x", name+".", 1)))
			if got := r.Serve(s); got != want || s.Client.ServerName != strings.ToLower(name) {
				t.Errorf("%s.: %s, name %q", name, got, s.Client.ServerName)
			}
		}
		s = nodetest.Request("GET / HTTP/1.1\nHost: other\n\n")
		s.Client.ServerName = strings.ToLower(name)
		if got := r.Serve(s); got != want {
			t.Errorf("%s, a request: %s", name, got)
		}
	}
	for _, said := range []string{"", "GET / HTTP/1.1\r\n\r\n", string(hello(t, "a.example")[:60])} {
		if got, err := r.Try(nodetest.Connection([]byte(said))); got != "bad_hello" || err == nil {
			t.Errorf("%q: %s, %v", said, got, err)
		}
	}
	// Where no rule looks at names, nobody reads.
	if got := rig(t, Rule{Name: "all"}).Serve(nodetest.Connection(nil)); got != "all" {
		t.Errorf("%s", got)
	}
}

// TLS that is passed on by its name; a client that says nothing has so long.
func TestPassedOn(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.TLS.ServerName) }))
	defer srv.Close()
	r := nodetest.RunStreams(t, nodetest.Pool("", strings.TrimPrefix(srv.URL, "https://"))+"stream \"s\" {\npath { main = [in, by.a, balance, proxy] }\nnode \"listen\" \"in\" {\naddress = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n}\n"+
		"node \"route\" \"by\" {\nhello_timeout = \"300ms\"\nrule \"a\" { server_name = [\"*.a.example\"] }\n}\nnode \"balance\" \"balance\" { pool = pool.web }\n}\n")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "x.a.example"}}}
	res, err := client.Get("https://" + r.Addr("in") + "/")
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(res.Body); string(b) != "x.a.example" {
		t.Errorf("%q", b)
	}
	_ = res.Body.Close()
	client.CloseIdleConnections()
	begun := time.Now()
	if got := r.Dial("in").Rest(); got != "«reset»" || time.Since(begun) < 300*time.Millisecond || r.Output("by", "bad_hello") != 1 {
		t.Errorf("%q after %v", got, time.Since(begun))
	}
	r.Quiet()
}

// Whatever head comes, the way is the same for spellings that backends take for one.
func FuzzWay(f *testing.F) {
	f.Add("/api/x", "www.example")
	f.Add("/a/../%61pi//", "WWW.example.:80")
	r := rig(f, Rule{Name: "api", Paths: []string{"/api"}}, Rule{Name: "www", Hosts: []string{"www.example"}}, Rule{Name: "rest"})
	f.Fuzz(func(t *testing.T, path, host string) {
		r.T = t
		way := func(path, host string) string {
			s := nodetest.Request("GET " + path + " HTTP/1.1\nHost: " + host + "\n\n")
			if s == nil {
				return ""
			}
			return r.Serve(s)
		}
		first := way(path, host)
		if first == "" || !strings.HasPrefix(path, "/") || strings.ContainsAny(host, ":[\n\r ") || strings.ContainsAny(path, "? \n\r") {
			return
		}
		for _, again := range []string{way("/"+path, host), way("/."+path, host), way("/x/.."+path, host), way(path, host+":80"), way(path, strings.ToUpper(host))} {
			if again != first && again != "" {
				t.Fatalf("%q at %q: %s, then %s", path, host, first, again)
			}
		}
	})
}

// BenchmarkRoute reports nanoseconds a request that the last of so many rules fits.
func BenchmarkRoute(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var rules []Rule
			for i := range n {
				rules = append(rules, Rule{Name: fmt.Sprintf("r%d", i), Hosts: []string{fmt.Sprintf("h%d.example.org", i)}, Paths: []string{"/api"}})
			}
			r := rig(b, rules...)
			s := nodetest.Request(fmt.Sprintf("GET /api/v1 HTTP/1.1\nHost: h%d.example.org\n\n", n-1))
			b.ReportAllocs()
			for b.Loop() {
				r.Serve(s)
			}
		})
	}
}
