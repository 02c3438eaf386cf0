package powercut

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/faultdisk"
	"sheaf.dev/sheaf/internal/test/must"
)

const (
	blockBytes = 4096
	fibmap     = 1 // returns the block of the device that holds a block of a file
	figetbsz   = 2 // returns the block size in bytes
	badImages  = 3 // number of power cuts whose disks are tested
	tailBlocks = 2 // number of blocks at the end of a segment that are tested
)

// diskOffset returns the offset on the disk at which a block of a file is stored, or 0 if the block is not allocated.
// The file system must be one that overwrites files in place.
func diskOffset(name string, block int64) (place int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	bytes, err := unix.IoctlGetInt(int(f.Fd()), figetbsz)
	if err != nil {
		return 0, err
	}
	number := int32(block * blockBytes / int64(bytes))
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fibmap, uintptr(unsafe.Pointer(&number))); errno != 0 {
		return 0, errno
	}
	return int64(number) * int64(bytes), nil
}

// suspect is a block that a shard must read when it starts after a power cut.
type suspect struct {
	file  string // path relative to the mount point
	block int64
}

// suspects returns three blocks with data from each journal file (the first, the last, and a random one), and one of
// the last blocks of each group's newest segment.
func suspects(random *rand.Rand, point string) (bad []suspect, err error) {
	files, err := filepath.Glob(filepath.Join(point, "volume", "journal-*"))
	if err != nil {
		return nil, err
	}
	journals := len(files)
	groups, err := filepath.Glob(filepath.Join(point, "volume", "groups", "*"))
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		segments, err := filepath.Glob(filepath.Join(group, "segment-*"))
		if err != nil || len(segments) == 0 {
			return nil, fmt.Errorf("%s has no segment: %w", group, err)
		}
		// The last name is that of the newest segment, because names contain the number.
		files = append(files, segments[len(segments)-1])
	}
	for n, name := range files {
		end, err := dataEnd(name)
		if err != nil {
			return nil, err
		}
		file, err := filepath.Rel(point, name)
		if err != nil {
			return nil, err
		}
		switch blocks := (end + blockBytes - 1) / blockBytes; {
		case blocks == 0:
		case n < journals:
			bad = append(bad, suspect{file, 0}, suspect{file, random.Int64N(blocks)}, suspect{file, blocks - 1})
		default:
			bad = append(bad, suspect{file, max(0, blocks-1-random.Int64N(tailBlocks))})
		}
	}
	return bad, nil
}

// dataEnd returns the position of the last non-zero byte of a file.
func dataEnd(name string) (int64, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	return int64(len(strings.TrimRight(string(b), "\x00"))), nil
}

// TestUnreadableBlockAfterPowerCut makes reads of one block fail with EIO while a shard starts after a power
// cut. They fail once or every time. The block is in the journal, or at the end of a segment. The shard must either
// report the error, or hold all data that was acknowledged.
func TestUnreadableBlockAfterPowerCut(t *testing.T) {
	if testing.Short() {
		t.Skip("of the long tests")
	}
	fs := fileSystemOf("ext4")
	fs.skipUnlessMountable(t)
	r, err := record(t.Context(), fs, newStoreEtcd(t), t.TempDir(), vfs.OS{}, writesRecorded, seedWanted(t))
	must.OK(t, err)
	random := rand.New(rand.NewPCG(seedWanted(t), 5))
	u := &unreadableTest{recording: r, dir: t.TempDir()}
	told := map[string]int{}
	for range badImages {
		u.cutAt(r.ledger.acks[random.IntN(len(r.ledger.acks))])
		bad, err := u.suspects(random)
		must.OK(t, err)
		for n, bad := range bad {
			times := 0
			if n%4 == 3 {
				times = 1
			}
			outcome, err := u.start(t.Context(), bad, times)
			if err != nil {
				t.Errorf("cut at %d, block %d of %s, EIO %d times (0: each time): %v", u.cut, bad.block, bad.file, times, err)
			}
			told[outcome]++
		}
	}
	t.Logf("starts with a block that cannot be read: %v", told)
}

// unreadableTest cuts the power in a recording, and starts shards on the result while a block cannot be read.
type unreadableTest struct {
	*recording
	dir   string
	image *faultdisk.Image
	cut   int
}

// cutAt cuts the power at a position. Only flushed data survives the cut.
func (u *unreadableTest) cutAt(position int) {
	u.cut = position
	u.image, _ = faultdisk.NewCutter(u.before, u.record).Cut(position, faultdisk.Survival{Keep: faultdisk.KeepNone})
}

func (u *unreadableTest) suspects(random *rand.Rand) ([]suspect, error) {
	m, err := u.fs.mount(u.dir, faultdisk.Of(u.image), false)
	if err != nil {
		return nil, err
	}
	bad, err := suspects(random, m.point)
	return bad, errors.Join(err, m.detach())
}

// start starts a shard on a disk with a block that cannot be read. The argument times is the number of reads that
// fail, or 0 if all of them fail. start returns how the shard has reacted, and an error if the shard has lost data
// without reporting it.
func (u *unreadableTest) start(ctx context.Context, bad suspect, times int) (outcome string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	disk := faultdisk.Of(u.image)
	m, err := u.fs.mount(u.dir, disk, false)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, m.detach()) }()
	place, err := diskOffset(filepath.Join(m.point, bad.file), bad.block)
	if err != nil || place == 0 {
		return "", fmt.Errorf("it stands nowhere on the disk: %w", err)
	}
	fault := &faultdisk.Fault{Calls: faultdisk.Reads, Offset: place, Bytes: blockBytes, Err: syscall.EIO, Times: times}
	disk.Add(fault)
	etcd, err := u.etcd.next(ctx, u.etcdContentAt(u.cut))
	if err != nil {
		return "", err
	}
	l, err := etcd.begin(ctx, m.point, vfs.OS{}, group.Index)
	switch {
	case fault.Fired() == 0 && err == nil:
		outcome = "was not read"
	case fault.Fired() == 0:
		return "", err
	case errors.Is(err, errDamaged):
		return "a group is damaged", nil
	case errors.Is(err, context.DeadlineExceeded):
		return "waits for ever", err
	case err != nil:
		return "the start is refused", nil
	default:
		outcome = "all is there"
	}
	found, err := l.allRecords(ctx)
	switch {
	case errors.Is(err, client.ErrDataLoss):
		outcome, err = "a read says DATA_LOSS", nil
	case err == nil:
		err = u.ledger.check(u.cut, found)
	}
	if err = errors.Join(err, l.kill()); err != nil {
		return "LOST WITHOUT A WORD", fmt.Errorf("%w; its log: %s", err, l.log)
	}
	return outcome, nil
}
