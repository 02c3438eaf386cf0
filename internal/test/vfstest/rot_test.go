package vfstest

import (
	"bytes"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

func TestRotChangesOnlyWhatIsOnTheDisk(t *testing.T) {
	m := NewMem()
	f, err := m.Create("f")
	must.OK(t, err)
	write := func(b byte, n int, at int64) {
		_, err := f.WriteAt(bytes.Repeat([]byte{b}, n), at)
		must.OK(t, err)
	}
	write('a', 9000, 0)
	must.OK(t, m.SyncDir("/"))
	spoil := func(b []byte) { clear(b) }
	if m.Rot("f", 0, 1, spoil) {
		t.Error("what was never synced is on no disk")
	}
	must.OK(t, f.Sync())
	write('b', 10, 5000)
	before := m.CrashClone(Survival{Kind: SurviveAll})
	for what, at := range map[string][2]int64{"unsynced": {4990, 20}, "behind the end": {8990, 20}, "empty": {10, 0},
		"negative": {-1, 5}} {
		if m.Rot("f", at[0], at[1], spoil) {
			t.Errorf("%s: it rots", what)
		}
	}
	if m.Rot("g", 0, 1, spoil) || !m.Rot("f", 4000, 200, spoil) {
		t.Error("a file that is there rots, another does not")
	}
	read := func(m *Mem) []byte {
		f, err := m.Open("f")
		must.OK(t, err)
		b := make([]byte, 9000)
		_, err = f.ReadAt(b, 0)
		must.OK(t, err)
		return b
	}
	want := read(before)
	clear(want[4000:4200])
	if !bytes.Equal(read(m), want) || !bytes.Equal(read(m.CrashClone(Survival{Kind: SurviveAll})), want) {
		t.Error("more or less than the range has changed")
	}
	copy(want[5000:], "aaaaaaaaaa")
	if !bytes.Equal(read(m.CrashClone(Survival{Kind: SurviveNone})), want) {
		t.Error("a power cut undoes it")
	}
	if bytes.Contains(read(before), make([]byte, 1)) {
		t.Error("another disk with the same pages has changed")
	}
}
