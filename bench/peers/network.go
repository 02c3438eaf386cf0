package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/peers/store"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
)

// server is a store that runs as a separate process.
type server struct {
	name     string
	settings string
	missing  string // reason why the server cannot be measured; empty if it can
	start    func(ctx context.Context, dir string, callers int) (remote, error)
}

// remote is a running server. Its methods are safe for concurrent use.
type remote interface {
	// put stores records durably. The argument way is the name of a way to put. Ways with the field batch take many
	// records per call, and the others take one.
	put(ctx context.Context, way string, records []store.Record) error
	get(ctx context.Context, id int64) ([]byte, error)
	io.Closer
}

// way is one way to call a server, such as a unary put or a batch put.
type way struct {
	server string
	name   string
	batch  bool // a call takes many records
	get    bool
}

func (w way) key() string { return w.server + ", " + w.name }

// These are all ways to call the servers. The list ways has them in the order of the report's rows.
var (
	sheafPut      = way{server: "Sheaf", name: "put, unary, direct"}
	sheafBatchPut = way{server: "Sheaf", name: "put, BatchPut", batch: true}
	sheafGet      = way{server: "Sheaf", name: "get, direct client", get: true}
	etcdPut       = way{server: "etcd", name: "put"}
	etcdGet       = way{server: "etcd", name: "get, serializable", get: true}
	redisPut      = way{server: "Redis", name: "put, SET"}
	redisPipe     = way{server: "Redis", name: "put, pipelined SET", batch: true}
	redisGet      = way{server: "Redis", name: "get, GET", get: true}
	ways          = []way{sheafPut, sheafBatchPut, sheafGet, etcdPut, etcdGet, redisPut, redisPipe, redisGet}
)

// batchOf returns how many records of the given size one call of a batch way has.
func batchOf(size int) int { return max(1, min(100, 256<<10/size)) }

// network compares the servers with records of the given size and the given number of callers. It returns rates by
// way.key.
func (b *bench) network(ctx context.Context, size, callers int) (found *rounds.Set, err error) {
	found = rounds.New()
	var remotes []remote
	dir, err := os.MkdirTemp(b.dir, "network-")
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, r := range remotes {
			err = errors.Join(err, r.Close())
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	cells := make([]rounds.Cell, 0, len(ways))
	pool := randomPool()
	for _, s := range b.servers() {
		var r remote
		if s.missing == "" {
			if r, err = b.startLoaded(ctx, s, filepath.Join(dir, strings.ToLower(s.name)), size, callers); r != nil {
				remotes = append(remotes, r)
			}
			if err != nil {
				return nil, err
			}
		}
		for _, w := range ways {
			if w.server != s.name {
				continue
			}
			if s.missing != "" {
				found.Miss(w.key(), s.missing)
			}
			cells = append(cells, rounds.One(w.key(), func() (float64, error) { return b.call(ctx, r, w, pool, size, callers) }))
		}
	}
	return found, found.Measure(ctx, cells, rounds.Options{Rounds: b.opts.rounds, Round: func(n int) {
		b.say("network, %d B, %d callers: round %d of %d", size, callers, n, b.opts.rounds)
	}})
}

// startLoaded starts a server, and stores the records that will be read.
func (b *bench) startLoaded(ctx context.Context, s server, dir string, size, callers int) (remote, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	r, err := s.start(ctx, dir, callers)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", s.name, err)
	}
	pool, batch := randomPool(), int64(batchOf(size))
	err = drive.Shared(8, (b.opts.netRecords+batch-1)/batch, func(_ int, i int64) error {
		var records []store.Record
		for id := i * batch; id < min((i+1)*batch, b.opts.netRecords); id++ {
			records = append(records, store.Record{ID: id, Data: makeData(pool, id, 1, size)})
		}
		return r.put(ctx, preloadWay(s.name), records)
	})
	if err != nil {
		err = fmt.Errorf("%s: storing what is read: %w", s.name, err)
	}
	return r, err
}

// preloadWay returns the name of the way to put that stores records fastest. It is used before gets are measured.
func preloadWay(server string) string {
	for _, w := range ways {
		if w.server == server && w.batch {
			return w.name
		}
	}
	return etcdPut.name
}

// call makes calls with the given number of callers for b.opts.time, and returns records per second.
func (b *bench) call(ctx context.Context, r remote, w way, pool []byte, size, callers int) (float64, error) {
	batch := 1
	if w.batch {
		batch = batchOf(size)
	}
	load, err := drive.Callers(callers, b.opts.time, func(int, int64) error {
		id := rand.Int64N(b.opts.netRecords)
		if w.get {
			data, err := r.get(ctx, id)
			if err == nil && len(data) != size {
				err = fmt.Errorf("record %d has %d bytes, not %d", id, len(data), size)
			}
			return err
		}
		records := make([]store.Record, 0, batch)
		for i := range int64(batch) {
			at := (id + i) % b.opts.netRecords
			records = append(records, store.Record{ID: at, Data: makeData(pool, at, id, size)})
		}
		return r.put(ctx, w.name, records)
	})
	return load.PerSecond * float64(batch), err
}

func networkRatios(size, callers int, found *rounds.Set) (ratios []result.Ratio) {
	for _, c := range []struct {
		ours, peer way
		target     float64
		note       string
	}{
		{sheafBatchPut, redisPut, 1, ""},
		{sheafPut, etcdPut, 2, ""},
		{sheafGet, etcdGet, 1.2, ""},
		{sheafPut, redisPut, 0, "both one record a call"},
		{sheafBatchPut, redisPipe, 0, fmt.Sprintf("both %d records a call", batchOf(size))},
		{sheafGet, redisGet, 0, ""},
	} {
		r := result.Ratio{
			Labels: result.Labels("what", c.ours.name, "against", c.peer.key(), "records", bytesName(size),
				"callers", fmt.Sprint(callers)),
			Unit: "/s", Ours: found.Rate(c.ours.key()), Limit: found.Rate(c.peer.key()), Target: c.target, Note: c.note,
			Missed: found.Missing(c.ours.key()) + found.Missing(c.peer.key()),
		}
		ratios = append(ratios, r)
	}
	return ratios
}

// startServer starts a server that exits with this program.
func startServer(ctx context.Context, dir, name string, args ...string) (*drive.Process, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	return drive.Start(cmd, syscall.SIGKILL)
}

// answers calls try() until the server responds. It returns an error if the server has exited.
func answers(ctx context.Context, p *drive.Process, try func(context.Context) error) error {
	return drive.Eventually(ctx, "it answers", func() error {
		attempt, done := context.WithTimeout(ctx, 2*time.Second)
		defer done()
		return try(attempt)
	}, p)
}
