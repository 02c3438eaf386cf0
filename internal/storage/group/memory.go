package group

import "sync"

// memory takes memory from the budget for a log's index, images and rows. It only reads the sizes of these parts. It
// is safe for concurrent use. It locks state.mu only briefly, and never together with mu.
type memory struct {
	state  *state
	places *places
	images *images

	mu     sync.Mutex // guards the field taken
	budget Budget     // nil if there is no limit
	taken  int64      // number of bytes taken from the budget
}

const memorySlackBytes = 1 << 20 // unused memory up to this amount is kept

// used returns the number of bytes that index, images and rows take now.
func (m *memory) used() int64 {
	m.state.mu.RLock()
	defer m.state.mu.RUnlock()
	bytes := m.places.table.MemoryBytes()
	for _, s := range m.state.segments {
		if s.rows != nil {
			bytes += s.rows.MemoryBytes()
		}
		if s.image == nil {
			continue
		}
		if s.bytes > 0 {
			bytes += s.bytes
		} else {
			bytes += m.state.end
		}
	}
	return bytes
}

// askMore takes memory from the budget for additional entries that take the given number of bytes on disk. Each entry
// needs a row, a slot of the index and its part of the image. askMore returns ErrMemory if the budget is too small.
func (m *memory) askMore(entries int, bytes int64) error {
	// perEntry is the size in bytes of a row and of an index slot. It is more than they need, because both tables grow
	// in steps.
	const perEntry = 20 + 32
	more := int64(entries) * perEntry
	if m.images.resident {
		more += bytes
	}
	return m.ask(m.used() + more)
}

// ask takes memory from the budget until the log has at least want bytes. It returns ErrMemory if the budget is too
// small.
func (m *memory) ask(want int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.budget == nil || want <= m.taken {
		return nil
	}
	if err := m.budget.Take(want - m.taken); err != nil {
		return err
	}
	m.taken = want
	return nil
}

// release returns unused memory to the budget, if it is more than memorySlackBytes.
func (m *memory) release() {
	used := m.used()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.budget == nil || used+memorySlackBytes >= m.taken {
		return
	}
	if err := m.budget.Take(used - m.taken); err == nil {
		m.taken = used
	}
}

// giveBack returns all memory to the budget.
func (m *memory) giveBack() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.budget != nil && m.taken > 0 {
		if err := m.budget.Take(-m.taken); err == nil {
			m.taken = 0
		}
	}
}
