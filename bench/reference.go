package bench

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lbgraph/lbgraph/control/state"
	"github.com/lbgraph/lbgraph/io/packet"
)

// A Reference is the established way to write a load balancer: each packet is
// taken through all its steps before the next one is looked at. It parses, finds the
// service, looks the flow up in a table with open addressing, selects a backend from
// the same Maglev table if it is new, clamps the MSS, checks the length, writes
// GRE over IPv4 and counts, as the graph of parse … gre-encap does. It takes TCP and
// UDP over IPv4 without options and fragments; all else it leaves.
//
// It is the yardstick of the figures, and the oracle of their tests: what it sends is
// what the graph sends, byte by byte.
type Reference struct {
	snap  *state.Snapshot
	src   uint32   // outer source
	dst   []uint32 // outer destination, by backend
	mtu   int
	table []flow
	mask  uint32
	used  int
	limit int

	perService, perBackend []count
	hits, misses, inserts  uint64
}

type count struct{ packets, bytes uint64 }

// flow is an entry of the table. A service is part of the key by its address,
// protocol and port; proto 0 marks a free place.
type flow struct {
	src, dst     uint32
	sport, dport uint16
	proto, state uint8
	slot         uint16
	backend      uint32
	_            uint32
	seen         int64
}

const (
	flowHandshake = iota
	flowEstablished
	flowClosing
)

// Times to live in nanoseconds, by state; TCP's and all others'.
var flowTTL = [3]int64{5e9, 7200e9, 10e9}

const otherTTL = 30e9

// NewReference makes a reference that remembers as many flows as entries says, with
// as many places as a power of two of which at most 70 % are taken.
func NewReference(s *state.Snapshot, source [4]byte, networkMTU, entries int) *Reference {
	places := 2
	for places*7 < entries*10 {
		places *= 2
	}
	dst := make([]uint32, len(s.Backends))
	for i := range s.Backends {
		if a := s.Backends[i].Addr; a.Is4() {
			dst[i] = packet.AddrOf(a).V4()
		}
	}
	return &Reference{
		snap: s, dst: dst, src: binary.BigEndian.Uint32(source[:]), mtu: networkMTU - greLen,
		table: flows(places), mask: uint32(places - 1), limit: entries,
		perService: make([]count, len(s.Services)), perBackend: make([]count, len(s.Backends)),
	}
}

// greLen is what an outer IPv4 header and GRE add.
const greLen = packet.IPv4Len + 4

// Packet takes the packet at b[at:at+n], and answers where it begins and how long it
// is with its outer header; ok is false for a packet that it leaves. at is at least
// greLen.
func (r *Reference) Packet(b []byte, at, n int, now int64) (start, size int, ok bool) {
	be := binary.BigEndian
	p := b[at : at+n]
	if n < packet.EtherLen+packet.IPv4Len+packet.UDPLen || be.Uint16(p[12:]) != packet.EtherIPv4 {
		return 0, 0, false
	}
	ip := p[packet.EtherLen:]
	total := int(be.Uint16(ip[2:]))
	if ip[0] != 0x45 || total < packet.IPv4Len+packet.UDPLen || total > len(ip) || be.Uint16(ip[6:])&(packet.IPv4MF|packet.IPv4Offset) != 0 {
		return 0, 0, false
	}
	if packet.Sum(ip[:packet.IPv4Len]) != 0xffff {
		return 0, 0, false
	}
	proto := ip[9]
	src, dst := be.Uint32(ip[12:]), be.Uint32(ip[16:])
	l4 := ip[packet.IPv4Len:total]
	sport, dport := be.Uint16(l4), be.Uint16(l4[2:])
	flags := byte(0)
	switch proto {
	case packet.ProtoTCP:
		if len(l4) < packet.TCPLen || int(l4[12]>>4)*4 < packet.TCPLen || int(l4[12]>>4)*4 > len(l4) {
			return 0, 0, false
		}
		flags = l4[13]
	case packet.ProtoUDP:
		if length := int(be.Uint16(l4[4:])); length < packet.UDPLen || length > len(l4) {
			return 0, 0, false
		}
	default:
		return 0, 0, false
	}
	hash := packet.FlowHash(packet.Addr4(src), packet.Addr4(dst), sport, dport, proto)

	service, verdict := r.snap.Match(packet.Addr4(dst), proto, dport)
	if verdict != state.Served {
		return 0, 0, false
	}

	key := flow{src: src, dst: dst, sport: sport, dport: dport, proto: proto}
	backend, found := r.find(&key, hash, flags, now)
	if !found {
		var slot uint32
		if slot, backend, ok = r.snap.Choose(r.snap.Services[service].Pool, hash); !ok {
			return 0, 0, false
		}
		key.backend, key.slot, key.seen = backend, uint16(slot), now
	}

	if flags&packet.SYN != 0 {
		r.clamp(l4)
	}
	if total > r.mtu {
		return 0, 0, false
	}

	if !found && flags&(packet.FIN|packet.RST) == 0 {
		r.insert(&key, hash)
	}
	start, size = at-greLen, packet.EtherLen+greLen+total
	r.encapsulate(b[start:start+size], total+greLen, ip[1], r.dst[backend])

	s, k := &r.perService[service], &r.perBackend[backend]
	s.packets++
	s.bytes += uint64(size)
	k.packets++
	k.bytes += uint64(size)
	return start, size, true
}

