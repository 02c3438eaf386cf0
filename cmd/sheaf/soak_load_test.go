package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
)

// soakSizes are the sizes of records. A record always keeps its size, so that the amount of live data is known.
var soakSizes = []int{10, 100, 1000, 10_000, 10_000, 10_000, 100_000, 1 << 20}

const (
	soakBlob = 3 << 20 // larger than the other data of a group
	soakIDs  = 41      // number of ids for each writer; the record with the first id is a blob
	// Bytes per second that a writer writes; limited because open scans keep overwritten versions on the disk.
	soakPace    = 1 << 20
	soakCallMax = time.Minute
	// Time limit for reading a blob, which fails while hanging readers use up the allowance for streams.
	soakReadMax  = 2 * time.Second
	soakStalled  = 1000
	soakConns    = 10
	soakPerBatch = 100
)

// soakWriter overwrites, deletes and reads a set of ids, one call after another. The client gives each write a request
// id.
type soakWriter struct {
	c      *client.Client
	random *rand.Rand
	first  int64
	known  map[int64]uint64 // maps an id to the seed of its last acknowledged write; 0 if the record does not exist
	writes *atomic.Int64    // number of acknowledged writes
	most   time.Duration    // longest duration of a call
}

func (w *soakWriter) size(id int64) int {
	if n := int(id - w.first); n > 0 {
		return soakSizes[n%len(soakSizes)]
	}
	return soakBlob
}

// run writes until ctx ends. Every call must succeed: it may take up to a minute, and a killed process is back within
// seconds.
func (w *soakWriter) run(ctx context.Context) error {
	for ctx.Err() == nil {
		id := w.first + w.random.Int64N(soakIDs)
		begin := time.Now()
		if err := w.one(id); err != nil {
			return fmt.Errorf("record %d, after %v: %w", id, time.Since(begin).Round(time.Millisecond), err)
		}
		w.most = max(w.most, time.Since(begin))
		if w.known[id] != 0 {
			time.Sleep(time.Duration(w.size(id)) * time.Second / soakPace)
		}
	}
	return nil
}

func (w *soakWriter) one(id int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), soakCallMax)
	defer cancel()
	switch w.random.IntN(8) {
	case 0:
		return w.checkIfAllowed(ctx, id)
	case 1:
		if _, err := w.c.Delete(ctx, client.Key{ID: id}, nil); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		w.known[id] = 0
	default:
		seed := w.random.Uint64() | 1
		if _, err := w.c.Put(ctx, client.Key{ID: id}, pattern(seed, w.size(id)), nil); err != nil {
			return fmt.Errorf("put: %w", err)
		}
		w.known[id] = seed
	}
	w.writes.Add(1)
	return nil
}

// checkIfAllowed reads an id and checks the result. A read of a blob may be refused while other streams use up the
// allowance for streams. checkIfAllowed accepts the refusal and does not try again.
func (w *soakWriter) checkIfAllowed(ctx context.Context, id int64) error {
	if w.size(id) != soakBlob {
		return w.check(ctx, id)
	}
	ctx, cancel := context.WithTimeout(ctx, soakReadMax)
	defer cancel()
	err := w.check(ctx, id)
	for _, refused := range []error{client.ErrOverloaded, client.ErrUnavailable, context.DeadlineExceeded} {
		if errors.Is(err, refused) {
			return nil
		}
	}
	return err
}

func (w *soakWriter) check(ctx context.Context, id int64) error {
	got, err := w.c.Get(ctx, client.Key{ID: id}, nil)
	switch seed := w.known[id]; {
	case seed == 0:
		if !errors.Is(err, client.ErrNotFound) {
			return fmt.Errorf("it was deleted, or never written: %w, %d bytes", err, len(got.Data))
		}
	case err != nil:
		return fmt.Errorf("get: %w", err)
	case !bytes.Equal(got.Data, pattern(seed, w.size(id))):
		return fmt.Errorf("its %d bytes are not those that were acknowledged last", len(got.Data))
	}
	return nil
}

// live returns the total size of the acknowledged records, each with its frame, attributes and key.
func (w *soakWriter) live() (bytes int64) {
	for id, seed := range w.known {
		if bytes += 90; seed != 0 {
			bytes += int64(w.size(id))
		}
	}
	return bytes
}

