package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/layouts"
	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/dev"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// onDisk returns the store's segments, and the total size of its blobs.
func (d *demo) onDisk() (segments []string, blobBytes int64, err error) {
	err = filepath.WalkDir(filepath.Join(d.dir, "store", "shards"), func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if strings.HasPrefix(e.Name(), "segment-") {
			segments = append(segments, name)
		}
		if _, ok := format.ParseBlobName(e.Name()); ok {
			info, err := e.Info()
			if err != nil {
				return err
			}
			blobBytes += info.Size()
		}
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("looking for segments: %w", err)
	}
	return segments, blobBytes, nil
}

// deviceRate reads the segments without the page cache, to find the maximum rate of the device.
func (d *demo) deviceRate(segments []string) float64 {
	rate, ok, err := layouts.RawRate(segments)
	if err == nil && !ok {
		err = fmt.Errorf(
			"%s: the file system does not allow O_DIRECT, so there is nothing to compare with: give another --dir", d.dir)
	}
	if err != nil {
		d.say("   (the device's own rate cannot be measured: %v)", err)
		return 0
	}
	return rate
}

// dropCaches drops the kernel's caches, so that the next reads are cold. It returns false if this process is not
// permitted to do so.
func dropCaches() bool {
	unix.Sync()
	return drive.DropCaches() == nil
}

// load holds the measurements of one start of the store.
type load struct {
	dev.Status
	took        time.Duration // the time from exec until all groups serve
	records     int64
	heldBytes   int64 // bytes in group files, including the index data that finds the records
	deviceBytes int64 // bytes that the process has read from the disk; 0 if unknown
	memoryBytes int64 // anonymous memory of the process, without mapped files; 0 if unknown
}

// measureLoad collects the measurements of a start. It must run before anything is read from the store.
func (d *demo) measureLoad(took time.Duration, s dev.Status, blobBytes int64) load {
	records, bytes := groupTotals(s)
	return load{
		Status: s, took: took, records: records, heldBytes: bytes - blobBytes,
		deviceBytes: d.child.procNumber("io", "read_bytes"), memoryBytes: d.child.procNumber("status", "RssAnon") << 10,
	}
}

// groupTotals returns the total number of records and bytes over all groups. A group that is being moved has two
// copies. groupTotals counts only the copy with more records.
func groupTotals(s dev.Status) (records, bytes int64) {
	groups := map[string]*recordv1.Group{}
	for _, one := range s.Shards {
		for _, g := range one.GetGroups() {
			if other, twice := groups[g.GetGroup()]; !twice || other.GetRecords() < g.GetRecords() {
				groups[g.GetGroup()] = g
			}
		}
	}
	for _, g := range groups {
		records += g.GetRecords()
		bytes += g.GetStoredBytes()
	}
	return records, bytes
}

func (l *load) seconds() float64 { return l.Load.ElapsedSeconds }

// otherSeconds returns how many seconds of a start were spent on work other than loading.
func (l *load) otherSeconds() float64 { return max(0, l.took.Seconds()-l.seconds()) }

func (d *demo) sayLoad(l load, device float64, cold bool) {
	what := "loaded"
	if d.Residency == "index" {
		what = "indexed" // only the index was loaded, and the data remains on the disk
	}
	d.say("   %s %s records: %s in %.2f s, %s/s", what, cli.FormatCount(l.records), cli.FormatBytes(l.Load.BytesDone),
		l.seconds(),
		cli.FormatBytes(int64(l.Load.BytesPerSecond)))
	if device > 0 {
		d.say("   that is %.0f%% of the device's sequential rate (%s/s, read past the page cache)",
			100*l.Load.BytesPerSecond/device,
			cli.FormatBytes(int64(device)))
	}
	held := float64(max(l.heldBytes, 1))
	words := fmt.Sprintf("group files hold %s: the load read %.2f of that", cli.FormatBytes(l.heldBytes),
		float64(l.Load.BytesDone)/held)
	if l.deviceBytes > 0 {
		words += fmt.Sprintf("; the whole process, its program included, read %s from the disk",
			cli.FormatBytes(l.deviceBytes))
	}
	if l.memoryBytes > 0 {
		words += fmt.Sprintf("; it has %s of memory", cli.FormatBytes(l.memoryBytes))
	}
	d.say("   %s", words)
	d.say("   serving all groups %.2f s after exec: %.2f s of that are the load, %.2f s the process, etcd and the "+
		"registration", l.took.Seconds(),
		l.seconds(), l.otherSeconds())
	if !cold {
		d.say("   (the page cache may not be dropped here: group files are read past it in any case, files below are warm)")
	}
}

