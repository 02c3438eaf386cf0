package group

import (
	"fmt"
	iofs "io/fs"
	"path"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// ordinalStep leaves an odd ordinal next to each even one, for the segment into which compaction rewrites a segment.
const ordinalStep = 2

// Create creates the files of a new, empty group with the given Raft voters; the files are durable on return. The
// folder must not exist, or must be empty except for files of an unfinished Create.
func Create(opts Options, conf *raftpb.ConfState) error {
	opts = opts.withDefaults()
	fail := func(err error) error {
		return fmt.Errorf("create group %s in %s: %w", opts.Identity.Name, opts.Dir, err)
	}
	if err := opts.FS.MkdirAll(opts.Dir); err != nil {
		return fail(format.MarkShortage(err))
	}
	if err := clearUnfinished(opts.FS, opts.Dir); err != nil {
		return fail(err)
	}
	segment := format.ManifestSegment{Number: 1, FirstIndex: 1}
	segment.ID = format.NewSegmentID()
	if err := format.MakeSegment(opts.FS, opts.Dir, opts.Identity, segment, opts.Now()); err != nil {
		return fail(err)
	}
	if err := format.CreateMark(opts.FS, opts.Dir); err != nil {
		return fail(err)
	}
	err := format.WriteManifest(opts.FS, opts.Dir, &format.Manifest{
		Identity: opts.Identity, Sequence: 1, Segments: []format.ManifestSegment{segment}, NextSegment: 2, Conf: conf,
	})
	if err != nil {
		return fail(err)
	}
	return nil
}

// clearUnfinished removes the files of an unfinished Create. It returns an error if there is any other file in the
// folder, because a group whose manifest is missing must not be overwritten.
func clearUnfinished(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		info, err := fs.Stat(path.Join(dir, name))
		if err != nil {
			return err
		}
		unfinished := name == format.MarkName || name == format.MarkName+format.TmpSuffix ||
			name == format.ManifestName+format.TmpSuffix ||
			name == format.SegmentName(1) && info.Size() <= format.SegmentHeaderBytes
		if !unfinished {
			return fmt.Errorf("the folder holds %s: %w; choose an empty one", name, iofs.ErrExist)
		}
	}
	for _, name := range names {
		if err := fs.Remove(path.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
