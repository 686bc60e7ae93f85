# The plain reflector that throughput is compared to.
graph "reflector" {
  path { main = [rx, reflect, tx] }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "xdp-tx" "tx" {}
}