// soakLoad is a set of running writers.
type soakLoad struct {
	s       *soakStore
	writers []*soakWriter
	probe   *client.Client
	writes  atomic.Int64
	failed  atomic.Pointer[error]
	stop    context.CancelFunc
	wait    sync.WaitGroup
}

// load starts writers. Two of three writers call the gateway, and the others call the shard directly.
func (s *soakStore) load() *soakLoad {
	ctx, stop := context.WithCancel(context.Background())
	l := &soakLoad{s: s, stop: stop}
	s.t.Cleanup(l.end)
	var err error
	l.probe, err = client.New(client.Config{Addresses: []string{s.gateway.server}, Direct: true, CallTimeout: soakCallMax})
	must(s.t, err)
	s.t.Cleanup(func() { l.probe.Close() })
	for i := range 6 {
		c, err := client.New(client.Config{Addresses: []string{s.gateway.server}, Direct: i%3 == 2, CallTimeout: soakCallMax})
		must(s.t, err)
		s.t.Cleanup(func() { c.Close() })
		w := &soakWriter{c: c, random: rand.New(rand.NewPCG(uint64(i), 5)), first: int64(1000 * i), known: map[int64]uint64{},
			writes: &l.writes}
		l.writers = append(l.writers, w)
		l.wait.Go(func() {
			if err := w.run(ctx); err != nil {
				l.failed.CompareAndSwap(nil, &err)
			}
		})
	}
	return l
}

// awaitMore waits until n more writes have been acknowledged, but at least for the given time.
func (l *soakLoad) awaitMore(n int64, least time.Duration) {
	l.s.t.Helper()
	begin, before := time.Now(), l.writes.Load()
	for l.writes.Load() < before+n || time.Since(begin) < least {
		if err := l.failed.Load(); err != nil {
			l.s.t.Fatalf("a call failed: %v\nshard: %s\ngateway: %s", *err, lastLines(l.s.shard), lastLines(l.s.gateway))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// rate returns how many puts of 1 KB the shard acknowledges per second to a few callers that write as fast as they can.
func (l *soakLoad) rate() float64 {
	ctx, cancel := context.WithCancel(context.Background())
	var done atomic.Int64
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for n := int64(0); ctx.Err() == nil; n++ {
				if _, err := l.probe.Put(ctx, client.Key{ID: int64(100_000*(i+1)) + n%64}, pattern(uint64(n), 1000),
					nil); err == nil {
					done.Add(1)
				}
			}
		})
	}
	begin := time.Now()
	l.awaitMore(0, 3*time.Second)
	cancel()
	wait.Wait()
	return float64(done.Load()) / time.Since(begin).Seconds()
}

func lastLines(p *process) string {
	text := p.stderr.String()
	return text[max(0, len(text)-4000):]
}

func (l *soakLoad) end() {
	l.stop()
	l.wait.Wait()
}

// stall opens many streams, of every method that streams its answers, and never reads an answer. Half of the streams
// go to the shard, and half to the gateway.
func (s *soakStore) stall() (goAway func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var conns []*grpc.ClientConn
	for i := range soakConns {
		to := s.shard.server
		if i%2 == 1 {
			to = s.gateway.server
		}
		// By default, gRPC's client keeps enlarging its buffer for data that the program does not read. Fixed windows
		// prevent this.
		conn, err := grpc.NewClient(to, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithInitialWindowSize(64<<10),
			grpc.WithInitialConnWindowSize(64<<10))
		must(s.t, err)
		conns = append(conns, conn)
	}
	batch := &recordv1.BatchGetRequest{}
	for i := range soakPerBatch {
		batch.Gets = append(batch.Gets, &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: int64(1000*(i%6) + i%soakIDs)}})
	}
	for i := range soakStalled {
		c := recordv1.NewRecordServiceClient(conns[i%soakConns])
		group := fmt.Sprint(i / 7 % soakGroups)
		var err error
		switch i / soakConns % 4 {
		case 0:
			_, err = c.Scan(ctx, &recordv1.ScanRequest{Group: group})
		case 1:
			_, err = c.BatchGet(ctx, batch)
		case 2:
			_, err = c.Watch(ctx, &recordv1.WatchRequest{Group: group})
		case 3:
			_, err = c.Download(ctx, &recordv1.DownloadRequest{Key: &recordv1.RecordKey{Id: int64(1000 * (i % 6))}})
		}
		if err != nil {
			s.t.Logf("stream %d: %v", i, err) // expected while a process is starting
		}
	}
	return func() {
		cancel()
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
}
