package shard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/status/page"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestALackThatPassesEndsNoGroup simulates a period in which no file can be opened, created or renamed, because the
// process or the machine lacks file descriptors or memory. During that period, every operation that writes (a put, a
// blob, sealing a segment, a compaction, the mark file or a hint) either waits or is refused for that reason. Nothing
// is lost or treated as damage, and afterwards every group continues on its own. The test takes 3 s.
func TestALackThatPassesEndsNoGroup(t *testing.T) {
	t.Parallel()
	errnos := []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EINTR}
	residencies := []group.Residency{group.Index, group.Resident}
	if testing.Short() && !soaktest.Long() {
		errnos, residencies = errnos[:1], residencies[:1] // ten cases take 33 processor seconds under the race detector
	}
	for _, errno := range errnos {
		for _, residency := range residencies {
			t.Run(fmt.Sprintf("%v/%v", errno, residency), func(t *testing.T) {
				t.Parallel()
				inBubble(t, func(t *bubble) { temporaryShortage(t, errno, residency) })
			})
		}
	}
}

func temporaryShortage(t *bubble, errno syscall.Errno, residency group.Residency) {
	opens := []vfstest.OpKind{vfstest.OpOpen, vfstest.OpCreate, vfstest.OpMkdir, vfstest.OpRename}
	if errno == syscall.EMFILE || errno == syscall.ENFILE {
		opens = append(opens, vfstest.OpSyncDir) // SyncDir opens the folder, so it needs a descriptor
	}
	faulty := vfstest.NewFaulty(vfstest.NewMem())
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
		c.FS, c.Residency, c.SegmentBytes = faulty, residency, 64<<10
		c.Compaction = Compaction{Interval: time.Second, SupersededBytesMin: 64 << 10}
	}).ready()
	there := map[int64][]byte{}
	put := func(id int64, n int) error {
		ctx, cancel := context.WithTimeout(f.ctx(), 3*time.Second)
		defer cancel()
		d := data(id, n)
		_, err := f.records.Put(ctx, &recordv1.PutRequest{Key: key(id), Data: d})
		if err == nil {
			there[id] = d
		}
		return err
	}
	for id := range int64(60) {
		must(t, put(id, 5000))
		must(t, put(id, 5001)) // supersedes the first put, so that there is data to compact
	}
	lacking := func(kinds ...vfstest.OpKind) *vfstest.Fault {
		return faulty.Add(&vfstest.Fault{Err: errno, Match: func(op vfstest.Op) bool {
			return slices.Contains(kinds, op.Kind)
		}})
	}
	for round, kinds := range append([][]vfstest.OpKind{opens}, one(opens)...) {
		fault := lacking(kinds...)
		refused := 0
		for i := range int64(40) {
			id := 1000*int64(round+1) + i
			size := 5000
			if i%10 == 9 {
				size = 3 << 20 // large enough for a blob
			}
			if err := put(id, size); err != nil {
				refused++
				if strings.Contains(err.Error(), "restart") || reasonOf(err) == "GROUP_FAILED" || reasonOf(err) == "DAMAGED" {
					t.Errorf("%v: put %d: %v", kinds, id, err)
				}
			}
		}
		time.Sleep(10 * time.Second)
		if round == 0 {
			if refused == 0 || fault.Fired() == 0 {
				t.Fatalf("%d were refused, and the fault fired %d times", refused, fault.Fired())
			}
			said := strings.Join(f.shard.Status().GetShard().Problems, "\n")
			if !strings.Contains(said, errno.Error()) || strings.Contains(said, "no free space") {
				t.Errorf("%v: the problems do not say why: %s", kinds, said)
			}
			waiting := 0
			groups, _ := f.shard.groupStatuses("", "", 0)
			for _, g := range groups {
				switch message := g.GetMessage(); {
				case strings.HasPrefix(message, finding.WritesWait):
					waiting++
				case message != "":
					t.Errorf("%v: group %s: %s", kinds, g.GetGroup(), message)
				}
			}
			if waiting == 0 {
				t.Errorf("%v: no group says that its writes wait", kinds)
			}
		}
		fault.Remove()
		time.Sleep(20 * time.Second)
		for i := range int64(8) {
			if err := put(1000*int64(round+1)+500+i, 5000); err != nil {
				t.Errorf("%v: the lack is over: %v", kinds, err)
			}
		}
		if problems := f.shard.Status().GetShard().Problems; len(problems) > 0 {
			t.Errorf("%v: the lack is over, and problems are %q", kinds, problems)
		}
	}
	f.holdsAll(there)
	f.shard.Kill()

	// A start also survives a lack of descriptors while it loads.
	shortageUntil := time.Now().Add(5 * time.Second)
	loads := faulty.Add(&vfstest.Fault{Err: errno, Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpOpen && strings.Contains(op.Name, "/segment-") && time.Now().Before(shortageUntil)
	}})
	f.again(nil)
	if loads.Fired() == 0 {
		t.Error("the lack at the start was not met")
	}
	if st := f.shard.Status(); st.Summary.State != page.Ready {
		t.Errorf("after the start: %+v", st.Summary)
	}
	f.holdsAll(there)
}

