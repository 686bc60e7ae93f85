# A hit is selected once more.
graph "edge" {
  path {
    main      = [rx, parse, vip-classify, frag-pin, ct.hit, maglev-select, clamp, mtu, gre, tx]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, tx]
    new       = [ct.miss, maglev-select]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
