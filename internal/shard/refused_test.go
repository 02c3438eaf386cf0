package shard

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// files returns the contents of all files of a shard, by name. The file with which the shard locks its folder is no
// exception, because a lock changes no file.
func files(t testing.TB, cfg *Config) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for name := range filesBelow(t, cfg.FS, cfg.Dir) {
		out[name] = vfstest.Read(t, cfg.FS, name)
	}
	return out
}

// A refused volume is inspected again and again, but nothing is written to it. If each inspection raised the volume's
// generation, a copy or an earlier state of the volume would sooner or later have a higher generation than the volume
// itself.
func TestRule7_ARefusedVolumeIsNotWritten(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		for name, c := range map[string]struct {
			state  recordv1.ShardState
			refuse func(r *memRegistry, volume uuid.UUID)
		}{
			"another process has its name": {foreign, func(r *memRegistry, _ uuid.UUID) { r.taken = true }},
			"it was set back": {diskLost, func(r *memRegistry, volume uuid.UUID) {
				seen := r.seen[volume]
				seen.Step.Number += 3
				r.seen[volume] = seen
			}},
		} {
			t.Run(name, func(t *bubble) {
				registry := newRegistry(oneGroup, "s1")
				f := startHost(t, registry, nil)
				f.reaches(serving)
				f.placed()
				id := registry.now().Groups["0"].Members[0].VolumeUUID
				f.stop()
				before := files(t, &f.cfg)
				registry.mu.Lock()
				c.refuse(registry, id)
				registry.asked = 0
				registry.mu.Unlock()
				f.cfg.Wanted.Volume = id
				f.run()
				f.reaches(c.state)
				for asked := 0; asked < 6; time.Sleep(time.Millisecond) {
					f.reaches(c.state)
					registry.mu.Lock()
					asked = registry.asked
					registry.mu.Unlock()
				}
				f.stop()
				after := files(t, &f.cfg)
				for name, b := range after {
					if was, there := before[name]; !there || !bytes.Equal(was, b) {
						t.Errorf("%s was written", name)
					}
				}
				if len(after) != len(before) {
					t.Errorf("there are %d files, were %d", len(after), len(before))
				}
			})
		}
	})
}
