package http1

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// all reads a body in steps of so many bytes, and answers its content, what is left
// of p, and how the framing was.
func all(p []byte, f Framing, step int) (content, rest []byte, err error) {
	var b Body
	b.Begin(f)
	for len(p) > 0 && !b.Ended() && !b.AtTrailers() {
		piece := p[:min(step, len(p))]
		for len(piece) > 0 && !b.Ended() && !b.AtTrailers() {
			c, n, err := b.Next(piece)
			content = append(content, c...)
			if err != nil {
				return content, p, err
			}
			p, piece = p[n:], piece[n:]
		}
	}
	if !b.Ended() && !b.AtTrailers() && !b.Open() {
		return content, p, io.ErrUnexpectedEOF
	}
	return content, p, nil
}

func TestBody(t *testing.T) {
	for _, c := range []struct {
		framing       Framing
		text          string
		content, rest string
		err           error
	}{
		{0, "next", "", "next", nil},
		{5, "hellonext", "hello", "next", nil},
		{5, "hell", "hell", "", io.ErrUnexpectedEOF},
		{UntilClose, "hello", "hello", "", nil},
		{Chunked, "5\r\nhello\r\n0\r\n\r\nnext", "hello", "\r\nnext", nil},
		{Chunked, "5\r\nhello\r\n6;a=b;c=\"d\"\r\n world\r\n000\r\nT: x\r\n\r\n", "hello world", "T: x\r\n\r\n", nil},
		{Chunked, "0\r\n\r\n", "", "\r\n", nil},
		{Chunked, "0;x\r\n\r\n", "", "\r\n", nil},
		{Chunked, "A\r\n0123456789\r\n0\r\n\r\n", "0123456789", "\r\n", nil},
		{Chunked, "00a\r\n0123456789\r\n0\r\n\r\n", "0123456789", "\r\n", nil},
		{Chunked, "5\r\nhel", "hel", "", io.ErrUnexpectedEOF},
		{Chunked, "5\nhello\r\n0\r\n\r\n", "", "", ErrChunkSize},
		{Chunked, "5;a\nhello\r\n0\r\n\r\n", "", "", ErrChunk},
		{Chunked, "5;a\x00\r\nhello\r\n0\r\n\r\n", "", "", ErrChunk},
		{Chunked, "5;a\rb\r\nhello\r\n0\r\n\r\n", "", "", ErrChunk},
		{Chunked, "5\r\nhello\n0\r\n\r\n", "hello", "", ErrChunk},
		{Chunked, "5\r\nhello\rX0\r\n\r\n", "hello", "", ErrChunk},
		{Chunked, "5\r\nhelloX\r\n0\r\n\r\n", "hello", "", ErrChunk},
		{Chunked, "5\r\nhello0\r\n\r\n", "hello", "", ErrChunk},
		{Chunked, "5 \r\nhello\r\n0\r\n\r\n", "", "", ErrChunkSize},
		{Chunked, " 5\r\nhello\r\n0\r\n\r\n", "", "", ErrChunkSize},
		{Chunked, "+5\r\nhello\r\n0\r\n\r\n", "", "", ErrChunkSize},
		{Chunked, "-5\r\nhello\r\n0\r\n\r\n", "", "", ErrChunkSize},
		{Chunked, "0x5\r\nhello\r\n0\r\n\r\n", "", "", ErrChunkSize},
		{Chunked, "\r\nhello\r\n0\r\n\r\n", "", "", ErrChunkSize},
		{Chunked, ";a\r\nhello\r\n0\r\n\r\n", "", "", ErrChunkSize},
		{Chunked, "5\rhello\r\n0\r\n\r\n", "", "", ErrChunk},
		{Chunked, "10000000000000005\r\nhello\r\n0\r\n\r\n", "", "", ErrChunkSize},
		{Chunked, "ffffffffffffffff\r\nhello\r\n0\r\n\r\n", "", "", ErrChunkSize},
		{Chunked, "0000000000000005\r\nhello\r\n0\r\n\r\n", "", "", ErrChunkSize},
		{Chunked, "5;" + strings.Repeat("a", maxExtensions+1) + "\r\nhello\r\n0\r\n\r\n", "", "", ErrExtension},
		{Chunked, strings.Repeat("1;"+strings.Repeat("a", 1000)+"\r\nx\r\n", 17), strings.Repeat("x", 16), "", ErrExtension},
	} {
		for _, step := range []int{1, 2, 3, 7, len(c.text)} {
			content, rest, err := all([]byte(c.text), c.framing, step)
			if string(content) != c.content || err != c.err || c.err == nil && string(rest) != c.rest {
				t.Errorf("%.40q in steps of %d: %q, rest %q, %v", c.text, step, content, rest, err)
			}
		}
		// As it is framed.
		var b Body
		b.Begin(c.framing)
		n, err := b.Scan([]byte(c.text))
		if c.err == nil && (err != nil || c.text[n:] != c.rest) {
			t.Errorf("%.40q: Scan takes %d, %v", c.text, n, err)
		}
		if c.err != nil && c.err != io.ErrUnexpectedEOF && err != c.err {
			t.Errorf("%.40q: Scan says %v", c.text, err)
		}
	}
}

