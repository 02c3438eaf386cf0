package prune

import (
	"context"

	"sheaf.dev/sheaf/internal/archive/object"
)

// CreateDrill creates the object of a drill. It returns ErrOther if another drill began at the same time.
func (s *Store) CreateDrill(ctx context.Context, d *object.Drill) error {
	_, err := s.create(ctx, object.DrillName(d.Time), d, nil)
	return err
}
