//go:build ignore

// Wraps what health checks send to a VIP in the tunnel to one backend. It stands at
// the TC egress hook of a device of its own, to which only probes are routed; the
// packet's mark names the backend. What it cannot place it drops.
//
// Headers are those of io/encap: GRE (RFC 2784), IP-in-IP (RFC 2003, 2473, 4213) and
// GUE variant 0 (draft-ietf-intarea-gue), DSCP zero, ECN copied (RFC 6040 §4.1).

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

enum { ETH_LEN = 14, IP4_LEN = 20, IP6_LEN = 40, UDP_LEN = 8, EXTRA = 4 };
enum { IPIP = 4, UDP = 17, IPV6 = 41, GRE = 47 };
enum { KIND_GRE, KIND_IPIP, KIND_GUE };
enum { MARK = 0x6c62 }; // upper half of a probe's mark, as in probe.go

// The way to a backend.
struct way {
	__u32 src[4], dst[4]; // IPv4: the last word
	__u32 ifindex;
	__u16 port; // UDP destination, in network order
	__u8 v6, kind, ttl;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32); // lower half of the mark
	__type(value, struct way);
} ways SEC(".maps");

static __always_inline void put16(__u8 *p, __u16 x)
{
	p[0] = x >> 8;
	p[1] = x;
}

// behind writes what stands between the IP headers, and answers its length.
static __always_inline __u32 behind(__u8 *p, const struct way *w, int v6, __u32 size)
{
	if (w->kind == KIND_GRE) {
		put16(p, 0);
		put16(p + 2, v6 ? 0x86dd : 0x0800);
		return EXTRA;
	}
	if (w->kind == KIND_IPIP)
		return 0;
	put16(p, 50000); // of the dynamic range
	__builtin_memcpy(p + 2, &w->port, 2);
	put16(p + 4, size + UDP_LEN + EXTRA);
	put16(p + 6, 0); // no checksum (RFC 6935 §5)
	p[8] = 0;
	p[9] = v6 ? IPV6 : IPIP;
	put16(p + 10, 0);
	return UDP_LEN + EXTRA;
}

static __always_inline int put(struct __sk_buff *skb, const __u8 *h, __u32 size, const struct way *w, __u64 flags)
{
	// The kernel must know an encapsulation by its kind, or its offloads break it.
	if (w->kind != KIND_IPIP)
		flags |= w->kind == KIND_GRE ? BPF_F_ADJ_ROOM_ENCAP_L4_GRE : BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	if (bpf_skb_adjust_room(skb, size, BPF_ADJ_ROOM_MAC, flags | BPF_F_ADJ_ROOM_FIXED_GSO))
		return -1;
	// Sizes are spelled out: the verifier wants them constant.
	switch (size) {
	case IP4_LEN:
		return bpf_skb_store_bytes(skb, ETH_LEN, h, IP4_LEN, 0);
	case IP4_LEN + EXTRA:
		return bpf_skb_store_bytes(skb, ETH_LEN, h, IP4_LEN + EXTRA, 0);
	case IP4_LEN + UDP_LEN + EXTRA:
		return bpf_skb_store_bytes(skb, ETH_LEN, h, IP4_LEN + UDP_LEN + EXTRA, 0);
	case IP6_LEN:
		return bpf_skb_store_bytes(skb, ETH_LEN, h, IP6_LEN, 0);
	case IP6_LEN + EXTRA:
		return bpf_skb_store_bytes(skb, ETH_LEN, h, IP6_LEN + EXTRA, 0);
	case IP6_LEN + UDP_LEN + EXTRA:
		return bpf_skb_store_bytes(skb, ETH_LEN, h, IP6_LEN + UDP_LEN + EXTRA, 0);
	}
	return -1;
}

static __always_inline int put4(struct __sk_buff *skb, const struct way *w, int v6, __u8 ecn, __u32 size)
{
	__u8 h[IP4_LEN + UDP_LEN + EXTRA] = { 0x45, ecn, 0, 0, 0, 0, 0x40, 0, w->ttl };
	__u32 more = behind(h + IP4_LEN, w, v6, size), sum = 0;
	put16(h + 2, size + IP4_LEN + more);
	h[9] = w->kind == KIND_GRE ? GRE : w->kind == KIND_GUE ? UDP : v6 ? IPV6 : IPIP;
	__builtin_memcpy(h + 12, &w->src[3], 4);
	__builtin_memcpy(h + 16, &w->dst[3], 4);
	for (int i = 0; i < IP4_LEN; i += 2)
		sum += (__u16)h[i] << 8 | h[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	put16(h + 10, ~sum);
	return put(skb, h, IP4_LEN + more, w, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);
}

static __always_inline int put6(struct __sk_buff *skb, const struct way *w, int v6, __u8 ecn, __u32 size)
{
	__u8 h[IP6_LEN + UDP_LEN + EXTRA] = { 0x60, ecn << 4 };
	__u32 more = behind(h + IP6_LEN, w, v6, size);
	put16(h + 4, size + more);
	h[6] = w->kind == KIND_GRE ? GRE : w->kind == KIND_GUE ? UDP : v6 ? IPV6 : IPIP;
	h[7] = w->ttl;
	__builtin_memcpy(h + 8, w->src, 16);
	__builtin_memcpy(h + 24, w->dst, 16);
	return put(skb, h, IP6_LEN + more, w, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6);
}

SEC("tc")
int lbgraph_probe(struct __sk_buff *skb)
{
	__u32 id = skb->mark & 0xffff;
	if (skb->mark >> 16 != MARK)
		return TC_ACT_SHOT;
	const struct way *w = bpf_map_lookup_elem(&ways, &id);
	if (!w)
		return TC_ACT_SHOT;
	__u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + ETH_LEN + IP4_LEN > end)
		return TC_ACT_SHOT;
	int v6 = skb->protocol == bpf_htons(0x86dd);
	if (!v6 && skb->protocol != bpf_htons(0x0800))
		return TC_ACT_SHOT;
	__u8 ecn = v6 ? data[ETH_LEN + 1] >> 4 & 3 : data[ETH_LEN + 1] & 3;
	__u32 size = skb->len - ETH_LEN;
	if (w->v6 ? put6(skb, w, v6, ecn, size) : put4(skb, w, v6, ecn, size))
		return TC_ACT_SHOT;
	__u16 kind = w->v6 ? bpf_htons(0x86dd) : bpf_htons(0x0800);
	bpf_skb_store_bytes(skb, 12, &kind, sizeof(kind), 0);
	// With its mark on, the packet would be routed here again.
	skb->mark = 0;
	return bpf_redirect_neigh(w->ifindex, 0, 0, 0);
}
