package bench

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// The archive of a day at one put per second: an archiver makes a log object every 10 s and rolls it after an hour.
const (
	dayRecordBytes = 100
	dayInterval    = 10 * time.Second
	dayRoll        = time.Hour
)

// measureDay measures how fast an archive is restored that was written little by little, compared with an archive of
// the same records in one segment for each group.
func (b *archiveBench) measureDay(ctx context.Context) error {
	if err := b.beginBucket(ctx); err != nil {
		return err
	}
	folders := map[string]bool{"day": true, "whole": false}
	for folder, rolled := range folders {
		if err := b.writeDay(ctx, folder, rolled); err != nil {
			return fmt.Errorf("making the archive of a day: %w", err)
		}
	}
	fetch := func(folder string) rounds.Cell {
		return rounds.One(folder, func() (float64, error) {
			took, err := b.fetchAll(ctx, b.bucket.url(folder))
			return took.Seconds(), err
		})
	}
	got, err := b.takeTurns(ctx, fetch("day"), fetch("whole"))
	if err != nil {
		return err
	}
	b.add(got.atMost(fmt.Sprintf("restore of %d puts of %d B, one each second, and %d groups / the same records in one "+
		"segment for each group", b.opts.DayRecords, dayRecordBytes, b.opts.Groups), "s", rounds.Rate, "day", "whole", 2).
		WithNote("each group has a segment for each hour, and the last hour is in log objects; the time from the start of " +
			"the source until all groups are installed; " + b.where()))
	return nil
}

// dayWriter writes the archive of a day.
type dayWriter struct {
	to      bucket.Bucket
	store   uuid.UUID
	groups  []*dayGroup
	began   time.Time
	routing placement.Routing

	number   uint64 // number of the last log object
	previous uint32 // CRC of its envelope
}

// dayGroup is a group of a day.
type dayGroup struct {
	id       uuid.UUID
	name     string
	index    uint64 // of the last entry
	archived uint64 // index up to which the entries are in objects
	news     *pieces.Builder
	refs     []object.SegmentRef
}

// writeDay writes an archive of one put per second into a folder of the bucket. If rolled is true, the archive is as an
// archiver leaves it that has followed the store all day. Otherwise, each group is in one segment.
func (b *archiveBench) writeDay(ctx context.Context, folder string, rolled bool) (err error) {
	to, err := bucket.OpenFolder(vfs.OS{}, b.bucket.dir+"/"+folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	w := &dayWriter{to: to, store: uuid.New(), began: time.Unix(1_700_000_000, 0),
		routing: placement.Routing{Mode: placement.Hash, Groups: b.opts.Groups}}
	for i := range b.opts.Groups {
		w.groups = append(w.groups, &dayGroup{id: uuid.New(), name: placement.GroupName(i)})
	}
	if err := w.create(ctx, object.ArchiveName, &object.Archive{Store: "bench", Created: w.began.UnixNano(),
		Routing: "hash", Groups: b.opts.Groups, Lanes: 1}, nil); err != nil {
		return err
	}
	total := time.Duration(b.opts.DayRecords) * time.Second
	lastHour := max(0, total-dayRoll)
	for second := range b.opts.DayRecords {
		if err := w.put(int64(second)); err != nil {
			return err
		}
		now := time.Duration(second+1) * time.Second
		switch {
		case !rolled:
		case now <= lastHour && (now%dayRoll == 0 || now == lastHour):
			err = w.segments(ctx)
		case now > lastHour && now%dayInterval == 0:
			if w.number == 0 {
				err = w.catalogues(ctx)
			}
			if err == nil {
				err = w.log(ctx, now)
			}
		}
		if err != nil {
			return err
		}
	}
	if rolled {
		return w.log(ctx, total)
	}
	if err := w.segments(ctx); err != nil {
		return err
	}
	return w.catalogues(ctx)
}

// put adds the record of a second to its group.
func (w *dayWriter) put(second int64) error {
	g := w.groups[w.routing.GroupOf(second)]
	if g.news == nil {
		g.news = pieces.NewBuilder(w.store, g.id, w.began)
	}
	g.index++
	at := w.began.Add(time.Duration(second) * time.Second).UnixNano()
	return g.news.Append(&format.Entry{Kind: format.KindPut, ID: second, Index: g.index, Term: 1, CommitTime: at,
		Timestamp: at, Data: randomBytes(dayRecordBytes)})
}

// segments creates a segment of the news of each group.
func (w *dayWriter) segments(ctx context.Context) error {
	for _, g := range w.groups {
		if g.news == nil {
			continue
		}
		body, err := g.news.Finish()
		if err != nil {
			return err
		}
		r, id := g.news.Range(), g.news.ID()
		r.Name = g.name
		name := object.SegmentName(g.id, r.First, r.Last, id)
		size, err := w.createSized(ctx, name, &object.Segment{Range: r, Made: object.MadeByRoll}, body)
		if err != nil {
			return err
		}
		g.refs = append(g.refs, object.SegmentRef{First: r.First, Last: r.Last, ID: hex.EncodeToString(id[:]), Bytes: size})
		g.archived, g.news = g.index, nil
	}
	return nil
}

// catalogues creates a catalogue of the segments of each group.
func (w *dayWriter) catalogues(ctx context.Context) error {
	for _, g := range w.groups {
		if len(g.refs) == 0 {
			continue // all of its entries are in log objects
		}
		if err := w.create(ctx, object.CatalogueName(g.id, 1), &object.Catalogue{Group: g.id, Name: g.name,
			Segments: g.refs, Through: g.archived, Log: w.number}, nil); err != nil {
			return err
		}
	}
	return nil
}

// log creates a log object of the news of all groups.
func (w *dayWriter) log(ctx context.Context, now time.Duration) error {
	at := w.began.Add(now).UnixNano()
	h := &object.Log{Writer: w.store, Epoch: 1, Previous: w.previous, Time: at, Pieces: []object.Piece{}}
	var body []byte
	for _, g := range w.groups {
		if g.news == nil {
			continue
		}
		piece, err := g.news.Finish()
		if err != nil {
			return err
		}
		r := g.news.Range()
		r.Name = g.name
		h.Pieces = append(h.Pieces, object.Piece{Range: r, Bytes: int64(len(piece)), After: g.archived, Through: g.index,
			ReadAt: at})
		body = append(body, piece...)
		g.archived, g.news = g.index, nil
	}
	w.number++
	return w.create(ctx, object.LogName(w.number), h, body)
}

func (w *dayWriter) create(ctx context.Context, name string, header object.Header, body []byte) error {
	_, err := w.createSized(ctx, name, header, body)
	return err
}

// createSized creates an object, and returns its size. It keeps the CRC of the envelope of a log object for the next.
func (w *dayWriter) createSized(ctx context.Context, name string, header object.Header, body []byte) (int64, error) {
	e, err := object.NewEncoder(object.Spec{Store: w.store, Header: header, Body: bytes.NewReader(body),
		BodyBytes: int64(len(body))})
	if err != nil {
		return 0, err
	}
	if _, isLog := header.(*object.Log); isLog {
		envelope := e.Envelope()
		w.previous = envelope.CRC()
	}
	return e.Bytes(), w.to.Create(ctx, w.store.String()+"/"+name, e.Bytes(), e)
}
