package layouts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// mountWait bounds how long a mount may take to come, and to be let go.
const (
	mountWait = 30 * time.Second
	mountLook = 2 * time.Millisecond
)

// mounted is a file system that is mounted.
type mounted struct {
	point  string
	daemon *daemon // nil: the kernel serves it
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

// mountFUSE starts the program that serves a file system, as a child that ends with this process.
func mountFUSE(ctx context.Context, fs *fileSystem, device, point string) (*mounted, error) {
	words := make([]string, len(fs.fuse))
	for i, w := range fs.fuse {
		words[i] = strings.NewReplacer("$DEVICE", device, "$POINT", point).Replace(w)
	}
	before, err := deviceOf(point)
	if err != nil {
		return nil, err
	}
	d, err := startDaemon(words)
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
		case <-d.ended:
			return nil, fmt.Errorf("%s ended: %w: %s", strings.Join(words, " "), d.err, lastWords(d.out.Bytes()))
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), m.unmount())
		case <-time.After(mountLook):
		}
		if time.Now().After(end) {
			return nil, errors.Join(fmt.Errorf("%s: nothing is mounted after %v", strings.Join(words, " "), mountWait), m.unmount())
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

// unmount waits until nobody uses the mount: a process that was just begun has our open files until it runs its
// program.
func (m *mounted) unmount() error {
	for end := time.Now().Add(mountWait); ; time.Sleep(mountLook) {
		err := unix.Unmount(m.point, 0)
		if err == nil || m.daemon != nil && errors.Is(err, unix.EINVAL) { // it was never mounted
			break
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return errors.Join(fmt.Errorf("unmounting %s: %w", m.point, err), unix.Unmount(m.point, unix.MNT_DETACH))
		}
	}
	if m.daemon != nil {
		return m.daemon.wait()
	}
	return nil
}

// daemon is a child process that serves a file system.
type daemon struct {
	cmd   *exec.Cmd
	out   bytes.Buffer // to be read when it has ended
	ended chan struct{}
	err   error // how; to be read when it has ended
}

// startDaemon starts a child that is told to end when this process dies. The kernel ties that to the thread that starts
// it, so a goroutine keeps its thread until the child has ended.
func startDaemon(words []string) (*daemon, error) {
	d := &daemon{cmd: exec.Command(words[0], words[1:]...), ended: make(chan struct{})} //nolint:noctx // ended by unmounting it
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true} // a Ctrl-C is for us, not for it
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := d.cmd.Start()
		started <- err
		if err == nil {
			d.err = d.cmd.Wait()
			close(d.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", words[0], err)
	}
	return d, nil
}

// wait until the child is gone after its file system was unmounted: only then is the device free.
func (d *daemon) wait() error {
	select {
	case <-d.ended:
		return nil
	case <-time.After(mountWait):
	}
	err := d.cmd.Process.Kill()
	<-d.ended
	return errors.Join(fmt.Errorf("%s did not end within %v after its file system was unmounted", d.cmd.Path, mountWait), err)
}
