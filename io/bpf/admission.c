//go:build ignore

// The admission rule in the kernel: what of an interface's traffic goes to the
// AF_XDP sockets, what drops, and what the kernel keeps. admit.go is the same
// rule in Go, and says it in words; tests hold the two equal.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define RANGES 16  // as maxRanges in rules.go
#define HEADERS 8  // as maxHeaders in admit.go
#define GUE_PORTS 4 // as maxGUEPorts in rules.go

enum { ETH_LEN = 14, TAG_LEN = 4, IP4_LEN = 20, IP6_LEN = 40, ICMP_LEN = 8 };
enum { HOPOPTS = 0, ICMP = 1, IPIP = 4, TCP = 6, UDP = 17, IPV6 = 41, ROUTING = 43, FRAGMENT = 44, GRE = 47, ICMPV6 = 58, DSTOPTS = 60 };

// Counters of the array "verdicts", as in admission.go.
enum { PASS, REDIRECT, WRONG_PORT, NO_SOCKET, VERDICTS };

// A world is one copy of the rules. Two of them stand in the maps, told apart by
// copy; which one holds is the one cell of current.
struct world {
	__u32 copy;     // 0 or 1
	__u32 prefixes; // there are VIPs in the map prefixes
	__u32 tunnels;  // there are tunnel sources
	__u16 gue[GUE_PORTS]; // UDP ports that our tunnels lead to, or 0
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(max_entries, 1);
		__uint(key_size, sizeof(__u32));
		__uint(value_size, sizeof(struct world));
	});
} current SEC(".maps");

// An address as the maps know it: space is copy * 2, plus 1 for IPv6; an IPv4
// address stands in the last word.
struct address_key {
	__u32 space;
	__u32 addr[4];
};

struct prefix_key {
	__u32 bits; // of what follows, space included
	struct address_key of;
};

struct range {
	__u16 lo, hi;
	__u32 proto; // 0 is any
	__u32 vip;
};

// What is known of a VIP address or prefix.
struct target {
	__u32 id;      // in the keys of services; unlike in the other copy
	__u32 vip;     // counts what has no port
	__u16 leave;   // a wrong port is left to the kernel
	__u16 any;     // services without protocol stand under proto 0
	__u32 nranges;
	struct range ranges[RANGES]; // the most specific first
};

struct service_key {
	__u32 id;
	__u16 port;
	__u16 proto;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, struct address_key);
	__type(value, struct target);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, struct prefix_key);
	__type(value, struct target);
} prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 131072);
	__type(key, struct service_key);
	__type(value, __u32);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct prefix_key);
	__type(value, __u32);
} tunnels SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

struct count {
	__u64 packets, bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VERDICTS);
	__type(key, __u32);
	__type(value, struct count);
} verdicts SEC(".maps");

struct vip_count {
	__u64 packets, bytes, dropped;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct vip_count);
} vips SEC(".maps");

struct answer {
	__u32 verdict; // PASS, REDIRECT or WRONG_PORT
	__u32 vip;     // 0 is none
};

static __always_inline __u16 be16(const __u8 *p) { return (__u16)p[0] << 8 | p[1]; }

static __always_inline struct answer say(__u32 verdict, __u32 vip)
{
	struct answer a = { verdict, vip };
	return a;
}

// find answers what is known of the address in key, NULL if it is no VIP's.
static __always_inline struct target *find(const struct world *w, const struct address_key *key)
{
	struct target *t = bpf_map_lookup_elem(&addresses, key);
	if (t || !w->prefixes)
		return t;
	struct prefix_key p = { 160, *key };
	return bpf_map_lookup_elem(&prefixes, &p);
}

static __always_inline int is_tunnel(const struct world *w, const struct address_key *key)
{
	if (!w->tunnels)
		return 0;
	struct prefix_key p = { 160, *key };
	return bpf_map_lookup_elem(&tunnels, &p) != 0;
}

