//go:build ignore

// Takes the outer headers of our tunnels off on a backend and leaves the inner
// packet to the kernel: GRE (RFC 2784, the 4-byte header), IP-in-IP (RFC 2003,
// 2473, 4213) and GUE variant 0 (draft-ietf-intarea-gue), over IPv4 and IPv6, at
// the XDP hook or at TC.
//
// What is not such a packet passes as it is, tunnelled fragments and GRE or GUE
// headers with options too. What is, but contradicts itself, drops.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

enum { ETH_LEN = 14, TAG_LEN = 4, IP4_LEN = 20, IP6_LEN = 40, UDP_LEN = 8, EXTRA = 4 };
enum { IPIP = 4, UDP = 17, IPV6 = 41, GRE = 47 };

// Linux 6.3; not in older headers.
enum { DECAP_IPV4 = 1 << 7, DECAP_IPV6 = 1 << 8 };

// Set before the program is loaded.
volatile const __u32 kinds;    // bits 1 << KIND_…
volatile const __u32 any;      // any destination will do, not only addresses
volatile const __u16 gue_port; // UDP destination port

// Counters, as in decap.go.
enum { KIND_GRE, KIND_IPIP, KIND_GUE, TRUNCATED, BAD_LENGTH, BAD_CHECKSUM, BAD_INNER, BAD_ECN, FRAGMENT, OPTIONS, UNABLE, COUNTERS };
enum { OTHER = COUNTERS }; // not counted

struct count {
	__u64 packets, bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

struct address {
	__u32 word[4]; // IPv4-mapped for IPv4
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct address);
	__type(value, __u32);
} addresses SEC(".maps");

// What parse found.
struct found {
	__u32 counter; // KIND_… if the headers can come off
	__u32 l2;      // bytes before the outer IP header
	__u32 strip;   // bytes from there to the inner IP header
	__u32 v6;      // of the inner packet
};

static __always_inline __u16 be16(const __u8 *p) { return (__u16)p[0] << 8 | p[1]; }

static __always_inline void count(__u32 counter, __u64 size)
{
	struct count *c = bpf_map_lookup_elem(&counts, &counter);
	if (c) {
		c->packets++;
		c->bytes += size;
	}
}

static __always_inline int is_local(const struct address *a) { return any || bpf_map_lookup_elem(&addresses, a); }

// ecn carries the outer header's congestion mark over (RFC 6040 §4.2) and answers
// whether the packet may go on.
static __always_inline int ecn(__u8 *in, int v6, __u8 outer)
{
	__u8 inner = v6 ? in[1] >> 4 & 3 : in[1] & 3, mark = inner;
	if (outer == 3) {
		if (!inner)
			return 0;
		mark = 3;
	} else if (outer == 1 && inner == 2) {
		mark = 1;
	}
	if (mark == inner)
		return 1;
	if (v6) {
		in[1] = (in[1] & 0xcf) | mark << 4;
		return 1;
	}
	// RFC 1624 §3
	__u32 sum = (__u16)~be16(in + 10) + (__u16)~be16(in);
	in[1] = (in[1] & 0xfc) | mark;
	sum += be16(in);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	in[10] = ~sum >> 8;
	in[11] = ~sum;
	return 1;
}

