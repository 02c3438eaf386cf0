package shard

import (
	"bytes"
	"context"
	"errors"
	"path"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// The caller of an upload disconnects while the upload's entry is being written to disk. The entry is applied
// nevertheless, so the blob must remain.
func TestTheBlobOfAnUploadOfUnknownOutcomeStays(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		faulty := vfstest.NewFaulty(vfstest.NewMem())
		f := start(t, newRegistry(placement.Routing{Mode: placement.Hash, Groups: 1}, "s1"), func(c *Config) {
			c.FS = faulty
		}).ready()
		f.put(2, []byte("the group takes writes"))
		whole := data(1, 3<<20)

		ctx, cancel := context.WithCancel(f.ctx())
		defer cancel()
		stream, err := f.records.Upload(ctx)
		must(t, err)
		send := func(in *recordv1.UploadRequest) {
			t.Helper()
			must(t, stream.Send(in))
		}
		send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(1)}}})
		for _, chunk := range cut(whole, 1<<20) {
			send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: chunk}})
		}
		held, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		defer func() { once.Do(func() { close(release) }) }()
		var first sync.Once
		slow := faulty.Add(&vfstest.Fault{
			Match: func(op vfstest.Op) bool {
				name := path.Base(op.Name)
				return (op.Kind == vfstest.OpWrite || op.Kind == vfstest.OpSync) &&
					(strings.HasPrefix(name, "segment-") || strings.Contains(name, "journal"))
			},
			Effect: vfstest.EffectPass,
			Before: func(vfstest.Op) {
				first.Do(func() { close(held) })
				<-release
			},
		})
		must(t, stream.CloseSend())
		<-held
		cancel()
		f.eventually("the upload was given up", func() bool { return f.shard.calls.Calls() == 0 })
		if files := f.blobs(); files != 1 {
			t.Errorf("%d blobs after the outcome became unknown", files)
		}
		slow.Remove()
		once.Do(func() { close(release) })

		f.eventually("the entry is applied", func() bool {
			_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(1), MetadataOnly: true})
			return err == nil
		})
		if _, got, err := f.download(&recordv1.DownloadRequest{Key: key(1)}); err != nil || !bytes.Equal(got, whole) {
			t.Errorf("download: %d bytes, %v", len(got), err)
		}
	})
}

func TestWhatSurelyWasNotApplied(t *testing.T) {
	w := answer.Where{Group: "0", ID: 1}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{replica.ErrOutcomeUnknown, false},
		{errors.Join(replica.ErrOutcomeUnknown, replica.ErrOverloaded), false},
		{errors.Join(replica.ErrOutcomeUnknown, context.DeadlineExceeded), false},
		{context.DeadlineExceeded, false},
		{context.Canceled, false},
		{errors.New("whatever it is"), false},
		{&replica.ConditionError{Err: replica.ErrExists, Current: 7}, true},
		{&replica.ConditionError{Err: replica.ErrMismatch, Current: 7}, true},
		{replica.ErrNoLeader, true},
		{replica.ErrStopping, true},
		{replica.ErrOverloaded, true},
		{volume.ErrFull, true},
		{volume.ErrFreeSpaceUnknown, true},
		{replica.ErrReused, true},
	} {
		if got := answer.SurelyNotApplied(answer.Of(c.err, w)); got != c.want {
			t.Errorf("%v, told as %v: surely not applied: %t", c.err, answer.CodeOf(answer.Of(c.err, w)), got)
		}
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		want := code == codes.Aborted || code == codes.AlreadyExists || code == codes.Unavailable ||
			code == codes.ResourceExhausted ||
			code == codes.InvalidArgument // this code means that the request id belongs to a different write
		if got := answer.SurelyNotApplied(answer.Fail(code, "", "")); got != want {
			t.Errorf("%v: surely not applied: %t", code, got)
		}
	}
}
