# Fragments led to a node that cannot take them, in a graph where none can.
graph "edge" {
  path {
    main      = [rx, parse, vip-classify, maglev-select, mtu, gre, tx]
    too_big   = [mtu.reply, tx]
    fragments = [parse.fragment, vip-classify.fragment, maglev-select]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
