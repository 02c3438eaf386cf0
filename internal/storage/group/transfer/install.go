package transfer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// FileKind is the type of a File's content.
type FileKind int

// These are the kinds of files that are sent. Hints are not sent, because the receiver reads every frame and creates
// the hints itself.
const (
	SegmentFile FileKind = iota + 1
	BlobFile
)

// File is one file of an Export.
type File struct {
	Kind  FileKind
	Name  string
	Bytes int64 // size of the whole file
	Have  int64 // number of bytes at the start of the file that the receiver already has; 0 in an Export
}

// ErrNotWanted means that a file is not one of the install's missing files.
var ErrNotWanted = errors.New("it is not wanted")

// ErrBehind means that the folder holds, or may hold, entries after the end of the export that must not be lost. The
// caller needs a newer export. If there is none, the replica must be removed and must join again with another Raft id.
var ErrBehind = errors.New("the log holds more than what is to be installed")

// Options holds the options of NewInstall. FS, Dir and Identity are required.
type Options struct {
	FS       vfs.FS
	Dir      string // folder of the group
	Identity format.Identity
	Now      func() time.Time // time.Now if nil
	Logger   *slog.Logger     // messages are discarded if nil
	// Damaged means that a load has refused the log in the folder. The install then replaces the log even if its sealed
	// segments are already those of the export, because the bytes after these segments are bad.
	Damaged bool
}

// Install builds a replica's folder from the files of an Export. The files are collected in the folder IncomingName,
// next to a log that may remain open until Finish. Collecting the files may take several attempts, with restarts
// between them and with files from several Exports. An Install is not safe for concurrent use, except that several
// goroutines may write files.
//
// In the folder IncomingName, the name of a segment's file contains the segment's id, so that the segment is never
// mistaken for a segment of another Export. The hint of a segment exists only if every byte of the segment was checked
// and synced. A blob gets its final name only when every byte of the blob was checked and synced.
type Install struct {
	opts     Options
	replica  format.ReplicaFile
	manifest *format.Manifest // the manifest of the export
	incoming string

	mu       sync.Mutex
	segments []*incomingFile // in manifest order; guarded by mu
	blobs    []*incomingFile // nil until all segments are complete; guarded by mu
}

// incomingFile is a file that an install needs. Some or all of its bytes may have arrived already.
type incomingFile struct {
	File
	segment format.ManifestSegment // the segment's Number is the one in the file's name in the incoming folder
	ref     format.BlobRef
	whole   bool
	inPlace bool // whether the file is a blob that is already in the group's folder
	busy    bool // the file is being received
}

// name returns the file's name in the incoming folder.
func (f *incomingFile) name() string {
	if f.Kind == SegmentFile {
		return format.SegmentName(f.segment.Number)
	}
	return format.BlobName(f.ref.ID)
}

// incomingNumber returns the number that a segment's file has in the incoming folder, which is derived from the
// segment's id.
func incomingNumber(id format.SegmentID) uint64 { return binary.LittleEndian.Uint64(id[:]) }

// NewInstall begins or resumes an install. The argument manifest is the result of Export.Manifest. The argument replica
// becomes the content of the replica file when the install is complete, and its field Joining is ignored. NewInstall
// uses the files of earlier attempts. If the Identity has no name, NewInstall uses the name in the manifest. It may
// return ErrForeign, ErrCorrupt, ErrFormatVersion, ErrBehind, or ErrNoSpace if there is not enough free space for all
// missing segments.
func NewInstall(ctx context.Context, opts Options, replica format.ReplicaFile, manifest []byte) (*Install, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	fail := func(err error) (*Install, error) {
		return nil, fmt.Errorf("install group %s in %s: %w", opts.Identity.Name, opts.Dir, format.MarkShortage(err))
	}
	m, _, err := format.DecodeManifest(manifest)
	if err != nil {
		return fail(err)
	}
	if err := checkExported(m, opts.Identity); err != nil {
		return fail(err)
	}
	opts.Identity, replica.Joining = m.Identity, false
	replica.Store, replica.Group = m.Identity.Store, m.Identity.Group
	i := &Install{opts: opts, replica: replica, manifest: m, incoming: path.Join(opts.Dir, format.IncomingName)}
	own, err := readOwn(opts.FS, opts.Dir, m.Identity, replica)
	if err != nil {
		return fail(err)
	}
	// If the folder already holds the export, an earlier attempt has passed the commit point, and Finish only needs to
	// clean up.
	if opts.Damaged || !own.holds(m) {
		if err := own.checkCommit(m); err != nil {
			return fail(err)
		}
		if err := i.gather(ctx, own); err != nil {
			return fail(err)
		}
	}
	return i, nil
}

