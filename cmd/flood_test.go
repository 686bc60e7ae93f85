package cmd_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lbgraph/lbgraph/cmd"
	"github.com/lbgraph/lbgraph/internal/flood"
)

// freePorts answers addresses on the loopback that nobody listens on.
func freePorts(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// listening waits until somebody listens on an address.
func listening(t *testing.T, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			c, err := net.Dial("tcp", a)
			if err == nil {
				_ = c.Close()
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
}

// background runs a command line until the function that it answers is called, which
// answers its exit code; and what it writes.
func background(t *testing.T, args ...string) (out *lines, end func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out = newLines()
	code := make(chan int, 1)
	go func() { code <- cmd.Execute(ctx, args, strings.NewReader(""), out, out) }()
	ended := false
	end = func() int {
		ended = true
		cancel()
		select {
		case c := <-code:
			return c
		case <-time.After(30 * time.Second):
			t.Fatalf("lbgraph %v does not end: %s", args, out)
			return -1
		}
	}
	t.Cleanup(func() {
		if !ended {
			end()
		}
	})
	return out, end
}

// TestDemoFlood: the flood and the backends of the command line: counts, who answered,
// errors and exit codes, as text and as JSON.
func TestDemoFlood(t *testing.T) {
	a := freePorts(t, 4)
	served, end := background(t, "demo", "backend", "--name", "web-1", "--http", a[0], "--tcp", a[1], "--verbose")
	background(t, "demo", "backend", "--http", a[2], "--status", "503")
	listening(t, a[0], a[1], a[2])
	flooded := func(code int, args string, words ...string) (out, problem string) {
		t.Helper()
		got, out, problem := run(append([]string{"demo", "flood"}, strings.Fields(args)...)...)
		if got != code {
			t.Errorf("flood %s: exit code %d, want %d\n%s%s", args, got, code, out, problem)
		}
		for _, w := range words {
			if !regexp.MustCompile(w).MatchString(out + problem) {
				t.Errorf("flood %s lacks %q:\n%s%s", args, w, out, problem)
			}
		}
		return out, problem
	}
	flooded(0, a[0]+" --requests 500", `(?m)^http://`+a[0]+` at `+a[0]+`, 10 connections, the next request when an answer is there: `,
		`(?m)^answered +500 +\d+\.\d/s$`, `(?m)^failed +0$`, `(?m)^latency, from sending`, `(?m)^ +50 % +\d+\.\d{3} ms$`, `(?m)^ +99\.99 % `, `(?m)^  web-1  500  100\.0 %$`)
	flooded(0, "tcp://"+a[1]+" -n 100 --rate 1000 -c 3 --per-request", `3 connections, 1000 requests a second`, `(?m)^connections +100 +opened$`, `(?m)^latency, from when a request was due`, `(?m)^  web-1  100  `)
	flooded(1, a[2]+" -n 20", `(?m)^  status 503  20  100\.0 %$`, `(?m)^lbgraph: 20 of 20 requests failed$`)
	flooded(3, a[3], `^lbgraph: nobody listens on `+a[3]+`: start a server`)
	flooded(2, "", `needs TARGET`)
	flooded(2, "ftp://x", `It can be http, https or tcp`)
	flooded(2, a[0]+" --rate -1", `the rate is -1`)
	flooded(2, a[0]+" -o yaml", `-o is "yaml"`)

	var r flood.Result
	out, problem := flooded(0, a[0]+" --duration 1200ms --rate 50 -o json")
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Answered != 60 || r.Rate != 50 || !r.Latency.FromDue || r.AnsweredBy["web-1"] != 60 || len(r.Latency.Percentiles) != 6 {
		t.Errorf("%v: %s", err, out)
	}
	// No terminal: a line a second, without anything that moves the cursor.
	if !regexp.MustCompile(`^( *\d+ %  \d+\.\d s  \d+ answered  \d+/s  0 failed\n)+$`).MatchString(problem) {
		t.Errorf("%q", problem)
	}
	if _, problem = flooded(0, a[0]+" --duration 1200ms --rate 50 --quiet"); problem != "" {
		t.Errorf("%q", problem)
	}

	// A line for each request and connection, a moment after its answer.
	requests, conns := 0, 0
	for end := time.Now().Add(20 * time.Second); requests != 620 || conns != 100; time.Sleep(10 * time.Millisecond) {
		requests, conns = strings.Count(served.String(), "  GET /  200  "), strings.Count(served.String(), "  TCP  1 lines  ")
		if time.Now().After(end) {
			t.Fatalf("%d requests and %d connections are told", requests, conns)
		}
	}
	if code := end(); code != 0 {
		t.Errorf("exit code %d: %s", code, served)
	}
}

// TestDemoBackendRefuses: what is most often typed wrong.
func TestDemoBackendRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for args, words := range map[string]string{
		"":                            "say where to listen, as in --http 8081",
		"--http localhost:8081":       `--http is "localhost:8081". Write a port, a range or an address with one`,
		"--http 8083-8081":            "Write a port, a range",
		"--http 0-10":                 "Write a port, a range",
		"--http 70000":                "Write a port, a range",
		"--http ::1:80":               "Write a port, a range",
		"--tcp 1-5000":                "more than 1000 ports",
		"--http 8081 --status 99":     "--status is 99. It can be 200 to 599",
		"--http 8081 --size -1":       "--size is -1",
		"--http 8081 --latency -1s":   "times from 0 on",
		"--http 192.0.2.250:1":        "this machine does not have the address",
		"--http " + l.Addr().String(): "the address is in use: end what listens there",
		"--tcp " + l.Addr().String():  "the address is in use",
	} {
		code, out, problem := run(append([]string{"demo", "backend"}, strings.Fields(args)...)...)
		want := 2
		if strings.Contains(words, "address is in use") || strings.Contains(words, "does not have") {
			want = 3
		}
		if code != want || !strings.Contains(problem, words) {
			t.Errorf("%q: exit code %d: %s%s", args, code, out, problem)
		}
	}
	if code, _, problem := run("demo", "backend", "--http", "8081", "--name", "two\nlines"); code != 2 || !strings.Contains(problem, "It is part of a line") {
		t.Errorf("exit code %d: %s", code, problem)
	}
	// Ranges, and both families.
	a := freePorts(t, 1)[0]
	_, port, _ := net.SplitHostPort(a)
	background(t, "demo", "backend", "--http", port+"-"+port, "--http", "[::1]:"+port)
	listening(t, a, "[::1]:"+port)
}

// TestRunStreamsRefuses: what a newcomer to streams most often has wrong: the error says
// what, and what to do.
func TestRunStreamsRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		args, words string
		code        int
	}{
		{"hosts.hcl -var address=" + l.Addr().String(), l.Addr().String() + `: .*address already in use: something else listens there \(ss -ltnp names it\)`, 3},
		{"hosts.hcl -var address=192.0.2.250:80", `this machine does not have the address`, 3},
		{"hosts.hcl -var address=8080", `Not an address with port`, 1},
		{"hosts.hcl -var api=localhost:8001", `"address" cannot be "localhost". Write an IPv4 or IPv6 address`, 1},
		{"hosts.hcl -var api=web", `"port" takes an integer, not the text "web"`, 1},
		{"hosts.hcl -var domian=example.org", `Did you mean "domain"\?`, 1},
		{"https.hcl", `tls: open www.crt: no such file or directory; a relative path begins where lbgraph was started`, 3},
		{"host.hcl", `No such file or directory. Check its name`, 1},
	} {
		args := strings.Fields(c.args)
		args[0] = "../examples/" + args[0]
		code, _, problem := run(append([]string{"run"}, args...)...)
		if code != c.code || !regexp.MustCompile(c.words).MatchString(problem) {
			t.Errorf("run %s: exit code %d: %s", c.args, code, problem)
		}
	}
}