// parse looks at a frame of size bytes, of which those up to end can be read.
// first is the EtherType of what stands l2 bytes behind data.
static __always_inline __u32 parse(struct found *f, __u8 *data, __u8 *end, __u32 size, __u16 first)
{
	__u8 *ip = data + f->l2, proto, mark;
	__u32 header, room; // of the outer IP header; of the outer packet behind it
	struct address to = { { 0, 0, bpf_htonl(0xffff) } };
	if (first == 0x0800) {
		if (ip + IP4_LEN > end)
			return OTHER;
		proto = ip[9];
		to.word[3] = *(__u32 *)(ip + 16);
		header = IP4_LEN;
		mark = ip[1] & 3;
	} else if (first == 0x86dd) {
		if (ip + IP6_LEN > end)
			return OTHER;
		proto = ip[6];
		__builtin_memcpy(&to, ip + 24, 16);
		header = IP6_LEN;
		mark = ip[1] >> 4 & 3;
	} else {
		return OTHER;
	}
	__u32 kind, inner = 0, strip = header;
	switch (proto) {
	case GRE:
		kind = KIND_GRE;
		strip += EXTRA;
		break;
	case IPIP:
	case IPV6:
		kind = KIND_IPIP;
		inner = proto;
		break;
	case UDP:
		kind = KIND_GUE;
		strip += UDP_LEN + EXTRA;
		break;
	default:
		return OTHER;
	}
	if (!(kinds & 1 << kind) || !is_local(&to))
		return OTHER;
	if (first == 0x0800) {
		// The port of a later fragment cannot be known.
		if (be16(ip + 6) & 0x3fff)
			return kind == KIND_GUE ? OTHER : FRAGMENT;
		if ((ip[0] & 15) > 5)
			return kind == KIND_GUE ? OTHER : OPTIONS;
		room = be16(ip + 2);
		if (ip[0] != 0x45 || room < IP4_LEN)
			return kind == KIND_GUE ? OTHER : BAD_LENGTH;
		room -= IP4_LEN;
	} else {
		if (ip[0] >> 4 != 6)
			return kind == KIND_GUE ? OTHER : BAD_LENGTH;
		room = be16(ip + 4);
	}
	__u8 *extra = ip + header;
	if (kind == KIND_GRE) {
		if (extra + EXTRA > end)
			return TRUNCATED;
		if (be16(extra))
			return OPTIONS; // checksum, key, sequence number or a version
		inner = be16(extra + 2) == 0x0800 ? IPIP : be16(extra + 2) == 0x86dd ? IPV6 : 0;
		if (!inner)
			return OTHER;
	} else if (kind == KIND_GUE) {
		if (extra + UDP_LEN > end || be16(extra + 2) != gue_port)
			return OTHER;
		if (extra + UDP_LEN + EXTRA > end)
			return TRUNCATED;
		// Variant, control bit, length of options; flags.
		if (extra[UDP_LEN] || be16(extra + UDP_LEN + 2))
			return OPTIONS;
		inner = extra[UDP_LEN + 1];
		if (inner != IPIP && inner != IPV6)
			return OTHER;
	}
	if (f->l2 + header + room > size)
		return BAD_LENGTH;
	if (kind == KIND_GUE) {
		// The datagram's checksum, if there is one, is not looked at: the inner
		// packet has its own.
		__u32 datagram = be16(extra + 4);
		if (datagram < UDP_LEN || datagram > room)
			return BAD_LENGTH;
		room = datagram;
	}
	if (header == IP4_LEN) {
		__u32 sum = 0;
		for (int i = 0; i < IP4_LEN; i += 2)
			sum += be16(ip + i);
		sum = (sum & 0xffff) + (sum >> 16);
		if (sum != 0xffff)
			return BAD_CHECKSUM;
	}
	// What the outer packet says it holds must be the inner one, whole.
	room -= strip - header;
	__u8 *in = ip + strip;
	f->v6 = inner == IPV6;
	if (f->v6) {
		if (in + IP6_LEN > end)
			return TRUNCATED;
		if (in[0] >> 4 != 6 || IP6_LEN + be16(in + 4) > room || room > 0xffff)
			return BAD_INNER;
	} else {
		if (in + IP4_LEN > end)
			return TRUNCATED;
		if (in[0] >> 4 != 4 || (in[0] & 15) < 5 || be16(in + 2) < (in[0] & 15) * 4 || be16(in + 2) > room || room > 0xffff)
			return BAD_INNER;
	}
	if (!ecn(in, f->v6, mark))
		return BAD_ECN;
	f->strip = strip;
	return kind;
}

