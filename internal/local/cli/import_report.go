package cli

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// ImportReport is the result of an import.
type ImportReport struct {
	DryRun       bool    `json:"dryRun,omitempty"`
	Stored       int64   `json:"stored"`
	StoredBytes  int64   `json:"storedBytes"`
	AlreadyThere int64   `json:"alreadyThere"`
	Updated      int64   `json:"updated"`
	Deleted      int64   `json:"deleted"`
	Empty        int64   `json:"empty"`
	Symlinks     int64   `json:"symlinks"`
	Large        int64   `json:"large"`
	Skipped      int64   `json:"skipped"` // sockets, devices, pipes, and links with --symlinks skip
	NotKept      NotKept `json:"notKept"`
	Failed       Failed  `json:"failed,omitempty"`
	Seconds      float64 `json:"seconds"`
	ImportID     string  `json:"importId,omitempty"`
}

// NotKept counts properties of the tree that its records do not keep. It does not count files that were already stored
// and were not read.
type NotKept struct {
	EmptyFolders int64 `json:"emptyFolders"`
	HardLinks    int64 `json:"hardLinks"`  // files with several names, each of which becomes a separate record
	Holes        int64 `json:"holes"`      // files with holes, which become zeros
	Owners       int64 `json:"owners"`     // files of a user or group other than that of the importing process
	Attributes   int64 `json:"attributes"` // files with extended attributes, ACLs or capabilities
}

// NotImported counts files that are not stored. It does not count a file that was stored although it changed while it
// was read.
func (r *ImportReport) NotImported() int64 {
	return r.Failed.Total() - r.Failed[failMixed] - r.Failed[failKept]
}

// Mixed counts files that changed while they were read. They are stored, perhaps as a mixture of two states.
func (r *ImportReport) Mixed() int64 { return r.Failed[failMixed] }

// NotDeleted counts the records that --delete did not delete although their files no longer exist.
func (r *ImportReport) NotDeleted() int64 { return r.Failed[failKept] }

// ImportFailure describes a kind of failure of an import, and the consequence for the files.
func ImportFailure(kind string) string {
	switch kind {
	case failMixed:
		return "stored, perhaps as a mixture: " + kind
	case failKept:
		return kind
	}
	return "not imported: " + kind
}

// notKept has the same counters as NotKept, and may be used concurrently during an import.
type notKept struct{ emptyFolders, hardLinks, holes, owners, attributes atomic.Int64 }

func (n *notKept) report() NotKept {
	return NotKept{
		EmptyFolders: n.emptyFolders.Load(), HardLinks: n.hardLinks.Load(), Holes: n.holes.Load(),
		Owners: n.owners.Load(), Attributes: n.attributes.Load(),
	}
}

// look counts those properties of an open file that its record will lack.
func (n *notKept) look(f *os.File, info fs.FileInfo) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	if st.Nlink > 1 {
		n.hardLinks.Add(1)
	}
	if int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid() {
		n.owners.Add(1)
	}
	if hasAttributes(int(f.Fd())) {
		n.attributes.Add(1)
	}
	// Fewer blocks than the size needs do not prove that the file has a hole, because a file system may have compressed
	// the file, or not yet have allocated its blocks. Therefore, the file system is asked for the first hole.
	const block = 512
	if st.Blocks*block < st.Size {
		if hole, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_HOLE); err == nil && hole < st.Size {
			n.holes.Add(1)
		}
	}
}

// hasAttributes reports whether a file has extended attributes. SELinux labels do not count, because SELinux gives
// every file a label, and a new label when the file is written.
func hasAttributes(fd int) bool {
	var names [1 << 10]byte
	size, err := unix.Flistxattr(fd, names[:])
	if err != nil {
		return errors.Is(err, unix.ERANGE)
	}
	for name := range strings.SplitSeq(string(names[:size]), "\x00") {
		if name != "" && name != "security.selinux" {
			return true
		}
	}
	return false
}

func (im *importer) report() ImportReport {
	return ImportReport{
		DryRun: im.opts.DryRun, Stored: im.stored.Load(), StoredBytes: im.storedBytes.Load(), AlreadyThere: im.there.Load(),
		Updated: im.updated.Load(), Deleted: im.deleted.Load(), Empty: im.empty.Load(), Symlinks: im.symlinks.Load(),
		Large: im.large.Load(), Skipped: im.skipped.Load(), NotKept: im.notKept.report(), Failed: im.failed.counts(),
	}
}
