package vfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A goroutine in fdatasync keeps its processor from the others until the runtime's monitor notices, which with few
// processors and many syncs is most of the time. So syncs are handed to the kernel by its asynchronous I/O (io_submit,
// IOCB_CMD_FDSYNC: a worker of the kernel calls the same vfs_fsync), and completions come by an eventfd that the
// runtime polls like a socket. See io_submit(2) and docs/adr/0006-asynchronous-syncs.md. Where the kernel or a sandbox
// does not allow that, the file is synced by fdatasync.

const (
	syncsUnderWay = 256 // more are done by fdatasync

	iocbFdsync    = 3 // IOCB_CMD_FDSYNC
	iocbFlagResfd = 1 // IOCB_FLAG_RESFD
)

// iocb is struct iocb of linux/aio_abi.h on a little-endian machine.
type iocb struct {
	data      uint64 // comes back in the event
	_         [2]uint32
	opcode    uint16
	_         int16
	fd        uint32
	_         [4]uint64 // buffer, bytes and offset, which a sync has not
	flags     uint32
	completed uint32 // eventfd
}

// ioEvent is struct io_event of linux/aio_abi.h.
type ioEvent struct {
	data   uint64
	_      uint64
	result int64 // 0, or the negative errno
	_      int64
}

// syncer hands syncs to the kernel.
type syncer struct {
	context  uintptr
	eventFd  int
	events   *os.File
	underWay atomic.Int32

	mu      sync.Mutex
	waiting map[uint64]chan int64 // guarded by mu
	next    uint64                // guarded by mu
}

// kernelSyncer is made at the first sync; nil where it cannot be.
var kernelSyncer = sync.OnceValue(func() *syncer {
	s, err := newSyncer()
	if err != nil {
		return nil
	}
	go s.complete()
	return s
})

func newSyncer() (*syncer, error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errors.New("the layout of iocb is another one here")
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	s := &syncer{eventFd: fd, events: os.NewFile(uintptr(fd), "eventfd"), waiting: make(map[uint64]chan int64)}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, syncsUnderWay, uintptr(unsafe.Pointer(&s.context)), 0); errno != 0 {
		return nil, errors.Join(fmt.Errorf("io_setup: %w", errno), s.events.Close())
	}
	return s, nil
}

// fdatasync makes the content and the size of a file durable, and holds no processor of the runtime while it waits.
func fdatasync(fd int) error {
	if s := kernelSyncer(); s != nil {
		if taken, err := s.sync(fd); taken {
			return err
		}
	}
	return unix.Fdatasync(fd)
}

// sync is fdatasync. false where the kernel did not take it: nothing was done then.
func (s *syncer) sync(fd int) (taken bool, err error) {
	if s.underWay.Add(1) > syncsUnderWay {
		s.underWay.Add(-1)
		return false, nil
	}
	defer s.underWay.Add(-1)
	done := make(chan int64, 1)
	s.mu.Lock()
	s.next++
	number := s.next
	s.waiting[number] = done
	s.mu.Unlock()
	control := &iocb{data: number, opcode: iocbFdsync, fd: uint32(fd), flags: iocbFlagResfd, completed: uint32(s.eventFd)}
	n, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, s.context, 1, uintptr(unsafe.Pointer(&control)))
	runtime.KeepAlive(control)
	if errno != 0 || n != 1 {
		s.mu.Lock()
		delete(s.waiting, number)
		s.mu.Unlock()
		return false, nil
	}
	if result := <-done; result < 0 {
		return true, unix.Errno(-result)
	}
	return true, nil
}

// complete wakes those whose sync has ended, for as long as the process lives.
func (s *syncer) complete() {
	var count [8]byte
	events := make([]ioEvent, 64)
	for {
		// The eventfd is never closed, so that a read can only be interrupted; what has completed is looked at in any case.
		_, _ = s.events.Read(count[:])
		for {
			var none unix.Timespec
			n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, s.context, 0, uintptr(len(events)),
				uintptr(unsafe.Pointer(&events[0])), uintptr(unsafe.Pointer(&none)), 0)
			if errno == unix.EINTR {
				continue
			}
			if errno != 0 || n == 0 {
				break
			}
			s.mu.Lock()
			for _, e := range events[:n] {
				done := s.waiting[e.data]
				delete(s.waiting, e.data)
				done <- e.result // holds one: never waits
			}
			s.mu.Unlock()
		}
	}
}
