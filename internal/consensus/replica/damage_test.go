package replica

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// flip changes one bit at the first occurrence of needle in a folder's segments.
func flip(t *testing.T, fs vfs.FS, dir, needle string) {
	t.Helper()
	flipIn(t, fs, dir, "segment", needle)
}

// flipIn changes one bit at the first occurrence of needle in those files of a folder whose names begin with kind.
func flipIn(t *testing.T, fs vfs.FS, dir, kind, needle string) {
	t.Helper()
	names, err := fs.List(dir)
	ok(t, err)
	for _, n := range names {
		if !strings.HasPrefix(n, kind) {
			continue
		}
		f, err := fs.OpenWrite(dir + "/" + n)
		ok(t, err)
		size, err := f.Size()
		ok(t, err)
		all := make([]byte, size)
		_, err = f.ReadAt(all, 0)
		ok(t, err)
		if at := bytes.Index(all, []byte(needle)); at >= 0 {
			_, err = f.WriteAt([]byte{all[at] ^ 1}, int64(at))
			ok(t, err)
			ok(t, f.Sync())
			ok(t, f.Close())
			return
		}
		ok(t, f.Close())
	}
	t.Fatalf("%q is in no segment", needle)
}

// If damage may hide the newest version of a record, a write that depends on the version fails, and the error says
// why. A put without a condition repairs the record.
func TestDamagedRecordRefusesConditionsAndIsHealedByAPut(t *testing.T) {
	mem := vfstest.NewMem()
	m := newMachine(t, mem, "/v")
	one := m.open("7", nil)
	for id, data := range []string{"zero", "one", "needle", "three"} {
		one.must(t, put(int64(id), data))
	}
	one.stop(t)
	m.halt()
	flip(t, mem, "/v/7", "needle")

	one = newMachine(t, mem, "/v").open("7", nil)
	if _, err := one.log.Get(2, group.GetOptions{}); err == nil {
		t.Fatal("the damage is not noticed: the test does not test")
	}
	for what, w := range map[string]write{"if absent": put(2, "x").ifAbsent(), "if version": put(2, "x").ifVersion(3),
		"delete": del(2)} {
		var damage *format.DamageError
		if _, err := one.do(t, w); !errors.As(err, &damage) || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("%s: %v", what, err)
		}
	}
	one.must(t, put(3, "3").ifVersion(mustHead(t, one, 3)))
	result := one.must(t, put(2, "healed"))
	one.wantData(t, 2, "healed")
	one.must(t, put(2, "again").ifVersion(result.Index))
}

func mustHead(t *testing.T, one *member, id int64) uint64 {
	t.Helper()
	index, _, err := one.log.Head(id)
	ok(t, err)
	return index
}

// A new leader that finds damage when it reads its request ids may lack the id of a repeated write. It must not apply
// the write again: it refuses it, and another member answers.
func TestALeaderThatCannotReadAllRequestIDsTakesNoWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		want := leader.must(t, put(1, "needle").request(1, 1))
		last := leader.must(t, put(2, "a later one, so that the commit of the first one is on disk")).Index
		next := first%3 + 1
		hasAll := func() bool { return n.members[next].Status().AppliedIndex >= last }
		until(t, "the next leader has everything", hasAll)
		n.stop(next)
		n.start(next)
		until(t, "it has everything again", hasAll)
		flip(t, n.disks[next], "/v/7", "needle") // nobody notices this damage until the ids are read
		ok(t, leader.TransferLeader(timeout(t), next))
		until(t, "it leads", func() bool { return n.members[next].Status().Leader })
		if got, err := n.members[next].do(t, put(1, "needle").request(1, 1)); !errors.Is(err, ErrNoLeader) {
			t.Errorf("the damaged leader: %+v, %v", got, err)
		}
		if !n.members[next].Status().Damaged {
			t.Fatal("the damage was not noticed: the test does not test")
		}
		until(t, "another leads", func() bool { id, _ := n.lead(); return id != next })
		if got, err := n.write(t, 0, put(1, "needle").request(1, 1)); err != nil || !got.Repeated || got.Index != want.Index {
			t.Errorf("the next leader: %+v, %v; the first was %+v", got, err, want)
		}
	})
}
