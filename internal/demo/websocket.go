package demo

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// maxFrame bounds what a WebSocket's frame may hold.
const maxFrame = 1 << 20

// webSocket sends back each message as it came, frame by frame, answers pings, and
// closes when it is told to (RFC 6455). A frame that is not masked, as a client's must
// be, or is too large, ends the connection.
func webSocket(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Sec-WebSocket-Key")
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || key == "" {
		w.Header().Set("Upgrade", "websocket")
		http.Error(w, "this is a WebSocket; curl cannot open it, a browser or a client of WebSockets can", http.StatusUpgradeRequired)
		return
	}
	name := w.Header().Get("Server")
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "WebSockets are served over HTTP/1.1 only", http.StatusHTTPVersionNotSupported)
		return
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(r.Context(), func() { _ = c.Close() })()
	_ = c.SetDeadline(time.Time{})
	accept := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // section 1.3
	_, _ = fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nServer: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		name, base64.StdEncoding.EncodeToString(accept[:]))
	for rw.Flush() == nil {
		head, data, err := readFrame(rw.Reader)
		if err != nil {
			return
		}
		const closing, ping, pong = 8, 9, 10
		switch head & 0x0F {
		case pong:
			continue
		case ping:
			head = head&0xF0 | pong
		}
		writeFrame(rw.Writer, head, data)
		if head&0x0F == closing {
			_ = rw.Flush()
			return
		}
	}
}

// readFrame reads a client's frame (section 5.2): its first byte, and what it holds.
func readFrame(r *bufio.Reader) (head byte, data []byte, err error) {
	var b [8]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return 0, nil, err
	}
	head, n := b[0], uint64(b[1]&0x7F)
	if b[1]&0x80 == 0 {
		return 0, nil, fmt.Errorf("the frame is not masked")
	}
	switch n {
	case 126:
		if _, err := io.ReadFull(r, b[:2]); err != nil {
			return 0, nil, err
		}
		n = uint64(binary.BigEndian.Uint16(b[:2]))
	case 127:
		if _, err := io.ReadFull(r, b[:8]); err != nil {
			return 0, nil, err
		}
		n = binary.BigEndian.Uint64(b[:8])
	}
	if n > maxFrame {
		return 0, nil, fmt.Errorf("the frame has %d bytes", n)
	}
	var mask [4]byte
	if _, err := io.ReadFull(r, mask[:]); err != nil {
		return 0, nil, err
	}
	data = make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return 0, nil, err
	}
	for i := range data {
		data[i] ^= mask[i&3]
	}
	return head, data, nil
}

func writeFrame(w *bufio.Writer, head byte, data []byte) {
	b := []byte{head}
	switch n := len(data); {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	_, _ = w.Write(b)
	_, _ = w.Write(data)
}
