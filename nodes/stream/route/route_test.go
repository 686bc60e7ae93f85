package route

import (
	"crypto/tls"
	"net"
	"testing"
	"time"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"/": "/", "": "/", "/a": "/a", "/a/": "/a/", "//a//b": "/a/b", "/a/./b": "/a/b", "/a/../b": "/b", "/../../b": "/b", "/a/..": "/", "/a/b/..": "/a/",
		"/a/.": "/a/", "/%61dmin": "/admin", "/%2e%2e/b": "/b", "/a%2Fb": "/a%2Fb", "/a%": "/a%", "/a%zz": "/a%zz", "/a%2": "/a%2", "/%7Eu": "/~u", "/.a": "/.a", "/a%2e/": "/a./",
	} {
		if got := string(clean([]byte(in), nil)); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
		if isClean([]byte(in)) && in != want {
			t.Errorf("%q passes for clean", in)
		}
	}
}

func TestHosts(t *testing.T) {
	all := hosts([]string{"A.Example.", "*.b.example", "[::1]"})
	for h, want := range map[string]bool{
		"a.example": true, "A.EXAMPLE": true, "x.a.example": false, "b.example": false, "x.b.example": true, "x.y.B.example": true, ".b.example": false,
		"xb.example": false, "[::1]": true, "": false, "a.examplE": true, "a.exampl\x05": false,
	} {
		if anyHost(all, []byte(h)) != want {
			t.Errorf("%q: %v", h, !want)
		}
	}
}

func TestUnder(t *testing.T) {
	for _, c := range []struct {
		path, prefix string
		want         bool
	}{
		{"/api", "/api", true}, {"/api/", "/api", true}, {"/api/v1", "/api", true}, {"/apis", "/api", false}, {"/ap", "/api", false},
		{"/", "/", true}, {"/x", "/", true}, {"/api/v1", "/api/", true}, {"/api", "/api/", false},
	} {
		if under([]byte(c.path), c.prefix) != c.want {
			t.Errorf("%q under %q: %v", c.path, c.prefix, !c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []Config{
		{}, {Rules: []Rule{{Name: "no_route"}}}, {Rules: []Rule{{Name: "a", Hosts: []string{"a:80"}}}}, {Rules: []Rule{{Name: "a", Hosts: []string{"*"}}}},
		{Rules: []Rule{{Name: "a", Names: []string{"a.*.b"}}}}, {Rules: []Rule{{Name: "a", Paths: []string{"api"}}}}, {Rules: []Rule{{Name: "a", Methods: []string{"G T"}}}},
		{Rules: []Rule{{Name: "a", Fields: map[string]string{"a b": "c"}}}},
	} {
		if check(c) == nil {
			t.Errorf("%+v passes", c)
		}
	}
	if err := check(Config{Rules: []Rule{{Name: "a", Hosts: []string{"*.a.example", "[::1]"}, Paths: []string{"/"}}}}); err != nil {
		t.Error(err)
	}
}

// hello is what crypto/tls sends first.
func hello(t testing.TB, name string) []byte {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { _ = tls.Client(a, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake() }()
	_ = b.SetDeadline(time.Now().Add(time.Second))
	buf := make([]byte, 8192)
	n, err := b.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

func TestServerName(t *testing.T) {
	for _, name := range []string{"www.example.org", ""} {
		b := hello(t, name)
		got, complete, err := serverName(append(b, "more"...))
		if got != name || !complete || err != nil {
			t.Errorf("%q, %v, %v", got, complete, err)
		}
		for i := range b {
			if _, complete, err := serverName(b[:i]); complete || err != nil {
				t.Fatalf("%d bytes: %v, %v", i, complete, err)
			}
		}
		// In two records.
		n := len(b) - 5
		parts := append([]byte{22, 3, 1, 0, 50}, b[5:55]...)
		parts = append(append(parts, 22, 3, 1, byte((n-50)>>8), byte(n-50)), b[55:]...)
		if got, complete, err := serverName(parts); got != name || !complete || err != nil {
			t.Errorf("in two records: %q, %v, %v", got, complete, err)
		}
	}
	for _, b := range []string{"GET / HTTP/1.1\r\n", "\x16\x02", "\x16\x03\x01\x00\x00", "\x16\x03\x01\xff\xff", "\x16\x03\x01\x00\x04\x02\x00\x00\x00", "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"} {
		if _, _, err := serverName([]byte(b)); err == nil {
			t.Errorf("%q passes", b)
		}
	}
}

func FuzzServerName(f *testing.F) {
	f.Add(hello(f, "a.example"))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, complete, err := serverName(b)
		if name != "" && (!complete || err != nil) {
			t.Fatal(name, complete, err)
		}
	})
}

func FuzzClean(f *testing.F) {
	f.Add([]byte("/a/%2e%2e//b/./c%zz/"))
	f.Fuzz(func(t *testing.T, p []byte) {
		once := clean(p, nil)
		if len(once) == 0 || once[0] != '/' {
			t.Fatalf("%q is %q", p, once)
		}
	})
}
