# A backend's side: strip the tunnel, then balance what was inside once more.
graph "second_tier" {
  path {
    main     = [in, outer, decap, parse, vip-classify, ct.hit, mtu, ipip-encap, out]
    new_flow = [ct.miss, maglev-select, mtu]
    too_big  = [mtu.reply, out]
  }
  node "pcap-rx" "in" { file = "in.pcap" }
  node "parse" "outer" {}
  node "conntrack" "ct" {}
  node "mtu-check" "mtu" {}
  node "pcap-tx" "out" { file = "out.pcap" }
}
