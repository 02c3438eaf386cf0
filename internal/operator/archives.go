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

// Archives asks the pods of archives, and the sources of restores, for their reports. Safe for concurrent use.
type Archives struct{ client http.Client }

// NewArchives returns an Archives that uses no proxy, because it connects to pods.
func NewArchives() *Archives {
	return &Archives{http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: connectionRest}}}
}

// Report implements recordarchive.Archives.
func (a *Archives) Report(ctx context.Context, address string) (*archiving.Report, error) {
	out := &archiving.Report{}
	if err := a.read(ctx, address, out); err != nil {
		return nil, err
	}
	if out.State == "" {
		return nil, fmt.Errorf("GET http://%s%s: the answer is not that of an archiver", address, archiving.Path)
	}
	return out, nil
}

// SourceReport implements recordstore.Sources.
func (a *Archives) SourceReport(ctx context.Context, address string) (*archiving.SourceReport, error) {
	out := &archiving.SourceReport{}
	if err := a.read(ctx, address, out); err != nil {
		return nil, err
	}
	if out.State != archiving.Starting && out.State != archiving.Serving {
		return nil, fmt.Errorf("GET http://%s%s: the answer is not that of the source of a restore", address, archiving.Path)
	}
	return out, nil
}

// read reads the report of a process into out.
func (a *Archives) read(ctx context.Context, address string, out any) (err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+archiving.Path, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", request.URL, answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, reportMax)).Decode(out); err != nil {
		return fmt.Errorf("GET %s: %w", request.URL, err)
	}
	return nil
}
