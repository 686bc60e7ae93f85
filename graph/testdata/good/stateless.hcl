# No connection table: every packet by the Maglev table.
graph "stateless" {
  path {
    main    = [rx, parse, vip-classify, maglev-select, mtu, gre-encap, xdp-tx]
    icmp    = [parse.icmp, vip-classify.icmp, icmp-vip, maglev-select]
    too_big = [mtu.reply, xdp-tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "icmp-vip" "icmp-vip" { echo = "punt" }
  node "mtu-check" "mtu" {}
}
