package stream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// What a connection that broke left in a pipe never comes out to another one.
func TestSpliceLeavesNothing(t *testing.T) {
	for i := range 20 {
		src, from := pair(t)
		dst, to := pair(t)
		if _, err := from.Write(bytes.Repeat([]byte("secret"), 1000)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(to.SetLinger(0), to.Close()); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); dst.LookAtPeer() != Gone && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		var failed *WriteError
		if n, err := Splice(dst, src, 6000, 0, soon(), nil); !errors.As(err, &failed) {
			t.Fatalf("towards nobody: %d, %v", n, err)
		}
		src, from = pair(t)
		dst, to = pair(t)
		if _, err := from.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if n, err := Splice(dst, src, 5, 0, soon(), nil); n != 5 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		if got := readN(t, to, 5); got != "hello" {
			t.Fatalf("%d: another's bytes come: %q", i, got)
		}
	}
}

func readN(t testing.TB, c net.Conn, n int) string {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Error(err)
	}
	return string(b)
}

// An end is one only where the length is not known.
func TestSpliceEnds(t *testing.T) {
	for most, want := range map[int64]error{-1: nil, 5: nil, 9: io.ErrUnexpectedEOF} {
		src, from := pair(t)
		dst, to := pair(t)
		if _, err := from.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		_ = from.CloseWrite()
		told := int64(0)
		if n, err := Splice(dst, src, most, 0, soon(), func(k int64) { told += k }); n != 5 || told != 5 || err != want {
			t.Errorf("up to %d: %d moved, %d told, %v", most, n, told, err)
		}
		if got := readN(t, to, 5); got != "hello" {
			t.Errorf("%q", got)
		}
	}
	src, _ := pair(t)
	dst, _ := pair(t)
	if n, err := Splice(dst, src, 5, int64(20*time.Millisecond), soon(), nil); n != 0 || !IsTimeout(err) {
		t.Errorf("nothing comes: %d, %v", n, err)
	}
}