// files holds the measurements of reading the trees' files.
type files struct {
	read, large atomic.Int64 // numbers of files that were read, and of large files that were skipped
	bytes       atomic.Int64 // total size of the files that were read
	took        time.Duration
}

// readFiles reads the trees' files in parallel, as a program that keeps one file per record must do when it starts.
// It skips files above 1 MiB, because Sheaf also stores such records as separate files and reads them only on
// request.
func (d *demo) readFiles(ctx context.Context) (*files, error) {
	f := &files{}
	begin := time.Now()
	for _, t := range d.named {
		err := cli.Walk(ctx, t.dir, fileReaders, false, func(item cli.Item) error {
			if _, imported := t.files[item.Path]; !imported {
				return nil
			}
			size, err := readSmall(filepath.Join(t.dir, filepath.FromSlash(item.Path)))
			if err != nil {
				return nil //nolint:nilerr // another program may have removed the file
			}
			switch {
			case size > inGroupFilesMax:
				f.large.Add(1)
			default:
				f.bytes.Add(size)
				f.read.Add(1)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	f.took = time.Since(begin)
	return f, nil
}

// fileReaders is the number of concurrent readers.
const fileReaders = 8

// sayFiles compares the time of the load with the time to read the files. Caches are dropped before both or before
// neither.
func (d *demo) sayFiles(ctx context.Context, l load, cold bool) error {
	state := "warm"
	if cold && dropCaches() {
		state = "cold"
	}
	f, err := d.readFiles(ctx)
	if err != nil {
		return err
	}
	seconds := f.took.Seconds()
	d.say("   %s files, %s, %d at a time, %s: %.2f s, %s/s", cli.FormatCount(f.read.Load()),
		cli.FormatBytes(f.bytes.Load()), fileReaders, state,
		seconds, cli.FormatBytes(int64(float64(f.bytes.Load())/seconds)))
	if n := f.large.Load(); n > 0 {
		d.say("   (%s above 1 MiB left out on both sides: such a record has a blob file of its own)",
			cli.Count(n, "file", "files"))
	}
	d.say("\n%s records, %s: one file each %.2f s %s; group files %.2f s, %.1f times as fast, or %.2f s and %.1f times "+
		"from exec on",
		cli.FormatCount(f.read.Load()), cli.FormatBytes(f.bytes.Load()), seconds, state, l.seconds(), seconds/l.seconds(),
		l.took.Seconds(),
		seconds/l.took.Seconds())
	for _, reason := range poorReasons(l.seconds(), l.otherSeconds(), seconds, state) {
		d.say("  %s", reason)
	}
	return nil
}

// A ratio below poorRatio gets an explanation.
const poorRatio = 5

// poorReasons explains a poor ratio. It returns the reasons why this comparison does not show the advantage of group
// files, or nil if the ratio is not poor.
func poorReasons(load, besides, files float64, state string) (reasons []string) {
	if files/(load+besides) >= poorRatio {
		return nil
	}
	if state == "warm" {
		reasons = append(reasons,
			"The files were in the page cache, and no program finds them there after a boot: as root the caches are dropped "+
				"for both sides.")
	}
	if besides > load/2 {
		reasons = append(reasons, fmt.Sprintf(
			"%.2f s of the start are the process, etcd and the registration, which take as long for any tree: "+
				"this one is small, a larger one shows more (make run ARGS='DIR').", besides))
	}
	if files/load < poorRatio && state == "cold" {
		reasons = append(reasons,
			"The load itself gains little here: its records are few or large, or the disk has hardly any cost per file.")
	}
	return reasons
}

// inGroupFilesMax is the maximum size, in bytes, of data that is stored in a group file.
const inGroupFilesMax = 1 << 20

// readSmall reads a file if it has at most inGroupFilesMax bytes. It returns the file's size in any case.
func readSmall(name string) (size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // a file that was only read loses nothing if Close fails
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size() > inGroupFilesMax {
		return info.Size(), nil
	}
	n, err := io.ReadFull(f, make([]byte, info.Size()))
	return int64(n), err
}

// state is the state of a file before the import.
type state struct {
	size  int64
	mtime time.Time
}

// now returns the current state of a file in a tree. It returns false if the file no longer exists as a regular file.
func (t *tree) now(name string) (state, bool) {
	info, err := os.Lstat(filepath.Join(t.dir, filepath.FromSlash(name)))
	if err != nil || !info.Mode().IsRegular() {
		return state{}, false
	}
	return state{info.Size(), info.ModTime()}, true
}

// recordFiles records the state of each file of a tree before the import. Other programs may change the tree at the
// same time, so the store may lack files that they add later, and later versions of files that they change.
func (t *tree) recordFiles(ctx context.Context) error {
	t.files = map[string]state{}
	return cli.Walk(ctx, t.dir, 1, true, func(item cli.Item) error {
		if s, regular := t.now(item.Path); regular {
			t.files[item.Path] = s
		}
		return nil
	})
}

// check compares a sample of the records, spread over the trees, byte for byte with their files. It skips files that
// have changed since the import began.
func (d *demo) check(ctx context.Context) error {
	const sample, step = 1000, 97
	checked, changed := 0, 0
	for _, t := range d.named {
		names := slices.Sorted(maps.Keys(t.files))
		for n := 0; n < len(names) && n/step < sample/len(d.named); n += step {
			switch same, err := d.checkOne(ctx, t, names[n]); {
			case err != nil:
				return err
			case same:
				checked++
			default:
				changed++
			}
		}
	}
	if changed > 0 {
		d.say("   %s since the import and left out", cli.Count(int64(changed), "file of the sample changed",
			"files of the sample changed"))
	}
	d.say("   %s compared with the files: every byte is there", cli.Count(int64(checked), "record", "records"))
	return nil
}

// checkOne compares a record with its file. It returns false if no comparison is possible, because the file has changed
// since the import began, or because this process is not permitted to read it.
func (d *demo) checkOne(ctx context.Context, t tree, name string) (bool, error) {
	want, err := os.ReadFile(filepath.Join(t.dir, filepath.FromSlash(name)))
	if errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	// A difference is the store's fault only if the file is unchanged since the import.
	if now, regular := t.now(name); !regular || now != t.files[name] {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("comparing: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.StallMax, &stallError{"reading a record", d.StallMax})
	defer cancel()
	var got bytes.Buffer
	if _, err := d.conn.Fetch(ctx, client.Key{ID: cli.HashID(path.Join(t.prefix, name))}, "", &got); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return false, fmt.Errorf("comparing %s: %w", name, err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		return false, fmt.Errorf("comparing %s: the record (%d bytes) differs from the file (%d bytes)", name, got.Len(),
			len(want))
	}
	return true, nil
}

func (d *demo) sayTry() {
	server := ""
	if d.Listen != "127.0.0.1:7600" {
		server = " --server " + d.Listen
	}
	d.say("\nThe store stays up until Ctrl-C. Try, in another terminal:")
	d.say("  bin/sheaf status%s", server)
	d.say("  echo hello | bin/sheaf put 42%s && bin/sheaf get 42%s", server, server)
	d.say("  bin/sheaf scan --metadata%s | head", server)
	d.say("  bin/sheaf export ./tree --prefix %s%s", d.named[0].prefix, server)
	d.say("  bin/sheaf-bench rpc --quick")
	d.say("  grpcurl -plaintext %s list", d.Listen)
	d.say("  curl -s http://%s/metrics | grep sheaf_", d.HTTP)
	d.say("or look at http://%s/ in a browser.", d.HTTP)
}
