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

// bubble is a test, or a part of a test, that runs in the virtual time of testing/synctest. In a bubble, the function
// start gives shards in-memory disks and connections. If a test does not run in a bubble, a comment on the test
// explains why.
type bubble struct {
	*testing.T
	network *bubbletest.Net
	folders *atomic.Int64 // number of names that TempDir has returned
	part    bool

	mu   sync.Mutex // guards the fields below
	ends []func()   // functions registered with Cleanup, if this bubble is a part of a test
}

// inBubble runs a test in a bubble of its own.
func inBubble(t *testing.T, test func(t *bubble)) {
	t.Helper()
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		t.Helper()
		test(&bubble{T: t, network: network, folders: new(atomic.Int64)})
	})
}

// Run runs a part of a test in the same bubble, because subtests are not possible in a bubble. When the part returns,
// everything that it has started is stopped.
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

// Cleanup registers a function that is called when the part or the test ends. It is safe for concurrent use.
func (b *bubble) Cleanup(end func()) {
	if !b.part {
		b.T.Cleanup(end)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ends = append(b.ends, end)
}

// TempDir returns the name of a folder that does not exist on any disk yet.
func (b *bubble) TempDir() string {
	return fmt.Sprintf("/volume-%d", b.folders.Add(1))
}

// moveInto configures a shard to run in memory, provided that the test runs in a bubble.
func moveInto(t testing.TB, cfg *Config) {
	if b, ok := t.(*bubble); ok {
		cfg.FS, cfg.Listener, cfg.Dial = vfstest.NewMem(), b.network.Listen, b.network.Dial
	}
}

// connect creates a client for a shard that has this configuration.
func connect(cfg *Config, address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if cfg.Dial != nil {
		address = bubbletest.Target(address)
		options = append(options, grpc.WithContextDialer(cfg.Dial))
	}
	return grpc.NewClient(address, options...)
}
