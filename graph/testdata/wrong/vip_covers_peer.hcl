# A VIP over the address of a router.
pool "web" {
  backend "b1" { address = "10.0.0.1" }
}
vip "web" {
  address = "192.0.2.254"
  pool    = pool.web
}
bgp {
  asn       = 65000
  router_id = "192.0.2.1"
  peer "tor" {
    address = "192.0.2.254"
    asn     = 65001
  }
}
