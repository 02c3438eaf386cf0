package archivecli

import (
	"context"

	"sheaf.dev/sheaf/internal/archive/reader"
)

// Open opens the archive that s selects. Its errors have the exit codes of package cli.
func (s Source) Open(ctx context.Context) (*reader.Archive, error) { return s.open(ctx) }
