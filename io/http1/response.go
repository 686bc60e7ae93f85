package http1

// Response is the head of a response.
type Response struct {
	Head
	Status int
	// Line is the status line behind the version, "200 OK", without CRLF.
	Line Span
}

// Reset makes r ready for the next head.
func (r *Response) Reset() {
	fields, named := r.Fields, r.named
	*r = Response{}
	r.again(fields, named)
}

// Parse reads on in b, as Request.Parse does. Errors have the status that a request
// of that fault would have; for a response each of them is a 502.
func (r *Response) Parse(b []byte, l *Limits) (complete bool, err error) {
	for {
		most := l.Field
		if most == 0 {
			most = DefaultLimits.Field
		}
		end, more, err := r.line(b, most, ErrHeadTooLarge, l)
		if more || err != nil {
			return false, err
		}
		switch {
		case !r.first:
			if err := r.statusLine(b, end); err != nil {
				return false, err
			}
			r.first, r.pos = true, r.seen
		case end == r.pos:
			r.Size = r.seen
			return true, r.settle()
		default:
			f, err := r.field(b, end, l)
			if err != nil {
				return false, err
			}
			if f.ID != Other {
				if err := r.known(b, f); err != nil {
					return false, err
				}
			}
		}
	}
}

// statusLine reads "HTTP/1.1 200 OK"; the reason may be empty, and servers leave out
// the blank before an empty one.
func (r *Response) statusLine(b []byte, end int) error {
	line := b[r.pos:end]
	if len(line) < 12 || line[8] != ' ' || len(line) > 12 && line[12] != ' ' {
		return ErrStatusLine
	}
	if err := r.version(line[:8]); err != nil {
		return err
	}
	for _, c := range line[9:12] {
		if c-'0' > 9 {
			return ErrStatusLine
		}
		r.Status = r.Status*10 + int(c-'0')
	}
	if r.Status < 100 || r.Status > 599 {
		return ErrStatusLine
	}
	r.Line = Span{uint32(r.pos) + 9, uint32(end)}
	return value(line[12:])
}

// Informational tells that another response follows.
func (r *Response) Informational() bool { return r.Status < 200 && r.Status != 101 }

// Body answers how the body of r is framed when it answers a request of the method.
func (r *Response) Body(m Method) Framing {
	switch {
	case m == HEAD || r.Status < 200 || r.Status == 204 || r.Status == 304:
		return 0
	case r.Chunked:
		return Chunked
	case r.Length >= 0:
		return Framing(r.Length)
	}
	return UntilClose
}
