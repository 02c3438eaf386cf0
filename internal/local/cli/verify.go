package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/internal/local/dev"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// VerifyTreeReport is the result of VerifyTree.
type VerifyTreeReport struct {
	Volumes  int                 `json:"volumes"`
	Bytes    int64               `json:"bytes"`
	Entries  int64               `json:"entries"`
	Seconds  float64             `json:"seconds"`
	Problems []string            `json:"problems,omitempty"` // problems of superblocks and journals
	Groups   []VerifyGroupReport `json:"groups"`
}

// VerifyGroupReport is the part of a VerifyTreeReport that describes one group.
type VerifyGroupReport struct {
	Group     string `json:"group"`
	Dir       string `json:"dir"`
	Bytes     int64  `json:"bytes"`
	Entries   int64  `json:"entries"`
	TornBytes int64  `json:"tornBytes,omitempty"`
	// Joining is true if the replica is still joining its group, so that its data is not needed yet.
	Joining     bool            `json:"joining,omitempty"`
	Damages     []format.Damage `json:"damages,omitempty"`     // damages that were found before a repair
	Error       string          `json:"error,omitempty"`       // why the group could not be checked or repaired
	Quarantined []string        `json:"quarantined,omitempty"` // files in the folder quarantine/ of the group
	Rewritten   []string        `json:"rewritten,omitempty"`   // rewritten segments
	Whole       bool            `json:"whole,omitempty"`       // true if no damage is left after a repair
}

// Bad returns the number of defects.
func (r *VerifyTreeReport) Bad() int {
	n := len(r.Problems)
	for _, g := range r.Groups {
		n += len(g.Damages)
		if g.Error != "" {
			n++
		}
	}
	return n
}

// Findings returns the results of the check as findings with next steps.
func (r *VerifyTreeReport) Findings() []finding.Finding {
	var f finding.List
	for _, p := range r.Problems {
		f.Add(finding.VolumeProblem, "volume", p, "")
	}
	for i := range r.Groups {
		g := &r.Groups[i]
		where := "group " + g.Group + " in " + g.Dir
		if g.Error != "" {
			f.Add(finding.VolumeFailed, where, g.Error, "")
		}
		if n := len(g.Damages); n > 0 {
			d := &g.Damages[0]
			f.Add(finding.VolumeDamaged, where, fmt.Sprintf("%s; the first: %s, offset %d, %d bytes: %s%s", finding.Places(n),
				d.File, d.Offset, d.Length, d.What, IDsWords(d.IDs, d.IDsUnknown)),
				"where other shards hold copies, start the shard: it takes over what is whole; else put the records again, or "+
					"give them up: sheaf verify "+g.Dir+" --repair")
		}
		if g.TornBytes > 0 {
			f.Add(finding.VolumeTorn, where, fmt.Sprintf("a torn tail of %s: writes that were never acknowledged",
				FormatBytes(g.TornBytes)), "nothing: the next load truncates it")
		}
		if g.Joining {
			f.Add(finding.VolumeJoining, where, "the replica is only joining: nothing that counts is there yet", "")
		}
	}
	return f.Sorted()
}

// VerifyTreeOptions are the options of VerifyTree.
type VerifyTreeOptions struct {
	Repair bool // move damaged bytes aside
	Quiet  bool // no progress
}

// verifier checks folders.
type verifier struct {
	fs     vfs.FS
	out    *Output
	repair bool
	report VerifyTreeReport

	groups, bytes atomic.Int64 // what was checked so far, for the progress display
	total         atomic.Int64 // total bytes of all files; 0 if it is not known
}

// depthMax is the maximum depth to which folders are searched for volumes. The folder of `sheaf dev` holds volumes two
// levels down.
const depthMax = 4

// verifyGroupsMax is the maximum number of groups of a volume that are checked at the same time. With fewer processors,
// fewer groups are checked, because the check of one group keeps a processor busy. Each check needs memory for the
// positions of the group's entries.
const verifyGroupsMax = 4

// VerifyTree checks a group's folder, a volume, or all volumes below a folder. It locks each volume during the check,
// and returns an error if a process uses the volume. Defects are in the report.
func VerifyTree(ctx context.Context, dir string, opts VerifyTreeOptions, out *Output) (VerifyTreeReport, error) {
	v := &verifier{fs: vfs.OS{}, out: out, repair: opts.Repair}
	v.report.Groups = []VerifyGroupReport{}
	begin := time.Now()
	if info, err := os.Stat(dir); err != nil {
		return v.report, fmt.Errorf("verify: %w", err)
	} else if !info.IsDir() {
		return v.report, fmt.Errorf("verify: %s is not a folder (sheaf dump shows a file)", dir)
	}
	stop := v.startProgress(dir, opts.Quiet)
	err := v.walk(ctx, dir, 0)
	stop()
	v.report.Seconds = time.Since(begin).Seconds()
	if err == nil && v.report.Volumes == 0 && len(v.report.Groups) == 0 {
		err = fmt.Errorf("verify: %s holds neither a volume nor a group", dir)
	}
	return v.report, err
}

