package group

import "sync"

// memory requests memory for index, images and rows of a log from the budget. It reads the sizes of these parts, but
// changes none of them. It is safe for concurrent use. It locks state.mu briefly, and never together with mu.
type memory struct {
	state  *state
	places *places
	images *images

	mu     sync.Mutex // guards taken
	budget Budget     // nil if there is no limit
	taken  int64      // bytes
}

const memorySlackBytes = 1 << 20 // unused memory up to this size is not returned to the budget

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

// askMore ensures that the budget has memory for additional entries that take the given number of bytes on disk: a
// row for each entry, its part of the index, and the image. It returns ErrMemory if the budget is too small.
func (m *memory) askMore(entries int, bytes int64) error {
	const perEntry = 20 + 32 // a row and a slot of the index, both in tables that grow
	more := int64(entries) * perEntry
	if m.images.resident {
		more += bytes
	}
	return m.ask(m.used() + more)
}

// ask ensures that want bytes in total are taken from the budget. It returns ErrMemory if the budget is too small.
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

// release returns memory that was taken but is not in use to the budget, if it is more than memorySlackBytes.
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
