package http1

import "strconv"

// A Rewrite says which further fields are not passed on, by their names in lower
// case.
type Rewrite interface {
	// Drops tells whether the field of this name, which is of token characters and
	// of any case, is left out.
	Drops(name []byte) bool
}

// AppendFields appends to dst the field lines of h, whose bytes are in b: all but
// those in drop, those that Connection names, and those that r, if not nil, drops.
// Lines that follow one another are copied at once.
func (h *Head) AppendFields(dst, b []byte, drop Set, r Rewrite) []byte {
	from, to := uint32(0), uint32(0)
	for i := range h.Fields {
		f := &h.Fields[i]
		if drop.Has(f.ID) || len(h.named) > 0 && f.ID != Host && h.Named(b, f.Name(b)) || r != nil && r.Drops(f.Name(b)) {
			continue
		}
		if f.Start != to {
			dst = append(dst, b[from:to]...)
			from = f.Start
		}
		to = f.End
	}
	return append(dst, b[from:to]...)
}

// AppendField appends a field line.
func AppendField(dst []byte, name, value string) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// AppendLength appends a Content-Length.
func AppendLength(dst []byte, n int64) []byte {
	dst = append(dst, "Content-Length: "...)
	dst = strconv.AppendInt(dst, n, 10)
	return append(dst, "\r\n"...)
}

// AppendChunk appends the line that begins a chunk of n bytes, which is followed
// by them and CRLF.
func AppendChunk(dst []byte, n int) []byte {
	dst = strconv.AppendInt(dst, int64(n), 16)
	return append(dst, "\r\n"...)
}

// TrailerDrop is what never stands in a trailer section: framing, routing and what
// proxies say of the client (RFC 9110 section 6.5.1).
const TrailerDrop = HopByHop | Managed | 1<<Host | 1<<Trailer | 1<<Expect

// ValidName tells whether s may be a field name; ValidValue, a field value.
func ValidName(s string) bool {
	for i := range len(s) {
		if class[s[i]]&token == 0 {
			return false
		}
	}
	return s != ""
}

// ValidValue tells whether s may be a field value, without blanks around it.
func ValidValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return s == "" || s[0] > ' ' && s[len(s)-1] > ' '
}
