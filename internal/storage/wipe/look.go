package wipe

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
)

// signature is a byte string that identifies the content of a disk.
type signature struct {
	what  string
	at    int64
	magic string
	// labelAt and labelLen are the offset and the length of the label, which is a name that a person has given to the
	// content. They are 0 if this kind of content has no label.
	labelAt  int64
	labelLen int
}

// signatures lists the file systems that a kubelet mounts for a DiskSet, and other content that is common on disks.
// The kubelet recognizes further kinds of content. It does not format a disk whose content it recognizes.
var signatures = []signature{
	{"an ext2, ext3 or ext4 file system", 1024 + 56, "\x53\xef", 1024 + 120, 16},
	{"an xfs file system", 0, "XFSB", 108, 12},
	{"a btrfs file system", 64*kib + 64, "_BHRfS_M", 64*kib + 299, 256},
	{"an encrypted volume (LUKS)", 0, "LUKS\xba\xbe", 24, 48},
	{"a physical volume of LVM", 512, "LABELONE", 0, 0},
	{"swap space", 4096 - 10, "SWAPSPACE2", 0, 0},
	{"a volume of Ceph", 0, "bluestore block device", 0, 0},
	{"a partition table (GPT)", 512, "EFI PART", 0, 0},
	{"a partition table or a boot sector", 510, "\x55\xaa", 0, 0},
}

// Look describes the content of a block device, or of an image of one, for example as "an xfs file system named
// payroll". Look returns an empty string if it does not recognize the content. Look reads the device without mounting
// it, even if the device is in use.
func Look(path string) (found string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // the file was only read, so an error of Close loses nothing
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", fmt.Errorf("%s: its size: %w", path, err)
	}
	if size == 0 {
		return "", fmt.Errorf("%s has no bytes: is the medium there?", path)
	}
	head := make([]byte, min(size, 128*kib))
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, size), head); err != nil {
		return "", fmt.Errorf("read the first %d bytes of %s: %w", len(head), path, err)
	}
	for _, s := range signatures {
		if !bytes.HasPrefix(head[min(s.at, int64(len(head))):], []byte(s.magic)) {
			continue
		}
		if end := s.labelAt + int64(s.labelLen); s.labelLen > 0 && end <= int64(len(head)) {
			if label, _, _ := strings.Cut(string(head[s.labelAt:end]), "\x00"); label != "" {
				return fmt.Sprintf("%s named %q", s.what, label), nil
			}
		}
		return s.what, nil
	}
	return "", nil
}
