package http1

import "bytes"

// A Method is a request method as far as framing, retries and routing have to know
// it; OtherMethod stands for all others.
type Method uint8

// The known methods.
const (
	OtherMethod Method = iota
	GET
	HEAD
	POST
	PUT
	DELETE
	OPTIONS
	TRACE
	PATCH
)

// Idempotent tells whether a request may be sent a second time (RFC 9110 section
// 9.2.2).
func (m Method) Idempotent() bool {
	return m == GET || m == HEAD || m == PUT || m == DELETE || m == OPTIONS || m == TRACE
}

// Request is the head of a request.
type Request struct {
	Head
	Method Method
	// MethodText and Target are the method and the target as they came.
	MethodText, Target Span
	// Path and Query are pieces of the target: the path as it is to be routed by,
	// which is empty for "*" and for an absolute target without one, and what follows
	// the first "?".
	Path, Query Span
	// Absolute: the target is an absolute-form, and routes by its own authority.
	Absolute bool
	// Asterisk: the target is "*".
	Asterisk bool
	// Host is the authority that the request is for, from the target or the field
	// Host; empty if there is none.
	Host Span
	// Expects: the client waits for 100 (Continue) before it sends the body.
	Expects bool

	hosts    int
	expected bool // an Expect field other than 100-continue
	skipped  bool // an empty line in front
}

// Reset makes r ready for the next head.
func (r *Request) Reset() {
	fields, named := r.Fields, r.named
	*r = Request{}
	r.again(fields, named)
}

// HasBody tells whether a body follows the head, be it empty.
func (r *Request) HasBody() bool { return r.Chunked || r.Length > 0 }

// Parse reads on in b, which begins with the head and holds what came of it, as often
// as more comes; complete says that the head is all there: Size bytes. After an
// error nothing can be said about where the message ends: the connection is to be
// closed.
func (r *Request) Parse(b []byte, l *Limits) (complete bool, err error) {
	for {
		most, tooLong := l.Field, ErrHeadTooLarge
		if most == 0 {
			most = DefaultLimits.Field
		}
		if !r.first {
			tooLong = ErrLineTooLong
			if most = l.Line; most == 0 {
				most = DefaultLimits.Line
			}
		}
		end, more, err := r.line(b, most, tooLong, l)
		if more || err != nil {
			return false, err
		}
		switch {
		case end == r.pos && r.first:
			r.Size = r.seen
			return true, r.finish(b)
		case end == r.pos && !r.skipped:
			// RFC 9112 section 2.2: an empty line in front is to be ignored.
			r.skipped, r.pos = true, r.seen
		case !r.first:
			if err := r.requestLine(b, end); err != nil {
				return false, err
			}
			r.first, r.pos = true, r.seen
		default:
			f, err := r.field(b, end, l)
			if err != nil {
				return false, err
			}
			if f.ID != Other {
				if err := r.take(b, f); err != nil {
					return false, err
				}
			}
		}
	}
}

func (r *Request) requestLine(b []byte, end int) error {
	line := b[r.pos:end]
	at := uint32(r.pos)
	i := bytes.IndexByte(line, ' ')
	j := bytes.LastIndexByte(line, ' ')
	if i <= 0 || j <= i+1 || j == len(line)-1 {
		return ErrRequestLine
	}
	r.MethodText = Span{at, at + uint32(i)}
	for _, c := range line[:i] {
		if class[c]&token == 0 {
			return ErrMethod
		}
	}
	r.Method = method(line[:i])
	if err := r.version(line[j+1:]); err != nil {
		return err
	}
	t := line[i+1 : j]
	for _, c := range t {
		if class[c]&target == 0 {
			return ErrTarget
		}
	}
	r.Target = Span{at + uint32(i) + 1, at + uint32(j)}
	switch {
	case string(line[:i]) == "CONNECT":
		return ErrConnect
	case t[0] == '/':
		r.path(b, r.Target)
	case len(t) == 1 && t[0] == '*':
		if r.Method != OPTIONS {
			return ErrTarget
		}
		r.Asterisk = true
	default:
		return r.absolute(b, t)
	}
	return nil
}

