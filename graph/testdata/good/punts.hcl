# What is not ours goes to the kernel by a node of its own; echo too.
graph "punts" {
  path {
    main      = [generate, parse, vip-classify, frag-pin, ct.hit, mss-clamp, mtu, gre-encap, xdp-tx]
    new_flow  = [ct.miss, maglev-select, mss-clamp]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    other     = [parse.other, punt]
    not_vip   = [vip-classify.not_vip, punt]
    wrong     = [vip-classify.wrong_port, sample, drop]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo      = [icmp-vip.pass, punt]
    too_big   = [mtu.reply, xdp-tx]
  }
  node "icmp-vip" "icmp-vip" { echo = "punt" }
  node "conntrack" "ct" {}
  node "sample" "sample" { file = "wrong.pcap" }
  node "mtu-check" "mtu" {}
}
