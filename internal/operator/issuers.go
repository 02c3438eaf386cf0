package operator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// issuerPatience is the time limit for reading the keys of one issuer, for both requests together.
	issuerPatience = 5 * time.Second
	// issuerAnswerMax is the maximum size of each response in bytes.
	issuerAnswerMax  = 256 << 10
	issuerRedirects  = 3
	discoveryPath    = "/.well-known/openid-configuration"
	discoveryKeysFor = "jwks_uri"
)

// IssuerKeys reads a token issuer's JSON Web Key Set through OpenID Connect Discovery, within 5 s. It uses only
// HTTPS, even after a redirect. The argument caBundle holds the PEM-encoded authorities with which the issuer is
// verified. Errors contain nothing from the responses except names.
func IssuerKeys(ctx context.Context, issuer, caBundle string) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, issuerPatience)
	defer cancel()
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !cfg.RootCAs.AppendCertsFromPEM([]byte(caBundle)) {
		return nil, errors.New("caBundle holds no certificate that can be read")
	}
	transport := &http.Transport{TLSClientConfig: cfg, Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	c := &http.Client{Transport: transport, CheckRedirect: func(to *http.Request, via []*http.Request) error {
		if to.URL.Scheme != "https" || len(via) >= issuerRedirects {
			return errors.New("it leads to another place than by HTTPS, or too often")
		}
		return nil
	}}
	var about struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := readJSON(ctx, c, strings.TrimSuffix(issuer, "/")+discoveryPath, &about); err != nil {
		return nil, err
	}
	if about.Issuer != issuer {
		return nil, fmt.Errorf("%s says that it is the issuer %.200q: give that as url, if it is the one that is meant",
			issuer, about.Issuer)
	}
	at, err := url.Parse(about.Keys)
	if err != nil || at.Scheme != "https" || at.Host == "" {
		return nil, fmt.Errorf("%s names its keys in %s as %.200q, which is no URL with https", issuer, discoveryKeysFor,
			about.Keys)
	}
	var keys json.RawMessage
	return keys, readJSON(ctx, c, about.Keys, &keys)
}

// readJSON decodes one response into a value.
func readJSON(ctx context.Context, c *http.Client, at string, into any) (err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := c.Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", at, answer.Status)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, issuerAnswerMax+1))
	switch {
	case err != nil:
		return fmt.Errorf("GET %s: %w", at, err)
	case len(body) > issuerAnswerMax:
		return fmt.Errorf("GET %s: the answer has more than %d bytes", at, issuerAnswerMax)
	case json.Unmarshal(body, into) != nil:
		return fmt.Errorf("GET %s: the answer is not the JSON that was expected", at)
	}
	return nil
}
