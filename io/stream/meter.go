package stream

import "sync/atomic"

// A Meter counts the bytes that sockets carry, with heads and TLS. It has the
// size of a cache line, so that two cores that count by two of them seldom meet.
type Meter struct {
	// In is what was read, Out what was written.
	In, Out atomic.Uint64
	_       [48]byte
}

// Measure has m count what the connection carries from now on.
func (c *Conn) Measure(m *Meter) { c.meter = m }

func (s *sock) came(n int) {
	if s.meter != nil && n > 0 {
		s.meter.In.Add(uint64(n))
	}
}

func (s *sock) went(n int) {
	if s.meter != nil && n > 0 {
		s.meter.Out.Add(uint64(n))
	}
}
