package shard

import (
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/vfs"
)

// A file system that does not tell its room is broken: writes go elsewhere, as soon as others lead.
func TestAWriteWithoutKnownRoomIsRefusedForNow(t *testing.T) {
	faulty := vfs.NewFaulty(vfs.OS{})
	f := start(t, newRegistry(oneGroup, "s1"), func(c *Config) { c.FS = faulty }).ready()
	f.put(1, []byte("there is room"))
	broken := faulty.Add(&vfs.Fault{Match: func(op vfs.Op) bool { return op.Kind == vfs.OpSpace }, Err: syscall.EUCLEAN})
	f.eventually("a put is refused", func() bool {
		_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(1), Data: []byte("is there?")})
		if err != nil {
			want(t, err, codes.Unavailable, reasonNoLeader)
		}
		return err != nil
	})
	_, err := f.upload(&recordv1.UploadHeader{Key: key(1)}, []byte("is there?"))
	want(t, err, codes.Unavailable, reasonNoLeader)
	broken.Remove()
	f.eventually("a put is taken", func() bool {
		_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(1), Data: []byte("there is")})
		return err == nil
	})
	f.holds(1, []byte("there is"))
}
