package recordgrant

import (
	"context"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/security/access"
)

// accountsKept is how long the keys of ServiceAccounts are reused before they are read again. They are the same for
// all stores, each of which is reconciled every few minutes.
const accountsKept = time.Minute

// accounts remembers the issuer of the cluster's ServiceAccounts.
type accounts struct {
	mu     sync.Mutex // guards all fields below
	issuer access.Issuer
	read   time.Time // zero: never
}

// serviceAccounts returns the issuer of the cluster's ServiceAccounts with its keys.
func (r *Reconciler) serviceAccounts(ctx context.Context) (access.Issuer, error) {
	r.accounts.mu.Lock()
	defer r.accounts.mu.Unlock()
	if now := r.now(); r.accounts.read.IsZero() || now.Sub(r.accounts.read) >= accountsKept {
		issuer, err := r.Keys(ctx)
		if err != nil {
			return access.Issuer{}, err
		}
		r.accounts.issuer, r.accounts.read = issuer, now
	}
	return r.accounts.issuer, nil
}
