package stream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// pair is the two ends of a connection of TCP.
func pair(t testing.TB) (*Conn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return NewConn(near), far.(*net.TCPConn)
}

func soon() int64 { return Now() + int64(30*time.Second) }

func TestAsk(t *testing.T) {
	c, far := pair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 16)
		for {
			n, err := far.Read(b)
			if err != nil {
				return
			}
			if _, err := far.Write(bytes.ToUpper(b[:n])); err != nil {
				return
			}
		}
	}()
	for i := range 100 {
		n, err := c.Ask([]byte("abc"), soon(), i%2 == 0)
		if n != 3 || err != nil || string(c.Buffered()) != "ABC" {
			t.Fatalf("%d, %v, %q", n, err, c.Buffered())
		}
		// What is buffered is kept, and read behind it is what comes.
		if i%10 == 9 {
			if n, err := c.Ask([]byte("d"), soon(), false); n != 1 || err != nil || string(c.Buffered()) != "ABCD" {
				t.Fatalf("%d, %v, %q", n, err, c.Buffered())
			}
		}
		c.Discard(len(c.Buffered()))
	}
	_ = c.Close()
	<-done
}

// More than the kernel takes at once goes out whole, while the peer reads.
func TestAskMuch(t *testing.T) {
	c, far := pair(t)
	much := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	got := make(chan int64)
	go func() {
		time.Sleep(20 * time.Millisecond) // the buffers are full
		n, _ := io.CopyN(io.Discard, far, int64(len(much)))
		_, _ = far.Write([]byte("thanks"))
		got <- n
	}()
	n, err := c.Ask(much, soon(), true)
	if n != len(much) || err != nil || string(c.Buffered()) != "thanks" {
		t.Errorf("%d, %v, %q", n, err, c.Buffered())
	}
	if k := <-got; k != int64(n) {
		t.Errorf("%d bytes have come", k)
	}
}

// A connection that is not quiet is not asked: whether bytes are there or an end, and
// however long they have been.
func TestAskNeedsQuiet(t *testing.T) {
	for name, spoil := range map[string]func(*net.TCPConn) error{
		"bytes": func(f *net.TCPConn) error { _, err := f.Write([]byte("stray")); return err },
		"end":   func(f *net.TCPConn) error { return f.CloseWrite() },
		"reset": func(f *net.TCPConn) error { return errors.Join(f.SetLinger(0), f.Close()) },
	} {
		c, far := pair(t)
		if err := spoil(far); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); c.Quiet() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(20 * time.Millisecond) // the poller has told of it, too
		if n, err := c.Ask([]byte("abc"), soon(), true); n != 0 || err != ErrNotQuiet {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		if name == "bytes" {
			// Who does not mind gets them.
			if n, err := c.Ask([]byte("abc"), soon(), false); n != 3 || err != nil || string(c.Buffered()) != "stray" {
				t.Errorf("%d, %v, %q", n, err, c.Buffered())
			}
		}
	}
}

// The wait ends by time, by an end, and by Interrupt; each tells that all was written.
func TestAskEnds(t *testing.T) {
	c, _ := pair(t)
	at := time.Now()
	if n, err := c.Ask([]byte("abc"), Now()+int64(50*time.Millisecond), true); n != 3 || !IsTimeout(err) || time.Since(at) < 50*time.Millisecond {
		t.Errorf("no answer: %d, %v after %v", n, err, time.Since(at))
	}
	// The deadline is that of the wait: what is asked goes out in any case.
	c, far := pair(t)
	if n, err := c.Ask([]byte("abc"), Now()-1, true); n != 3 || !IsTimeout(err) {
		t.Errorf("too late: %d, %v", n, err)
	}
	if b := make([]byte, 3); func() error { _, err := io.ReadFull(far, b); return err }() != nil || string(b) != "abc" {
		t.Errorf("too late: %q came", b)
	}
	if _, err := far.Write([]byte("stray")); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); c.Quiet() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n, err := c.Ask([]byte("abc"), Now()-1, true); n != 0 || err != ErrNotQuiet {
		t.Errorf("too late, and not quiet: %d, %v", n, err)
	}
	// An older one that fires between two questions is not the second one's.
	c, far = pair(t)
	for range 2 {
		go func(far *net.TCPConn) {
			_, _ = far.Read(make([]byte, 3))
			_, _ = far.Write([]byte("x"))
		}(far)
		if n, err := c.Ask([]byte("abc"), Now()+int64(5*time.Second), true); n != 3 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		c.Discard(1)
		_ = c.sock.Conn.SetReadDeadline(past) // as if it were 5 s later
	}
	// A deadline that has fired does not spoil the next one.
	c, far = pair(t)
	for range 3 {
		if n, err := c.Ask([]byte("a"), Now()+int64(time.Millisecond), true); n != 1 || !IsTimeout(err) {
			t.Errorf("%d, %v", n, err)
		}
	}
	if _, err := far.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	if err := c.Fill(soon()); err != nil || string(c.Buffered()) != "late" {
		t.Errorf("%v, %q", err, c.Buffered())
	}

	c, far = pair(t)
	go func(far *net.TCPConn) {
		_, _ = far.Read(make([]byte, 3))
		_ = far.CloseWrite()
	}(far)
	if n, err := c.Ask([]byte("abc"), soon(), true); n != 3 || err != io.EOF {
		t.Errorf("an end: %d, %v", n, err)
	}

	c, far = pair(t)
	go func(c *Conn, far *net.TCPConn) {
		_, _ = far.Read(make([]byte, 3))
		c.Interrupt()
	}(c, far)
	if n, err := c.Ask([]byte("abc"), soon(), true); n != 3 || err != ErrInterrupted {
		t.Errorf("interrupted: %d, %v", n, err)
	}
	if n, err := c.Ask([]byte("abc"), soon(), true); n != 0 || err != ErrInterrupted {
		t.Errorf("while interrupted: %d, %v", n, err)
	}
	c.Resume()
	if _, err := far.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Ask([]byte("abc"), soon(), false); n != 3 || err != nil {
		t.Errorf("after that: %d, %v", n, err)
	}

	c, _ = pair(t)
	_ = c.Close()
	if n, err := c.Ask([]byte("abc"), soon(), true); n != 0 || err == nil {
		t.Errorf("closed: %d, %v", n, err)
	}
}

// Asking allocates nothing once a connection has been asked.
func TestAskAllocatesNothing(t *testing.T) {
	c, far := pair(t)
	go func() { _, _ = io.Copy(far, far) }()
	q := []byte("abc")
	once := func() {
		if _, err := c.Ask(q, soon(), true); err != nil {
			t.Fatal(err)
		}
		c.Discard(len(c.Buffered()))
		c.Release()
	}
	once()
	if n := testing.AllocsPerRun(200, once); n >= 1 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAsk(b *testing.B) {
	c, far := pair(b)
	go func() { _, _ = io.Copy(far, far) }()
	q := []byte("abc")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Ask(q, soon(), true); err != nil {
			b.Fatal(err)
		}
		c.Discard(len(c.Buffered()))
	}
}

// A shorter time without progress holds from the next write on, though a longer one has
// begun.
func TestWriteIdleIsShortened(t *testing.T) {
	c, far := pair(t)
	c.SetWriteIdle(time.Hour)
	if _, err := c.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	c.SetWriteIdle(100 * time.Millisecond)
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, 64<<20)) // nobody reads
		done <- err
	}()
	select {
	case err := <-done:
		if !IsTimeout(err) {
			t.Errorf("%v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it still waits")
		_ = far.Close()
		<-done
	}
}
