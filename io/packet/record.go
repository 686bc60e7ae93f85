package packet

// A Record is one lane's columns as one value. It is how a packet is described
// while it is in no vector: held, on its way to another core, or just made.
type Record struct {
	Frame, Start, Len, Total, Chain uint32
	IPLen, ID                       uint32
	VIP, Backend, Slot              uint32
	Src, Dst                        Addr
	Hash                            uint64
	Port, L3, L4                    uint16
	SPort, DPort                    uint16
	Flags                           Flags
	Proto, TCP                      uint8
}

// RecordSize is the room at the beginning of every chunk that the loop uses for
// the record of a frame that is in no vector, in bytes. The drivers place packets
// at least RecordSize + MaxHeadroom behind the chunk's beginning.
const RecordSize = 128

// MaxHeadroom is the number of bytes that nodes may write in front of a received
// packet: the kernel leaves 256 bytes in front, less the record.
const MaxHeadroom = 256 - RecordSize

// Save copies the columns of lane i to r.
func (v *Vector) Save(i int, r *Record) {
	i &= 63
	r.Frame, r.Start, r.Len, r.Total, r.Chain = v.Frame[i], v.Start[i], v.Len[i], v.Total[i], v.Chain[i]
	r.IPLen, r.ID, r.VIP, r.Backend, r.Slot = v.IPLen[i], v.ID[i], v.VIP[i], v.Backend[i], v.Slot[i]
	r.Src, r.Dst, r.Hash = v.Src[i], v.Dst[i], v.Hash[i]
	r.Port, r.L3, r.L4, r.SPort, r.DPort = v.Port[i], v.L3[i], v.L4[i], v.SPort[i], v.DPort[i]
	r.Flags, r.Proto, r.TCP = v.Flags[i], v.Proto[i], v.TCP[i]
}

// Load copies r to the columns of lane i.
func (v *Vector) Load(i int, r *Record) {
	i &= 63
	v.Frame[i], v.Start[i], v.Len[i], v.Total[i], v.Chain[i] = r.Frame, r.Start, r.Len, r.Total, r.Chain
	v.IPLen[i], v.ID[i], v.VIP[i], v.Backend[i], v.Slot[i] = r.IPLen, r.ID, r.VIP, r.Backend, r.Slot
	v.Src[i], v.Dst[i], v.Hash[i] = r.Src, r.Dst, r.Hash
	v.Port[i], v.L3[i], v.L4[i], v.SPort[i], v.DPort[i] = r.Port, r.L3, r.L4, r.SPort, r.DPort
	v.Flags[i], v.Proto[i], v.TCP[i] = r.Flags, r.Proto, r.TCP
}
