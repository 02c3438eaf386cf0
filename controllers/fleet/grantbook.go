package fleet

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// GrantsInForce says whether the processes of a store use the grant table that the operator wrote. GrantBook also uses
// this type for other findings about the grants of a store.
type GrantsInForce struct {
	Good            bool
	Unknown         bool   // the state is not known; Good is false
	Reason, Message string // the reason and the message for a condition
}

// Status returns the status of the condition that shows the finding.
func (g GrantsInForce) Status() metav1.ConditionStatus {
	switch {
	case g.Unknown:
		return metav1.ConditionUnknown
	case g.Good:
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// GrantBook keeps a GrantsInForce for each store. The RecordGrant controller writes it after querying the processes,
// and the RecordStore controller reads it. It is kept in memory only, so a restarted operator has to query the
// processes again. The zero value is ready for use. Safe for concurrent use.
type GrantBook struct {
	stores sync.Map // maps the name of a store to its GrantsInForce
	// issuers maps the name of a store to a GrantsInForce that says whether the keys of its token issuers are known. It
	// has no entry for a store without issuers.
	issuers sync.Map
}

// Put records the result for a store.
func (b *GrantBook) Put(store types.NamespacedName, what GrantsInForce) { b.stores.Store(store, what) }

// Of returns the recorded result for a store, and false if there is none. A nil book is empty.
func (b *GrantBook) Of(store types.NamespacedName) (GrantsInForce, bool) {
	if b == nil {
		return GrantsInForce{}, false
	}
	found, ok := b.stores.Load(store)
	what, _ := found.(GrantsInForce)
	return what, ok
}

// PutIssuers records whether the keys of a store's token issuers are known. The argument what is nil if the store has
// no issuers.
func (b *GrantBook) PutIssuers(store types.NamespacedName, what *GrantsInForce) {
	if what == nil {
		b.issuers.Delete(store)
	} else {
		b.issuers.Store(store, *what)
	}
}

// IssuersOf returns the finding that PutIssuers recorded. It returns false if the store has no issuers or if nothing is
// recorded.
func (b *GrantBook) IssuersOf(store types.NamespacedName) (GrantsInForce, bool) {
	if b == nil {
		return GrantsInForce{}, false
	}
	found, ok := b.issuers.Load(store)
	what, _ := found.(GrantsInForce)
	return what, ok
}

// Forget removes the entries of a deleted store.
func (b *GrantBook) Forget(store types.NamespacedName) {
	b.stores.Delete(store)
	b.issuers.Delete(store)
}
