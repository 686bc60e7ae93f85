package stream

import "sync"

// Sizes of buffers. Most messages fit the small one whole; the large one is for
// heads up to the limits, and for bodies in bulk.
const (
	SmallBuffer = 16 << 10
	LargeBuffer = 64 << 10
)

var (
	small = sync.Pool{New: func() any { return new([SmallBuffer]byte) }}
	large = sync.Pool{New: func() any { return new([LargeBuffer]byte) }}
)

// GetBuffer answers a buffer of SmallBuffer bytes, or of LargeBuffer if it has to
// have more. Its content is arbitrary.
func GetBuffer(size int) []byte {
	if size > SmallBuffer {
		return large.Get().(*[LargeBuffer]byte)[:]
	}
	return small.Get().(*[SmallBuffer]byte)[:]
}

// PutBuffer gives a buffer of GetBuffer back; others, and nil, are left alone.
func PutBuffer(b []byte) {
	switch cap(b) {
	case SmallBuffer:
		small.Put((*[SmallBuffer]byte)(b[:SmallBuffer]))
	case LargeBuffer:
		large.Put((*[LargeBuffer]byte)(b[:LargeBuffer]))
	}
}
