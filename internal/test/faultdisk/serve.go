package faultdisk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/test/loop"
)

const (
	fileName      = "disk"
	messageMax    = 1 << 20 // maximum size of a write in bytes
	fileMode      = syscall.S_IFREG | 0o600
	statBlockSize = 512
)

// Drive is a block device of this machine, /dev/loopN, backed by a Device. It needs root and /dev/fuse.
type Drive struct {
	loop   *loop.Device
	server *fuse.Server
	point  string
}

// Attach creates a block device from a disk, with sectors of sectorBytes bytes (512 to PageBytes). Attach creates the
// FUSE mount point in dir.
func Attach(d *Device, dir string, sectorBytes int) (drive *Drive, err error) {
	point, err := os.MkdirTemp(dir, "faultdisk-")
	if err != nil {
		return nil, err
	}
	drive = &Drive{point: point}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("faultdisk: %w", err), drive.Detach())
		}
	}()
	drive.server, err = fs.Mount(point, &folder{device: d}, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, MaxWrite: messageMax, DisableSplice: true,
			FsName: "faultdisk"},
	})
	if err != nil {
		return drive, err
	}
	image, err := os.OpenFile(filepath.Join(point, fileName), os.O_RDWR, 0)
	if err != nil {
		return drive, err
	}
	drive.loop, err = loop.Attach(image, sectorBytes)
	return drive, err
}

// Path returns the path of the block device.
func (d *Drive) Path() string { return d.loop.Name }

// Detach releases the device, which must have been unmounted before. A second call does nothing.
func (d *Drive) Detach() error {
	var errs []error
	if d.loop != nil {
		errs = append(errs, d.loop.File.Close())
		d.loop = nil
	}
	if d.server != nil {
		// The kernel releases the loop device a moment after its last close, and only then closes the file behind it.
		if err := d.server.Unmount(); err != nil {
			errs = append(errs, unix.Unmount(d.point, unix.MNT_DETACH))
		}
		d.server = nil
	}
	if d.point != "" {
		errs = append(errs, os.Remove(d.point))
		d.point = ""
	}
	return errors.Join(errs...)
}

// folder is a FUSE folder that holds one file.
type folder struct {
	fs.Inode
	device *Device
}

// OnAdd implements fs.NodeOnAdder.
func (f *folder) OnAdd(ctx context.Context) {
	f.AddChild(fileName, f.NewPersistentInode(ctx, &file{device: f.device}, fs.StableAttr{Mode: syscall.S_IFREG}), false)
}

// file is the FUSE file that passes the kernel's requests to the Device.
type file struct {
	fs.Inode
	device *Device
}

var (
	_ fs.NodeOnAdder    = (*folder)(nil)
	_ fs.NodeOpener     = (*file)(nil)
	_ fs.NodeGetattrer  = (*file)(nil)
	_ fs.NodeSetattrer  = (*file)(nil)
	_ fs.NodeReader     = (*file)(nil)
	_ fs.NodeWriter     = (*file)(nil)
	_ fs.NodeFsyncer    = (*file)(nil)
	_ fs.NodeAllocater  = (*file)(nil)
	_ fs.NodeFlusher    = (*file)(nil)
	_ fs.NodeGetxattrer = (*file)(nil)
)

// Open implements fs.NodeOpener. It disables the page cache, so that every request of the kernel's file system reaches
// the disk.
func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

// Getattr implements fs.NodeGetattrer.
func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	size := uint64(f.device.Size())
	out.Mode, out.Size, out.Blocks = fileMode, size, size/statBlockSize
	return 0
}

// Setattr implements fs.NodeSetattrer. No attribute of the disk can be set.
func (f *file) Setattr(ctx context.Context, h fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return f.Getattr(ctx, h, out)
}

// Getxattr implements fs.NodeGetxattrer.
func (f *file) Getxattr(context.Context, string, []byte) (uint32, syscall.Errno) {
	return 0, syscall.ENODATA
}

// Flush implements fs.NodeFlusher. The kernel calls it when a file is closed. Flush does not flush the disk.
func (f *file) Flush(context.Context, fs.FileHandle) syscall.Errno { return 0 }

// Read implements fs.NodeReader.
func (f *file) Read(_ context.Context, _ fs.FileHandle, to []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	to = to[:max(0, min(int64(len(to)), f.device.Size()-offset))]
	n, err := f.device.ReadAt(to, offset)
	return fuse.ReadResultData(to[:n]), fs.ToErrno(err)
}

// Write implements fs.NodeWriter.
func (f *file) Write(_ context.Context, _ fs.FileHandle, data []byte, offset int64) (uint32, syscall.Errno) {
	n, err := f.device.WriteAt(data, offset)
	return uint32(n), fs.ToErrno(err)
}

// Fsync implements fs.NodeFsyncer.
func (f *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	return fs.ToErrno(f.device.Flush())
}

// Allocate implements fs.NodeAllocater. The loop driver calls it to discard or zero a range.
func (f *file) Allocate(_ context.Context, _ fs.FileHandle, offset, bytes uint64, mode uint32) syscall.Errno {
	if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
		return syscall.EOPNOTSUPP
	}
	return fs.ToErrno(f.device.Zero(int64(offset), int64(bytes)))
}
