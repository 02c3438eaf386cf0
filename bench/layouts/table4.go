package layouts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

const (
	latencyBytes   = 100 // size of a record in table 4
	latencyWindow  = 1000
	latencyFolders = 40
	latencyCallers = 64 // number of records in a commit to a group, as if that many callers each wrote one
	latencyEnds    = 10 // the median of this many windows at the start is compared with that of as many windows at the end
)

// table4 is Turner's table. It shows how the time to create one more record depends on the number of existing records.
func table4(fs *fileSystem, s *scale) []cell {
	n := fs.limitRecords(s.latency)
	base := cell{table: 4, fs: fs, variant: fmt.Sprintf("%s of %d B", countWords(n), latencyBytes)}
	cells := make([]cell, 0, 4)
	for _, l := range []*fileLayout{
		{title: oneFolderTitle, folder: flatFolder},
		{title: fmt.Sprintf("%d folders in turn", latencyFolders), folder: sequentialFolders(latencyFolders)},
		{title: fmt.Sprintf("%d folders striped", latencyFolders), folder: stripedFolders(latencyFolders)},
	} {
		cells = append(cells, base.withLayout(l.title, needOf(n, latencyBytes, false),
			func(ctx context.Context, s *site) error {
				set, known := newSet(n, n, latencyBytes), folders{s.dir: {}}
				return latencies(ctx, s, n, 1, func(i, _ int) error { return l.create(s.dir, set, i, known, false) })
			}))
	}
	return append(cells, base.withLayout(oursTitle, needOne(n, latencyBytes),
		func(ctx context.Context, s *site) (err error) {
			set := newSet(n, n, latencyBytes)
			w, err := createGroup(ctx, s.dir)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, w.log.Close(false)) }()
			entries := make([]format.Entry, 0, latencyCallers)
			return latencies(ctx, s, n, latencyCallers, func(first, last int) error {
				return w.Commit(puts(set, first, last, entries))
			})
		}))
}

// latencies creates n records, atOnce of them with each call of create. For each window of up to a thousand records it
// stores the median and the 99th percentile of the time to create one record.
func latencies(ctx context.Context, s *site, n, atOnce int, create func(first, last int) error) error {
	window := min(latencyWindow, max(1, n/latencyEnds))
	took := make([]float64, 0, window+atOnce)
	var p50, p99 [][2]float64
	begin := time.Now()
	for i := 0; i < n; i += atOnce {
		if err := stopped(ctx, i/atOnce); err != nil {
			return err
		}
		last := min(i+atOnce, n)
		at := time.Now()
		if err := create(i, last); err != nil {
			return fmt.Errorf("number %d: %w", i+1, err)
		}
		each := since(at)
		for range last - i {
			took = append(took, each)
		}
		if len(took) >= window || last == n {
			slices.Sort(took)
			x := float64(last)
			p50 = append(p50, [2]float64{x, took[len(took)/2]})
			p99 = append(p99, [2]float64{x, took[len(took)*99/100]})
			took = took[:0]
		}
	}
	s.Set("total", since(begin))
	s.Series["p50"], s.Series["p99"] = p50, p99
	ends := min(latencyEnds, max(1, len(p50)/3))
	s.Set("p50-first", medianOf(p50[:ends]))
	s.Set("p50-last", medianOf(p50[len(p50)-ends:]))
	s.Set("p99-first", medianOf(p99[:ends]))
	s.Set("p99-last", medianOf(p99[len(p99)-ends:]))
	return nil
}

func medianOf(points [][2]float64) float64 {
	v := make([]float64, 0, len(points))
	for _, p := range points {
		v = append(v, p[1])
	}
	slices.Sort(v)
	return v[len(v)/2]
}
