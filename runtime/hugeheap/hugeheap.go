// Package hugeheap puts the garbage collector's heap on huge pages.
//
// What a connection needs lies on some ten pages of memory: the stack of its goroutine,
// buffers, descriptors. A thousand busy connections need more pages than a processor
// keeps translations of, and each one that is missing is a walk through the page tables,
// which takes twice as many steps in a virtual machine. Where the system gives huge pages
// to whoever asks for them (madvise in /sys/kernel/mm/transparent_hugepage/enabled), Go's
// runtime does not ask.
package hugeheap

import (
	"bytes"
	"os"
	"runtime/debug"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// enabled says to whom the kernel gives huge pages, the setting in force in brackets.
const enabled = "/sys/kernel/mm/transparent_hugepage/enabled"

// arena is what the runtime reserves addresses by, on all 64-bit systems but Windows.
const arena = 64 << 20

var once sync.Once

// Reserve asks the kernel for huge pages for size bytes of the heap, once in a process: a
// further call does nothing. What the heap has beyond them is on pages as before. It
// takes addresses, not memory: the kernel gives pages when they are written to.
//
// The runtime maps the heap piece by piece, and what was asked for a piece is forgotten
// where it is mapped anew. So it has to be mapped before: by an object of that size, which
// nobody writes to and which is garbage at once. The runtime allocates at the lowest free
// address first, so what follows stands where it stood.
func Reserve(size int) {
	once.Do(func() {
		setting, err := os.ReadFile(enabled)
		if err != nil || !asks(setting) || !addresses(size) {
			return
		}
		object := make([]byte, size)
		end := uintptr(unsafe.Pointer(unsafe.SliceData(object))) + uintptr(size)
		begin := (end - uintptr(size)) &^ (arena - 1) // what was allocated so far as well
		// It is asked for what is mapped, even if it says that not all is.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, begin, end-begin, unix.MADV_HUGEPAGE)
		object = nil
		debug.FreeOSMemory() // the runtime counts it as free and given back
	})
}

// asks tells whether whoever wants huge pages has to ask for them, and gets them.
func asks(setting []byte) bool { return bytes.Contains(setting, []byte("[madvise]")) }

// addresses tells whether the process may have that many bytes of addresses: where they
// are limited, the runtime would end the process for an object that is too large.
func addresses(size int) bool {
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false
	}
	_ = unix.Munmap(m)
	return true
}
