package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// killsOfTest is the default number of kills in the test below. SHEAF_KILLS sets another number. With at least
// killsEnough kills, some writes are interrupted before their commit and some after it, whatever the random moments
// are.
const (
	killsOfTest = 20
	killsOfSoak = 10_000
	killsEnough = 200
)

// TestKillsAtRandomMoments repeatedly kills the real process by SIGKILL at random moments and starts it again, on a few
// stores in parallel. A checker remembers every acknowledgement. After each start, the store must hold exactly the
// acknowledged records, byte for byte. An interrupted write must be stored completely or not at all. After a repetition
// with its request id, it must be stored exactly once.
func TestKillsAtRandomMoments(t *testing.T) {
	t.Parallel()
	kills := killsOfTest
	if s := os.Getenv("SHEAF_KILLS"); s != "" {
		n, err := strconv.Atoi(s)
		must(t, err)
		kills = n
	} else if soaktest.Long() {
		kills = killsOfSoak
	}
	const stores = 2
	var left atomic.Int64
	left.Store(int64(kills))
	counts := &killCounts{by: map[string]int{}}
	begin, seed := time.Now(), soaktest.Seed(t, 0)
	t.Run("stores", func(t *testing.T) {
		for i := range stores {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				k := newKiller(t, seed+uint64(i), counts)
				for left.Add(-1) >= 0 && !t.Failed() {
					k.round()
				}
				k.finish()
			})
		}
	})
	total := 0
	for _, n := range counts.by {
		total += n
	}
	t.Logf("%d kills in %v: %v; %d writes acknowledged, %d cut off, of which %d had been stored; %d repeats of older "+
		"writes recognised; %d imports",
		total, time.Since(begin).Round(time.Second), counts.by, counts.acked.Load(), counts.cut.Load(),
		counts.interruptedStored.Load(), counts.repeats.Load(), counts.imports.Load())
	if total != kills && !t.Failed() {
		t.Errorf("%d kills, want %d", total, kills)
	}
	soaktest.Report(t, "kills", total)
	if kills < killsOfTest || t.Failed() {
		return
	}
	// The test is meaningful only if kills hit each phase and interrupted writes.
	for _, phase := range phases {
		if counts.by[phase] == 0 {
			t.Errorf("no kill during %s", phase)
		}
	}
	if counts.cut.Load() == 0 {
		t.Error("no write was cut off: the kills came at the wrong moments")
	}
	if kills < killsEnough {
		return
	}
	if counts.interruptedStored.Load() == 0 || counts.interruptedStored.Load() == counts.cut.Load() {
		t.Errorf("%d writes were cut off, %d of them stored: the kills came at the wrong moments", counts.cut.Load(),
			counts.interruptedStored.Load())
	}
}

// phases are the activities during which the process is killed.
var phases = []string{"put", "upload", "compaction", "import", "load", "stop"}

type killCounts struct {
	mu                                              sync.Mutex
	by                                              map[string]int
	acked, cut, interruptedStored, repeats, imports atomic.Int64
}

func (c *killCounts) killed(phase string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by[phase]++
}

// killer repeatedly kills the process of one store, and checks the store.
type killer struct {
	t       *testing.T
	random  *rand.Rand
	counts  *killCounts
	dir     string
	server  string
	http    string
	cc      *grpc.ClientConn
	records recordv1.RecordServiceClient
	admin   recordv1.AdminServiceClient
	writers []*writer
	turn    int
	tree    string // the folder that is imported
	// Maps each imported path to the file in tree that was imported; filled when the import has ended.
	imported  map[string]string
	prefixes  int
	importing *exec.Cmd
	importOK  chan error
}

// writer owns several ids. It writes records one after another, so that at most one write is unanswered.
type writer struct {
	k      *killer
	random *rand.Rand
	ids    []int64
	known  map[int64]*state
	cut    *write // the write that was interrupted and has no answer; nil if there is none
}

// state is the acknowledged state of an id.
type state struct {
	there   bool
	data    []byte
	version string
	older   *write // a superseded write that was acknowledged
	last    *write
}

// write is a put, an upload or a delete.
type write struct {
	id        int64
	requestID []byte
	delete    bool
	upload    bool
	seed      uint64
	size      int
	version   string // set when the write is acknowledged
	existed   bool
}

func (w *write) data() []byte { return pattern(w.seed, w.size) }

