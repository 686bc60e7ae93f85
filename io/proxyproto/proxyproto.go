// Package proxyproto reads and writes the header by which a proxy tells the next one
// who the client is: the PROXY protocol, versions 1 and 2, as HAProxy specifies it
// (proxy-protocol.txt, 2020/03/05).
package proxyproto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
)

// A Header is what the header of a connection says.
type Header struct {
	// Source is the client, Dest the address that it called. Both are the zero value
	// where the sender does not say: for its own connections, such as health checks,
	// and for what it does not know.
	Source, Dest netip.AddrPort
	// Local: the sender connected of its own accord.
	Local bool
}

// ErrMalformed tells of a header that is none.
var ErrMalformed = errors.New("malformed PROXY header")

const (
	signature1 = "PROXY "
	signature2 = "\r\n\r\n\x00\r\nQUIT\n"
	// maxLine is the longest header of version 1, CRLF included.
	maxLine = 107
	// maxExtra bounds what follows the addresses of version 2, which is skipped.
	maxExtra = 4096
)

// Begins tells whether b can be the beginning of a header. It is true for nothing.
func Begins(b []byte) bool {
	n1, n2 := min(len(b), len(signature1)), min(len(b), len(signature2))
	return string(b[:n1]) == signature1[:n1] || string(b[:n2]) == signature2[:n2]
}

// Parse reads the header at the beginning of b: n bytes. 0 without an error means
// that there has to be more of it.
func Parse(b []byte) (h Header, n int, err error) {
	switch {
	case !Begins(b):
		return h, 0, ErrMalformed
	case len(b) == 0:
		return h, 0, nil
	case b[0] == signature1[0]:
		return parse1(b)
	}
	return parse2(b)
}

func parse1(b []byte) (h Header, n int, err error) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 && len(b) < maxLine {
		return h, 0, nil
	}
	if end < 0 || end >= maxLine || end < len(signature1)+1 || b[end-1] != '\r' {
		return h, 0, ErrMalformed
	}
	words := bytes.Split(b[len(signature1):end-1], []byte(" "))
	n = end + 1
	if string(words[0]) == "UNKNOWN" {
		return h, n, nil
	}
	if len(words) != 5 {
		return h, 0, ErrMalformed
	}
	four := string(words[0]) == "TCP4"
	if !four && string(words[0]) != "TCP6" {
		return h, 0, ErrMalformed
	}
	for i, to := range []*netip.AddrPort{&h.Source, &h.Dest} {
		a, err := netip.ParseAddr(string(words[1+i]))
		p, ok := port(words[3+i])
		if err != nil || !ok || a.Is4() != four || a.Zone() != "" {
			return Header{}, 0, ErrMalformed
		}
		*to = netip.AddrPortFrom(a.Unmap(), p)
	}
	return h, n, nil
}

// port reads digits without leading zeros.
func port(b []byte) (uint16, bool) {
	if len(b) == 0 || len(b) > 1 && b[0] == '0' {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(string(b), 10, 16)
	return uint16(n), err == nil
}

func parse2(b []byte) (h Header, n int, err error) {
	const fixed = len(signature2) + 4
	if len(b) < fixed {
		return h, 0, nil
	}
	size := int(binary.BigEndian.Uint16(b[14:]))
	if b[12]>>4 != 2 || b[12]&15 > 1 || size > maxExtra {
		return h, 0, ErrMalformed
	}
	h.Local = b[12]&15 == 0
	if len(b) < fixed+size {
		return Header{}, 0, nil
	}
	p := b[fixed : fixed+size]
	n = fixed + size
	long := 0
	switch family := b[13]; family {
	case 0x11, 0x12: // TCP or UDP over IPv4
		long = 4
	case 0x21, 0x22: // over IPv6
		long = 16
	default:
		if family>>4 > 3 || family&15 > 2 {
			return Header{}, 0, ErrMalformed
		}
		return h, n, nil // no address, or one of a UNIX socket
	}
	if len(p) < 2*long+4 {
		return Header{}, 0, ErrMalformed
	}
	if h.Local {
		return h, n, nil
	}
	src, _ := netip.AddrFromSlice(p[:long])
	dst, _ := netip.AddrFromSlice(p[long : 2*long])
	h.Source = netip.AddrPortFrom(src.Unmap(), binary.BigEndian.Uint16(p[2*long:]))
	h.Dest = netip.AddrPortFrom(dst.Unmap(), binary.BigEndian.Uint16(p[2*long+2:]))
	return h, n, nil
}

// Append appends a header of the version, 1 or 2, which says that src called dst.
// Where they are not known, it says so.
func Append(b []byte, version int, src, dst netip.AddrPort) []byte {
	known := src.IsValid() && dst.IsValid()
	s, d := src.Addr(), dst.Addr()
	four := known && s.Is4() && d.Is4()
	if version == 1 {
		if !known {
			return append(b, "PROXY UNKNOWN\r\n"...)
		}
		b = append(b, "PROXY TCP4 "...)
		if !four {
			b[len(b)-2] = '6'
			s, d = netip.AddrFrom16(s.As16()), netip.AddrFrom16(d.As16())
		}
		b = append(s.AppendTo(b), ' ')
		b = append(d.AppendTo(b), ' ')
		b = strconv.AppendUint(b, uint64(src.Port()), 10)
		b = append(b, ' ')
		b = strconv.AppendUint(b, uint64(dst.Port()), 10)
		return append(b, "\r\n"...)
	}
	b = append(b, signature2...)
	switch {
	case !known:
		return append(b, 0x20, 0x00, 0, 0)
	case four:
		b = append(b, 0x21, 0x11, 0, 12)
		b = append(b, s.AsSlice()...)
		b = append(b, d.AsSlice()...)
	default:
		b = append(b, 0x21, 0x21, 0, 36)
		s16, d16 := s.As16(), d.As16()
		b = append(b, s16[:]...)
		b = append(b, d16[:]...)
	}
	b = binary.BigEndian.AppendUint16(b, src.Port())
	return binary.BigEndian.AppendUint16(b, dst.Port())
}
