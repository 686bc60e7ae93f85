# The worked example: a balancer on one interface, and any number of them beside it
# with the same file. `lbgraph check lb.hcl` looks at it, `lbgraph dot lb.hcl` draws
# it, `make demo` runs two.

variable "uplink" { default = "eth0" } # lbgraph run lb.hcl -var uplink=ens3
variable "router" { default = "192.0.2.1" }

locals {
  web4 = "203.0.113.80"
  web6 = "2001:db8::80"
}

# Whether a backend works: three wrong answers in a row take it out, two right ones
# bring it back.
health "http" {
  type     = "http"
  interval = "1s"
  timeout  = "1s"
}

# Who does the work. Flows are shared out by weight; a backend strips GRE and
# answers clients directly.
pool "web" {
  health = health.http
  backend "web-1" { address = "10.0.1.1" }
  backend "web-2" { address = "10.0.1.2" }
  backend "web-3" { address = "10.0.1.3" }
}

# What clients call.
vip "web" {
  address  = local.web4
  protocol = "tcp"
  ports    = [80, 443]
  pool     = pool.web
}

vip "web6" {
  address  = local.web6
  protocol = "tcp"
  ports    = [80, 443]
  pool     = pool.web
}

vip "echo" { # UDP on the same address, by the same backends
  address  = local.web4
  protocol = "udp"
  ports    = [7]
  pool     = pool.web
}

# More pools and VIPs, from a file that other tools write.
inventory "services" { file = "services.json" }

graph "edge" {
  network_mtu = 1500

  path {
    main      = [rx, parse, vip-classify, frag-pin, ct.hit, clamp, mtu, gre, tx]
    new_flow  = [ct.miss, maglev-select, clamp]
    fragments = [parse.fragment, vip-classify.fragment, frag-pin.pinned, mtu]
    icmp      = [parse.icmp, vip-classify.icmp, icmp-vip, ct] # errors carry the flow they quote
    echo      = [icmp-vip.reply, tx]
    too_big   = [mtu.reply, tx]
  }

  node "xdp-rx" "rx" { interface = var.uplink }
  node "conntrack" "ct" {}
  node "mss-clamp" "clamp" {}
  node "mtu-check" "mtu" {}
  node "gre-encap" "gre" {}
  node "xdp-tx" "tx" {}
}

# Routers are told of each VIP while a backend behind it is healthy. They share
# flows out over all balancers that tell them.
bgp {
  asn        = 65001
  drain_time = "2s"
  peer "router" {
    address      = var.router
    asn          = 64500
    ttl_security = 1
  }
}

reload {}                             # changed files take effect; the last good ones are kept
metrics { listen = "127.0.0.1:9109" } # /metrics, /healthz, /readyz
admin {}                              # lbgraph status, top, drain, trace
log {}                                # for people, from info on; see also lbgraph run --log
