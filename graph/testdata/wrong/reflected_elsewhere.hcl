# What is reflected leaves by another interface.
graph "mirror" {
  path { main = [rx, reflect, tx] }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "xdp-tx" "tx" { interface = "eth1" }
}
