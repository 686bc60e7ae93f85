# Nobody reads requests in front of a kind that changes them.
pool "web" {
  backend "b1" {
    address = "192.0.2.11"
    port    = 8080
  }
}
stream "www" {
  path { main = [in, headers, balance, proxy] }
  node "listen" "in" {
    address  = "192.0.2.1:80"
    protocol = "tcp"
  }
  node "balance" "balance" { pool = "web" }
}
