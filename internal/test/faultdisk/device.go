package faultdisk

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
)

// Kind is the kind of a recorded operation.
type Kind uint8

// These are the kinds of operations.
const (
	Write Kind = iota
	Zero       // a range was zeroed or discarded, and reads as zeros
	Flush      // everything that was recorded before a Flush survives a power cut after the Flush
)

// Op is one operation that a disk has carried out.
type Op struct {
	Kind   Kind
	Offset int64
	Bytes  int64
	Data   []byte // the written data, Bytes long; must not be changed
}

// Device is a disk in memory. Device is safe for concurrent use.
type Device struct {
	mu     sync.Mutex // guards the fields below
	eased  sync.Cond  // signalled when a fault is removed
	now    pages
	record []Op
	faults []*Fault
}

// New creates a disk of zeros. Its size in bytes must be a multiple of PageBytes.
func New(bytes int64) *Device {
	if bytes <= 0 || bytes%PageBytes != 0 {
		panic(fmt.Sprintf("faultdisk: a disk of %d bytes", bytes))
	}
	return newDevice(make(pages, bytes/PageBytes))
}

// Of creates a disk with an image's content and an empty record.
func Of(i *Image) *Device { return newDevice(slices.Clone(i.pages)) }

func newDevice(content pages) *Device {
	d := &Device{now: content}
	d.eased.L = &d.mu
	return d
}

// Size returns the size of the disk in bytes.
func (d *Device) Size() int64 { return d.now.size() }

// Begin clears the record, and returns the content at the beginning of the new record.
func (d *Device) Begin() *Image {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.record = nil
	return &Image{slices.Clone(d.now)}
}

// Position returns the number of operations recorded so far. It includes every operation that had returned before
// Position was called.
func (d *Device) Position() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.record)
}

// Record returns all operations since Begin, in the order in which they were performed.
func (d *Device) Record() []Op {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.record)
}

// Rot flips bits of one byte. The record does not contain this change.
func (d *Device) Rot(offset int64, mask byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.inside(offset, 1); err != nil {
		return err
	}
	var b [1]byte
	d.now.read(b[:], offset)
	d.now.write([]byte{b[0] ^ mask}, offset)
	return nil
}

// ReadAt implements io.ReaderAt, except that it reads either everything or nothing.
func (d *Device) ReadAt(p []byte, offset int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.applyFaults(Reads, offset, int64(len(p))); err != nil {
		return 0, err
	}
	d.now.read(p, offset)
	return len(p), nil
}

// WriteAt implements io.WriterAt, except that it writes either everything or nothing. It keeps a copy of p.
func (d *Device) WriteAt(p []byte, offset int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.applyFaults(Writes, offset, int64(len(p))); err != nil {
		return 0, err
	}
	d.apply(Op{Kind: Write, Offset: offset, Bytes: int64(len(p)), Data: slices.Clone(p)})
	return len(p), nil
}

// Zero writes zeros to a range.
func (d *Device) Zero(offset, bytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.applyFaults(Writes, offset, bytes); err != nil {
		return err
	}
	d.apply(Op{Kind: Zero, Offset: offset, Bytes: bytes})
	return nil
}

// Flush makes all earlier writes survive a power cut.
func (d *Device) Flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.applyFaults(Flushes, 0, d.now.size()); err != nil {
		return err
	}
	d.apply(Op{Kind: Flush})
	return nil
}

// apply applies an operation to the disk and adds it to the record. The caller holds mu.
func (d *Device) apply(op Op) {
	d.now.do(op)
	d.record = append(d.record, op)
}

// do applies an operation to a disk's content.
func (p pages) do(op Op) {
	switch op.Kind {
	case Write:
		p.write(op.Data, op.Offset)
	case Zero:
		p.zero(op.Offset, op.Bytes)
	case Flush:
	}
}

func (d *Device) inside(offset, bytes int64) error {
	if offset < 0 || bytes < 0 || offset > d.now.size()-bytes {
		return fmt.Errorf("faultdisk: %d bytes at %d of a disk of %d: %w", bytes, offset, d.now.size(), syscall.EINVAL)
	}
	return nil
}
