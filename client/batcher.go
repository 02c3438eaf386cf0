package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// BatcherConfig configures NewBatcher. A zero field takes its default.
type BatcherConfig struct {
	// BytesMax bounds the number of bytes that are waiting or in flight. Put blocks while this limit is reached. The
	// default is 32 MiB.
	BytesMax int64
	// FlushBytes and FlushItems are the sizes at which a batch is sent immediately. The defaults are 1 MiB and 512
	// items.
	FlushBytes int64
	FlushItems int
	// FlushInterval is the maximum time that a smaller batch waits for more items. The default is 5 ms.
	FlushInterval time.Duration
	// Lanes is the number of batches in flight at a time. Puts of one key share a lane and keep their order. The
	// default is 4.
	Lanes int
	// Timeout bounds one batch. The default is the client's CallTimeout.
	Timeout time.Duration
}

func (b *BatcherConfig) setDefaults(c *Client) error {
	b.BytesMax = cmp.Or(b.BytesMax, 32<<20)
	b.FlushBytes = cmp.Or(b.FlushBytes, 1<<20)
	b.FlushItems = cmp.Or(b.FlushItems, 512)
	b.FlushInterval = cmp.Or(b.FlushInterval, 5*time.Millisecond)
	b.Lanes = cmp.Or(b.Lanes, 4)
	b.Timeout = cmp.Or(b.Timeout, c.cfg.CallTimeout)
	if b.BytesMax < 0 || b.FlushBytes < 0 || b.FlushItems < 0 || b.FlushInterval < 0 || b.Lanes < 0 || b.Timeout < 0 {
		return fmt.Errorf("sheaf: a field of the batcher is negative: %+v", *b)
	}
	return nil
}

// itemBytes is added to the size of an item's data. It stands for the memory that the item itself takes.
const itemBytes = 128

// Batcher collects puts into batches. It is safe for concurrent use.
type Batcher struct {
	client *Client
	cfg    BatcherConfig
	lanes  []*batchLane
	ctx    context.Context //nolint:containedctx // the context of the lanes' goroutines
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond // signalled when bytes, closed, or the field ended of a lane changes
	bytes   int64      // number of data bytes that are waiting or in flight
	closed  bool
}

// batchLane is a queue with one batch in flight.
type batchLane struct {
	wake chan struct{}

	// The fields below are guarded by Batcher.mu.
	items []PutItem
	done  []func(PutResult, error) // callback for each item, which may be nil
	bytes int64
	full  bool  // the batch must be sent immediately
	added int64 // number of puts added since the start
	ended int64 // number of puts that have ended since the start; they end in the order in which they were added
}

// NewBatcher creates a Batcher. The caller must close it.
func (c *Client) NewBatcher(cfg BatcherConfig) (*Batcher, error) {
	if err := cfg.setDefaults(c); err != nil {
		return nil, err
	}
	b := &Batcher{client: c, cfg: cfg}
	b.changed = sync.NewCond(&b.mu)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	for range cfg.Lanes {
		lane := &batchLane{wake: make(chan struct{}, 1)}
		b.lanes = append(b.lanes, lane)
		b.done.Go(func() { b.run(lane) })
	}
	return b, nil
}

// Put adds a put. Another goroutine calls the function done with the outcome. The function must not block, and may be
// nil. If BytesMax is reached, Put waits, but only until ctx is done. ctx does not limit the write itself. The caller
// must not change the data before done is called.
func (b *Batcher) Put(ctx context.Context, item PutItem, done func(PutResult, error)) error {
	size := int64(len(item.Data)) + itemBytes
	defer b.wakeAtEnd(ctx)()
	lane := b.lanes[uint64(item.Key.ID)*0x9e3779b97f4a7c15>>32%uint64(len(b.lanes))]
	b.mu.Lock()
	defer b.mu.Unlock()
	// A put larger than BytesMax is accepted once no other put is waiting or in flight.
	for !b.closed && ctx.Err() == nil && b.bytes > 0 && b.bytes+size > b.cfg.BytesMax {
		b.hurry()
		b.changed.Wait()
	}
	if b.closed {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return newError("put "+item.Key.String(), err, false)
	}
	b.bytes += size
	lane.added++
	lane.items, lane.done = append(lane.items, item), append(lane.done, done)
	lane.bytes += size
	lane.full = lane.full || lane.bytes >= b.cfg.FlushBytes || len(lane.items) >= b.cfg.FlushItems
	if lane.full || len(lane.items) == 1 {
		lane.signal()
	}
	return nil
}

// wakeAtEnd wakes the goroutines that wait for b.changed when ctx is done, unless the function stop was called before.
func (b *Batcher) wakeAtEnd(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.changed.Broadcast()
	})
}

func (l *batchLane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// hurry tells every lane to send its items without further delay. The caller holds b.mu.
func (b *Batcher) hurry() {
	for _, lane := range b.lanes {
		if len(lane.items) > 0 {
			lane.full = true
			lane.signal()
		}
	}
}

// Flush sends all waiting puts. It returns when every put that was added before the call has an outcome, or when ctx is
// done.
func (b *Batcher) Flush(ctx context.Context) error {
	defer b.wakeAtEnd(ctx)()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hurry()
	earlier := make([]int64, len(b.lanes))
	for i, lane := range b.lanes {
		earlier[i] = lane.added
	}
	for i, lane := range b.lanes {
		for lane.ended < earlier[i] {
			if err := ctx.Err(); err != nil {
				return newError("flush", err, true)
			}
			b.changed.Wait()
		}
	}
	return nil
}

// Close refuses further puts, flushes the waiting ones, and stops the batcher. If ctx is done first, puts in flight are
// aborted. Their outcome is ErrOutcomeUnknown or ErrUnavailable.
func (b *Batcher) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.changed.Broadcast()
	b.mu.Unlock()
	err := b.Flush(ctx)
	b.cancel()
	b.done.Wait()
	return err
}

// run sends a lane's batches, one after another.
func (b *Batcher) run(lane *batchLane) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-lane.wake:
		case <-b.ctx.Done():
			b.send(lane) // fails the puts for which Close could not wait
			return
		}
		b.mu.Lock()
		full := lane.full
		b.mu.Unlock()
		if !full {
			timer.Reset(b.cfg.FlushInterval)
			select {
			case <-timer.C:
			case <-lane.wake: // the batch is full, or must be sent now
			case <-b.ctx.Done():
			}
			timer.Stop()
		}
		b.send(lane)
	}
}

// send sends all items of a lane as one batch and reports their outcomes.
func (b *Batcher) send(lane *batchLane) {
	b.mu.Lock()
	items, done, bytes := lane.items, lane.done, lane.bytes
	lane.items, lane.done, lane.bytes, lane.full = nil, nil, 0, false
	b.mu.Unlock()
	if len(items) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(b.ctx, b.cfg.Timeout, errors.New("the batch timed out"))
	outcomes := b.client.BatchPut(ctx, items)
	cancel()
	for i, outcome := range outcomes {
		if done[i] != nil {
			done[i](outcome.PutResult, outcome.Err)
		}
	}
	b.mu.Lock()
	b.bytes -= bytes
	lane.ended += int64(len(items))
	b.changed.Broadcast()
	b.mu.Unlock()
}
