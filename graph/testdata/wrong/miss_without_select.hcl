# New flows have nowhere to go, and the node that takes them is not there.
graph "edge" {
  path {
    main    = [rx, parse, vip-classify, ct.hit, clamp, mtu, gre, tx]
    icmp    = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo    = [icmp-vip.reply, tx]
    too_big = [mtu.reply, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
