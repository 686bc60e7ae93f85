# A rule looks at hosts, and nobody reads requests.
pool "web" {
  backend "b1" {
    address = "192.0.2.11"
    port    = 8080
  }
}
stream "www" {
  path { main = [in, by.www, balance, proxy] }
  node "listen" "in" {
    address  = "192.0.2.1:80"
    protocol = "tcp"
  }
  node "route" "by" {
    rule "www" { host = ["www.example.org"] }
  }
  node "balance" "balance" { pool = "web" }
}
