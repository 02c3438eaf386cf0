package group

import (
	"context"
	"path"
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestAnImageIsCheckedWhenItIsReadBack uses a device that returns wrong bytes once, or fails once, when a new segment
// is read into memory. The log must detect this, because otherwise reads would return wrong bytes until the next start.
func TestAnImageIsCheckedWhenItIsReadBack(t *testing.T) {
	for how, effect := range map[string]vfstest.Effect{"a bit is wrong": vfstest.EffectFlip,
		"a block cannot be read": vfstest.EffectNone} {
		for what, rewrite := range map[string]func(*Log) error{
			"compaction": func(l *Log) error {
				_, err := l.Compact(context.Background(), CompactOptions{All: true})
				return err
			},
		} {
			t.Run(what+", "+how, func(t *testing.T) {
				faulty := vfstest.NewFaulty(vfstest.NewMem())
				d := newDriver(t, driverOptions(faulty, Resident, 1<<20))
				for i := range int64(400) {
					d.put(format.Entry{ID: i % 200, Data: payload(i, 300)})
				}
				ok(t, d.log.Seal())
				d.put(format.Entry{ID: 1000, Data: payload(1000, 10)})
				before, err := faulty.List(d.opts.Dir)
				ok(t, err)
				fault := faulty.Add(&vfstest.Fault{Effect: effect, Match: func(op vfstest.Op) bool {
					name := path.Base(op.Name)
					if op.Kind != vfstest.OpRead || !strings.HasPrefix(name, "segment-") || slices.Contains(before, name) {
						return false
					}
					// The large read fails, and so does the separate read of each block.
					if effect == vfstest.EffectNone {
						return op.Offset <= 5*format.BlockBytes && 5*format.BlockBytes < op.Offset+op.Length
					}
					return op.Length > 10*format.BlockBytes
				}})
				if err := rewrite(d.log); err == nil || fault.Fired() == 0 || !strings.Contains(err.Error(), "read back") {
					t.Errorf("%d faults, error %v", fault.Fired(), err)
				}
				for i := range int64(200) {
					d.wants(i, payload(i+200, 300))
				}
				fault.Remove()
				ok(t, rewrite(d.log))
				for i := range int64(200) {
					d.wants(i, payload(i+200, 300))
				}
				d.put(format.Entry{ID: 1, Data: payload(5, 5)})
				d.wants(1, payload(5, 5))
				ok(t, d.log.Close(true))
			})
		}
	}
}
