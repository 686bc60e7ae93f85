package cmd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// planes is a file with a packet graph and a stream.
const planes = `health "get" { path = "/" }
pool "front" {
  health = health.get
  backend "f1" { address = "10.0.1.1" }
  backend "f2" { address = "10.0.1.2" }
}
pool "api" {
  backend "a1" {
    address = "10.0.2.1"
    port    = 8080
  }
}
pool "www" {
  backend "w1" {
    address = "10.0.2.2"
    port    = 8080
  }
}
vip "web" {
  address  = "203.0.113.80"
  protocol = "tcp"
  ports    = [80, 443]
  pool     = pool.front
}
graph "edge" {
  path {
    main      = [rx, parse, vip-classify, frag-pin, ct.hit, clamp, mtu, gre, tx]
    new_flow  = [ct.miss, maglev-select, clamp]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
stream "www" {
  path {
    main   = [in, tls, log, admit, hosts.api, api, out]
    www    = [hosts.www, www, out]
    plain  = [http, to-https]
    moved  = [hosts.old, moved]
    ok     = [hosts.alive, alive]
  }
  node "listen" "in" {
    address  = "0.0.0.0:443"
    protocol = "tcp"
  }
  node "listen" "http" { address = "0.0.0.0:80" }
  node "tls" "tls" {
    certificate {
      cert = "a.pem"
      key  = "a.key"
    }
  }
  node "access-log" "log" { file = "/dev/null" }
  node "route" "hosts" {
    rule "api" { host = ["api.example"] }
    rule "www" { host = ["www.example"] }
    rule "old" { host = ["old.example"] }
    rule "alive" { path = ["/healthz"] }
  }
  node "balance" "api" { pool = pool.api }
  node "balance" "www" { pool = pool.www }
  node "redirect" "moved" { to = "https://www.example{target}" }
  node "redirect" "to-https" { to = "https://{host}{target}" }
  node "respond" "alive" {}
  node "proxy" "out" {}
}
bgp {
  asn       = 65001
  router_id = "192.0.2.1"
  peer "tor" {
    address = "192.0.2.9"
    asn     = 65002
  }
}
reload {}
`

// TestDotOfBothPlanes: packets and streams are drawn side by side, and what reads the
// state hangs on it by dashed lines, which lead through neither.
func TestDotOfBothPlanes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "both.hcl")
	if err := os.WriteFile(path, []byte(planes), 0o600); err != nil {
		t.Fatal(err)
	}
	code, text, problem := run("dot", path)
	if code != 0 {
		t.Fatal(problem)
	}
	for _, reader := range []string{"www/api", "www/www", "edge/vip-classify", "edge/maglev-select", "edge/gre"} {
		if !strings.Contains(text, `  state -> "`+reader+`" [style=dashed`) {
			t.Errorf("%s does not hang on the state", reader)
		}
	}
	for _, line := range []string{
		"label=<<b>graph edge</b>>", "label=<<b>stream www</b>>", `"control health get" -> state [style=dashed`, `"control bgp bgp" -> state [style=dashed`, `"www/hosts" -> "www/api" [penwidth=2.6`,
		"answers</font><br/>503 no_backend", "closes</font><br/>handshake_failed", "pool api  1 backend<", "pool front  2 backends",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("the drawing lacks %s", line)
		}
	}
	program, err := exec.LookPath("dot")
	if err != nil {
		t.Skip("missing: dot (Debian's graphviz)")
	}
	c := exec.Command(program, "-Tplain")
	c.Stdin = strings.NewReader(text)
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	// node NAME X Y …, with Y upwards
	low, high, state := map[string]float64{}, map[string]float64{}, 0.0
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(strings.ReplaceAll(line, `"control `, `"control`))
		if len(f) < 4 || f[0] != "node" {
			continue
		}
		y, _ := strconv.ParseFloat(f[3], 64)
		if f[1] == "state" {
			state = y
		}
		if g, _, ok := strings.Cut(strings.Trim(f[1], `"`), "/"); ok {
			if _, had := low[g]; !had {
				low[g], high[g] = y, y
			}
			low[g], high[g] = min(low[g], y), max(high[g], y)
		}
	}
	if !(high["www"] < state && state < low["edge"]) {
		t.Errorf("streams lie from %v to %v, the state at %v, packets from %v to %v", low["www"], high["www"], state, low["edge"], high["edge"])
	}
}
