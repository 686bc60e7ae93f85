// Package gen is a port that makes up traffic: so many flows of clients towards
// targets, at a rate, in sizes and a mix of protocols, or as a SYN flood. The same
// configuration and targets give the same packets in the same order, whatever the
// machine; only a rate makes their timing depend on it.
//
// Clients have addresses of the ranges for benchmarks: 198.18.0.0/15 (RFC 2544
// appendix C.2.2, RFC 6890) and 2001:2::/48 (RFC 5180 §8).
package gen

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/io/mem"
	"github.com/lbgraph/lbgraph/io/packet"
)

// MaxSize is the longest frame that is made, in bytes.
const MaxSize = 9018

// MaxFlows is the number of clients that differ in address or port.
const MaxFlows = 1 << 26

// A Config says what is made.
type Config struct {
	Flows int    // that packets belong to, at random; 1 to MaxFlows
	Rate  uint64 // packets a second, of all queues together; 0 is as many as are received
	Count uint64 // packets in all; 0 is without end
	Sizes []int  // frames' lengths in bytes, each as likely as any; nil is the shortest
	// Weights of targets, by protocol and by family. An address with any target is
	// sent echo requests by the weight ICMP.
	TCP, UDP, ICMP, V4, V6 int
	// Flood makes every TCP packet a SYN of a flow that was not seen before.
	Flood bool
	Seed  uint64
}

// Check answers what is wrong with c.
func (c *Config) Check() error {
	if c.Flows < 1 || c.Flows > MaxFlows {
		return fmt.Errorf("there can be 1 to %d flows, not %d", MaxFlows, c.Flows)
	}
	for _, s := range c.Sizes {
		if s < 60 || s > MaxSize {
			return fmt.Errorf("frames have 60 to %d bytes, not %d", MaxSize, s)
		}
	}
	if min(c.TCP, c.UDP, c.ICMP, c.V4, c.V6) < 0 {
		return errors.New("weights are not negative")
	}
	if c.TCP+c.UDP+c.ICMP == 0 || c.V4+c.V6 == 0 {
		return errors.New("all weights of protocols, or of families, are 0: there would be no packet")
	}
	return nil
}

// A Target is what packets are sent to: an address, or all of a prefix, and the
// ports Lo to Hi.
type Target struct {
	Prefix netip.Prefix
	Proto  uint8 // packet.ProtoTCP, packet.ProtoUDP, or 0 for both
	Lo, Hi uint16
}

// aim is a target of one protocol, with the sum of weights up to it.
type aim struct {
	addr   packet.Addr
	hosts  packet.Addr // the bits that vary within the prefix
	v6     bool
	proto  uint8
	lo     uint16
	ports  uint32
	weight uint64 // of this and all before
}

// aims weighs targets by the mix.
func (c *Config) aims(targets []Target) (all []aim) {
	var sum uint64
	add := func(t Target, proto uint8, weight int) {
		family := c.V4
		v6 := !t.Prefix.Addr().Unmap().Is4()
		if v6 {
			family = c.V6
		}
		if weight*family == 0 {
			return
		}
		sum += uint64(weight) * uint64(family)
		a := aim{addr: packet.AddrOf(t.Prefix.Masked().Addr()), v6: v6, proto: proto, lo: t.Lo, ports: uint32(t.Hi) - uint32(t.Lo) + 1, weight: sum}
		free := t.Prefix.Addr().BitLen() - t.Prefix.Bits()
		a.hosts.Lo = 1<<min(free, 64) - 1
		a.hosts.Hi = 1<<max(free-64, 0) - 1
		all = append(all, a)
	}
	pinged := map[netip.Prefix]bool{}
	for _, t := range targets {
		if t.Hi < t.Lo || !t.Prefix.IsValid() {
			continue
		}
		if t.Proto == 0 || t.Proto == packet.ProtoTCP {
			add(t, packet.ProtoTCP, c.TCP)
		}
		if t.Proto == 0 || t.Proto == packet.ProtoUDP {
			add(t, packet.ProtoUDP, c.UDP)
		}
		if !pinged[t.Prefix] {
			pinged[t.Prefix] = true
			add(t, packet.ProtoICMP, c.ICMP)
		}
	}
	return all
}

// Port is a port that receives made-up packets. It takes none to send.
type Port struct {
	name   string
	queues []*mem.Queue
	makers []*maker
	aims   atomic.Pointer[[]aim]
	cfg    Config
}

var _ graph.Port = (*Port)(nil)