// judge decides on a packet to t whose protocol and port are known.
static __always_inline struct answer judge(struct target *t, __u8 proto, __u16 port)
{
	struct service_key key = { t->id, port, proto };
	__u32 *vip = bpf_map_lookup_elem(&services, &key);
	if (vip)
		return say(REDIRECT, *vip);
	__u32 any = 0;
	for (__u32 i = 0; i < RANGES; i++) {
		struct range *r = &t->ranges[i];
		if (i >= t->nranges)
			break;
		if (port < r->lo || port > r->hi)
			continue;
		if (r->proto == proto)
			return say(REDIRECT, r->vip);
		if (!r->proto && !any)
			any = r->vip;
	}
	if (t->any) {
		key.proto = 0;
		vip = bpf_map_lookup_elem(&services, &key);
		if (vip)
			return say(REDIRECT, *vip);
	}
	if (any)
		return say(REDIRECT, any);
	return say(t->leave ? PASS : WRONG_PORT, t->vip);
}

static __always_inline int is_gue(const struct world *w, __u16 port)
{
	for (int i = 0; i < GUE_PORTS; i++)
		if (w->gue[i] == port)
			return port != 0;
	return 0;
}

// ours tells whether what an ICMP error to the address at src quotes at p, within
// room bytes, is a packet that we sent from that address through a tunnel.
static __always_inline int ours4(const struct world *w, const __u8 *p, __u32 room, const __u8 *end, const __u8 *src)
{
	if (room < IP4_LEN || p + IP4_LEN > end || p[0] >> 4 != 4 || (p[0] & 15) < 5)
		return 0;
	if (*(const __u32 *)(p + 12) != *(const __u32 *)src || be16(p + 6) & 0x1fff)
		return 0;
	__u8 proto = p[9];
	if (proto == GRE || proto == IPIP || proto == IPV6)
		return 1;
	if (proto != UDP)
		return 0;
	__u32 size = (p[0] & 15) * 4;
	const __u8 *udp = p + size;
	return size + 4 <= room && udp + 4 <= end && is_gue(w, be16(udp + 2));
}

static __always_inline int ours6(const struct world *w, const __u8 *p, __u32 room, const __u8 *end, const __u8 *src)
{
	if (room < IP6_LEN || p + IP6_LEN > end || p[0] >> 4 != 6)
		return 0;
	const __u32 *a = (const __u32 *)(p + 8), *b = (const __u32 *)src;
	if (a[0] != b[0] || a[1] != b[1] || a[2] != b[2] || a[3] != b[3])
		return 0;
	__u8 proto = p[6];
	if (proto == GRE || proto == IPIP || proto == IPV6)
		return 1;
	const __u8 *udp = p + IP6_LEN;
	return proto == UDP && IP6_LEN + 4 <= room && udp + 4 <= end && is_gue(w, be16(udp + 2));
}

static __always_inline struct answer ip4(const struct world *w, const __u8 *ip, const __u8 *end)
{
	if (ip + IP4_LEN > end)
		return say(PASS, 0);
	struct address_key key = { w->copy * 2, { 0, 0, 0, *(const __u32 *)(ip + 16) } };
	struct target *t = find(w, &key);
	__u32 size = (ip[0] & 15) * 4, total = be16(ip + 2);
	__u16 place = be16(ip + 6);
	__u8 proto = ip[9];
	int lies = ip[0] >> 4 != 4 || size < IP4_LEN || total < size;
	const __u8 *l4 = ip + size;
	if (!t) {
		if (lies || proto != ICMP || place & 0x3fff || !is_tunnel(w, &key))
			return say(PASS, 0);
		if (size + ICMP_LEN > total || l4 + ICMP_LEN > end)
			return say(PASS, 0);
		if (l4[0] != 3 && l4[0] != 11 && l4[0] != 12)
			return say(PASS, 0);
		return say(ours4(w, l4 + ICMP_LEN, total - size - ICMP_LEN, end, ip + 16) ? REDIRECT : PASS, 0);
	}
	if (lies || place & 0x1fff || proto == ICMP)
		return say(REDIRECT, t->vip);
	__u16 port = 0;
	if (proto == TCP || proto == UDP) {
		if (size + 4 > total || l4 + 4 > end)
			return say(REDIRECT, t->vip);
		port = be16(l4 + 2);
	}
	return judge(t, proto, port);
}

