# Two receive nodes, one pipeline; each packet leaves by the interface it came by.
graph "two" {
  path {
    main     = [rx1, parse, vip-classify, source-filter, ct.hit, clamp, ttl, mtu, ipip-encap, xdp-tx]
    second   = [rx2, parse]
    new_flow = [ct.miss, maglev-select, clamp]
    icmp     = [parse.icmp, vip-classify.icmp, source-filter-icmp, icmp-vip, ct]
    echo     = [icmp-vip.reply, xdp-tx]
    expired  = [ttl.reply, xdp-tx]
    too_big  = [mtu.reply, xdp-tx]
  }
  node "xdp-rx" "rx1" { interface = "eth0" }
  node "xdp-rx" "rx2" { interface = "eth1" }
  node "source-filter" "source-filter-icmp" {}
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "ttl" "ttl" { answer = true }
  node "mtu-check" "mtu" {}
}