// Open makes a port of so many queues, each of which makes packets for flows of its
// own. No packet comes before Aim.
func Open(name string, c Config, queues int, m mem.Config) (*Port, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	p := &Port{name: name, cfg: c}
	queues = max(queues, 1)
	for q := range queues {
		k := newMaker(&p.cfg, q, queues, &p.aims)
		if c.Rate > 0 {
			if err := k.pace(); err != nil {
				_ = p.Close()
				return nil, err
			}
		}
		p.makers = append(p.makers, k)
		p.queues = append(p.queues, mem.NewQueue(m, k, nil))
	}
	return p, nil
}

// Aim sets what packets are sent to, from the next one on, and answers how many
// kinds of packet that makes: none come when it is 0. It may be called from any
// goroutine.
func (p *Port) Aim(targets []Target) (n int) {
	a := p.cfg.aims(targets)
	p.aims.Store(&a)
	return len(a)
}

// Queues is part of graph.Port.
func (p *Port) Queues() int { return len(p.queues) }

// Queue is part of graph.Port.
func (p *Port) Queue(q int) graph.Queue { return p.queues[q] }

// Info is part of graph.Port.
func (p *Port) Info() graph.PortInfo { return graph.PortInfo{Name: p.name, Mode: "generator"} }

// Close is part of graph.Port.
func (p *Port) Close() error {
	for _, k := range p.makers {
		if k.timer >= 0 {
			_ = unix.Close(k.timer)
			k.timer = -1
		}
	}
	return nil
}

// maker makes the packets of one queue. It is its mem.Source.
type maker struct {
	cfg   *Config
	aims  *atomic.Pointer[[]aim]
	queue uint64 // flow numbers of this queue are queue + n·step
	step  uint64
	flows uint64 // of this queue
	left  uint64 // packets to be made; with Count
	rnd   uint64 // state of the generator of random numbers
	fresh uint64 // flows that a flood has made
	began []uint64
	buf   []byte
	have  bool

	// With a rate.
	timer int    // timerfd, so that poll wakes; else −1
	gap   uint64 // nanoseconds between two packets of this queue
	start time.Time
	due   uint64 // packets due so far
	made  uint64
}

func newMaker(c *Config, q, queues int, aims *atomic.Pointer[[]aim]) *maker {
	share := func(n uint64) uint64 { // of n things, dealt out to the queues in turn
		return (n + uint64(queues-1-q)) / uint64(queues)
	}
	k := &maker{
		cfg: c, aims: aims, queue: uint64(q), step: uint64(queues), flows: max(share(uint64(c.Flows)), 1),
		left: share(c.Count), rnd: c.Seed + uint64(q)*0x9e3779b97f4a7c15, timer: -1, buf: make([]byte, MaxSize),
	}
	k.began = make([]uint64, (k.flows+63)/64)
	return k
}

// pace makes a timer that wakes poll when packets are due, a thousand times a
// second at most.
func (k *maker) pace() error {
	k.gap = max(uint64(time.Second)*k.step/k.cfg.Rate, 1)
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("timer of the traffic generator: %w", err)
	}
	k.timer = fd
	every := unix.NsecToTimespec(int64(max(k.gap, uint64(time.Millisecond))))
	if err := unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil); err != nil {
		return fmt.Errorf("timer of the traffic generator: %w", err)
	}
	return nil
}

// burst bounds what is made up for when the loop was late.
const burst = uint64(50 * time.Millisecond)

// ready tells whether the next packet is due.
func (k *maker) ready() bool {
	if k.made < k.due {
		return true
	}
	now := time.Now()
	if k.start.IsZero() {
		k.start = now
	}
	since := uint64(now.Sub(k.start))
	k.due = since/k.gap + 1
	if late := k.due - min(k.made, k.due); late*k.gap > burst {
		k.start = now.Add(-time.Duration(k.made * k.gap))
		k.due = k.made + 1
	}
	if k.made < k.due {
		return true
	}
	var ticks [8]byte
	_, _ = unix.Read(k.timer, ticks[:]) // so that poll waits again
	return false
}

