package operator

import (
	"sync"

	"sheaf.dev/sheaf/internal/security/certs"
)

// Keys hold what the operator speaks to the processes of stores with: a certificate of its own for each store. Safe for
// concurrent use. A nil one holds nothing.
type Keys struct {
	mu     sync.Mutex
	stores map[string]*certs.Source // by namespace/name
}

// NewKeys holds nothing yet.
func NewKeys() *Keys { return &Keys{stores: map[string]*certs.Source{}} }

// Set implements fleet.Credentials.
func (k *Keys) Set(store string, files map[string][]byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if there := k.stores[store]; there != nil && there.Replace(files) == nil {
		return nil
	}
	// The first ones; or those of another store of the name, which the ones that are there do not take.
	made, err := certs.InMemory(certs.Config{}, files)
	if err != nil {
		return err
	}
	if there := k.stores[store]; there != nil {
		there.Close()
	}
	k.stores[store] = made
	return nil
}

// Forget implements fleet.Credentials.
func (k *Keys) Forget(store string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if there := k.stores[store]; there != nil {
		there.Close()
		delete(k.stores, store)
	}
}

// Close lets go of all.
func (k *Keys) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for store, there := range k.stores {
		there.Close()
		delete(k.stores, store)
	}
}

// of a store; nil: there are none.
func (k *Keys) of(store string) *certs.Source {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stores[store]
}
