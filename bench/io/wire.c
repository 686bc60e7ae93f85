//go:build ignore

// Both ends of a measurement, and the kernel's own reflector.
//
// lbgraph_source0 and lbgraph_source1 are run over and over on frames of the kernel's
// (BPF_PROG_RUN with live frames, Linux 5.18), one on each of up to two processors. A
// run makes a packet and hands it to an interface, or drops the frame where none is
// due. lbgraph_sink stands on the same interface, counts what comes back, in GRE over
// IPv4 or bare, and notes how long it was under way. lbgraph_back sends everything back.

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

enum { LANES = 2, BUCKETS = 1024, FRAME = 60 };
enum { ETH_LEN = 14, IP_PROTO = 9, IP_SRC = 12, TCP = 20, PAYLOAD = 40, PROTO_TCP = 6, PROTO_GRE = 47, GRE_LEN = 24 };
enum { LATE = 100 * 1000, LOST = 100 * 1000 * 1000 }; // ns

// What is to be sent; written from outside while nothing is going, for a program may see
// half of what is written.
struct order {
	__u64 window;   // packets under way at most, of each lane; 0: at a rate
	__u64 interval; // ns between two packets of a lane
	__u32 device;   // index of the interface to send by
	__u32 flows;    // of each lane, by their source ports
	__u8 frame[64]; // the packet, with the source address of lane 0, port and payload 0
};

// What a lane's source did. A cache line of its own.
struct source {
	__u64 sent;
	__u64 next;   // when the next packet is due
	__u64 full;   // since when the window is full; 0 if it is not
	__u64 idle;   // ns with a full window
	__u64 heard;  // packets that had come back when the window was looked at last
	__u64 lost;   // packets that are not waited for any more
	__u64 behind; // packets that were due and were left out, for the source came too late
	__u64 flow;
};

// What came back of a lane's packets.
struct sink {
	__u64 packets, bytes;
	__u64 gre; // of them in a tunnel
	__u64 pad[5];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct order);
} orders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} going SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LANES);
	__type(key, __u32);
	__type(value, struct source);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LANES);
	__type(key, __u32);
	__type(value, struct sink);
} sinks SEC(".maps");

// Packets by the time from source to sink.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[BUCKETS]);
} times SEC(".maps");

static __always_inline int source(struct xdp_md *ctx, __u32 lane)
{
	__u8 *p = (void *)(long)ctx->data;
	__u32 zero = 0, *go = bpf_map_lookup_elem(&going, &zero);
	if (!go || !*(volatile __u32 *)go)
		return XDP_DROP;
	struct order *o = bpf_map_lookup_elem(&orders, &zero);
	struct source *s = bpf_map_lookup_elem(&sources, &lane);
	struct sink *k = bpf_map_lookup_elem(&sinks, &lane);
	if (!o || !s || !k || p + FRAME > (__u8 *)(long)ctx->data_end)
		return XDP_DROP;
	__u64 now = bpf_ktime_get_ns();
	if (o->window) {
		__u64 heard = *(volatile __u64 *)&k->packets;
		if ((__s64)(s->sent - s->lost - heard) >= (__s64)o->window) {
			if (!s->full || heard != s->heard) {
				s->idle += s->full ? now - s->full : 0;
				s->full = now;
				s->heard = heard;
			} else if (now - s->full > LOST) {
				s->lost = s->sent - heard;
			}
			return XDP_DROP;
		}
		if (s->full) {
			s->idle += now - s->full;
			s->full = 0;
		}
	} else {
		if (now < s->next)
			return XDP_DROP;
		if (!s->next)
			s->next = now;
		s->next += o->interval;
		if (s->next + LATE < now) {
			s->behind += (now - s->next) / o->interval;
			s->next = now;
		}
	}
	__builtin_memcpy(p, o->frame, FRAME);
	p[ETH_LEN + IP_SRC + 3] += lane;
	__u16 *sum = (__u16 *)(p + ETH_LEN + 10);
	*sum = bpf_htons(bpf_ntohs(*sum) - lane); // Go sees to it that this does not go below 0
	if (++s->flow >= o->flows)
		s->flow = 0;
	// Port and payload add up to 0xffff less the lane, so the checksum holds for all.
	__u16 port = bpf_htons(1024 + s->flow), hi = bpf_htons((__u32)now >> 16), lo = bpf_htons(now);
	__u32 rest = port + hi + lo + bpf_htons(lane);
	rest = (rest & 0xffff) + (rest >> 16);
	rest = (rest & 0xffff) + (rest >> 16);
	*(__u16 *)(p + ETH_LEN + TCP) = port;
	*(__u16 *)(p + ETH_LEN + PAYLOAD) = hi;
	*(__u16 *)(p + ETH_LEN + PAYLOAD + 2) = lo;
	*(__u16 *)(p + ETH_LEN + PAYLOAD + 4) = ~rest;
	s->sent++;
	return bpf_redirect(o->device, 0);
}

