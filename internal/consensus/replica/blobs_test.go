package replica

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// copyBlob copies a blob from one log to another.
func copyBlob(to, from *group.Log, ref format.BlobRef) error {
	r, err := from.OpenBlob(ref)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := to.BlobWriter(ref)
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := io.Copy(w, io.NewSectionReader(r, 0, ref.Size)); err != nil {
		return err
	}
	_, err = w.Commit()
	return err
}

func (one *member) blob(t *testing.T, data string) format.BlobRef {
	w, err := one.log.CreateBlob()
	ok(t, err)
	_, err = w.Write([]byte(data))
	ok(t, err)
	ref, err := w.Commit()
	ok(t, err)
	return ref
}

// copyBlobs copies blobs from one member to another.
func (n *network) copyBlobs(to *Options, from uint64, refs []format.BlobRef) error {
	n.mu.Lock()
	source := n.members[from]
	n.mu.Unlock()
	for _, ref := range refs {
		if err := copyBlob(to.Log, source.log, ref); err != nil {
			return err
		}
	}
	return nil
}

func TestFollowersHaveABlobBeforeTheyPromiseItsEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		var may atomic.Bool
		var refused, fetched atomic.Int64
		n.change = func(id uint64, o *Options) {
			o.FetchBlobs = func(_ context.Context, from uint64, refs []format.BlobRef) error {
				if !may.Load() {
					refused.Add(1)
					return errors.New("not now")
				}
				if err := n.copyBlobs(o, from, refs); err != nil {
					return err
				}
				fetched.Add(1)
				return nil
			}
		}
		n.startAll()
		first, leader := n.lead()
		ref := leader.blob(t, "large")
		p := leader.Propose(write{Write{ID: 1, Blob: &ref}})
		until(t, "both followers were refused the blob", func() bool { return refused.Load() >= 4 })
		select {
		case <-p.Done():
			_, err := p.Wait(t.Context())
			t.Fatalf("answered without the blob on a majority: %v", err)
		default:
		}
		may.Store(true)
		mustWait(t, p)
		leader.must(t, put(2, "behind it"))
		_, follower := n.follower(first)
		until(t, "applied", func() bool { return follower.Members().AppliedIndex == leader.Members().AppliedIndex })
		record, err := follower.log.Get(1, group.GetOptions{})
		ok(t, err)
		r, err := follower.log.OpenBlob(*record.Blob)
		ok(t, err)
		defer r.Close()
		data := make([]byte, ref.Size)
		if _, err := r.ReadAt(data, 0); err != nil || string(data) != "large" || fetched.Load() == 0 {
			t.Fatalf("got %q, %v, after %d fetches", data, err, fetched.Load())
		}
	})
}

// A leader cannot replicate its last entry if the entry's blob is damaged and no other member has the blob. As soon
// as the other members can elect a leader among themselves, the old leader is replaced, and its last entry is lost.
func TestALeaderWhoseBlobNobodyCanHaveIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		n.change = func(_ uint64, o *Options) {
			o.FetchBlobs = func(_ context.Context, from uint64, refs []format.BlobRef) error {
				return n.copyBlobs(o, from, refs)
			}
		}
		n.startAll()
		first, leader := n.lead()
		leader.must(t, put(1, "kept"))
		second, _ := n.follower(first)
		third := 6 - first - second
		n.isolate(third, true)
		ref := leader.blob(t, "needle")
		flipIn(t, n.disks[first], "/v/7", "blob", "needle")
		lost := leader.Propose(write{Write{ID: 2, Blob: &ref}})
		until(t, "the damage is found", func() bool { return leader.Status().Damaged })
		time.Sleep(4 * barredTicksMax * electionTimeout / electionTicks)
		if m := leader.Members(); m.LeaderID != first {
			t.Errorf("it ended though the others cannot elect anybody: %+v", m)
		}
		select {
		case <-lost.Done():
			_, err := lost.Wait(t.Context())
			t.Errorf("the write has ended, with %v", err)
		default:
		}

		n.isolate(third, false)
		until(t, "another leads", func() bool {
			id, _ := n.lead()
			return id != first && !leader.Status().Leader
		})
		if _, err := lost.Wait(timeout(t)); err == nil {
			t.Error("a write that nobody has is acknowledged")
		}
		_, err := n.write(t, 0, put(3, "more"))
		ok(t, err)
		until(t, "the old leader has what the others have", func() bool {
			_, err := leader.log.Get(3, group.GetOptions{})
			return err == nil
		})
		repairs, err := leader.log.Repairs(t.Context()) // the background checks of the log make this call, too
		if err != nil || len(repairs) != 0 || leader.Status().Damaged {
			t.Errorf("the old leader is damaged on, by an entry that it has no more: %v, %v", repairs, err)
		}
		n.wantData(t, leader, 1, "kept")
	})
}

// A leader that hangs in the middle of a blob does not prevent a follower from fetching the blob from the next
// leader.
func TestABlobOfALeaderThatHangsComesFromTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		var hung, slow atomic.Uint64 // ids of a leader, and of a follower that never gets the blob from it
		var waiting atomic.Bool
		n.change = func(id uint64, o *Options) {
			o.FetchBlobs = func(ctx context.Context, from uint64, refs []format.BlobRef) error {
				if from == hung.Load() && id == slow.Load() {
					waiting.Store(true)
					<-ctx.Done()
					return ctx.Err()
				}
				if err := n.copyBlobs(o, from, refs); err != nil {
					return err
				}
				return nil
			}
		}
		n.startAll()
		first, leader := n.lead()
		follower, one := n.follower(first)
		hung.Store(first)
		slow.Store(follower)
		ref := leader.blob(t, "large")
		// The write is committed once the third member has acknowledged it.
		mustWait(t, leader.Propose(write{Write{ID: 1, Blob: &ref}}))
		until(t, "the follower waits for the blob", waiting.Load)
		n.isolate(first, true)
		_, err := n.write(t, first, put(2, "by both that are left"))
		ok(t, err)
		n.wantData(t, one, 2, "by both that are left")
		record, err := one.log.Get(1, group.GetOptions{})
		ok(t, err)
		if record.Blob == nil || *record.Blob != ref {
			t.Fatalf("got blob %v, want %v", record.Blob, ref)
		}
	})
}

// Stop aborts a hanging fetch. At most fetchesMax messages wait for fetches.
func TestStopEndsFetches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, vfstest.NewMem(), "/v")
		var waiting atomic.Int64
		one := m.open("7", func(_ *group.Options, o *Options) {
			o.FetchBlobs = func(ctx context.Context, _ uint64, _ []format.BlobRef) error {
				waiting.Add(1)
				<-ctx.Done()
				return ctx.Err()
			}
		})
		ref := one.blob(t, "x")
		ref.ID[0]++ // no log has a blob of this id
		entry := format.Entry{Kind: format.KindPut, Codec: format.CodecBlob, ID: 1, Data: ref.Encode()}
		term, from, to := uint64(9), uint64(2), uint64(raftID)
		for i := range uint64(20) {
			index, next := i, i+1
			ok(t, one.Step(&raftpb.Message{
				Type: raftpb.MsgApp.Enum(), From: &from, To: &to, Term: &term, Index: &index,
				Entries: []*raftpb.Entry{{Term: &term, Index: &next, Data: format.EncodePayload(&entry)}},
			}))
		}
		synctest.Wait()
		if n := waiting.Load(); n != fetchesMax {
			t.Fatalf("%d fetches", n)
		}
		ok(t, one.Stop(timeout(t)))
	})
}