// next is SplitMix64 (Steele, Lea, Flood 2014).
func (k *maker) next() uint64 {
	k.rnd += 0x9e3779b97f4a7c15
	return mix(k.rnd)
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Peek is part of mem.Source.
func (k *maker) Peek() (b []byte, at int64, ok bool) {
	if !k.have {
		aims := k.aims.Load()
		if aims == nil || len(*aims) == 0 || k.Done() || k.timer >= 0 && !k.ready() {
			return nil, 0, false
		}
		k.buf = k.buf[:k.make(*aims)]
		k.have = true
	}
	return k.buf, 0, true
}

// Take is part of mem.Source.
func (k *maker) Take() {
	k.have = false
	k.made++
	if k.cfg.Count > 0 {
		k.left--
	}
}

// Done is part of mem.Source.
func (k *maker) Done() bool { return k.cfg.Count > 0 && k.left == 0 }

// FD is what poll waits on.
func (k *maker) FD() int { return k.timer }

// make makes a packet in buf and answers its length.
func (k *maker) make(aims []aim) int {
	r := k.next()
	n := uint64(packet.Reduce(r, uint32(k.flows)))
	size := 0
	if len(k.cfg.Sizes) > 0 {
		size = k.cfg.Sizes[packet.Reduce(r<<32, uint32(len(k.cfg.Sizes)))]
	}
	flow := k.queue + n*k.step
	h := mix(k.cfg.Seed ^ mix(flow))
	a := pick(aims, h)
	first := k.began[n/64]>>(n%64)&1 == 0
	if k.cfg.Flood && a.proto == packet.ProtoTCP {
		flow = k.queue + k.fresh*k.step
		k.fresh++
		first = true
	} else {
		k.began[n/64] |= 1 << (n % 64)
	}
	return k.build(a, flow, mix(h), size, first)
}

// pick answers the aim of a flow, by weight.
func pick(aims []aim, h uint64) *aim {
	at, _ := bits.Mul64(h, aims[len(aims)-1].weight)
	i, _ := slices.BinarySearchFunc(aims, at, func(a aim, at uint64) int {
		if a.weight <= at {
			return -1
		}
		return 1
	})
	return &aims[i]
}

// build makes a packet of a flow. h is a random number that belongs to the flow.
func (k *maker) build(a *aim, flow, h uint64, size int, first bool) int {
	// Flow numbers count through the addresses, then through the ports.
	sport := uint16(1024 + flow>>17%(1<<16-1024))
	src := packet.Addr4(198<<24 | 18<<16 | uint32(flow&(1<<17-1)))
	if a.v6 {
		src = packet.Addr{Hi: 0x2001000200000000 | flow>>33&0xffff, Lo: flow & (1<<17 - 1)}
	}
	dst := packet.Addr{Hi: a.addr.Hi | a.hosts.Hi&h, Lo: a.addr.Lo | a.hosts.Lo&(h>>7)}
	dport := a.lo + uint16(packet.Reduce(h, a.ports))

	ip, l4 := 20, 20
	if a.v6 {
		ip = 40
	}
	if a.proto != packet.ProtoTCP {
		l4 = 8
	} else if first {
		l4 = 24 // with an MSS option
	}
	n := max(size, 14+ip+l4)
	b := k.buf[:n]
	clear(b)
	copy(b, macs[:])
	proto, body := a.proto, b[14+ip:]
	be := binary.BigEndian
	if a.v6 {
		b[12], b[13] = 0x86, 0xdd
		if proto == packet.ProtoICMP {
			proto = packet.ProtoICMPv6
		}
		h := b[14:54]
		h[0], h[6], h[7] = 0x60, proto, 64
		be.PutUint16(h[4:], uint16(len(body)))
		src.Put16(h[8:])
		dst.Put16(h[24:])
	} else {
		b[12], b[13] = 0x08, 0x00
		h := b[14:34]
		h[0], h[6], h[8], h[9] = 0x45, 0x40, 64, proto
		be.PutUint16(h[2:], uint16(n-14))
		be.PutUint32(h[12:], src.V4())
		be.PutUint32(h[16:], dst.V4())
		be.PutUint16(h[10:], packet.Checksum(h))
	}
	at := 0 // of the checksum
	switch proto {
	case packet.ProtoTCP:
		at = 16
		be.PutUint16(body, sport)
		be.PutUint16(body[2:], dport)
		be.PutUint32(body[4:], uint32(h))
		body[12], body[13] = 5<<4, packet.ACK
		be.PutUint16(body[14:], 65535)
		if first {
			body[12], body[13] = 6<<4, packet.SYN
			be.PutUint32(body[20:], 0x02040000|1460)
		} else {
			be.PutUint32(body[8:], uint32(h>>32))
		}
	case packet.ProtoUDP:
		at = 6
		be.PutUint16(body, sport)
		be.PutUint16(body[2:], dport)
		be.PutUint16(body[4:], uint16(len(body)))
	default:
		at = 2
		body[0] = 8 // echo request
		if a.v6 {
			body[0] = 128
		}
		be.PutUint16(body[4:], sport)
		be.PutUint16(body[6:], uint16(k.made))
	}
	s := packet.Sum(body)
	if proto != packet.ProtoICMP {
		s += packet.PseudoSum(src, dst, proto, uint32(len(body)))
	}
	c := ^packet.Fold(s)
	if c == 0 && proto == packet.ProtoUDP {
		c = 0xffff // 0 would say that there is none (RFC 768)
	}
	be.PutUint16(body[at:], c)
	return n
}

// macs are the addresses of all frames: to and from locally administered ones.
var macs = [12]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
