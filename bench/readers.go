package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/dev"
)

// ReadersOptions are the options of Readers.
type ReadersOptions struct {
	Options
	Python  string        // the Python program, with what bench/readers/requirements.txt lists and sheafdb
	Time    time.Duration // duration of each measurement
	Bytes   int64         // bytes of the records of each size
	Sizes   []int         // bytes of data in a record
	Records int           // number of the small records whose ids are scanned for the first batch
}

// RecordsMin is the minimum number of records of each size. A loader with workers needs a few batches.
const RecordsMin = 10 * readersBatch

const (
	readersBatch  = 100 // records in a batch; bench/readers/data.py has the same number
	readersGroups = 4   // few, because the records of a benchmark are few, and a scan begins with each group anew
	readersSmall  = 16  // bytes of a record whose id alone is read
	readersSeed   = 7
)

// readersBench is one run of the benchmark of readers.
type readersBench struct {
	outcome
	opts    ReadersOptions
	scripts string // folder with the Python programs
	made    int    // number of stores so far
}

var readersParts = parts[readersBench]{
	{"batches", (*readersBench).batches},
	{"calls", (*readersBench).calls},
	{"order", (*readersBench).order},
	{"first", (*readersBench).first},
	{"beside", (*readersBench).beside},
}

// ReadersParts returns the names of the parts.
func ReadersParts() []string { return readersParts.names() }

// Readers measures readers in Python on a store, and compares them with readers of local files and with servers of bare
// gRPC and Flight. What is not installed is reported as not measured.
func Readers(ctx context.Context, opts ReadersOptions) (*result.Report, error) {
	b := &readersBench{opts: opts, outcome: outcome{Options: opts.Options}}
	report, err := readersParts.measure(ctx, b, &b.outcome, "readers")
	report.Settings = result.Labels(
		"store", fmt.Sprintf("one shard, one copy, %d groups, in the process of sheaf-bench, with a gateway", readersGroups),
		"records", fmt.Sprintf("random bytes, %s of each size, all in memory", result.Format(float64(opts.Bytes), "B")),
		"readers", "one process each, beside the store on the same processors; loaders have two processes more",
		"turn", opts.Time.String())
	return report, err
}

// records returns the number of records of the given size.
func (b *readersBench) records(size int) int { return int(max(b.opts.Bytes/int64(size), RecordsMin)) }

// write writes the Python programs, unless an earlier part has done so.
func (b *readersBench) write() error {
	if b.scripts != "" {
		return nil
	}
	b.scripts = filepath.Join(b.dir, "readers")
	return writeReaderScripts(b.scripts)
}

// readStore is a store with records of one size, and the readers that have been started.
type readStore struct {
	b       *readersBench
	dir     string
	size    int
	records int
	dev     *dev.Dev
	client  *client.Client // calls by the gateway
	workers []*worker
	stop    []func()
}

// start starts a store and fills it. The caller must call close.
func (b *readersBench) start(ctx context.Context, size, records int) (_ *readStore, err error) {
	if err := b.write(); err != nil {
		return nil, err
	}
	b.made++
	s := &readStore{b: b, size: size, records: records, dir: filepath.Join(b.dir, fmt.Sprint("store", b.made))}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.dev, err = dev.Start(ctx, dev.Config{Dir: filepath.Join(s.dir, "dev"), Shards: 1, Groups: readersGroups,
		Listen: "127.0.0.1:0", RecordsHTTP: "127.0.0.1:0"})
	if err != nil {
		return nil, fmt.Errorf("starting a store: %w", err)
	}
	s.stop = append(s.stop, s.dev.Kill)
	if err := s.dev.WaitReady(ctx, nil); err != nil {
		return nil, fmt.Errorf("starting a store: %w", err)
	}
	if s.client, err = client.New(client.Config{Addresses: []string{s.dev.Addr()}}); err != nil {
		return nil, err
	}
	s.stop = append(s.stop, func() { _ = s.client.Close() })
	b.Say("%d records of %d bytes", records, size)
	return s, s.fill(ctx)
}

// close ends the readers and the store, and removes their files.
func (s *readStore) close() {
	for _, w := range s.workers {
		w.close()
	}
	for i := len(s.stop) - 1; i >= 0; i-- {
		s.stop[i]()
	}
	_ = os.RemoveAll(s.dir) // whatever remains is removed at the end
}

