package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/peers/store"
	"sheaf.dev/sheaf/bench/peers/stores"
	"sheaf.dev/sheaf/bench/result"
)

// A separate process runs each step of each store. This measures the peak memory of each step on its own, and no
// memory is left over from an earlier step.

// job is the request to a process that runs one step with one store. The process reads it from its standard input.
type job struct {
	Store   string
	Step    string
	Dir     string
	Size    int
	Records int64
	Callers int
	Batch   int
	Workers int // number of workers that read everything into memory
	Gets    int64
	Time    time.Duration // duration of the warm gets
}

// outcome is the result of a job. The job's process writes it to standard output.
type outcome struct {
	Seconds   float64
	Units     float64 // number of records that the step put or read
	PeakBytes int64   // peak memory of the process (VmHWM)
	AnonBytes int64   // anonymous memory of the process at the end of the job (RssAnon)
	Error     string
}

func (o *outcome) rate() float64 { return o.Units / o.Seconds }

// childEnv is the environment variable that makes this program run one job.
const childEnv = "PEERS_JOB"

// steps maps the name of each step to its function.
var steps = map[string]func(*job, *store.Kind) (outcome, error){
	"fill": (*job).fill, "start": (*job).start, "cold": (*job).cold, "warm": (*job).warm, "update": (*job).update,
	"compact": (*job).compact,
}

// runChild does the job that it reads from in.
func runChild(in io.Reader, out io.Writer) error {
	var j job
	if err := json.NewDecoder(in).Decode(&j); err != nil {
		return fmt.Errorf("reading the job: %w", err)
	}
	kind, step := stores.Find(j.Store), steps[j.Step]
	if kind == nil || step == nil {
		return fmt.Errorf("no such store or step: %q, %q", j.Store, j.Step)
	}
	o, err := step(&j, kind)
	if err != nil {
		o.Error = err.Error()
	}
	return json.NewEncoder(out).Encode(o)
}

