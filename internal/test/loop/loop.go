// Package loop creates block devices from files (losetup) and leaves none behind. It can also run a program in its own
// mount namespace. The package needs root. It is for benchmarks and tests.
package loop

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// tries is the number of attempts to get a free loop device. An attempt fails if another process takes the device
// first.
const tries = 100

// Device is a file that is used as a block device. The kernel releases the device when it is no longer open or mounted
// in any process, no matter how these processes end.
type Device struct {
	File *os.File // /dev/loopN, open for reading and writing; Close releases the device
	Name string
}

// Attach creates a block device from an image, and closes the image. The sectors of the device have sectorBytes
// bytes, or 512 if sectorBytes is 0.
func Attach(image *os.File, sectorBytes int) (d *Device, err error) {
	defer func() { err = errors.Join(err, image.Close()) }()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices cannot be had: %w", err)
	}
	defer func() { err = errors.Join(err, control.Close()) }()
	for range tries {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("no free loop device: %w", err)
		}
		d, err := configure(fmt.Sprintf("/dev/loop%d", number), number, image, sectorBytes)
		if errors.Is(err, unix.EBUSY) { // another process took the device first
			continue
		}
		return d, err
	}
	return nil, errors.New("no free loop device: others took each one first")
}

func configure(name string, number int, image *os.File, sectorBytes int) (*Device, error) {
	device, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) { // in a container the device node may be missing
		const loopMajor = 7
		if err := unix.Mknod(name, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(number)))); err != nil &&
			!errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		device, err = os.OpenFile(name, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, err
	}
	// The flag for direct I/O bypasses the page cache of the file system that holds the image, if that file system
	// supports direct I/O.
	config := unix.LoopConfig{
		Fd: uint32(image.Fd()), Size: uint32(sectorBytes), Info: unix.LoopInfo64{
			Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO},
	}
	copy(config.Info.File_name[:], "sheaf-loop")
	if err := unix.IoctlLoopConfigure(int(device.Fd()), &config); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), device.Close())
	}
	return &Device{File: device, Name: name}, nil
}

// Direct reports whether reads and writes bypass the page cache of the file system that holds the image.
func (d *Device) Direct() bool {
	info, err := unix.IoctlLoopGetStatus64(int(d.File.Fd()))
	return err == nil && info.Flags&unix.LO_FLAGS_DIRECT_IO != 0
}

// ownMounts is set in the environment of a program that runs in its own mount namespace.
const ownMounts = "SHEAF_OWN_MOUNTS"

// HasOwnMounts reports whether OwnMounts gave this program a mount namespace of its own.
func HasOwnMounts() bool { return os.Getenv(ownMounts) != "" }

// OwnMounts executes this program again in its own mount namespace, if it is permitted to. Other processes do not see
// the program's mounts, and the mounts disappear when the program exits for any reason. OwnMounts returns if the
// program already has such a namespace or cannot have one.
func OwnMounts() error {
	if HasOwnMounts() || os.Geteuid() != 0 {
		return nil
	}
	// Only this thread gets the namespace. The goroutine stays on it until exec, which terminates all other threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		if errors.Is(err, unix.EPERM) {
			return nil // not permitted, for example in a container; using a loop device will return an error later
		}
		return fmt.Errorf("a mount namespace of its own: %w", err)
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	err := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), ownMounts+"=1"))
	return fmt.Errorf("running again in a mount namespace of its own: %w", err)
}
