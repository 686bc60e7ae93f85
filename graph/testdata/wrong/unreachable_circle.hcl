# Two nodes that lead to each other only.
graph "edge" {
  path {
    main       = [rx, parse, vip-classify, frag-pin, ct.hit, clamp, mtu, gre, tx]
    new_flow   = [ct.miss, maglev-select, clamp]
    fragments  = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp       = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo       = [icmp-vip.reply, tx]
    too_big    = [mtu.reply, tx]
    extra_path = [count, again, count]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "count" "again" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
