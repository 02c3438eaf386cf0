package shard

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// bubble is a test, or a part of one, in the virtual time of testing/synctest. In a bubble, the function start gives
// shards disks and connections in memory. A comment of each test outside a bubble explains why it is outside.
type bubble struct {
	*testing.T
	network *bubbletest.Net
	folders *atomic.Int64 // number of folder names that TempDir has returned
	part    bool

	mu   sync.Mutex // guards the fields below
	ends []func()   // in a part: the functions that Cleanup has registered
}

// inBubble runs a test in its own bubble.
func inBubble(t *testing.T, test func(t *bubble)) {
	t.Helper()
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		t.Helper()
		test(&bubble{T: t, network: network, folders: new(atomic.Int64)})
	})
}

// Run runs a part of the test in the same bubble, because a bubble cannot have subtests. Everything that the part has
// started is stopped when the part returns.
func (b *bubble) Run(name string, do func(t *bubble)) {
	b.Helper()
	b.Logf("=== %s", name)
	part := &bubble{T: b.T, network: b.network, folders: b.folders, part: true}
	defer func() {
		part.mu.Lock()
		ends := part.ends
		part.mu.Unlock()
		for _, end := range slices.Backward(ends) {
			end()
		}
	}()
	do(part)
}

// Cleanup registers a function to be called at the end of the part, or of the test. It is safe for concurrent use.
func (b *bubble) Cleanup(end func()) {
	if !b.part {
		b.T.Cleanup(end)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ends = append(b.ends, end)
}

// TempDir returns the name of a folder that exists on no disk yet.
func (b *bubble) TempDir() string {
	return fmt.Sprintf("/volume-%d", b.folders.Add(1))
}

// moveInto configures a shard to run in memory if the test is in a bubble.
func moveInto(t testing.TB, cfg *Config) {
	if b, ok := t.(*bubble); ok {
		cfg.FS, cfg.Listener, cfg.Dial = vfstest.NewMem(), b.network.Listen, b.network.Dial
	}
}

// connect creates a client of a shard with this configuration.
func connect(cfg *Config, address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if cfg.Dial != nil {
		address = bubbletest.Target(address)
		options = append(options, grpc.WithContextDialer(cfg.Dial))
	}
	return grpc.NewClient(address, options...)
}
