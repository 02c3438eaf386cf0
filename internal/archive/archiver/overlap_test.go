package archiver

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// slowCopies is a store that needs a second to send a group.
type slowCopies struct {
	Source
	sent func()
}

func (s slowCopies) Copy(ctx context.Context, id uuid.UUID) (GroupCopy, error) {
	time.Sleep(time.Second)
	s.sent()
	return s.Source.Copy(ctx, id)
}

// While a segment of a first copy is on its way to the bucket, the next group is read. No more than two segments are in
// memory, and one is uploaded at a time.
func TestGroupsAreReadWhileOthersAreUploaded(t *testing.T) {
	for _, upload := range []time.Duration{time.Second, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			const groups = 6
			m, memory := newModel(7, groups), newMemory()
			for i := range groups {
				m.write(m.one(byte(i)), 20)
			}
			var mu sync.Mutex
			uploads, sent, created, catalogues := 0, 0, 0, 0
			var last time.Time // when the last catalogue was created
			v := newView(memory, 1, 0)
			v.hook = func(op, name string) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case op == "create" && strings.Contains(name, "/cat/"):
					catalogues++
					last = time.Now()
				case op == "create" && strings.Contains(name, "/seg/"):
					if uploads++; uploads > 1 {
						t.Errorf("%d segments are uploaded at the same time", uploads)
					}
					mu.Unlock()
					time.Sleep(upload)
					mu.Lock()
					uploads--
					created++
				}
			}
			l := standardLimits
			began := time.Now()
			p := begin(m, v, l, func(o *Options) {
				o.Source = slowCopies{Source: m, sent: func() {
					mu.Lock()
					defer mu.Unlock()
					if sent++; sent-created > 2 {
						t.Errorf("%d groups were sent, and %d segments are in the bucket", sent, created)
					}
				}}
			})
			time.Sleep(time.Minute)
			synctest.Wait()
			if err := p.end(); err != nil {
				t.Error(err)
			}
			// The longer one of reading and uploading counts, and the other one once.
			want := groups*max(time.Second, upload) + min(time.Second, upload)
			if took := last.Sub(began); catalogues != groups || took != want {
				t.Errorf("uploads of %v: %d groups were copied within %v, not %v", upload, catalogues, took, want)
			}
			if _, err := m.check(memory, nil); err != nil {
				t.Error(err)
			}
		})
	}
}
