package vfstest

// Rot changes bytes of a file without a write, as a bad disk does. It passes the bytes that are on the disk to the
// function change. If a part of the range is beyond the end of the file, or has not been synced yet, it is not on the
// disk. In this case Rot changes nothing and returns false.
func (m *Mem) Rot(name string, offset, length int64, change func([]byte)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookupFile(name)
	if err != nil || m.checkCrashed() != nil || offset < 0 || length <= 0 || offset+length > min(n.size, n.durableSize) {
		return false
	}
	first, end := sectorsOf(offset, length)
	for s := first; s < end; s++ {
		_, dirty := n.dirty[s]
		_, lost := n.lost[s]
		if dirty || lost || n.sector(s) == nil {
			return false
		}
	}
	content := make([]byte, length)
	for done := int64(0); done < length; {
		at := offset + done
		done += int64(copy(content[done:], n.pages[at/pageBytes].b[at%pageBytes:]))
	}
	change(content)
	for done := int64(0); done < length; {
		at := offset + done
		done += int64(copy(n.writable(at / pageBytes).b[at%pageBytes:], content[done:]))
	}
	return true
}
