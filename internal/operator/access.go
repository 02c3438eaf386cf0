package operator

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"sheaf.dev/sheaf/internal/security/access"
)

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
