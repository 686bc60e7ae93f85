# A control block among nodes; and nothing more is said of that graph.
graph "edge" {
  path {
    main     = [rx, metrics]
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
