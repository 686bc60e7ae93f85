package http1

import (
	"bytes"
	"encoding/binary"
)

// A Span is a piece of the buffer, from Start up to End.
type Span struct{ Start, End uint32 }

// In answers the piece of b.
func (s Span) In(b []byte) []byte { return b[s.Start:s.End] }

// Empty tells whether it holds nothing.
func (s Span) Empty() bool { return s.Start == s.End }

// A Field is one field line of a head, as offsets in the buffer: the line from
// Start up to End, CRLF included, the name from Start up to NameEnd, the value,
// without blanks around it, from Value up to ValueEnd.
type Field struct {
	Start, NameEnd, Value, ValueEnd, End uint32
	ID                                   ID
}

// Name answers the field's name in b.
func (f *Field) Name(b []byte) []byte { return b[f.Start:f.NameEnd] }

// Text answers the field's value in b.
func (f *Field) Text(b []byte) []byte { return b[f.Value:f.ValueEnd] }

// Head is what the heads of requests and responses have in common. Offsets are those
// of the buffer that Parse is given, whose content must not move in between and
// as long as the head is used.
type Head struct {
	Fields []Field
	// Size is the length of the head in bytes, its empty line included; 0 until it
	// is complete.
	Size int
	// Minor is the minor version of HTTP/1: 0 or 1.
	Minor uint8
	// Close: the connection ends with this message.
	Close bool
	// Chunked and Length are the framing of the body as the fields give it: Length
	// is −1 without Content-Length.
	Chunked bool
	Length  int64
	// WantsUpgrade: Connection names Upgrade, and there is an Upgrade field:
	// UpgradeTo is its value.
	WantsUpgrade bool
	UpgradeTo    Span
	// TETrailers: TE allows trailers.
	TETrailers bool

	named     []Span // what Connection names beside what is known
	pos, seen int    // the line in hand; where to look for its end
	first     bool   // the first line is parsed
	keepAlive bool
	upgrade   bool // Connection names Upgrade
	upgrades  int  // Upgrade fields
}

// again makes an empty head use memory of an earlier one. Resetting in place, here and
// in Reset, saves a copy of the whole on the stack.
func (h *Head) again(fields []Field, named []Span) {
	h.Fields, h.named, h.Length = fields[:0], named[:0], -1
}

// Named tells whether Connection names a field of this name: then it is not passed on.
func (h *Head) Named(b, name []byte) bool {
	for _, n := range h.named {
		if bytes.EqualFold(n.In(b), name) {
			return true
		}
	}
	return false
}

// line finds the line at pos in b, without its CRLF. more: it is not all there.
func (h *Head) line(b []byte, most int, tooLong *Error, l *Limits) (end int, more bool, err error) {
	limit := l.Head
	if limit == 0 {
		limit = DefaultLimits.Head
	}
	i := bytes.IndexByte(b[h.seen:], '\n')
	if i < 0 {
		h.seen = len(b)
		switch {
		case len(b)-h.pos >= most:
			return 0, false, tooLong
		case len(b) >= limit:
			return 0, false, ErrHeadTooLarge
		}
		return 0, true, nil
	}
	end = h.seen + i
	switch {
	case end+1-h.pos > most:
		return 0, false, tooLong
	case end+1 > limit:
		return 0, false, ErrHeadTooLarge
	case end == h.pos || b[end-1] != '\r':
		return 0, false, ErrBareLF
	}
	h.seen = end + 1
	return end - 1, false, nil
}

// field parses the field line from h.pos up to end, and goes on to the next line.
func (h *Head) field(b []byte, end int, l *Limits) (*Field, error) {
	limit := l.Fields
	if limit == 0 {
		limit = DefaultLimits.Fields
	}
	if len(h.Fields) >= limit {
		return nil, ErrFields
	}
	line := b[h.pos:end]
	if line[0] == ' ' || line[0] == '\t' {
		return nil, ErrFold
	}
	colon, all, any := 0, uint8(0xff), uint8(0)
	for colon < len(line) && line[colon] != ':' {
		c := class[line[colon]]
		all &= c
		any |= c
		colon++
	}
	if colon == 0 || colon == len(line) || all&token == 0 {
		return nil, ErrName
	}
	v, ve := colon+1, len(line)
	for v < ve && (line[v] == ' ' || line[v] == '\t') {
		v++
	}
	for ve > v && (line[ve-1] == ' ' || line[ve-1] == '\t') {
		ve--
	}
	if err := value(line[v:ve]); err != nil {
		return nil, err
	}
	id := identify(line[:colon])
	if id == Other && any&underscore != 0 && lookAlike(line[:colon]) {
		id = LookAlike
	}
	at := uint32(h.pos)
	h.Fields = append(h.Fields, Field{Start: at, NameEnd: at + uint32(colon), Value: at + uint32(v), ValueEnd: at + uint32(ve), End: uint32(h.seen), ID: id})
	h.pos = h.seen
	return &h.Fields[len(h.Fields)-1], nil
}

