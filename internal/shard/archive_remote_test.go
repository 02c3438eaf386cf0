package shard

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/remote"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// remoteSource returns a source from which the cluster can be archived. A shard that is killed and started again has
// a new address, which the source finds in the same way as the address of a new shard. The function through returns the
// time that the source tells the shards; it may be nil.
func (c *cluster) remoteSource(t *bubble, through func() time.Time) *remote.Source {
	s := remote.New(remote.Options{
		Store: c.registry.now().Meta.StoreUUID, Through: through,
		Shards: func(context.Context) (addresses []string, err error) {
			for _, shard := range c.registry.now().Shards {
				addresses = append(addresses, shard.Address)
			}
			return addresses, nil
		},
		Dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(t.network.Dial)},
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestAStoreIsArchivedOverTheWire runs an archiver that reads a store with three shards over gRPC and archives it.
// The archiver begins with the files of each group, and continues after a failover.
func TestAStoreIsArchivedOverTheWire(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, hash4, abc)
		c.settled(abc...)
		w := &writer{cluster: c}
		w.puts(20, 300)
		large := data(7, 3<<20)
		c.upload(7, large)
		folder, err := bucket.OpenFolder(vfstest.NewMem(), "/bucket")
		if err != nil {
			t.Fatal(err)
		}
		var archive *archiver.Archiver
		through := func() time.Time { return archive.Status().ArchivedThrough }
		archive, err = archiver.New(archiver.Options{
			Bucket: folder, Source: c.remoteSource(t, through), Store: c.registry.now().Meta.StoreUUID, Name: "quotes",
			Routing: "hash", Groups: hash4.Groups, Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := archive.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("the archiver has ended: %v", err)
			}
		})
		defer running.Wait()
		defer cancel()
		// Before an archiver has told a shard how far the archive is, the shard says that it does not know.
		for name, s := range c.shards {
			if row := s.shard.Status().GetShard(); row.ArchivedThroughUnixNs != nil {
				t.Errorf("shard %s was told %d", name, row.GetArchivedThroughUnixNs())
			}
		}
		time.Sleep(time.Minute)
		for name, s := range c.shards {
			row := s.shard.Status().GetShard()
			if ago := time.Since(time.Unix(0, row.GetArchivedThroughUnixNs())); ago > 21*time.Second || ago < 0 {
				t.Errorf("shard %s says that the store was archived %v ago", name, ago)
			}
		}
		w.puts(20, 300)
		// The archiver gets the first blob together with the files of its group. This second blob comes later, so the
		// archiver has to fetch it separately, by FetchBlob.
		later := data(8, 2<<20)
		c.upload(8, later)
		c.kill("a")
		w.puts(20, 300)
		time.Sleep(time.Minute)
		var objects []byte
		blobs := 0
		for info, err := range folder.List(t.Context(), "", "") {
			if err != nil {
				t.Fatal(err)
			}
			r, err := folder.Open(t.Context(), info.Name, 0, info.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(r)
			if err := errors.Join(err, r.Close()); err != nil {
				t.Fatal(err)
			}
			objects = append(objects, content...)
			if strings.Contains(info.Name, "/blob/") &&
				(bytes.Contains(content, large[:1<<19]) || bytes.Contains(content, later[:1<<19])) {
				blobs++
			}
		}
		missing := 0
		for _, one := range w.acks {
			if !bytes.Contains(objects, one.data) {
				missing++
			}
		}
		if missing > 0 || blobs != 2 {
			t.Errorf("%d of %d records are not in the archive, and %d blobs of two", missing, len(w.acks), blobs)
		}
	})
}

// If no shard has the blob or the group that is requested, the error is fs.ErrNotExist. If a shard merely cannot
// answer at present, the error is a different one.
func TestARemoteSourceSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, hash4, abc)
		c.settled(abc...)
		c.eventually("no lead changes any more", func() bool {
			time.Sleep(10 * time.Second)
			return c.leaderOf("0") != ""
		})
		positions := map[uuid.UUID]uint64{}
		for _, g := range c.registry.now().Groups {
			positions[g.UUID] = 0
		}
		s := c.remoteSource(t, nil)
		group := c.registry.now().Groups["0"].UUID
		if _, err := s.Blob(t.Context(), group, format.BlobRef{ID: uuid.New(), Size: 1}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a blob that is nowhere: %v", err)
		}
		if _, err := s.Copy(t.Context(), uuid.New()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a group that is nowhere: %v", err)
		}
		round := func() (news []archiver.News, errs []error) {
			for one, err := range s.Round(t.Context(), positions) {
				if err != nil {
					errs = append(errs, err)
				} else {
					news = append(news, one)
				}
			}
			return news, errs
		}
		if news, errs := round(); len(news) != 4 || len(errs) > 0 || news[0].Through == 0 || news[0].ReadAt.IsZero() {
			t.Errorf("the news are %+v, %v", news, errs)
		}
		// If the caller stops an iteration early, none of the remaining answers may appear in the next round.
		for range s.Round(t.Context(), map[uuid.UUID]uint64{}) {
			break
		}
		if news, errs := round(); len(news) != 4 || len(errs) > 0 || news[0].Unknown {
			t.Errorf("after a round that ended early, the news are %+v, %v", news, errs)
		}
		// The shard has died, but is still registered in etcd.
		dead := c.registry.now().Shards["a"]
		c.kill("a")
		c.registry.change(func(v *placement.View) { v.Shards["a"] = dead })
		if _, errs := round(); len(errs) == 0 {
			t.Error("a shard that does not answer is no error")
		}
		if _, err := s.Blob(t.Context(), group, format.BlobRef{ID: uuid.New(), Size: 1}); err == nil ||
			errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a blob that a silent shard may have: %v", err)
		}
	})
}