func newKiller(t *testing.T, seed uint64, counts *killCounts) *killer {
	k := &killer{
		t: t, random: rand.New(rand.NewPCG(seed, 6)), counts: counts,
		dir: filepath.Join(t.TempDir(), "store"), server: loopback.Free(t), http: loopback.Free(t),
		tree: t.TempDir(), imported: map[string]string{},
	}
	k.cc = dial(t, k.server)
	k.records = recordv1.NewRecordServiceClient(k.cc)
	k.admin = recordv1.NewAdminServiceClient(k.cc)
	for i := range 6 {
		w := &writer{k: k, random: rand.New(rand.NewPCG(seed, uint64(i))), known: map[int64]*state{}}
		for n := range 8 {
			w.ids = append(w.ids, int64(i*1000+n)-3000)
		}
		k.writers = append(k.writers, w)
	}
	for i := range 150 {
		must(t, os.WriteFile(filepath.Join(k.tree, strconv.Itoa(i)), pattern(uint64(i), i*i), 0o644))
	}
	must(t, os.WriteFile(filepath.Join(k.tree, "large"), pattern(7777, 3<<20), 0o644))
	return k
}

// launch starts the process with small segments and frequent compaction, so that segments are sealed and compacted
// often.
func (k *killer) launch() *process {
	residency := []string{"index", "resident"}[k.random.IntN(2)]
	return launch(k.t, k.dir, k.server, k.http, "--shards", "2", "--groups", "4", "--residency", residency,
		"--segment-bytes", "256KiB",
		"--compaction-interval", "50ms", "--compaction-min", "64KiB", "--compaction-share", "0.2", "--log-level", "error")
}

