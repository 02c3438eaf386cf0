// Command slowdisk serves one file through FUSE, at a rate that can be changed while it runs. A loop device on that
// file is a slow disk. The kernels on which this must run lack device-mapper. The kernel's block-I/O limits cannot be
// used either, because they apply to a cgroup and not to a device.
//
//	slowdisk IMAGE MOUNTPOINT RATEFILE
//
// MOUNTPOINT/sheaf-slowdisk is the image. This name shows who owns a loop device even when nothing else remains.
// RATEFILE contains "off", bytes per second with K, M or G (powers of 1024), "error" (every request returns EIO) or
// "hang" (requests wait until RATEFILE changes).
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

const (
	off  = 0
	fail = -1
	hang = -2
)

// parseRate parses the content of RATEFILE.
func parseRate(text string) (int64, error) {
	text = strings.TrimSpace(text)
	switch text {
	case "off":
		return off, nil
	case "error":
		return fail, nil
	case "hang":
		return hang, nil
	}
	shift := 0
	if n := len(text); n > 0 {
		if i := strings.IndexByte("KMG", text[n-1]); i >= 0 {
			shift, text = 10*(i+1), text[:n-1]
		}
	}
	rate, err := strconv.ParseInt(text, 10, 32)
	if err != nil || rate <= 0 {
		return 0, fmt.Errorf("slowdisk: %q is no rate: want off, error, hang or bytes per second like 4M", text)
	}
	return rate << shift, nil
}

// gate delays requests so that they do not exceed a given rate. Each request is assigned the time that it would take
// at that rate, directly after the time of the previous request.
type gate struct {
	file string

	mu   sync.Mutex // guards the fields below
	rate int64
	free time.Time // time at which all earlier requests will be complete
}

func (g *gate) set(rate int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if rate != g.rate {
		g.rate, g.free = rate, time.Now()
	}
}

// follow reads RATEFILE ten times a second and applies its content.
func (g *gate) follow() {
	for range time.Tick(100 * time.Millisecond) {
		if text, err := os.ReadFile(g.file); err == nil {
			if rate, err := parseRate(string(text)); err == nil {
				g.set(rate)
			}
		}
	}
}

// pass waits until a request of n bytes may pass.
func (g *gate) pass(ctx context.Context, n int) syscall.Errno {
	for {
		g.mu.Lock()
		rate := g.rate
		var wait time.Duration
		if rate > 0 {
			if now := time.Now(); g.free.Before(now) {
				g.free = now
			}
			g.free = g.free.Add(time.Duration(n) * time.Second / time.Duration(rate))
			wait = time.Until(g.free)
		}
		g.mu.Unlock()
		switch rate {
		case fail:
			return syscall.EIO
		case hang:
			wait = 50 * time.Millisecond
		}
		if wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return syscall.EINTR
			}
		}
		if rate != hang {
			return 0
		}
	}
}

type disk struct {
	fs.Inode
	image *os.File
	size  uint64
	gate  *gate
}

func (d *disk) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0 // bypass the page cache, or a second read would be fast
}

func (d *disk) attr(out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size, out.Blocks = 0o600, d.size, d.size/512
	return 0
}

func (d *disk) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	return d.attr(out)
}

func (d *disk) Setattr(_ context.Context, _ fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return d.attr(out)
}

func (d *disk) Read(ctx context.Context, _ fs.FileHandle, dest []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	if errno := d.gate.pass(ctx, len(dest)); errno != 0 {
		return nil, errno
	}
	n, err := d.image.ReadAt(dest, offset)
	if err != nil && n == 0 && uint64(offset) < d.size {
		return nil, fs.ToErrno(err)
	}
	return fuse.ReadResultData(dest[:n]), 0
}

func (d *disk) Write(ctx context.Context, _ fs.FileHandle, data []byte, offset int64) (uint32, syscall.Errno) {
	if errno := d.gate.pass(ctx, len(data)); errno != 0 {
		return 0, errno
	}
	n, err := d.image.WriteAt(data, offset)
	return uint32(n), fs.ToErrno(err)
}

func (d *disk) Fsync(ctx context.Context, _ fs.FileHandle, _ uint32) syscall.Errno {
	if errno := d.gate.pass(ctx, 0); errno != 0 {
		return errno
	}
	return fs.ToErrno(d.image.Sync())
}

type root struct {
	fs.Inode
	disk *disk
}

func (r *root) OnAdd(ctx context.Context) {
	r.AddChild("sheaf-slowdisk", r.NewPersistentInode(ctx, r.disk, fs.StableAttr{Mode: syscall.S_IFREG}), false)
}

func run() error {
	if len(os.Args) != 4 {
		return fmt.Errorf("usage: slowdisk IMAGE MOUNTPOINT RATEFILE")
	}
	image, err := os.OpenFile(os.Args[1], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := image.Stat()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(os.Args[3])
	if err != nil {
		return err
	}
	rate, err := parseRate(string(text))
	if err != nil {
		return err
	}
	g := &gate{file: os.Args[3], rate: rate}
	go g.follow()
	server, err := fs.Mount(os.Args[2], &root{disk: &disk{image: image, size: uint64(info.Size()), gate: g}},
		&fs.Options{MountOptions: fuse.MountOptions{DirectMountStrict: true, MaxWrite: 1 << 20, FsName: "slowdisk"}})
	if err != nil {
		return err
	}
	server.Wait()
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "slowdisk:", err)
		os.Exit(1)
	}
}
