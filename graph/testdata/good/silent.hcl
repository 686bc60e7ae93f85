# No answer of any kind: no ICMP made, no echo.
graph "silent" {
  path {
    main     = [rx, parse, vip-classify, ct.hit, mtu, gre-encap, xdp-tx]
    new_flow = [ct.miss, maglev-select, mtu]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "mtu-check" "mtu" { icmp_rate = 0 }
}
