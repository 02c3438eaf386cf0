package operator

import (
	"sync"

	"sheaf.dev/sheaf/internal/security/certs"
)

// Keys holds the operator's credentials for connections to processes, with a separate certificate for each store. It is
// safe for concurrent use. A nil Keys is empty.
type Keys struct {
	mu     sync.Mutex
	stores map[string]*certs.Source // keys have the form namespace/name
}

// NewKeys returns an empty Keys.
func NewKeys() *Keys { return &Keys{stores: map[string]*certs.Source{}} }

// Set implements trust.Credentials.
func (k *Keys) Set(store string, files map[string][]byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if there := k.stores[store]; there != nil && there.Replace(files) == nil {
		return nil
	}
	// Either these are the first files of the store, or they belong to another store with the same name. The existing
	// source does not accept another store's files.
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

// Forget implements trust.Credentials.
func (k *Keys) Forget(store string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if there := k.stores[store]; there != nil {
		there.Close()
		delete(k.stores, store)
	}
}

// Close closes all sources.
func (k *Keys) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for store, there := range k.stores {
		there.Close()
		delete(k.stores, store)
	}
}

// of returns the certificate source for a store, or nil if there is none.
func (k *Keys) of(store string) *certs.Source {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stores[store]
}