// startProgress shows the progress until stop() is called. It computes the total in parallel. For a repair, it computes
// no total, because a repair reads some bytes more than once.
func (v *verifier) startProgress(dir string, quiet bool) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var counting sync.WaitGroup
	if !quiet && !v.repair {
		counting.Go(func() {
			// After an error, the total remains unknown, and the walk reports the problem.
			if n, err := filesBytes(ctx, dir); err == nil {
				v.total.Store(n)
			}
		})
	}
	p := startProgress(v.out, quiet, "checked", "groups", func() tally {
		total := v.total.Load()
		return tally{files: v.groups.Load(), bytes: v.bytes.Load(), totalBytes: total, totalKnown: total > 0}
	})
	return func() {
		cancel()
		counting.Wait()
		p.stop()
	}
}

// filesBytes returns the size of all files below a folder.
func filesBytes(ctx context.Context, dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		total += info.Size()
		return ctx.Err()
	})
	return total, err
}

func (v *verifier) walk(ctx context.Context, dir string, depth int) error {
	switch {
	case exists(filepath.Join(dir, format.ManifestName)) || exists(filepath.Join(dir, format.MarkName)) ||
		exists(filepath.Join(dir, format.ReplicaName)):
		return v.lockedBy(filepath.Join(dir, "..", ".."), func() error { return v.groupsOf(ctx, dir) })
	case exists(filepath.Join(dir, "superblock")) || wasVolume(dir):
		return v.volume(ctx, dir)
	case depth == depthMax:
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := v.walk(ctx, filepath.Join(dir, e.Name()), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// wasVolume reports whether a folder without a superblock was a volume. It was a volume if it contains groups.
func wasVolume(dir string) bool {
	ids, err := volume.GroupsIn(vfs.OS{}, dir)
	return err == nil && len(ids) > 0
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// lockedBy locks a volume, checks its journal, and calls do. A folder without a lock file is not a volume and is
// served by no process, so lockedBy only calls do.
func (v *verifier) lockedBy(dir string, do func() error) error {
	name := filepath.Join(dir, "lock")
	if !exists(name) {
		return do()
	}
	lock, err := v.fs.Lock(name)
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("verify: a process serves %s: stop it, or ask it with `sheaf group verify`", dir)
	}
	if err != nil {
		return fmt.Errorf("verify: locking %s: %w", dir, err)
	}
	err = v.mayRepair(dir)
	if err == nil {
		err = v.journal(dir)
	}
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	return errors.Join(do(), lock.Close())
}

// mayRepair returns an error if the folder of a group was exchanged with that of another group, because the journal
// entries of such a group then have no segment.
func (v *verifier) mayRepair(dir string) error {
	if !v.repair {
		return nil
	}
	ids, err := volume.GroupsIn(v.fs, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("verify: %w", err)
	}
	var errs []error
	for _, id := range ids {
		folder := volume.GroupDirIn(dir, id)
		if why := fsck.Exchanged(v.fs, folder); why != "" {
			errs = append(errs, fmt.Errorf("verify: volume %s is not repaired, nothing in it was changed: %s: %s", dir, folder,
				why))
		}
	}
	return errors.Join(errs...)
}

// journal checks the journal of a volume. Before a repair it writes the journal's entries to the segments, as the
// start of a shard does.
func (v *verifier) journal(dir string) error {
	found, err := journal.Read(v.fs, dir)
	if err == nil && v.repair {
		found, err = journal.Replay(v.fs, dir, journal.Target{
			Groups: func() ([]uuid.UUID, error) { return volume.GroupsIn(v.fs, dir) },
			Apply: func(id uuid.UUID, share journal.Share) error {
				return group.Redo(v.fs, volume.GroupDirIn(dir, id), share)
			},
		})
	}
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	for _, bad := range found.Bad {
		v.report.Problems = append(v.report.Problems, fmt.Sprintf(
			"%v: what it held was acknowledged, and is lost where a power cut took it from the segments too", bad))
	}
	_, kept, err := journal.Left(v.fs, dir)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	for _, name := range kept {
		v.report.Problems = append(v.report.Problems, fmt.Sprintf(
			"%s: acknowledged writes that could not be written to the files of their group: a start of the shard tries again",
			filepath.Join(dir, name)))
	}
	if n := len(found.Ranges); n > 0 && v.repair {
		v.out.Sayf("%s: %d writes of the journal were written to their segments", dir, n)
	} else if n > 0 {
		v.out.Sayf("%s: the journal holds %d writes, which the next start writes to their segments", dir, n)
	}
	return nil
}

func (v *verifier) volume(ctx context.Context, dir string) error {
	v.report.Volumes++
	return v.lockedBy(dir, func() error {
		sb, damages, err := volume.VerifySuperblock(v.fs, dir)
		if err == nil {
			err = v.ofAnother(sb, dir)
		}
		if errors.Is(err, volume.ErrNoVolume) {
			err = fmt.Errorf(
				"%s: the superblock is missing, beside the folder of the volume's groups: no shard serves them without it: put "+
					"it back", dir)
		}
		for _, d := range append(damages, err) {
			if d != nil {
				v.report.Problems = append(v.report.Problems, d.Error())
			}
		}
		groups, err := os.ReadDir(filepath.Join(dir, "groups"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("verify: %w", err)
		}
		var dirs []string
		for _, e := range groups {
			if e.IsDir() {
				dirs = append(dirs, filepath.Join(dir, "groups", e.Name()))
			}
		}
		return v.groupsOf(ctx, dirs...)
	})
}

// ofAnother returns an error if a superblock does not belong to its folder. In a store of sheaf dev, the superblock
// must name the same shard as the folder. It must also name the same volume as the groups in the folder, because a
// replica of a group with several copies records the volume on which it was created. Damaged groups are ignored.
func (v *verifier) ofAnother(sb volume.Superblock, dir string) error {
	if shard, ok := dev.ShardOf(dir); ok && shard != sb.Shard {
		return fmt.Errorf("%s: the superblock is of shard %s and volume %s, and the folder is of shard %s: was the "+
			"superblock, or the folder, exchanged with another one's? No shard serves it: put it back",
			dir, sb.Shard, sb.Volume, shard)
	}
	ids, err := volume.GroupsIn(v.fs, dir)
	if err != nil {
		return nil //nolint:nilerr // the groups themselves are checked next, and their errors reported
	}
	var of uuid.UUID
	n := 0
	for _, id := range ids {
		file, found, err := format.ReadReplicaFile(v.fs, volume.GroupDirIn(dir, id))
		if err == nil && found && (file.Volume != sb.Volume || file.Store != sb.Store) {
			of, n = file.Volume, n+1
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%s: the superblock is of shard %s and volume %s, and %d of %d groups were made on volume %s: was "+
		"the superblock, or the folder of a group, exchanged with another one's? No shard serves these groups: put it back",
		dir, sb.Shard, sb.Volume, n, len(ids), of)
}

// groupsOf checks several groups at the same time, and reports them in their order. It returns an error only if ctx
// ends. All other errors are in the report.
func (v *verifier) groupsOf(ctx context.Context, dirs ...string) error {
	reports := make([]VerifyGroupReport, len(dirs))
	var workers errgroup.Group
	workers.SetLimit(min(verifyGroupsMax, runtime.GOMAXPROCS(0)))
	for i, dir := range dirs {
		workers.Go(func() error {
			reports[i] = v.group(ctx, dir)
			v.groups.Add(1)
			return context.Cause(ctx)
		})
	}
	if err := workers.Wait(); err != nil {
		return err
	}
	for i := range reports {
		v.report.Bytes += reports[i].Bytes
		v.report.Entries += reports[i].Entries
	}
	v.report.Groups = append(v.report.Groups, reports...)
	return nil
}

// group checks one group.
func (v *verifier) group(ctx context.Context, dir string) VerifyGroupReport {
	one := VerifyGroupReport{Dir: dir}
	progress := func(bytes int64) { v.bytes.Add(bytes) }
	var r fsck.VerifyReport
	var err error
	if v.repair {
		var repaired fsck.RepairReport
		repaired, err = fsck.RepairDir(ctx, v.fs, dir, progress)
		r = repaired.Before
		one.Quarantined, one.Rewritten, one.Whole = repaired.Quarantined, repaired.Rewritten, err == nil &&
			len(repaired.After.Damages) == 0
	} else {
		r, err = fsck.VerifyDir(ctx, v.fs, dir, progress)
	}
	one.Group, one.Bytes, one.Entries, one.TornBytes, one.Damages = r.Group, r.Bytes, r.Entries, r.TornBytes, r.Damages
	one.Joining = r.Joining
	if err != nil {
		one.Error = err.Error()
	}
	return one
}
