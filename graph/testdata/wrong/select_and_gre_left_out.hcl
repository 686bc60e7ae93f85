# A connection hit only, and that as it came.
graph "edge" {
  path {
    main     = [rx, parse, vip-classify, ct.hit, tx]
    new_flow = [ct.miss, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "xdp-tx" "tx" {}
}
