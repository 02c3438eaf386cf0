package layouts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// probeBytes is the number of bytes that are examined at the start and at the end of a device. The device is treated
// as blank if all of them are zero, because every known file system, partition table, volume manager and RAID has its
// superblock at one of these places.
const probeBytes = 1 << 20

// signatures identify the content of a device for the error message.
var signatures = []struct {
	offset int
	magic  string
	what   string
}{
	{0, "XFSB", "xfs"},
	{3, "NTFS    ", "ntfs"},
	{82, "FAT32", "fat32"},
	{512, "EFI PART", "a partition table (GPT)"},
	{512, "LABELONE", "LVM"},
	{0, "LUKS\xba\xbe", "LUKS"},
	{0x438, "\x53\xef", "ext2, ext3 or ext4"},
	{0x10040, "_BHRfS_M", "btrfs"},
	{510, "\x55\xaa", "a partition table (MBR)"},
}

// openDevice opens a block device that is not in use. Without destroy, the device must be blank.
func openDevice(name string, destroy bool) (f *os.File, size int64, err error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	if info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
		return nil, 0, fmt.Errorf("%s is no block device", name)
	}
	// Opening a block device with O_EXCL fails if the device is mounted or is a part of another device.
	f, err = os.OpenFile(name, os.O_RDWR|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, 0, fmt.Errorf("%w: %s is in use: mounted, or part of a volume", ErrHasData, name)
	}
	if err != nil {
		return nil, 0, err
	}
	size, err = f.Seek(0, io.SeekEnd)
	if err == nil && !destroy {
		err = checkBlank(f, size)
	}
	if err == nil {
		// The device is opened again without O_EXCL, because mkfs and mount need the exclusive access.
		err = f.Close()
		if err == nil {
			f, err = os.OpenFile(name, os.O_RDWR, 0)
		}
		return f, size, err
	}
	return nil, 0, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
}

// checkBlank returns an error if the start or the end of the device contains anything other than zeros.
func checkBlank(f io.ReaderAt, size int64) error {
	head, err := readAt(f, 0, size)
	if err != nil {
		return err
	}
	for _, s := range signatures {
		if s.offset+len(s.magic) <= len(head) && string(head[s.offset:s.offset+len(s.magic)]) == s.magic {
			return fmt.Errorf("%w: %s; --destroy writes over it", ErrHasData, s.what)
		}
	}
	tail, err := readAt(f, max(0, size-probeBytes), size)
	if err != nil {
		return err
	}
	zeros := make([]byte, probeBytes)
	if !bytes.Equal(head, zeros[:len(head)]) || !bytes.Equal(tail, zeros[:len(tail)]) {
		return fmt.Errorf("%w: its first or last MiB is not blank; --destroy writes over it", ErrHasData)
	}
	return nil
}

func readAt(f io.ReaderAt, offset, size int64) ([]byte, error) {
	b := make([]byte, min(probeBytes, size-offset))
	n, err := f.ReadAt(b, offset)
	if n == len(b) {
		return b, nil
	}
	return nil, fmt.Errorf("reading %d bytes at %d: %w", len(b), offset, err)
}

// makeBlank writes zeros to the places that checkBlank examines, so that the next run accepts the device.
func makeBlank(f *os.File, size int64) error {
	zeros := make([]byte, min(probeBytes, size))
	_, first := f.WriteAt(zeros, 0)
	_, last := f.WriteAt(zeros, max(0, size-probeBytes))
	return errors.Join(first, last, f.Sync())
}
