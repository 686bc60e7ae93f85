package proxyproto

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

func ap(s string) netip.AddrPort {
	if s == "" {
		return netip.AddrPort{}
	}
	return netip.MustParseAddrPort(s)
}

func v2(text string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		panic(err)
	}
	return signature2 + string(b)
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ name, text, src, dst string }{
		{"v1 IPv4", "PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\r\n", "192.0.2.1:1234", "198.51.100.2:80"},
		{"v1 IPv6", "PROXY TCP6 2001:db8::1 2001:db8::2 65535 443\r\n", "[2001:db8::1]:65535", "[2001:db8::2]:443"},
		{"v1 unknown", "PROXY UNKNOWN\r\n", "", ""},
		{"v1 unknown with more", "PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", "", ""},
		{"the longest v1", "PROXY UNKNOWN " + strings.Repeat("x", 91) + "\r\n", "", ""},
		{"v2 IPv4", v2("21 11 000c c0000201 c6336402 04d2 0050"), "192.0.2.1:1234", "198.51.100.2:80"},
		{"v2 with TLVs", v2("21 11 0011 c0000201 c6336402 04d2 0050 04 0002 aabb"), "192.0.2.1:1234", "198.51.100.2:80"},
		{"v2 IPv6", v2("21 21 0024 20010db8000000000000000000000001 20010db8000000000000000000000002 04d2 0050"), "[2001:db8::1]:1234", "[2001:db8::2]:80"},
		{"v2 local", v2("20 11 000c c0000201 c6336402 04d2 0050"), "", ""},
		{"v2 local without address", v2("20 00 0000"), "", ""},
		{"v2 unspecified", v2("21 00 0003 010203"), "", ""},
		{"v2 UNIX", v2("21 31 00d8" + strings.Repeat("00", 216)), "", ""},
	} {
		b := []byte(c.text + "GET / HTTP/1.1\r\n")
		h, n, err := Parse(b)
		if err != nil || n != len(c.text) || h.Source != ap(c.src) || h.Dest != ap(c.dst) {
			t.Errorf("%s: %+v, %d of %d bytes, %v", c.name, h, n, len(c.text), err)
		}
		for i := range c.text {
			if _, n, err := Parse(b[:i]); n != 0 || err != nil {
				t.Errorf("%s, %d bytes of it: %d, %v", c.name, i, n, err)
			}
		}
	}
	for _, text := range []string{
		"GET / HTTP/1.1\r\n", "PROXY TCP4 192.0.2.1 198.51.100.2 1234\r\n", "PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\n",
		"PROXY TCP4 2001:db8::1 198.51.100.2 1234 80\r\n", "PROXY TCP6 192.0.2.1 198.51.100.2 1234 80\r\n", "PROXY TCP4 192.0.2.1 198.51.100.2 01234 80\r\n",
		"PROXY TCP4 192.0.2.1 198.51.100.2 65536 80\r\n", "PROXY TCP4 192.0.2.1 198.51.100.2 +1 80\r\n", "PROXY TCP4  192.0.2.1 198.51.100.2 1 80\r\n",
		"PROXY UDP4 192.0.2.1 198.51.100.2 1 80\r\n", "PROXY TCP6 fe80::1%eth0 ::1 1 80\r\n", "PROXY \r\n", "PROXY " + strings.Repeat("x", 200), "PROXY UNKNOWN " + strings.Repeat("x", 92) + "\r\n", "\r\n\r\n\x00\r\nQUIX",
		v2("11 11 000c c0000201 c6336402 04d2 0050"), v2("22 11 000c c0000201 c6336402 04d2 0050"), v2("21 11 000b c0000201 c6336402 04d2 00"),
		v2("21 13 0000"), v2("21 41 0000"), v2("21 11 ffff"),
	} {
		if h, n, err := Parse([]byte(text)); err != ErrMalformed {
			t.Errorf("%q: %+v, %d, %v", text, h, n, err)
		}
	}
}

func TestAppend(t *testing.T) {
	for _, version := range []int{1, 2} {
		for _, c := range [][2]string{{"192.0.2.1:1", "198.51.100.2:65535"}, {"[2001:db8::1]:1", "[2001:db8::2]:2"}, {"192.0.2.1:1", "[2001:db8::2]:2"}, {"", ""}, {"", "192.0.2.1:1"}} {
			b := Append([]byte("x"), version, ap(c[0]), ap(c[1]))
			h, n, err := Parse(b[1:])
			want := Header{}
			if c[0] != "" {
				want.Source, want.Dest = ap(c[0]), ap(c[1])
			}
			h.Local = false
			if err != nil || n != len(b)-1 || h != want {
				t.Errorf("version %d of %v: %q is %+v, %v", version, c, b, h, err)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\r\n"))
	f.Add([]byte(v2("21 11 0011 c0000201 c6336402 04d2 0050 04 0002 aabb")))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := Parse(b)
		if n > len(b) || err != nil && n != 0 || !Begins(b) && err == nil {
			t.Fatalf("%q: %+v, %d, %v", b, h, n, err)
		}
	})
}
