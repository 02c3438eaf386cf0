package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/test/must"
)

func (r *rig) dialGRPC(ctx context.Context, address string) (net.Conn, error) {
	return r.dial(ctx, "tcp", address)
}

// load holds the workers and their results.
type load struct {
	store   *store
	history history
	begun   time.Time
	keys    [][]int64 // for each group, its records in the order in which they are used
	values  atomic.Uint64
	calls   atomic.Int64 // number of calls on single records
	goal    int64        // number of calls to make; after that, the workers slow down
	failed  failures
	clients []*client.Client
	// damagedUntil is the end of the latest fault that damages data on a disk. While such a fault lasts, it is the
	// largest possible time. A call that began before damagedUntil may return an error about bad bytes.
	damagedUntil atomic.Int64

	halt chan struct{} // closed when no new call may begin
	ctx  context.Context
	wait sync.WaitGroup
}

// At any time, keysAtOnce records of each group are in use. After every keyCalls calls, a new record replaces one of
// them.
const (
	keysAtOnce = 3
	keyCalls   = 250
	batchItems = 12
)

func newLoad(s *store, ctx context.Context, goal int64) *load {
	l := &load{store: s, begun: time.Now(), ctx: ctx, goal: goal, halt: make(chan struct{}),
		keys: make([][]int64, s.cfg.groups)}
	hash := routing.Routing{Mode: routing.Hash, Groups: s.cfg.groups}
	for id, found := int64(0), 0; found < 2000*s.cfg.groups; id++ {
		if g := hash.GroupOf(id); len(l.keys[g]) < 2000 {
			l.keys[g] = append(l.keys[g], id)
			found++
		}
	}
	for i := range s.cfg.workers {
		c, err := client.New(client.Config{
			Addresses: []string{s.gateways[i%2].machine.address + ":7600", s.gateways[(i+1)%2].machine.address + ":7600"},
			Direct:    i%2 == 1, DialOptions: []grpc.DialOption{grpc.WithContextDialer(s.dialGRPC)},
		})
		must.OK(s.t, err)
		s.t.Cleanup(func() { c.Close() })
		l.clients = append(l.clients, c)
		w := &worker{load: l, number: i, client: c, random: rand.New(rand.NewPCG(uint64(i), s.cfg.seed)),
			known: map[int64]uint64{}}
		l.wait.Go(w.work)
	}
	return l
}

func (l *load) now() int64 { return int64(time.Since(l.begun)) }

// end waits until the workers have finished the calls that they have begun.
func (l *load) end() {
	close(l.halt)
	l.wait.Wait()
}

// failures are the calls that failed, each with its time.
type failures struct {
	mu  sync.Mutex
	all []failure
}

type failure struct {
	begin, end int64
	what       string
}