SEC("xdp")
int lbgraph_source0(struct xdp_md *ctx)
{
	return source(ctx, 0);
}

SEC("xdp")
int lbgraph_source1(struct xdp_md *ctx)
{
	return source(ctx, 1);
}

// bucket is the place of d in times: 32 buckets an octave, as bounds in wire.go.
static __always_inline __u32 bucket(__u32 d)
{
	if (d < 32)
		return d;
	__u32 e = 0, x = d;
	if (x >> 16) {
		e += 16;
		x >>= 16;
	}
	if (x >> 8) {
		e += 8;
		x >>= 8;
	}
	if (x >> 4) {
		e += 4;
		x >>= 4;
	}
	if (x >> 2) {
		e += 2;
		x >>= 2;
	}
	e += x >> 1;
	return (e - 4) * 32 + (d >> (e - 5) & 31);
}

SEC("xdp")
int lbgraph_sink(struct xdp_md *ctx)
{
	__u8 *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, gre = 0;
	if (p + FRAME > end || p[12] != 8 || p[13] != 0)
		return XDP_PASS;
	p += ETH_LEN;
	if (p[IP_PROTO] == PROTO_GRE) {
		gre = 1;
		p += GRE_LEN;
		if (p + FRAME - ETH_LEN > end)
			return XDP_PASS;
	}
	if (p[IP_PROTO] != PROTO_TCP || p[IP_SRC] != 198 || p[IP_SRC + 1] != 18)
		return XDP_PASS;
	__u32 lane = p[IP_SRC + 3] - 1;
	struct sink *k = bpf_map_lookup_elem(&sinks, &lane);
	__u64 *t = bpf_map_lookup_elem(&times, &zero);
	if (!k || !t)
		return XDP_PASS;
	__sync_fetch_and_add(&k->packets, 1);
	__sync_fetch_and_add(&k->bytes, end - (__u8 *)(long)ctx->data);
	__sync_fetch_and_add(&k->gre, gre);
	__u32 sent = (__u32)bpf_ntohs(*(__u16 *)(p + PAYLOAD)) << 16 | bpf_ntohs(*(__u16 *)(p + PAYLOAD + 2));
	__u32 b = bucket((__u32)bpf_ktime_get_ns() - sent);
	asm volatile("" : "+r"(b)); // the compiler knows that it is in range, the verifier does not
	if (b < BUCKETS)
		__sync_fetch_and_add(&t[b], 1);
	return XDP_DROP;
}

SEC("xdp")
int lbgraph_back(struct xdp_md *ctx)
{
	__u16 *p = (void *)(long)ctx->data;
	if ((void *)(p + 7) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	if (p[6] != bpf_htons(0x0800))
		return XDP_PASS;
	for (int i = 0; i < 3; i++) {
		__u16 x = p[i];
		p[i] = p[i + 3];
		p[i + 3] = x;
	}
	return XDP_TX;
}
