package archivecli

import (
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/archive/prune"
)

// Reading calls read while the archive is protected from pruning (prune.Store.Use), or without protection if s.NoUse is
// set. The argument what says to people who reads, and warn is told about trouble with the protection. The function
// read must open the archive itself.
func (s Source) Reading(ctx context.Context, what string, warn func(text string),
	read func(ctx context.Context) error) error {
	if s.NoUse {
		return read(ctx)
	}
	archive, err := s.pruned(ctx)
	if err != nil {
		return err
	}
	err = archive.Use(ctx, what, warn, read)
	if errors.Is(err, prune.ErrUnprotected) {
		return fmt.Errorf("%w: allow this account to create and delete objects below %s/use/ of the URL; --no-use reads "+
			"without protection, which is safe only while nobody prunes the archive", err, archive.UUID)
	}
	return coded(err)
}
