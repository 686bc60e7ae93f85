# From a capture to a capture, with the rest looked at as well.
graph "replay" {
  path {
    main     = [in, parse, vip-classify, ct.hit, mtu, gue-encap, count, out]
    new_flow = [ct.miss, maglev-select, mtu]
    too_big  = [mtu.reply, out]
    rest     = [vip-classify.not_vip, others]
    reasons  = [maglev-select.no_backend, gone]
  }
  node "pcap-rx" "in" { file = "in.pcap" }
  node "conntrack" "ct" {}
  node "mtu-check" "mtu" {}
  node "pcap-tx" "out" { file = "out.pcap" }
  node "pcap-tx" "others" { file = "others.pcap" }
  node "drop" "gone" {}
}