// checkExported checks that a manifest has the form of an Export and belongs to the group.
func checkExported(m *format.Manifest, identity format.Identity) error {
	if err := format.CheckIdentity(m.Identity, identity); err != nil {
		return err
	}
	at := m.HardState.Commit
	for _, s := range m.Segments {
		if !s.Sealed() || s.FirstIndex > at {
			return fmt.Errorf("%w: the manifest is none of an export: segment %d is active, or behind the commit",
				format.ErrCorrupt, s.Number)
		}
	}
	if m.CompactedThrough > at || m.Conf == nil || m.ConfIndex > at {
		return fmt.Errorf("%w: the manifest is none of an export: floor or membership are not those of index %d",
			format.ErrCorrupt, at)
	}
	return nil
}

// gather determines which parts of the needed files already exist.
func (i *Install) gather(ctx context.Context, own *ownLog) error {
	fs := i.opts.FS
	if err := fs.MkdirAll(i.incoming); err != nil {
		return err
	}
	for _, s := range i.manifest.Segments {
		f := &incomingFile{File: File{Kind: SegmentFile, Name: format.SegmentName(s.Number), Bytes: s.Bytes}, segment: s}
		f.segment.Number = incomingNumber(s.ID)
		i.segments = append(i.segments, f)
	}
	if err := i.takeBack(own); err != nil {
		return err
	}
	if err := i.removeOthers(); err != nil {
		return err
	}
	// A later load uses this manifest to decide whether the collected files may still be useful.
	if err := format.WriteManifest(fs, i.incoming, i.manifest); err != nil {
		return err
	}
	var missing int64
	for _, f := range i.segments {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := i.lookAtSegment(f); err != nil {
			return err
		}
		if !f.whole {
			missing += f.Bytes - f.Have
		}
	}
	if err := i.checkSpace(missing); err != nil {
		return err
	}
	return i.learnBlobs()
}

// checkSpace returns an ErrNoSpace if the volume has fewer free bytes than requested.
func (i *Install) checkSpace(bytes int64) error {
	space, err := i.opts.FS.Space(i.opts.Dir)
	if err == nil && space.FreeBytes < bytes {
		err = &SpaceError{NeedBytes: bytes, FreeBytes: space.FreeBytes}
	}
	return err
}

// SpaceError says how many bytes an install needs and how many are free. It is an ErrNoSpace.
type SpaceError struct{ NeedBytes, FreeBytes int64 }

// Error names the needed bytes, the free bytes and the remedy.
func (e *SpaceError) Error() string {
	return fmt.Sprintf("%v: %d bytes are missing, the volume has %d free; delete other files or grow the volume",
		format.ErrNoSpace, e.NeedBytes, e.FreeBytes)
}

// Is makes errors.Is(err, ErrNoSpace) true.
func (e *SpaceError) Is(target error) bool { return target == format.ErrNoSpace }