// run runs the job in a child process, which exits with this one.
func (j *job) run(ctx context.Context) (outcome, error) {
	request, err := json.Marshal(j)
	if err != nil {
		return outcome{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return outcome{}, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stdin = strings.NewReader(string(request))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	answer, err := cmd.Output()
	if ctx.Err() != nil {
		return outcome{}, context.Cause(ctx)
	}
	var o outcome
	if jsonErr := json.Unmarshal(answer, &o); jsonErr != nil {
		return o, fmt.Errorf("%s, %s: %w: %s", j.Store, j.Step, errors.Join(err, jsonErr), lastLines(stderr.String()))
	}
	if o.Error != "" {
		return o, fmt.Errorf("%s, %s: %s", j.Store, j.Step, o.Error)
	}
	return o, nil
}

func lastLines(s string) string { return s[max(0, len(s)-2000):] }

// measured measures the duration of do(), and this process's memory afterwards.
func measured(units float64, do func() error) (o outcome, err error) {
	begin := time.Now()
	err = do()
	o = outcome{Seconds: time.Since(begin).Seconds(), Units: units}
	peak, _ := result.ProcNumber("/proc/self/status", "VmHWM") // in KiB; 0 if unknown
	anon, _ := result.ProcNumber("/proc/self/status", "RssAnon")
	o.PeakBytes, o.AnonBytes = peak<<10, anon<<10
	return o, err
}

// use opens the store, measures do() with it, and closes the store.
func (j *job) use(k *store.Kind, opts store.Options, units float64, do func(store.Store) error) (outcome, error) {
	s, err := k.Open(j.Dir, opts)
	if err != nil {
		return outcome{}, err
	}
	o, err := measured(units, func() error { return do(s) })
	return o, errors.Join(err, s.Close())
}

func (j *job) fill(k *store.Kind) (outcome, error) {
	return j.use(k, store.Options{}, float64(j.Records), func(s store.Store) error { return j.put(s, 1, 1) })
}

func (j *job) update(k *store.Kind) (outcome, error) {
	return j.use(k, store.Options{}, float64(j.Records)/2, func(s store.Store) error { return j.put(s, 2, 2) })
}

func (j *job) compact(k *store.Kind) (outcome, error) {
	return j.use(k, store.Options{}, float64(j.Records), store.Store.Compact)
}

// put writes a version of every step-th record, in ascending id order, which is the best order for trees.
func (j *job) put(s store.Store, version int64, step int64) error {
	pool := randomPool()
	each := int64(j.Batch) * step
	return drive.Shared(j.Callers, (j.Records+each-1)/each, func(_ int, i int64) error {
		batch := make([]store.Record, 0, j.Batch)
		for id := i * each; id < min((i+1)*each, j.Records); id += step {
			batch = append(batch, store.Record{ID: id, Data: makeData(pool, id, version, j.Size)})
		}
		return s.Put(batch)
	})
}

// start measures the time until all records of a closed store are in memory.
func (j *job) start(k *store.Kind) (o outcome, err error) {
	var s store.Store
	m := store.NewMemory(j.Workers)
	o, err = measured(float64(j.Records), func() error {
		if s, err = k.Open(j.Dir, store.Options{InMemory: true}); err != nil {
			return err
		}
		n, err := s.LoadAll(j.Workers, m)
		if err == nil && n != j.Records {
			err = fmt.Errorf("%d records were read, %d are stored", n, j.Records)
		}
		return err
	})
	if s != nil {
		err = errors.Join(err, s.Close())
	}
	m.Records() // keeps m reachable until its memory has been measured
	return o, err
}

func (j *job) cold(k *store.Kind) (outcome, error) {
	return j.use(k, store.Options{}, float64(j.Gets), func(s store.Store) error {
		_, err := j.getFor(s, j.Gets, time.Hour)
		return err
	})
}

func (j *job) warm(k *store.Kind) (o outcome, err error) {
	s, err := k.Open(j.Dir, store.Options{InMemory: true, CacheBytes: j.Records * int64(j.Size) * 5 / 4})
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	err = store.Ranges(0, j.Records-1, j.Callers, func(_ int, from, through int64) (err error) {
		var buffer []byte
		for id := from; id <= through; id++ {
			if buffer, err = s.Get(id, buffer[:0]); err != nil {
				return fmt.Errorf("record %d: %w", id, err)
			}
		}
		return nil
	})
	if err != nil {
		return o, err
	}
	var n int64
	o, err = measured(0, func() (err error) {
		n, err = j.getFor(s, 1<<62, j.Time)
		return err
	})
	o.Units = float64(n)
	return o, err
}

// getFor reads random records and checks each of them. It stops after n records, or after the given duration.
func (j *job) getFor(s store.Store, n int64, most time.Duration) (int64, error) {
	var done atomic.Int64
	end := time.Now().Add(most)
	err := drive.Parallel(j.Callers, func(int) error {
		buffer := make([]byte, 0, j.Size+4096)
		random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
		for i := int64(0); ; i++ {
			if i%32 == 0 && (done.Add(32) > n || time.Now().After(end)) {
				done.Add(-32)
				return nil
			}
			id := random.Int64N(j.Records)
			data, err := s.Get(id, buffer[:0])
			if err != nil {
				return fmt.Errorf("record %d: %w", id, err)
			}
			if len(data) != j.Size || int64(binary.LittleEndian.Uint64(data)) != id {
				return fmt.Errorf("record %d: %d bytes of another record", id, len(data))
			}
		}
	})
	return done.Load(), err
}

const poolBytes = 4 << 20

// randomPool returns random bytes from which data is taken, so that no store can compress it.
func randomPool() []byte {
	pool := make([]byte, poolBytes)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(pool) // Read never returns an error
	return pool
}

// makeData creates a record version's data. The data begins with the id.
func makeData(pool []byte, id, version int64, size int) []byte {
	from := (uint64(id)*0x9e3779b97f4a7c15 + uint64(version)*0xbf58476d1ce4e5b9) >> 20 % uint64(len(pool)-size)
	data := append(make([]byte, 0, size), pool[from:from+uint64(size)]...)
	binary.LittleEndian.PutUint64(data, uint64(id))
	return data
}
