package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// allocateAhead brings the active segments into the state in which a killed process leaves them. In this state, space
// beyond the end of each segment is allocated and partly filled with zeros. A start leaves this space as it is, so a
// second call of allocateAhead does nothing.
func (d *dataset) allocateAhead(residency group.Residency) error {
	if d.allocatedAhead {
		return nil
	}
	d.allocatedAhead = true
	names, err := d.activeSegments()
	if err != nil {
		return err
	}
	for _, name := range names {
		f, err := (vfs.OS{}).OpenWrite(name)
		if err != nil {
			return err
		}
		size, err := f.DataEnd(0)
		if err == nil {
			err = f.Truncate(size)
		}
		if err == nil {
			err = f.Allocate(size, min(max(size, aheadBytesMin), aheadBytesMax))
		}
		if err == nil && f.CheapOverwrite() {
			_, err = f.WriteAt(make([]byte, min(size/zerosShare[residency], aheadBytesMin)), size)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// activeSegments returns the paths of the active segments.
func (d *dataset) activeSegments() (names []string, err error) {
	for i := range d.groups {
		m, err := format.ReadManifest(vfs.OS{}, d.groupDir(i))
		if err != nil {
			return nil, err
		}
		if s := m.Segments[len(m.Segments)-1]; !s.Sealed() {
			names = append(names, filepath.Join(d.groupDir(i), format.SegmentName(s.Number)))
		}
	}
	return names, nil
}

// writeAndKill writes small batches to all groups, and the journal makes the batches durable. It leaves the folder as
// a killed process would.
func (d *dataset) writeAndKill(ctx context.Context) error {
	j := journal.New(journal.Options{FS: vfs.OS{}, Dir: d.dir})
	loaded := make(logs, len(d.groups))
	defer func() { _ = loaded.close() }() // the journal is closed before the logs, so closing the logs syncs nothing
	defer j.Close()                       //nolint:errcheck // the error only says that the journal is not clean
	for i := range d.groups {
		opts := d.options(i)
		opts.Journal = j
		log, _, err := group.Load(ctx, opts, nil)
		if err != nil {
			return err
		}
		loaded[i] = log
	}
	data := randomBytes(d.size)
	return drive.Parallel(len(d.groups), func(g int) error {
		log := loaded[g]
		for n := range journalPuts / len(d.groups) {
			last, err := log.LastIndex()
			if err != nil {
				return err
			}
			now := time.Now().UnixNano()
			e := format.Entry{Kind: format.KindPut, Used: true, ID: int64(1<<40 + n), Index: last + 1, Term: 1, CommitTime: now,
				Timestamp: now, Data: data, RequestID: uuid.New()}
			term, vote, commit := uint64(1), uint64(1), last+1
			if err := log.Append(&raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit},
				[]*raftpb.Entry{format.RaftEntry(&e)}); err != nil {
				return err
			}
			if !log.SyncShared() {
				if err := log.Sync(); err != nil {
					return err
				}
			}
			if err := log.Apply(commit, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// replayJournal replays the journal that an earlier process left, as a start does first.
func (d *dataset) replayJournal() error {
	_, err := journal.Replay(vfs.OS{}, d.dir, journal.Target{
		Apply: func(id uuid.UUID, share journal.Share) error {
			return group.Redo(vfs.OS{}, filepath.Join(d.dir, id.String()), share)
		},
		Groups: func() ([]uuid.UUID, error) { return nil, nil },
	})
	return err
}

// otherWays returns cells that bring the same bytes into memory in other ways: from files, from a composite file, and
// by a raw read of the segments.
func (s *startBench) otherWays(ctx context.Context, sealed *dataset, records int64) ([]rounds.Cell, error) {
	files, composite := filepath.Join(s.dir, "files"), filepath.Join(s.dir, "composite")
	inFiles := min(records, filesMax)
	if err := writeFiles(files, inFiles, s.size); err != nil {
		return nil, err
	}
	if err := writeComposite(composite, records, s.size); err != nil {
		return nil, err
	}
	bytes := float64(records) * float64(s.size)
	coldly := func(name string, bytes float64, run func() error) rounds.Cell {
		return rounds.One(name, func() (float64, error) {
			if err := s.cold(ctx); err != nil {
				return 0, err
			}
			traceMark("sheaf begins " + name + s.traceLabel())
			defer traceMark("sheaf ends " + name + s.traceLabel())
			return perSecond(bytes, run)
		})
	}
	segments, err := sealed.segments()
	if err != nil {
		return nil, err
	}
	raw, err := openRaw(segments) // the files are opened only to learn their total size
	if err != nil {
		return nil, err
	}
	raw.close()
	return []rounds.Cell{
		coldly("files", float64(inFiles)*float64(s.size), func() error { return readFiles(files, inFiles) }),
		coldly("composite", bytes, func() error { return readComposite(composite, nil) }),
		coldly("composite kept", bytes, func() error {
			memory, release, err := allocate(int64(bytes)+records*compositeHeaderBytes, false)
			if err != nil {
				return err
			}
			defer release()
			return readComposite(composite, memory)
		}),
		coldly("raw", float64(raw.bytes), func() error {
			raw, err := openRaw(segments)
			if err != nil {
				return err
			}
			defer raw.close()
			memory, release, err := allocate(raw.bufferSize, false)
			if err != nil {
				return err
			}
			defer release()
			return raw.readInto(memory)
		}),
	}, nil
}

// filesMax limits the number of files that are created and read. More files would take long and would not change the
// rate.
const filesMax = 20_000

// filesPerFolder keeps folders small, as a program that is aware of the file system would.
const filesPerFolder = 1000

func fileOf(dir string, i int64) string {
	return filepath.Join(dir, fmt.Sprint(i/filesPerFolder), fmt.Sprint(i))
}

func writeFiles(dir string, records int64, size int) error {
	data := randomBytes(size)
	for i := range records {
		if i%filesPerFolder == 0 {
			if err := os.MkdirAll(filepath.Dir(fileOf(dir, i)), 0o700); err != nil {
				return err
			}
		}
		if err := os.WriteFile(fileOf(dir, i), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func readFiles(dir string, records int64) error {
	return drive.Shared(8, records, func(_ int, i int64) error {
		_, err := os.ReadFile(fileOf(dir, i))
		return err
	})
}

const compositeHeaderBytes = 8

// writeComposite writes a composite file with the id, length and data of each record. Package layouts describes the
// format.
func writeComposite(name string, records int64, size int) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	one := append(make([]byte, compositeHeaderBytes), randomBytes(size)...)
	var buffer []byte
	for i := range records {
		binary.LittleEndian.PutUint32(one, uint32(i)) //nolint:gosec // there are never so many records
		binary.LittleEndian.PutUint32(one[4:], uint32(size))
		if buffer = append(buffer, one...); len(buffer) >= 1<<20 || i == records-1 {
			if _, err := f.Write(buffer); err != nil {
				return err
			}
			buffer = buffer[:0]
		}
	}
	return unix.Fdatasync(int(f.Fd()))
}

// readComposite reads the composite file from start to end, one MiB at a time, into memory. If memory is nil, it reuses
// one buffer.
func readComposite(name string, memory []byte) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // a file that was only read loses nothing if Close fails
	buffer := make([]byte, 1<<20)
	for at := 0; ; {
		to := buffer
		if memory != nil {
			to = memory[at:min(at+len(buffer), len(memory))]
		}
		n, err := f.Read(to)
		at += n
		if errors.Is(err, io.EOF) || n == 0 && at >= len(memory) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
