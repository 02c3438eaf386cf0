package layouts

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/drive"
)

// mountWait limits how long to wait until a mount appears, and until it is released.
const (
	mountWait = 30 * time.Second
	mountLook = 2 * time.Millisecond
)

// mounted is a mounted file system.
type mounted struct {
	point  string
	daemon *drive.Process // the FUSE program; nil if the kernel serves the file system
}

func mount(ctx context.Context, fs *fileSystem, device, point string) (*mounted, error) {
	if !inKernel(fs.driver) {
		return mountFUSE(ctx, fs, device, point)
	}
	if err := unix.Mount(device, point, fs.driver, unix.MS_NOATIME|unix.MS_NODIRATIME, fs.options); err != nil {
		return nil, fmt.Errorf("mounting %s on %s (%s): %w", fs.name, device, fs.options, err)
	}
	return &mounted{point: point}, nil
}

// mountFUSE starts the program that serves a file system, as a child process that exits with this process.
func mountFUSE(ctx context.Context, fs *fileSystem, device, point string) (*mounted, error) {
	words := make([]string, len(fs.fuse))
	for i, w := range fs.fuse {
		words[i] = strings.NewReplacer("$DEVICE", device, "$POINT", point).Replace(w)
	}
	before, err := deviceOf(point)
	if err != nil {
		return nil, err
	}
	d, err := drive.Start(exec.Command(words[0], words[1:]...), syscall.SIGTERM) //nolint:noctx // unmount ends the program
	if err != nil {
		return nil, err
	}
	m := &mounted{point: point, daemon: d}
	for end := time.Now().Add(mountWait); ; {
		now, err := deviceOf(point)
		if err == nil && now != before {
			return m, nil
		}
		select {
		case <-d.Ended:
			return nil, d.Err()
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), m.unmount())
		case <-time.After(mountLook):
		}
		if time.Now().After(end) {
			return nil, errors.Join(fmt.Errorf("%s: nothing is mounted after %v", strings.Join(words, " "), mountWait),
				m.unmount())
		}
	}
}

func deviceOf(dir string) (uint64, error) {
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	return s.Dev, nil
}

// unmount unmounts the file system. It retries while the mount is busy, because a child process that was just forked
// holds the open files of this process until it executes its program.
func (m *mounted) unmount() error {
	for end := time.Now().Add(mountWait); ; time.Sleep(mountLook) {
		err := unix.Unmount(m.point, 0)
		// If unmounting fails with EINVAL, the daemon never mounted the file system.
		if err == nil || m.daemon != nil && errors.Is(err, unix.EINVAL) {
			break
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return errors.Join(fmt.Errorf("unmounting %s: %w", m.point, err), unix.Unmount(m.point, unix.MNT_DETACH))
		}
	}
	if m.daemon == nil {
		return nil
	}
	select { // the device is free only when the daemon has exited
	case <-m.daemon.Ended:
		return nil
	case <-time.After(mountWait):
		m.daemon.Kill()
		return fmt.Errorf("%s did not end within %v after its file system was unmounted", m.daemon.Cmd.Path, mountWait)
	}
}
