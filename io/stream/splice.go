package stream

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// pipeSize is the size of a pipe in pages, each of which may hold a larger piece of
// memory than a page: pieceSize is how much a splice moves at most.
const (
	pipeSize  = 256 << 10
	pieceSize = 1 << 20
)

// pipes keeps pipes for splice: making one costs more than moving a small body.
var pipes = sync.Pool{}

type pipe struct{ r, w *os.File }

func getPipe() (*pipe, error) {
	if p, ok := pipes.Get().(*pipe); ok {
		return p, nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	// Larger ones move more at once; unprivileged users may have used up theirs.
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize)
	// os.NewFile closes them when the pool lets go of them.
	return &pipe{os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe")}, nil
}

// Splice moves bytes from src to dst in the kernel, past any buffer of ours, which
// must be empty: n of them, or with a negative n all up to the end. idle is the time
// without progress from src, in nanoseconds, after which it gives up, by the time by
// which it does in any case; progress, unless nil, is told how many bytes went. Both
// connections have to be Plain.
func Splice(dst, src *Conn, n, idle, by int64, progress func(int64)) (moved int64, err error) {
	p, err := getPipe()
	if err != nil {
		return 0, err
	}
	clean := true
	defer func() {
		if clean {
			pipes.Put(p)
		} else {
			_, _ = p.r.Close(), p.w.Close()
		}
	}()
	pr, pw := int(p.r.Fd()), int(p.w.Fd())
	for n != 0 {
		most := int64(pieceSize)
		if n > 0 {
			most = min(most, n)
		}
		src.readBy = by
		if idle > 0 {
			src.readBy = min(by, Now()+idle)
		}
		k, err := src.spliceIn(pw, int(most))
		if err != nil || k == 0 {
			if err == nil && n > 0 {
				err = io.ErrUnexpectedEOF
			}
			return moved, err
		}
		for left := k; left > 0; {
			m, err := dst.spliceOut(pr, left)
			if err != nil {
				clean = false // bytes are left in it
				return moved, &WriteError{err}
			}
			left -= m
			moved += int64(m)
			if progress != nil {
				progress(int64(m))
			}
		}
		if n > 0 {
			n -= int64(k)
		}
	}
	return moved, nil
}

// A WriteError is an error of Splice on the side to which it writes.
type WriteError struct{ Err error }

// Error is part of error.
func (e *WriteError) Error() string { return e.Err.Error() }

// Unwrap answers the cause.
func (e *WriteError) Unwrap() error { return e.Err }

const spliceFlags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK

// spliceIn moves up to most bytes from the socket into a pipe. 0 is the end.
func (s *sock) spliceIn(pipe, most int) (n int, err error) {
	var failed error
	try := func(fd uintptr) bool {
		k, err := unix.Splice(int(fd), nil, pipe, nil, most, spliceFlags)
		for err == unix.EINTR {
			k, err = unix.Splice(int(fd), nil, pipe, nil, most, spliceFlags)
		}
		if err == unix.EAGAIN {
			return false
		}
		n, failed = int(k), err
		s.came(n)
		return true
	}
	for {
		if err := s.armRead(); err != nil {
			return 0, err
		}
		err := s.raw.Read(try)
		switch {
		case err == nil && failed != nil:
			return 0, &net.OpError{Op: "splice", Net: "tcp", Err: os.NewSyscallError("splice", failed)}
		case err == nil:
			return n, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, err
		}
		if err := s.expired(); err != nil {
			return 0, err
		}
	}
}

// spliceOut moves bytes from a pipe to the socket, at least one.
func (s *sock) spliceOut(pipe, most int) (n int, err error) {
	var failed error
	try := func(fd uintptr) bool {
		k, err := unix.Splice(pipe, nil, int(fd), nil, most, spliceFlags)
		for err == unix.EINTR {
			k, err = unix.Splice(pipe, nil, int(fd), nil, most, spliceFlags)
		}
		if err == unix.EAGAIN {
			return false
		}
		n, failed = int(k), err
		s.went(n)
		return true
	}
	s.armWrite(false)
	for begun := int64(0); ; {
		err := s.raw.Write(try)
		switch {
		case err == nil && failed != nil:
			return 0, &net.OpError{Op: "splice", Net: "tcp", Err: os.NewSyscallError("splice", failed)}
		case err == nil:
			return n, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, err
		}
		if begun, err = s.again(begun, 0); err != nil {
			return 0, err
		}
	}
}