static __always_inline int is_drop(__u32 counter) { return counter >= TRUNCATED && counter <= BAD_ECN; }

static __always_inline int xdp(struct xdp_md *ctx, __u32 size)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct found f = { .l2 = ETH_LEN };
	__u8 head[ETH_LEN + 2 * TAG_LEN] = {}; // up to the EtherType
	if (data + ETH_LEN > end)
		return XDP_PASS;
	__u16 first = be16(data + 12);
	for (int i = 0; i < 2; i++) {
		if (first != 0x8100 && first != 0x88a8)
			break;
		f.l2 += TAG_LEN;
		if (data + f.l2 > end)
			return XDP_PASS;
		first = be16(data + f.l2 - 2);
	}
	__u32 counter = parse(&f, data, end, size, first);
	if (counter == OTHER)
		return XDP_PASS;
	if (counter > KIND_GUE) {
		count(counter, size);
		return is_drop(counter) ? XDP_DROP : XDP_PASS;
	}
	// Its l2 header moves to the inner packet. Lengths are spelled out: the
	// verifier wants them constant.
#define MOVE(n)                                                           \
	if (data + (n) > end)                                             \
		return XDP_PASS;                                          \
	__builtin_memcpy(head, data, (n) - 2);                            \
	if (bpf_xdp_adjust_head(ctx, f.strip))                            \
		goto unable;                                              \
	data = (void *)(long)ctx->data;                                   \
	end = (void *)(long)ctx->data_end;                                \
	if (data + (n) > end)                                             \
		return XDP_DROP;                                          \
	__builtin_memcpy(data, head, (n) - 2);                            \
	data[(n) - 2] = f.v6 ? 0x86 : 0x08;                               \
	data[(n) - 1] = f.v6 ? 0xdd : 0x00;
	if (f.l2 == ETH_LEN) {
		MOVE(ETH_LEN)
	} else if (f.l2 == ETH_LEN + TAG_LEN) {
		MOVE(ETH_LEN + TAG_LEN)
	} else {
		MOVE(ETH_LEN + 2 * TAG_LEN)
	}
	count(counter, size);
	return XDP_PASS;
unable:
	count(UNABLE, size);
	return XDP_PASS;
}

SEC("xdp")
int lbgraph_decap(struct xdp_md *ctx) { return xdp(ctx, ctx->data_end - ctx->data); }

// For packets of several buffers (Linux 5.18).
SEC("xdp.frags")
int lbgraph_decaps(struct xdp_md *ctx) { return xdp(ctx, bpf_xdp_get_buff_len(ctx)); }

// A VLAN tag stands beside the frame here; of a second one the rest of the kernel
// knows as little as we.
SEC("tc")
int lbgraph_dectc(struct __sk_buff *skb)
{
	__u32 want = ETH_LEN + IP6_LEN + UDP_LEN + EXTRA + IP6_LEN;
	bpf_skb_pull_data(skb, skb->len < want ? skb->len : want);
	__u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct found f = { .l2 = ETH_LEN };
	if (data + ETH_LEN > end)
		return TC_ACT_UNSPEC;
	__u32 size = skb->len, counter = parse(&f, data, end, size, be16(data + 12));
	if (counter == OTHER)
		return TC_ACT_UNSPEC;
	if (counter > KIND_GUE) {
		count(counter, size);
		return is_drop(counter) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
	}
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	if (f.v6 != (be16(data + 12) == 0x86dd))
		flags |= f.v6 ? DECAP_IPV6 : DECAP_IPV4;
	if (bpf_skb_adjust_room(skb, -(__s32)f.strip, BPF_ADJ_ROOM_MAC, flags)) {
		count(UNABLE, size);
		return TC_ACT_UNSPEC;
	}
	__u16 kind = f.v6 ? bpf_htons(0x86dd) : bpf_htons(0x0800);
	bpf_skb_store_bytes(skb, 12, &kind, sizeof(kind), 0);
	count(counter, size);
	return TC_ACT_UNSPEC;
}