// takeBack undoes an unfinished Finish, by moving files from the group's folder back to the incoming folder.
func (i *Install) takeBack(own *ownLog) error {
	names, err := i.opts.FS.List(i.opts.Dir)
	if err != nil {
		return err
	}
	moved := false
	for _, name := range names {
		number, isSegment := format.ParseSegmentName(name)
		if !isSegment || own.lists(number) {
			continue
		}
		k, err := i.segmentOf(path.Join(i.opts.Dir, name))
		if err != nil {
			return err
		}
		if k < 0 {
			continue // not a part of the export; Finish or the next load removes it as garbage
		}
		moved = true
		to := i.segments[k].segment.Number
		if err := i.opts.FS.Rename(path.Join(i.opts.Dir, name), path.Join(i.incoming, format.SegmentName(to))); err != nil {
			return err
		}
		err = i.opts.FS.Rename(path.Join(i.opts.Dir, format.HintName(number)), path.Join(i.incoming, format.HintName(to)))
		if err != nil && !errors.Is(err, iofs.ErrNotExist) {
			return err
		}
	}
	if !moved {
		return nil
	}
	return errors.Join(i.opts.FS.SyncDir(i.incoming), i.opts.FS.SyncDir(i.opts.Dir))
}

// segmentOf returns the position, in the manifest, of the segment that a file holds, or -1 if the manifest does not
// list the segment.
func (i *Install) segmentOf(name string) (int, error) {
	f, err := i.opts.FS.Open(name)
	if err != nil {
		return -1, err
	}
	b := make([]byte, format.SegmentHeaderBytes)
	readErr := format.ReadFull(f, b, 0)
	if err := f.Close(); err != nil {
		return -1, err
	}
	if readErr != nil {
		return -1, nil //nolint:nilerr // a file without a whole header is none of the segments
	}
	return slices.IndexFunc(i.segments, func(s *incomingFile) bool {
		return format.CheckSegmentHeader(b, i.opts.Identity, s.segment) == nil
	}), nil
}

// removeOthers removes from the incoming folder the files that the install does not need. It keeps all blobs.
func (i *Install) removeOthers() error {
	wanted := make(map[string]bool)
	for _, f := range i.segments {
		wanted[format.SegmentName(f.segment.Number)], wanted[format.HintName(f.segment.Number)] = true, true
	}
	names, err := i.opts.FS.List(i.incoming)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, ok := format.ParseBlobName(strings.TrimSuffix(name, format.TmpSuffix)); ok || wanted[name] {
			continue
		}
		if err := i.opts.FS.Remove(path.Join(i.incoming, name)); err != nil {
			return err
		}
	}
	return nil
}

// lookAtSegment determines how much of a segment has arrived. If the segment's hint exists, the whole segment has
// arrived. Otherwise, the whole frames at the beginning of the file count.
func (i *Install) lookAtSegment(f *incomingFile) error {
	fs, name := i.opts.FS, path.Join(i.incoming, f.name())
	info, err := fs.Stat(name)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := format.ReadHint(fs, i.incoming, f.segment); err == nil && info.Size() == f.Bytes {
		f.whole, f.Have = true, f.Bytes
		return nil
	}
	if err := fs.Remove(path.Join(i.incoming, format.HintName(f.segment.Number))); err != nil &&
		!errors.Is(err, iofs.ErrNotExist) {
		return err
	}
	f.Have, err = wholeFrames(fs, name, i.opts.Identity, f.segment, min(info.Size(), f.Bytes))
	return err
}

// wholeFrames returns the size of the usable part at the beginning of a segment file.
func wholeFrames(fs vfs.FS, name string, identity format.Identity, m format.ManifestSegment, size int64) (end int64,
	err error) {
	f, err := fs.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	header := make([]byte, format.SegmentHeaderBytes)
	if size < format.SegmentHeaderBytes {
		return 0, nil
	}
	if err := format.ReadFull(f, header, 0); err != nil || format.CheckSegmentHeader(header, identity, m) != nil {
		return 0, err
	}
	r := segio.NewFrameReader(f, m.ID, format.SegmentHeaderBytes, size)
	end = format.SegmentHeaderBytes
	for r.Next() && r.Step().Status == segio.FrameWhole {
		end = r.Step().Offset + r.Step().Bytes
	}
	return end, r.Err()
}

