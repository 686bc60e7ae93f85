package umem

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestHandOver(t *testing.T) {
	for _, huge := range []bool{false, true} {
		m, err := New(100, 2048, huge)
		if err != nil {
			t.Fatal(err)
		}
		if m.Frames() < 100 || m.Chunk() != 2048 || len(m.Bytes()) != m.Frames()*2048 {
			t.Errorf("huge %v: %d frames of %d in %d bytes", huge, m.Frames(), m.Chunk(), len(m.Bytes()))
		}
		if err := unix.Ftruncate(m.FD(), 4096); err == nil {
			t.Error("the memory can be cut short")
		}
		fd, err := unix.Dup(m.FD())
		if err != nil {
			t.Fatal(err)
		}
		other, err := Open(fd, 2048)
		if err != nil {
			t.Fatal(err)
		}
		if other.Frames() != m.Frames() || other.Huge() != m.Huge() {
			t.Errorf("the other has %d frames, huge %v; want %d, %v", other.Frames(), other.Huge(), m.Frames(), m.Huge())
		}
		last := len(m.Bytes()) - 1
		m.Bytes()[last] = 42
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if got := other.Bytes()[last]; got != 42 {
			t.Errorf("the other reads %d", got)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		if err := other.Close(); err != nil {
			t.Errorf("closing again: %v", err)
		}
	}
}

func TestHeap(t *testing.T) {
	m, err := Heap(3, 4096)
	if err != nil {
		t.Fatal(err)
	}
	if m.Frames() != 3 || m.FD() != -1 || len(m.Bytes()) != 3*4096 {
		t.Errorf("%d frames, descriptor %d", m.Frames(), m.FD())
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		frames int
		chunk  uint32
	}{{0, 2048}, {-1, 2048}, {1, 0}, {1, 1024}, {1, 3000}, {1<<21 + 1, 2048}} {
		if _, err := New(c.frames, c.chunk, false); err == nil {
			t.Errorf("New(%d, %d) makes memory", c.frames, c.chunk)
		}
		if _, err := Heap(c.frames, c.chunk); err == nil {
			t.Errorf("Heap(%d, %d) makes memory", c.frames, c.chunk)
		}
	}
	unsealed, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(unsealed, 1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(unsealed, 2048); err == nil {
		t.Error("Open takes memory that can be cut short")
	}
	if _, err := unix.FcntlInt(uintptr(unsealed), unix.F_GETFD, 0); err == nil {
		t.Error("Open leaves the descriptor open")
	}
	m, err := New(3, 2048, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	for _, chunk := range []uint32{0, 16384, 1000} {
		fd, _ := unix.Dup(m.FD())
		if _, err := Open(fd, chunk); err == nil {
			t.Errorf("Open takes chunks of %d", chunk)
		}
	}
}
