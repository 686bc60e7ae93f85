# Nobody asks whether a packet is for a VIP.
graph "edge" {
  path {
    main      = [rx, parse, frag-pin, ct.hit, clamp, mtu, gre, tx]
    new_flow  = [ct.miss, maglev-select, clamp]
    fragments = [parse.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, icmp-vip, ct]
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
