package powercut

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/faultdisk"
)

// probeID is the id of a record that is put after each start to check that the shard accepts writes. Its value is not
// one of the load's values.
const (
	probeID    = int64(-1)
	probeValue = uint64(1) << 40
)

// On average, one in againOneOf cuts is followed by a second cut while the shard starts.
const againOneOf = 3

// tally counts power cuts and their consequences.
type tally struct {
	cuts  int
	again int // number of cuts that happened while a shard started after another cut
	loss  faultdisk.Loss
	keeps map[faultdisk.Keep]int
	redo  int // number of starts that found a journal
	// repaired is the number of file systems that had to be repaired before they could be mounted.
	repaired int
}

func (t *tally) String() string {
	return fmt.Sprintf(
		"%d cuts of the power (%d of them during the start after another); of %d writes that were not flushed %d were "+
			"dropped, "+
			"%d torn, and %d kept although an earlier one was lost; kept: %v; %d times there was a journal, %d times the file "+
			"system had to be repaired",
		t.cuts, t.again, t.loss.Pending, t.loss.Dropped, t.loss.Torn, t.loss.Reordered, t.keeps, t.redo, t.repaired)
}

// cutter cuts the power at positions of a recording.
type cutter struct {
	*recording
	dir   string
	tally *tally
	worst bool // whether all cuts happen right after an acknowledgement and lose everything that was not flushed
}

// cutMany cuts the power at n positions, and returns the violations that it found.
func (c *cutter) cutMany(ctx context.Context, n int, seed uint64) (wrong []error) {
	random := rand.New(rand.NewPCG(seed, 3))
	at := make([]int, 0, n)
	for len(at) < n {
		at = append(at, c.position(random))
	}
	slices.Sort(at)
	power := faultdisk.NewCutter(c.before, c.record)
	for _, position := range at {
		survival := faultdisk.AnySurvival(random.Uint64(), int64(c.fs.sectorBytes))
		if c.worst {
			survival.Keep = faultdisk.KeepNone
		}
		image, loss := power.Cut(position, survival)
		c.count(survival, loss)
		begun := &start{cutter: c, image: image, cut: position, survival: survival, known: c.etcdContentAt(position)}
		if err := begun.check(ctx); err != nil {
			wrong = append(wrong, err)
			continue
		}
		if random.IntN(againOneOf) == 0 && !c.worst {
			if err := begun.cutAgain(ctx, random); err != nil {
				wrong = append(wrong, err)
			}
		}
	}
	return wrong
}

// position chooses at random where to cut the power: right after an acknowledgement, where much data is unflushed, or
// anywhere. It chooses each of these with the same probability.
func (c *cutter) position(random *rand.Rand) int {
	switch n := random.IntN(3); {
	case n == 0 || c.worst:
		return c.ledger.acks[random.IntN(len(c.ledger.acks))]
	case n == 1:
		return c.from + random.IntN(len(c.record)-c.from+1)
	}
	best, most := c.from, 0
	for range 8 {
		end := c.from + random.IntN(len(c.record)-c.from)
		for end < len(c.record) && c.record[end].Kind != faultdisk.Flush {
			end++
		}
		pending := 0
		for pending < end && c.record[end-pending-1].Kind != faultdisk.Flush {
			pending++
		}
		if pending > most {
			best, most = end, pending
		}
	}
	return best
}

func (c *cutter) count(s faultdisk.Survival, loss faultdisk.Loss) {
	c.tally.cuts++
	c.tally.loss.Add(loss)
	c.tally.keeps[s.Keep]++
}

// start is a shard's start on a disk that was left by a power cut.
type start struct {
	*cutter
	image    *faultdisk.Image
	cut      int // position of the cut in the recording; writes that were acknowledged before it must survive
	survival faultdisk.Survival
	known    map[string]string // content of etcd at the start

	record []faultdisk.Op // disk operations during the start, until all groups served
}