// one puts each element of all into a list of its own, and returns these lists.
func one[T any](all []T) (out [][]T) {
	for _, v := range all {
		out = append(out, []T{v})
	}
	return out
}

// TestADiskThatCannotBeLookedAtIsNotLost simulates a process that has no file descriptor for a minute, and thus
// cannot check its volume. The lack of descriptors proves nothing about the disk, so the shard continues to serve.
// The test takes 20 ms.
func TestADiskThatCannotBeLookedAtIsNotLost(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		faulty := vfstest.NewFaulty(vfstest.NewMem())
		f := startHost(t, newRegistry(hash4, "s1"), func(c *Config) { c.FS = faulty })
		f.reaches(serving)
		fault := faulty.Add(&vfstest.Fault{Err: syscall.EMFILE, Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpOpen
		}})
		time.Sleep(time.Minute)
		if st := f.host.Status(); st.GetShard().GetState().Word() != "Serving" ||
			!strings.Contains(strings.Join(st.GetShard().Problems, "\n"), "too many open") {
			t.Errorf("without descriptors it is %s, with the problems %q", st.GetShard().GetState().Word(),
				st.GetShard().Problems)
		}
		fault.Remove()
		time.Sleep(10 * time.Second)
		if st := f.host.Status(); st.GetShard().GetState().Word() != "Serving" || len(st.GetShard().Problems) > 0 {
			t.Errorf("afterwards it is %s, with the problems %q", st.GetShard().GetState().Word(), st.GetShard().Problems)
		}
		f.put(1, "one")
	})
}

// TestAShardWaitsForItsStore checks a shard that starts before its store is created, or while the store's metadata in
// etcd cannot be read. The shard waits and reports the reason, whether Stay is set or not. The test takes 20 ms.
func TestAShardWaitsForItsStore(t *testing.T) {
	t.Parallel()
	for words, err := range map[string]error{
		"until the store is made": placement.ErrNoMeta,
		"key meta":                fmt.Errorf("%w: key meta", placement.ErrUnusable),
	} {
		for _, stay := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", words, stay), func(t *testing.T) {
				inBubble(t, func(t *bubble) {
					registry := newRegistry(hash4, "s1")
					registry.unmade = err
					f := startHost(t, registry, func(c *Config) { c.Stay = stay })
					time.Sleep(time.Minute)
					select {
					case err := <-f.host.Failed():
						t.Fatalf("it ended: %v", err)
					default:
					}
					if said := f.host.Status().GetShard().Message; !strings.Contains(said, words) || strings.Contains(said,
						errEtcdSilent) {
						t.Errorf("it says %q", said)
					}
					registry.mu.Lock()
					registry.unmade = nil
					registry.mu.Unlock()
					f.reaches(serving)
				})
			})
		}
	}
}

// errEtcdSilent is the message for an etcd that does not respond.
const errEtcdSilent = "etcd does not answer"
