package streams

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lbgraph/lbgraph/io/stream"
)

// A guard looks at the frames that a client of HTTP/2 sends (RFC 9113 section 4), on
// their way to net/http, and bounds what that does not: frames that carry nothing, such
// as PING, SETTINGS, RST_STREAM and empty ones, and the time that the preface and a
// header block take.
//
// A frame without content costs frameCost bytes of a balance, which grows by what
// the connection carries both ways and a little by time: who asks and gets answers is
// not bounded, and who cancels every request, or pings all the time, is soon.
type guard struct {
	preface int // bytes of it to come
	head    [9]byte
	have    int    // bytes of a frame's head that came
	left    uint32 // bytes of a frame's content to come
	block   bool   // a header block has begun, and not ended
	since   int64  // when that, or the preface, began

	balance int64
	at      int64        // when time was last counted
	written atomic.Int64 // bytes since then; of who writes
}

const (
	frameCost    = 8
	floodBurst   = 1000 * frameCost                        // a balance is no larger
	floodPerByte = int64(100*time.Millisecond) / frameCost // nanoseconds for a byte of it
)

// Frames, and a flag, that the guard knows.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameSettings     = 0x4
	framePing         = 0x6
	frameContinuation = 0x9
	flagEndHeaders    = 0x4
)

// Sizes of the frames that answer others.
const (
	answerSettings = 9
	answerReset    = 13
	answerPing     = 17
)

func newGuard() guard {
	now := stream.Now()
	return guard{preface: len(prefaceText), since: now, balance: floodBurst, at: now}
}

var errFlood = errors.New("too many frames of HTTP/2 without content")

// by answers when a read fails that waits for more of what has begun.
func (g *guard) by(t time.Duration) int64 {
	if g.preface > 0 || g.block {
		return g.since + int64(t)
	}
	return stream.Never
}

// take takes note of bytes that came.
func (g *guard) take(p []byte) error {
	n := min(g.preface, len(p))
	g.preface -= n // net/http looks whether it is one
	p = p[n:]
	for len(p) > 0 {
		if g.left > 0 {
			n := min(int(g.left), len(p))
			g.left -= uint32(n)
			p = p[n:]
			if g.left == 0 {
				g.ended()
			}
			continue
		}
		n := copy(g.head[g.have:], p)
		g.have += n
		p = p[n:]
		if g.have < len(g.head) {
			return nil
		}
		g.have = 0
		if err := g.frame(); err != nil {
			return err
		}
	}
	return nil
}

// frame takes note of a frame's head.
func (g *guard) frame() error {
	g.left = binary.BigEndian.Uint32(g.head[:4]) >> 8
	cost := int64(frameCost)
	// What net/http answers to a frame of no use is no content either.
	switch g.head[3] {
	case frameData:
		if cost = -int64(g.left); cost == 0 {
			cost = frameCost + answerReset
		}
	case frameHeaders:
		cost = 0 // a request, for which there are other bounds
		g.block, g.since = true, stream.Now()
	case frameSettings:
		cost += answerSettings
	case framePing:
		cost += answerPing
	}
	if g.left == 0 {
		g.ended()
	}
	g.balance -= cost
	if g.balance < 0 || g.balance > floodBurst {
		now := stream.Now()
		g.balance = min(g.balance+g.written.Swap(0)+(now-g.at)/floodPerByte, floodBurst)
		g.at = now
		if g.balance < 0 {
			return errFlood
		}
	}
	return nil
}

// ended takes note that the frame in hand has come.
func (g *guard) ended() {
	if kind := g.head[3]; (kind == frameHeaders || kind == frameContinuation) && g.head[4]&flagEndHeaders != 0 {
		g.block = false
	}
}
