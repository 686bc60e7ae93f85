package all_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/conf"
	"github.com/lbgraph/lbgraph/graph/lang"
)

// What operators get when the file is silent. These values are promises: who changes
// one changes what running files mean.
func TestDefaults(t *testing.T) {
	pool, vip, edge := lang.PoolDefaults(), lang.VIPDefaults(), graph.GraphDefaults()
	blocks := map[string][]graph.Argument{
		"pool": graph.Arguments(conf.Document(&pool)), "vip": graph.Arguments(conf.Document(&vip)), "graph": graph.Arguments(conf.Document(&edge)),
	}
	for promise, want := range map[string]string{
		"pool table_size":                    "65537",
		"pool hash_seed":                     "0",
		"pool fail_open":                     "false",
		"pool removal_grace":                 `"5m"`,
		"pool backend weight":                "100",
		"vip protocol":                       `"any"`,
		"vip affinity":                       `"none"`,
		"vip on_mismatch":                    `"drop"`,
		"vip enabled":                        "true",
		"graph network_mtu":                  "1500",
		"graph gather":                       `"0s"`,
		"xdp-rx queues":                      "0",
		"xdp-rx mode":                        `"auto"`,
		"conntrack entries":                  "131072",
		"conntrack new_flows":                "0",
		"conntrack timeouts tcp_handshake":   `"5s"`,
		"conntrack timeouts tcp_established": `"1m"`,
		"conntrack timeouts tcp_closing":     `"10s"`,
		"conntrack timeouts udp":             `"30s"`,
		"conntrack timeouts other":           `"30s"`,
		"frag-pin entries":                   "8192",
		"frag-pin ttl":                       `"10s"`,
		"frag-pin hold":                      "256",
		"frag-pin wait":                      `"200ms"`,
		"icmp-vip echo":                      `"answer"`,
		"mtu-check icmp_rate":                "100",
		"mtu-check icmp_burst":               "10",
		"mtu-check oversize":                 `"fragment"`,
		"mss-clamp insert":                   "false",
		"ttl answer":                         "false",
		"ttl icmp_rate":                      "100",
		"gre-encap next_hop":                 `"sender"`,
		"gre-encap ttl":                      "64",
		"gre-encap dscp":                     `"zero"`,
		"gre-encap vlan":                     `"keep"`,
		"ipip-encap ttl":                     "64",
		"ipip-encap next_hop":                `"sender"`,
		"gue-encap ttl":                      "64",
		"gue-encap next_hop":                 `"sender"`,
		"handoff ring":                       "2048",
		"source-filter unlisted":             `"allow"`,
		"generate flows":                     "1000",
		"generate rate":                      "0",
		"listen header_timeout":              `"7s"`,
		"listen idle_timeout":                `"1m"`,
		"listen body_timeout":                `"5s"`,
		"listen body_rate":                   "65536",
		"listen write_timeout":               `"7s"`,
		"listen http2":                       "true",
		"listen http2_streams":               "100",
		"proxy connect_timeout":              `"7s"`,
		"proxy response_timeout":             `"7s"`,
		"proxy write_timeout":                `"7s"`,
		"proxy idle_timeout":                 `"1h"`,
		"proxy keepalive_timeout":            `"1m"`,
		"proxy retry_budget":                 "20",
		"tls min_version":                    `"1.2"`,
		"listen proxy_protocol":              `"off"`,
		"tls timeout":                        `"7s"`,
		"admit limit":                        "100",
		"admit queue_timeout":                `"25ms"`,
		"admit retry_after":                  `"1s"`,
		"balance algorithm":                  `"round-robin"`,
		"proxy keepalive":                    "64",
		"redirect status":                    "308",
		"respond status":                     "200",
	} {
		words := strings.Fields(promise)
		args, ok := blocks[words[0]]
		if k := graph.Lookup(words[0]); k != nil && !ok {
			args = graph.Describe(k).Arguments
		}
		var found *graph.Argument
		for _, w := range words[1:] {
			found = nil
			for i := range args {
				if args[i].Name == w {
					found = &args[i]
				}
			}
			if found == nil {
				break
			}
			args = found.Arguments
		}
		if found == nil {
			t.Errorf("there is no argument %s", promise)
		} else if got := found.Default; got != want && !(got == "" && (want == "0" || want == "false" || want == `"0s"`)) {
			t.Errorf("%s is %s by default, want %s", promise, got, want)
		}
	}
	// The values that count are those of a file that says nothing.
	f, diags := lang.LoadBytes("lb.hcl", []byte(silent), lang.Options{})
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	if p := f.Spec.Pools[0]; p.TableSize != 65537 || p.RemovalGrace.Minutes() != 5 || p.Backends[0].Weight != 100 {
		t.Errorf("pool %+v", p)
	}
	got := fmt.Sprintf("%+v", f.Graphs[0].Node("conntrack").Config)
	if want := "&{Entries:131072 Timeouts:{TCPHandshake:5s TCPEstablished:1m0s TCPClosing:10s UDP:30s Other:30s} NewFlows:0}"; got != want {
		t.Errorf("conntrack is %s, want %s", got, want)
	}
}

