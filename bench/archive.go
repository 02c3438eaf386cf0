package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/result"
)

// ArchiveOptions are the options of Archive.
type ArchiveOptions struct {
	Options
	Binary  string // path of the program sheaf
	Archive string // path of the program sheaf-archive
	// Gateway is the path of versitygw, which serves a folder as S3. If it is empty, the archive is in a folder.
	Gateway     string
	Bytes       int64 // size of the data of all records
	RecordBytes int   // size of the data of one record
	Groups      int
	Time        time.Duration // duration of one turn of puts
	DayRecords  int           // number of records of the archive of a day at one put per second
}

// archiveParts are the parts of the benchmark, in order. The puts come last, because they leave more records in the
// store: an archive that is made after them is several times as large as the parts before assume.
var archiveParts = parts[archiveBench]{
	{"upload", (*archiveBench).measureUploads},
	{"restore", (*archiveBench).measureRestores},
	{"day", (*archiveBench).measureDay},
	{"puts", (*archiveBench).measurePuts},
}

// ArchiveParts returns the names of the parts.
func ArchiveParts() []string { return archiveParts.names() }

// archiveBench is a run of Archive.
type archiveBench struct {
	opts ArchiveOptions
	outcome

	bucket *archiveBucket // nil until it is needed
	store  *benchStore    // the store that is archived, nil until it is needed
	count  int            // number of names that name has returned
}

// The bounds of the memory of sheaf-archive: a part that does not depend on the store, and one for the largest group.
const (
	archiveMemoryBytes   = 256 << 20
	archiveBytesPerRow   = 24
	archivePutWriters    = 16
	archivePutInterval   = time.Second
	archiveShortInterval = 100 * time.Millisecond
)

// heldMemory is the key of the metric that holds a process's greatest resident memory in bytes.
const heldMemory = "memory"

// Archive measures what it costs to keep an archive of a store, and how fast a store comes back from it. The programs
// sheaf and sheaf-archive run as separate processes. The bucket is on this machine.
func Archive(ctx context.Context, opts ArchiveOptions) (*result.Report, error) {
	b := &archiveBench{opts: opts, outcome: outcome{Options: opts.Options}}
	b.outcome.close = b.close // etcd ends the process, without a word, if its folder is removed while it runs
	return archiveParts.measure(ctx, b, &b.outcome, "archive")
}

func (b *archiveBench) close() {
	if b.store != nil {
		b.store.close()
	}
	if b.bucket != nil {
		b.bucket.close()
	}
}

// records returns the number of records in the store.
func (b *archiveBench) records() int64 { return max(1, b.opts.Bytes/int64(b.opts.RecordBytes)) }

// memoryMax returns the bound of the memory of sheaf-archive. Records are spread evenly over the groups.
func (b *archiveBench) memoryMax() float64 {
	return archiveMemoryBytes + archiveBytesPerRow*float64(b.records()/int64(b.opts.Groups))
}

// name returns a name that was not used before.
func (b *archiveBench) name(prefix string) string {
	b.count++
	return fmt.Sprintf("%s-%d", prefix, b.count)
}

// begin starts the bucket, and the store that is archived, unless they run already. The store is filled.
func (b *archiveBench) begin(ctx context.Context) (err error) {
	if err := b.beginBucket(ctx); err != nil || b.store != nil {
		return err
	}
	b.Say("  filling a store with %s", result.Format(float64(b.opts.Bytes), "B"))
	if b.store, err = startStore(ctx, filepath.Join(b.dir, "store"), b.opts.Binary, 1, 1, b.opts.Groups); err != nil {
		b.store = nil
		return err
	}
	return b.store.fill(ctx, b.records(), b.opts.RecordBytes)
}

// beginBucket starts the bucket, unless it runs already.
func (b *archiveBench) beginBucket(ctx context.Context) (err error) {
	if b.bucket == nil {
		b.bucket, err = startBucket(ctx, filepath.Join(b.dir, "bucket"), b.opts.Gateway)
	}
	return err
}

// where describes the bucket for the notes of a report.
func (b *archiveBench) where() string {
	if b.opts.Gateway == "" {
		return "the bucket is a folder on the same device"
	}
	return "the bucket is versitygw on loopback, with a folder on the same device"
}

// writeRate writes a file of the given size, syncs it, and returns the bytes per second. It is the limit of the disk
// for an install.
func writeRate(dir string, bytes int64) (rate float64, err error) {
	f, err := os.CreateTemp(dir, "raw-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := randomBytes(1 << 20)
	return perSecond(float64(bytes), func() error {
		for left := bytes; left > 0; left -= int64(len(block)) {
			if _, err := f.Write(block[:min(left, int64(len(block)))]); err != nil {
				return err
			}
		}
		return f.Sync()
	})
}

// processMemory returns the greatest resident memory that a process has had so far, in bytes.
func processMemory(p *drive.Process) (float64, error) {
	name := fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid)
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kilobytes float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kilobytes); n == 1 {
			return 1024 * kilobytes, nil
		}
	}
	return 0, fmt.Errorf("%s has no line VmHWM", name)
}
