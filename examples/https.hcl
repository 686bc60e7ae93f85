# HTTPS with termination: TLS is taken off here, HTTP/1.1 and HTTP/2 are read, and
# requests go to two backends in the clear. What comes to the port of plain HTTP is
# sent to the other one. A certificate to try it with, and backends:
#
#   openssl req -x509 -newkey rsa:2048 -nodes -keyout www.key -out www.crt -days 30 \
#     -subj /CN=localhost -addext subjectAltName=DNS:localhost
#   lbgraph demo backend --http 8081-8082
#   lbgraph run examples/https.hcl
#   curl --cacert www.crt -L http://localhost:8080/
#
# When the files of the certificate change they are read again; connections stay.

variable "http" { default = "127.0.0.1:8080" }
variable "https" { default = "127.0.0.1:8443" }
variable "cert" { default = "www.crt" } # and what leads to its issuer; looked for where lbgraph is run
variable "key" { default = "www.key" }

health "get" {
  type     = "http"
  path     = "/"
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

stream "secure" {
  path {
    main  = [https, tls, fields, web, proxy]
    plain = [http, redirect]
  }

  node "listen" "https" {
    address  = var.https
    protocol = "tcp" # the bytes are TLS until the next node has taken it off
  }
  node "tls" "tls" {
    certificate {
      cert = var.cert
      key  = var.key
    }
  }
  node "headers" "fields" {
    response { set = { "Strict-Transport-Security" = "max-age=86400" } }
  }
  node "balance" "web" { pool = pool.web }

  node "listen" "http" { address = var.http }
  node "redirect" "redirect" { to = "https://{host}:${split(":", var.https)[1]}{target}" }
}
