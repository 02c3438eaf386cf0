package parquetcli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
)

// closePatience bounds the call that closes the view. A view that is not closed expires.
const closePatience = 10 * time.Second

// renew renews the view until ctx ends, several times in the time after which it expires. If the view has ended, renew
// ends the export.
func (e *exporter) renew(ctx context.Context, end context.CancelCauseFunc) {
	every := e.opts.Expires / 8
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		try, cancel := context.WithTimeout(ctx, every)
		view, err := e.source.RenewView(try, e.manifest.View, e.opts.Expires)
		cancel()
		switch {
		case err == nil:
			e.expires.Store(view.Expires.UnixNano())
		case errors.Is(err, client.ErrViewExpired):
			end(fmt.Errorf("renewing the view: %w", err))
			return
		}
		// After any other error the view is renewed at the next turn. If it expires before, the scans say so.
	}
}

// viewError adds to an error what can be done about it: whether the view is still there, and what follows.
func (e *exporter) viewError(err error) error {
	m := e.manifest
	if errors.Is(err, client.ErrViewExpired) {
		return fmt.Errorf("view %s of the export in %s has ended, and no other records may complete its files. Export to "+
			"another folder, and delete this one: %w", m.View, e.dir, err)
	}
	return fmt.Errorf("the export is not complete: run it again before %s to go on with view %s: %w",
		cli.FormatTime(time.Unix(0, e.expires.Load())), m.View, err)
}

// closeView closes a view. What cannot be closed expires.
func (e *exporter) closeView(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	if err := e.source.CloseView(ctx, id); err != nil {
		e.out.Sayf("view %s was not closed and expires by itself: %v", id, cli.Describe(err, ""))
	}
}