// TestDemoFloodInterrupted: Ctrl-C ends the flood, which tells what it has seen, with
// exit code 0; and the backend.
func TestDemoFloodInterrupted(t *testing.T) {
	bin := build(t)
	a := freePorts(t, 1)[0]
	server := exec.Command(bin, "demo", "backend", "--http", a)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Kill() }()
	listening(t, a)
	c := exec.Command(bin, "demo", "flood", a, "--duration", "1h", "-o", "json")
	var out strings.Builder
	errs := newLines()
	c.Stdout, c.Stderr = &out, errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill() }()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(errs.String(), " answered"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it shows no progress: %s", errs)
		}
	}
	_ = c.Process.Signal(os.Interrupt)
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case err := <-done:
		var r flood.Result
		if bad := json.Unmarshal([]byte(out.String()), &r); err != nil || bad != nil || !r.Interrupted || r.Answered == 0 || r.Failed != 0 || r.Seconds > 60 {
			t.Errorf("%v, %v: %s%s", err, bad, &out, errs)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	_ = server.Process.Signal(syscall.SIGTERM)
	var e *exec.ExitError
	if err := server.Wait(); errors.As(err, &e) {
		t.Errorf("the backend ends with %v", err)
	}
}

// TestDemoFloodOnATerminal: there a bar is drawn in one line, shorter than 80 columns,
// and wiped in the end.
func TestDemoFloodOnATerminal(t *testing.T) {
	script, err := exec.LookPath("script")
	if err != nil {
		t.Skip("missing: script")
	}
	bin := build(t)
	a := freePorts(t, 1)[0]
	background(t, "demo", "backend", "--http", a)
	listening(t, a)
	c := exec.Command(script, "-qec", bin+" demo flood "+a+" --duration 500ms --rate 100", "/dev/null")
	c.Env = append(os.Environ(), "TERM=xterm")
	b, err := c.Output()
	bars, _, ok := strings.Cut(string(b), "http://"+a)
	if err != nil || !ok {
		t.Fatalf("%v: %q", err, b)
	}
	parts := strings.Split(bars, "\r\x1b[K")
	bar := regexp.MustCompile(`^\[#*\.*\] +\d+ %  \d\.\d s  \d+ answered  \d+/s  0 failed$`)
	drawn := 0
	for _, p := range parts {
		if p == "" {
			continue
		}
		drawn++
		if !bar.MatchString(p) || len(p) >= 80 {
			t.Errorf("%q", p)
		}
	}
	if drawn == 0 || !strings.HasSuffix(bars, "\r\x1b[K") {
		t.Errorf("%q", bars)
	}
}
