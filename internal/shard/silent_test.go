package shard

import (
	"strings"
	"sync"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// hang makes matching disk operations wait until the returned function is called, or the test has finished.
func hang(t *bubble, disk *vfstest.Faulty, match func(vfstest.Op) bool) (answers func()) {
	hung := make(chan struct{})
	fault := disk.Add(&vfstest.Fault{Match: match, Effect: vfstest.EffectPass, Before: func(vfstest.Op) { <-hung }})
	answers = sync.OnceFunc(func() {
		fault.Remove()
		close(hung)
	})
	t.Cleanup(answers)
	return answers
}

func isRead(op vfstest.Op) bool { return op.Kind == vfstest.OpRead }

// A disk that hangs is reported within host.SilentWithin, no matter when the shard last checked it. A disk that
// stalls for 9 s is not reported, because a disk may take that long to retry a bad sector.
func TestAHangingDiskIsReportedInTime(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		disk := vfstest.NewFaulty(vfstest.NewMem())
		f := startHost(t, newRegistry(hash4, "s1"), func(c *Config) { c.FS, c.times = disk, host.Times{} })
		f.put(1, "one")
		ready := func() bool {
			code, said := f.http("/readyz")
			if code != 200 && !strings.Contains(said, host.VolumeSilent) {
				t.Fatalf("/readyz: %d %s", code, said)
			}
			return code == 200
		}
		const step = 100 * time.Millisecond
		for offset := time.Duration(0); offset < 2*time.Second; offset += 300 * time.Millisecond {
			time.Sleep(offset)
			for _, lasts := range []time.Duration{9 * time.Second, time.Minute} {
				began := time.Now()
				answers := hang(t, disk, isRead)
				for ready() && time.Since(began) < lasts {
					time.Sleep(step)
				}
				took := time.Since(began)
				answers()
				time.Sleep(step) // gives the waiting read time to return
				switch {
				case lasts < 10*time.Second && took < lasts:
					t.Errorf("a disk that stalls for %v is reported after %v", lasts, took)
				case lasts > 10*time.Second && (took < 10*time.Second || took > host.SilentWithin+step):
					t.Errorf("a disk that hangs is reported after %v, wanted is %v or earlier", took, host.SilentWithin)
				}
				if !ready() {
					t.Fatal("a disk that answers again is still reported")
				}
			}
		}
	})
}