// learnBlobs determines which blobs are needed, as soon as all segments are complete. The caller must hold mu, except
// if the caller is NewInstall.
func (i *Install) learnBlobs() error {
	if i.blobs != nil || slices.ContainsFunc(i.segments, func(f *incomingFile) bool { return !f.whole }) {
		return nil
	}
	blobs, known := []*incomingFile{}, make(map[uuid.UUID]bool)
	for k, f := range i.segments {
		h, err := format.ReadHint(i.opts.FS, i.incoming, f.segment)
		if err != nil {
			return err
		}
		through := i.manifest.HardState.Commit
		if k+1 < len(i.segments) {
			through = i.segments[k+1].segment.FirstIndex - 1
		}
		for _, b := range h.Blobs {
			if b.Index > through || known[b.Ref.ID] {
				continue
			}
			known[b.Ref.ID] = true
			f := &incomingFile{File: File{Kind: BlobFile, Name: format.BlobName(b.Ref.ID),
				Bytes: format.BlobFileBytes(b.Ref.Size)}, ref: b.Ref}
			if err := i.lookAtBlob(f); err != nil {
				return err
			}
			blobs = append(blobs, f)
		}
	}
	i.blobs = blobs
	return nil
}

// lookAtBlob determines how much of a blob exists. If the blob was collected, or if the group has it, the whole blob
// exists. Otherwise, the whole chunks at the beginning of the file count.
func (i *Install) lookAtBlob(f *incomingFile) error {
	fs, name := i.opts.FS, format.BlobName(f.ref.ID)
	if _, err := fs.Stat(path.Join(i.incoming, name)); err == nil {
		f.whole = true
	} else if have, err := wholeChunks(fs, path.Join(i.opts.Dir, name), f.ref); err != nil {
		return err
	} else if have == f.Bytes {
		f.whole, f.inPlace = true, true
	}
	if f.whole {
		f.Have = f.Bytes
		return nil
	}
	have, err := wholeChunks(fs, path.Join(i.incoming, name+format.TmpSuffix), f.ref)
	f.Have = have
	return err
}

// wholeChunks returns the size of the usable part at the beginning of a blob file.
func wholeChunks(fs vfs.FS, name string, ref format.BlobRef) (have int64, err error) {
	f, err := fs.Open(name)
	if errors.Is(err, iofs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	bad, err := checkBlob(f, size, ref)
	if err != nil {
		return 0, nil // a file that cannot be read is received again from its beginning
	}
	return segio.WholeBlob(size, bad), nil
}

func checkBlob(f io.ReaderAt, size int64, ref format.BlobRef) ([]format.Damage, error) {
	space := segio.FrameBuffers.Get().(*[]byte)
	defer segio.FrameBuffers.Put(space)
	return segio.CheckBlob(f, size, &ref, *space)
}

// Missing returns the files that are still needed. At first only segments are listed. Once all segments are complete,
// the blobs to which the segments refer are listed. Missing returns nil when nothing is missing, so that Finish can
// be called. The bytes of a file from offset Have on are missing. The caller calls Missing again after each file.
// Files that are being received are left out.
func (i *Install) Missing() []File {
	i.mu.Lock()
	defer i.mu.Unlock()
	var out []File
	for _, f := range slices.Concat(i.segments, i.blobs) {
		if !f.whole && !f.busy {
			out = append(out, f.File)
		}
	}
	return out
}

// RemoveIncoming removes the incoming folder of a group.
func RemoveIncoming(fs vfs.FS, dir string) error {
	incoming := path.Join(dir, format.IncomingName)
	names, err := fs.List(incoming)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := fs.Remove(path.Join(incoming, name)); err != nil {
			return err
		}
	}
	if err := fs.Remove(incoming); err != nil {
		return err
	}
	return fs.SyncDir(dir)
}
