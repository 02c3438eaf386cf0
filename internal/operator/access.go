package operator

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/security/access"
)

// Tables reads and writes the grant tables in etcd over the connections of Placements.
type Tables struct{ Placements *Placements }

// Table implements recordgrant.Tables.
func (t Tables) Table(ctx context.Context, store *v1alpha1.RecordStore) ([]byte, int64, error) {
	p, id, err := Register(t).of(store)
	if err != nil {
		return nil, 0, err
	}
	if _, err := p.store.MetaOf(ctx, id); err != nil {
		return nil, 0, err
	}
	found, err := p.store.Access(ctx)
	return found.Table, found.Revision, err
}

// PutTable implements recordgrant.Tables.
func (t Tables) PutTable(ctx context.Context, store *v1alpha1.RecordStore, text []byte, revision int64) error {
	p, _, err := Register(t).of(store)
	if err != nil {
		return err
	}
	return p.store.PutAccess(ctx, text, revision)
}

// ServiceAccountKeys returns a function that reads the issuer of the cluster's ServiceAccounts and the keys of their
// tokens from the API server. It leaves out keys that may not sign tokens for Sheaf.
func ServiceAccountKeys(config *rest.Config) (func(ctx context.Context) (access.Issuer, error), error) {
	made, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read keys of ServiceAccounts: %w", err)
	}
	api := made.RESTClient()
	return func(ctx context.Context) (access.Issuer, error) {
		configuration, err := api.Get().AbsPath("/.well-known/openid-configuration").DoRaw(ctx)
		if err != nil {
			return access.Issuer{}, err
		}
		var about struct {
			Issuer string `json:"issuer"`
		}
		if err := json.Unmarshal(configuration, &about); err != nil {
			return access.Issuer{}, fmt.Errorf("the issuer of ServiceAccounts: %w", err)
		}
		keys, err := api.Get().AbsPath("/openid/v1/jwks").DoRaw(ctx)
		if err != nil {
			return access.Issuer{}, err
		}
		if keys, err = access.UsableKeys(keys); err != nil {
			return access.Issuer{}, err
		}
		return access.Issuer{URL: about.Issuer, ServiceAccounts: true, Keys: keys}, nil
	}, nil
}
