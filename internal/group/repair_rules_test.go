package group

import (
	"errors"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/vfs"
)

// TestRule4_NoHintHidesDamage: a hint made of what could be read would make the next load believe that nothing is missing.
func TestRule4_NoHintHidesDamage(t *testing.T) {
	b := newDamageBed(t)
	for _, at := range []uint64{25, 5} { // in the active segment, in a sealed one without a hint
		disk, l := b.damagedEntry(t, at)
		ok(t, l.Close(false))
		ok(t, b.inflict(disk, MarkName, func(vfs.File) error { return nil }, true))
		opts := b.opts
		opts.FS = disk
		d := &logDriver{t: t, opts: opts, term: 1, time: 1 << 40}
		d.load()
		ok(t, d.log.Apply(d.last(), nil))
		for i := range int64(30) {
			d.put(Entry{ID: 100 + i%3, Data: payload(i, 400)}) // seals the active segment
		}
		ok(t, d.log.Close(true))
		if report := d.load(); report.Outcome != Damaged {
			t.Errorf("index %d: outcome %d of the next load", at, report.Outcome)
		}
		ok(t, d.log.Close(false))
	}
}

// TestLoadOfSeveralVotersWithADamagedTail: what may have made a quorum is neither given up nor taken as committed.
func TestLoadOfSeveralVotersWithADamagedTail(t *testing.T) {
	for _, voters := range [][]uint64{{1}, {1, 2, 3}} {
		for _, what := range []string{"entry", "vote"} {
			mem := vfs.NewMem()
			opts := driverOptions(mem, Index, 64<<10)
			ok(t, Create(opts, &raftpb.ConfState{Voters: voters}))
			d := &logDriver{t: t, opts: opts, term: 1}
			d.load()
			d.put(Entry{ID: 1, Data: []byte("committed")})
			ok(t, d.append(Entry{ID: 2, Data: []byte("perhaps committed")}, Entry{ID: 3, Data: []byte("too")}))
			ok(t, d.log.Sync())
			ok(t, d.log.Tick())
			end, place := d.log.w.end, d.log.state.tail.at(2).loc.Offset()
			if what == "vote" {
				place = end - FrameBytes(0, StateRecordBytes)
			}
			name := d.log.w.active.path
			ok(t, d.log.Close(false))
			f, err := mem.OpenWrite(name)
			ok(t, err)
			ok(t, errors.Join(flip(f, place+32), f.Close()))
			l, _, err := Load(t.Context(), opts, nil)
			if got := errors.Is(err, ErrTailDamaged); got != (len(voters) > 1) || err != nil && !got {
				t.Errorf("%d voters, damaged %s: %v", len(voters), what, err)
			}
			if err == nil {
				ok(t, l.Close(false))
			}
		}
	}
}

func TestAcceptLossIsNotForSeveralVoters(t *testing.T) {
	d := newDriver(t, driverOptions(vfs.NewMem(), Index, 64<<10))
	d.put(Entry{ID: 1, Data: []byte("x")}, Entry{ID: 2, Data: []byte("y")})
	ok(t, d.log.SetConf(&raftpb.ConfState{Voters: []uint64{1, 2, 3}}, 2))
	d.log.noteDamage(Damage{File: SegmentName(1), Offset: 128, IDsUnknown: true, IndexFirst: 1, IndexLast: 1})
	if _, err := d.log.AcceptLoss(); err == nil || !strings.Contains(err.Error(), "3 voters") {
		t.Error(err)
	}
	ok(t, d.log.Close(false))
}