func (f *failures) add(begin, end int64, err error) {
	what := "other"
	var e *client.Error
	if errors.As(err, &e) {
		if what = e.Reason; what == "" {
			what = e.Code.String()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, failure{begin, end, what})
}

type worker struct {
	load   *load
	number int
	client *client.Client
	random *rand.Rand
	known  map[int64]uint64 // versions that this worker has seen
}

func (w *worker) work() {
	for {
		pause := w.random.Int64N(int64(20 * time.Millisecond))
		if w.load.calls.Load() > w.load.goal {
			pause *= 4
		}
		select {
		case <-w.load.halt:
			return
		case <-w.load.ctx.Done():
			return
		case <-time.After(time.Duration(pause)):
		}
		switch n := w.random.IntN(20); {
		case n < 14:
			w.finish(w.next())
			w.load.calls.Add(1)
		case n < 17:
			w.putBatch()
		default:
			w.getMany()
		}
	}
}

// pickKey picks one of the records that are in use.
func (w *worker) pickKey() int64 {
	groups := len(w.load.keys)
	of := w.load.keys[w.random.IntN(groups)]
	from := int(w.load.calls.Load()) / (keyCalls * groups)
	return of[(from+w.random.IntN(keysAtOnce))%len(of)]
}

// call is an operation that a worker performs. It may take several attempts, all of which have the same request id.
type call struct {
	operation
	requestID []byte
	unknown   bool // an earlier try may have been applied
}

func (w *worker) next() *call {
	c := &call{operation: operation{worker: w.number, key: w.pickKey()}, requestID: client.NewRequestID()}
	switch n := w.random.IntN(20); {
	case n < 6:
		c.verb = get
	case n < 8:
		c.verb = del
	case n < 9:
		c.verb, c.ifVersion = del, w.known[c.key]
	case n < 11:
		c.verb, c.ifAbsent = put, true
	case n < 15:
		c.verb, c.ifVersion = put, w.known[c.key]
	default:
		c.verb = put
	}
	if c.verb == put {
		c.value = w.load.values.Add(1)
	}
	return c
}

// data returns the bytes that encode a value. They depend only on the value.
func data(value uint64) []byte {
	size := 8 + value*2654435761%1500
	switch {
	case value%3000 == 7:
		size = 1_200_000 // large enough for a blob
	case value%100 == 3:
		size = 60_000
	}
	out := make([]byte, size)
	binary.LittleEndian.PutUint64(out, value)
	for i := 8; i < len(out); i++ {
		out[i] = byte(value>>(i%8*8)) ^ byte(i*7)
	}
	return out
}

// valueOf returns the value that the bytes encode. The bytes must be exactly those that data returns for this value.
func valueOf(b []byte) (uint64, error) {
	if len(b) < 8 {
		return 0, fmt.Errorf("%d bytes, which nobody wrote", len(b))
	}
	value := binary.LittleEndian.Uint64(b)
	if string(data(value)) != string(b) {
		return 0, fmt.Errorf("%d bytes that say they are value %x, and are not", len(b), value)
	}
	return value, nil
}

// finish retries a call until it is answered or definitely refused. If an earlier attempt may have been applied,
// finish sometimes gives up instead and leaves the outcome of the call unknown.
func (w *worker) finish(c *call) {
	c.begin = w.load.now()
	w.retry(c, w.try(c))
}

// retry retries a call whose first try has failed with the given error.
func (w *worker) retry(c *call, err error) {
	for tries := 1; err != nil; tries++ {
		c.unknown = c.unknown || errors.Is(err, client.ErrOutcomeUnknown)
		plain := c.verb != get && c.ifVersion == 0 && !c.ifAbsent
		switch {
		case c.verb != get && !c.unknown:
			return // the call was definitely not applied, so the history does not contain it
		case c.verb == get:
			return
		case plain && w.random.IntN(5) == 0 || w.load.ctx.Err() != nil:
			c.end = unknownEnd
			if !plain {
				w.load.history.exclude(c.key)
			}
			w.load.history.add(c.operation)
			return
		}
		select {
		case <-time.After(time.Duration(w.random.Int64N(int64(100 * time.Millisecond)))):
		case <-w.load.ctx.Done():
		}
		err = w.try(c)
	}
	w.known[c.key] = c.version
	w.load.history.add(c.operation)
}

// try makes one attempt at a call. It returns nil if it has stored the response in the operation.
func (w *worker) try(c *call) error {
	timeout := time.Second + time.Duration(w.random.Int64N(int64(9*time.Second)))
	ctx, cancel := context.WithTimeout(w.load.ctx, timeout)
	defer cancel()
	key := client.Key{ID: c.key}
	begin := w.load.now()
	var err error
	switch c.verb {
	case get:
		var got client.Record
		got, err = w.client.Get(ctx, key, &client.GetOptions{BytesMax: 8 << 20})
		err = w.recordGet(c, got, err)
	case put:
		var result client.PutResult
		result, err = w.client.Put(ctx, key, data(c.value), c.putOptions())
		err = w.recordWrite(c, result.Version, err)
	case del:
		var result client.DeleteResult
		options := &client.DeleteOptions{RequestID: c.requestID}
		if c.ifVersion != 0 {
			options.IfVersion = cursor.Version(c.ifVersion)
		}
		result, err = w.client.Delete(ctx, key, options)
		c.existed = result.Existed
		err = w.recordWrite(c, result.Version, err)
	}
	c.end = w.load.now()
	if err != nil {
		w.load.failed.add(begin, c.end, err)
	}
	return err
}

func (c *call) putOptions() *client.PutOptions {
	options := &client.PutOptions{RequestID: c.requestID, IfAbsent: c.ifAbsent}
	if c.ifVersion != 0 {
		options.IfVersion = cursor.Version(c.ifVersion)
	}
	return options
}

// recordGet records the response to a read. It returns an error if the read failed.
func (w *worker) recordGet(c *call, got client.Record, err error) error {
	if errors.Is(err, client.ErrNotFound) {
		return nil
	}
	if err != nil {
		w.mustNotBe(c, err)
		return err
	}
	if c.seen, err = valueOf(got.Data); err != nil {
		w.load.history.violate("%v: %v", c.operation, err)
	}
	c.version = w.version(c, got.Version)
	return nil
}

// recordWrite records the response to a write. It returns an error if the write failed.
func (w *worker) recordWrite(c *call, version string, err error) error {
	var e *client.Error
	errors.As(err, &e)
	switch {
	case errors.Is(err, client.ErrExists):
		c.refused, version = exists, e.Version
	case errors.Is(err, client.ErrVersionMismatch):
		c.refused, version = mismatch, e.Version
	case err != nil:
		w.mustNotBe(c, err)
		return err
	}
	c.version = w.version(c, version)
	return nil
}

// version parses a version as a number. Later versions of a record must have greater numbers.
func (w *worker) version(c *call, version string) uint64 {
	if version == "" {
		return 0
	}
	n, err := cursor.ParseVersion(version)
	if err != nil {
		w.load.history.violate("%v: version %q: %v", c.operation, version, err)
	}
	return n
}

// mustNotBe records a violation if an attempt fails with an error that no fault of this test can cause.
func (w *worker) mustNotBe(c *call, err error) {
	if errors.Is(err, client.ErrDataLoss) && c.begin <= w.load.damagedUntil.Load() {
		return
	}
	for _, bad := range []error{client.ErrDataLoss, client.ErrInvalid, client.ErrGroupNotFound, client.ErrTooLarge} {
		if errors.Is(err, bad) {
			w.load.history.violate("%v: %v", c.operation, err)
			return
		}
	}
	for _, fine := range []error{
		client.ErrUnavailable, client.ErrOutcomeUnknown, client.ErrDiskFull, client.ErrOverloaded, client.ErrGroupFailed,
		context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, fine) {
			return
		}
	}
	var e *client.Error
	if errors.As(err, &e) && (e.Reason == reason.NotLeader || e.Reason == reason.WrongShard) {
		return // the client retried until the call's timeout
	}
	w.load.history.violate("%v: an error of no kind that a client expects: %v", c.operation, err)
}