func TestBodySkip(t *testing.T) {
	var b Body
	b.Begin(10)
	if n, _ := b.Scan([]byte("hello")); n != 5 || b.Left() != 5 || !b.Counted() {
		t.Errorf("%d, %d left", n, b.Left())
	}
	if b.Skip(5); !b.Ended() || b.Left() != 0 {
		t.Error("it has not ended")
	}
	b.Begin(Chunked)
	if n, _ := b.Scan([]byte("a\r\nhello")); n != 8 || b.Left() != 5 || b.Counted() {
		t.Errorf("%d, %d left", n, b.Left())
	}
	b.Skip(5)
	if n, err := b.Scan([]byte("\r\n0\r\n")); n != 5 || err != nil || !b.AtTrailers() {
		t.Errorf("%d, %v", n, err)
	}
	if b.EndTrailers(); !b.Ended() {
		t.Error("it has not ended")
	}
}

func TestTrailers(t *testing.T) {
	text := "A: 1\r\nContent-Length: 5\r\nX_Forwarded_For: x\r\nB: 2\r\n\r\nnext"
	var tr Trailers
	tr.Reset()
	ok, err := tr.Parse([]byte(text), &Limits{})
	if !ok || err != nil || text[tr.Size:] != "next" {
		t.Fatalf("%v, %v, %d", ok, err, tr.Size)
	}
	if got := string(tr.AppendFields(nil, []byte(text), TrailerDrop, nil)); got != "A: 1\r\nB: 2\r\n" {
		t.Errorf("%q goes on", got)
	}
	for _, c := range []struct {
		text string
		want error
	}{
		{"A : x\r\n\r\n", ErrName}, {"A: x\n\r\n", ErrBareLF}, {"\n", ErrBareLF}, {" A: x\r\n\r\n", ErrFold},
		{"A: x\x00\r\n\r\n", ErrValue}, {strings.Repeat("A: x\r\n", 200), ErrFields}, {strings.Repeat("a", 20000), ErrHeadTooLarge},
	} {
		tr.Reset()
		if _, err := tr.Parse([]byte(c.text), &Limits{}); err != c.want {
			t.Errorf("%.30q: %v, want %v", c.text, err, c.want)
		}
	}
}

