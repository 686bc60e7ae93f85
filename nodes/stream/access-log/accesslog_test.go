package accesslog

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lbgraph/lbgraph/io/stream"
	"github.com/lbgraph/lbgraph/nodes/nodetest"
	_ "github.com/lbgraph/lbgraph/nodes/stream/balance"
	_ "github.com/lbgraph/lbgraph/nodes/stream/listen"
	_ "github.com/lbgraph/lbgraph/nodes/stream/proxy"
)

func request(head string) *stream.Session {
	s := nodetest.Request(head)
	s.Begun = stream.Now()
	return s
}

// linesOf waits for n lines in a file, and answers them.
func linesOf(t testing.TB, path string, n int) (all []map[string]any) {
	t.Helper()
	nodetest.Eventually(t, func() error {
		b, _ := os.ReadFile(path)
		if k := strings.Count(string(b), "\n"); k < n {
			return fmt.Errorf("%d of %d lines", k, n)
		}
		all = nil
		for line := range strings.Lines(string(b)) {
			m := map[string]any{}
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			all = append(all, m)
		}
		return nil
	})
	return all
}

// The example writes a line of every tenth request.
func TestExample(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	addr := nodetest.HTTPBackend(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	r := nodetest.RunStreams(t, nodetest.Pool("", addr)+"stream \"s\" {\npath { main = [in, log, balance, proxy] }\n"+nodetest.Listen+nodetest.Example(t, "/var/log/lbgraph/access.log", file)+"node \"balance\" \"balance\" { pool = pool.web }\n}\n")
	p := r.Dial("in")
	for i := range 30 {
		if got := p.Ask(fmt.Sprintf("GET /%d HTTP/1.1\nHost: x\n\n", i)); got != "200 ok" {
			t.Fatalf("%q", got)
		}
	}
	all := linesOf(t, file, 3)
	if len(all) != 3 || r.Counter("log", "lines") != 3 || r.Counter("log", "lost") != 0 {
		t.Errorf("%d lines, %d counted, %d lost", len(all), r.Counter("log", "lines"), r.Counter("log", "lost"))
	}
	for i, m := range all {
		if m["path"] != fmt.Sprintf("/%d", 10*i+9) || m["status"] != 200.0 || m["backend"] != addr || m["route"] != "balance" || m["node"] != "proxy" {
			t.Errorf("%v", m)
		}
	}
}

func TestWrongArguments(t *testing.T) {
	nodetest.WrongArguments(t, "access-log", "", []string{"file = \"-\"\nsample = 1\nbuffer = 1", "file = \"a.log\""}, []nodetest.Wrong{
		{Argument: "file", Text: "file = \"\"", Told: "name one"},
		{Argument: "sample", Text: "sample = 0", Told: "1"},
		{Argument: "buffer", Text: "buffer = 1000001", Told: "1000000"},
	})
}

// All that the record has, and nothing that it has not.
func TestRecord(t *testing.T) {
	s := request("GET /a\"\\?b HTTP/1.1\nHost: H.example:80\n\n")
	s.Client.ServerName = "h.example"
	s.Record = stream.Record{Begun: 5e9, Queued: 1500, Connected: 2_345_678, FirstByte: 0, Status: 502, In: 3, Out: 4, Tries: 2,
		Node: "out", Reason: "closed_early", Err: errors.New("a \"cause\"\n"), Route: "pick", ID: "7"}
	s.Backend = &stream.Backend{Addr: netip.MustParseAddrPort("[2001:db8::1]:80")}
	s.Upgraded = true
	wall := time.Date(2024, 2, 29, 23, 59, 59, 0, time.FixedZone("", 3600))
	got := string(appendRecord(nil, s, wall, 7_500_000_000))
	want := `{"time":"2024-02-29T22:59:56.500Z","client":"198.51.100.7:40000","listener":"in","server_name":"h.example","protocol":"HTTP/1.1","host":"H.example:80","method":"GET","path":"/a\"\\?b",` +
		`"status":502,"bytes_in":3,"bytes_out":4,"backend":"[2001:db8::1]:80","route":"pick","tries":2,"queue_ms":0.001,"connect_ms":2.345,"first_byte_ms":0,"total_ms":2500,"node":"out","reason":"closed_early",` +
		`"error":"a \"cause\"\u000a","id":"7","upgraded":true}` + "\n"
	if got != want {
		t.Errorf("got  %swant %s", got, want)
	}
	c := nodetest.Connection(nil)
	c.Begun, c.Node = 5e9, "gate"
	got = string(appendRecord(nil, c, wall, 5e9))
	want = `{"time":"2024-02-29T22:59:59.000Z","client":"198.51.100.7:40000","listener":"in","bytes_in":0,"bytes_out":0,"tries":0,"total_ms":0,"node":"gate"}` + "\n"
	if got != want {
		t.Errorf("got  %swant %s", got, want)
	}
	// One whose head could not be read.
	c.Req = &stream.Request{Proto: 11}
	c.Status = 400
	if got := string(appendRecord(nil, c, wall, 5e9)); !strings.Contains(got, `"listener":"in","status":400,`) {
		t.Errorf("%s", got)
	}
}

// A file that takes nothing holds nobody up: lines are lost, and counted.
func TestLost(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // opens without a writer, too
	if err != nil {
		t.Fatal(err)
	}
	r := nodetest.NewStage(t, "access-log", func(c *Config) { c.File, c.Buffer = pipe, 100 })
	const n = 3000 // some 400 bytes each; a pipe takes 64 KiB
	for i := range n {
		s := request(fmt.Sprintf("GET /%d?%s HTTP/1.1\nHost: x\n\n", i, strings.Repeat("x", 200)))
		if r.Serve(s) != "next" {
			t.Fatal("it does not pass")
		}
		s.End()
	}
	lost := r.Counter("lost")
	if lost == 0 || r.Gauge("waiting") == 0 {
		t.Errorf("%d lost, %v wait", lost, r.Gauge("waiting"))
	}
	go func() {
		b := make([]byte, 1<<16)
		for {
			if _, err := reader.Read(b); err != nil {
				return
			}
		}
	}()
	nodetest.Eventually(t, func() error {
		if sum := r.Counter("lines") + r.Counter("lost"); sum != n {
			return fmt.Errorf("%d of %d lines are accounted for", sum, n)
		}
		return nil
	})
	if r.Counter("lost") != lost {
		t.Error("a line is lost without need")
	}
	_ = r.Node.(*logger).Close()
	_ = reader.Close()
}

// A pipe that nobody reads is told of at once; one whose reader stopped holds a stop up
// for a moment only, and what was to be written counts as lost.
func TestStuck(t *testing.T) {
	t.Parallel() // it waits most of its time
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	r := nodetest.NewStage(t, "access-log", func(c *Config) { c.File = filepath.Join(t.TempDir(), "log") })
	if _, err := newLogger(Config{File: pipe, Sample: 1, Buffer: 1}, r.Env); err == nil {
		t.Error("a pipe without a reader is taken")
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	r = nodetest.NewStage(t, "access-log", func(c *Config) { c.File, c.Buffer = pipe, 1000 })
	const n = 1500
	for range n {
		s := request("GET /" + strings.Repeat("x", 200) + " HTTP/1.1\nHost: x\n\n")
		r.Serve(s)
		s.End()
	}
	closed := make(chan error)
	go func() { closed <- r.Node.(*logger).Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a stop waits for a reader that does not read")
	}
	// Nobody ever reads on: the writer ends all the same.
	nodetest.Eventually(t, func() error {
		if sum := r.Counter("lines") + r.Counter("lost"); sum != n || r.Counter("lost") < n/2 {
			return fmt.Errorf("%d of %d lines are accounted for, %d lost", sum, n, r.Counter("lost"))
		}
		return nil
	})
}

// What a terminal might obey does not come to it as it is.
func TestTerminal(t *testing.T) {
	for in, want := range map[string]string{
		"\x1b[2J": `"\u001b[2J"`, "\u009b2J": `"\u009b2J"`, "\x7f\r\n\x00": `"\u007f\u000d\u000a\u0000"`, "\x9b2J": "\"\ufffd2J\"", "é\u00a0": "\"é\u00a0\"", `"\`: `"\"\\"`,
	} {
		if got := string(appendString(nil, []byte(in))); got != want {
			t.Errorf("%q is written %s, want %s", in, got, want)
		}
	}
}

// A reload that changes nothing goes on with what waits; one that does writes it first.
// Sessions that end later have their line where the new configuration wants it.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	r := nodetest.NewStage(t, "access-log", func(c *Config) { c.File = one })
	early := request("GET /early HTTP/1.1\nHost: x\n\n")
	r.Serve(early)
	for i := range 3 {
		nodetest.Reload(r, func(c *Config) { c.File = one })
		s := request(fmt.Sprintf("GET /%d HTTP/1.1\nHost: x\n\n", i))
		r.Serve(s)
		s.End()
	}
	early.End()
	if all := linesOf(t, one, 4); all[3]["path"] != "/early" {
		t.Errorf("%v", all)
	}
	late := request("GET /late HTTP/1.1\nHost: x\n\n")
	r.Serve(late)
	nodetest.Reload(r, func(c *Config) { c.File = two })
	s := request("GET /two HTTP/1.1\nHost: x\n\n")
	r.Serve(s)
	s.End()
	if all := linesOf(t, two, 1); all[0]["path"] != "/two" {
		t.Errorf("%v", all)
	}
	late.End()
	if all := linesOf(t, two, 2); all[1]["path"] != "/late" || r.Counter("lost") != 0 || len(linesOf(t, one, 4)) != 4 {
		t.Errorf("%v, %d lost", all, r.Counter("lost"))
	}
	// What was written when it closes is in the file.
	for range 500 {
		s := request("GET / HTTP/1.1\nHost: x\n\n")
		r.Serve(s)
		s.End()
	}
	_ = r.Node.(*logger).Close()
	if b, _ := os.ReadFile(two); strings.Count(string(b), "\n") != 502 {
		t.Errorf("%d lines", strings.Count(string(b), "\n"))
	}
	s = request("GET /later HTTP/1.1\nHost: x\n\n")
	r.Serve(s)
	if s.End(); r.Counter("lost") != 1 {
		t.Errorf("%d lost behind the end", r.Counter("lost"))
	}
}

// A file that was moved away is opened anew; what cannot be is told at once.
func TestMoved(t *testing.T) {
	t.Parallel() // it waits most of its time
	file := filepath.Join(t.TempDir(), "log")
	r := nodetest.NewStage(t, "access-log", func(c *Config) { c.File = file })
	write := func(path string) {
		s := request("GET " + path + " HTTP/1.1\nHost: x\n\n")
		r.Serve(s)
		s.End()
	}
	write("/1")
	linesOf(t, file, 1)
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, func() error {
		write("/2")
		if _, err := os.Stat(file); err != nil {
			time.Sleep(20 * time.Millisecond)
			return err
		}
		return nil
	})
	if all := linesOf(t, file, 1); all[0]["path"] != "/2" {
		t.Errorf("%v", all)
	}
	// Another file has taken its place, and nothing was missing at any moment.
	other := filepath.Join(filepath.Dir(file), "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, file); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, func() error {
		write("/3")
		if b, err := os.ReadFile(file); err != nil || len(b) == 0 {
			time.Sleep(20 * time.Millisecond)
			return fmt.Errorf("nothing comes to the other file: %v", err)
		}
		return nil
	})
	_ = r.Node.(*logger).Close()
	if _, err := newLogger(Config{File: filepath.Join(file, "below"), Sample: 1, Buffer: 1}, r.Env); err == nil {
		t.Error("a file that cannot be is none told of")
	}
}

// Whatever a client sends, its line is one line of JSON that says the same.
func FuzzRecord(f *testing.F) {
	f.Add("GET /\x01\" HTTP/1.1\nHost: x\n\n", "id\n", "\xff\xfe\u2028")
	f.Add("GET http://[::1]/\xc3\x28 HTTP/1.0\n\n", "", "\\u0000\x7f")
	f.Fuzz(func(t *testing.T, head, id, cause string) {
		s := nodetest.Request(head)
		if s == nil {
			s = nodetest.Connection(nil)
		}
		s.ID, s.Err, s.Reason = id, errors.New(cause), cause
		line := appendRecord(nil, s, time.Unix(0, 0), 0)
		m := map[string]any{}
		if err := json.Unmarshal(line, &m); err != nil || strings.Count(string(line), "\n") != 1 || !utf8.Valid(line) {
			t.Fatalf("%q: %v", line, err)
		}
		if got := m["error"]; utf8.ValidString(cause) && got != cause || id != "" && utf8.ValidString(id) && m["id"] != id {
			t.Fatalf("%q is %q, %q is %q", cause, got, id, m["id"])
		}
		if s.Req != nil {
			if path := string(s.Req.Target.In(s.Req.Buf)); utf8.ValidString(path) && m["path"] != path {
				t.Fatalf("%q is %q", path, m["path"])
			}
		}
	})
}

// BenchmarkRecord reports nanoseconds a line, without writing it.
func BenchmarkRecord(b *testing.B) {
	s := request("GET /a/b?c HTTP/1.1\nHost: www.example.org\n\n")
	s.Backend = &stream.Backend{Addr: netip.MustParseAddrPort("192.0.2.1:80")}
	s.Node, s.Route, s.ID = "out", "pick", "0123456789abcdef"
	now := time.Now()
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = appendRecord(buf[:0], s, now, stream.Now())
	}
}