// newBatch returns calls for one batch, each on a different record.
func (w *worker) newBatch() (calls []*call) {
	used := map[int64]bool{}
	for range batchItems {
		c := &call{operation: operation{worker: w.number, key: w.pickKey()}, requestID: client.NewRequestID()}
		if !used[c.key] {
			used[c.key] = true
			calls = append(calls, c)
		}
	}
	return calls
}

// putBatch writes a batch with BatchPut. Each put of the batch that gets no response is then retried as a single call.
func (w *worker) putBatch() {
	calls := w.newBatch()
	var items []client.PutItem
	begin := w.load.now()
	for i, c := range calls {
		c.verb, c.begin, c.value = put, begin, w.load.values.Add(1)
		if i%3 == 0 {
			c.ifVersion = w.known[c.key]
		}
		items = append(items, client.PutItem{Key: client.Key{ID: c.key}, Data: data(c.value), Options: *c.putOptions()})
	}
	ctx, cancel := context.WithTimeout(w.load.ctx, 10*time.Second)
	outcomes := w.client.BatchPut(ctx, items)
	cancel()
	end := w.load.now()
	for i, c := range calls {
		c.end = end
		err := w.recordWrite(c, outcomes[i].Version, outcomes[i].Err)
		if err != nil {
			w.load.failed.add(begin, end, err)
		}
		w.retry(c, err)
	}
	w.load.calls.Add(int64(len(calls)))
}

func (w *worker) getMany() {
	calls := w.newBatch()
	var items []client.GetItem
	begin := w.load.now()
	for _, c := range calls {
		c.begin = begin
		items = append(items, client.GetItem{Key: client.Key{ID: c.key}})
	}
	ctx, cancel := context.WithTimeout(w.load.ctx, 10*time.Second)
	outcomes := w.client.BatchGet(ctx, items)
	cancel()
	end := w.load.now()
	for i, c := range calls {
		c.end = end
		err := w.recordGet(c, outcomes[i].Record, outcomes[i].Err)
		if err != nil {
			w.load.failed.add(begin, end, err)
		}
		w.retry(c, err)
	}
	w.load.calls.Add(int64(len(calls)))
}

// usedIDs returns the ids of all records that any call may have touched.
func (l *load) usedIDs() (ids []int64) {
	last := int(l.calls.Load())/(keyCalls*len(l.keys)) + keysAtOnce + 1
	for _, of := range l.keys {
		ids = append(ids, of[:min(last, len(of))]...)
	}
	return ids
}

// readAll reads every record one last time and adds these reads to the history, so that judge finds acknowledged
// writes that are missing.
func (l *load) readAll() (newest map[int64]uint64, err error) {
	w := &worker{load: l, number: len(l.clients), client: l.clients[0], random: rand.New(rand.NewPCG(1, 1)),
		known: map[int64]uint64{}}
	newest = map[int64]uint64{}
	for _, id := range l.usedIDs() {
		c := &call{operation: operation{worker: w.number, key: id, begin: l.now()}}
		err := await("reading record "+strconv.FormatInt(id, 10), time.Minute, func() error { return w.try(c) })
		if err != nil {
			return nil, err
		}
		l.history.add(c.operation)
		newest[id] = c.version
	}
	return newest, nil
}