func TestResponses(t *testing.T) {
	for _, c := range []struct {
		text string
		m    Method
		want string
	}{
		{"HTTP/1.1 200 OK\nContent-Length: 5\n\n", GET, "200 OK body=5"},
		{"HTTP/1.1 200 OK\nContent-Length: 5\n\n", HEAD, "200 OK body=0"},
		{"HTTP/1.1 200 OK\n\n", GET, "200 OK body=-2"},
		{"HTTP/1.1 200\nContent-Length: 0\n\n", GET, "200 body=0"},
		{"HTTP/1.1 200 \nContent-Length: 0\n\n", GET, "200  body=0"},
		{"HTTP/1.1 404 Not \xe4\tFound\nTransfer-Encoding: chunked\n\n", GET, "404 Not \xe4\tFound body=-1"},
		{"HTTP/1.1 204 No Content\nContent-Length: 5\n\n", GET, "204 No Content body=0"},
		{"HTTP/1.1 304 Not Modified\nContent-Length: 5\n\n", GET, "304 Not Modified body=0"},
		{"HTTP/1.1 304 Not Modified\nTransfer-Encoding: chunked\n\n", GET, "304 Not Modified body=0"},
		{"HTTP/1.1 100 Continue\n\n", POST, "100 Continue body=0 informational"},
		{"HTTP/1.1 103 Early Hints\nLink: </a>\n\n", GET, "103 Early Hints body=0 informational"},
		{"HTTP/1.1 101 Switching Protocols\nConnection: Upgrade\nUpgrade: websocket\n\n", GET, "101 Switching Protocols body=0 upgrade"},
		{"HTTP/1.0 200 OK\n\n", GET, "200 OK body=-2 close"},
		{"HTTP/1.0 200 OK\nConnection: keep-alive\nContent-Length: 1\n\n", GET, "200 OK body=1"},
		{"HTTP/1.1 200 OK\nConnection: close\nContent-Length: 1\n\n", GET, "200 OK body=1 close"},
		{"HTTP/1.1 200 OK\nContent-Length: 1\nContent-Length: 1\n\n", GET, "200 OK body=1"},
	} {
		text := crlf(c.text)
		var r Response
		r.Reset()
		ok, err := r.Parse([]byte(text+"x"), &Limits{})
		if !ok || err != nil || r.Size != len(text) {
			t.Errorf("%q: %v, %v, size %d", c.text, ok, err, r.Size)
			continue
		}
		got := fmt.Sprintf("%s body=%d", r.Line.In([]byte(text)), r.Body(c.m))
		for _, w := range []struct {
			is   bool
			word string
		}{{r.Informational(), " informational"}, {r.Close, " close"}, {r.WantsUpgrade, " upgrade"}} {
			if w.is {
				got += w.word
			}
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
	for _, c := range []struct {
		text string
		want error
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", ErrBoth},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", ErrBoth},
		{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", ErrLengths},
		{"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n", ErrLength},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", ErrCodingName},
		{"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ErrCodingOld},
		{"HTTP/1.1 200OK\r\n\r\n", ErrStatusLine},
		{"HTTP/1.1 20 OK\r\n\r\n", ErrStatusLine},
		{"HTTP/1.1 600 OK\r\n\r\n", ErrStatusLine},
		{"HTTP/1.1 099 OK\r\n\r\n", ErrStatusLine},
		{"HTTP/1.1  200 OK\r\n\r\n", ErrStatusLine},
		{"HTTP/1.1 200 O\x00K\r\n\r\n", ErrValue},
		{"HTTP/2.0 200 OK\r\n\r\n", ErrNotSupported},
		{"ICY 200 OK there\r\n\r\n", ErrStatusLine},
		{"\r\nHTTP/1.1 200 OK\r\n\r\n", ErrStatusLine},
		{"HTTP/1.1 200 OK\nA: b\r\n\r\n", ErrBareLF},
		{"HTTP/1.1 200 OK\r\n A: b\r\n\r\n", ErrFold},
		{"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", ErrName},
	} {
		var r Response
		r.Reset()
		if _, err := r.Parse([]byte(c.text), &Limits{}); err != c.want {
			t.Errorf("%q: %v, want %v", c.text, err, c.want)
		}
	}
}

// Like TestRequestDifferential, for responses.
func TestResponseDifferential(t *testing.T) {
	both := 0
	for _, line := range []string{"HTTP/1.1 200 OK", "HTTP/1.0 200 OK", "HTTP/1.1 204 None", "HTTP/1.1 304", "HTTP/1.1 200 "} {
		for _, cl := range []string{"", "Content-Length: 3\r\n", "Content-Length: 3\r\nContent-Length: 3\r\n", "Content-Length: x\r\n"} {
			for _, te := range []string{"", "Transfer-Encoding: chunked\r\n", "Transfer-Encoding: gzip\r\n"} {
				for _, m := range []Method{GET, HEAD} {
					text := line + "\r\n" + cl + te + "\r\n"
					var r Response
					r.Reset()
					_, err := r.Parse([]byte(text), &Limits{})
					q, errq := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), &http.Request{Method: map[Method]string{GET: "GET", HEAD: "HEAD"}[m]})
					if err != nil {
						continue // net/http lets more pass
					}
					if errq != nil {
						t.Errorf("%q: net/http alone refuses it: %v", text, errq)
						continue
					}
					both++
					want := q.ContentLength
					if len(q.TransferEncoding) > 0 && m != HEAD {
						want = int64(Chunked)
					} else if q.ContentLength < 0 {
						want = int64(UntilClose)
					}
					if m == HEAD || r.Status == 204 || r.Status == 304 {
						want = 0
					}
					if int64(r.Body(m)) != want || r.Status != q.StatusCode {
						t.Errorf("%q to %v: framing %d, net/http %d", text, m, r.Body(m), want)
					}
				}
			}
		}
	}
	if both < 30 {
		t.Errorf("only %d taken by both", both)
	}
}

func TestBodyAllocs(t *testing.T) {
	text := []byte("HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n")
	var r Response
	var b Body
	var tr Trailers
	l := Limits{}
	if n := testing.AllocsPerRun(100, func() {
		r.Reset()
		if ok, err := r.Parse(text, &l); !ok || err != nil {
			t.Fatal(err)
		}
		b.Begin(r.Body(GET))
		p := text[r.Size:]
		n, err := b.Scan(p)
		tr.Reset()
		if ok, err2 := tr.Parse(p[n:], &l); !ok || err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What passes as a chunked body is one to net/http as well, with the same content;
// in whatever pieces it comes.
func FuzzBody(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0\r\n\r\n"), 3)
	f.Add([]byte("5;a=b\r\nhello\r\n00\r\nA: b\r\n\r\n"), 1)
	f.Fuzz(func(t *testing.T, p []byte, step int) {
		want, rest, err := all(p, Chunked, len(p)+1)
		got, restp, errp := all(p, Chunked, max(1, step&0xff))
		if !bytes.Equal(got, want) || err != errp || err == nil && !bytes.Equal(rest, restp) {
			t.Fatalf("at once %q, %v; in steps %q, %v", want, err, got, errp)
		}
		var tr Trailers
		tr.Reset()
		if ok, terr := tr.Parse(rest, &Limits{}); err != nil || terr != nil || !ok {
			return
		}
		q, err := http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"), bytes.NewReader(p))))
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(q.Body)
		if err != nil && !strings.Contains(err.Error(), "too much overhead") && !strings.Contains(err.Error(), "line too long") || err == nil && !bytes.Equal(content, want) {
			t.Fatalf("%q: %q, net/http %q, %v", p, want, content, err)
		}
	})
}

func FuzzParseResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: a\r\nA: b\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Response
		r.Reset()
		if ok, err := r.Parse(b, &Limits{}); !ok || err != nil {
			return
		}
		if r.Size > len(b) || r.Status < 100 || r.Status > 599 {
			t.Fatalf("%+v", r)
		}
		out := append([]byte("HTTP/1.1 200 OK\r\n"), r.AppendFields(nil, b, HopByHop, nil)...)
		out = append(out, "Content-Length: 0\r\n\r\n"...)
		if q, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(out)), nil); err != nil || q.ContentLength != 0 {
			t.Fatalf("%q goes on as %q: %v", b, out, err)
		}
	})
}
