package encap

import (
	"net/netip"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	prefix := func(s string) netip.Prefix {
		if s == "" {
			return netip.Prefix{}
		}
		return netip.MustParsePrefix(s)
	}
	for _, c := range []struct {
		source, source6, hop, err string
	}{
		{hop: "sender"},
		{hop: "kernel"},
		{hop: "192.0.2.254"},
		{hop: "fe80::1"},
		{hop: "02:00:00:00:00:09"},
		{hop: "here", err: "not \"here\""},
		{hop: "", err: "not \"\""},
		{hop: "33:33:00:00:00:01", err: "group address"},
		{hop: "02-00-00-00-00-00-00-09", err: "MAC address"},
		{hop: "224.0.0.1", err: "no gateway"},
		{hop: "0.0.0.0", err: "no gateway"},
		{hop: "sender", source: "192.0.2.0/24"},
		{hop: "sender", source: "2001:db8::/64"},
		{hop: "sender", source: "192.0.2.1/32", source6: "2001:db8::1/128"},
		{hop: "sender", source: "2001:db8::/63", err: "/64 or longer"},
		{hop: "sender", source6: "192.0.2.1/32", err: "IPv6"},
		{hop: "sender", source: "2001:db8::1/128", source6: "2001:db8::2/128", err: "leave source6 out"},
		{hop: "sender", source: "224.0.0.0/24", err: "cannot be a source"},
		{hop: "sender", source: "0.0.0.0/0", err: "cannot be a source"},
	} {
		d := Defaults()
		d.Source, d.Source6, d.NextHop = prefix(c.source), prefix(c.source6), c.hop
		err := d.Check()
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("source %q %q, next_hop %q: %v, want %q", c.source, c.source6, c.hop, err, c.err)
		}
	}
}

// A link-local or loopback address reaches no backend behind a router.
func TestSources(t *testing.T) {
	addr := netip.MustParseAddr
	got := Defaults().sources([]netip.Addr{
		addr("127.0.0.1"), addr("fe80::1%eth0"), addr("169.254.1.1"), addr("192.0.2.7"), addr("192.0.2.8"), addr("2001:db8::7"),
	})
	want := [2]netip.Prefix{netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("2001:db8::7/128")}
	if got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got := Defaults().sources(nil); got[0].IsValid() || got[1].IsValid() {
		t.Errorf("sources out of nothing: %v", got)
	}
}