// shard returns the address of the shard.
func (s *readStore) shard() string { return s.dev.Status().Shards[0].GetShard().GetAddress() }

// fill stores the records.
func (s *readStore) fill(ctx context.Context) error {
	cc, err := grpc.NewClient(s.shard(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("filling: %w", err)
	}
	defer func() { _ = cc.Close() }()
	const writers, bytesMax = 4, 1 << 20
	batch := int64(max(1, min(1000, bytesMax/s.size)))
	var next atomic.Int64
	return drive.Parallel(writers, func(int) error {
		stream, err := recordv1.NewRecordServiceClient(cc).BatchPut(ctx)
		if err != nil {
			return fmt.Errorf("filling: %w", err)
		}
		for {
			from := next.Add(batch) - batch
			if from >= int64(s.records) {
				return stream.CloseSend()
			}
			n := int(min(batch, int64(s.records)-from))
			if err := exchange(stream, putBatch(firstID(s.size)+from, n, randomBytes(s.size))); err != nil {
				return fmt.Errorf("filling: %w", err)
			}
		}
	})
}

// id returns the id of a record. Consecutive values of i give ids that are scattered over all records.
func (s *readStore) id(i int64) int64 { return firstID(s.size) + drive.Scatter(i)%int64(s.records) }

// worker starts a reader. The key names it in the results. The values of more are added to its configuration.
func (s *readStore) worker(ctx context.Context, key, reader string, more map[string]any) (*worker, error) {
	config := map[string]any{"dir": s.dir, "records": s.records, "size": s.size, "first": firstID(s.size),
		"seed": readersSeed, "address": s.dev.Addr(), "shard": s.shard()}
	for name, value := range more {
		config[name] = value
	}
	w, err := startWorker(ctx, s.b.opts.Python, s.b.scripts, reader, config)
	if err != nil {
		return nil, err
	}
	w.name = key
	s.workers = append(s.workers, w)
	return w, nil
}

// reader is a reader that is measured, by its key, with its name in bench/readers.
type reader struct {
	key, name string
	more      map[string]any
}

// turns starts readers, measures those that are not missing in turns, and ends them.
func (s *readStore) turns(ctx context.Context, readers ...reader) (turnResults, error) {
	var cells []rounds.Cell
	var started []*worker
	defer func() {
		for _, w := range started {
			w.close()
		}
	}()
	missing := map[string]string{}
	for _, r := range readers {
		w, err := s.worker(ctx, r.key, r.name, r.more)
		if err != nil {
			return turnResults{}, err
		}
		if started = append(started, w); w.missing != "" {
			missing[r.key] = w.missing
			continue
		}
		cells = append(cells, w.cell(s.b.opts.Time))
	}
	got, err := s.b.takeTurns(ctx, cells...)
	for key, why := range missing {
		got.Miss(key, why)
	}
	return got, err
}

// metric creates a row that compares one metric of two readers. A higher rate is better. If one of them is missing, the
// row says so.
func (t turnResults) metric(name, figure, ours, limit string, target float64) result.Ratio {
	row := against(name, "/s", t.Of(ours, figure), t.Of(limit, figure), target)
	return t.unless(row, ours, limit)
}

// unless adds to a row the reason why one of its readers is missing.
func (t turnResults) unless(row result.Ratio, keys ...string) result.Ratio {
	for _, key := range keys {
		if why := t.Missing(key); why != "" {
			row.Missed = why
		}
	}
	return row
}

// writeDescriptors writes the contract of records, so that a client needs no generated code. The format is a
// google.protobuf.FileDescriptorSet, in which a file follows those that it imports.
func writeDescriptors(path string) error {
	set, seen := &descriptorpb.FileDescriptorSet{}, map[string]bool{}
	var add func(file protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if seen[file.Path()] {
			return
		}
		seen[file.Path()] = true
		for i := range file.Imports().Len() {
			add(file.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
	}
	add(recordv1.File_sheaf_record_v1_record_proto)
	text, err := proto.Marshal(set)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing the contract: %w", err)
	}
	return nil
}
