package group

import (
	"bytes"
	"errors"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/vfs"
)

// TestRule4_DamageThatHidesACut: the entry that made another one void is hit. The void one must not count again: the record
// answers DATA_LOSS until it is repaired.
func TestRule4_DamageThatHidesACut(t *testing.T) {
	for _, hint := range []bool{false, true} {
		d := newDriver(t, driverOptions(vfs.NewMem(), Index, 64<<10))
		d.put(Entry{ID: 1, Data: payload(1, 200)})
		ok(t, d.log.SetConf(&raftpb.ConfState{Voters: []uint64{1}, AutoLeave: new(bool)}, 1)) // others were there
		ok(t, d.append(Entry{ID: 2, Data: []byte("void")}))
		d.term = 2
		at, right := d.last(), payload(7, 200)
		ok(t, d.log.Append(nil, []*raftpb.Entry{
			d.entry(at, Entry{ID: 2, Data: right}), d.entry(at+1, Entry{ID: 3, Data: payload(3, 200)}),
		}))
		ok(t, d.log.Sync())
		place := d.log.state.tail.at(at).loc.Offset()
		ok(t, d.log.Apply(d.last(), nil))
		ok(t, d.append()) // the commit of all
		ok(t, d.log.Seal())
		d.log.hints.Wait()
		ok(t, d.log.Close(false))

		b := &damageBed{mem: d.opts.FS.(*vfs.Mem), opts: d.opts, names: d.names()}
		twin := b.twin(t)
		disk := b.mem.CrashClone(vfs.Survival{Kind: vfs.SurviveAll})
		ok(t, b.inflict(disk, SegmentName(1), func(f vfs.File) error { return flip(f, place+20) }, !hint))
		opts := d.opts
		opts.FS = disk
		l, _, err := Load(t.Context(), opts, nil)
		ok(t, err)
		last, _ := l.LastIndex()
		ok(t, l.Apply(max(last, l.AppliedIndex()), nil))
		_, err = l.Verify(t.Context(), 0)
		ok(t, err)
		var damage *DamageError
		if r, err := l.Get(2, GetOptions{}); !errors.As(err, &damage) {
			t.Errorf("hint %t: %q, %v", hint, r.Data, err)
		}
		ok(t, repairFrom(twin, l))
		if r, err := l.Get(2, GetOptions{}); err != nil || !bytes.Equal(r.Data, right) {
			t.Errorf("hint %t: %q, %v", hint, r.Data, err)
		}
		if err := sameLogs(twin, l); err != nil {
			t.Errorf("hint %t: %v", hint, err)
		}
		ok(t, l.Close(false))
		ok(t, twin.Close(false))
	}
}
