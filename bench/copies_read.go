package bench

import (
	"context"
	"fmt"
	"path/filepath"

	"sheaf.dev/sheaf/bench/drive"
)

// readRecords is the number of records that are read, each many times.
const readRecords = 20000

// measureReads compares unary reads from groups with three copies to those from groups with one copy, on the same
// number of shards.
func (b *copiesBench) measureReads(ctx context.Context) error {
	dir, err := b.folder("read")
	if err != nil {
		return err
	}
	stores := map[int]*benchStore{}
	for _, copies := range []int{1, copiesOf} {
		s, err := startStore(ctx, filepath.Join(dir, fmt.Sprint(copies)), b.opts.Binary, 3, copies, copiesGroups)
		if err != nil {
			return fmt.Errorf("%d copies: %w", copies, err)
		}
		defer s.close()
		stores[copies] = s
	}
	for _, size := range []int{1 << 10, 10 << 10} {
		for _, s := range stores {
			if err := s.fill(ctx, readRecords, size); err != nil {
				return err
			}
		}
		for _, n := range []int{16, 64} {
			side := func(copies int) func() (drive.Load, error) {
				return func() (drive.Load, error) {
					return drive.Callers(n, b.opts.Time/2, func(_ int, i int64) error {
						return stores[copies].get(ctx, drive.Scatter(i)%readRecords, size)
					})
				}
			}
			for copies := range stores {
				// These first calls are not measured. They open the connections and do the work that only first reads need.
				if _, err := side(copies)(); err != nil {
					return err
				}
			}
			got, err := b.takeTurns(ctx, loadCell("3", side(copiesOf)), loadCell("1", side(1)))
			if err != nil {
				return err
			}
			name := fmt.Sprintf("unary Get of %d KB, %d callers, %d groups on 3 shards, copies 3 / copies 1", size>>10, n,
				copiesGroups)
			b.add(
				got.against(name, "/s", "3", "1", 0.9),
				got.atMost(name+", p99", "s", p99, "3", "1", 0),
			)
		}
	}
	return nil
}
