package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/control/admin"
)

// client asks the daemon that runs.
type client struct {
	socket string
	http   http.Client
}

// daemon adds the flag --socket to c and answers whom to ask, once the flags are
// read.
func (a *app) daemon(c *cobra.Command) func() *client {
	socket := c.Flags().String("socket", defaultSocket(), "`path` of the daemon's admin socket; $LBGRAPH_SOCKET changes the default")
	_ = c.MarkFlagFilename("socket", "sock")
	return func() *client {
		x := &client{socket: *socket}
		x.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", x.socket)
		}}
		return x
	}
}

// open sends a request and answers the response; whoever gets it closes its body.
func (x *client) open(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	q, err := http.NewRequestWithContext(ctx, method, "http://lbgraph"+path, r)
	if err != nil {
		return nil, err
	}
	resp, err := x.http.Do(q)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the URL says nothing
		}
		if errors.Is(err, fs.ErrPermission) {
			return nil, refused("the daemon may not be asked: %w. Root may, and the group that its admin block names", err)
		}
		return nil, refused("no daemon answers: %w. Does one run, with an admin block?", err)
	}
	return resp, nil
}

// ask sends a request and reads the answer into to. What the daemon calls a mistake
// of whoever asked is one of whoever typed the command.
func (x *client) ask(ctx context.Context, method, path string, body, to any) error {
	resp, err := x.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := x.problem(resp); err != nil {
		return err
	}
	if err := json.NewDecoder(resp.Body).Decode(to); err != nil {
		return refused("the daemon's answer is not understood: %w", err)
	}
	return nil
}

func (x *client) problem(resp *http.Response) error {
	if resp.StatusCode < 400 {
		return nil
	}
	var e admin.Error
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil || e.Error == "" {
		e.Error = resp.Status
	}
	if resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusNotFound {
		return misuse("%s", e.Error)
	}
	return refused("%s", e.Error)
}

// askReload is ask for what is answered by a Reload, whose status says its outcome.
func (x *client) askReload(ctx context.Context, method, path string) (r admin.Reload, err error) {
	resp, err := x.open(ctx, method, path, nil)
	if err != nil {
		return r, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil || r.Outcome == "" {
		return r, refused("the daemon's answer is not understood (%s): %v", resp.Status, err)
	}
	return r, nil
}

// list joins parts with commas and leaves empty ones out.
func list(parts ...string) string {
	var b bytes.Buffer
	for _, p := range parts {
		if p == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p)
	}
	return b.String()
}

func counted(n uint64, word string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, word)
}
