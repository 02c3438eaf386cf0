package fleet

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// GrantsInForce says whether the processes of a store decide by the table of grants that the operator wrote, or another
// thing about its grants.
type GrantsInForce struct {
	Good            bool
	Reason, Message string // as a condition has them
}

// GrantBook keeps that for each store. The controller of grants writes it when it has asked processes, that of stores
// reads it. It is in memory only: an operator that starts asks anew. The zero value is ready. Safe for concurrent use.
type GrantBook struct {
	mu     sync.Mutex
	stores map[types.NamespacedName]GrantsInForce
	// issuers says whether the keys of a store's issuers of tokens are known; a store without issuers is not in it.
	issuers map[types.NamespacedName]GrantsInForce
}

// Put notes what is so of a store.
func (b *GrantBook) Put(store types.NamespacedName, what GrantsInForce) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stores == nil {
		b.stores = map[types.NamespacedName]GrantsInForce{}
	}
	b.stores[store] = what
}

// Of gives what is so of a store; false: it is not known. A nil book knows nothing.
func (b *GrantBook) Of(store types.NamespacedName) (GrantsInForce, bool) {
	if b == nil {
		return GrantsInForce{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	what, ok := b.stores[store]
	return what, ok
}

// PutIssuers notes whether the keys of a store's issuers of tokens are known; nil: it has no issuers.
func (b *GrantBook) PutIssuers(store types.NamespacedName, what *GrantsInForce) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if what == nil {
		delete(b.issuers, store)
		return
	}
	if b.issuers == nil {
		b.issuers = map[types.NamespacedName]GrantsInForce{}
	}
	b.issuers[store] = *what
}

// IssuersOf gives that; false: the store has no issuers, or it is not known.
func (b *GrantBook) IssuersOf(store types.NamespacedName) (GrantsInForce, bool) {
	if b == nil {
		return GrantsInForce{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	what, ok := b.issuers[store]
	return what, ok
}

// Forget a store that is gone.
func (b *GrantBook) Forget(store types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.stores, store)
	delete(b.issuers, store)
}
