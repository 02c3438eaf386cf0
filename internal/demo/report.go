package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	recordv1 "sheaf.dev/sheaf/api/record/v1"
	"sheaf.dev/sheaf/internal/bench"
	"sheaf.dev/sheaf/internal/cli"
	"sheaf.dev/sheaf/internal/dev"
)

// deviceRate reads the segments past the page cache: what the device gives at most.
func (d *demo) deviceRate() (bytesPerSecond float64, err error) {
	var segments []string
	err = filepath.WalkDir(filepath.Join(d.dir, "store", "shards"), func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && strings.HasPrefix(e.Name(), "segment-") {
			segments = append(segments, name)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("looking for segments: %w", err)
	}
	stored, took, err := bench.RawRate(segments)
	if err != nil {
		d.say("   (the device's own rate cannot be measured: %v)", err)
		return 0, nil
	}
	return float64(stored) / took.Seconds(), nil
}

// dropCaches makes the next reads cold; false where we may not.
func dropCaches() bool {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200) == nil
}

func (d *demo) sayLoad(took time.Duration, s dev.Status, device float64) {
	l := s.Load
	var records int64
	for _, one := range s.Shards {
		for _, g := range one.Groups {
			records += g.Records
		}
	}
	d.say("   loaded %s records, %s in %.2f s: %s/s", cli.FormatCount(records), cli.FormatBytes(l.BytesDone), l.ElapsedSeconds, cli.FormatBytes(int64(l.BytesPerSecond)))
	if device > 0 {
		d.say("   that is %.0f%% of the device's sequential rate (%s/s, read past the page cache)", 100*l.BytesPerSecond/device, cli.FormatBytes(int64(device)))
	}
	d.say("   serving all groups %.2f s after the process began", took.Seconds())
}

// sayFiles reads the files of the trees, in parallel, as a program with one file per record must at its start. Files above
// 1 MiB are left out: their records are files of their own here too, and are read only when asked for.
func (d *demo) sayFiles(ctx context.Context, took time.Duration, s dev.Status, cold bool) error {
	state := "cold"
	if cold {
		cold = dropCaches()
	}
	if !cold {
		state = "warm, as the page cache may not be dropped here"
	}
	const workers = 8
	var read, n, large atomic.Int64
	begin := time.Now()
	for _, t := range d.named {
		err := cli.Walk(ctx, t.dir, workers, false, func(item cli.Item) error {
			if item.Err != nil || !item.Type.IsRegular() {
				return nil //nolint:nilerr // the import said what cannot be read
			}
			size, err := readSmall(filepath.Join(t.dir, filepath.FromSlash(item.Path)))
			if err != nil {
				return nil //nolint:nilerr // as above
			}
			if size > inGroupFilesMax {
				large.Add(1)
				return nil
			}
			read.Add(size)
			n.Add(1)
			return nil
		})
		if err != nil {
			return err
		}
	}
	seconds := time.Since(begin).Seconds()
	d.say("   %s files, %s, %d at a time, %s: %.2f s, %s/s", cli.FormatCount(n.Load()), cli.FormatBytes(read.Load()), workers, state, seconds, cli.FormatBytes(int64(float64(read.Load())/seconds)))
	d.say("   (%d files above 1 MiB are left out on both sides: such a record has a blob file of its own)", large.Load())
	d.say("\n%s records, %s: one file each %.2f s %s; group files %.2f s, %.1f times as fast (%.2f s with the start of the process)",
		cli.FormatCount(n.Load()), cli.FormatBytes(read.Load()), seconds, strings.SplitN(state, ",", 2)[0], s.Load.ElapsedSeconds, seconds/s.Load.ElapsedSeconds, took.Seconds())
	return nil
}

// inGroupFilesMax is the size of data in bytes up to which a record stands in a group file.
const inGroupFilesMax = 1 << 20

// readSmall reads a file of at most inGroupFilesMax bytes and gives the size of any.
func readSmall(name string) (size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // only read from
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

// check compares records with their files, byte for byte: a sample spread over the trees.
func (d *demo) check(ctx context.Context) error {
	const sample = 1000
	checked := 0
	for _, t := range d.named {
		var names []string
		n := 0
		err := cli.Walk(ctx, t.dir, 1, true, func(item cli.Item) error {
			if item.Err == nil && item.Type.IsRegular() {
				if n++; n%97 == 0 && len(names) < sample/len(d.named) {
					names = append(names, item.Path)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := d.checkOne(ctx, t, name); err != nil {
				return err
			}
			checked++
		}
	}
	d.say("   %d records compared with their files: every byte is there", checked)
	return nil
}

func (d *demo) checkOne(ctx context.Context, t tree, name string) error {
	want, err := os.ReadFile(filepath.Join(t.dir, filepath.FromSlash(name)))
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("comparing: %w", err)
	}
	var got bytes.Buffer
	key := &recordv1.RecordKey{Id: cli.HashID(path.Join(t.prefix, name))}
	if _, err := d.conn.Get(ctx, &recordv1.GetRequest{Key: key}, io.Writer(&got)); err != nil {
		return fmt.Errorf("comparing %s: %w", name, err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		return fmt.Errorf("comparing %s: the record (%d bytes) differs from the file (%d bytes)", name, got.Len(), len(want))
	}
	return nil
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
	d.say("  bin/sheaf bench rpc --quick")
	d.say("  grpcurl -plaintext %s list", d.Listen)
	d.say("  curl -s http://%s/metrics | grep sheaf_", d.HTTP)
}
