package group

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// hints reads and writes the hints of sealed segments. It is safe for concurrent use.
type hints struct {
	folder *folder
	state  *state

	cache   hintCache
	writing sync.WaitGroup
	turn    longlock.Mutex // held by the goroutine that writes a hint
}

// writeLater writes a sealed segment's hint in the background. If this fails, the next load reads the segment.
func (h *hints) writeLater(s *segment) {
	if !s.pin() {
		return
	}
	h.writing.Go(func() {
		defer s.unpin()
		h.turn.Lock()
		defer h.turn.Unlock()
		if err := h.write(s); err != nil {
			h.folder.logger.Warn("hint was not written: the next load reads the segment instead",
				"segment", s.number, "error", err)
		}
	})
}

// write writes a sealed segment's hint with the current used flags. It takes the rows from memory or from the hint on
// disk.
func (h *hints) write(s *segment) error {
	h.state.mu.RLock()
	rows, m, terms := s.rows, s.manifest(), h.state.termsOf(s)
	h.state.mu.RUnlock()
	if rows != nil && s.incomplete {
		return nil // without a hint, the next load reads the segment and finds the damage again
	}
	var hint *format.Hint
	if rows == nil {
		var err error
		if hint, err = format.ReadHint(h.folder.fs, h.folder.dir, m); errors.Is(err, format.ErrCorrupt) {
			hint, err = h.remake(s, m)
		}
		if err != nil {
			return err
		}
	} else {
		hint = rows.Hint(m, terms)
	}
	unknown := s.used.unknown.Load()
	for i, place := range hint.Places {
		if s.used.superseded(index.Loc(place).Offset()) {
			hint.SetUsed(i, false)
		}
	}
	if err := format.WriteHint(h.folder.fs, h.folder.dir, s.number, hint); err != nil {
		return err
	}
	s.used.unknown.Add(-unknown)
	h.state.mu.Lock()
	s.rows = nil
	h.state.mu.Unlock()
	return nil
}

// hintStalePart determines when Close rewrites a hint. It does so if the number of outdated used flags exceeds the
// number of the hint's rows divided by hintStalePart.
const hintStalePart = 64

// refresh rewrites hints that have many outdated used flags. It leaves out the active segment, which has a different
// kind of hint.
func (h *hints) refresh(active *segment) {
	h.state.mu.RLock()
	segments := slices.Clone(h.state.segments)
	h.state.mu.RUnlock()
	for _, s := range segments {
		stale := s.used.unknown.Load()
		if s != active && stale > 0 && stale > s.rowCount.Load()/hintStalePart {
			h.writeLater(s)
		}
	}
}

// remake creates a sealed segment's hint from the segment's bytes. It creates no hint if some of the bytes are bad,
// because with a hint the next load would not see the damage.
func (h *hints) remake(s *segment, m format.ManifestSegment) (*format.Hint, error) {
	w, err := s.walkFile(m.Bytes, true)
	if err != nil {
		return nil, err
	}
	if err := w.Whole(m.Bytes); err != nil {
		return nil, fmt.Errorf("the segment of a bad hint is damaged too: %w", err)
	}
	return w.Rows.Hint(m, w.Terms), nil
}

// hintCache keeps the most recently used hints in memory, because a caller that needs old versions of one record
// usually needs those of many records.
type hintCache struct {
	mu    sync.Mutex
	hints []*format.Hint // in the order of their last use
}

const hintCacheBytesMax = 64 << 20

// of returns a sealed segment's hint. It takes the hint from memory or from disk, or reads the segment to create it.
func (h *hints) of(v view) (*format.Hint, error) {
	c := &h.cache
	c.mu.Lock()
	for i, hint := range c.hints {
		if hint.Segment == v.id {
			c.hints = append(append(c.hints[:i:i], c.hints[i+1:]...), hint)
			c.mu.Unlock()
			return hint, nil
		}
	}
	c.mu.Unlock()
	hint, err := format.ReadHint(h.folder.fs, h.folder.dir, v.m)
	if err != nil {
		w, err := v.walkFile(v.end, true)
		if err != nil {
			return nil, err
		}
		hint = w.Rows.Hint(v.m, w.Terms)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hints = append(c.hints, hint)
	bytes := int64(0)
	for i := len(c.hints) - 1; i >= 0; i-- {
		if bytes += hintBytes(c.hints[i]); bytes > hintCacheBytesMax && i < len(c.hints)-1 {
			c.hints = append([]*format.Hint(nil), c.hints[i+1:]...)
			break
		}
	}
	return hint, nil
}

// hintBytes returns how many bytes a hint takes on disk and in memory.
func hintBytes(h *format.Hint) int64 {
	return format.HintBytes(int64(len(h.IDs)), int64(len(h.Terms)), int64(len(h.Blobs)))
}
