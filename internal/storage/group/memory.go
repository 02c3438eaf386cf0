package group

import "sync"

// memory requests memory for index, images and rows of a log from the budget. It reads their sizes, and changes none of
// them. Safe for concurrent use; state.mu is locked briefly, and not together with mu.
type memory struct {
	state  *state
	places *places
	images *images

	mu     sync.Mutex // guards taken
	budget Budget     // nil: no limit
	taken  int64      // bytes
}

const memorySlackBytes = 1 << 20 // unused memory up to this size is not given back

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

// askMore ensures that the budget has memory for additional entries that take bytes on disk: a row each, their part of
// the index, and the image. It returns ErrMemory if the budget is too small.
func (m *memory) askMore(entries int, bytes int64) error {
	const perEntry = 20 + 32 // row and slot, both growing
	more := int64(entries) * perEntry
	if m.images.resident {
		more += bytes
	}
	return m.ask(m.used() + more)
}

// ask ensures that want bytes are taken in total. It returns ErrMemory if the budget is too small.
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

// release returns the memory above used to the budget, if it is more than memorySlackBytes.
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
