// Package umem makes the memory that frames are chunks of: one stretch per
// graph, in a memfd so that another process can go on with it, or on the heap
// where no kernel reads it.
package umem

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Memory is Frames chunks of Chunk bytes. Its methods but Close may be called from
// any goroutine.
type Memory struct {
	mem   []byte
	chunk uint32
	fd    int
	huge  bool
}

// HugePage is the size that MFD_HUGETLB gives without a size flag on amd64, and on
// arm64 with 4 KiB pages.
const HugePage = 2 << 20

// check answers the size in bytes. Offsets into the memory are 32 bits wide.
func check(frames int, chunk uint32) (int, error) {
	if chunk < 2048 || chunk&(chunk-1) != 0 {
		return 0, fmt.Errorf("a chunk has %d bytes; it must be a power of two from 2048", chunk)
	}
	if frames <= 0 || uint64(frames) > 1<<32/uint64(chunk) {
		return 0, fmt.Errorf("%d frames of %d bytes; there must be 1 to %d", frames, chunk, 1<<32/uint64(chunk))
	}
	return frames * int(chunk), nil
}

// New makes memory in a sealed memfd, mapped shared and present in full. With huge,
// it stands in huge pages as far as the kernel has them reserved; else, and where
// it has none, in transparent ones if the kernel permits. There may be more frames
// than asked for, to fill the last page.
func New(frames int, chunk uint32, huge bool) (*Memory, error) {
	size, err := check(frames, chunk)
	if err != nil {
		return nil, err
	}
	if huge {
		if m, err := create((size+HugePage-1)&^(HugePage-1), chunk, unix.MFD_HUGETLB); err == nil {
			m.huge = true
			return m, nil
		}
	}
	page := unix.Getpagesize()
	m, err := create((size+page-1)&^(page-1), chunk, 0)
	if err != nil {
		return nil, fmt.Errorf("memory for %d frames of %d bytes: %w", frames, chunk, err)
	}
	return m, nil
}

func create(size int, chunk uint32, flags int) (*Memory, error) {
	fd, err := unix.MemfdCreate("lbgraph-frames", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		return nil, err
	}
	m := &Memory{chunk: chunk, fd: fd}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		// Nobody it is handed to can cut it short under the kernel's and our feet.
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		err = m.mmap(size)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return m, nil
}

func (m *Memory) mmap(size int) (err error) {
	m.mem, err = unix.Mmap(m.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	_ = unix.Madvise(m.mem, unix.MADV_HUGEPAGE) // before the pages are there
	if unix.Madvise(m.mem, unix.MADV_POPULATE_WRITE) != nil {
		for i := 0; i < len(m.mem); i += unix.Getpagesize() { // before Linux 5.14
			p := &m.mem[i]
			*p |= 0
		}
	}
	return nil
}

// Open maps the memory behind fd, which FD of another Memory answered, perhaps in
// another process. It belongs to the Memory from then on, also on error.
func Open(fd int, chunk uint32) (*Memory, error) {
	m := &Memory{chunk: chunk, fd: fd}
	fail := func(err error) (*Memory, error) {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("memory handed over: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return fail(errors.New("not a sealed memfd"))
	}
	if chunk == 0 || st.Size%int64(chunk) != 0 {
		return fail(fmt.Errorf("%d bytes are not chunks of %d", st.Size, chunk))
	}
	if _, err := check(int(st.Size/int64(chunk)), chunk); err != nil {
		return fail(err)
	}
	m.huge = st.Blksize >= HugePage
	if err := m.mmap(int(st.Size)); err != nil {
		return fail(err)
	}
	return m, nil
}

// Heap makes memory that the garbage collector owns, for ports without a kernel
// behind them.
func Heap(frames int, chunk uint32) (*Memory, error) {
	size, err := check(frames, chunk)
	if err != nil {
		return nil, err
	}
	return &Memory{mem: make([]byte, size), chunk: chunk, fd: -1}, nil
}

// Bytes is all of it; valid until Close.
func (m *Memory) Bytes() []byte { return m.mem }

// Chunk is the size of a frame in bytes, a power of two.
func (m *Memory) Chunk() uint32 { return m.chunk }

// Frames is the number of frames.
func (m *Memory) Frames() int { return len(m.mem) / int(m.chunk) }

// FD is the memfd, or −1 on the heap. It stays the Memory's.
func (m *Memory) FD() int { return m.fd }

// Huge tells whether it stands in reserved huge pages.
func (m *Memory) Huge() bool { return m.huge }

// Close gives the memory back. Nobody may use it any more, sockets included.
func (m *Memory) Close() error {
	mem, fd := m.mem, m.fd
	m.mem, m.fd = nil, -1
	if fd < 0 {
		return nil
	}
	return errors.Join(unix.Munmap(mem), unix.Close(fd))
}
