package group

import "sync"

// memory asks the budget for what index, images and rows of a log take. It looks at these, and changes none of them.
// Safe for concurrent use; state.mu is taken for a look, and not held together with mu.
type memory struct {
	state  *state
	places *places
	images *images

	mu     sync.Mutex // guards taken
	budget Budget     // nil: no limit
	taken  int64      // bytes
}

const memorySlackBytes = 1 << 20 // not given back at once

// used is how many bytes index, images and rows take now.
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

// askMore makes sure that the budget has the memory of so many more entries that take bytes on disk: a row each, room
// in the index, the image. ErrMemory where it has not.
func (m *memory) askMore(entries int, bytes int64) error {
	const perEntry = 20 + 32 // row and slot, both growing
	more := int64(entries) * perEntry
	if m.images.resident {
		more += bytes
	}
	return m.ask(m.used() + more)
}

// ask makes sure that want bytes in all are taken. ErrMemory where the budget has not so many.
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

// settle gives back what is above used.
func (m *memory) settle() {
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

// giveBack gives everything back.
func (m *memory) giveBack() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.budget != nil && m.taken > 0 {
		if err := m.budget.Take(-m.taken); err == nil {
			m.taken = 0
		}
	}
}