func (s *start) String() string {
	return fmt.Sprintf("%s, power cut at %d of %d, kept %v, seed %d", s.fs.name, s.cut, len(s.recording.record),
		s.survival.Keep, s.survival.Seed)
}

// check mounts the disk, starts the shard, compares its records with those that must have survived, and stops the
// shard. Afterwards `sheaf verify` checks the volume, and the file system's own check program checks the file system.
func (s *start) check(ctx context.Context) error {
	disk := faultdisk.Of(s.image)
	m, repaired, err := s.fs.mountOrRepair(s.dir, disk)
	if err != nil {
		return fmt.Errorf("%v: %w", s, err)
	}
	if repaired {
		s.tally.repaired++
	}
	err = s.onMounted(ctx, m.point, disk)
	if unmounted := m.unmount(); unmounted == nil {
		err = errors.Join(err, m.check())
	} else {
		err = errors.Join(err, unmounted)
	}
	if err = errors.Join(err, m.detach()); err != nil {
		return fmt.Errorf("%v: %w", s, err)
	}
	return nil
}

func (s *start) onMounted(ctx context.Context, point string, disk *faultdisk.Device) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	etcd, err := s.etcd.next(ctx, s.known)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.deleteKeys(context.WithoutCancel(ctx))) }()
	if journalUsed(point) {
		s.tally.redo++
	}
	l, err := etcd.begin(ctx, point, vfs.OS{}, group.Residency(s.survival.Seed%2))
	if err != nil {
		return fmt.Errorf("the shard does not start: %w", err)
	}
	if err := s.compare(ctx, l); err != nil {
		return errors.Join(err, l.kill(), fmt.Errorf("its log: %s", l.log))
	}
	s.record = disk.Record()
	if s.survival.Seed%4 < 2 {
		err = l.kill()
	} else {
		err = l.stop(ctx)
	}
	return errors.Join(err, verify(ctx, point))
}

// compare reads all records, and checks that a record can be written.
func (s *start) compare(ctx context.Context, l *runningShard) error {
	found, err := l.allRecords(ctx)
	if err != nil {
		return err
	}
	if value, there := found[probeID]; there && value != probeValue { // the previous start wrote this record
		return fmt.Errorf("the record that a start puts has value %d", value)
	}
	delete(found, probeID)
	if err := s.ledger.check(s.cut, found); err != nil {
		return err
	}
	if _, err := l.client.Put(ctx, client.Key{ID: probeID}, data(probeValue), nil); err != nil {
		return fmt.Errorf("a put after the start: %w", err)
	}
	return nil
}

// verify runs `sheaf verify`, as users do.
func verify(ctx context.Context, point string) error {
	report, err := cli.VerifyTree(ctx, filepath.Join(point, "volume"), cli.VerifyTreeOptions{Quiet: true}, &cli.Output{})
	if err == nil && report.Bad() > 0 {
		err = fmt.Errorf("%d things are bad: %v %+v", report.Bad(), report.Problems, report.Groups)
	}
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	return nil
}

// cutAgain cuts the power at a position among the writes of the start.
func (s *start) cutAgain(ctx context.Context, random *rand.Rand) error {
	survival := faultdisk.AnySurvival(random.Uint64(), int64(s.fs.sectorBytes))
	at := random.IntN(len(s.record) + 1)
	image, loss := faultdisk.NewCutter(s.image, s.record).Cut(at, survival)
	s.count(survival, loss)
	s.tally.again++
	second := &start{cutter: s.cutter, image: image, cut: s.cut, survival: survival, known: s.known}
	if err := second.check(ctx); err != nil {
		return fmt.Errorf("cut again at %d of %d of the start after %v: %w", at, len(s.record), s, err)
	}
	return nil
}

// journalUsed reports whether a volume has a journal with content.
func journalUsed(point string) bool {
	found, err := journal.Read(vfs.OS{}, filepath.Join(point, "volume"))
	return err == nil && len(found.Ranges) > 0
}
