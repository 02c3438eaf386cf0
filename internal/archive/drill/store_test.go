package drill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// store is a living store, whose replicas have the entries that a test gives them.
type store struct {
	groups map[uuid.UUID]*replica
	err    error // Copy returns it, unless it is nil
	copies int   // open copies
}

// replica holds the files of one group.
type replica struct {
	manifest format.Manifest
	segment  []byte
	applied  uint64
}

// living returns a store whose groups have everything that was ever written to them.
func living(w *archivetest.Writer) *store {
	s := &store{groups: map[uuid.UUID]*replica{}}
	for _, g := range w.Groups {
		if !g.Gone {
			s.set(w, g, g.History())
		}
	}
	return s
}

// set gives a group other entries. All of them are applied.
func (s *store) set(w *archivetest.Writer, g *archivetest.Group, entries []format.Entry) *replica {
	id := format.SegmentID{0x11, 7: g.UUID[15]}
	r := &replica{applied: uint64(len(g.History()))}
	r.segment = archivetest.EncodeSegment(format.SegmentHeader{
		Store: w.Store, Group: g.UUID, ID: id, FirstIndex: entries[0].Index,
	}, entries)
	last := entries[len(entries)-1].Index
	r.manifest = format.Manifest{
		Identity: format.Identity{Store: w.Store, Group: g.UUID, Name: g.Name}, Sequence: 1, NextSegment: 2,
		Segments: []format.ManifestSegment{{Number: 1, ID: id, FirstIndex: entries[0].Index, LastIndex: last,
			Bytes: int64(len(r.segment))}},
		Conf: &raftpb.ConfState{Voters: []uint64{7}}, HardState: format.StateRecord{Term: 1, Commit: last},
	}
	s.groups[g.UUID] = r
	return r
}

func (s *store) Copy(_ context.Context, group uuid.UUID) (archiver.GroupCopy, error) {
	r := s.groups[group]
	if s.err != nil {
		return nil, s.err
	}
	if r == nil {
		return nil, fmt.Errorf("group %s: %w", group, fs.ErrNotExist)
	}
	s.copies++
	return &replicaCopy{replica: r, store: s}, nil
}

type replicaCopy struct {
	*replica
	store *store
}

func (c *replicaCopy) Description() archiver.CopyDescription {
	manifest, err := c.manifest.Encode()
	if err != nil {
		panic(err) // the tests make only manifests that can be encoded
	}
	return archiver.CopyDescription{Manifest: manifest, Index: c.applied}
}

func (c *replicaCopy) Open(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
	if name != format.SegmentName(1) {
		return nil, errors.New("a file that no drill needs: " + name)
	}
	return io.NopCloser(bytes.NewReader(c.segment[offset:])), nil
}

func (c *replicaCopy) Close() error {
	c.store.copies--
	return nil
}

// change returns entries of which one has been changed.
func change(t *testing.T, entries []format.Entry, index uint64, change func(e *format.Entry)) []format.Entry {
	t.Helper()
	for i := range entries {
		if entries[i].Index == index {
			change(&entries[i])
			return entries
		}
	}
	t.Fatalf("no entry has index %d", index)
	return nil
}
