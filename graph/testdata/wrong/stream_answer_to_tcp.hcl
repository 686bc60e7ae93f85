# A connection cannot be answered as a request is.
stream "www" {
  path { main = [in, respond] }
  node "listen" "in" {
    address  = "192.0.2.1:80"
    protocol = "tcp"
  }
}
