# Two graphs in one file, each with its own encapsulation, and a control block.
metrics {}

graph "a" {
  path {
    main     = [rx, parse, vip-classify, ct.hit, clamp, mtu, gre-encap, xdp-tx]
    new_flow = [ct.miss, maglev-select, clamp]
    too_big  = [mtu.reply, xdp-tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
}

graph "b" {
  path {
    main     = [rx, parse, vip-classify, ct.hit, clamp, mtu, gue-encap, xdp-tx]
    new_flow = [ct.miss, maglev-select, clamp]
    too_big  = [mtu.reply, xdp-tx]
  }
  node "xdp-rx" "rx" { interface = "eth1" }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
}
