package writes

import (
	"testing"
	"time"
)

func TestTheSyncOfAnEntryIsFoundWhileItIsKept(t *testing.T) {
	var l SyncLog
	began := time.Unix(1_700_000_000, 0)
	if s := l.Of(1); s != nil {
		t.Errorf("before any sync: %+v", s)
	}
	for i := range uint64(syncsKept + 1) {
		l.Note(began.Add(time.Duration(i)*time.Second), 10*i+1, 10*i+7)
	}
	for index, want := range map[uint64]int{1: -1, 11: 1, 17: 1, 18: -1, 10*syncsKept + 7: syncsKept,
		10*syncsKept + 8: -1} {
		s := l.Of(index)
		if (s == nil) != (want < 0) || s != nil && !s.Began.Equal(began.Add(time.Duration(want)*time.Second)) {
			t.Errorf("entry %d: %+v, want that of sync %d", index, s, want)
		}
	}
}
