# Core 3 is the fourth.
graph "steering" {
  cores = 3

  path {
    main      = [rx, parse, vip-classify, spread, frag-pin, ct.hit, clamp, mtu, gre, collect, tx]
    new_flow  = [ct.miss, maglev-select, clamp]
    fragments = [parse.fragment, vip-classify.fragment, spread]
    pinned    = [frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, spread]
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, collect]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "handoff" "spread" { cores = [1, 2, 3] }
  node "handoff" "collect" { cores = [0] }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}
