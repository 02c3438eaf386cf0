//go:build linux

package vfs

import (
	"errors"
	"math"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSpaceOfNumbersThatCannotBe(t *testing.T) {
	below := func(n int64) uint64 { return uint64(-n) }
	for name, c := range map[string]struct {
		blocks, free uint64
		block        int64
		want         Space
		broken       bool
	}{
		"plain":                      {blocks: 100, free: 40, block: 4096, want: Space{409_600, 163_840}},
		"nothing is free":            {blocks: 100, block: 4096, want: Space{TotalBytes: 409_600}},
		"root has used what is kept": {blocks: 100, free: below(3), block: 4096, want: Space{TotalBytes: 409_600}},
		"more is free than there is": {blocks: 100, free: 200, block: 4096, want: Space{409_600, 409_600}},
		"the superblock was zeroed":  {blocks: below(9499), free: below(9499), block: 1024, broken: true},
		"more than can be counted":   {blocks: math.MaxInt64 / 512, block: 1024, broken: true},
		"as much as can be counted": {blocks: math.MaxInt64 / 1024, block: 1024,
			want: Space{TotalBytes: math.MaxInt64 / 1024 * 1024}},
		"a file system that has no blocks": {},
	} {
		got, err := spaceOf(c.blocks, c.free, c.block)
		if got != c.want || errors.Is(err, unix.EUCLEAN) != c.broken || (err != nil) != c.broken {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