// value tells whether v may be a field value: no control character but HTAB (RFC
// 9110 section 5.5).
func value(v []byte) error {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(v); i += 8 {
		x := binary.LittleEndian.Uint64(v[i:])
		del := x ^ 0x7f*ones
		if (x-0x20*ones)&^x&tops|(del-ones)&^del&tops != 0 {
			// One of the eight may be a control character, or a HTAB.
			if err := slowValue(v[i : i+8]); err != nil {
				return err
			}
		}
	}
	return slowValue(v[i:])
}

func slowValue(v []byte) error {
	for _, c := range v {
		if c < ' ' && c != '\t' || c == 0x7f {
			if c == '\r' {
				return ErrBareCR
			}
			return ErrValue
		}
	}
	return nil
}

// known takes what the field says of framing and of the connection.
func (h *Head) known(b []byte, f *Field) error {
	v := f.Text(b)
	switch f.ID {
	case ContentLength:
		n, ok := number(v)
		if !ok {
			return ErrLength
		}
		if h.Length >= 0 && h.Length != n {
			return ErrLengths
		}
		h.Length = n
	case TransferEncoding:
		if h.Chunked {
			return ErrCodings
		}
		if err := coding(v); err != nil {
			return err
		}
		h.Chunked = true
	case Connection:
		for at := 0; at < len(v); {
			start, end, next := element(v, at)
			at = next
			switch t := v[start:end]; {
			case len(t) == 0 || EqualFold(t, "te"):
			case EqualFold(t, "close"):
				h.Close = true
			case EqualFold(t, "keep-alive"):
				h.keepAlive = true
			case EqualFold(t, "upgrade"):
				h.upgrade = true
			default:
				if len(h.named) >= maxNamed {
					return ErrFields
				}
				h.named = append(h.named, Span{f.Value + uint32(start), f.Value + uint32(end)})
			}
		}
	case TE:
		for at := 0; at < len(v); {
			start, end, next := element(v, at)
			at = next
			t := v[start:end]
			if i := bytes.IndexByte(t, ';'); i >= 0 {
				t = bytes.TrimRight(t[:i], " \t")
			}
			if EqualFold(t, "trailers") {
				h.TETrailers = true
			}
		}
	case Upgrade:
		h.upgrades++
		h.UpgradeTo = Span{f.Value, f.ValueEnd}
	}
	return nil
}

// maxNamed is how many further names Connection may list.
const maxNamed = 32

// settle finds out what the fields together mean for the connection.
func (h *Head) settle() error {
	if h.Chunked {
		switch {
		case h.Length >= 0:
			return ErrBoth
		case h.Minor == 0:
			return ErrCodingOld
		}
	}
	h.Close = h.Close || h.Minor == 0 && !h.keepAlive
	h.WantsUpgrade = h.upgrade && h.upgrades == 1 && h.UpgradeTo.Start < h.UpgradeTo.End && h.Minor == 1
	return nil
}

// element answers the list element that begins at or behind at in v, without
// blanks around it, and where the next one begins.
func element(v []byte, at int) (start, end, next int) {
	end = len(v)
	if i := bytes.IndexByte(v[at:], ','); i >= 0 {
		end = at + i
	}
	start, next = at, end+1
	for start < end && (v[start] == ' ' || v[start] == '\t') {
		start++
	}
	for end > start && (v[end-1] == ' ' || v[end-1] == '\t') {
		end--
	}
	return start, end, next
}

// number reads the value of Content-Length: digits, and no more than fit an int64.
func number(v []byte) (n int64, ok bool) {
	if len(v) == 0 || len(v) > 19 {
		return 0, false
	}
	for _, c := range v {
		d := c - '0'
		if d > 9 {
			return 0, false
		}
		n = n*10 + int64(d) // 19 digits of 9 overflow once, to below zero
		if n < 0 {
			return 0, false
		}
	}
	return n, true
}

// coding reads the value of Transfer-Encoding.
func coding(v []byte) error {
	if EqualFold(v, "chunked") {
		return nil
	}
	if len(v) == 0 {
		return ErrCoding
	}
	for at := 0; at < len(v); {
		start, end, next := element(v, at)
		at = next
		t := v[start:end]
		if i := bytes.IndexByte(t, ';'); i >= 0 {
			t = bytes.TrimRight(t[:i], " \t")
		}
		if len(t) == 0 {
			return ErrCoding
		}
		for _, c := range t {
			if class[c]&token == 0 {
				return ErrCoding
			}
		}
		odd := EqualFold(t, "chunked") && next <= len(v) // not the last
		for i := 0; i+7 <= len(t) && len(t) > 7 && !odd; i++ {
			odd = EqualFold(t[i:i+7], "chunked")
		}
		if odd {
			return ErrCoding
		}
	}
	return ErrCodingName
}
