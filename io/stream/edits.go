package stream

import "github.com/lbgraph/lbgraph/io/http1"

// Edits are changes to the fields of requests and of responses. They are made once
// and shared.
type Edits struct{ Request, Response FieldEdits }

// FieldEdits drop fields and append others.
type FieldEdits struct {
	Drop []string // names, in lower case
	Add  []byte   // field lines
}

// Drops is part of http1.Rewrite.
func (e *FieldEdits) Drops(name []byte) bool {
	for _, d := range e.Drop {
		if http1.EqualFold(name, d) {
			return true
		}
	}
	return false
}

// requestEdits and responseEdits are the edits of a session as an http1.Rewrite.
type (
	requestEdits  []*Edits
	responseEdits []*Edits
)

func (all requestEdits) Drops(name []byte) bool {
	for _, e := range all {
		if e.Request.Drops(name) {
			return true
		}
	}
	return false
}

func (all responseEdits) Drops(name []byte) bool {
	for _, e := range all {
		if e.Response.Drops(name) {
			return true
		}
	}
	return false
}

// AppendRequest appends the fields of a request as edits leave them: those of h
// that are not in drop, then what the edits add.
func AppendRequest(dst []byte, h *http1.Head, b []byte, drop http1.Set, edits []*Edits) []byte {
	if len(edits) == 0 {
		return h.AppendFields(dst, b, drop, nil)
	}
	return appendAdded(h.AppendFields(dst, b, drop, requestEdits(edits)), edits, ofRequest)
}

// AppendResponse is AppendRequest for responses.
func AppendResponse(dst []byte, h *http1.Head, b []byte, drop http1.Set, edits []*Edits) []byte {
	if len(edits) == 0 {
		return h.AppendFields(dst, b, drop, nil)
	}
	return appendAdded(h.AppendFields(dst, b, drop, responseEdits(edits)), edits, ofResponse)
}

// AppendAnswer appends the fields of an answer of our own as edits leave them.
func AppendAnswer(dst, fields []byte, edits []*Edits) []byte {
	return appendAdded(appendKept(dst, fields, edits, ofResponse), edits, ofResponse)
}

func ofRequest(e *Edits) *FieldEdits  { return &e.Request }
func ofResponse(e *Edits) *FieldEdits { return &e.Response }

// appendAdded appends what each of edits adds, but for what later ones drop.
func appendAdded(dst []byte, edits []*Edits, side func(*Edits) *FieldEdits) []byte {
	for i, e := range edits {
		dst = appendKept(dst, side(e).Add, edits[i+1:], side)
	}
	return dst
}

// appendKept appends added lines, but for those that later edits drop.
func appendKept(dst, lines []byte, later []*Edits, side func(*Edits) *FieldEdits) []byte {
	for len(lines) > 0 {
		end := 0
		for lines[end] != '\n' {
			end++
		}
		end++
		colon := 0
		for lines[colon] != ':' {
			colon++
		}
		kept := true
		for _, e := range later {
			kept = kept && !side(e).Drops(lines[:colon])
		}
		if kept {
			dst = append(dst, lines[:end]...)
		}
		lines = lines[end:]
	}
	return dst
}
