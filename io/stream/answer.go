package stream

import (
	"bytes"
	"maps"
	"slices"

	"github.com/lbgraph/lbgraph/io/http1"
)

// TimeFormat is the form of dates in fields (RFC 9110 section 5.6.7); the time has to
// be UTC.
const TimeFormat = "Mon, 02 Jan 2006 15:04:05 GMT"

// Answer answers a session's request with a whole answer. An error means that the
// client did not take it.
func Answer(s *Session, status int, fields, body []byte) error {
	r := Response{Status: status, Fields: fields, Framing: http1.Framing(len(body)), Length: int64(len(body)), Edits: s.Edits}
	switch {
	case status == 204 || status == 304:
		r.Bodiless, r.Length = true, -1
	case s.Req.Request != nil && s.Req.Method == http1.HEAD:
		r.Bodiless = true
	}
	if r.Bodiless {
		body = nil
	}
	s.Status = status
	if err := s.Req.Begin(&r); err != nil {
		return err
	}
	return s.Req.End(body, nil)
}

// EachField calls f for each of field lines.
func EachField(lines []byte, f func(name, value string)) {
	for len(lines) > 0 {
		line, rest, _ := bytes.Cut(lines, []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte(":"))
		f(string(name), string(bytes.Trim(value, " \t")))
		lines = rest
	}
}

// SortedKeys answers the keys of m in order.
func SortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
