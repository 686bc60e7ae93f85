# Nobody accepts connections.
pool "web" {
  backend "b1" {
    address = "192.0.2.11"
    port    = 8080
  }
}
stream "www" {
  path { main = [admit, balance, proxy] }
  node "balance" "balance" { pool = "web" }
}
