package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
)

// check compares the store with the acknowledged writes.
func (k *killer) check() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for _, w := range k.writers {
		all.Go(func() {
			w.resolveInterrupted(ctx)
			w.checkRepeat(ctx)
			for id := range w.known {
				w.checkID(ctx, id)
			}
		})
	}
	all.Wait()
	if !k.t.Failed() {
		k.checkScan(ctx)
	}
}

// get reads a record of any size. The result there is false if the record does not exist.
func (k *killer) get(ctx context.Context, id int64) (there bool, data []byte, version string) {
	stream, err := k.records.Download(ctx, &recordv1.DownloadRequest{Key: &recordv1.RecordKey{Id: id}})
	if err != nil {
		k.t.Errorf("download %d: %v", id, err)
		return false, nil, ""
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return there, data, version
		case status.Code(err) == codes.NotFound:
			return false, nil, ""
		case err != nil:
			k.t.Errorf("download %d: %v", id, err)
			return false, nil, ""
		case m.GetRecord() != nil:
			there, version = true, m.GetRecord().GetVersion()
		default:
			data = append(data, m.GetChunk().GetData()...)
		}
	}
}

// resolveInterrupted finds out whether the interrupted write was stored, and repeats the write. Afterwards, the write
// must be stored exactly once.
func (w *writer) resolveInterrupted(ctx context.Context) {
	op := w.cut
	if op == nil {
		return
	}
	w.cut = nil
	t, before := w.k.t, w.known[op.id]
	there, data, version := w.k.get(ctx, op.id)
	// The record must be either exactly as it was before the write, or exactly as the write leaves it.
	isBefore := (before == nil || !before.there) && !there || before != nil && before.there && there &&
		version == before.version
	isAfter := op.delete && !there || !op.delete && there && bytes.Equal(data, op.data()) &&
		(before == nil || version != before.version)
	if !isBefore && !isAfter {
		t.Errorf("id %d: %d bytes of version %s are neither what was acknowledged nor what was cut off (%+v)", op.id,
			len(data), version, op)
		return
	}
	again, existed, repeated, err := w.k.send(ctx, op)
	if err != nil {
		t.Errorf("id %d: repeating a write: %v", op.id, err)
		return
	}
	nothingToDelete := op.delete && (before == nil || !before.there)
	switch {
	case nothingToDelete: // the record exists neither before nor after the write
	case isAfter && (!repeated || !op.delete && again != version):
		t.Errorf("id %d: a write that was stored as version %s was not recognised when repeated (version %s, repeated %v)",
			op.id, version, again, repeated)
	case !isAfter && repeated:
		t.Errorf("id %d: a write that was not there was taken for a repeat", op.id)
	}
	if isAfter && !nothingToDelete {
		w.k.counts.interruptedStored.Add(1)
	}
	if nothingToDelete {
		return
	}
	if op.delete && before != nil {
		existed = before.there // whether the record existed before the first attempt
	}
	w.acknowledged(op, again, existed)
}

// checkRepeat repeats a superseded write. The repetition must return the result of the first attempt, and change
// nothing.
func (w *writer) checkRepeat(ctx context.Context) {
	for _, s := range w.known {
		if s.older == nil || s.older.delete || w.random.IntN(4) > 0 {
			continue
		}
		version, _, repeated, err := w.k.send(ctx, s.older)
		if err != nil || !repeated || version != s.older.version {
			w.k.t.Errorf("id %d: the superseded version %s repeated with its request id gave version %s, repeated %v: %v",
				s.older.id, s.older.version, version, repeated, err)
			return
		}
		w.k.counts.repeats.Add(1)
		return
	}
}

func (w *writer) checkID(ctx context.Context, id int64) {
	s := w.known[id]
	there, data, version := w.k.get(ctx, id)
	switch {
	case there != s.there:
		w.k.t.Errorf("id %d: there %v, acknowledged was %v (version %s)", id, there, s.there, s.version)
	case there && (version != s.version || !bytes.Equal(data, s.data)):
		w.k.t.Errorf("id %d: version %s of %d bytes, acknowledged was version %s of %d bytes", id, version, len(data),
			s.version, len(s.data))
	}
}

// checkScan checks that a scan returns exactly the acknowledged records, each once.
func (k *killer) checkScan(ctx context.Context) {
	stream, err := k.records.Scan(ctx, &recordv1.ScanRequest{})
	if err != nil {
		k.t.Errorf("scan: %v", err)
		return
	}
	seen := map[int64]bool{}
	imported := 0
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			k.t.Errorf("scan: %v", err)
			return
		}
		for _, r := range m.GetRecords() {
			id := r.GetKey().GetId()
			if seen[id] {
				k.t.Errorf("scan gave id %d twice", id)
			}
			seen[id] = true
			if path, ok := r.GetAttributes()["path"]; ok {
				imported++
				k.checkImported(string(path), r)
				continue
			}
			s := k.known(id)
			if s == nil || !s.there || r.GetVersion() != s.version || r.GetSizeBytes() != int64(len(s.data)) {
				k.t.Errorf("scan gave id %d version %s, which was not acknowledged so", id, r.GetVersion())
			}
		}
	}
	if imported != len(k.imported) {
		k.t.Errorf("scan gave %d imported files, %d are there", imported, len(k.imported))
	}
	for _, w := range k.writers {
		for id, s := range w.known {
			if s.there && !seen[id] {
				k.t.Errorf("scan left out id %d", id)
			}
		}
	}
}

func (k *killer) known(id int64) *state {
	for _, w := range k.writers {
		if s, ok := w.known[id]; ok {
			return s
		}
	}
	return nil
}

func (k *killer) checkImported(path string, r *recordv1.Record) {
	name, ok := k.imported[path]
	if !ok {
		k.t.Errorf("scan gave a file %q that no import said it had stored", path)
		return
	}
	want, err := os.ReadFile(filepath.Join(k.tree, name))
	must(k.t, err)
	if r.GetSizeBytes() != int64(len(want)) || len(r.GetData()) > 0 && !bytes.Equal(r.GetData(), want) {
		k.t.Errorf("file %q came back as %d other bytes", path, r.GetSizeBytes())
	}
}
