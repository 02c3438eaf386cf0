package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"sheaf.dev/sheaf/internal/security/certs"
)

// Transports asks processes which certificates they use. It is safe for concurrent use.
type Transports struct{ client http.Client }

// NewTransports returns a Transports that uses no proxy, because it connects to pods.
func NewTransports() *Transports {
	return &Transports{http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: connectionRest}}}
}

// reportMax is the maximum size of a response in bytes.
const reportMax = 64 << 10

// Transport implements trust.TransportClient.
func (t *Transports) Transport(ctx context.Context, address string) (out certs.Report, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+certs.ReportPath, http.NoBody)
	if err != nil {
		return out, err
	}
	answer, err := t.client.Do(request)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return out, fmt.Errorf("GET %s: %s: it runs without certificates", request.URL, answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, reportMax)).Decode(&out); err != nil {
		return certs.Report{}, fmt.Errorf("GET %s: %w", request.URL, err)
	}
	return out, nil
}
