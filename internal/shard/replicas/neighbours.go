package replicas

import (
	"maps"
	"sync"

	"sheaf.dev/sheaf/internal/placement"
)

// neighbours holds the addresses of the other shards as etcd last reported them. A shard whose lease ran out while etcd
// was down still serves at its last address. Safe for concurrent use.
type neighbours struct {
	mu        sync.Mutex
	addresses map[string]string
	domains   map[string]string // failure domains; replaced as a whole
}

// note records what etcd says of registered shards.
func (n *neighbours) note(shards map[string]placement.Shard) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var next map[string]string
	for name, shard := range shards {
		n.addresses[name] = shard.Address
		if domain, known := n.domains[name]; known && domain == shard.Domain {
			continue
		}
		if next == nil {
			next = make(map[string]string, len(n.domains)+1)
			maps.Copy(next, n.domains)
		}
		next[name] = shard.Domain
	}
	if next != nil {
		n.domains = next
	}
}

// address returns the address of a shard. It returns false if the shard is unknown.
func (n *neighbours) address(shard string) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	address, ok := n.addresses[shard]
	return address, ok
}

// allDomains returns the failure domains of shards.
func (n *neighbours) allDomains() map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.domains
}
