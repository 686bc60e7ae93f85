# The shortest router loop: nothing but receive and transmit.
graph "edge" {
  path {
    main = [rx, tx]
  }
  node "xdp-rx" "rx" { interface = "eth0" }
  node "xdp-tx" "tx" {}
}
