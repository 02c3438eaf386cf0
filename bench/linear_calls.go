package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/layouts"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/dev"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	linearGetters = 16
	linearPutters = 64
)

// servedStore is a running store with one shard and residency Resident.
type servedStore struct {
	dev     *dev.Dev
	conn    *grpc.ClientConn
	records int64
}

// linearCalls compares client calls to a small store's shard with client calls to a large store's shard.
func (b *loadBench) linearCalls(ctx context.Context) (err error) {
	dir := filepath.Join(b.dir, "calls")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var stores [2]*servedStore
	for i, records := range []int64{linearRecords, b.opts.IndexRecords} {
		begin := time.Now()
		s, err := startFilled(ctx, filepath.Join(dir, fmt.Sprint(records)), records)
		if err != nil {
			return fmt.Errorf("a store of %d records: %w", records, err)
		}
		defer s.close()
		b.Say("  a store of %d records serves after %.1f s", records, time.Since(begin).Seconds())
		stores[i] = s
	}
	for _, what := range []struct {
		name    string
		callers int
		call    func(ctx context.Context, s *servedStore, id int64) error
	}{{"unary Get direct, Resident", linearGetters, getOne}, {"durable unary Put direct, Resident", linearPutters,
		putOne}} {
		side := func(s *servedStore) costFigure {
			return func() (cost, error) { return s.drive(ctx, what.callers, b.opts.PutTime, what.call) }
		}
		// These first calls are not measured. They open the connections and do the work that only first calls need.
		for _, s := range stores {
			if _, err := s.drive(ctx, what.callers, b.opts.PutTime/4, what.call); err != nil {
				return fmt.Errorf("%s: %w", what.name, err)
			}
		}
		name := fmt.Sprintf("%s, %d callers", what.name, what.callers)
		name = linearName(name, groupCount, b.opts.IndexRecords, linearRecords)
		sides := map[string]costFigure{"small": side(stores[0]), "large": side(stores[1])}
		if _, err := b.compareCosts(ctx, name, linearTarget, sides); err != nil {
			return err
		}
	}
	return nil
}

// startFilled creates a store, stops it, writes records directly into the logs of its groups, which is faster than
// calls, and starts it again.
func startFilled(ctx context.Context, dir string, records int64) (*servedStore, error) {
	cfg := dev.Config{Dir: dir, Shards: 1, Groups: groupCount, Listen: "127.0.0.1:0",
		Shard: shard.Config{Residency: group.Resident}}
	d, err := startReady(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := d.Stop(ctx); err != nil {
		return nil, err
	}
	if err := fillStopped(ctx, dir, records); err != nil {
		return nil, err
	}
	if d, err = startReady(ctx, cfg); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(d.Status().Shards[0].GetShard().GetAddress(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		d.Kill()
		return nil, err
	}
	return &servedStore{dev: d, conn: conn, records: records}, nil
}

func startReady(ctx context.Context, cfg dev.Config) (*dev.Dev, error) {
	d, err := dev.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := d.WaitReady(ctx, nil); err != nil {
		d.Kill()
		return nil, err
	}
	return d, nil
}

func (s *servedStore) close() {
	_ = s.conn.Close() // an error does not matter, because no call is in progress
	s.dev.Kill()
}

// fillStopped writes records into the groups that own their ids. The ids begin at 0. The store must not be running.
func fillStopped(ctx context.Context, dir string, records int64) error {
	dirs, err := filepath.Glob(filepath.Join(dir, "shards", "*", "groups", "*"))
	if err != nil {
		return err
	}
	if len(dirs) != groupCount {
		return fmt.Errorf("%s holds %d groups, not %d", dir, len(dirs), groupCount)
	}
	return drive.Shared(2, int64(len(dirs)), func(_ int, i int64) error { return fillGroupOf(ctx, dirs[i], records) })
}

func fillGroupOf(ctx context.Context, dir string, records int64) (err error) {
	m, err := format.ReadManifest(vfs.OS{}, dir)
	if err != nil {
		return err
	}
	opts := group.Options{FS: vfs.OS{}, Dir: dir, Identity: m.Identity, Retention: group.Retention{Versions: 1}}
	log, _, err := group.Load(ctx, opts, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Seal(), log.Close(true)) }()
	w, err := layouts.NewWriter(log)
	if err != nil {
		return err
	}
	const batch = 4096
	routing := placement.Routing{Mode: placement.Hash, Groups: groupCount}
	data := randomBytes(linearBytes)
	entries := make([]format.Entry, 0, batch)
	for id := range records {
		if placement.GroupName(routing.GroupOf(id)) == m.Identity.Name {
			entries = append(entries, format.Entry{Kind: format.KindPut, ID: id, Data: data})
		}
		if len(entries) == 0 || len(entries) < batch && id < records-1 {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.Commit(entries); err != nil {
			return err
		}
		entries = entries[:0]
	}
	return nil
}

// drive makes calls with random ids for the given duration. A call's cost is the total time divided by the number of
// calls from all callers.
func (s *servedStore) drive(ctx context.Context, callers int, duration time.Duration,
	call func(context.Context, *servedStore, int64) error) (cost, error) {
	var n atomic.Int64
	var watch stopwatch
	watch.start()
	seed := watch.begin.UnixNano()
	err := drive.Parallel(callers, func(int) error {
		for time.Since(watch.begin) < duration {
			if err := call(ctx, s, drive.Scatter(seed+n.Add(1))%s.records); err != nil {
				return err
			}
		}
		return nil
	})
	watch.stop()
	return watch.per(n.Load()), err
}

func getOne(ctx context.Context, s *servedStore, id int64) error {
	r, err := recordv1.NewRecordServiceClient(s.conn).Get(ctx, &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: id}})
	if err == nil && len(r.GetRecord().GetData()) != linearBytes {
		return fmt.Errorf("record %d has %d bytes, not %d", id, len(r.GetRecord().GetData()), linearBytes)
	}
	return err
}

// linearData is the data of every put.
var linearData = randomBytes(linearBytes)

func putOne(ctx context.Context, s *servedStore, id int64) error {
	_, err := recordv1.NewRecordServiceClient(s.conn).Put(ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: id},
		Data: linearData})
	return err
}
