package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc/credentials"
)

// tokenBytesMax bounds the size of a token file.
const tokenBytesMax = 64 << 10

// Token returns credentials for Config.CallCredentials. The token in the file identifies the caller. The file may be
// in a pod's projected volume, for example, and is read again when it changes. Calls fail if the file cannot be read
// or contains no token, or if the connection does not use TLS. A caller with a certificate (TLSFiles.Cert) sends no
// token.
func Token(file string) credentials.PerRPCCredentials { return &tokenFile{path: file} }

// tokenFile implements credentials.PerRPCCredentials. tokenFile is safe for concurrent use.
type tokenFile struct {
	path string

	mu    sync.Mutex
	seen  fs.FileInfo // information about the file when it was last read; nil if it was never read
	token string
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. TLS is required, because anyone who sees a token
// can use it.
func (*tokenFile) RequireTransportSecurity() bool { return true }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t *tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := t.read()
	if err != nil {
		return nil, fmt.Errorf("sheaf: token: %w", err)
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// read returns the token. It reads the file again if the file has changed.
func (t *tokenFile) read() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, err := os.Stat(t.path)
	if err != nil {
		return "", err
	}
	if t.seen != nil && os.SameFile(t.seen, now) && t.seen.ModTime().Equal(now.ModTime()) && t.seen.Size() == now.Size() {
		return t.token, nil
	}
	if now.Size() > tokenBytesMax {
		return "", fmt.Errorf("%s has %d bytes: that is no token", t.path, now.Size())
	}
	content, err := os.ReadFile(t.path)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(content))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", errors.New(t.path + " holds no token")
	}
	t.seen, t.token = now, token
	return token, nil
}
