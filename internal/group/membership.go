package group

// ConfIndex is the index of the membership change that made the present membership; 0: that of Create.
func (l *Log) ConfIndex() uint64 {
	l.state.mu.RLock()
	defer l.state.mu.RUnlock()
	return l.state.confIndex
}

// Damaged tells, at no cost, whether there is damage that is neither repaired nor accepted as lost.
func (l *Log) Damaged() bool { return l.damages.any() }
