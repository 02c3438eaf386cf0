package shard

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// These tests use real time, because they need real file systems on loop devices.

const mib = 1 << 20

// deviceOf returns the loop device of the file system that is mounted at a mount point.
func deviceOf(t *testing.T, point string) string {
	t.Helper()
	m, err := volume.MountOf(vfs.OS{}, point)
	if err != nil || !strings.HasPrefix(m.Source, "/dev/loop") {
		t.Fatalf("mount %+v, %v", m, err)
	}
	return m.Source
}

// The test overwrites a real device with zeros while a shard is running on it.
func TestADeviceZeroedUnderAShard(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: zeroes a device")
	}
	point := vfstest.LoopMount(t, "ext4", "ext4", 64*mib)
	device := deviceOf(t, point)
	registry := newRegistry(hash4, "s1")
	// The value 0 of Guard makes the Host use the same interval as in production.
	f := startHost(t, registry, func(c *Config) { c.Dir, c.Wanted.FileSystem, c.times.Guard = point, "ext4", 0 })
	f.put(1, "one")
	f.placed()
	id := f.reaches(serving).GetVolumeUuid()

	disk, err := os.OpenFile(device, os.O_WRONLY|unix.O_SYNC, 0)
	must(t, err)
	began := time.Now()
	zeros := bytes.NewReader(make([]byte, 64*mib))
	if _, err := disk.ReadFrom(zeros); err != nil {
		t.Fatal(err)
	}
	must(t, disk.Close())
	f.holdsBack(diskLost, id)
	if row := f.row(); row.GetCapacityBytes() < 0 || row.GetFreeBytes() < 0 {
		t.Errorf("the room of a device that holds nothing: %d bytes, %d free", row.GetCapacityBytes(), row.GetFreeBytes())
	}
	t.Logf("noticed after %v", time.Since(began))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_, err = recordv1.NewRecordServiceClient(f.conn).Get(ctx, &recordv1.GetRequest{Key: key(1)})
	want(t, err, codes.Unavailable, reason.NotServing)
	f.stop()
	// The configuration of the next process names the expected volume. Therefore the process neither serves this disk
	// nor treats it as a new one.
	f.cfg.Wanted.Volume = registry.now().Groups["0"].Members[0].VolumeUUID
	f.run()
	f.holdsBack(diskLost, f.cfg.Wanted.Volume.String())
}

// A file system of an unexpected type is detected before anything is written to it, even if that type is closely
// related to the expected one.
func TestAnExt3IsNoExt4(t *testing.T) {
	for _, kind := range []string{"ext2", "ext3"} {
		t.Run(kind, func(t *testing.T) {
			point := vfstest.LoopMount(t, kind, "ext4", 32*mib)
			before := filesBelow(t, vfs.OS{}, point)
			f := startHost(t, newRegistry(hash4, "s1"), func(c *Config) { c.Dir, c.Wanted.FileSystem = point, "ext4" })
			f.holdsBack(mismatch, kind, "ext4")
			if after := filesBelow(t, vfs.OS{}, point); len(after) != len(before) {
				t.Errorf("something was written: %v, was %v", after, before)
			}
			f.stop()
			f.cfg.Wanted.FileSystem = kind
			f.run()
			f.put(1, "one")
			f.reaches(serving)
			f.stop()
			f.cfg.Wanted.FileSystem = "ext4"
			f.run()
			f.holdsBack(mismatch, kind, "ext4")
		})
	}
}

// A running shard can use additional space as soon as its file system grows.
func TestAFileSystemThatGrows(t *testing.T) {
	point := vfstest.LoopMount(t, "ext4", "ext4", 64*mib)
	device := deviceOf(t, point)
	f := startHost(t, newRegistry(hash4, "s1"), func(c *Config) { c.Dir, c.SegmentBytes = point, 4*mib })
	f.put(1, "one")
	f.placed()
	f.reaches(serving)
	records := recordv1.NewRecordServiceClient(f.conn)
	put := func(id int64) error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		_, err := records.Put(ctx, &recordv1.PutRequest{Key: key(id), Data: make([]byte, 200_000)}, grpc.WaitForReady(true))
		if status.Code(err) == codes.Unavailable {
			return nil // the group is still being created
		}
		return err
	}
	var refused error
	id := int64(2)
	for ; refused == nil && id < 1000; id++ {
		refused = put(id)
	}
	want(t, refused, codes.ResourceExhausted, reason.DiskFull)
	f.get(1, "one")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := records.Delete(ctx, &recordv1.DeleteRequest{Key: key(2)}); err != nil {
		t.Errorf("delete: %v", err)
	}

	file, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file"))
	must(t, err)
	must(t, os.Truncate(strings.TrimSpace(string(file)), 256*mib))
	for _, args := range [][]string{{"losetup", "-c", device}, {"resize2fs", device}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("NOT TESTED with a file system that grows: %v: %v: %s", args, err, out)
		}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if err = put(id); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the room is not noticed: %v", err)
		}
	}
	if row := f.row(); row.GetCapacityBytes() < 150*mib || row.GetState() != serving {
		t.Errorf("row: %v", row)
	}
}