// find looks a flow up and brings its entry up to date. One that is out of time, or
// that a SYN begins anew, counts as not found.
func (r *Reference) find(key *flow, hash uint64, flags byte, now int64) (backend uint32, ok bool) {
	for i := uint32(hash>>32) & r.mask; ; i = (i + 1) & r.mask {
		f := &r.table[i]
		if f.proto == 0 {
			r.misses++
			return 0, false
		}
		if f.src != key.src || f.dst != key.dst || f.sport != key.sport || f.dport != key.dport || f.proto != key.proto {
			continue
		}
		ttl := int64(otherTTL)
		if f.proto == packet.ProtoTCP {
			ttl = flowTTL[f.state]
		}
		status := r.snap.StatusOf(f.backend)
		const all = packet.SYN | packet.ACK | packet.RST | packet.FIN
		if now-f.seen > ttl || status == state.Down || flags&all == packet.SYN && (f.state == flowClosing || status == state.Draining) {
			r.misses++
			return 0, false
		}
		f.seen = now
		switch {
		case flags&(packet.FIN|packet.RST) != 0:
			f.state = flowClosing
		case f.state == flowHandshake && flags&packet.SYN == 0:
			f.state = flowEstablished
		}
		r.hits++
		return f.backend, true
	}
}

// insert enters a flow, or enters it anew. A full table takes none.
func (r *Reference) insert(key *flow, hash uint64) {
	for i := uint32(hash>>32) & r.mask; ; i = (i + 1) & r.mask {
		f := &r.table[i]
		if f.proto == 0 {
			if r.used >= r.limit {
				return
			}
			r.used++
		} else if f.src != key.src || f.dst != key.dst || f.sport != key.sport || f.dport != key.dport || f.proto != key.proto {
			continue
		}
		*f = *key
		r.inserts++
		return
	}
}

// flows makes an empty table in huge pages, where the system has them: as the connection
// table of the graph is.
func flows(n int) []flow {
	size := n * int(unsafe.Sizeof(flow{}))
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err) // there is no memory
	}
	_ = unix.Madvise(m, unix.MADV_HUGEPAGE)
	return unsafe.Slice((*flow)(unsafe.Pointer(unsafe.SliceData(m))), n)
}

// Close gives the table's memory back.
func (r *Reference) Close() {
	_ = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(r.table))), len(r.table)*int(unsafe.Sizeof(flow{}))))
	r.table = nil
}

// Flush forgets all flows.
func (r *Reference) Flush() {
	clear(r.table)
	r.used = 0
}

// clamp lowers the MSS that a SYN offers.
func (r *Reference) clamp(tcp []byte) {
	limit := r.mtu - packet.IPv4Len - packet.TCPLen
	options := tcp[packet.TCPLen : int(tcp[12]>>4)*4]
	for len(options) > 0 && options[0] != 0 {
		if options[0] == 1 {
			options = options[1:]
			continue
		}
		if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
			return
		}
		if options[0] == 2 && options[1] == 4 {
			mss := binary.BigEndian.Uint16(options[2:])
			if int(mss) > limit {
				binary.BigEndian.PutUint16(options[2:], uint16(limit))
				sum := binary.BigEndian.Uint16(tcp[16:])
				binary.BigEndian.PutUint16(tcp[16:], packet.Update16(sum, mss, uint16(limit)))
			}
		}
		options = options[options[1]:]
	}
}

// encapsulate writes Ethernet, IPv4 and GRE headers to the beginning of b, in front of
// the inner packet; the Ethernet header stands greLen bytes behind.
func (r *Reference) encapsulate(b []byte, total int, tos byte, dst uint32) {
	be := binary.BigEndian
	var ether [12]byte
	copy(ether[:], b[greLen:])
	copy(b, ether[6:12]) // back to the sender
	copy(b[6:], ether[0:6])
	be.PutUint16(b[12:], packet.EtherIPv4)
	ip := b[packet.EtherLen : packet.EtherLen+packet.IPv4Len]
	ip[0], ip[1] = 0x45, tos&3
	be.PutUint16(ip[2:], uint16(total))
	be.PutUint32(ip[4:], packet.IPv4DF)
	ip[8], ip[9] = 64, packet.ProtoGRE
	be.PutUint16(ip[10:], 0)
	be.PutUint32(ip[12:], r.src)
	be.PutUint32(ip[16:], dst)
	be.PutUint16(ip[10:], packet.Checksum(ip))
	be.PutUint32(b[packet.EtherLen+packet.IPv4Len:], packet.EtherIPv4)
}