// round starts the process, checks everything, works, and kills the process.
func (k *killer) round() {
	phase := phases[k.turn%len(phases)]
	k.turn++
	p := k.launch()
	if phase == "load" {
		// The process is killed at a random moment during its start. The next round checks that no record was lost or
		// damaged.
		k.sleep(350 * time.Millisecond)
		p.kill()
		k.counts.killed(phase)
		return
	}
	p.waitReady(k.t)
	reconnect(k.t, k.cc)
	k.finishImport()
	k.check()
	if k.t.Failed() {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for _, w := range k.writers {
		working.Go(func() { w.work(ctx, phase) })
	}
	switch phase {
	case "compaction":
		working.Go(func() { k.compact(ctx) })
	case "import":
		k.startImport()
	}
	k.sleep(400 * time.Millisecond)
	if phase == "stop" {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		k.sleep(60 * time.Millisecond)
	}
	p.kill()
	cancel()
	working.Wait()
	k.counts.killed(phase)
}

func (k *killer) sleep(most time.Duration) {
	time.Sleep(time.Duration(k.random.Int64N(int64(most))))
}

// finish checks the store one last time, also offline.
func (k *killer) finish() {
	if k.t.Failed() {
		return
	}
	p := k.launch()
	p.waitReady(k.t)
	reconnect(k.t, k.cc)
	k.finishImport()
	k.check()
	if code := p.stop(k.t); code != 0 {
		k.t.Errorf("stopping: exit code %d: %s", code, p.stderr)
	}
	sheaf(k.t, nil, "verify", k.dir).Want(k.t, 0)
}

func (k *killer) compact(ctx context.Context) {
	for ctx.Err() == nil {
		for g := range 4 {
			// Fails when the process is killed.
			_, _ = k.admin.Compact(ctx, &recordv1.CompactRequest{Group: strconv.Itoa(g), All: true})
		}
	}
}

// startImport starts an import that survives the kill, because its client waits until the store runs again.
func (k *killer) startImport() {
	k.prefixes++
	k.importing = exec.Command(sheafBinary, "import", k.tree, "--id", "hash", "--prefix",
		fmt.Sprintf("run-%d", k.prefixes), "--server", k.server, "--quiet")
	var words bytes.Buffer
	k.importing.Stderr = &words
	k.importing.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(k.t, k.importing.Start())
	k.importOK = make(chan error, 1)
	go func() {
		err := k.importing.Wait()
		if err != nil {
			err = fmt.Errorf("import over a kill: %w: %s", err, words.String())
		}
		k.importOK <- err
	}()
}

// finishImport kills the import that an earlier round started, or waits until it ends. If the import was killed, or
// failed because the store did not answer, finishImport repeats it with --resume.
func (k *killer) finishImport() {
	if k.importing == nil {
		return
	}
	prefix := fmt.Sprintf("run-%d", k.prefixes)
	killed := k.random.IntN(2) == 0
	if killed {
		_ = k.importing.Process.Kill()
	}
	err := <-k.importOK
	switch {
	case killed, err != nil && strings.Contains(err.Error(), "nobody answers"):
		sheaf(k.t, nil, "import", k.tree, "--id", "hash", "--prefix", prefix, "--server", k.server, "--quiet", "--resume").
			Want(k.t, 0)
	case err != nil:
		k.t.Error(err)
	}
	k.importing = nil
	k.counts.imports.Add(1)
	entries, err := os.ReadDir(k.tree)
	must(k.t, err)
	for _, e := range entries {
		k.imported[prefix+"/"+e.Name()] = e.Name()
	}
}

// work writes until ctx ends or a call is interrupted.
func (w *writer) work(ctx context.Context, phase string) {
	for ctx.Err() == nil {
		op := w.next(phase)
		if !w.try(ctx, op) {
			w.cut = op
			w.k.counts.cut.Add(1)
			return
		}
	}
}

// next generates a write.
func (w *writer) next(phase string) *write {
	op := &write{id: w.ids[w.random.IntN(len(w.ids))], requestID: make([]byte, 16), seed: w.random.Uint64()}
	for i := range op.requestID {
		op.requestID[i] = byte(w.random.Uint32())
	}
	switch n := w.random.IntN(20); {
	case n == 0:
		op.delete = true
	case n == 1:
		op.size = 0
	case n == 2:
		op.size = w.random.IntN(1 << 18)
	case phase == "upload":
		op.upload, op.size = true, 1<<20+w.random.IntN(1<<20)
	default:
		op.size = w.random.IntN(8 << 10)
	}
	return op
}

// try sends a write once and records the answer. It returns false if there was no answer.
func (w *writer) try(ctx context.Context, op *write) bool {
	version, existed, _, err := w.k.send(ctx, op)
	if err != nil {
		return false
	}
	w.k.counts.acked.Add(1)
	w.acknowledged(op, version, existed)
	return true
}

// acknowledged records the state after a write.
func (w *writer) acknowledged(op *write, version string, existed bool) {
	op.version, op.existed = version, existed
	before := w.known[op.id]
	now := &state{there: !op.delete, version: version, last: op}
	if !op.delete {
		now.data = op.data()
	}
	if before != nil {
		if op.delete && existed != before.there {
			w.k.t.Errorf("id %d: a delete says existed %v, but it was there: %v", op.id, existed, before.there)
		}
		if !op.delete && version == before.version {
			w.k.t.Errorf("id %d: version %s was given twice", op.id, version)
		}
		now.older = before.last
	}
	w.known[op.id] = now
}

func (k *killer) send(ctx context.Context, op *write) (version string, existed, repeated bool, err error) {
	key := &recordv1.RecordKey{Id: op.id}
	switch {
	case op.delete:
		r, err := k.records.Delete(ctx, &recordv1.DeleteRequest{Key: key, RequestId: op.requestID})
		return r.GetVersion(), r.GetExisted(), r.GetRepeated(), err
	case op.upload:
		r, err := k.upload(ctx, op)
		return r.GetVersion(), false, r.GetRepeated(), err
	}
	data := op.data()
	crc := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	r, err := k.records.Put(ctx, &recordv1.PutRequest{Key: key, RequestId: op.requestID, Data: data, DataCrc32C: &crc})
	return r.GetVersion(), false, r.GetRepeated(), err
}

func (k *killer) upload(ctx context.Context, op *write) (*recordv1.PutResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := k.records.Upload(ctx)
	if err != nil {
		return nil, err
	}
	header := &recordv1.UploadHeader{Key: &recordv1.RecordKey{Id: op.id}, RequestId: op.requestID}
	if err := stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: header}}); err != nil {
		return nil, streamError(stream, err)
	}
	for data := op.data(); len(data) > 0; {
		n := min(len(data), 256<<10)
		if err := stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: data[:n]}}); err != nil {
			return nil, streamError(stream, err)
		}
		data = data[n:]
	}
	r, err := stream.CloseAndRecv()
	return r.GetPut(), err
}

// streamError returns the server's reason for ending the stream. If the server ends the stream, a send returns only
// io.EOF, so streamError asks the stream for the actual error.
func streamError(stream recordv1.RecordService_UploadClient, err error) error {
	if errors.Is(err, io.EOF) {
		_, err = stream.CloseAndRecv()
	}
	return err
}
