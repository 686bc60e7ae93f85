# IPv6 throughout: an IPv6 VIP, backends reached by GRE over IPv6, and one block
# of lists and ranges of ports. IPv4 clients of the second VIP ride in the same
# tunnels: an outer header of either family carries a packet of either family.

variable "uplink" { default = "eth0" }

locals {
  vip  = cidrhost("2001:db8:80::/64", 10)
  rack = "2001:db8:1::/64"
}

pool "front" {
  backend "front-1" { address = cidrhost(local.rack, 1) }
  backend "front-2" { address = cidrhost(local.rack, 2) }
  backend "front-3" {
    address = cidrhost(local.rack, 3)
    weight  = 200 # twice the share of the others, which have 100
  }
}

vip "front" {
  address  = local.vip
  protocol = "tcp"
  ports    = [443, "8000-8099"]
  pool     = pool.front
}

vip "quic" {
  address  = local.vip
  protocol = "udp"
  ports    = [443]
  pool     = pool.front
}

vip "front4" {
  address  = "203.0.113.81"
  protocol = "tcp"
  ports    = [443]
  pool     = pool.front
}

graph "edge" {
  network_mtu = 1500

  path {
    main      = [rx, parse, vip-classify, frag-pin, ct.hit, mss-clamp, mtu, gre-encap, xdp-tx]
    new_flow  = [ct.miss, maglev-select, mss-clamp]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct]
    echo      = [icmp-vip.reply, xdp-tx]
    too_big   = [mtu.reply, xdp-tx]
  }

  node "xdp-rx" "rx" { interface = var.uplink }
  node "conntrack" "ct" {
    timeouts { tcp_established = "2h" }
  }
  node "mtu-check" "mtu" {}
}