// silent is a file that gives only what it must.
const silent = `
pool "web" {
  backend "b1" { address = "10.0.0.1" }
}
vip "web" {
  address = "203.0.113.10"
  pool    = pool.web
}
graph "edge" {
  path {
    main     = [rx, parse, vip-classify, frag-pin, conntrack.hit, mtu, gre-encap, xdp-tx]
    new_flow = [conntrack.miss, maglev-select, mtu]
    too_big  = [mtu.reply, xdp-tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "conntrack" {
    # conntrack
    timeouts {
      # timeouts
    }
  }
  node "mtu-check" "mtu" {
    # mtu
  }
  node "frag-pin" "frag-pin" {
    # frag-pin
  }
}
`

// The bounds of arguments: the values at them are taken, those beyond are refused,
// with a diagnostic at the argument's line.
func TestBounds(t *testing.T) {
	six := `
vip "six" {
  address = "2001:db8::10"
  pool    = pool.web
}
`
	for _, c := range []struct {
		block, argument string
		good, bad       []string
		more            string
	}{
		{`pool "web" {`, "table_size", []string{"251", "65537", "1000003"}, []string{"250", "241", "253", "65536", "1000033", "0", "-1"}, ""},
		{`backend "b1" {`, "weight", []string{"0", "1", "1000"}, []string{"-1", "1001", "1.5"}, ""},
		{`graph "edge" {`, "network_mtu", []string{"1280", "9000", "65535"}, []string{"1279", "68", "65536"}, ""},
		{`graph "edge" {`, "gather", []string{`"0s"`, `"50us"`, `"100ms"`}, []string{`"-1us"`, `"1s"`, "1"}, ""},
		{`graph "edge" {`, "network_mtu", []string{"1324"}, []string{"1323", "1280"}, six},
		{"# conntrack", "entries", []string{"1024", "131072", "16777216"}, []string{"512", "131071", "100000", "33554432"}, ""},
		{"# conntrack", "new_flows", []string{"0", "1", "1000000"}, []string{"-1"}, ""},
		{"# timeouts", "tcp_established", []string{`"2h"`, `"60s"`}, []string{`"0s"`, `"-1s"`, "60", `"soon"`}, ""},
		{"# timeouts", "tcp_handshake", []string{`"2h"`, `"1s"`}, []string{`"0s"`}, ""},
		{"# timeouts", "tcp_closing", []string{`"2h"`, `"1s"`}, []string{`"0s"`}, ""},
		{"# timeouts", "udp", []string{`"2h"`, `"1s"`}, []string{`"0s"`}, ""},
		{"# timeouts", "other", []string{`"2h"`, `"1s"`}, []string{`"0s"`}, ""},
		{"# mtu", "icmp_rate", []string{"1", "100", "1000000"}, []string{"-1"}, ""},
		{"# mtu", "icmp_burst", []string{"1", "10"}, []string{"0"}, ""},
		{"# mtu", "oversize", []string{`"fragment"`, `"drop"`}, []string{`"ignore"`}, ""},
		{"# frag-pin", "hold", []string{"0", "256"}, []string{"-1"}, ""},
		{"# frag-pin", "wait", []string{`"200ms"`}, []string{`"0s"`, `"-1s"`}, ""},
	} {
		for i, value := range append(append([]string{}, c.good...), c.bad...) {
			text := silent + c.more
			line := fmt.Sprintf("  %s = %s", c.argument, value)
			if strings.HasSuffix(c.block, `"b1" {`) {
				text = strings.Replace(text, c.block+` address = "10.0.0.1" }`, c.block+"\n address = \"10.0.0.1\"\n"+line+"\n}", 1)
			} else {
				text = strings.Replace(text, c.block, c.block+"\n"+line, 1)
			}
			at := 1 + strings.Count(text[:strings.Index(text, line)], "\n")
			f, diags := lang.LoadBytes("lb.hcl", []byte(text), lang.Options{})
			if f != nil {
				diags = append(diags, graph.Check(f)...)
			}
			if i < len(c.good) {
				if diags.HasErrors() {
					t.Errorf("%s = %s is refused: %v", c.argument, value, diags)
				}
				continue
			}
			told := false
			for _, d := range diags {
				// What a packet kind itself says of its arguments stands at its block.
				told = told || d.Subject.Start.Line == at || d.Summary == "Arguments do not fit" && d.Subject.Start.Line < at
			}
			if !diags.HasErrors() || !told {
				t.Errorf("%s = %s: no error at line %d: %v", c.argument, value, at, diags)
			}
		}
	}
}
