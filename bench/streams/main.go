// Streams measures what a request costs the stream plane, beside nginx and haproxy in
// the same run: `make bench-streams`. A round has each of the three serve the same load
// for a while, one after the other; a figure is the proxy's own CPU time by requests (all
// its processes and threads), and a ratio the median over the rounds of lbgraph's figure
// by nginx's of the same round. Client (wrk), proxy and backend (nginx) share the cores, so
// requests a second say how busy the machine was and little else.
//
//	streams [-rounds N] [-time D] [-only REGEXP] [-lbgraph FILE] [-congestion NAME]
//
// Everything listens on 127.0.0.1 of a network namespace of its own, in which TCP has the
// congestion control of -congestion: one that paces, like bbr, sets a timer for every
// piece that is sent, which then is most of what is measured. A namespace needs root;
// -congestion= does without, and takes the machine's. nginx with its stream module,
// haproxy, wrk and openssl have to be in the path.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/bench/cputime"
)

var (
	rounds  = flag.Int("rounds", 7, "rounds of each scenario")
	period  = flag.Duration("time", 3*time.Second, "time of one load")
	only    = flag.String("only", "", "scenarios whose name matches this; idle is that of connections without requests")
	binary  = flag.String("lbgraph", "bin/lbgraph", "the binary to measure")
	idle    = flag.Int("idle", 6000, "idle connections whose memory is measured")
	control = flag.String("congestion", "cubic", "TCP's congestion control, the kernel's default unless given, in a namespace that needs root; empty is the machine's")
	threads = flag.Int("threads", runtime.NumCPU(), "workers of nginx, threads of haproxy, GOMAXPROCS of lbgraph")
)

func main() {
	flag.Parse()
	if *control != "" {
		if err := isolate(*control); err != nil {
			fmt.Fprintln(os.Stderr, "streams:", err)
			os.Exit(1)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "streams:", err)
		stop()
		os.Exit(1)
	}
}

const (
	congestion = "/proc/sys/net/ipv4/tcp_congestion_control"
	allowed    = "/proc/sys/net/ipv4/tcp_allowed_congestion_control" // to other namespaces than the first
	available  = "/proc/sys/net/ipv4/tcp_available_congestion_control"
)

// isolate begins anew in a network namespace with that congestion control. It returns
// only if it could not.
func isolate(name string) error {
	runtime.LockOSThread() // the namespace is the thread's, which exec makes the only one
	restrict, err := allow(name)
	if err != nil {
		return err
	}
	defer restrict()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("making a network namespace: %w: run as root, or with -congestion=", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("loopback of the network namespace: %w", err)
	}
	if err := os.WriteFile(congestion, []byte(name), 0o644); err != nil {
		return fmt.Errorf("congestion control %q: %w: sysctl net.ipv4.tcp_available_congestion_control lists what there is", name, err)
	}
	restrict()
	return unix.Exec("/proc/self/exe", append(os.Args, "-congestion="), os.Environ())
}

// allow makes a congestion control one that other namespaces may have, until restrict is
// called: what has it by then keeps it.
func allow(name string) (restrict func(), err error) {
	list, err := os.ReadFile(allowed)
	if err != nil || slices.Contains(strings.Fields(string(list)), name) {
		return func() {}, nil // isolate tells what is wrong, if anything is
	}
	if available, err := os.ReadFile(available); err != nil || !slices.Contains(strings.Fields(string(available)), name) {
		return func() {}, nil
	}
	if err := os.WriteFile(allowed, []byte(strings.TrimSpace(string(list))+" "+name), 0o644); err != nil {
		return nil, fmt.Errorf("congestion control %q is restricted, and %s cannot be written: %w: run as root, or with -congestion=", name, allowed, err)
	}
	return sync.OnceFunc(func() {
		done := make(chan error)
		// The file is that of the first namespace, in which all threads but this one are.
		go func() { done <- os.WriteFile(allowed, list, 0o644) }()
		if err := <-done; err != nil {
			fmt.Fprintf(os.Stderr, "streams: %s is not what it was: %v\n", allowed, err)
		}
	}), nil
}

