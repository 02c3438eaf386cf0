package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// fetchesMax is the maximum number of a group's messages that may wait for blobs.
const fetchesMax = 4

// blobFetches holds back messages until all blobs to which their entries refer are on this volume. A replica must not
// promise to have an entry whose data it lacks. A blobFetches is safe for concurrent use. Its mutex may be locked while
// a core's mutex is held, but not the other way around.
type blobFetches struct {
	log    store
	logger *slog.Logger
	get    func(ctx context.Context, from uint64, refs []format.BlobRef) error // Options.FetchBlobs
	take   func(m *raftpb.Message) error                                       // passes a complete message to Raft

	ctx    context.Context // cancelled when the replica stops
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu      sync.Mutex            // guards the fields below
	waiting map[uint64]*blobFetch // messages that wait for blobs, by the Index of the message
}

// blobFetch is a message that waits for blobs.
type blobFetch struct {
	from   uint64
	cancel context.CancelCauseFunc
}

// These are the reasons why fetches of blobs end.
var (
	errLeaderGone  = errors.New("the member that they come from does not lead any more")
	errMemberQuiet = errors.New("the member that they come from is silent")
)

func newBlobFetches(opts *Options, log store, take func(m *raftpb.Message) error) *blobFetches {
	f := &blobFetches{
		log: log, get: opts.FetchBlobs, take: take, logger: opts.Logger, waiting: make(map[uint64]*blobFetch),
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// stop aborts all fetches. No fetch may begin afterwards.
func (f *blobFetches) stop() {
	f.cancel()
	f.group.Wait()
}

// begin starts a goroutine that fetches the blobs that a message lacks, and then passes the message to take. If the
// same message already waits, or if too many messages wait, begin drops the message and returns false.
func (f *blobFetches) begin(m *raftpb.Message, missing []format.BlobRef) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting[m.GetIndex()] != nil || len(f.waiting) >= fetchesMax {
		return false
	}
	ctx, cancel := context.WithCancelCause(f.ctx)
	f.waiting[m.GetIndex()] = &blobFetch{from: m.GetFrom(), cancel: cancel}
	f.group.Go(func() { f.run(ctx, m, missing) })
	return true
}

// end aborts the fetches for which the function stay returns false, with the given error. A fetch from a hanging
// member would never end on its own. While it runs, the same entries are not accepted from another leader.
func (f *blobFetches) end(why error, stay func(from uint64) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.waiting {
		if !stay(one.from) {
			one.cancel(why)
		}
	}
}

// run fetches the missing blobs, and then passes m to Raft.
func (f *blobFetches) run(ctx context.Context, m *raftpb.Message, missing []format.BlobRef) {
	err := f.get(ctx, m.GetFrom(), missing)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	f.remove(m.GetIndex())
	if err == nil {
		missing, err = f.log.MissingBlobs(m.GetEntries())
	}
	if err == nil && len(missing) == 0 {
		err = f.take(m)
	}
	if (err != nil || len(missing) > 0) && context.Cause(f.ctx) == nil {
		f.logger.Warn("entries with blobs were not taken: the leader sends them again", "blobs", len(missing), "error", err)
	}
}

func (f *blobFetches) remove(index uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting[index].cancel(nil)
	delete(f.waiting, index)
}
