package proxy

import (
	"net/netip"

	"github.com/lbgraph/lbgraph/io/http1"
	"github.com/lbgraph/lbgraph/io/stream"
)

// appendHead appends the head of the session's request as the backend gets it. The
// target goes on byte for byte, fields as they came but for those of the connection,
// and for what tells of the client.
func (p *proxy) appendHead(dst []byte, s *stream.Session, upgrade bool) []byte {
	r := s.Req
	b := r.Buf
	dst = append(dst, r.MethodText.In(b)...)
	dst = append(dst, ' ')
	dst = append(dst, r.Target.In(b)...)
	dst = append(dst, " HTTP/1.1\r\n"...)
	drop := http1.HopByHop | http1.SetOf(http1.LookAlike)
	if !r.Expects {
		drop |= http1.SetOf(http1.Expect)
	}
	switch {
	case r.Absolute:
		// RFC 9112 section 3.2.2: the target's authority takes the place of Host.
		drop |= http1.SetOf(http1.Host)
		dst = append(dst, "Host: "...)
		dst = append(dst, r.Host.In(b)...)
		dst = append(dst, "\r\n"...)
	case r.Host == (http1.Span{}):
		dst = append(dst, "Host: "...) // HTTP/1.0
		dst = s.Backend.Addr.AppendTo(dst)
		dst = append(dst, "\r\n"...)
	}
	if p.c.Forwarded {
		if s.Client.Trusted {
			drop |= http1.SetOf(http1.ForwardedFor, http1.Forwarded)
		} else {
			drop |= http1.Managed
		}
	}
	dst = stream.AppendRequest(dst, &r.Head, b, drop, s.Edits)
	if p.c.Forwarded {
		dst = appendForwarded(dst, s)
	}
	switch {
	case upgrade:
		dst = append(dst, "Connection: Upgrade\r\nUpgrade: "...)
		dst = append(dst, r.UpgradeTo.In(b)...)
		dst = append(dst, "\r\n"...)
		if r.TETrailers {
			dst = append(dst, "TE: trailers\r\n"...)
		}
	case r.TETrailers:
		dst = append(dst, "TE: trailers\r\nConnection: TE\r\n"...)
	}
	switch {
	case r.Chunked:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	case r.Length >= 0:
		dst = http1.AppendLength(dst, r.Length)
	}
	return append(dst, "\r\n"...)
}

// appendForwarded appends the fields that tell who the client is. What a trusted proxy
// said of it is kept, and extended by the proxy itself.
func appendForwarded(dst []byte, s *stream.Session) []byte {
	r, b := s.Req, s.Req.Buf
	peer := s.Client.Remote.Addr()
	var has http1.Set
	trusted := s.Client.Trusted
	if trusted {
		for i := range r.Fields {
			has |= 1 << r.Fields[i].ID
		}
	}
	list := func(name string, id http1.ID) {
		dst = append(dst, name...)
		for i := range r.Fields {
			if f := &r.Fields[i]; trusted && f.ID == id && f.Value < f.ValueEnd {
				dst = append(dst, f.Text(b)...)
				dst = append(dst, ", "...)
			}
		}
	}
	list("X-Forwarded-For: ", http1.ForwardedFor)
	dst = peer.AppendTo(dst)
	proto := "http"
	if s.Client.Secure {
		proto = "https"
	}
	if !has.Has(http1.ForwardedProto) {
		dst = append(dst, "\r\nX-Forwarded-Proto: "...)
		dst = append(dst, proto...)
	}
	host := r.Host.In(b)
	if !has.Has(http1.ForwardedHost) && len(host) > 0 {
		dst = append(dst, "\r\nX-Forwarded-Host: "...)
		dst = append(dst, host...)
	}
	if !has.Has(http1.RealIP) {
		dst = append(dst, "\r\nX-Real-IP: "...)
		dst = peer.AppendTo(dst)
	}
	list("\r\nForwarded: ", http1.Forwarded)
	dst = append(dst, "for="...)
	dst = appendNode(dst, peer)
	if len(host) > 0 {
		dst = append(dst, ";host=\""...)
		dst = append(dst, host...)
		dst = append(dst, '"')
	}
	dst = append(dst, ";proto="...)
	dst = append(dst, proto...)
	return append(dst, "\r\n"...)
}

// appendNode appends an address as Forwarded has it (RFC 7239 section 6).
func appendNode(dst []byte, a netip.Addr) []byte {
	if a.Is4() {
		return a.AppendTo(dst)
	}
	dst = append(dst, "\"["...)
	dst = a.AppendTo(dst)
	return append(dst, "]\""...)
}