// maxIdle keeps a proxy below 20 000 descriptors.
const maxIdle = 7000

// A scenario is one kind of load.
type scenario struct {
	name        string
	target      float64 // ratio to nginx that is wanted
	port        int     // offset of the proxy's port, see ports
	scheme      string
	path        string
	connections int
	close       bool // a connection for every request
}

// Ports of each proxy, from its base.
const (
	plain = iota
	secure
	tunnel
	ports
)

var scenarios = []scenario{
	{"keep-alive, small", 1.3, plain, "http", "/small", 64, false},
	{"1000 connections, small", 1.2, plain, "http", "/small", 1000, false},
	{"a connection a request", 1.7, plain, "http", "/small", 64, true},
	{"keep-alive, 1 MB", 0.6, plain, "http", "/big", 16, false},
	{"TLS, small", 1.2, secure, "https", "/small", 64, false},
	{"TCP, small", 1.7, tunnel, "http", "/small", 64, false},
	{"TCP, 1 MB", 0.7, tunnel, "http", "/big", 16, false},
}

func run(ctx context.Context) error {
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	for _, tool := range []string{"nginx", "haproxy", "wrk", "openssl", *binary} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is missing: apt-get install nginx libnginx-mod-stream haproxy wrk openssl, and make build", tool)
		}
	}
	if *period < time.Second || *period%time.Second != 0 {
		return fmt.Errorf("-time %v: wrk counts in whole seconds, from 1s on", *period)
	}
	if *idle > maxIdle {
		return fmt.Errorf("-idle is at most %d: a proxy needs two descriptors for each connection", maxIdle)
	}
	dir, err := os.MkdirTemp("", "lbgraph-streams")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l := &lab{dir: dir}
	defer l.stop()
	if err := l.start(ctx); err != nil {
		return err
	}
	if name, err := os.ReadFile(congestion); err == nil {
		fmt.Printf("congestion control: %s\n", bytes.TrimSpace(name))
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "load\tto nginx\twanted\thaproxy to nginx\tµs a request: lbgraph\tnginx\thaproxy\trequests/s: lbgraph\tnginx\thaproxy\n")
	for _, s := range scenarios {
		if !match.MatchString(s.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s: %d rounds\n", s.name, *rounds)
		r, err := l.measure(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(w, "%s\t%.2f\t≤ %.1f\t%.2f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%.0f\n", s.name, ratio(r, lbgraph), s.target, ratio(r, haproxy),
			cost(r, lbgraph), cost(r, nginx), cost(r, haproxy), rate(r, lbgraph), rate(r, nginx), rate(r, haproxy))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if !match.MatchString("idle") {
		return nil
	}
	// What earlier loads have left in the processes would be taken for these connections'.
	l.stop()
	if err := l.start(ctx); err != nil {
		return err
	}
	fmt.Printf("\nmemory of %d idle connections, each after one request, KiB a connection\n", *idle)
	for p := range proxies {
		for _, s := range []struct {
			name string
			port int
		}{{"HTTP", plain}, {"TCP", tunnel}} {
			k, err := l.idle(ctx, p, s.port)
			if err != nil {
				return fmt.Errorf("idle, %s: %w", names[p], err)
			}
			fmt.Printf("%-8s %-5s %.1f\n", names[p], s.name, k)
		}
	}
	return nil
}

// The proxies.
const (
	lbgraph = iota
	nginx
	haproxy
	proxies
)

var names = [proxies]string{"lbgraph", "nginx", "haproxy"}

// A round is what each proxy did in one round.
type round [proxies]struct {
	cpu      time.Duration
	requests int64
	time     time.Duration
}

func (r *round) cost(p int) float64 {
	return float64(r[p].cpu.Nanoseconds()) / 1e3 / float64(r[p].requests)
}

func ratio(all []round, p int) float64 {
	return median(all, func(r *round) float64 { return r.cost(p) / r.cost(nginx) })
}
func cost(all []round, p int) float64 {
	return median(all, func(r *round) float64 { return r.cost(p) })
}
func rate(all []round, p int) float64 {
	return median(all, func(r *round) float64 { return float64(r[p].requests) / r[p].time.Seconds() })
}

func median(all []round, f func(*round) float64) float64 {
	v := make([]float64, len(all))
	for i := range all {
		v[i] = f(&all[i])
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// lab is the processes that run.
type lab struct {
	dir     string
	base    [proxies]int // first port
	backend int
	running []*exec.Cmd
	of      [proxies]*exec.Cmd
}

// start starts the backend and the proxies, and waits until they serve.
func (l *lab) start(ctx context.Context) error {
	free, err := freePorts(1 + int(proxies)*ports)
	if err != nil {
		return err
	}
	l.backend = free[0]
	for p := range l.base {
		l.base[p] = free[1+p*ports]
	}
	port := func(p, k int) string { return "127.0.0.1:" + strconv.Itoa(l.base[p]+k) }
	backend := "127.0.0.1:" + strconv.Itoa(l.backend)
	cert, key := filepath.Join(l.dir, "cert.pem"), filepath.Join(l.dir, "key.pem")
	if out, err := exec.CommandContext(ctx, "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
		"-subj", "/CN=localhost", "-keyout", key, "-out", cert).CombinedOutput(); err != nil {
		return fmt.Errorf("openssl: %w: %s", err, out)
	}
	pair, err := concat(cert, key)
	if err != nil {
		return err
	}
	common := fmt.Sprintf("daemon off; error_log %s/error.log; pid %s/%%s.pid; events { worker_connections 18000; }\n", l.dir, l.dir)
	if _, err := os.Stat("/usr/lib/nginx/modules/ngx_stream_module.so"); err == nil {
		common = "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n" + common
	}
	temp := func(name string) string {
		var b strings.Builder
		for _, k := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			fmt.Fprintf(&b, "%s_temp_path %s/%s-%s;\n", k, l.dir, name, k)
		}
		return b.String()
	}
	web := filepath.Join(l.dir, "web")
	files := map[string]string{
		"web/big": strings.Repeat("0123456789abcdef", 1<<16),
		"backend.conf": fmt.Sprintf(common, "backend") + `worker_processes 1;
http { access_log off; ` + temp("backend") + ` sendfile off; output_buffers 2 512k; keepalive_requests 1000000000; keepalive_timeout 1h; server_tokens off;
server { listen ` + backend + ` backlog=4096; root ` + web + `; location = /small { default_type text/plain; return 200 "hello from the backend\n"; } } }
`,
		"nginx.conf": fmt.Sprintf(common, "nginx") + `worker_processes ` + strconv.Itoa(*threads) + `;
http { access_log off; ` + temp("nginx") + ` keepalive_requests 1000000000; keepalive_timeout 1h; tcp_nodelay on;
upstream web { server ` + backend + `; keepalive 1024; keepalive_requests 1000000000; }
proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; proxy_set_header X-Forwarded-For $remote_addr;
proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Real-IP $remote_addr;
server { listen ` + port(nginx, plain) + ` backlog=4096; location / { proxy_pass http://web; } }
server { listen ` + port(nginx, secure) + ` ssl backlog=4096; ssl_certificate ` + cert + `; ssl_certificate_key ` + key + `; ssl_protocols TLSv1.3; location / { proxy_pass http://web; } }
}
stream { server { listen ` + port(nginx, tunnel) + ` backlog=4096; proxy_pass ` + backend + `; proxy_timeout 1h; } }
`,
		"haproxy.cfg": `global
  nbthread ` + strconv.Itoa(*threads) + `
  maxconn 7200
  ssl-default-bind-options ssl-min-ver TLSv1.3
  tune.bufsize 16384
defaults
  maxconn 7200
  mode http
  timeout connect 7s
  timeout client 1h
  timeout server 1h
  timeout http-keep-alive 1h
  http-reuse always
  option splice-auto
  retries 2
frontend plain
  option forwardfor
  bind ` + port(haproxy, plain) + ` backlog 4096
  http-request set-header X-Forwarded-Proto http
  default_backend web
frontend secure
  option forwardfor
  bind ` + port(haproxy, secure) + ` backlog 4096 ssl crt ` + pair + `
  http-request set-header X-Forwarded-Proto https
  default_backend web
backend web
  server one ` + backend + `
listen tunnel
  mode tcp
  bind ` + port(haproxy, tunnel) + ` backlog 4096
  server one ` + backend + `
`,
		"lb.hcl": `pool "web" {
  backend "one" {
    address = "127.0.0.1"
    port    = ` + strconv.Itoa(l.backend) + `
  }
}
stream "plain" {
  path { main = [accept, pick, out] }
  node "listen" "accept" { address = "` + port(lbgraph, plain) + `" }
  node "balance" "pick" { pool = pool.web }
  node "proxy" "out" { keepalive = 1024 }
}
stream "secure" {
  path { main = [accept, tls, pick, out] }
  node "listen" "accept" {
    address  = "` + port(lbgraph, secure) + `"
    protocol = "tcp"
  }
  node "tls" "tls" {
    certificate {
      cert = "` + cert + `"
      key  = "` + key + `"
    }
    alpn = ["http/1.1"]
  }
  node "balance" "pick" { pool = pool.web }
  node "proxy" "out" { keepalive = 1024 }
}
stream "tunnel" {
  path { main = [accept, pick, proxy] }
  node "listen" "accept" {
    address  = "` + port(lbgraph, tunnel) + `"
    protocol = "tcp"
  }
  node "balance" "pick" { pool = pool.web }
}
`,
	}
	if err := os.MkdirAll(web, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(l.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	// The backend's workers leave root, and have to reach the file.
	for _, d := range []string{l.dir, web} {
		if err := os.Chmod(d, 0o755); err != nil {
			return err
		}
	}
	if _, err := l.spawn("nginx", "-c", filepath.Join(l.dir, "backend.conf")); err != nil {
		return err
	}
	for p, args := range [proxies][]string{
		lbgraph: {*binary, "run", filepath.Join(l.dir, "lb.hcl")},
		nginx:   {"nginx", "-c", filepath.Join(l.dir, "nginx.conf")},
		haproxy: {"haproxy", "-f", filepath.Join(l.dir, "haproxy.cfg")},
	} {
		if l.of[p], err = l.spawn(args[0], args[1:]...); err != nil {
			return err
		}
		for k := range ports {
			if err := reachable(ctx, port(p, k)); err != nil {
				return fmt.Errorf("%s does not listen: %w\n%s", names[p], err, l.of[p].Stderr)
			}
		}
	}
	return reachable(ctx, backend)
}

func (l *lab) spawn(name string, args ...string) (*exec.Cmd, error) {
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(*threads))
	c.Stderr = new(bytes.Buffer)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := c.Start(); err != nil {
		return nil, err
	}
	l.running = append(l.running, c)
	return c, nil
}

// stop ends all processes and waits for them.
func (l *lab) stop() {
	for _, c := range l.running {
		_ = c.Process.Signal(syscall.SIGTERM)
	}
	for _, c := range l.running {
		t := time.AfterFunc(10*time.Second, func() { _ = c.Process.Kill() })
		_ = c.Wait()
		t.Stop()
	}
	l.running = nil
}

// measure has all proxies serve one load, for some rounds.
func (l *lab) measure(ctx context.Context, s scenario) (all []round, err error) {
	for n := range *rounds + 1 {
		var r round
		for i := range int(proxies) {
			p := (i + n) % int(proxies) // whoever is first is another one each time
			d := *period
			if n == 0 {
				d = time.Second // connections and caches
			}
			before, err := l.cpu(p)
			if err != nil {
				return nil, err
			}
			begun := time.Now()
			if r[p].requests, err = wrk(ctx, s, l.base[p]+s.port, d); err != nil {
				return nil, fmt.Errorf("%s: %w", names[p], err)
			}
			r[p].time = time.Since(begun)
			after, err := l.cpu(p)
			if err != nil {
				return nil, err
			}
			r[p].cpu = after - before
		}
		if n > 0 {
			all = append(all, r)
		}
	}
	return all, nil
}

var (
	total  = regexp.MustCompile(`(?m)^\s+(\d+) requests in `)
	faults = regexp.MustCompile(`(?m)^\s*(Socket errors|Non-2xx).*$`)
)

// wrk has wrk send a load, and answers the number of requests that were answered.
func wrk(ctx context.Context, s scenario, port int, d time.Duration) (int64, error) {
	args := []string{"-t", "1", "-c", strconv.Itoa(s.connections), "-d", strconv.FormatFloat(max(1, d.Seconds()), 'f', 0, 64) + "s", "--timeout", "10s"}
	if s.close {
		args = append(args, "-H", "Connection: close")
	}
	out, err := exec.CommandContext(ctx, "wrk", append(args, fmt.Sprintf("%s://127.0.0.1:%d%s", s.scheme, port, s.path))...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("wrk: %w: %s", err, out)
	}
	return answered(string(out), s.close)
}

// answered reads wrk's report. wrk calls it a read error when a connection ends where a
// request's answer said it would, so those do not count in a load of such connections.
func answered(report string, closes bool) (int64, error) {
	m := total.FindStringSubmatch(report)
	if m == nil {
		return 0, fmt.Errorf("wrk says: %s", report)
	}
	if f := faults.FindString(report); f != "" && !(closes && regexp.MustCompile(`connect 0, read \d+, write 0, timeout 0`).MatchString(f)) {
		return 0, errors.New(strings.TrimSpace(f))
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err == nil && n == 0 {
		err = errors.New("no request was answered")
	}
	return n, err
}

// cpu answers the CPU time that a proxy has used, with its workers.
func (l *lab) cpu(p int) (sum time.Duration, err error) {
	for _, pid := range family(l.of[p].Process.Pid) {
		t, err := cputime.Process(pid)
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// family answers a process and its children.
func family(pid int) []int {
	all := []int{pid}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(t)
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				all = append(all, family(n)...)
			}
		}
	}
	return all
}

// idle answers by how much a proxy's memory grows with each idle connection, in KiB.
func (l *lab) idle(ctx context.Context, p, k int) (float64, error) {
	before, err := l.resident(p)
	if err != nil {
		return 0, err
	}
	conns := make([]net.Conn, 0, *idle)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
		time.Sleep(time.Second)
	}()
	buf := make([]byte, 4096)
	for range *idle {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.base[p]+k))
		if err != nil {
			return 0, err
		}
		conns = append(conns, c)
		if _, err := c.Write([]byte("GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
			return 0, err
		}
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := c.Read(buf); err != nil || !bytes.HasPrefix(buf[:n], []byte("HTTP/1.1 200")) {
			return 0, fmt.Errorf("no answer on connection %d: %q %v", len(conns), buf[:n], err)
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	time.Sleep(2 * time.Second)
	after, err := l.resident(p)
	return float64(after-before) / float64(*idle), err
}

// resident answers the memory of a proxy in KiB, shared pages in proportion.
func (l *lab) resident(p int) (sum int64, err error) {
	for _, pid := range family(l.of[p].Process.Pid) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		k, err := proportional(string(b))
		if err != nil {
			return 0, err
		}
		sum += k
	}
	return sum, nil
}

func proportional(rollup string) (int64, error) {
	for line := range strings.Lines(rollup) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, errors.New("the kernel tells no Pss")
}

func reachable(ctx context.Context, address string) error {
	for end := time.Now().Add(10 * time.Second); ; {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// freePorts answers n ports in a row that nobody listens on.
func freePorts(n int) ([]int, error) {
	for base := 21000; base < 32000; base += n {
		var open []net.Listener
		ports := make([]int, 0, n)
		for p := base; p < base+n; p++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
			if err != nil {
				break
			}
			open, ports = append(open, l), append(ports, p)
		}
		for _, l := range open {
			_ = l.Close()
		}
		if len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free ports on 127.0.0.1")
}

func concat(files ...string) (string, error) {
	var all []byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		all = append(all, b...)
	}
	name := files[0] + ".pair"
	return name, os.WriteFile(name, all, 0o600)
}
