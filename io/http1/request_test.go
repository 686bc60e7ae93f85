package http1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// crlf turns lines into a head's text.
func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

func parse(t testing.TB, text string) (*Request, error) {
	t.Helper()
	var r Request
	r.Reset()
	complete, err := r.Parse([]byte(text), &Limits{})
	if err == nil && !complete {
		return nil, errors.New("incomplete")
	}
	return &r, err
}

// What streams.md says of requests, line by line: what is refused, and how.
func TestRequestFaults(t *testing.T) {
	const get, post = "GET / HTTP/1.1\r\nHost: x\r\n", "POST / HTTP/1.1\r\nHost: x\r\n"
	for _, c := range []struct {
		name, text string
		want       error
	}{
		{"CL with TE", post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", ErrBoth},
		{"TE with CL", post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", ErrBoth},
		{"two TE lines", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", ErrCodings},
		{"two TE lines, identity", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", ErrCodings},
		{"xchunked", post + "Transfer-Encoding: xchunked\r\n\r\n", ErrCoding},
		{"chunkedx", post + "Transfer-Encoding: chunkedx\r\n\r\n", ErrCoding},
		{"quoted", post + "Transfer-Encoding: \"chunked\"\r\n\r\n", ErrCoding},
		{"vertical tab", post + "Transfer-Encoding: \x0bchunked\r\n\r\n", ErrValue},
		{"chunked twice", post + "Transfer-Encoding: chunked, chunked\r\n\r\n", ErrCoding},
		{"chunked first", post + "Transfer-Encoding: chunked, gzip\r\n\r\n", ErrCoding},
		{"chunked and comma", post + "Transfer-Encoding: chunked,\r\n\r\n", ErrCoding},
		{"comma and chunked", post + "Transfer-Encoding: ,chunked\r\n\r\n", ErrCoding},
		{"empty TE", post + "Transfer-Encoding:\r\n\r\n", ErrCoding},
		{"TE with blank inside", post + "Transfer-Encoding: chu nked\r\n\r\n", ErrCoding},
		{"unknown coding", post + "Transfer-Encoding: gzip\r\n\r\n", ErrCodingName},
		{"unknown coding first", post + "Transfer-Encoding: gzip, chunked\r\n\r\n", ErrCodingName},
		{"identity", post + "Transfer-Encoding: identity\r\n\r\n", ErrCodingName},
		{"blank before colon", post + "Transfer-Encoding : chunked\r\n\r\n", ErrName},
		{"tab before colon", post + "Content-Length\t: 5\r\n\r\n", ErrName},
		{"differing CL", post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", ErrLengths},
		{"repeated CL", post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", ErrLengths},
		{"listed CL", post + "Content-Length: 5, 5\r\n\r\n", ErrLength},
		{"CL +5", post + "Content-Length: +5\r\n\r\n", ErrLength},
		{"CL -5", post + "Content-Length: -5\r\n\r\n", ErrLength},
		{"CL 0x5", post + "Content-Length: 0x5\r\n\r\n", ErrLength},
		{"CL 5.0", post + "Content-Length: 5.0\r\n\r\n", ErrLength},
		{"CL 5:", post + "Content-Length: 5:\r\n\r\n", ErrLength},
		{"CL 5/", post + "Content-Length: 5/\r\n\r\n", ErrLength},
		{"CL 5 5", post + "Content-Length: 5 5\r\n\r\n", ErrLength},
		{"empty CL", post + "Content-Length:\r\n\r\n", ErrLength},
		{"CL 2^63", post + "Content-Length: 9223372036854775808\r\n\r\n", ErrLength},
		{"CL of 20 digits", post + "Content-Length: 00000000000000000005\r\n\r\n", ErrLength},
		{"empty field name", get + ": x\r\n\r\n", ErrName},
		{"no colon", get + "Nonsense\r\n\r\n", ErrName},
		{"name with blank", get + "A b: x\r\n\r\n", ErrName},
		{"name with NUL", get + "A\x00: x\r\n\r\n", ErrName},
		{"name beyond ASCII", get + "\xc3\xa4: x\r\n\r\n", ErrName},
		{"NUL", get + "A: x\x00y\r\n\r\n", ErrValue},
		{"NUL in a long value", get + "A: 123456789012345\x0067890\r\n\r\n", ErrValue},
		{"bare CR", get + "A: x\ry\r\n\r\n", ErrBareCR},
		{"bare CR in front of a name", get + "\rA: x\r\n\r\n", ErrName},
		{"bare CR before CRLF", get + "A: x\r\r\n\r\n", ErrBareCR},
		{"DEL", get + "A: x\x7fy\r\n\r\n", ErrValue},
		{"bare LF", get + "A: x\nB: y\r\n\r\n", ErrBareLF},
		{"bare LF at the request line", "GET / HTTP/1.1\nHost: x\r\n\r\n", ErrBareLF},
		{"bare LF at the end", get + "\n", ErrBareLF},
		{"folded", get + "A: x\r\n y\r\n\r\n", ErrFold},
		{"folded by tab", get + "A: x\r\n\ty\r\n\r\n", ErrFold},
		{"folded at once", "GET / HTTP/1.1\r\n Host: x\r\n\r\n", ErrFold},
		{"no Host", "GET / HTTP/1.1\r\nA: x\r\n\r\n", ErrNoHost},
		{"two Hosts", get + "Host: x\r\n\r\n", ErrHosts},
		{"two Hosts in 1.0", "GET / HTTP/1.0\r\nHost: x\r\nhOST: y\r\n\r\n", ErrHosts},
		{"absolute without Host", "GET http://x/ HTTP/1.1\r\n\r\n", ErrNoHost},
		{"Host with user", "GET / HTTP/1.1\r\nHost: a@x\r\n\r\n", ErrHost},
		{"Host with path", "GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", ErrHost},
		{"Host with blank", "GET / HTTP/1.1\r\nHost: x y\r\n\r\n", ErrHost},
		{"Host with bad port", "GET / HTTP/1.1\r\nHost: x:8o\r\n\r\n", ErrHost},
		{"Host with two ports", "GET / HTTP/1.1\r\nHost: x:80:80\r\n\r\n", ErrHost},
		{"Host with half a bracket", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", ErrHost},
		{"TE in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", ErrCodingOld},
		{"CONNECT", "CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n", ErrConnect},
		{"CONNECT of a path", "CONNECT / HTTP/1.1\r\nHost: x\r\n\r\n", ErrConnect},
		{"asterisk of GET", "GET * HTTP/1.1\r\nHost: x\r\n\r\n", ErrTarget},
		{"target without slash", "GET x HTTP/1.1\r\nHost: x\r\n\r\n", ErrTarget},
		{"authority-form", "GET x:80 HTTP/1.1\r\nHost: x\r\n\r\n", ErrTarget},
		{"other scheme", "GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", ErrTarget},
		{"absolute without authority", "GET http:/// HTTP/1.1\r\nHost: x\r\n\r\n", ErrTarget},
		{"absolute with user", "GET http://a@x/ HTTP/1.1\r\nHost: x\r\n\r\n", ErrTarget},
		{"fragment", "GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", ErrTarget},
		{"blank in target", "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", ErrTarget},
		{"tab in target", "GET /a\tb HTTP/1.1\r\nHost: x\r\n\r\n", ErrTarget},
		{"NUL in target", "GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", ErrTarget},
		{"two blanks", "GET  / HTTP/1.1\r\nHost: x\r\n\r\n", ErrTarget},
		{"blank at the end", "GET / HTTP/1.1 \r\nHost: x\r\n\r\n", ErrRequestLine},
		{"HTTP/0.9", "GET /\r\n\r\n", ErrRequestLine},
		{"blank in front", " GET / HTTP/1.1\r\nHost: x\r\n\r\n", ErrRequestLine},
		{"odd method", "G(T / HTTP/1.1\r\nHost: x\r\n\r\n", ErrMethod},
		{"HTTP/2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ErrNotSupported},
		{"HTTP/1.2", "GET / HTTP/1.2\r\nHost: x\r\n\r\n", ErrNotSupported},
		{"http/1.1", "GET / http/1.1\r\nHost: x\r\n\r\n", ErrVersion},
		{"HTTP/1.01", "GET / HTTP/1.01\r\nHost: x\r\n\r\n", ErrVersion},
		{"HTTP/1,1", "GET / HTTP/1,1\r\nHost: x\r\n\r\n", ErrVersion},
		{"two empty lines in front", "\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", ErrRequestLine},
		{"another expectation", get + "Expect: tea\r\n\r\n", ErrExpect},
		{"long line", "GET /" + strings.Repeat("a", 8<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n", ErrLineTooLong},
		{"long line without end", "GET /" + strings.Repeat("a", 8<<10), ErrLineTooLong},
		{"long field", get + "A: " + strings.Repeat("a", 16<<10) + "\r\n\r\n", ErrHeadTooLarge},
		{"large head", get + strings.Repeat("A: "+strings.Repeat("a", 8<<10)+"\r\n", 4) + "\r\n", ErrHeadTooLarge},
		{"many fields", get + strings.Repeat("A: x\r\n", 128) + "\r\n", ErrFields},
		{"many connection options", get + "Connection: " + strings.Repeat("a,", 40) + "\r\n\r\n", ErrFields},
	} {
		if _, err := parse(t, c.text); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		// Byte by byte it is the same.
		var r Request
		r.Reset()
		var err error
		complete := false
		for i := 1; i <= len(c.text) && err == nil && !complete; i++ {
			complete, err = r.Parse([]byte(c.text[:i]), &Limits{})
		}
		if err != c.want {
			t.Errorf("%s, byte by byte: %v, want %v", c.name, err, c.want)
		}
	}
}

// What is legal, and what it means.
func TestRequests(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"GET / HTTP/1.1\nHost: x\n\n", "GET / path=/ query= host=x body=0"},
		{"\nGET / HTTP/1.1\nHost: x\n\n", "GET / path=/ query= host=x body=0"},
		{"GET / HTTP/1.0\n\n", "GET / path=/ query= host= body=0 close"},
		{"GET / HTTP/1.0\nConnection: Keep-Alive\n\n", "GET / path=/ query= host= body=0"},
		{"GET / HTTP/1.1\nHost: x\nConnection: close\n\n", "GET / path=/ query= host=x body=0 close"},
		{"GET / HTTP/1.1\nHost:\n\n", "GET / path=/ query= host= body=0"},
		{"GET / HTTP/1.1\nhOsT: \tX.Example:8080 \t\n\n", "GET / path=/ query= host=X.Example:8080 body=0"},
		{"GET / HTTP/1.1\nHost: [2001:db8::1]:80\n\n", "GET / path=/ query= host=[2001:db8::1]:80 body=0"},
		{"GET //a/%2e%2F;b?c=%zz?d HTTP/1.1\nHost: x\n\n", "GET //a/%2e%2F;b?c=%zz?d path=//a/%2e%2F;b query=c=%zz?d host=x body=0"},
		{"GET /\xc3\xa4 HTTP/1.1\nHost: x\n\n", "GET /\xc3\xa4 path=/\xc3\xa4 query= host=x body=0"},
		{"GET http://A.example:81/b?c HTTP/1.1\nHost: other\n\n", "GET http://A.example:81/b?c path=/b query=c host=A.example:81 body=0"},
		{"GET HTTPS://a?c HTTP/1.1\nHost: other\n\n", "GET HTTPS://a?c path= query=c host=a body=0"},
		{"GET http://a HTTP/1.1\nHost: other\n\n", "GET http://a path= query= host=a body=0"},
		{"OPTIONS * HTTP/1.1\nHost: x\n\n", "OPTIONS * path= query= host=x body=0"},
		{"M-SEARCH /x HTTP/1.1\nHost: x\n\n", "M-SEARCH /x path=/x query= host=x body=0"},
		{"GET / HTTP/1.1\nHost: x\nContent-Length: 5\n\n", "GET / path=/ query= host=x body=5"},
		{"GET / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n", "GET / path=/ query= host=x body=-1"},
		{"POST / HTTP/1.1\nHost: x\nTransfer-Encoding: \t cHunKed \n\n", "POST / path=/ query= host=x body=-1"},
		{"POST / HTTP/1.1\nHost: x\nContent-Length: 0\n\n", "POST / path=/ query= host=x body=0"},
		{"POST / HTTP/1.1\nHost: x\nContent-Length: 9223372036854775807\n\n", "POST / path=/ query= host=x body=9223372036854775807"},
		{"POST / HTTP/1.1\nHost: x\nContent-Length: 5\nExpect: 100-Continue\n\n", "POST / path=/ query= host=x body=5 expects"},
		{"GET / HTTP/1.1\nHost: x\nExpect: 100-continue\n\n", "GET / path=/ query= host=x body=0"},
		{"POST / HTTP/1.0\nContent-Length: 5\nExpect: 100-continue\n\n", "POST / path=/ query= host= body=5 close"},
		{"GET / HTTP/1.1\nHost: x\nConnection: keep-alive, Upgrade\nUpgrade: websocket\n\n", "GET / path=/ query= host=x body=0 upgrade=websocket"},
		{"GET / HTTP/1.1\nHost: x\nUpgrade: websocket\n\n", "GET / path=/ query= host=x body=0"},
		{"GET / HTTP/1.0\nConnection: Upgrade\nUpgrade: websocket\n\n", "GET / path=/ query= host= body=0 close"},
		{"GET / HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: a\nUpgrade: b\n\n", "GET / path=/ query= host=x body=0"},
		{"GET / HTTP/1.1\nHost: x\nTE: gzip, trailers;q=0.5\n\n", "GET / path=/ query= host=x body=0 trailers"},
		{"GET / HTTP/1.1\nHost: x\nA: \xe4\tb\n\n", "GET / path=/ query= host=x body=0"},
	} {
		text := crlf(c.text)
		r, err := parse(t, text+"BODY")
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		b := []byte(text)
		got := fmt.Sprintf("%s %s path=%s query=%s host=%s body=%d", r.MethodText.In(b), r.Target.In(b), r.Path.In(b), r.Query.In(b), r.Host.In(b), r.Body())
		for _, w := range []struct {
			is   bool
			word string
		}{{r.Close, " close"}, {r.Expects, " expects"}, {r.TETrailers, " trailers"}, {r.WantsUpgrade, " upgrade=" + string(r.UpgradeTo.In(b))}} {
			if w.is {
				got += w.word
			}
		}
		if got != c.want || r.Size != len(text) {
			t.Errorf("%q:\n%s, %d bytes; want\n%s, %d bytes", c.text, got, r.Size, c.want, len(text))
		}
		// Every prefix is incomplete, and the end is found whatever the pieces.
		for step := 1; step < 9; step++ {
			var q Request
			q.Reset()
			for i := step; ; i += step {
				i = min(i, len(b))
				complete, err := q.Parse(b[:i], &Limits{})
				if err != nil || complete != (i == len(b)) {
					t.Fatalf("%q at byte %d: %v, %v", c.text, i, complete, err)
				}
				if complete {
					break
				}
			}
			if q.Size != r.Size || len(q.Fields) != len(r.Fields) || q.Host != r.Host {
				t.Errorf("%q in steps of %d: %+v", c.text, step, q)
			}
		}
	}
}

func TestHopByHop(t *testing.T) {
	text := crlf(`GET / HTTP/1.1
Host: x
A: 1
Connection: close, X-Hop , x-forwarded-for
X-Hop: secret
B: 2
Keep-Alive: timeout=5
TE: trailers
Proxy-Connection: keep-alive
Proxy-Authorization: Basic eA==
Transfer-Encoding: chunked
Connection: Other-Hop
other-hop: secret
X-Forwarded-For: 1.2.3.4
X_Forwarded-Host: evil
x-forwarded_for: evil
X_REAL_IP: evil
Content_Length: 5
under_score: stays
X-Forwarded-Ssl: on
Upgrade: h2c
HTTP2-Settings: AAMAAABk
Trailer: T
C: 3

`)
	r, err := parse(t, text)
	if err != nil {
		t.Fatal(err)
	}
	got := string(r.AppendFields(nil, []byte(text), HopByHop|Managed, nil))
	if want := crlf("Host: x\nA: 1\nB: 2\nunder_score: stays\nTrailer: T\nC: 3\n"); got != want {
		t.Errorf("what goes on:\n%swant\n%s", got, want)
	}
	got = string(r.AppendFields(nil, []byte(text), HopByHop|SetOf(LookAlike), dropA{}))
	if want := crlf("Host: x\nB: 2\nunder_score: stays\nX-Forwarded-Ssl: on\nTrailer: T\nC: 3\n"); got != want {
		t.Errorf("what goes on:\n%swant\n%s", got, want)
	}
	// Host cannot be taken away.
	text = crlf("GET / HTTP/1.1\nHost: x\nConnection: host, a\nA: b\n\n")
	r, err = parse(t, text)
	if got := string(r.AppendFields(nil, []byte(text), HopByHop, nil)); err != nil || got != "Host: x\r\n" {
		t.Errorf("%v: %q", err, got)
	}
}

type dropA struct{}

func (dropA) Drops(name []byte) bool { return string(name) == "A" }

// What both take means the same to net/http; what only one takes is a difference
// that we want.
func TestRequestDifferential(t *testing.T) {
	const head = "POST /p HTTP/1.1\r\nHost: x\r\n"
	texts := []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.0\r\n\r\n", "GET /a%20b?c=d HTTP/1.1\r\nHost: x\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a.example/b HTTP/1.1\r\nHost: c\r\n\r\n",
		"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.2\r\nHost: x\r\n\r\n", "GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\nHost: x\n\n", "CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n",
	}
	names := []string{"Content-Length", "Transfer-Encoding", "Host", "Content-Length ", " Content-Length", "TE", "X", "X\x00", ""}
	values := []string{"5", "+5", "05", "0x5", "5, 5", "", "chunked", "CHUNKED", "gzip, chunked", "xchunked", "chunked\x00", "x", "a@b", "a b", "\x7f", "\xff"}
	for _, n := range names {
		for _, v := range values {
			texts = append(texts, head+n+": "+v+"\r\n\r\n", head+n+": "+v+"\r\n"+n+": "+v+"\r\n\r\n",
				head+"Content-Length: 5\r\n"+n+": "+v+"\r\n\r\n", head+"Transfer-Encoding: chunked\r\n"+n+": "+v+"\r\n\r\n",
				"POST / HTTP/1.0\r\n"+n+": "+v+"\r\n\r\n", head+n+": "+v+"\n\r\n")
		}
	}
	both, ours, theirs := 0, 0, 0
	for _, text := range texts {
		r, err := parse(t, text)
		q, errq := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		b := []byte(text)
		switch {
		case err == nil && errq == nil:
			both++
			n := q.ContentLength
			if string(r.MethodText.In(b)) != q.Method || string(r.Target.In(b)) != q.RequestURI || string(r.Host.In(b)) != q.Host || int64(r.Body()) != n || r.Close != q.Close {
				t.Errorf("%q: %q %q %q %d, net/http %q %q %q %d", text, r.MethodText.In(b), r.Target.In(b), r.Host.In(b), r.Body(), q.Method, q.RequestURI, q.Host, n)
			}
		case err == nil:
			ours++
			// We route bytes; net/http parses URLs, and takes no empty line in front.
			if !strings.Contains(text, "/%zz") && !strings.HasPrefix(text, "\r\n") {
				t.Errorf("%q: net/http alone refuses it: %v", text, errq)
			}
		case errq == nil:
			theirs++
			switch err {
			case ErrBareLF, ErrFold, ErrBoth, ErrCodingOld, ErrLengths, ErrTarget, ErrNotSupported, ErrConnect, ErrHost, ErrHosts:
			case ErrName: // which its server refuses later
				if !strings.Contains(text, "Content-Length :") {
					t.Errorf("%q: net/http takes it, we do not: %v", text, err)
				}
			case ErrCodings, ErrCoding, ErrCodingName: // HTTP/1.0, where net/http does not look
				if !strings.Contains(text, "HTTP/1.0") {
					t.Errorf("%q: net/http takes it, we do not: %v", text, err)
				}
			default:
				t.Errorf("%q: net/http takes it, we do not: %v", text, err)
			}
		}
	}
	if both < 50 || theirs < 20 {
		t.Errorf("%d taken by both, %d by us alone, %d by net/http alone: the cases test little", both, ours, theirs)
	}
}

func TestSplitHost(t *testing.T) {
	for _, c := range [][3]string{
		{"a", "a", ""}, {"a.", "a", ""}, {"a..", "a.", ""}, {"a.:80", "a", "80"}, {"a:", "a", ""}, {"[::1]", "[::1]", ""},
		{"[::1]:80", "[::1]", "80"}, {"", "", ""}, {":80", "", "80"}, {".", ".", ""},
	} {
		if n, p := SplitHost([]byte(c[0])); string(n) != c[1] || string(p) != c[2] {
			t.Errorf("%q is %q and %q", c[0], n, p)
		}
	}
}

var browser = []byte(crlf(`GET /search?q=load+balancer&hl=en HTTP/1.1
Host: www.example.org
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8
Accept-Language: en-US,en;q=0.5
Accept-Encoding: gzip, deflate, br
Connection: keep-alive
Cookie: session=0123456789abcdef0123456789abcdef; theme=dark
X-Forwarded-For: 198.51.100.7
Upgrade-Insecure-Requests: 1

`))

func TestRequestAllocs(t *testing.T) {
	var r Request
	out := make([]byte, 0, 4096)
	l := Limits{}
	r.Reset()
	if _, err := r.Parse(browser, &l); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		r.Reset()
		if ok, err := r.Parse(browser, &l); !ok || err != nil {
			t.Fatal(err)
		}
		out = r.AppendFields(out[:0], browser, HopByHop|Managed, nil)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRequest(b *testing.B) {
	var r Request
	l := Limits{}
	b.SetBytes(int64(len(browser)))
	b.ReportAllocs()
	for b.Loop() {
		r.Reset()
		if ok, err := r.Parse(browser, &l); !ok || err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add(browser, 7)
	f.Add([]byte("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), 1)
	f.Add([]byte("GET http://a/ HTTP/1.0\r\nConnection: a, b\r\nA:\r\n\r\n"), 3)
	f.Fuzz(func(t *testing.T, b []byte, step int) {
		var whole, parts Request
		whole.Reset()
		parts.Reset()
		ok, err := whole.Parse(b, &Limits{})
		step = max(1, step&0xff)
		for i := step; ; i += step {
			i = min(i, len(b))
			okp, errp := parts.Parse(b[:i], &Limits{})
			if okp || errp != nil || i == len(b) {
				if okp != ok || errp != err || parts.Size != whole.Size {
					t.Fatalf("at once %v, %v, in steps of %d %v, %v", ok, err, step, okp, errp)
				}
				break
			}
		}
		if err != nil || !ok {
			return
		}
		for i := range whole.Fields {
			if n := whole.Fields[i].Name(b); len(n) == 0 || bytes.ContainsAny(n, " \t\r\n:\x00") || bytes.ContainsAny(whole.Fields[i].Text(b), "\r\n\x00") {
				t.Fatalf("field %q: %q", n, whole.Fields[i].Text(b))
			}
		}
		// What goes on is read as the same again, and nothing hides in it.
		out := append([]byte("GET / HTTP/1.1\r\n"), whole.AppendFields(nil, b, HopByHop|Managed, nil)...)
		if whole.hosts == 0 {
			out = append(out, "Host: x\r\n"...)
		}
		out = append(out, "\r\n"...)
		again, err := parse(t, string(out))
		if err != nil || again.Size != len(out) || again.Body() != 0 {
			t.Fatalf("%q goes on as %q: %v", b, out, err)
		}
		if q, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(out))); err != nil || q.ContentLength != 0 {
			t.Fatalf("%q goes on as %q: net/http says %v", b, out, err)
		}
	})
}
