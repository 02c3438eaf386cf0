package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"sheaf.dev/sheaf/internal/access"
)

// issuersAge is how long the keys of the cluster's issuer are used before they are read again. A new key is published
// long before tokens are signed by it.
const issuersAge = 10 * time.Minute

// ClusterIssuer is the issuer of the ServiceAccounts of a cluster, as its API server publishes it. Safe for concurrent
// use.
type ClusterIssuer struct {
	get func(ctx context.Context, path string) ([]byte, error)
	now func() time.Time

	mu   sync.Mutex
	last []access.Issuer // nil: not read yet
	read time.Time
}

// NewClusterIssuer asks the API server of config. Every ServiceAccount may read what it asks for
// (system:service-account-issuer-discovery).
func NewClusterIssuer(config *rest.Config) (*ClusterIssuer, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("find the issuer of ServiceAccounts: %w", err)
	}
	get := func(ctx context.Context, path string) ([]byte, error) { return client.RESTClient().Get().AbsPath(path).DoRaw(ctx) }
	return &ClusterIssuer{get: get, now: time.Now}, nil
}

// Issuers gives the issuer with its keys, at most ten minutes old. Where the API server does not say, those that it
// said before; an error where it has never said.
func (c *ClusterIssuer) Issuers(ctx context.Context) ([]access.Issuer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil && c.now().Sub(c.read) < issuersAge {
		return c.last, nil
	}
	found, err := c.ask(ctx)
	if err != nil {
		if c.last != nil {
			return c.last, nil
		}
		return nil, fmt.Errorf("read the issuer of ServiceAccounts from the API server: %w", err)
	}
	c.last, c.read = []access.Issuer{found}, c.now()
	return c.last, nil
}

func (c *ClusterIssuer) ask(ctx context.Context) (access.Issuer, error) {
	var about struct {
		Issuer string `json:"issuer"`
	}
	text, err := c.get(ctx, "/.well-known/openid-configuration")
	if err != nil {
		return access.Issuer{}, err
	}
	if err := json.Unmarshal(text, &about); err != nil {
		return access.Issuer{}, fmt.Errorf("/.well-known/openid-configuration: %w", err)
	}
	if text, err = c.get(ctx, "/openid/v1/jwks"); err != nil {
		return access.Issuer{}, err
	}
	keys, err := signing(text)
	if err != nil {
		return access.Issuer{}, fmt.Errorf("/openid/v1/jwks: %w", err)
	}
	out := access.Issuer{URL: about.Issuer, ServiceAccounts: true, Keys: keys}
	return out, (&access.Table{Version: 1, Audience: "x", Issuers: []access.Issuer{out}}).Validate()
}

// signing leaves of a JSON Web Key Set the keys that stores take: those of others would make the whole set be refused.
func signing(text []byte) (json.RawMessage, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, err
	}
	kept := []json.RawMessage{}
	for _, one := range set.Keys {
		var key struct {
			Use string `json:"use"`
			Alg string `json:"alg"`
			ID  string `json:"kid"`
		}
		if err := json.Unmarshal(one, &key); err != nil {
			return nil, err
		}
		if key.ID != "" && (key.Use == "" || key.Use == "sig") && (key.Alg == "RS256" || key.Alg == "ES256") {
			kept = append(kept, one)
		}
	}
	if len(kept) == 0 {
		return nil, fmt.Errorf("none of its %d keys is one for RS256 or ES256 with an id", len(set.Keys))
	}
	set.Keys = kept
	return json.Marshal(set)
}
