package http1

// Framing says where a body ends: after so many bytes, or by one of the constants.
type Framing int64

// Bodies whose length is not known before.
const (
	Chunked    Framing = -1 // in chunks, and trailers
	UntilClose Framing = -2 // when the connection closes
)

// Body answers how the body of r is framed.
func (r *Request) Body() Framing {
	switch {
	case r.Chunked:
		return Chunked
	case r.Length > 0:
		return Framing(r.Length)
	}
	return 0
}

// Body finds the end of a body in what comes of it. Its zero value has ended.
type Body struct {
	left    int64 // of a body of known length, of a chunk
	size    int64 // being read
	ext     int   // bytes of extensions so far
	state   state
	digits  uint8
	framing Framing
}

type state uint8

const (
	ended      state = iota
	counting         // a body of known length
	open             // one that ends with the connection
	sizing           // the first digit of a chunk's size, or a further one
	extending        // a chunk extension
	sizeLF           // the LF behind a chunk's size
	chunk            // in a chunk
	chunkCR          // the CR behind a chunk
	chunkLF          // the LF behind it
	inTrailers       // the last chunk has come, not the trailer section
)

// Begin makes b ready for a body of this framing.
func (b *Body) Begin(f Framing) {
	*b = Body{framing: f}
	switch {
	case f == Chunked:
		b.state = sizing
	case f == UntilClose:
		b.state = open
	case f > 0:
		b.state, b.left = counting, int64(f)
	}
}

// Ended tells that nothing of the body is missing; of a chunked one, that the trailer
// section is over, too.
func (b *Body) Ended() bool { return b.state == ended }

// Open tells that the end of the connection is the end of the body.
func (b *Body) Open() bool { return b.state == open }

// AtTrailers tells that the last chunk of the body has come, and what follows is
// the trailer section: Trailers.Parse reads it, and EndTrailers says that it did.
func (b *Body) AtTrailers() bool { return b.state == inTrailers }

// EndTrailers ends the body behind its trailer section.
func (b *Body) EndTrailers() { b.state = ended }

// Left answers how many bytes of a body of known length, or of the chunk in hand,
// are to come; 0 where that is not known.
func (b *Body) Left() int64 {
	if b.state == counting || b.state == chunk {
		return b.left
	}
	return 0
}

// Counted tells that the body has a known length.
func (b *Body) Counted() bool { return b.state == counting }

// Skip says that n of the Left bytes went another way.
func (b *Body) Skip(n int64) {
	if b.left -= n; b.left == 0 {
		b.over()
	}
}

func (b *Body) over() {
	if b.state == counting {
		b.state = ended
	} else if b.state == chunk {
		b.state = chunkCR
	}
}

// Scan answers how many bytes of p, which follows what it has seen, belong to the
// body as it is framed. Fewer than all of p means that the body has ended, or its
// trailer section follows.
func (b *Body) Scan(p []byte) (n int, err error) {
	for n < len(p) && b.state != ended && b.state != inTrailers {
		_, k, err := b.Next(p[n:])
		if err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}

// maxExtensions is how many bytes of chunk extensions a body may have. Nobody uses
// them, and they would carry any number of bytes for no content.
const maxExtensions = 16 << 10

// Next answers the next piece of content in p, which follows what it has seen, and
// how many bytes of p that piece and the framing before it take. It is empty when p
// has no more content. Like Scan, it goes no further than the last chunk.
func (b *Body) Next(p []byte) (content []byte, n int, err error) {
	for n < len(p) {
		c := p[n]
		switch b.state {
		case ended, inTrailers:
			return nil, n, nil
		case open:
			return p, len(p), nil
		case counting, chunk:
			k := int(min(b.left, int64(len(p)-n)))
			b.Skip(int64(k))
			return p[n : n+k], n + k, nil
		case sizing:
			d := hex[c]
			switch {
			case d < 16:
				// 15 digits are below 2^60; more are an overflow, or zeros for no reason.
				if b.digits++; b.digits > 15 {
					return nil, n, ErrChunkSize
				}
				b.size = b.size<<4 | int64(d)
			case b.digits == 0:
				return nil, n, ErrChunkSize
			case c == ';':
				b.state = extending
			case c == '\r':
				b.state = sizeLF
			default:
				return nil, n, ErrChunkSize
			}
			n++
		case extending:
			b.ext++
			switch {
			case c == '\r':
				b.state = sizeLF
			case c < ' ' && c != '\t' || c == 0x7f:
				return nil, n, ErrChunk
			case b.ext > maxExtensions:
				return nil, n, ErrExtension
			}
			n++
		case sizeLF:
			if c != '\n' {
				return nil, n, ErrChunk
			}
			n++
			b.left, b.size, b.digits = b.size, 0, 0
			if b.left == 0 {
				b.state = inTrailers
				return nil, n, nil
			}
			b.state = chunk
		case chunkCR:
			if c != '\r' {
				return nil, n, ErrChunk
			}
			b.state = chunkLF
			n++
		case chunkLF:
			if c != '\n' {
				return nil, n, ErrChunk
			}
			b.state = sizing
			n++
		}
	}
	return nil, n, nil
}

var hex = func() (t [256]uint8) {
	for c := range t {
		t[c] = 0xff
	}
	for i := range uint8(10) {
		t['0'+i] = i
	}
	for i := range uint8(6) {
		t['a'+i], t['A'+i] = 10+i, 10+i
	}
	return t
}()

// Trailers is the trailer section of a chunked body (RFC 9112 section 7.1.2).
type Trailers struct{ Head }

// Reset makes t ready for the next section.
func (t *Trailers) Reset() {
	fields, named := t.Fields, t.named
	*t = Trailers{}
	t.again(fields, named)
}

// Parse reads on in b, as Request.Parse does; b begins behind the last chunk.
func (t *Trailers) Parse(b []byte, l *Limits) (complete bool, err error) {
	for {
		most := l.Field
		if most == 0 {
			most = DefaultLimits.Field
		}
		end, more, err := t.line(b, most, ErrHeadTooLarge, l)
		if more || err != nil {
			return false, err
		}
		if end == t.pos {
			t.Size = t.seen
			return true, nil
		}
		if _, err := t.field(b, end, l); err != nil {
			return false, err
		}
	}
}
