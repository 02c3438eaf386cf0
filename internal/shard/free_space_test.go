package shard

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// If the free space of a volume is unknown, something is wrong with the volume. Its shard then refuses writes, so
// that clients look for another leader, if there is one.
func TestAWriteWithoutKnownSpaceIsRefusedForNow(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		faulty := vfstest.NewFaulty(vfstest.NewMem())
		f := start(t, newRegistry(oneGroup, "s1"), func(c *Config) { c.FS = faulty }).ready()
		f.put(1, []byte("there is room"))
		broken := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpSpace
		}, Err: syscall.EUCLEAN})
		f.eventually("a put is refused", func() bool {
			_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(1), Data: []byte("is there?")})
			if err != nil {
				want(t, err, codes.Unavailable, reason.NoLeader)
			}
			return err != nil
		})
		_, err := f.upload(&recordv1.UploadHeader{Key: key(1)}, []byte("is there?"))
		want(t, err, codes.Unavailable, reason.NoLeader)
		broken.Remove()
		f.eventually("a put is taken", func() bool {
			_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(1), Data: []byte("there is")})
			return err == nil
		})
		f.holds(1, []byte("there is"))
	})
}

// inTheTrash fills a volume's trash with folders of replicas that have left their groups. The total size of the
// folders is given in bytes.
func inTheTrash(t testing.TB, c *Config, folders int, bytes int64) {
	t.Helper()
	for n := range folders {
		folder := filepath.Join(c.Dir, "trash", fmt.Sprintf("%s-%016x-%d", uuid.New(), n+1, time.Now().Unix()))
		must(t, c.FS.MkdirAll(folder))
		file, err := c.FS.Create(filepath.Join(folder, "segment-000000000001"))
		must(t, err)
		must(t, errors.Join(file.Allocate(0, bytes/int64(folders)), file.Close()))
	}
}

// Before a write is refused for lack of space, folders in the trash are deleted. The oldest are deleted first, and
// only as many as necessary.
func TestNoWriteIsRefusedBesideTrash(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) { noWriteIsRefusedBesideTrash(t) })
}

func noWriteIsRefusedBesideTrash(t testing.TB) {
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) { smallDisk(t, c, 128) }).ready()
	inTheTrash(t, &f.cfg, 8, 88<<20)
	there := map[int64][]byte{}
	for id := range int64(60) {
		there[id] = data(id, 1_000_000)
		f.put(id, there[id])
	}
	if left := len(trashOf(t, f)); left == 0 || left == 8 {
		t.Errorf("%d of 8 folders are left in the trash, of which about half had to go", left)
	}
	blob := data(100, 8<<20)
	if _, err := f.upload(&recordv1.UploadHeader{Key: key(100), SizeBytes: new(int64(len(blob)))},
		slices.Collect(slices.Chunk(blob, 1<<20))...); err != nil {
		t.Errorf("a blob beside trash: %v", err)
	}
	f.holdsAll(there)
}

// The trash is emptied even if background compaction is switched off.
func TestTheTrashGoesWhereNothingIsCompacted(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) { theTrashGoesWhereNothingIsCompacted(t) })
}

func theTrashGoesWhereNothingIsCompacted(t testing.TB) {
	// Background compaction is switched off.
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) { smallDisk(t, c, 96) }).ready()
	inTheTrash(t, &f.cfg, 4, 60<<20)
	f.putEach(40, 1_000_000)
}

// If a group moves to a volume that has replicas in its trash, these replicas are deleted, so that the group can use
// their space.
func TestAReturningGroupGetsTheSpaceOfTheTrash(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) { aReturningGroupGetsTheSpaceOfTheTrash(t) })
}

func aReturningGroupGetsTheSpaceOfTheTrash(t testing.TB) {
	c := newCluster(t, oneGroup, []string{"a"})
	c.settled("a")
	c.fill(40, 1_000_000)
	d := c.add("d", func(cfg *Config) { smallDisk(t, cfg, 128) })
	inTheTrash(t, &d.cfg, 4, 92<<20)
	c.aim("d")
	c.settled("d")
	if left := len(trashOf(t, d)); left == 4 {
		t.Error("all is left in the trash")
	}
	c.filled(40, 1_000_000)
}

// On a small volume, a group is compacted earlier than usual: when its superseded data reaches one eighth of the
// volume, divided by the number of groups. This happens even if its newest segment is not full yet.
func TestOnASmallVolumeLessIsSuperseded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) { onASmallVolumeLessIsSuperseded(t) })
}

func onASmallVolumeLessIsSuperseded(t testing.TB) {
	// The volume is large enough that free space never becomes scarce in this test. Otherwise all groups would be
	// compacted for that reason.
	const volumeMiB = 384
	// With the default settings, a segment has 256 MiB, and a group is compacted when it has 64 MiB of superseded data.
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
		smallDisk(t, c, volumeMiB)
		c.SegmentBytes, c.Compaction = 0, Compaction{Interval: 10 * time.Millisecond, RateBytesPerSecond: -1}
	}).ready()
	var ids []int64
	for n := range hash4.Groups {
		ids = append(ids, idsOf(hash4, n, 2)...)
	}
	there := f.overwrite(ids, 150, 100_000) // writes 30 MB to each group
	const most = volumeMiB << 20 / 8 / 4
	f.eventually("little is superseded", func() bool {
		for _, g := range f.shard.Status().Groups {
			if g.StoredBytes > 2*most {
				return false
			}
		}
		return true
	})
	f.holdsAll(there)
}
