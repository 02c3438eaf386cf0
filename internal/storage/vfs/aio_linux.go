package vfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A goroutine in a system call that waits for the device occupies one of the Go runtime's processors until the
// runtime's monitor notices. With few processors and many such calls, the processors are occupied most of the time.
// Therefore syncs and direct reads are passed to the kernel's asynchronous I/O with io_submit. A kernel worker then
// performs the sync with the same vfs_fsync. Completions arrive through an eventfd that the runtime polls like a
// socket. See io_submit(2), docs/adr/0006-asynchronous-syncs.md and docs/adr/0008-cold-reads.md. If the kernel or a
// sandbox does not allow asynchronous I/O, the ordinary calls are used.

const (
	aioUnderWay = 512 // maximum number of calls in flight; any further call is made as an ordinary system call

	iocbPread     = 0 // IOCB_CMD_PREAD
	iocbFdsync    = 3 // IOCB_CMD_FDSYNC
	iocbFlagResfd = 1 // IOCB_FLAG_RESFD
)

// iocb is struct iocb of linux/aio_abi.h on a little-endian machine.
type iocb struct {
	data      uint64 // the kernel returns this number in the event
	_         [2]uint32
	opcode    uint16
	_         int16
	fd        uint32
	buffer    uint64 // address of the memory
	bytes     uint64
	offset    int64
	_         uint64
	flags     uint32
	completed uint32 // an eventfd
}

// ioEvent is struct io_event of linux/aio_abi.h.
type ioEvent struct {
	data   uint64
	_      uint64
	result int64 // number of bytes, or the negated errno
	_      int64
}

// aioCall is a slot for one asynchronous call. Later calls reuse it.
type aioCall struct {
	control iocb
	// memory is the buffer of a read. While the kernel writes to this memory, it must neither be freed, which this
	// reference prevents, nor move.
	memory []byte
	done   chan int64 // receives the result; its buffer has space for one element
}

// aio passes calls to the kernel's asynchronous I/O.
type aio struct {
	context uintptr
	eventFd int
	events  *os.File
	calls   [aioUnderWay]aioCall

	mu   sync.Mutex
	free []int // indexes of unused elements of calls; guarded by mu
}

// kernelAIO returns the process's only aio, which the first call creates. It returns nil if the kernel does not allow
// asynchronous I/O.
var kernelAIO = sync.OnceValue(func() *aio {
	a, err := newAIO()
	if err != nil {
		return nil
	}
	go a.complete()
	return a
})

func newAIO() (*aio, error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errors.New("the layout of iocb is another one here")
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	a := &aio{eventFd: fd, events: os.NewFile(uintptr(fd), "eventfd")}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, aioUnderWay, uintptr(unsafe.Pointer(&a.context)), 0); errno != 0 {
		return nil, errors.Join(fmt.Errorf("io_setup: %w", errno), a.events.Close())
	}
	for i := range a.calls {
		a.calls[i].done = make(chan int64, 1)
		a.free = append(a.free, i)
	}
	return a, nil
}

// fdatasync makes a file's content and size durable, without blocking one of the Go runtime's processors.
func fdatasync(fd int) error {
	if _, taken, err := kernelAIO().do(iocb{opcode: iocbFdsync, fd: uint32(fd)}, nil); taken {
		return err
	}
	return unix.Fdatasync(fd)
}

// preadDirect is like pread for a file opened with O_DIRECT, without blocking one of the Go runtime's processors.
func preadDirect(fd int, p []byte, offset int64) (int, error) {
	address := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p))))
	call := iocb{opcode: iocbPread, fd: uint32(fd), buffer: address, bytes: uint64(len(p)), offset: offset}
	if n, taken, err := kernelAIO().do(call, p); taken {
		return n, err
	}
	return unix.Pread(fd, p, offset)
}

// do passes one call to the kernel and waits for its result. If a is nil, or if the kernel does not accept the call,
// taken is false and nothing was done.
func (a *aio) do(control iocb, memory []byte) (n int, taken bool, err error) {
	if a == nil {
		return 0, false, nil
	}
	a.mu.Lock()
	last := len(a.free) - 1
	if last < 0 {
		a.mu.Unlock()
		return 0, false, nil
	}
	number := a.free[last]
	a.free = a.free[:last]
	a.mu.Unlock()
	c := &a.calls[number]
	control.data, control.flags, control.completed = uint64(number), iocbFlagResfd, uint32(a.eventFd)
	c.control, c.memory = control, memory
	at := &c.control
	submitted, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, a.context, 1, uintptr(unsafe.Pointer(&at)))
	taken = errno == 0 && submitted == 1
	var result int64
	if taken {
		result = <-c.done
	}
	c.memory = nil
	a.mu.Lock()
	a.free = append(a.free, number)
	a.mu.Unlock()
	if result < 0 {
		return 0, taken, unix.Errno(-result)
	}
	return int(result), taken, nil
}

// complete passes the results of calls to the goroutines that wait for them. It runs until the process exits.
func (a *aio) complete() {
	var count [8]byte
	events := make([]ioEvent, 64)
	for {
		// The number that this read returns is not needed, because the loop below asks for completions until there are
		// none. The eventfd is never closed, so the read can fail only because it was interrupted.
		_, _ = a.events.Read(count[:])
		for {
			var none unix.Timespec
			n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, a.context, 0, uintptr(len(events)),
				uintptr(unsafe.Pointer(&events[0])), uintptr(unsafe.Pointer(&none)), 0)
			if errno == unix.EINTR {
				continue
			}
			if errno != 0 || n == 0 {
				break
			}
			for i := range events[:n] {
				// The send never blocks, because the channel has space for one element.
				a.calls[events[i].data].done <- events[i].result
			}
			if int(n) < len(events) {
				break // later completions will make the eventfd readable again
			}
		}
	}
}
