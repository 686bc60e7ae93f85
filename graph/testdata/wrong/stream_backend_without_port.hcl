# Nobody says by which port a backend is reached; where the node does, it may.
pool "web" {
  backend "b1" {
    address = "192.0.2.11"
    port    = 8080
  }
  backend "b2" { address = "192.0.2.12" }
}
stream "www" {
  path {
    main = [in, balance, proxy]
    good = [more, other, proxy]
  }
  node "listen" "in" { address = "192.0.2.1:80" }
  node "listen" "more" { address = "192.0.2.1:81" }
  node "balance" "balance" { pool = "web" }
  node "balance" "other" {
    pool = "web"
    port = 8080
  }
}
