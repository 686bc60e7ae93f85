# Flows that are known and flows that are new leave in different tunnels, each
# with a clamp and a check of its own.
graph "tunnels" {
  path {
    main     = [rx, parse, vip-classify, ct.hit, clamp1, mtu1, gre-encap, tx]
    new_flow = [ct.miss, maglev-select, clamp2, mtu2, ipip-encap, tx]
    too_big1 = [mtu1.reply, tx]
    too_big2 = [mtu2.reply, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp1" {}
  node "mss-clamp" "clamp2" {}
  node "mtu-check" "mtu1" {}
  node "mtu-check" "mtu2" {}
  node "xdp-tx" "tx" { interface = "eth0" }
}
