package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/listing"
	"sheaf.dev/sheaf/internal/status/archiving"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// firstGroup is the key of the metric that holds the time until the first group is restored, in seconds.
const firstGroup = "first"

// measureRestores measures how fast a store comes back from its archive.
func (b *archiveBench) measureRestores(ctx context.Context) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	url, data := b.bucket.url("restore"), b.records()*int64(b.opts.RecordBytes)
	a, err := b.startArchiver(ctx, url, archiveShortInterval)
	if err != nil {
		return err
	}
	// A restore without a time needs an archive that says up to when it covers its groups.
	_, _, err = b.firstCopies(ctx, a)
	if err == nil {
		err = a.awaitReport(ctx, func(r *archiving.Report) bool { return r.ArchivedThrough != nil })
	}
	a.stop()
	if err != nil {
		return err
	}
	got, err := b.takeTurns(ctx,
		rounds.Cell{Key: "restore", Run: func(ctx context.Context, f *rounds.Figures) error {
			return b.restore(ctx, url, float64(data), f)
		}},
		rounds.Cell{Key: "alone", Run: func(ctx context.Context, f *rounds.Figures) error {
			took, err := b.fetchFirst(ctx, url)
			f.Set(firstGroup, took.Seconds())
			return err
		}},
		rounds.One("bucket", func() (float64, error) {
			s, err := b.probe(ctx, data)
			return s.download, err
		}),
		rounds.One("disk", func() (float64, error) { return writeRate(b.dir, data) }),
	)
	if err != nil {
		return err
	}
	limit := make([]float64, 0, b.Rounds)
	for i, download := range got.Rate("bucket") {
		limit = append(limit, min(download, got.Rate("disk")[i]))
	}
	what := fmt.Sprintf("restore of %s in records of %s and %d groups, one copy", result.Format(float64(data), "B"),
		result.Format(float64(b.opts.RecordBytes), "B"), b.opts.Groups)
	b.add(
		against(what+" / the slower one of bucket and disk", "B/s", got.Rate("restore"), limit, 0.8).
			WithNote("from the moment at which a shard of the new store has its groups to the last group that serves; against "+
				"sheaf-archive probe, which reads objects as large as the segments one after another, and one file that is "+
				"written and synced; "+b.where()),
		got.atMost("the first group of that restore / the same group fetched and installed alone", "s", firstGroup,
			"restore", "alone", 1.2).
			WithNote("the other side is a client of the source that installs one group as a shard does, without a store"),
		b.memoryRow("memory of the source of that restore", got.Of("restore", heldMemory)),
	)
	return nil
}

// restore makes a new store from an archive, with one shard and one copy, and removes the store.
func (b *archiveBench) restore(ctx context.Context, url string, data float64, f *rounds.Figures) (err error) {
	source, err := b.startSource(ctx, url)
	if err != nil {
		return err
	}
	defer source.Kill()
	s, err := startRestored(ctx, filepath.Join(b.dir, b.name("restored")), b.opts.Binary, source)
	if err != nil {
		return err
	}
	defer s.close()
	began := time.Now()
	first := time.Duration(0)
	err = await(ctx, source.Process, func() (bool, error) {
		_, waiting, err := s.place.Waiting(ctx)
		if first == 0 && len(waiting) < s.groups {
			first = time.Since(began)
		}
		return len(waiting) == 0, errors.Join(err, s.exitedError())
	})
	if err != nil {
		return err
	}
	f.Set(rounds.Rate, data/time.Since(began).Seconds())
	f.Set(firstGroup, first.Seconds())
	memory, err := processMemory(source.Process)
	f.Set(heldMemory, memory)
	return err
}

// startRestored starts a store with one shard whose groups wait for their restore, and returns when the shard has been
// told to restore them.
func startRestored(ctx context.Context, dir, binary string, from *archiveSource) (s *benchStore, err error) {
	list := &from.list
	if s, err = newStore(dir, binary, len(list.Groups)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	meta, err := s.place.InitMeta(ctx, placement.Meta{
		StoreUUID: list.Store, Routing: list.Routing, Copies: 1, CreatedUTC: time.Now().UTC().Format(time.RFC3339),
		ShardsMin: 1, Restore: &placement.Restore{Source: from.address, Listing: true,
			At: list.At.UTC().Format(time.RFC3339Nano), Writes: placement.WritesAtOnce},
	})
	if err != nil {
		return s, err
	}
	groups, err := list.Placed()
	if err != nil {
		return s, err
	}
	if err := s.place.AddRestoring(ctx, list.Store, list.At, groups); err != nil {
		return s, err
	}
	if err := s.start("1"); err != nil {
		return s, err
	}
	return s, s.awaitTargets(ctx, meta, 1)
}

// fetchFirst fetches the first group of an archive from a new source, and installs it as a shard does, without a store.
// It returns how long that took from the moment at which the source had listed its groups.
func (b *archiveBench) fetchFirst(ctx context.Context, url string) (time.Duration, error) {
	source, err := b.startSource(ctx, url)
	if err != nil {
		return 0, err
	}
	defer source.Kill()
	began := time.Now()
	err = b.fetch(ctx, source, source.list.Groups[:1])
	return time.Since(began), err
}

// fetchAll is like fetchFirst, but it fetches all groups, one after another, and the time begins when the source is
// started.
func (b *archiveBench) fetchAll(ctx context.Context, url string) (time.Duration, error) {
	began := time.Now()
	source, err := b.startSource(ctx, url)
	if err != nil {
		return 0, err
	}
	defer source.Kill()
	err = b.fetch(ctx, source, source.list.Groups)
	return time.Since(began), err
}

// fetch fetches groups from a source, installs them in a folder, and removes the folder.
func (b *archiveBench) fetch(ctx context.Context, from *archiveSource, groups []listing.Group) (err error) {
	dir := filepath.Join(b.dir, b.name("fetched"))
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	hub := peer.New(peer.Options{Shard: "guest", Store: from.list.Store, Deliver: noMessages,
		Address: func(string) (string, bool) { return "", false }})
	defer hub.Close()
	for _, g := range groups {
		if err := fetchGroup(ctx, hub, from, g, filepath.Join(dir, g.UUID.String())); err != nil {
			return err
		}
	}
	return nil
}

// fetchGroup fetches one group from a source, and installs it in a folder.
func fetchGroup(ctx context.Context, hub *peer.Hub, source *archiveSource, g listing.Group, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	opts := group.Options{FS: vfs.OS{}, Dir: to,
		Identity: format.Identity{Store: source.list.Store, Group: g.UUID, Name: g.Name}}
	file := format.ReplicaFile{RaftID: format.NewRaftID(), Store: source.list.Store, Group: g.UUID, Volume: uuid.New(),
		Founder: true, Joining: true}
	if err := format.WriteReplicaFile(opts.FS, to, file); err != nil {
		return err
	}
	sink := &benchSink{ctx: ctx, opts: opts, replica: file}
	err := await(ctx, source.Process, func() (bool, error) {
		err := hub.Source(source.address, file.RaftID).Group(ctx, g.UUID, sink)
		if errors.Is(err, peer.ErrBusy) {
			return false, nil // the source has not noticed yet that the call before has ended
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return sink.install.Finish(ctx)
}
