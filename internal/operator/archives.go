package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"sheaf.dev/sheaf/internal/status/archiving"
)

// Archives asks the pods of archives for their reports. Safe for concurrent use.
type Archives struct{ client http.Client }

// NewArchives returns an Archives that uses no proxy, because it connects to pods.
func NewArchives() *Archives {
	return &Archives{http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: connectionRest}}}
}

// Report implements recordarchive.Archives.
func (a *Archives) Report(ctx context.Context, address string) (out *archiving.Report, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+archiving.Path, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", request.URL, answer.Status)
	}
	out = &archiving.Report{}
	if err := json.NewDecoder(io.LimitReader(answer.Body, reportMax)).Decode(out); err != nil {
		return nil, fmt.Errorf("GET %s: %w", request.URL, err)
	}
	if out.State == "" {
		return nil, fmt.Errorf("GET %s: the answer is not that of an archiver", request.URL)
	}
	return out, nil
}
