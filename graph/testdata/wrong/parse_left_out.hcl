# Nothing looks at headers.
graph "edge" {
  path {
    main     = [rx, vip-classify, frag-pin, ct.hit, clamp, mtu, gre, tx]
    new_flow = [ct.miss, maglev-select, clamp]
    too_big  = [mtu.reply, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
