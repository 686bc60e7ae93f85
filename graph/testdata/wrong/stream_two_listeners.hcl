# Connections to one address cannot come to two nodes, in whatever block they stand.
stream "www" {
  path { main = [in, respond] }
  node "listen" "in" { address = "192.0.2.1:80" }
}
stream "more" {
  path {
    main = [other, respond]
    v6   = [six, respond]
  }
  node "listen" "other" { address = "192.0.2.1:80" }
  node "listen" "six" { address = "[2001:db8::1]:80" }
}
