package cloud

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/test/bucketproxy"
)

const (
	access = "tester"
	secret = "not-a-secret"
	name   = "bucket-of-tests"
)

// gateway is a versitygw, which serves a folder of the file system as S3.
type gateway struct {
	dir    string
	socket string
	cmd    *exec.Cmd
}

// startGateway starts versitygw with the given secret. It serves dir, which contains one bucket, on a unix socket, so
// that tests never compete for a port.
func startGateway(t *testing.T, dir, secret string) *gateway {
	t.Helper()
	program := os.Getenv("SHEAF_VERSITYGW")
	if program == "" {
		t.Skip("SHEAF_VERSITYGW names no versitygw: run `make test-archive`")
	}
	if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
	g := &gateway{dir: dir, socket: "@sheaf-test-" + uuid.NewString()}
	var output bytes.Buffer
	g.cmd = exec.Command(program, "--access", access, "--secret", secret, "--port", g.socket, "--quiet", "posix", dir)
	g.cmd.Stdout, g.cmd.Stderr = &output, &output
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
	})
	t.Cleanup(stop)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		conn, err := g.dial(t.Context())
		if err == nil {
			_ = conn.Close()
			return g
		}
		if time.Now().After(deadline) {
			stop()
			t.Fatalf("versitygw does not listen: %v\n%s", err, output.Bytes())
		}
	}
}

func (g *gateway) dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", g.socket)
}

// stop kills the process.
func (g *gateway) stop() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
}

// rig is a gateway behind a proxy, with a client's environment variables that contain the gateway's secret.
type rig struct {
	*gateway
	proxy    *bucketproxy.Proxy
	attempts int // number of times that the library tries a request; it does not pause in between
}

// newRig starts a gateway and a proxy. The library tries each request once.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{gateway: startGateway(t, t.TempDir(), secret), attempts: 1}
	setCredentials(t, secret)
	proxy, err := bucketproxy.Start(t.Context(),
		func(ctx context.Context) (net.Conn, error) { return r.dial(ctx) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	r.proxy = proxy
	return r
}

func setCredentials(t *testing.T, secret string) {
	t.Setenv("AWS_ACCESS_KEY_ID", access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

// fixedRetries makes the S3 library try each request n times, without a pause.
func fixedRetries(n int) aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.RateLimiter = n, ratelimit.None
		o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
	})
}

// url returns the URL of a folder in the bucket.
func (r *rig) url(path string) string {
	return "s3://" + name + "/" + path + "?region=us-east-1&use_path_style=true&endpoint=" + r.proxy.URL()
}

// open opens a folder of the bucket that no other test uses.
func (r *rig) open(t *testing.T) *Bucket {
	t.Helper()
	b, err := open(t.Context(), r.url("some/where/"+uuid.NewString()), fixedRetries(r.attempts))
	if err != nil {
		t.Fatal(err)
	}
	return b.(*Bucket)
}

func create(t *testing.T, b bucket.Bucket, object string, content []byte) error {
	t.Helper()
	return b.Create(t.Context(), object, int64(len(content)), bytes.NewReader(content))
}

// read reads a part of an object.
func read(ctx context.Context, b bucket.Bucket, object string, offset, length int64) ([]byte, error) {
	r, err := b.Open(ctx, object, offset, length)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(r)
	return content, errors.Join(err, r.Close())
}

// listNames returns the names in a bucket.
func listNames(t *testing.T, b bucket.Bucket, prefix string) (names []string) {
	t.Helper()
	for info, err := range b.List(t.Context(), prefix, "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, info.Name)
	}
	return names
}
