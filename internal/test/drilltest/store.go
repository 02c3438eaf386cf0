// Package drilltest provides living stores, with which drills of archives are compared in tests.
package drilltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// Store is a living store, whose replicas have the entries that a test gives them. It implements drill.Living.
type Store struct {
	Groups map[uuid.UUID]*Replica
	Err    error // Copy returns it, unless it is nil
	Copies int   // open copies
}

// Replica holds the files of one group.
type Replica struct {
	Manifest format.Manifest
	Segment  []byte
	Applied  uint64
}

// New returns a store whose groups have everything that was ever written to them.
func New(w *archivetest.Writer) *Store {
	s := &Store{Groups: map[uuid.UUID]*Replica{}}
	for _, g := range w.Groups {
		if !g.Gone {
			s.Set(w, g, g.History())
		}
	}
	return s
}

// Set gives a group other entries. All of them are applied.
func (s *Store) Set(w *archivetest.Writer, g *archivetest.Group, entries []format.Entry) *Replica {
	id := format.SegmentID{0x11, 7: g.UUID[15]}
	r := &Replica{Applied: uint64(len(g.History()))}
	r.Segment = archivetest.EncodeSegment(format.SegmentHeader{
		Store: w.Store, Group: g.UUID, ID: id, FirstIndex: entries[0].Index,
	}, entries)
	last := entries[len(entries)-1].Index
	r.Manifest = format.Manifest{
		Identity: format.Identity{Store: w.Store, Group: g.UUID, Name: g.Name}, Sequence: 1, NextSegment: 2,
		Segments: []format.ManifestSegment{{Number: 1, ID: id, FirstIndex: entries[0].Index, LastIndex: last,
			Bytes: int64(len(r.Segment))}},
		Conf: &raftpb.ConfState{Voters: []uint64{7}}, HardState: format.StateRecord{Term: 1, Commit: last},
	}
	s.Groups[g.UUID] = r
	return r
}

// Copy implements drill.Living.
func (s *Store) Copy(_ context.Context, group uuid.UUID) (archiver.GroupCopy, error) {
	r := s.Groups[group]
	if s.Err != nil {
		return nil, s.Err
	}
	if r == nil {
		return nil, fmt.Errorf("group %s: %w", group, fs.ErrNotExist)
	}
	s.Copies++
	return &replicaCopy{Replica: r, store: s}, nil
}

type replicaCopy struct {
	*Replica
	store *Store
}

func (c *replicaCopy) Description() archiver.CopyDescription {
	manifest, err := c.Manifest.Encode()
	if err != nil {
		panic(err) // the tests make only manifests that can be encoded
	}
	return archiver.CopyDescription{Manifest: manifest, Index: c.Applied}
}

func (c *replicaCopy) Open(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
	if name != format.SegmentName(1) {
		return nil, errors.New("a file that no drill needs: " + name)
	}
	return io.NopCloser(bytes.NewReader(c.Segment[offset:])), nil
}

func (c *replicaCopy) Close() error {
	c.store.Copies--
	return nil
}
