//go:build !race

// The race detector empties pools at random.

package streams_test

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"testing"
)

// parrot is a backend that allocates nothing: it answers what ends with an empty line.
func parrot(t testing.TB, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	reply := []byte(answer)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b, n := make([]byte, 4096), 0
				for {
					k, err := c.Read(b[n:])
					if err != nil {
						return
					}
					if n += k; bytes.HasSuffix(b[:n], []byte("\r\n\r\n")) {
						n = 0
						if _, err := c.Write(reply); err != nil {
							return
						}
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// asker answers a function that sends request and reads an answer of so many bytes.
func asker(t testing.TB, addr, request string, size int) func() {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	q, b := []byte(request), make([]byte, size)
	return func() {
		if _, err := c.Write(q); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
	}
}

const small = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello"

// A request over connections that stand allocates nothing, through all that a graph
// of requests usually has.
func TestRequestAllocatesNothing(t *testing.T) {
	at := parrot(t, small)
	for name, text := range map[string]string{
		"plain":               simple("", at),
		"least connections":   simple("node \"balance\" \"pick\" {\n pool = pool.web\n algorithm = \"least-connections\"\n}\n", at),
		"admission and hosts": stream("main = [in, gate, hosts.a, pick, out]", in("")+"node \"admit\" \"gate\" {}\nnode \"route\" \"hosts\" {\n rule \"a\" { host = [\"a.example\"] }\n}\n"+pick, at),
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, text)
			ask := asker(t, r.addr("in"), "GET /x HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\nUser-Agent: test\r\n\r\n", len(small))
			for range 20 {
				ask() // connections, pools
			}
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection empties the pools
			if n := testing.AllocsPerRun(500, ask); n >= 1 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

func BenchmarkRequest(b *testing.B) {
	r := run(b, simple("", parrot(b, small)))
	ask := asker(b, r.addr("in"), "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n", len(small))
	b.ReportAllocs()
	for b.Loop() {
		ask()
	}
}

// An idle connection costs no more than 16 KiB: buffers are given back. What its client
// in this test costs is counted with it.
func TestIdleConnectionsAreSmall(t *testing.T) {
	const most, n = 16 << 10, 2000
	r := run(t, simple("", parrot(t, small)))
	request := "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n"
	asker(t, r.addr("in"), request, len(small))()
	used := func() uint64 {
		runtime.GC()
		runtime.GC() // empties the pools, too
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := used()
	for range n {
		asker(t, r.addr("in"), request, len(small))()
	}
	if each := (int64(used()) - int64(before)) / n; each > most {
		t.Errorf("%d bytes for each idle connection", each)
	} else {
		t.Logf("%d bytes for each of %d idle connections", each, n)
	}
	if c := r.engine.Stats()[0].Listeners[0].Connections; c < n {
		t.Errorf("%d connections are open", c)
	}
}
