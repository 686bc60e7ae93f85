// Package bpf is what runs in the kernel: the XDP program that decides which
// traffic of an interface goes to the AF_XDP sockets (Admission), the one that takes
// our tunnels' headers off on a backend (Decap), and the one that sends health checks
// through the tunnels (Probe). The C sources stand beside the objects that
// `go generate` makes of them with clang.
//
// Admit is the admission rule in Go, for ports that have no XDP in front.
package bpf

//go:generate go tool bpf2go -target bpfel -type target -type range -type address_key -type prefix_key -type service_key -type count -type vip_count admission admission.c -- -O2 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -target bpfel -type count decap decap.c -- -O2 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -target bpfel -type way probe probe.c -- -O2 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
