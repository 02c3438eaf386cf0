package shard

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestAStartReadsSmallFilesOnce counts how often the start of a shard with four groups opens the small files of each
// group, and how often it lists each folder. On a rotational disk, each of these operations takes about 10 ms.
func TestAStartReadsSmallFilesOnce(t *testing.T) {
	for _, residency := range []group.Residency{group.Index, group.Resident} {
		for _, stops := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, stopped %v", residency, stops), func(t *testing.T) {
				t.Parallel()
				inBubble(t, func(t *bubble) {
					faulty := vfstest.NewFaulty(vfstest.NewMem())
					f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.FS, c.Residency = faulty, residency }).ready()
					there := f.fill(100, 10_000)
					if stops {
						f.stop()
					} else {
						f.shard.Kill()
					}
					var mu sync.Mutex
					seen := map[string]map[string]int{} // number of reads, by folder and file
					watch := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
						dir, file := path.Split(op.Name)
						if op.Kind == vfstest.OpList {
							dir, file = op.Name+"/", "list"
						}
						if op.Kind == vfstest.OpOpen || op.Kind == vfstest.OpList {
							mu.Lock()
							defer mu.Unlock()
							if seen[dir] == nil {
								seen[dir] = map[string]int{}
							}
							seen[dir][file]++
						}
						return false
					}})
					f.start()
					f.ready()
					watch.Remove()
					mu.Lock()
					defer mu.Unlock()
					groups := 0
					for _, dir := range slices.Sorted(maps.Keys(seen)) {
						counts := seen[dir]
						if counts[format.ReplicaName] == 0 {
							continue // the folder does not belong to a group
						}
						groups++
						for name, most := range map[string]int{
							format.ManifestName: 1, format.MarkName: 1, format.ReplicaName: 1, "list": 1,
						} {
							if counts[name] != most {
								t.Errorf("%s: %d of %s, want %d", dir, counts[name], name, most)
							}
						}
					}
					if groups != 4 {
						t.Errorf("files of %d groups were opened: %v", groups, seen)
					}
					f.holdsAll(there)
				})
			})
		}
	}
}
