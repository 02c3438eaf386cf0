package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sheaf.dev/sheaf/bench/peers/store"
	"sheaf.dev/sheaf/bench/result"
)

// server is a store that runs as a process of its own, with what its callers do.
type server struct {
	name     string
	settings string
	missing  string // why it is not there
	start    func(ctx context.Context, dir string, callers int) (remote, error)
}

// remote is a started server. Its methods are safe for concurrent use.
type remote interface {
	// put stores records; durable when it returns. Which ways there are, and how many records each call takes, says
	// ways.
	put(ctx context.Context, way string, records []store.Record) error
	get(ctx context.Context, id int64) ([]byte, error)
	io.Closer
}

// way is how a server is called.
type way struct {
	server string
	name   string
	batch  bool // many records by a call
	get    bool
}

// The ways, in the order of their rows.
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

// batchOf is how many records one call with a batch takes.
func batchOf(size int) int { return max(1, min(100, 256<<10/size)) }

// network compares the servers with records of one size and so many callers: rates by way.
func (b *bench) network(ctx context.Context, size, callers int) (rates map[way][]float64, missing map[string]string, err error) {
	rates, missing = map[way][]float64{}, map[string]string{}
	remotes := map[string]remote{}
	dir, err := os.MkdirTemp(b.dir, "network-")
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		for _, r := range remotes {
			err = errors.Join(err, r.Close())
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	for _, s := range b.servers() {
		if missing[s.name] = s.missing; s.missing != "" {
			continue
		}
		at := filepath.Join(dir, strings.ToLower(s.name))
		if err := os.Mkdir(at, 0o755); err != nil {
			return nil, nil, err
		}
		r, err := s.start(ctx, at, callers)
		if err != nil {
			return nil, nil, fmt.Errorf("starting %s: %w", s.name, err)
		}
		remotes[s.name] = r
		if err := b.preload(ctx, r, s.name, size); err != nil {
			return nil, nil, fmt.Errorf("%s: storing what is read: %w", s.name, err)
		}
	}
	pool := randomPool()
	for round := range b.opts.rounds {
		for i := range ways {
			w := ways[(i+round)%len(ways)]
			r := remotes[w.server]
			if r == nil {
				continue
			}
			rate, err := b.drive(ctx, r, w, pool, size, callers)
			if err != nil {
				return nil, nil, fmt.Errorf("%s, %s: %w", w.server, w.name, err)
			}
			rates[w] = append(rates[w], rate)
		}
		b.say("network, %d B, %d callers: round %d of %d", size, callers, round+1, b.opts.rounds)
	}
	return rates, missing, nil
}

// preload stores the records that are read.
func (b *bench) preload(ctx context.Context, r remote, name string, size int) error {
	pool, batch := randomPool(), int64(batchOf(size))
	var next atomic.Int64
	return store.Parallel(8, func(int) error {
		for {
			from := next.Add(batch) - batch
			if from >= b.opts.netRecords {
				return nil
			}
			var records []store.Record
			for id := from; id < min(from+batch, b.opts.netRecords); id++ {
				records = append(records, store.Record{ID: id, Data: makeData(pool, id, 1, size)})
			}
			if err := r.put(ctx, preloadWay(name), records); err != nil {
				return err
			}
		}
	})
}

// preloadWay is the quickest way to put.
func preloadWay(server string) string {
	for _, w := range ways {
		if w.server == server && w.batch {
			return w.name
		}
	}
	return etcdPut.name
}

// drive calls from many goroutines for a time and gives records per second.
func (b *bench) drive(ctx context.Context, r remote, w way, pool []byte, size, callers int) (float64, error) {
	var n atomic.Int64
	begin := time.Now()
	err := store.Parallel(callers, func(int) error {
		random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
		batch := 1
		if w.batch {
			batch = batchOf(size)
		}
		for first := true; first || time.Since(begin) < b.opts.time; first = false { // once, however late it starts
			id := random.Int64N(b.opts.netRecords)
			if w.get {
				data, err := r.get(ctx, id)
				if err == nil && len(data) != size {
					err = fmt.Errorf("record %d has %d bytes, not %d", id, len(data), size)
				}
				if err != nil {
					return err
				}
				n.Add(1)
				continue
			}
			records := make([]store.Record, 0, batch)
			for i := range int64(batch) {
				at := (id + i) % b.opts.netRecords
				records = append(records, store.Record{ID: at, Data: makeData(pool, at, id, size)})
			}
			if err := r.put(ctx, w.name, records); err != nil {
				return err
			}
			n.Add(int64(batch))
		}
		return nil
	})
	return float64(n.Load()) / time.Since(begin).Seconds(), err
}

// networkRows makes the rows of one size and number of callers.
func networkRows(size, callers int, rates map[way][]float64, missing map[string]string) (rows []result.Row) {
	for _, w := range ways {
		row := result.Row{Labels: result.Labels("server", w.server, "call", w.name, "records", bytesName(size), "callers", fmt.Sprint(callers)), Missing: missing[w.server]}
		if row.Missing == "" {
			row.Cells = map[string]result.Value{"rate": result.Of(rates[w]...)}
		}
		rows = append(rows, row)
	}
	return rows
}

func networkRatios(size, callers int, rates map[way][]float64, missing map[string]string) (ratios []result.Ratio) {
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
			Labels: result.Labels("what", c.ours.name, "against", c.peer.server+", "+c.peer.name, "records", bytesName(size), "callers", fmt.Sprint(callers)),
			Unit:   "/s", Ours: rates[c.ours], Limit: rates[c.peer], Target: c.target, Note: c.note,
		}
		if why := missing["Sheaf"] + missing[c.peer.server]; why != "" {
			r.Missed = why
		}
		ratios = append(ratios, r)
	}
	return ratios
}

// process is a server's process.
type process struct {
	cmd    *exec.Cmd
	output tail
	ended  chan struct{}
}

// tail keeps the end of what a process says.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-4000):]
	return len(p), nil
}

// startProcess starts a server, which ends with this program.
func startProcess(ctx context.Context, dir, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, name, args...), ended: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // that it ended is all that counts
		close(p.ended)
	}()
	return p, nil
}

// ready tries until the server answers, or has ended.
func (p *process) ready(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		attempt, done := context.WithTimeout(ctx, 2*time.Second)
		err := try(attempt)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("it ended: %s", p.output.text)
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends the process.
func (p *process) stop() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// freeAddress is one of loopback that nobody listens on now.
func freeAddress() (string, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