static __always_inline struct answer ip6(const struct world *w, const __u8 *ip, const __u8 *end)
{
	if (ip + IP6_LEN > end)
		return say(PASS, 0);
	struct address_key key = { w->copy * 2 + 1 };
	__builtin_memcpy(key.addr, ip + 24, 16);
	struct target *t = find(w, &key);
	if (!t && !is_tunnel(w, &key))
		return say(PASS, 0);
	// What cannot be judged goes to parse if it is for a VIP, else to the kernel.
	struct answer unclear = say(PASS, 0);
	if (t)
		unclear = say(REDIRECT, t->vip);
	if (ip[0] >> 4 != 6)
		return unclear;

	__u8 proto = ip[6];
	__u32 off = IP6_LEN, limit = IP6_LEN + be16(ip + 4);
	int seen = 0;
	for (int n = 0; n <= HEADERS; n++) {
		if (proto != HOPOPTS && proto != ROUTING && proto != DSTOPTS && proto != FRAGMENT)
			break;
		const __u8 *h = ip + off;
		if (n == HEADERS || off + 8 > limit || h + 8 > end)
			return unclear;
		if (proto == FRAGMENT) {
			if (seen || be16(h + 2) & 0xfff8)
				return unclear; // a later fragment, or two headers
			seen = 1;
			off += 8;
		} else {
			if (proto == HOPOPTS && n)
				return unclear;
			off += (h[1] + 1) * 8;
			if (off > limit)
				return unclear;
		}
		proto = h[0];
	}
	const __u8 *l4 = ip + off;
	if (proto == ICMPV6) {
		if (off + 1 > limit || l4 + 1 > end)
			return unclear;
		__u8 type = l4[0];
		if (type >= 133 && type <= 137)
			return say(PASS, 0);
		if (t)
			return unclear;
		if (seen || type < 1 || type > 4 || off + ICMP_LEN > limit)
			return say(PASS, 0);
		return say(ours6(w, l4 + ICMP_LEN, limit - off - ICMP_LEN, end, ip + 24) ? REDIRECT : PASS, 0);
	}
	if (!t)
		return say(PASS, 0);
	__u16 port = 0;
	if (proto == TCP || proto == UDP) {
		if (off + 4 > limit || l4 + 4 > end)
			return unclear;
		port = be16(l4 + 2);
	}
	return judge(t, proto, port);
}

static __always_inline struct answer admit(const struct world *w, const __u8 *data, const __u8 *end)
{
	if (data + ETH_LEN > end)
		return say(PASS, 0);
	const __u8 *kind = data + 12;
	for (int i = 0; i < 2; i++) {
		__u16 k = be16(kind);
		if (k != 0x8100 && k != 0x88a8)
			break;
		kind += TAG_LEN;
		if (kind + 2 > end)
			return say(PASS, 0);
	}
	switch (be16(kind)) {
	case 0x0800:
		return ip4(w, kind + 2, end);
	case 0x86dd:
		return ip6(w, kind + 2, end);
	}
	return say(PASS, 0);
}

static __always_inline int run(struct xdp_md *ctx, __u64 size)
{
	const __u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	void *cell = bpf_map_lookup_elem(&current, &zero);
	if (!cell)
		return XDP_PASS;
	struct world *w = bpf_map_lookup_elem(cell, &zero);
	if (!w)
		return XDP_PASS;
	struct answer a = admit(w, data, end);
	int action = a.verdict == PASS ? XDP_PASS : XDP_DROP;
	if (a.verdict == REDIRECT) {
		// Not to the kernel, which may hold the VIP and answer with a reset.
		action = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP);
		if (action != XDP_REDIRECT)
			a.verdict = NO_SOCKET;
	}
	struct count *c = bpf_map_lookup_elem(&verdicts, &a.verdict);
	if (c) {
		c->packets++;
		c->bytes += size;
	}
	if (a.verdict == PASS)
		return action;
	struct vip_count *v = bpf_map_lookup_elem(&vips, &a.vip);
	if (v) {
		v->packets++;
		v->bytes += size;
		if (a.verdict != REDIRECT)
			v->dropped++;
	}
	return action;
}

SEC("xdp")
int lbgraph_admit(struct xdp_md *ctx) { return run(ctx, ctx->data_end - ctx->data); }

// For packets of several buffers (Linux 5.18): without this section name native
// mode refuses an MTU beyond one page.
SEC("xdp.frags")
int lbgraph_admits(struct xdp_md *ctx) { return run(ctx, bpf_xdp_get_buff_len(ctx)); }
