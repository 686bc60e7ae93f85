package conntrack

import "time"

// States of an entry. An entry of a protocol other than TCP is in handshake while
// one packet of its flow was seen, and established from the second on.
const (
	none = iota // the place is free
	handshake
	established
	closing
)

// Classes of protocols, each with its own times.
const (
	tcp = iota
	udp
	other
)

// A word is what an entry says besides its key: state (2 bits), slot in the
// service's pool (14 bits), and when a packet of the flow was seen last, in ticks
// of the class and state (16 bits, wrapping).
func word(state, slot uint32, stamp uint16) uint32 {
	return state<<30 | slot<<16 | uint32(stamp)
}

func stateOf(w uint32) uint32 { return w >> 30 }
func slotOf(w uint32) uint32  { return w >> 16 & 0x3fff }

// clock turns the vectors' clock into ticks. A tick is 2^shift ns, as short as 16 bits
// allow: at least 17 ms, and so long that a time to live is at most 3/8 of the
// wrap. The sweep visits every entry in the remaining 5/8, so that an age is
// never ambiguous. All arrays are by class<<2 | state.
type clock struct {
	now   [16]uint16
	ttl   [16]uint16 // in ticks, rounded up
	shift [16]uint8
	ns    [16]int64
}

const (
	minShift = 24
	maxTicks = 24576
)

func newClock(t *Timeouts) clock {
	var c clock
	set := func(class, state int, d time.Duration) {
		k, shift := class<<2|state, uint8(minShift)
		for (int64(d)-1)>>shift+1 > maxTicks {
			shift++
		}
		c.ns[k], c.shift[k], c.ttl[k] = int64(d), shift, uint16((int64(d)-1)>>shift+1)
	}
	set(tcp, handshake, t.TCPHandshake)
	set(tcp, established, t.TCPEstablished)
	set(tcp, closing, t.TCPClosing)
	for state := handshake; state <= closing; state++ {
		set(udp, state, t.UDP)
		set(other, state, t.Other)
	}
	return c
}

// set moves the clock to now, in nanoseconds.
func (c *clock) set(now int64) {
	for k := range c.now {
		c.now[k] = uint16(now >> (c.shift[k] & 63))
	}
}

// age answers the ticks since the word was stamped.
func (c *clock) age(k uint32, w uint32) uint16 { return c.now[k&15] - uint16(w) }

// over tells whether the time of an entry is over: it lived for its time to live
// in full, and for two ticks more at most.
func (c *clock) over(k uint32, w uint32) bool { return c.age(k, w) > c.ttl[k&15] }

// nanos answers the time since the word was stamped.
func (c *clock) nanos(k uint32, w uint32) int64 { return int64(c.age(k, w)) << (c.shift[k&15] & 63) }

// latest answers the latest time at which the word can have been stamped, up to now:
// taken for the time of its packet, it makes no life shorter, and it stays in the
// same tick however often an entry goes from clock to clock.
func (c *clock) latest(k uint32, w uint32, now int64) int64 {
	shift := c.shift[k&15] & 63
	return min(now, (now>>shift-int64(c.age(k, w))+1)<<shift-1)
}

// same tells whether stamps mean the same on both clocks.
func (c *clock) same(d *clock) bool { return c.shift == d.shift }