func method(m []byte) Method {
	switch string(m) {
	case "GET":
		return GET
	case "HEAD":
		return HEAD
	case "POST":
		return POST
	case "PUT":
		return PUT
	case "DELETE":
		return DELETE
	case "OPTIONS":
		return OPTIONS
	case "TRACE":
		return TRACE
	case "PATCH":
		return PATCH
	}
	return OtherMethod
}

// version reads the version; its name is case-sensitive (RFC 9112 section 2.3).
func (h *Head) version(v []byte) error {
	switch string(v) {
	case "HTTP/1.1":
		h.Minor = 1
		return nil
	case "HTTP/1.0":
		h.Minor = 0
		return nil
	}
	if len(v) == 8 && string(v[:5]) == "HTTP/" && v[5]-'0' <= 9 && v[6] == '.' && v[7]-'0' <= 9 {
		return ErrNotSupported
	}
	return ErrVersion
}

// absolute reads a target in absolute-form (RFC 9112 section 3.2.2).
func (r *Request) absolute(b, t []byte) error {
	n := len("http://")
	switch {
	case len(t) > n && EqualFold(t[:4], "http") && string(t[4:n]) == "://":
	case len(t) > n+1 && EqualFold(t[:5], "https") && string(t[5:n+1]) == "://":
		n++
	default:
		return ErrTarget
	}
	end := n
	for end < len(t) && t[end] != '/' && t[end] != '?' {
		end++
	}
	// User information is not to be taken from others (RFC 9110 section 4.2.4); its
	// "@" is no host character.
	if end == n || !validHost(t[n:end]) {
		return ErrTarget
	}
	r.Absolute = true
	r.Host = Span{r.Target.Start + uint32(n), r.Target.Start + uint32(end)}
	r.path(b, Span{r.Host.End, r.Target.End})
	return nil
}

func (r *Request) path(b []byte, s Span) {
	r.Path = s
	if i := bytes.IndexByte(s.In(b), '?'); i >= 0 {
		r.Path.End = s.Start + uint32(i)
		r.Query = Span{r.Path.End + 1, s.End}
	}
}

// validHost tells whether h can be host and port (RFC 3986 section 3.2.2 and 3).
func validHost(h []byte) bool {
	for _, c := range h {
		if class[c]&host == 0 {
			return false
		}
	}
	name, port := SplitHost(h)
	for _, c := range port {
		if c-'0' > 9 {
			return false
		}
	}
	if len(name) > 0 && name[0] == '[' {
		return bytes.IndexByte(name, ']') == len(name)-1 && bytes.IndexByte(name[1:], '[') < 0
	}
	return bytes.IndexByte(name, ':') < 0 && bytes.IndexByte(name, '[') < 0 && bytes.IndexByte(name, ']') < 0
}

// SplitHost parts a host from its port, and takes one trailing dot off the host.
// The brackets of an IPv6 address stay.
func SplitHost(h []byte) (name, port []byte) {
	name = h
	if i := bytes.LastIndexByte(h, ':'); i >= 0 && i > bytes.LastIndexByte(h, ']') {
		name, port = h[:i], h[i+1:]
	}
	if n := len(name); n > 1 && name[n-1] == '.' {
		name = name[:n-1]
	}
	return name, port
}

// take takes what a known field says.
func (r *Request) take(b []byte, f *Field) error {
	switch f.ID {
	case Host:
		if r.hosts++; r.hosts > 1 {
			return ErrHosts
		}
		if !validHost(f.Text(b)) {
			return ErrHost
		}
		if !r.Absolute {
			r.Host = Span{f.Value, f.ValueEnd}
		}
	case Expect:
		if !EqualFold(f.Text(b), "100-continue") {
			r.expected = true
		}
		r.Expects = true
	case ContentLength:
		if r.Length >= 0 {
			return ErrLengths
		}
		return r.known(b, f)
	default:
		return r.known(b, f)
	}
	return nil
}

func (r *Request) finish(b []byte) error {
	if err := r.settle(); err != nil {
		return err
	}
	switch {
	case r.hosts == 0 && r.Minor > 0:
		return ErrNoHost
	case r.expected:
		return ErrExpect
	}
	// Nobody waits for what HTTP/1.0 does not know, or with nothing to send (RFC
	// 9110 section 10.1.1).
	r.Expects = r.Expects && r.Minor > 0 && r.HasBody()
	return nil
}
