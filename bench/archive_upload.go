package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// uploadedBytes is the key of the metric that holds the total size of all objects.
const uploadedBytes = "uploaded"

// measureUploads measures the first copy of a store into an empty archive.
func (b *archiveBench) measureUploads(ctx context.Context) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	data := b.records() * int64(b.opts.RecordBytes)
	got, err := b.takeTurns(ctx,
		rounds.Cell{Key: "archiver", Run: func(ctx context.Context, f *rounds.Figures) error { return b.upload(ctx, f) }},
		rounds.Cell{Key: "client", Run: func(ctx context.Context, f *rounds.Figures) error {
			s, err := b.probe(ctx, data)
			f.Set(rounds.Rate, s.upload)
			return err
		}},
	)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("first copy of %s in records of %s and %d groups", result.Format(float64(data), "B"),
		result.Format(float64(b.opts.RecordBytes), "B"), b.opts.Groups)
	b.add(
		got.against(what+" / the same client without Sheaf", "B/s", "archiver", "client", 0.8).
			WithNote("sheaf-archive run, from the beginning of its work to the last first copy; against sheaf-archive probe, "+
				"which sends objects of random bytes as large as the segments, one after another; "+b.where()),
		atMost("bytes of all objects after the first copy / bytes of the records", "B", got.Of("archiver", uploadedBytes),
			b.constant(float64(data)), 1.1),
		b.memoryRow("memory of the archiver during the first copy", got.Of("archiver", heldMemory)),
	)
	return nil
}

// memoryRow creates a row that compares the greatest memory of a process of sheaf-archive with its bound.
func (b *archiveBench) memoryRow(what string, memory []float64) result.Ratio {
	return atMost(what+" / 256 MiB and 24 B for each record of the largest group", "B", memory,
		b.constant(b.memoryMax()), 1).WithNote("the greatest resident memory of the process")
}

// constant returns a series that has the same value in each round.
func (b *archiveBench) constant(value float64) []float64 {
	return slices.Repeat([]float64{value}, b.Rounds)
}

// upload archives the store into a new archive, and removes the archive.
func (b *archiveBench) upload(ctx context.Context, f *rounds.Figures) (err error) {
	folder := b.name("upload")
	a, err := b.startArchiver(ctx, b.bucket.url(folder), archiveShortInterval)
	if err != nil {
		return err
	}
	defer func() {
		a.stop()
		_ = os.RemoveAll(filepath.Join(b.bucket.dir, folder)) // the folder of all archives is removed at the end
	}()
	took, r, err := b.firstCopies(ctx, a)
	if err != nil {
		return err
	}
	memory, err := processMemory(a.Process)
	data := float64(b.records() * int64(b.opts.RecordBytes))
	f.Set(rounds.Rate, data/took.Seconds())
	f.Set(uploadedBytes, float64(r.Bytes))
	f.Set(heldMemory, memory)
	return err
}

// firstCopies waits until all groups are archived. It returns how long that took from the beginning of the archiver's
// work on, and the archiver's report.
func (b *archiveBench) firstCopies(ctx context.Context, a archiverProcess) (took time.Duration, r archiving.Report,
	err error) {
	var began time.Time
	err = a.awaitReport(ctx, func(now *archiving.Report) bool {
		if began.IsZero() && now.State == archiving.Archiving {
			began = time.Now()
		}
		r = *now
		return now.Groups == b.opts.Groups && now.Waiting == 0
	})
	return time.Since(began), r, err
}

// measurePuts measures puts while the store is archived.
func (b *archiveBench) measurePuts(ctx context.Context) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	url, data := b.bucket.url("puts"), randomBytes(b.opts.RecordBytes)
	var number int64
	puts := func() (drive.Load, error) {
		number += 1 << 48 // the ids of each turn are new
		return drive.Callers(archivePutWriters, b.opts.Time, func(_ int, i int64) error {
			return b.store.put(ctx, number+i, data)
		})
	}
	got, err := b.takeTurns(ctx,
		loadCell("archived", func() (load drive.Load, err error) {
			a, err := b.startArchiver(ctx, url, archivePutInterval)
			if err != nil {
				return load, err
			}
			defer a.stop()
			began := time.Now()
			if err := a.awaitReport(ctx, func(r *archiving.Report) bool {
				return r.ArchivedThrough != nil && r.ArchivedThrough.After(began)
			}); err != nil {
				return load, err
			}
			return puts()
		}),
		loadCell("alone", puts),
	)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("durable puts of %s, %d callers, one copy, ", result.Format(float64(b.opts.RecordBytes), "B"),
		archivePutWriters)
	b.add(
		got.atMost(what+"p99 while the store is archived / without", "s", p99, "archived", "alone", 1.2).
			WithNote(fmt.Sprintf("the archiver makes a log object every %v, ten times as often as by default; it shares the "+
				"processors with the store and the callers; %s", archivePutInterval, b.where())),
		got.against(what+"puts per second while the store is archived / without", "1/s", "archived", "alone", 0),
	)
	return nil
}
