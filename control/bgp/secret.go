package bgp

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// maxPassword is TCP_MD5SIG_MAXKEYLEN, the longest key that the kernel takes.
const maxPassword = 80

// password answers the secret of a session, "" for none. It is read anew for every
// connection, so that a key is changed by changing the file. No error carries it.
func (t *transport) password() (string, error) {
	var secret []byte
	var from string
	switch {
	case t.passwordFile != "":
		from = "password_file " + t.passwordFile
		var err error
		if secret, err = readSecret(t.passwordFile); err != nil {
			return "", fmt.Errorf("password_file: %w", err)
		}
	case t.passwordEnv != "":
		from = "password_env " + t.passwordEnv
		v, ok := os.LookupEnv(t.passwordEnv)
		if !ok {
			return "", fmt.Errorf("%s: there is no such environment variable", from)
		}
		secret = []byte(v)
	default:
		return "", nil
	}
	secret = bytes.TrimRight(secret, "\r\n")
	switch {
	case len(secret) == 0:
		return "", fmt.Errorf("%s is empty", from)
	case len(secret) > maxPassword:
		return "", fmt.Errorf("%s is longer than %d bytes, the most that TCP MD5 signatures can have", from, maxPassword)
	case bytes.ContainsAny(secret, "\x00\r\n"):
		return "", fmt.Errorf("%s has more than one line", from)
	}
	return string(secret), nil
}

// readSecret reads a file that only its owner may read.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of the open file: nobody swaps it in between
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %04o, so that others than its owner get at the secret; chmod 600 it", path, mode)
	}
	return io.ReadAll(io.LimitReader(f, 4096))
}
