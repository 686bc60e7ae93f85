package route

import (
	"encoding/binary"
	"errors"
)

var errHello = errors.New("no ClientHello of TLS")

// maxHello bounds the message; those with post-quantum keys have some 2 KiB.
const maxHello = 16 << 10

// serverName finds the server name in a ClientHello (RFC 8446 section 4.1.2, RFC
// 6066 section 3), which may come in several records; "" if it has none.
func serverName(b []byte) (name string, complete bool, err error) {
	// The handshake message, out of its records.
	var msg []byte
	for {
		if len(msg) >= 4 {
			n := int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3])
			switch {
			case msg[0] != 1 || n > maxHello:
				return "", false, errHello
			case len(msg) >= 4+n:
				name, ok := extension(msg[4 : 4+n])
				if !ok {
					return "", false, errHello
				}
				return name, true, nil
			}
		}
		if len(b) > 0 && b[0] != 22 || len(b) > 1 && b[1] != 3 {
			return "", false, errHello
		}
		if len(b) < 5 {
			return "", false, nil
		}
		n := int(binary.BigEndian.Uint16(b[3:]))
		if n == 0 || n > maxHello {
			return "", false, errHello
		}
		part := b[5:]
		if len(part) < n {
			return "", false, nil
		}
		msg = append(msg, part[:n]...)
		b = part[n:]
	}
}

// extension finds the name in the body of a ClientHello.
func extension(p []byte) (name string, ok bool) {
	r := reader{p, true}
	r.take(2 + 32) // version, random
	r.take(int(r.n8()))
	r.take(int(r.n16()))
	r.take(int(r.n8()))
	if r.ok && len(r.p) == 0 {
		return "", true // no extensions
	}
	ext := reader{r.take(int(r.n16())), r.ok}
	for ext.ok && len(ext.p) > 0 {
		kind := ext.n16()
		body := reader{ext.take(int(ext.n16())), ext.ok}
		if kind != 0 {
			continue
		}
		list := reader{body.take(int(body.n16())), body.ok}
		for list.ok && len(list.p) > 0 {
			typ := list.n8()
			value := list.take(int(list.n16()))
			if typ == 0 && list.ok {
				return string(value), r.ok
			}
		}
		if !list.ok {
			return "", false
		}
	}
	return "", r.ok && ext.ok
}

// reader takes pieces from the front of p; once there are too few, it is not ok.
type reader struct {
	p  []byte
	ok bool
}

func (r *reader) take(n int) []byte {
	if !r.ok || len(r.p) < n {
		r.ok = false
		return nil
	}
	b := r.p[:n]
	r.p = r.p[n:]
	return b
}

func (r *reader) n8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) n16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}
