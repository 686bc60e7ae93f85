package bgp

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// What a block says, what it leaves out, and what peers inherit.
func TestConfig(t *testing.T) {
	c, err := decode(`
		asn = 4200000001
		hold_time = "30s"
		communities = ["65000:1"]
		large_communities = ["65000:1:2"]
		med = 5
		next_hop_ipv6 = "2001:db8::9"
		peer "a" {
			address = "192.0.2.254"
			asn = 64500
		}
		peer "b" {
			address = "2001:db8::fe"
			asn = 4200000001
			port = 1179
			local_address = "2001:db8::1"
			password_env = "X"
			ttl_security = 2
			hold_time = "9s"
			communities = ["no-export", "graceful-shutdown"]
			large_communities = ["1:2:3"]
			med = 0
			local_pref = 300
			next_hop_ipv4 = "192.0.2.9"
			next_hop_ipv6 = "2001:db8::8"
			enabled = false
		}`)
	if err != nil {
		t.Fatal(err)
	}
	if c.AnnounceAfter != 30*time.Second || c.DrainTime != 5*time.Second || c.RouterID.IsValid() {
		t.Errorf("defaults: %+v", c)
	}
	n := func(v uint32) *uint32 { return &v }
	ip := netip.MustParseAddr
	for i, want := range []struct {
		transport
		attributes
	}{
		{transport{address: ip("192.0.2.254"), asn: 64500, port: 179, hold: 30 * time.Second, enabled: true},
			attributes{communities: []Community{65000<<16 | 1}, large: []LargeCommunity{{65000, 1, 2}}, med: n(5), hop6: ip("2001:db8::9")}},
		{transport{address: ip("2001:db8::fe"), asn: 4200000001, port: 1179, local: ip("2001:db8::1"), passwordEnv: "X", ttlSecurity: 2, hold: 9 * time.Second},
			attributes{communities: []Community{65000<<16 | 1, 0xffffff01, 0xffff0000}, large: []LargeCommunity{{65000, 1, 2}, {1, 2, 3}}, med: n(0), localPref: n(300), hop4: ip("192.0.2.9"), hop6: ip("2001:db8::8")}},
	} {
		tr, at := c.resolve(&c.Peers[i])
		if tr != want.transport {
			t.Errorf("peer %d: %+v, want %+v", i, tr, want.transport)
		}
		if !at.equal(want.attributes) || !reflect.DeepEqual(at, want.attributes) {
			t.Errorf("peer %d: %+v, want %+v", i, at, want.attributes)
		}
	}
	if d, err := decode("asn = 1\npeer \"a\" {\naddress = \"192.0.2.1\"\nasn = 2\n}"); err != nil || d.HoldTime != 90*time.Second {
		t.Errorf("hold time %v by default, want 90s: %v", d.HoldTime, err)
	}
}

// Each mistake is told in words that say what to do.
func TestConfigMistakes(t *testing.T) {
	for _, c := range []struct{ peer, block, want string }{
		{"", "", "peer block"},
		{`address = "192.0.2.1"` + "\nasn = 2", `router_id = "2001:db8::1"`, "form of an IPv4 address"},
		{`address = "192.0.2.1"` + "\nasn = 2", `hold_time = "2s"`, "hold_time"},
		{`address = "192.0.2.1"` + "\nasn = 2", `hold_time = "3500ms"`, "whole seconds"},
		{`address = "192.0.2.1"` + "\nasn = 2", `next_hop_ipv4 = "2001:db8::1"`, "next_hop_ipv4"},
		{`address = "192.0.2.1"` + "\nasn = 2", `next_hop_ipv6 = "fe80::1"`, "next_hop_ipv6"},
		{`address = "192.0.2.1"` + "\nasn = 2", `communities = ["65536:1"]`, "65000:100"},
		{`address = "192.0.2.1"` + "\nasn = 2", `communities = ["1:2:3"]`, "65000:100"},
		{`address = "192.0.2.1"` + "\nasn = 2", `large_communities = ["1:2"]`, "65000:1:2"},
		{`address = "192.0.2.1"` + "\nasn = 2", `local_pref = 0`, "local_pref"},
		{`address = "192.0.2.1"` + "\nasn = 0", "", "asn"},
		{`asn = 2`, "", "address"},
		{`address = "fe80::1"` + "\nasn = 2", "", "global address"},
		{`address = "224.0.0.1"` + "\nasn = 2", "", "global address"},
		{`address = "192.0.2.1"` + "\nasn = 2\n" + `local_address = "2001:db8::1"`, "", "family"},
		{`address = "192.0.2.1"` + "\nasn = 2\npassword_file = \"a\"\npassword_env = \"b\"", "", "keep one"},
		{`address = "192.0.2.1"` + "\nasn = 2\nmultihop = 2\nttl_security = 1", "", "exclude each other"},
		{`address = "192.0.2.1"` + "\nasn = 1\nmultihop = 2", "", "same AS"},
		{`address = "192.0.2.1"` + "\nasn = 2\nlocal_pref = 3", "", "RFC 4271"},
		{"address = \"192.0.2.1\"\nasn = 2\n}\npeer \"r\" {\naddress = \"192.0.2.2\"\nasn = 2", "", "twice"},
		{"address = \"192.0.2.1\"\nasn = 2\n}\npeer \"s\" {\naddress = \"192.0.2.1\"\nasn = 2", "", `address 192.0.2.1 of peer "r"`},
	} {
		text := "asn = 1\n" + c.block + "\n"
		if c.peer != "" {
			text += "peer \"r\" {\n" + c.peer + "\n}\n"
		}
		if _, err := decode(text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\n-> %v, want %q", text, err, c.want)
		}
	}
}

