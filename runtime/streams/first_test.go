package streams_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// named is a backend of net/http that answers with its name.
func named(t testing.TB, name string) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, name)
	}))
	t.Cleanup(s.Close)
	return s
}

func addrOf(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }

func TestFirst(t *testing.T) {
	t.Parallel() // it waits most of its time
	a, b := named(t, "a"), named(t, "b")
	r := run(t, simple("", addrOf(a), addrOf(b)))
	count := map[string]int{}
	for range 100 {
		res, err := http.Get("http://" + r.addr("in") + "/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res.Status, err)
		}
		count[string(body)]++
	}
	if count["a"] != 50 || count["b"] != 50 {
		t.Errorf("%v", count)
	}
	r.quiet()
	if n := r.counter("out", "connections"); n != 2 {
		t.Errorf("%d connections to backends", n)
	}
	if err := r.stop(5 * time.Second); err != nil {
		t.Error(err)
	}
}

const tcpListen = "node \"listen\" \"in\" {\n address = \"127.0.0.1:0\"\n protocol = \"tcp\"\n}\n"

func TestTCP(t *testing.T) {
	s := serve(t, func(c *peer) {
		c.send("hello ")
		text := c.rest()
		c.send("you said " + text)
	})
	r := run(t, simple(tcpListen, s.addr()))
	c := dial(t, r.addr("in"))
	if got := c.read(6); got != "hello " {
		t.Fatalf("%q", got)
	}
	c.send("good bye")
	_ = c.Conn.(interface{ CloseWrite() error }).CloseWrite()
	if got := c.rest(); got != "you said good bye" {
		t.Errorf("%q", got)
	}
	r.quiet()
}
