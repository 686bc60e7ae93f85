// Package http1 is the framing of HTTP/1 (RFC 9112), read strictly: what two
// implementations could read in two ways is refused, so that nobody behind us sees
// another message than we did.
//
// A head is parsed into offsets over the read buffer, line by line as it arrives,
// without strings, maps or allocations. It is passed on by copying runs of its field
// lines (Head.AppendFields), a body by finding its end (Body). Nothing here reads
// or writes a connection.
//
// What is refused beyond the letter of RFC 9112: bare LF at the end of a line
// (section 2.2 would let it pass), control characters in field values, repeated
// Content-Length fields even if they agree in a request, fragments and blanks in
// request targets, blanks between chunk size and CRLF. A coding other than chunked is
// not understood (501); chunked has to be the only one, given once.
package http1

// Limits bound the head of a message, and the trailer section of a chunked one. The
// zero value of a limit means that of DefaultLimits.
type Limits struct {
	Line   int // bytes of the first line, CRLF included; a longer one is a 414
	Field  int // bytes of a field line, CRLF included; a longer one is a 431
	Head   int // bytes of the head; a longer one is a 431
	Fields int // field lines; more are a 431
}

// DefaultLimits are the limits of a head when nothing else is said.
var DefaultLimits = Limits{Line: 8 << 10, Field: 16 << 10, Head: 32 << 10, Fields: 128}

// An Error says why a message was refused. Errors of this package are the variables
// below, so they can be compared.
type Error struct {
	// Status is what a server answers to a request with this fault: 400, 405, 414,
	// 417, 431, 501 or 505. A fault in a response is a 502, whatever it says.
	Status int
	// Reason is the fault in a few words.
	Reason string
}

// Error is part of error.
func (e *Error) Error() string { return e.Reason }

// The faults of messages.
var (
	ErrBareLF       = &Error{400, "line ends in a bare LF"}
	ErrBareCR       = &Error{400, "bare CR"}
	ErrRequestLine  = &Error{400, "malformed request line"}
	ErrStatusLine   = &Error{400, "malformed status line"}
	ErrMethod       = &Error{400, "malformed method"}
	ErrConnect      = &Error{405, "method CONNECT is not served"}
	ErrTarget       = &Error{400, "malformed request target"}
	ErrVersion      = &Error{400, "malformed HTTP version"}
	ErrNotSupported = &Error{505, "HTTP version not supported"}
	ErrLineTooLong  = &Error{414, "request line too long"}
	ErrHeadTooLarge = &Error{431, "head too large"}
	ErrFields       = &Error{431, "too many fields"}
	ErrFold         = &Error{400, "folded field line"}
	ErrName         = &Error{400, "malformed field name"}
	ErrValue        = &Error{400, "control character in a field value"}
	ErrNoHost       = &Error{400, "no Host"}
	ErrHosts        = &Error{400, "more than one Host"}
	ErrHost         = &Error{400, "malformed Host"}
	ErrLength       = &Error{400, "malformed Content-Length"}
	ErrLengths      = &Error{400, "more than one Content-Length"}
	ErrBoth         = &Error{400, "Content-Length and Transfer-Encoding"}
	ErrCodings      = &Error{400, "more than one Transfer-Encoding"}
	ErrCoding       = &Error{400, "malformed Transfer-Encoding"}
	ErrCodingOld    = &Error{400, "Transfer-Encoding in HTTP/1.0"}
	ErrCodingName   = &Error{501, "transfer coding not implemented"}
	ErrExpect       = &Error{417, "expectation not supported"}
	ErrChunk        = &Error{400, "malformed chunk"}
	ErrChunkSize    = &Error{400, "malformed chunk size"}
	ErrExtension    = &Error{400, "chunk extensions too long"}
)
