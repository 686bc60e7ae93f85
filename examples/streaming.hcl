# Sessions that last: WebSockets, server-sent events and gRPC on one port. WebSockets
# and events go over HTTP/1.1 to backends of the web; gRPC is known by its content
# type and goes over HTTP/2 to backends of its own. Nothing ends because it is old:
# what counts is that bytes come. Backends for the first two:
#
#   lbgraph demo backend --http 8081-8082
#   lbgraph run examples/streaming.hcl
#   curl -N http://127.0.0.1:8080/events
#
# and a WebSocket that echoes is at ws://127.0.0.1:8080/echo.

variable "address" { default = "127.0.0.1:8080" }

health "get" {
  type     = "http"
  path     = "/"
  interval = "1s"
  timeout  = "500ms"
}

health "connect" {
  interval = "1s"
  timeout  = "500ms"
}

pool "web" {
  health = health.get
  backend "web-1" {
    address = "127.0.0.1"
    port    = 8081
  }
  backend "web-2" {
    address = "127.0.0.1"
    port    = 8082
  }
}

pool "grpc" {
  health = health.connect
  backend "grpc-1" {
    address = "127.0.0.1"
    port    = 50051
  }
  backend "grpc-2" {
    address = "127.0.0.1"
    port    = 50052
  }
}

stream "front" {
  path {
    main = [accept, admit, kinds.web, web, proxy]
    grpc = [kinds.grpc, grpc, calls]
  }

  node "listen" "accept" { address = var.address }
  node "admit" "admit" {
    limit    = 1000
    upgraded = 10000 # WebSockets count here once they are open, not in limit
  }
  node "route" "kinds" {
    rule "grpc" { headers = { "content-type" = "application/grpc" } }
    rule "web" {}
  }

  node "balance" "web" {
    pool      = pool.web
    algorithm = "least-connections"
  }
  node "proxy" "proxy" {
    upgrade      = ["websocket"]
    body_timeout = "1h" # without an event
    idle_timeout = "1h" # without a frame of a WebSocket either way
  }

  node "balance" "grpc" { pool = pool.grpc }
  node "proxy" "calls" {
    http             = "2"
    response_timeout = "0s" # a call may take as long as it takes
  }
}
