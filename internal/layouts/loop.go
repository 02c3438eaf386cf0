package layouts

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// loopDevice is a file used as a block device. The file has no name any more, and the kernel lets the device go when the last
// who has it open or mounted does: nothing is left behind, however the process ends.
type loopDevice struct {
	file *os.File // /dev/loopN
	name string
}

const (
	loopTries = 100
	zeroBytes = 4 << 20 // written at a time
)

// newImage makes a file of so many bytes without a name. The first prewritten bytes are written, so that what is measured on them
// later does not have to find room on the file system below; the rest is sparse.
func newImage(ctx context.Context, dir string, bytes, prewritten int64, onto func(done int64)) (f *os.File, err error) {
	if f, err = os.CreateTemp(dir, "sheaf-bench-image-"); err != nil {
		return nil, fmt.Errorf("making an image: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	if err := f.Truncate(bytes); err != nil {
		return nil, fmt.Errorf("making an image of %d bytes: %w", bytes, err)
	}
	zeros := make([]byte, zeroBytes)
	for at := int64(0); at < prewritten; at += zeroBytes {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if _, err := f.WriteAt(zeros[:min(zeroBytes, prewritten-at)], at); err != nil {
			return nil, fmt.Errorf("writing an image of %d bytes: %w", bytes, err)
		}
		onto(at)
	}
	return f, f.Sync()
}

// attachLoop makes a block device of an image, which it closes.
func attachLoop(image *os.File) (l *loopDevice, err error) {
	defer func() { err = errors.Join(err, image.Close()) }()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices cannot be had: %w", err)
	}
	defer func() { err = errors.Join(err, control.Close()) }()
	for range loopTries {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("no free loop device: %w", err)
		}
		l, err := configureLoop(fmt.Sprintf("/dev/loop%d", number), number, image)
		if errors.Is(err, unix.EBUSY) { // somebody else was faster
			continue
		}
		return l, err
	}
	return nil, errors.New("no free loop device: others took each one first")
}

func configureLoop(name string, number int, image *os.File) (*loopDevice, error) {
	device, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) { // in a container nobody makes the node
		const loopMajor = 7
		if err := unix.Mknod(name, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(number)))); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		device, err = os.OpenFile(name, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, err
	}
	// Past the page cache of the file system below, where that can do it.
	config := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO}}
	copy(config.Info.File_name[:], "sheaf-bench")
	if err := unix.IoctlLoopConfigure(int(device.Fd()), &config); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), device.Close())
	}
	return &loopDevice{file: device, name: name}, nil
}

// direct tells whether the page cache below is passed by.
func (l *loopDevice) direct() bool {
	info, err := unix.IoctlLoopGetStatus64(int(l.file.Fd()))
	return err == nil && info.Flags&unix.LO_FLAGS_DIRECT_IO != 0
}