func TestCommunities(t *testing.T) {
	for _, c := range []string{"0:0", "65000:100", "65535:65535"} {
		var x Community
		if err := x.UnmarshalText([]byte(c)); err != nil || x.String() != c {
			t.Errorf("%s: %s, %v", c, x, err)
		}
	}
	for name, want := range map[string]string{"no-export": "65535:65281", "NO-ADVERTISE": "65535:65282", "blackhole": "65535:666"} {
		var x Community
		if err := x.UnmarshalText([]byte(name)); err != nil || x.String() != want {
			t.Errorf("%s: %s, %v, want %s", name, x, err, want)
		}
	}
	for _, bad := range []string{"", ":", "1", "1:", "-1:2", "1:65536", "+1:2", "1:2 ", "no_export"} {
		if err := new(Community).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	var l LargeCommunity
	if err := l.UnmarshalText([]byte("4294967295:0:7")); err != nil || l.String() != "4294967295:0:7" {
		t.Errorf("%s, %v", l, err)
	}
	for _, bad := range []string{"", "1:2", "1:2:3:4", "1:2:4294967296"} {
		if err := new(LargeCommunity).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// Secrets that others can read are refused, and no error carries one.
func TestPassword(t *testing.T) {
	dir := t.TempDir()
	file := func(mode os.FileMode, text string) *transport {
		t.Helper()
		path := filepath.Join(dir, "secret")
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return &transport{passwordFile: path}
	}
	const secret = "s3cr3t"
	for _, mode := range []os.FileMode{0o600, 0o400, 0o700} {
		if got, err := file(mode, secret+"\n").password(); got != secret || err != nil {
			t.Errorf("mode %o: %q, %v", mode, got, err)
		}
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o644, 0o620, 0o602, 0o666} {
		if got, err := file(mode, secret).password(); got != "" || err == nil || !strings.Contains(err.Error(), "chmod 600") || strings.Contains(err.Error(), secret) {
			t.Errorf("mode %o: %q, %v", mode, got, err)
		}
	}
	for text, want := range map[string]string{
		"": "is empty", "\n": "is empty", strings.Repeat("x", 81): "longer than 80", "a\nb": "more than one line", "a\x00b": "more than one line",
	} {
		if got, err := file(0o600, text).password(); got != "" || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	if got, err := file(0o600, strings.Repeat("x", 80)+"\r\n").password(); len(got) != 80 || err != nil {
		t.Errorf("80 bytes: %d, %v", len(got), err)
	}
	if _, err := (&transport{passwordFile: dir}).password(); err == nil {
		t.Error("a directory is taken")
	}
	if _, err := (&transport{passwordFile: filepath.Join(dir, "no")}).password(); err == nil || !strings.Contains(err.Error(), "password_file") {
		t.Errorf("no file: %v", err)
	}
	t.Setenv("LBGRAPH_TEST_SECRET", secret)
	if got, err := (&transport{passwordEnv: "LBGRAPH_TEST_SECRET"}).password(); got != secret || err != nil {
		t.Errorf("environment: %q, %v", got, err)
	}
	if _, err := (&transport{passwordEnv: "LBGRAPH_TEST_NO_SECRET"}).password(); err == nil || !strings.Contains(err.Error(), "no such environment variable") {
		t.Errorf("no variable: %v", err)
	}
	if got, err := (&transport{}).password(); got != "" || err != nil {
		t.Errorf("no password: %q, %v", got, err)
	}
}
