package powercut

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/faultdisk"
)

const (
	workers    = 24
	keysOfEach = 8
	batchItems = 4
	// runsMax is the number of times that the shard runs in a recording. Each run continues on the disk of the previous
	// one.
	runsMax   = 2
	restOneOf = 40
	rest      = 150 * time.Millisecond // pause of a worker, long enough for its group to become idle and write its mark
	etcdEvery = 200 * time.Millisecond
)

// evidence lists counters of the shard that the load must increase. If one of them does not increase, the load has
// not tested enough.
var evidence = [...]string{"sheaf_shard_journal_writes_total", "sheaf_shard_compaction_dropped_entries_total"}

// etcdContent is etcd's content at a position of the recording.
type etcdContent struct {
	at   int
	keys map[string]string
}

// recording describes a load that has run on a disk: the writes to the disk, the acknowledgements, and the content of
// etcd.
type recording struct {
	fs      *fileSystem
	disk    *faultdisk.Device
	etcd    *storeEtcd
	before  *faultdisk.Image
	record  []faultdisk.Op
	ledger  ledger
	from    int // the power is never cut before this position, because not all groups exist before it
	known   []etcdContent
	counted [len(evidence)]float64

	values atomic.Uint64
}

// record runs a shard with a load until the given number of writes has been made.
func record(ctx context.Context, fs *fileSystem, etcd *storeEtcd, dir string, files vfs.FS, writes int,
	seed uint64) (*recording, error) {
	r := &recording{fs: fs, disk: faultdisk.New(fs.bytes), ledger: ledger{writes: map[int64][]write{}}}
	var err error
	if r.etcd, err = etcd.next(ctx, nil); err != nil {
		return nil, err
	}
	if err := r.etcd.createStore(ctx); err != nil {
		return nil, err
	}
	m, err := fs.mount(dir, r.disk, true)
	if err != nil {
		return nil, err
	}
	r.before = r.disk.Begin()
	for n := range runsMax {
		if err = r.runUnderLoad(ctx, m.point, files, writes/runsMax, seed+uint64(n), n == 0); err != nil {
			break
		}
	}
	r.record = r.disk.Record()
	return r, errors.Join(err, m.detach())
}

// runUnderLoad runs a shard once, under load.
func (r *recording) runUnderLoad(ctx context.Context, point string, files vfs.FS, writes int, seed uint64,
	first bool,
) error {
	l, err := r.etcd.begin(ctx, point, files, group.Residency(seed%2))
	if err != nil {
		return err
	}
	if err := r.note(ctx); err != nil {
		return errors.Join(err, l.kill())
	}
	if first {
		r.from = r.known[0].at
	}
	over := make(chan struct{})
	var noting sync.WaitGroup
	var noted error
	noting.Go(func() {
		tick := time.NewTicker(etcdEvery)
		defer tick.Stop()
		for noted == nil {
			select {
			case <-tick.C:
				noted = r.note(ctx)
			case <-over:
				return
			}
		}
	})
	err = r.load(ctx, l, writes, seed)
	close(over)
	noting.Wait()
	for i, name := range evidence {
		n, counting := l.counter(name)
		r.counted[i] += n
		err = errors.Join(err, counting)
	}
	if seed%2 == 0 {
		return errors.Join(err, noted, l.stop(ctx))
	}
	return errors.Join(err, noted, l.kill())
}

// note records the current content of etcd.
func (r *recording) note(ctx context.Context) error {
	keys, err := r.etcd.content(ctx)
	if err == nil {
		r.known = append(r.known, etcdContent{at: r.disk.Position(), keys: keys})
	}
	return err
}

// etcdContentAt returns the content of etcd that was last recorded at or before the given position, at which the power
// is cut.
func (r *recording) etcdContentAt(cut int) map[string]string {
	i, exact := slices.BinarySearchFunc(r.known, cut, func(k etcdContent, at int) int { return k.at - at })
	if !exact {
		i--
	}
	return r.known[i].keys
}

// load lets all workers write. Each writes to its own records.
func (r *recording) load(ctx context.Context, l *runningShard, writes int, seed uint64) error {
	var left atomic.Int64
	left.Store(int64(writes))
	errs := make([]error, workers)
	var all sync.WaitGroup
	for n := range workers {
		all.Go(func() {
			w := &worker{recording: r, runningShard: l, number: n, random: rand.New(rand.NewPCG(seed, uint64(n)))}
			for left.Load() > 0 && errs[n] == nil {
				var done int
				done, errs[n] = w.write(ctx)
				left.Add(-int64(done))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

type worker struct {
	*recording
	*runningShard
	number int
	random *rand.Rand
}

// put puts a record. Half of the workers send no request id, so that compaction has something to drop. Compaction
// must keep writes with a request id, because a client may send them again.
func (w *worker) put(ctx context.Context, id int64, data []byte) error {
	if w.number%2 == 0 || len(data) > 1<<20 {
		_, err := w.client.Put(ctx, client.Key{ID: id}, data, nil)
		return err
	}
	return retryUntilServed(func() error {
		_, err := w.records.Put(ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: id}, Data: data})
		return err
	})
}

func (w *worker) delete(ctx context.Context, id int64) error {
	if w.number%2 == 0 {
		_, err := w.client.Delete(ctx, client.Key{ID: id}, nil)
		return err
	}
	return retryUntilServed(func() error {
		_, err := w.records.Delete(ctx, &recordv1.DeleteRequest{Key: &recordv1.RecordKey{Id: id}})
		return err
	})
}

// retryUntilServed retries a write while the group is not ready yet. A write that fails for this reason was certainly
// not applied.
func retryUntilServed(write func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if err := write(); status.Code(err) != codes.Unavailable || time.Now().After(end) {
			return err
		}
	}
}

func (w *worker) key() int64 { return int64(w.random.IntN(keysOfEach)*workers + w.number) }

// write performs one or several writes, and returns their number.
func (w *worker) write(ctx context.Context) (int, error) {
	if w.random.IntN(restOneOf) == 0 {
		time.Sleep(rest) // lets groups become idle from time to time
	}
	switch n := w.random.IntN(100); {
	case n < 20:
		return w.batch(ctx)
	case n < 35:
		id := w.key()
		if w.ledger.newestValue(id) == 0 {
			return 0, nil
		}
		w.ledger.begin(id, 0, w.disk.Position())
		if err := w.delete(ctx, id); err != nil {
			return 0, fmt.Errorf("deleting record %d: %w", id, err)
		}
		w.ledger.end(id, w.disk.Position())
	default:
		id, value := w.key(), w.values.Add(1)
		w.ledger.begin(id, value, w.disk.Position())
		if err := w.put(ctx, id, data(value)); err != nil {
			return 0, fmt.Errorf("putting record %d: %w", id, err)
		}
		w.ledger.end(id, w.disk.Position())
	}
	return 1, nil
}

func (w *worker) batch(ctx context.Context) (int, error) {
	var items []client.PutItem
	used := map[int64]bool{}
	for range batchItems {
		id := w.key()
		if used[id] {
			continue
		}
		used[id] = true
		value := w.values.Add(1)
		w.ledger.begin(id, value, w.disk.Position())
		items = append(items, client.PutItem{Key: client.Key{ID: id}, Data: data(value)})
	}
	outcomes := w.client.BatchPut(ctx, items)
	at := w.disk.Position()
	for i, o := range outcomes {
		if o.Err != nil {
			return 0, fmt.Errorf("putting record %d in a batch: %w", items[i].Key.ID, o.Err)
		}
		w.ledger.end(items[i].Key.ID, at)
	}
	return len(items), nil
}
