# Nobody would tell gre the hardware addresses of backends.
graph "edge" {
  path { main = [rx, parse, vip-classify, maglev-select, mtu, gre, tx] }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "mtu-check" "mtu" { icmp_rate = 0 }
  node "gre-encap" "gre" { next_hop = "kernel" }
  node "xdp-tx" "tx" {}
}
